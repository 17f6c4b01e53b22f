"""The oracle: XSpace described to google.protobuf from its field numbers (xprof.md 3.1), with nothing of ours in it."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Strings are described as bytes, so that protobuf accepts invalid UTF-8 and hands it over as it is.
SCALARS = {"int64": 3, "uint64": 4, "bytes": 12, "double": 1}
MESSAGES = {
    "XSpace": [
        ("planes", 1, "*XPlane"),
        ("errors", 2, "*bytes"),
        ("warnings", 3, "*bytes"),
        ("hostnames", 4, "*bytes"),
    ],
    "XPlane": [
        ("id", 1, "int64"),
        ("name", 2, "bytes"),
        ("lines", 3, "*XLine"),
        ("event_metadata", 4, "*EventMetadataEntry"),
        ("stat_metadata", 5, "*StatMetadataEntry"),
        ("stats", 6, "*XStat"),
    ],
    "XLine": [
        ("id", 1, "int64"),
        ("display_id", 10, "int64"),
        ("name", 2, "bytes"),
        ("display_name", 11, "bytes"),
        ("timestamp_ns", 3, "int64"),
        ("duration_ps", 9, "int64"),
        ("events", 4, "*XEvent"),
    ],
    "XEvent": [
        ("metadata_id", 1, "int64"),
        ("offset_ps", 2, "?int64"),
        ("num_occurrences", 5, "?int64"),
        ("duration_ps", 3, "int64"),
        ("stats", 4, "*XStat"),
    ],
    "XStat": [
        ("metadata_id", 1, "int64"),
        ("double_value", 2, "?double"),
        ("uint64_value", 3, "?uint64"),
        ("int64_value", 4, "?int64"),
        ("str_value", 5, "?bytes"),
        ("bytes_value", 6, "?bytes"),
        ("ref_value", 7, "?uint64"),
    ],
    "XEventMetadata": [
        ("id", 1, "int64"),
        ("name", 2, "bytes"),
        ("display_name", 4, "bytes"),
        ("metadata", 3, "bytes"),
        ("stats", 5, "*XStat"),
        ("child_id", 6, "*int64"),
    ],
    "XStatMetadata": [("id", 1, "int64"), ("name", 2, "bytes"), ("description", 3, "bytes")],
    "EventMetadataEntry": [("key", 1, "int64"), ("value", 2, "XEventMetadata")],
    "StatMetadataEntry": [("key", 1, "int64"), ("value", 2, "XStatMetadata")],
}


@pytest.fixture(scope="session")
def message_class() -> Any:
    """google.protobuf's own XSpace class. `?` fields are one oneof, `*` fields repeated."""
    file = descriptor_pb2.FileDescriptorProto(name="oracle.proto", package="oracle", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            described = message.field.add(name=field, number=number, label=3 if kind[0] == "*" else 1)
            bare = kind.lstrip("*?")
            if bare in SCALARS:
                described.type = SCALARS[bare]
            else:
                described.type, described.type_name = 11, f".oracle.{bare}"
            if kind[0] == "?":
                described.oneof_index = 0
        if any(kind[0] == "?" for *_, kind in fields):
            message.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("oracle.XSpace"))


@pytest.fixture(
    scope="session",
    params=[
        "self__jax0.10.2_cpu_1s",
        "tracelens__mi300_jax08_gemm",
        "xprof__demo_gpu_v100x8_tf_2020",
        "xprof__tpu_inference_2",
    ],
)
def capture(request: pytest.FixtureRequest, samples: Path) -> bytes:
    """Each of the four real captures."""
    return (samples / "xplane" / f"{request.param}.xplane.pb").read_bytes()
