"""Captures that decode and make no sense: each is converted, or refused with our own error; nothing else is raised."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetscope.agents.batches import Numberer, pack
from fleetscope.agents.programs.chunks import chunks
from fleetscope.agents.xspace import OpTables, convert, read_xspace
from fleetscope.agents.xspace.declared import bytes_of_space
from fleetscope.agents.xspace.drift import fit_line
from fleetscope.agents.xspace.importing import import_drafts, read_capture, report_rows, source_of
from fleetscope.schema.errors import XSpaceUnreadable

EXTREMES = [
    0, 1, -1, 999, 1_000, 1_250, (1 << 31) - 1, 1 << 31, 10**15, 10**17, 10**18, 1 << 53, 1 << 62, -(1 << 62),
    (1 << 63) - 1, -(1 << 63), -1_250,
]  # fmt: skip
BREAKDOWNS = [b"", b"\x0a\x0e\x08\x01\x10\x01\x18" + b"\xff" * 9 + b"\x01", b"\xff\xff", b"\x0a\x7f", b"\x0a"]


def everything(file: Path) -> bool:
    """The whole way of an import but for the log. False: refused."""
    try:
        imported = read_capture(file)
    except XSpaceUnreadable:
        return False
    report_rows(file.name, imported.report)
    numberer = Numberer(1)
    for program in imported.programs:
        chunks(program)
    for draft in import_drafts(imported, source_of(imported, "test")):
        for packed in pack(draft):
            numberer.number(packed, 0)
    return True


def absurd(plane: Any, chooser: random.Random) -> list[Any]:
    """A TPU, a GPU, a CPU and a session whose every number is an extreme one."""

    def one() -> int:
        return chooser.choice(EXTREMES)

    def event(**stats: Any) -> dict[str, Any]:
        return {"at": one(), "dur": one(), **stats}

    tpu = plane(f"/device:TPU:{abs(one())}")
    op = tpu.kind(
        "%add.1 = f32[8]",
        display="add.1",
        program_id=one(),
        hlo_category=chooser.choice(["loop fusion", "", "all-reduce"]),
        flops=one(),
        bytes_accessed=one(),
        memory_access_breakdown=chooser.choice(BREAKDOWNS),
        source=chooser.choice(["x:99999999999", "a:3", ":"]),
    )
    module = tpu.kind(f"jit_f({abs(one())})")
    raw = {"device_offset_ps": 0, "device_duration_ps": 0, "flow": 0, "all_reduce_unique_id": 0}
    tpu.line("XLA Modules", [event(kind=module, run_id=one()) for _ in range(chooser.randrange(3))], timestamp_ns=one())
    tpu.line("Steps", [event(name=str(abs(one()))) for _ in range(chooser.randrange(3))])
    tpu.line(
        "XLA Ops", [event(kind=op, **{name: one() for name in raw}) for _ in range(chooser.randrange(4))], id_=one()
    )
    gpu = plane("/device:GPU:0").stats(memory_bandwidth=one())
    kernel = event(name="gemm", correlation_id=one(), hlo_op="add", program_id=one())
    gpu.line(f"Stream #{abs(one())}(Compute)", [kernel] * chooser.randrange(3), timestamp_ns=one())
    thunk = event(name="a", hlo_op="a", hlo_module="f", program_id=one(), run_id=one(), device_ordinal=one())
    step = event(name="train", _r=1, step_num=one(), _pt=one(), _p=one())
    cpu = plane("/host:CPU").stats(process_id=one()).line("pool", [thunk, step], id_=one(), timestamp_ns=one())
    session = plane("Task Environment").stats(profile_start_time=one(), profile_stop_time=one())
    return [tpu, gpu, cpu, session]


@pytest.mark.fault
def test_absurd_numbers(plane: Any, xspace_bytes: Callable[..., bytes], tmp_path: Path) -> None:
    chooser = random.Random(3)
    file = tmp_path / "absurd.xplane.pb"
    for _ in range(80):
        file.write_bytes(xspace_bytes(*absurd(plane, chooser), start_ns=None))
        assert everything(file)


@pytest.mark.fault
def test_mutated_captures(plane: Any, xspace_bytes: Callable[..., bytes], samples: Path, tmp_path: Path) -> None:
    chooser = random.Random(4)
    seeds = [
        (samples / "xplane" / "tracelens__mi300_jax08_gemm.xplane.pb").read_bytes(),
        *(xspace_bytes(*absurd(plane, chooser)[:3]) for _ in range(4)),
    ]
    file = tmp_path / "mutated.xplane.pb"
    read = 0
    for _ in range(300):
        data = bytearray(chooser.choice(seeds))
        for _ in range(chooser.randrange(1, 5)):
            data[chooser.randrange(len(data))] = chooser.choice([0, 0x7F, 0xFF, chooser.randrange(256)])
        file.write_bytes(data)
        read += everything(file)
    assert 30 < read < 270


@pytest.mark.unit
def test_events_that_cannot_be_true_are_counted(plane: Any, xspace_bytes: Callable[..., bytes]) -> None:
    month_ps = 31 * 86_400 * 10**12
    events = [{"name": "k", "at": 0, "dur": 1000}, {"name": "k", "at": month_ps, "dur": 1000}]
    space = read_xspace(xspace_bytes(plane("/device:GPU:0").line("Stream #1", events)), "test")
    [device] = convert(space, OpTables("test")).devices
    assert (device.rows.num_rows, device.skipped) == (1, {"impossible times": 1})


@pytest.mark.unit
def test_bytes_by_memory_space() -> None:
    """Two reads and a write of space 1, one of space 3; encoded by hand: {operation, space, bytes} each."""
    entries = [(1, 1, 300), (1, 1, 1), (2, 1, 5), (1, 3, 7)]
    data = b"".join(
        b"\x0a" + bytes([len(body)]) + body
        for body in (
            bytes([0x08, how, 0x10, space, 0x18])
            + (bytes([size & 0x7F | 0x80, size >> 7]) if size > 127 else bytes([size]))
            for how, space, size in entries
        )
    )
    assert (bytes_of_space(data, 1), bytes_of_space(data, 3), bytes_of_space(data, 0)) == (306, 7, 0)
    assert bytes_of_space(data[:-1], 1) == 306


@pytest.mark.unit
@pytest.mark.parametrize(("length_s", "ops"), [(0.5, 1_500), (50, 1_500), (5_000, 1_500), (20_000, 30_000)])
def test_the_drift_line_is_found_among_displaced_ops(length_s: float, ops: int) -> None:
    """Truth by construction: 15 ppm and 70 us, half of the points on it within 10 us, the rest up to 200 ms above."""
    random_ = np.random.default_rng(1)
    raw = np.sort(random_.integers(0, int(length_s * 1e12), ops))
    aligned = raw + (15e-6 * raw).astype(np.int64) + 70_000_000 + random_.integers(-10_000_000, 10_000_000, ops)
    displaced = random_.random(ops) < 0.5
    aligned[displaced] += random_.integers(2_000_000_000, 200_000_000_000, int(displaced.sum()))
    line = fit_line(raw, aligned)
    # Half of the points within 10 us bound the slope's error over the whole stretch far below 5 us.
    assert abs(line.slope - 15e-6) * length_s * 1e6 < 5
    assert ((np.abs(line.residual_ps(raw, aligned)) > 1e9) == displaced).all()


@pytest.mark.unit
def test_the_drift_line_of_one_op() -> None:
    line = fit_line(np.array([5], np.int64), np.array([7_000], np.int64))
    assert abs(line.residual_ps(np.array([5]), np.array([7_000]))[0]) <= 30_000_000
