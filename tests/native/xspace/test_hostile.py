"""What must never hurt: broken bytes, hostile lengths, text that is not text."""

import random
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError

from fleetscope.native import xspace


def field(number: int, payload: bytes) -> bytes:
    size, length = b"", len(payload)
    while length >= 0x80:
        size, length = size + bytes([length & 0x7F | 0x80]), length >> 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + payload


def plane_named(name: bytes) -> bytes:
    return field(1, field(2, name))


@pytest.mark.unit
@pytest.mark.parametrize(
    ("data", "fault", "offset"),
    [
        (b"\x0a", 1, 1),  # a plane without its length
        (b"\x0a\x05\x12\x01a", 1, 1),  # length 5, 3 bytes left
        (b"\x0a\x02\x12\x05", 1, 3),  # inside the plane: name of 5 bytes, none left
        (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 1, 1),  # length 2^64 - 1
        (b"\x08" + b"\x80" * 10 + b"\x01", 2, 1),  # varint of 11 bytes
        (b"\x00\x00", 3, 0),  # field number 0
        (b"\x0e", 3, 1),  # wire type 6
        (b"\x0c", 4, 1),  # an end without a group
        (b"\x7b\x08\x01", 4, 1),  # a group without an end
        (b"\x7b\x84\x01", 4, 3),  # ends as another field
        (b"\x7b" * 101, 4, 101),  # deeper than 100
        (b"\x51\x00", 1, 1),  # fixed64 of one byte
    ],
)
def test_faults_name_their_byte(data: bytes, fault: int, offset: int) -> None:
    with pytest.raises(xspace.XSpaceError) as error:
        xspace.decode(data)
    assert (error.value.fault, error.value.offset) == (fault, offset)
    assert f"byte {offset}" in str(error.value)


@pytest.mark.unit
def test_empty_input_is_an_empty_space() -> None:
    decoded = xspace.decode(b"")
    assert [getattr(decoded, name).num_rows for name in ("planes", "lines", "events", "stats")] == [0, 0, 0, 0]
    assert decoded.events.column("hlo_op").to_pylist() == []


@pytest.mark.unit
@pytest.mark.parametrize(
    "name",
    [
        b"\xff", b"\xc3\x28", b"\xe2\x82", b"\xe2\x28\xa1", b"\xf0\x9f\x98", b"\xf0\x28\x8c\xbc", b"\xed\xa0\x80",
        b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"ok\x80ok\xbf",
        b"\xf1\x80\x80\x41",
    ],
)  # fmt: skip
def test_invalid_utf8_is_replaced_as_python_replaces_it(name: bytes) -> None:
    decoded = xspace.decode(plane_named(name))
    assert decoded.planes.column("name").to_pylist() == [name.decode("utf-8", "replace")]
    assert decoded.replaced_utf8 == name.decode("utf-8", "replace").count("\ufffd")
    decoded.planes.validate(full=True)


@pytest.mark.property
def test_random_bytes_as_text() -> None:
    chooser = random.Random(7)
    alphabet = [0x00, 0x41, 0x7F, 0x80, 0xBF, 0xC2, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0x90, 0xA0, 0x8F, 0x9F]
    names = [bytes(chooser.choices(alphabet, k=chooser.randrange(20))) for _ in range(3000)]
    decoded = xspace.decode(b"".join(map(plane_named, names)))
    assert decoded.planes.column("name").to_pylist() == [name.decode("utf-8", "replace") for name in names]


@pytest.mark.unit
def test_markup_nul_and_a_mebibyte_of_name_come_through() -> None:
    names = ["<script>\0", "\u202e", "n" * (1 << 20)]
    decoded = xspace.decode(b"".join(plane_named(name.encode()) for name in names))
    assert decoded.planes.column("name").to_pylist() == names


@pytest.mark.fault
def test_memory_is_bounded_by_the_input() -> None:
    """Every second byte an event, one event that touches every stat column: 200 bytes of columns per 2 of input."""
    stats = "run_id flow _p _c _r _a _pt _ct group_id iter_num step_num flops model_flops queue_id core_type device_id"
    stats += " replica_id correlation_id program_id device_ordinal device_offset_ps device_duration_ps counter_value"
    names = b"".join(
        field(5, bytes([0x08, i]) + field(2, field(2, name.encode()))) for i, name in enumerate(stats.split())
    )
    rich = b"".join(field(4, bytes([0x08, i, 0x20, 1])) for i in range(len(stats.split())))
    line = b"\x22\x00" * 2_000_000 + field(4, rich)
    data = field(1, names + field(3, line))
    with pytest.raises(xspace.XSpaceError) as error:
        xspace.decode(data)
    assert error.value.fault == 6
    decoded = xspace.decode(data, memory_limit=1 << 30)
    assert decoded.events.num_rows == 2_000_001
    assert decoded.events.column("run_id").null_count == 2_000_000


@pytest.mark.unit
def test_a_length_prefix_alone_allocates_nothing() -> None:
    with pytest.raises(xspace.XSpaceError):
        xspace.decode(b"\x0a\xfe\xff\xff\xff\x07" + b"x" * 10, memory_limit=1)


