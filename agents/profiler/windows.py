"""Device windows: waits for their moment, opens and closes them, keeps their account. Runs in the profiler's thread."""

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from fleetscope.agents.profiler import placement
from fleetscope.agents.profiler.arbiter import Arbiter
from fleetscope.agents.profiler.protocol import Clocks, Config, Window
from fleetscope.native import _recorder

SLOW_STOP_NS = 1_000_000_000
SLOW_STOPS_ON_CPU = 3
"""A stop slower than 1 s switches windows off; on CPU three in a row: there it shares the cores with training."""

BUDGET = 0.05
"""Share of time in opening and stopping, averaged over windows, above which the governor leaves a window out."""


class Steps(NamedTuple):
    """_recorder.steps(), by name."""

    step: int
    begin: int
    begun: int
    period_ns: int
    longest_ns: int
    since_compile: int


class Context(NamedTuple):
    """What the thread knows when it looks for the next window."""

    run: str
    rank: int
    world_size: int
    config: Config
    platform: str
    driver: str
    jaxlib: str
    last_compile_ns: int


class Windows:
    """Takes windows by placement's rules. `wait(seconds)` may return early; True: the thread is to end."""

    def __init__(self, arbiter: Arbiter, wait: Callable[[float], bool]) -> None:
        self._arbiter = arbiter
        self._wait = wait
        _, self._period_num, self._period_den = _recorder.host_counter()
        self._number = 0
        self._bytes_per_s = 0.0
        self._after = -1
        self._next_time_ns = 0
        self._slow = 0
        self._every = (0, 0)  # K before `from_step`, and from it on
        self.broken = False
        self.taken = self.start_ns = self.stop_ns = self.stop_max_ns = self.bytes = 0
        self._share = 0.0
        self._last_ns = 0
        self.skipped: dict[str, int] = {}
        self.dropped: dict[str, int] = {}

    def count(self, into: dict[str, int], reason: str) -> None:
        into[reason] = into.get(reason, 0) + 1

    def _every_at(self, context: Context, steps: Steps) -> int:
        config = context.config
        if config.steps_between_windows != self._every[1]:
            self._every = (self._every[1], config.steps_between_windows)
        told = self._every[0] if steps.step < config.from_step and self._every[0] else self._every[1]
        if told:
            return told
        return placement.steps_between(config.window_s, steps.period_ns) if context.world_size == 1 else 0

    def attempt(self, context: Context, patience_s: float) -> tuple[Window, bytes] | None:
        """Waits at most `patience_s` for a window to be due and takes it. None: none was, or it was lost (counted)."""
        config = context.config
        if self.broken or config.window_s <= 0 or not context.platform or not self._arbiter.installed:
            self._wait(patience_s)
            return None
        if not placement.window_allowed(context.platform, context.driver, context.jaxlib, config.allow):
            self._wait(patience_s)
            return None
        steps = Steps(*_recorder.steps())
        stepping = steps.begun > 2 and self._age_ns(steps) < max(10e9, 20 * steps.period_ns)
        if stepping:
            return self._by_step(context, steps, patience_s)
        if context.world_size > 1:
            self._wait(patience_s)
            return None
        return self._by_time(context, patience_s)

    def _age_ns(self, steps: Steps) -> float:
        return (_recorder.now() - steps.begin) * self._period_num / self._period_den

    def _by_step(self, context: Context, steps: Steps, patience_s: float) -> tuple[Window, bytes] | None:
        every = self._every_at(context, steps)
        if not every:
            self._wait(patience_s)
            return None
        if steps.step < self._after - 2 * every:
            self._after = steps.step  # the user began to count again
        step, delay = placement.next_opening(context.run, every, max(self._after, steps.step))
        if not _recorder.wait(step, patience_s):
            return None
        self._after = step
        now = Steps(*_recorder.steps())
        if now.since_compile < placement.SETTLE_STEPS:
            self.count(self.skipped, "compile")
            return None
        delay_ns = int(delay * now.period_ns)
        late_ns = self._age_ns(now) if now.step == step else now.period_ns
        # A rank may skip, never move: woken after its moment by a step or more, it leaves this one out.
        if context.world_size > 1 and (now.step != step or late_ns > delay_ns + now.period_ns):
            self.count(self.skipped, "late")
            return None
        if late_ns < delay_ns and self._pause(delay_ns - int(late_ns)):
            return None
        return self._take(context, step, delay_ns, now.longest_ns, every)

    def _by_time(self, context: Context, patience_s: float) -> tuple[Window, bytes] | None:
        now = time.monotonic_ns()
        if not self._next_time_ns:
            self._next_time_ns = now + placement.SETTLE_NS
        if now < self._next_time_ns:
            self._wait(min(patience_s, (self._next_time_ns - now) / 1e9))
            return None
        # Uniform on half to one and a half periods: a fixed period could stay in step with the program's.
        bits = placement.fingerprint(context.run, self._number + now)
        self._next_time_ns = now + int(context.config.window_s * 1e9 * (0.5 + bits / 2**64))
        if now - context.last_compile_ns < placement.SETTLE_NS:
            self._next_time_ns = now + placement.SETTLE_NS
            self.count(self.skipped, "compile")
            return None
        return self._take(context, -1, 0, 0, 0)

    def _pause(self, ns: int) -> bool:
        """Waits exactly so long, whatever rings in between; True when the thread is to stop."""
        end = time.monotonic_ns() + ns
        while (left := end - time.monotonic_ns()) > 0:
            if self._wait(left / 1e9):
                return True
        return False

    def _occupied(self) -> str:
        """A session or server that began before our proxies were there shows in jax's own state."""
        reason = self._arbiter.occupied()
        if reason:
            return reason
        profiler = sys.modules.get("jax._src.profiler")
        if getattr(profiler, "_profiler_server", None) is not None:
            return "server"
        state = getattr(profiler, "_profile_state", None)
        return "user_session" if getattr(state, "profile_session", None) is not None else ""

    def _governed(self, context: Context) -> bool:
        now = time.monotonic_ns()
        period_ns = now - self._last_ns if self._last_ns else int(context.config.window_s * 1e9)
        if self.taken and self._share > BUDGET * period_ns:
            return True
        self._last_ns = now
        return False

    def _take(
        self, context: Context, step: int, delay_ns: int, longest_ns: int, every: int
    ) -> tuple[Window, bytes] | None:
        reason = self._occupied() or ("governor" if self._governed(context) else "")
        if reason:
            self.count(self.skipped, reason)
            return None
        wanted = placement.length(longest_ns, self._bytes_per_s, context.config.window_max_bytes)
        start_ns = self._arbiter.open()
        if start_ns < 0:
            self.count(self.skipped, self._arbiter.occupied() or "start_failed")
            return None
        opened = read_clocks()
        stopping = self._until(opened.raw_after_ns + wanted.ns)
        closed = read_clocks()
        taken = self._arbiter.close()
        if isinstance(taken, str):
            self.count(self.dropped, taken)
            return None
        self._account(start_ns, taken.stop_ns, context.platform)
        if stopping:
            self.count(self.dropped, "stopped")
            return None
        length_ns = closed.raw_before_ns - opened.raw_after_ns
        self.bytes += len(taken.data)
        # The densest stretch decides, slowly forgotten: the cap must hold in a busy phase too.
        self._bytes_per_s = max(len(taken.data) / length_ns * 1e9, self._bytes_per_s * 0.9, 1.0)
        self._number += 1
        window = Window(
            window_id=self._number,
            length_ns=length_ns,
            opened=opened,
            closed=closed,
            step=step,
            open_delay_ns=delay_ns,
            executions=-1,
            longest_ns=longest_ns,
            start_ns=start_ns,
            stop_ns=taken.stop_ns,
            capped=wanted.capped,
            every=every,
        )
        return window, taken.data

    def _until(self, raw_ns: int) -> bool:
        """Leaves the window open until then, or until it is taken from us; True when the thread is to stop."""
        while (left := raw_ns - time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)) > 0:
            if self._wait(left / 1e9):
                return True
            if self._arbiter.lost:
                return False
        return False

    def _account(self, start_ns: int, stop_ns: int, platform: str) -> None:
        self.taken += 1
        self.start_ns += start_ns
        self.stop_ns += stop_ns
        self.stop_max_ns = max(self.stop_max_ns, stop_ns)
        self._share = start_ns + stop_ns if self.taken == 1 else 0.7 * self._share + 0.3 * (start_ns + stop_ns)
        self._slow = self._slow + 1 if stop_ns > SLOW_STOP_NS else 0
        if self._slow >= (SLOW_STOPS_ON_CPU if platform == "cpu" else 1):
            self.broken = True


def read_clocks() -> Clocks:
    before, _, realtime, after = _recorder.clocks()
    return Clocks(before, realtime, after)
