"""The wall clock is set while a window is open: the window is dropped, counted, and the next is taken."""

import time

import pytest

from fleetscope.agents.profiler import placement
from fleetscope.agents.profiler import windows as module
from fleetscope.agents.profiler.arbiter import Taken
from fleetscope.agents.profiler.protocol import Clocks, Config
from fleetscope.agents.profiler.windows import Context, Windows, wall_clock_stepped

MS = 1_000_000


class FakeArbiter:
    """A session that always works."""

    installed = True
    lost = False

    def occupied(self) -> str:
        return ""

    def open(self) -> int:
        return 5

    def close(self) -> Taken:
        return Taken(b"xspace", 7)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("moved_ns", "length_ms", "bracket_ns", "stepped"),
    [
        (0, 200, 50, False),
        (1_099_000, 200, 50, False),  # 1 ms and 500 ppm of 200 ms
        (1_101_000, 200, 50, True),
        (-1_101_000, 200, 50, True),
        (3_600_000 * MS, 200, 50, True),
        (15 * MS, 30_000, 50, False),
        (17 * MS, 30_000, 50, True),
        (4 * MS, 200, 2 * MS, False),  # the machine slept inside a bracket
        (6 * MS, 200, 2 * MS, True),
    ],
)
def test_what_counts_as_a_step(moved_ns: int, length_ms: int, bracket_ns: int, stepped: bool) -> None:
    opened = Clocks(10**12, 10**18, 10**12 + bracket_ns)
    raw = 10**12 + length_ms * MS
    closed = Clocks(raw, 10**18 + length_ms * MS + moved_ns, raw + bracket_ns)
    assert wall_clock_stepped(opened, closed) is stepped


@pytest.mark.fault
def test_a_clock_step_in_a_window_drops_it_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MIN_NS", 2 * MS)
    set_back = {"ns": 0}
    real = module.read_clocks

    def clocks() -> Clocks:
        before, wall, after = real()
        return Clocks(before, wall + set_back["ns"], after)

    def wait(seconds: float) -> bool:
        time.sleep(seconds)
        set_back["ns"] -= steps.pop() if steps else 0
        return False

    monkeypatch.setattr(module, "read_clocks", clocks)
    windows = Windows(FakeArbiter(), wait)  # type: ignore[arg-type]
    context = Context("run", "a", 0, 1, Config(window_s=1e-6), None, 1, "cpu", "cpu", "", "0.10.2", 0)
    steps: list[int] = []
    assert windows._take(context, -1, 0, 1, 0) is not None
    steps.append(3_600_000 * MS)
    assert windows._take(context, -1, 0, 1, 0) is None
    assert windows.dropped == {"clock_step": 1}
    taken = windows._take(context, -1, 0, 1, 0)
    assert taken is not None
    assert taken[0].window_id == 2
    assert windows.skipped == {}