@pytest.mark.unit
def test_columns_outlive_the_decoded_space_and_its_input() -> None:
    data = bytearray(plane_named(b"/device:TPU:0"))
    column = xspace.decode(memoryview(data)).planes.column("name")
    data[:] = bytes(len(data))
    del data
    assert column.to_pylist() == ["/device:TPU:0"]


@pytest.mark.unit
def test_string_columns_share_one_dictionary(samples: Path) -> None:
    data = (samples / "xplane" / "self__jax0.10.2_cpu_1s.xplane.pb").read_bytes()
    events = xspace.decode(data).events
    op, module = events.column("hlo_op"), events.column("hlo_module")
    assert isinstance(op, pa.DictionaryArray)
    assert op.dictionary.equals(module.dictionary)
    assert op.dictionary.buffers()[2].address == module.dictionary.buffers()[2].address


@pytest.mark.unit
def test_decoding_leaves_the_interpreter_free(samples: Path) -> None:
    data = (samples / "xplane" / "xprof__demo_gpu_v100x8_tf_2020.xplane.pb").read_bytes() * 40
    ticks, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        before = ticks[0]
        xspace.decode(data, memory_limit=8 << 30)
        during = ticks[0] - before
    finally:
        stop.set()
        thread.join()
    assert during >= 5


def mutations(seed: bytes, rounds: int, chooser: random.Random) -> Any:
    for _ in range(rounds):
        data = bytearray(seed)
        for _ in range(chooser.randrange(1, 5)):
            at = chooser.randrange(len(data)) if data else 0
            match chooser.randrange(6):
                case 0 if data:
                    data[at] ^= 1 << chooser.randrange(8)
                case 1 if data:
                    data[at] = chooser.randrange(256)
                case 2:
                    del data[at:]
                case 3:
                    del data[at : at + chooser.randrange(1, 17)]
                case 4:
                    data[at:at] = bytes([chooser.randrange(256)]) * chooser.randrange(1, 9)
                case 5 if data:
                    start = chooser.randrange(len(data))
                    data[at:at] = data[start : start + chooser.randrange(64)]
        yield bytes(data)


def check(data: bytes, message_class: Any) -> bool:
    """Ours takes the bytes exactly when protobuf does, and then sees as many of everything."""
    try:
        space = message_class.FromString(data)
    except DecodeError:
        with pytest.raises(xspace.XSpaceError) as error:
            xspace.decode(data)
        assert 0 <= error.value.offset <= len(data)
        return False
    decoded = xspace.decode(data)
    assert decoded.planes.column("id").to_pylist() == [plane.id for plane in space.planes]
    counts = [len(line.events) for plane in space.planes for line in plane.lines]
    assert decoded.lines.column("event_count").to_pylist() == counts
    for name in ("planes", "lines", "events", "event_metadata", "stat_metadata", "stats"):
        getattr(decoded, name).validate(full=True)
    return True


def small_space(message_class: Any) -> bytes:
    names = [b"run_id", b"hlo_op", b"odd", b"memory_access_breakdown", b"Hlo Proto", b"fusion.1"]
    stats = [
        {"metadata_id": 1, "uint64_value": 1 << 63},
        {"metadata_id": 2, "ref_value": 6},
        {"metadata_id": 3, "double_value": 0.5},
        {"metadata_id": 4, "bytes_value": b"\x0a\x06\x08\x01\x10\x01\x18\x7f"},
        {"metadata_id": 3, "str_value": b"caf\xc3\xa9"},
    ]
    event = {"metadata_id": 300, "offset_ps": 1_250, "duration_ps": 1 << 40, "stats": stats}
    lines = [{"id": 3, "name": b"XLA Ops", "events": [event, {"num_occurrences": 4}]}, {"id": -5, "name": b"\xff"}]
    plane = {
        "id": 2,
        "name": b"/device:TPU:0",
        "lines": lines,
        "event_metadata": [{"key": 300, "value": {"name": b"%f", "stats": stats, "child_id": [1, 2]}}],
        "stat_metadata": [{"key": i + 1, "value": {"name": name}} for i, name in enumerate(names)],
        "stats": stats,
    }
    data: bytes = message_class(planes=[plane, plane], hostnames=[b"h"], errors=[b"e"]).SerializeToString()
    return data


@pytest.mark.fault
def test_mutated_small_spaces(message_class: Any) -> None:
    seed = small_space(message_class)
    taken = [check(data, message_class) for data in mutations(seed, 6000, random.Random(1))]
    # Mutations that only ever fail, or never do, would test one side of the decoder.
    assert 300 < sum(taken) < 5700


@pytest.mark.fault
def test_every_truncation_of_a_small_space(message_class: Any) -> None:
    seed = small_space(message_class)
    for size in range(len(seed)):
        check(seed[:size], message_class)


@pytest.mark.fault
def test_mutated_captures(samples: Path, message_class: Any) -> None:
    seed = (samples / "xplane" / "tracelens__mi300_jax08_gemm.xplane.pb").read_bytes()
    for data in mutations(seed, 250, random.Random(2)):
        check(data, message_class)


@pytest.mark.fault
def test_random_bytes(message_class: Any) -> None:
    chooser = random.Random(3)
    for size in range(1500):
        check(chooser.randbytes(size % 60), message_class)
    check(struct.pack("<Q", 0x0A0A0A0A0A0A0A0A) * 1000, message_class)
