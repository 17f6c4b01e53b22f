"""Spans, steps and counters come out of the rings as they went in, and what is lost is counted exactly."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fleetscope.native import _recorder as recorder
from fleetscope.native.recorder import ARG_FLOAT, ARG_INT, ARG_NAME, COUNTER_FLOAT, COUNTER_INT, HOST, STEP, Segment

pytestmark = pytest.mark.unit


def named(segment: Segment, ids: np.ndarray) -> list[str]:
    names = segment.names()
    return [names[number] for number in ids]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def child(code: str, *args: str, **kwargs: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *args], stdout=subprocess.PIPE, text=True, **kwargs
    )


def test_regions_steps_and_counters_come_out_as_they_went_in(segment: Segment) -> None:
    with recorder.step(7), recorder.annotate("load", shard=3, rate=0.5, kind="train"):
        recorder.counter("loss", 0.25)
        recorder.counter("rows", -9)
    with recorder.annotate("data_wait"):
        pass
    got = segment.drain()
    assert named(segment, got.name) == ["loss", "rows", "load", "step", "data_wait"]
    assert got.kind.tolist() == [COUNTER_FLOAT, COUNTER_INT, HOST, STEP, 9]
    assert got.seq.tolist() == [0, 1, 2, 3, 4]
    assert got.value_float[0] == 0.25
    assert got.arg.tolist()[1:] == [-9, 8, 7, 8]  # a region carries its step + 1, a step its number
    assert got.arg_row.tolist() == [2, 2, 2]
    assert named(segment, got.arg_key) == ["shard", "rate", "kind"]
    assert got.arg_kind.tolist() == [ARG_INT, ARG_FLOAT, ARG_NAME]
    assert got.arg_value[0] == 3
    assert got.arg_value[1:2].view(np.float64)[0] == 0.5
    assert named(segment, got.arg_value[2:]) == ["train"]
    assert (got.lost, got.more) == (0, False)
    assert len(segment.drain()) == 0


def test_nested_regions_lie_inside_each_other_and_take_their_time(segment: Segment) -> None:
    begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    with recorder.annotate("outer"), recorder.annotate("inner"):
        time.sleep(0.05)
    elapsed_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - begin
    got = segment.drain()
    inner, outer = 0, 1
    assert named(segment, got.name) == ["inner", "outer"]
    assert got.start[outer] <= got.start[inner]
    assert got.start[inner] + got.dur[inner] <= got.start[outer] + got.dur[outer]
    dur_ns = got.dur * segment.info.period_num / segment.info.period_den
    assert 50e6 <= dur_ns[inner] <= dur_ns[outer]
    assert dur_ns[outer] <= elapsed_ns * 1.00001


def test_the_anchor_places_events_in_the_time_of_the_host(segment: Segment) -> None:
    raw, counter, realtime, raw_after = segment.info.anchor
    assert 0 <= raw_after - raw < 50_000
    before = time.time_ns()
    recorder.counter("x", 1)
    after = time.time_ns()
    tick = int(segment.drain().start[0])
    placed = realtime + (tick - counter) * segment.info.period_num // segment.info.period_den
    assert before - 100_000 <= placed <= after + 100_000


def test_a_step_without_with_is_a_mark(segment: Segment) -> None:
    for number in range(3):
        recorder.step(number)
    got = segment.drain()
    assert got.kind.tolist() == [STEP] * 3
    assert got.arg.tolist() == [0, 1, 2]
    assert got.dur.tolist() == [0, 0, 0]
    assert (np.diff(got.start) > 0).all()
    assert segment.state().step == 2


def test_numpy_integers_are_step_numbers_and_other_things_are_no_error(segment: Segment) -> None:
    class Lazy:
        def __index__(self) -> int:
            raise AssertionError("a device would have been waited for")

        __float__ = __index__

    with recorder.step(np.int32(5)):
        recorder.counter("numpy", np.float32(0.5))
        recorder.counter("lazy", Lazy())
        recorder.counter("lazy", "text")
    with recorder.step(Lazy()):
        pass
    with recorder.annotate(17), recorder.annotate("args", lazy=Lazy(), big=1 << 70, none=None):
        pass
    got = segment.drain()
    assert named(segment, got.name) == ["numpy", "step", "step", "args", "17"]
    assert got.kind.tolist() == [COUNTER_FLOAT, STEP, HOST, HOST, HOST]
    assert got.value_float[0] == 0.5
    assert got.arg[1] == 5
    assert len(got.arg_row) == 0


def test_what_is_overwritten_is_counted(segment: Segment) -> None:
    for number in range(32_768 * 2 + 1_000):
        recorder.counter("n", number)
    got = segment.drain(1 << 20)
    assert got.lost == 32_768 + 1_000
    assert got.arg.tolist() == list(range(got.lost, 32_768 * 2 + 1_000))
    recorder.counter("n", -1)
    assert (segment.drain().lost, segment.state().events) == (0, 32_768 * 2 + 1_001)


def test_arguments_of_an_overwritten_event_go_with_it(segment: Segment) -> None:
    for number in range(20_000):  # three records an event: the ring wraps twice
        with recorder.annotate("n", first=number, second=-number):
            pass
    got = segment.drain(1 << 20)
    assert len(got) + got.lost == 20_000
    firsts = got.arg_value.reshape(-1, 2)
    assert got.arg_row.tolist() == np.repeat(np.arange(len(got)), 2).tolist()
    assert firsts[:, 0].tolist() == list(range(got.lost, 20_000))
    assert (firsts[:, 1] == -firsts[:, 0]).all()


def test_a_small_limit_cuts_between_events(segment: Segment) -> None:
    for number in range(200):
        with recorder.annotate("n", first=number, second=1.5, third="x"):
            pass
    seen: list[int] = []
    while True:
        got = segment.drain(64)
        assert got.arg_row.tolist() == np.repeat(np.arange(len(got)), 3).tolist()
        seen += got.arg_value[::3].tolist()
        if not got.more:
            break
    assert seen == list(range(200))


def test_durations_beyond_forty_bits_are_exact(segment: Segment) -> None:
    recorder.span("compile", 10, 3600.0)
    recorder.span("compile", 10, 1.0)
    got = segment.drain()
    dur_s = got.dur * segment.info.period_num / segment.info.period_den / 1e9
    assert dur_s == pytest.approx([3600.0, 1.0], rel=1e-9)
    assert got.kind.tolist() == [10, 10]


def test_a_killed_writer_leaves_an_exact_count(tmp_path: Path) -> None:
    """The truth is in the events: they carry 0, 1, 2, ..., so the newest says how many there were."""
    code = """
    import sys
    from fleetscope.native import _recorder as recorder
    print(recorder.open(sys.argv[1]), flush=True)
    recorder.record(True)
    counter, number = recorder.counter, 0
    while True:
        counter("n", number)
        number += 1
    """
    for delay_s in (0.0, 0.003, 0.02, 0.1):
        process = child(code, str(tmp_path))
        assert process.stdout is not None
        segment = Segment(process.stdout.readline().strip())
        values: list[np.ndarray] = []
        lost = 0
        while segment.state().events == 0:
            time.sleep(0.001)
        until = time.monotonic() + delay_s
        while time.monotonic() < until:  # beside the writer, which it must not disturb
            got = segment.drain()
            values.append(got.arg)
            lost += got.lost
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        while True:
            got = segment.drain()
            values.append(got.arg)
            lost += got.lost
            if not got.more:
                break
        all_values = np.concatenate(values)
        assert len(all_values)
        assert (np.diff(all_values) > 0).all()
        assert len(all_values) + lost == all_values[-1] + 1 == segment.state().events
        assert not segment.state().closed
        os.unlink(segment.path)
        process.stdout.close()


def test_each_thread_has_a_line_and_a_retired_ring_is_used_again(segment: Segment) -> None:
    def work(number: int) -> None:
        for _ in range(10):
            recorder.counter("n", number)

    for number in range(3):
        thread = threading.Thread(target=work, args=(number,), name=f"worker-{number}")
        thread.start()
        thread.join()
    recorder.counter("n", 9)
    got = segment.drain()
    lines = {int(value): set(got.line[got.arg == value].tolist()) for value in (0, 1, 2, 9)}
    assert all(len(line) == 1 for line in lines.values())
    assert len(set.union(*lines.values())) == 4
    assert len({line.pop() >> 8 for line in lines.values()}) < 4  # rings were used again
    assert got.lost == 0


def test_more_threads_than_rings_are_counted(segment: Segment) -> None:
    ready, go = threading.Barrier(71), threading.Event()

    def work() -> None:
        recorder.counter("n", 1)
        ready.wait()
        go.wait()

    threads = [threading.Thread(target=work) for _ in range(70)]
    for thread in threads:
        thread.start()
    ready.wait()
    got = segment.drain()
    state = segment.state()
    go.set()
    for thread in threads:
        thread.join()
    assert (len(got), state.no_ring) == (64, 6)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("a\0b", "a\0b"),
        ("<b>&\"'", "<b>&\"'"),
        ("\ud800", "?"),
        ("", ""),
        ("n" * (1 << 20), "n" * 1024),
        ("é" * 1024, "é" * 512),
    ],
    ids=["nul", "markup", "surrogate", "empty", "megabyte", "cut-between-characters"],
)
def test_names_of_every_kind(segment: Segment, name: str, wanted: str) -> None:
    with recorder.annotate(name):
        pass
    assert named(segment, segment.drain().name) == [wanted]


def test_a_million_names_fill_the_table_and_cost_no_event_and_no_memory(segment: Segment) -> None:
    count, rounds = 20_000, 50
    names: list[str] = []
    before = resident_bytes()
    for begin in range(0, count * rounds, count):
        for number in range(begin, begin + count):
            with recorder.annotate(f"request-{number}"):
                pass
        got = segment.drain(1 << 20)
        assert (len(got), got.lost) == (count, 0)
        names += named(segment, got.name)
    known = [name for name in names if name != "other"]
    assert known == [f"request-{number}" for number in range(len(known))]
    assert 8_000 < len(known) == len(segment.names()) - 1 - ("MainThread" in segment.names())
    assert segment.state().name_limit == count * rounds - len(known)
    names.clear()
    assert resident_bytes() - before < 100 << 20
    with recorder.annotate("request-1"):
        pass
    assert named(segment, segment.drain().name) == ["request-1"]


def test_values_of_arguments_leave_room_for_names(segment: Segment) -> None:
    for number in range(6_000):
        with recorder.annotate("request", path=f"/{number}"):
            pass
    with recorder.annotate("late"):
        pass
    segment.drain(1 << 20)
    assert "late" in segment.names()


def test_regions_that_end_out_of_order_keep_their_own_begin(segment: Segment) -> None:
    async def task(name: str, naps: list[float]) -> None:
        with recorder.annotate(name):
            for nap in naps:
                await asyncio.sleep(nap)

    async def main() -> None:
        await asyncio.gather(task("long", [0.02, 0.04]), task("short", [0.03]))

    asyncio.run(main())
    got = segment.drain()
    all_ns = got.dur * segment.info.period_num / segment.info.period_den
    dur_ns = dict(zip(named(segment, got.name), all_ns.tolist(), strict=True))
    assert dur_ns["long"] > 55e6
    assert 29e6 < dur_ns["short"] < 55e6
    assert segment.state().abandoned == 0


def test_regions_nobody_ends_are_given_up(segment: Segment) -> None:
    def endless() -> Iterator[None]:
        with recorder.annotate("endless"):
            yield

    kept = [endless() for _ in range(80)]
    for generator in kept:
        next(generator)
    with recorder.annotate("after"):
        pass
    assert named(segment, segment.drain().name) == ["after"]
    assert segment.state().abandoned == 80 + 1 - 64
    for generator in kept:
        generator.close()


def test_decorated_functions_are_the_functions_they_were(segment: Segment) -> None:
    class Model:
        @recorder.annotate("forward")
        def forward(self, x: int, *, y: int = 1) -> int:
            """Doc."""
            return x + y if x <= 0 else self.forward(x - 1, y=y)

    assert Model().forward(2, y=5) == 5
    assert Model.forward.__name__ == "forward"
    assert Model.forward.__doc__ == "Doc."

    @recorder.annotate("fails")
    def fails() -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        fails()
    assert named(segment, segment.drain().name) == ["forward"] * 3 + ["fails"]


def test_exceptions_pass_through_a_region(segment: Segment) -> None:
    with pytest.raises(ZeroDivisionError), recorder.annotate("a"), recorder.step(1):
        1 / 0  # noqa: B018
    assert named(segment, segment.drain().name) == ["step", "a"]


def test_a_closed_gate_records_nothing(segment: Segment) -> None:
    recorder.record(False)
    with recorder.annotate("a"):
        recorder.record(True)
    with recorder.annotate("b"):
        recorder.record(False)
    recorder.record(True)
    assert len(segment.drain()) == 0
    assert segment.state().events == 0


def test_waiting_for_a_step(segment: Segment) -> None:
    recorder.step(1)
    assert recorder.wait(1, 0) is True
    assert recorder.wait(3, 0.01) is False

    def steps() -> None:
        for number in (2, 3, 1):  # 1: the user counts anew just then
            recorder.step(number)

    timer = threading.Timer(0.2, steps)
    timer.start()
    assert recorder.wait(3, 5) is True
    timer.join()
    timer = threading.Timer(0.02, recorder.wake)
    timer.start()
    assert recorder.wait(None, 5) is False
    timer.join()


@pytest.mark.alone
def test_step_times_leave_compiling_out(segment: Segment) -> None:
    for number in range(20):
        if number == 10:
            recorder.compiled()
            time.sleep(0.2)
        recorder.step(number)
        time.sleep(0.002)
    step, _, begun, period_ns, longest_ns, since_compile = recorder.steps()
    assert (step, begun, since_compile) == (19, 20, 9)
    assert 2e6 <= period_ns < 150e6
    assert 2e6 <= longest_ns < 150e6


@pytest.mark.alone
def test_one_long_step_is_no_longest_program_but_two_are(segment: Segment) -> None:
    def steps(first: int, lengths_s: list[float]) -> float:
        for number, length_s in enumerate(lengths_s, first):
            recorder.step(number)
            time.sleep(length_s)
        recorder.step(first + len(lengths_s))
        return recorder.steps()[4] / 1e9

    assert steps(0, [0.002] * 20 + [0.4] + [0.002] * 20) < 0.3  # a checkpoint
    assert 0.09 <= steps(100, [0.002] * 5 + [0.1] + [0.002] * 5) < 0.3  # its like within 256 steps: an evaluation
    assert 0.38 <= steps(200, [0.4]) < 0.5
