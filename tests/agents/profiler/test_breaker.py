"""What switches windows off: slow stops, a death in a window; and what a window is said to cost."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetscope.agents.profiler import inject, placement
from fleetscope.agents.profiler import windows as module
from fleetscope.agents.profiler.breaker import MEMORY_S, Breaker, Life, crashes
from fleetscope.agents.profiler.protocol import Config, Cost, Window
from fleetscope.agents.profiler.stalls import Stalls, Steps
from fleetscope.agents.profiler.windows import Context, Windows

from .test_clock_step import FakeArbiter

GPU = Life("train", 3, "gpu", "570.86", "0.10.2")


def dead() -> tuple[int, int]:
    """(pid, start ticks) of a process that is gone."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return child.pid, 7


def die_in_a_window(life: Life, folder: Path) -> None:
    pid, ticks = dead()
    breaker = Breaker()
    breaker.look_back(life, str(folder), pid, ticks)
    breaker.opening()


@pytest.mark.unit
def test_a_death_in_a_window_is_known_to_the_next_life_only_where_all_is_the_same(tmp_path: Path) -> None:
    die_in_a_window(GPU, tmp_path)
    for other in (GPU._replace(rank=2), GPU._replace(run="eval"), GPU._replace(driver="575"), GPU._replace(jaxlib="1")):
        assert crashes(other, str(tmp_path)) == 0
    for _ in range(2):  # not only the first time it is asked for
        breaker = Breaker()
        breaker.look_back(GPU, str(tmp_path), os.getpid(), 1)
        assert breaker.why == "crash"


@pytest.mark.unit
def test_a_life_that_ends_outside_a_window_leaves_nothing(tmp_path: Path) -> None:
    breaker = Breaker()
    breaker.look_back(GPU, str(tmp_path), *dead())
    for _ in range(3):
        breaker.opening()
        assert len(os.listdir(tmp_path)) == 1
        breaker.closed()
    assert os.listdir(tmp_path) == []
    assert crashes(GPU, str(tmp_path)) == 0


@pytest.mark.fault
def test_marks_that_others_made_are_neither_waited_for_nor_believed_nor_written_through(tmp_path: Path) -> None:
    """The folder is everybody's: a pipe under a mark's name held up the training process' thread for ever."""
    pid, _ = dead()
    for number, make in enumerate((os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path))):
        make(tmp_path / f"fleetscope-{pid}-{100 + number}.window")  # type: ignore[operator]
    for number, text in enumerate(("", "{", "[" * 60_000, "\udcff", "null", "[1e999]")):
        (tmp_path / f"fleetscope-{pid}-{200 + number}.window").write_text(text, errors="surrogateescape")
    begin = time.monotonic()
    assert crashes(GPU, str(tmp_path)) == 0
    assert time.monotonic() - begin < 5
    if os.geteuid() == 0:
        die_in_a_window(GPU, tmp_path)
        os.chown(tmp_path / f"fleetscope-{dead_mark(tmp_path)}", 12345, 12345)
        assert crashes(GPU, str(tmp_path)) == 0
    victim = tmp_path / "victim"
    victim.write_text("precious")
    breaker = Breaker()
    breaker.look_back(GPU, str(tmp_path), pid, 300)
    mark = tmp_path / f"fleetscope-{pid}-300.window"
    mark.symlink_to(victim)
    breaker.opening()
    assert victim.read_text() == "precious"
    assert not mark.is_symlink()
    breaker.closed()
    os.mkdir(mark)  # cannot be removed: the window opens unmarked
    breaker.opening()
    breaker.closed()


def dead_mark(folder: Path) -> str:
    (name,) = [path.name for path in folder.glob("fleetscope-*-7.window")]
    return name.removeprefix("fleetscope-")


@pytest.mark.unit
def test_a_living_process_in_a_window_is_no_crash_and_old_marks_go(tmp_path: Path) -> None:
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    living = Breaker()
    living.look_back(GPU, str(tmp_path), os.getpid(), ticks)
    living.opening()
    die_in_a_window(GPU, tmp_path)
    assert crashes(GPU, str(tmp_path)) == 1
    old = time.time() - MEMORY_S - 1
    (mark,) = tmp_path.glob("*.crash")
    os.utime(mark, (old, old))
    (tmp_path / "fleetscope-1-x.window").write_text("not ours")
    (tmp_path / f"fleetscope-{dead()[0]}-7.window").write_text("torn {")
    assert crashes(GPU, str(tmp_path)) == 0
    assert not mark.exists()


