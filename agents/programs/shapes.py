"""HLO shapes as text, the way XLA prints them without layouts: f32[8,128], (f32[], s32[4]), token[]."""

from fleetscope.schema.hlo_pb2 import Shape

ELEMENT_TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
    10: "f16", 11: "f32", 12: "f64", 13: "tuple", 14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128",
    19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz",
    26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4", 30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu",
}  # fmt: skip
"""PrimitiveType of openxla/xla xla/xla_data.proto."""


def shape_text(shape: Shape) -> str:
    """Text of a shape; an element type newer than this table prints as type<N>."""
    if shape.element_type == 13:
        return "(" + ", ".join(shape_text(part) for part in shape.tuple_shapes) + ")"
    element = ELEMENT_TYPES.get(shape.element_type, f"type{shape.element_type}")
    return f"{element}[{','.join(map(str, shape.dimensions))}]"
