"""Programs of a TPU's window and launches of the host: the place in time that is right, or none."""

import random
from pathlib import Path

import pytest

from fleetscope.agents.clocks import MONOTONIC_RAW
from fleetscope.agents.node.pairing import Execution, Programs, pairs, programs_of
from fleetscope.agents.profiler.protocol import Clocks
from fleetscope.agents.xspace import OpTables, convert, read_xspace
from fleetscope.schema.vocabulary import ClockFlag
from fleetscope.schema.wire_pb2 import ClockEpoch

CLOCK = ClockEpoch(clock="tpu_raw", device="chip", period_num=5, period_den=4, width_bits=64, resets=1)
SECOND, MS, US = 10**9, 10**6, 10**3


def _told(seen: Programs, zero: int, dice: random.Random, ahead: int = 1) -> list[Execution]:
    """What a shim was told of it, and of as much before and after: enqueued 50 to 300 us before it began, or when the
    program `ahead` before it had ended; told within 200 us of its end."""
    begins = [zero + start for start in seen.start]
    period = begins[-1] - begins[0] + 50 * MS
    told = []
    for turn in (-1, 0, 1):
        ends: list[int] = []
        for name, begin, dur in zip(seen.names, begins, seen.dur, strict=True):
            end = begin + turn * period + dur + dice.randrange(20 * US, 200 * US)
            enqueue = begin + turn * period - dice.randrange(50 * US, 300 * US)
            if ahead > 1 and len(ends) >= ahead:
                enqueue = min(enqueue, ends[-ahead] + 20 * US)
            told.append(Execution(name, enqueue, end))
            ends.append(end)
    return told


@pytest.mark.unit
def test_a_real_capture_is_laid_where_its_programs_ran(samples: Path) -> None:
    """The v6e sample's 103 to 105 modules a core, launched by the simulator; each pair holds the truth."""
    space = read_xspace((samples / "xplane" / "xprof__tpu_inference_2.xplane.pb").read_bytes(), "v6e")
    tables = OpTables("test")
    capture = convert(space, tables, host=False)
    opened = Clocks(70 * SECOND, capture.session.start_ns, 70 * SECOND + 60)
    for spans in capture.devices:
        seen = programs_of(spans, tables, CLOCK, opened)
        assert seen is not None
        assert len(seen.names) in (103, 105)
        assert seen.zero_ns is not None
        # The runtime's own line has its zero near the session's begin.
        assert abs(seen.zero_ns - 70 * SECOND) < 200 * MS
        zero = seen.zero_ns + 400 * US
        found = pairs(seen, _told(seen, zero, random.Random(spans.ordinal)), MONOTONIC_RAW)
        assert 32 <= len(found) <= 64
        assert [pair.value for pair in found] == sorted(pair.value for pair in found)
        for pair in found:
            assert pair.clock == CLOCK
            assert pair.ref.clock == "monotonic_raw"
            assert pair.flags == ClockFlag.PAIRED
            assert pair.ref_before <= zero + pair.value * 5 // 4 <= pair.ref_after <= pair.ref_before + MS


def _loop(count: int, step: int, zero_ns: int | None) -> Programs:
    starts = tuple(number * step for number in range(count))
    ticks = tuple(start * 4 // 5 for start in starts)
    return Programs(CLOCK, ("jit_step",) * count, ticks, starts, (step * 9 // 10,) * count, zero_ns)


@pytest.mark.unit
@pytest.mark.parametrize("ahead", [1, 3])
def test_a_loop_of_one_program_is_laid_by_what_the_runtime_says_of_its_clock(ahead: int) -> None:
    dice, zero = random.Random(1), 500 * SECOND
    told = _told(_loop(60, 50 * MS, None), zero - 20 * 50 * MS, dice, ahead)
    right = pairs(_loop(10, 50 * MS, zero + 300 * US), told, MONOTONIC_RAW)
    assert len(right) == 10
    for pair in right:
        assert pair.ref_before <= zero + pair.value * 5 // 4 <= pair.ref_after
    # Without its word every step fits; with one in the middle between two steps neither does.
    assert pairs(_loop(10, 50 * MS, None), told, MONOTONIC_RAW) == []
    assert pairs(_loop(10, 50 * MS, zero + 25 * MS), told, MONOTONIC_RAW) == []


@pytest.mark.unit
def test_what_does_not_fit_gives_no_pairs() -> None:
    dice, zero = random.Random(2), 500 * SECOND
    seen = _loop(10, 50 * MS, zero)
    told = _told(seen, zero, dice)
    assert pairs(seen, told[:9], MONOTONIC_RAW) == []
    assert pairs(seen, [], MONOTONIC_RAW) == []
    renamed = [Execution("jit_other", item.enqueue_ns, item.end_ns) for item in told]
    assert pairs(seen, renamed, MONOTONIC_RAW) == []
    # Programs that were enqueued after they had begun, wherever the window is laid.
    late = [Execution(item.name, item.enqueue_ns + (i % 3) * 30 * MS, item.end_ns) for i, item in enumerate(told)]
    assert pairs(seen, late, MONOTONIC_RAW) == []


@pytest.mark.unit
def test_a_clock_of_the_host_needs_no_pairs(samples: Path) -> None:
    space = read_xspace((samples / "xplane" / "self__jax0.10.2_cpu_1s.xplane.pb").read_bytes(), "cpu")
    tables = OpTables("test")
    capture = convert(space, tables, host=False)
    assert capture.devices
    for spans in capture.devices:
        assert programs_of(spans, tables, CLOCK, Clocks(0, 0, 0)) is None