@pytest.mark.unit
@pytest.mark.parametrize(("platform", "allowed"), [("cpu", 2), ("gpu", 0), ("tpu", 0)])
def test_how_many_deaths_and_slow_stops_are_allowed(platform: str, allowed: int, tmp_path: Path) -> None:
    life = GPU._replace(platform=platform)
    for number in range(allowed + 1):
        breaker = Breaker()
        breaker.look_back(life, str(tmp_path), os.getpid(), 1)
        assert breaker.why == ""
        for _ in range(allowed):
            breaker.stopped(1_000_000_001)
        breaker.stopped(1_000_000_000)
        assert breaker.why == "", number
        die_in_a_window(life, tmp_path)
    breaker = Breaker()
    breaker.look_back(life, str(tmp_path), os.getpid(), 1)
    assert breaker.why == "crash"
    slow = Breaker()
    slow.look_back(life._replace(rank=9), str(tmp_path), os.getpid(), 1)
    for _ in range(allowed + 1):
        slow.stopped(1_000_000_001)
    assert slow.why == "slow_stop"


def _steps(begun: int, begin_ms: float, period_ms: float = 10, since_compile: int = 1000) -> Steps:
    return Steps(begun, int(begin_ms * 2_000_000), begun, int(period_ms * 1e6), 0, since_compile)


@pytest.mark.unit
def test_a_stall_is_what_steps_took_beyond_their_pace() -> None:
    """A clock of half a nanosecond a tick; steps of 10 ms; the window opens in step 100 and its stop ends in 120."""
    stalls = Stalls((1, 2))
    for at, late_ms in enumerate((37, 37, -3, 500, 37, 37, 37, 37)):
        stalls.opened(_steps(100, 1000))
        stalls.closed(_steps(120, 1200))
        stalls.look(_steps(120, 1200))
        assert len(stalls) == at  # no step has begun since: not known yet
        stalls.look(_steps(123, 1230 + late_ms))
        assert len(stalls) == at + 1
    assert stalls.mean_ns == 37_000_000  # 1 of 8 off at either end
    stalls.opened(_steps(100, 1000))
    stalls.closed(_steps(120, 1200))
    stalls.look(_steps(123, 9999, since_compile=5))  # a compile fell into it
    assert len(stalls) == 8
    assert Stalls((1, 2)).mean_ns == 0


@pytest.mark.fault
def test_a_window_lost_to_the_user_is_no_measure_of_what_windows_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: what the user's own session took was counted as a stall of ours, and K grew."""
    monkeypatch.setattr(placement, "MIN_NS", 2_000_000)
    begun = {"at": 100}

    class Recorder:
        host_counter, now, clocks = module._recorder.host_counter, module._recorder.now, module._recorder.clocks

        @staticmethod
        def steps() -> tuple[int, ...]:
            return begun["at"], begun["at"], begun["at"], 1, 1, 1000

    monkeypatch.setattr(module, "_recorder", Recorder)
    arbiter = FakeArbiter()
    windows = Windows(arbiter, lambda seconds: time.sleep(seconds) is not None)  # type: ignore[arg-type]
    context = Context("run", "a", 0, 1, Config(window_s=1e-6), None, 1, "cpu", "cpu", "", "0.10.2", 0)

    def measured() -> int:
        windows._take(context, 100, 0, 1, 2)
        begun["at"] += 1
        windows.stalls.look(Steps(*Recorder.steps()))
        return len(windows.stalls)

    assert measured() == 1
    monkeypatch.setattr(arbiter, "close", lambda: "user_session", raising=False)
    assert measured() == 1
    assert windows.dropped == {"user_session": 1}


TRAIN = """
import os, signal, sys, time
import jax, jax.numpy as jnp
from fleetscope.agents.profiler.lifecycle import _process
f = jax.jit(lambda x: jnp.tanh(x @ x))
x = f(jnp.ones((64, 64))).block_until_ready()
end, number = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        x = f(x).block_until_ready()
        time.sleep(0.003)
    if sys.argv[2] == "die" and _process.arbiter is not None and _process.arbiter._ours is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    number += 1
"""


@pytest.mark.fault
def test_a_rank_that_was_killed_in_windows_opens_none_any_more(
    agent: Callable[..., Any], environment: dict[str, str], shm: Path
) -> None:
    toy = agent(window_s=0.3, steps_between_windows=2)

    named = environment | {"FLEETSCOPE_RUN": "dies"}

    def life(how: str, seconds: float) -> int:
        argv = [sys.executable, "-c", TRAIN, str(seconds), how]
        return subprocess.run(argv, env=inject.environment(argv, named), timeout=120).returncode

    assert [life("die", 60) for _ in range(3)] == [-9, -9, -9]
    taken = len(toy.of(Window))
    assert len(list(shm.glob("*.window")) + list(shm.glob("*.crash"))) == 3
    assert life("live", 6) == 0
    assert len(toy.of(Window)) == taken
    cost = toy.of(Cost)[-1][0]
    assert (cost.broken, cost.breaker) == (True, "crash")
