"""Arrow schemas of a Batch's payloads. All times are int64: a float never holds a timestamp."""

import pyarrow as pa

from fleetscope.schema.columns import field as _f

_I64, _I32, _U8, _U32, _F64, _STR = pa.int64(), pa.int32(), pa.uint8(), pa.uint32(), pa.float64(), pa.string()

WIRE_SPANS = pa.schema(
    [
        _f("start", _I64, "tick", "begin, in ticks of the batch's clock epoch, unwrapped"),
        _f("dur", _I64, "tick", "duration; negative values are kept and flagged"),
        _f("line", _I32, "", "line (hardware queue, stream or host thread) the span is on"),
        _f("kind", _U8, "Kind", "what it is"),
        _f("program", _I64, "id", "fingerprint of the HLO module; hash of the name for host annotations"),
        _f("op", _I32, "ordinal", "instruction's ordinal in its program; 0 for host annotations and modules"),
        _f("exec", _I64, "", "which execution of the program on that device; -1 unknown"),
        _f("step", _I64, "", "user's step number; -1 unknown"),
        _f("flow", _I64, "id", "links spans across lines and threads; 0 none"),
        _f(
            "weight", _I32, "", "1: as it is; 2^k: one in 2^k was recorded; 0: from a profiler window, see Batch.window"
        ),
        _f("flags", _U32, "SpanFlag", "quality bits set by the producer"),
        _f("args", _STR, "json", "annotation arguments as one JSON object", null=True),
    ]
)
"""Payload of PAYLOAD_SPANS. Rows in order (line, start, -dur); sequence number of row i is first_event + i."""

WIRE_SAMPLES = pa.schema(
    [
        _f("tick", _I64, "tick", "when it was read, in ticks of the batch's clock epoch"),
        _f("device", _I64, "id", "device; 0 for the host or process"),
        _f("series", _I64, "id", "identity of (name, labels)"),
        _f("value_int", _I64, "series unit", "value, when integral", null=True),
        _f("value_float", _F64, "series unit", "value, when not integral", null=True),
        _f("flags", _U32, "", "quality bits"),
    ]
)
