"""Device windows: waits for their moment, opens and closes them, keeps their account. Runs in the profiler's thread."""

import os
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from fleetscope.agents.profiler import placement, segment
from fleetscope.agents.profiler.arbiter import Arbiter, ProfilerServer
from fleetscope.agents.profiler.breaker import Breaker, Life
from fleetscope.agents.profiler.executions import Follower
from fleetscope.agents.profiler.protocol import Clocks, Config, Schedule, Stretch, Window
from fleetscope.agents.profiler.stalls import Stalls, Steps
from fleetscope.native import _recorder

BUDGET = 0.05
"""Share of time in opening and stopping, averaged over windows, above which the governor leaves a window out."""

MEASURED = 4
"""Stalls measured before they replace the time of opening and stopping, which is what a window costs at most."""

MAX_SENT_BYTES = 48 << 20
"""The agent refuses frames of more than 64 MiB and closes; then every program would be harvested again for the next."""

REST_MAX = 64
"""Openings left out after sessions that failed one after the other, doubling: somebody else's session is there."""


THIN_MAX = 16
"""More windows than 2^16 - 1 in a row are left out by `off`, not by a governor."""


class Context(NamedTuple):
    """What the thread knows when it looks for the next window."""

    run: str
    attempt: str
    rank: int
    world_size: int
    config: Config
    schedule: Schedule | None
    start_ticks: int
    platform: str
    chip: str
    driver: str
    jaxlib: str
    last_compile_ns: int


class Windows:
    """Takes windows by placement's rules. `wait(seconds)` may return early; True: the thread is to end."""

    def __init__(self, arbiter: Arbiter, wait: Callable[[float], bool]) -> None:
        self._arbiter = arbiter
        self._wait = wait
        self._number = 0
        self._bytes_per_s = 0.0
        self._after = -1
        self._next_time_ns = 0
        self._every = 2
        self.breaker = Breaker()
        self.clock_changed()
        self._configured: int | None = None
        self._failed = self._rest = 0
        self._refused = os.environ.get("FLEETSCOPE_WINDOWS") == "0"
        self.taken = self.start_ns = self.stop_ns = self.bytes = 0
        self._share = 0.0
        self._last_ns = 0
        self.skipped: dict[str, int] = {}
        self.dropped: dict[str, int] = {}

    def clock_changed(self) -> None:
        """What was measured so far is in ticks of another counter."""
        _, num, den = _recorder.host_counter()
        self.stalls = Stalls((num, den))
        self.follower = Follower()

    def count(self, into: dict[str, int], reason: str) -> None:
        into[reason] = into.get(reason, 0) + 1

    @property
    def configured(self) -> int:
        """K of the configuration that this process keeps to; 0: none."""
        return self._configured or 0

    @property
    def cost_ns(self) -> int:
        """What one window costs: its measured stall, or, before that is known, opening and stopping."""
        if len(self.stalls) >= MEASURED:
            return self.stalls.mean_ns
        return (self.start_ns + self.stop_ns) // self.taken if self.taken else 0

    def _stretches(self, context: Context, steps: Steps) -> tuple[Stretch, ...]:
        """Where windows open. Several ranks: from what all of them are told alike, never from a clock of one's own."""
        config = context.config
        if self._configured:
            return (Stretch(0, placement.FOREVER, self._configured),)
        if context.world_size == 1:
            every = placement.steps_between(config.window_s, steps.period_ns, self.cost_ns, config.window_budget)
            return (Stretch(0, placement.FOREVER, every, placement.strata_for(steps.longest_ns)),) if every else ()
        schedule = context.schedule
        return schedule.stretches if schedule is not None and schedule.attempt == context.attempt else ()

    def _by_executions(self, context: Context) -> bool:
        """Whether executions of a program stand for steps: only where the coordinator named one for all ranks."""
        schedule = context.schedule
        told = context.world_size > 1 and schedule is not None and schedule.attempt == context.attempt
        program = schedule.program if told and schedule is not None and not self._configured else ""
        if program != self.follower.program:
            self._after = -1
            self.stalls.forget()
        self.follower.follow(program)
        return bool(program)

    def _now(self) -> Steps:
        return Steps(*(_recorder.executions() if self.follower.program else _recorder.steps()))

    def _permitted(self, context: Context) -> bool:
        config = context.config
        if self._refused or self.breaker.why or config.window_s <= 0 or not context.platform:
            return False
        if not self._arbiter.installed:
            return False
        if context.schedule is not None and context.schedule.off:
            return False
        if not placement.window_allowed(context.platform, context.chip, context.driver, context.jaxlib, config.allow):
            return False
        life = Life(context.run, context.rank, context.platform, context.driver, context.jaxlib)
        self.breaker.look_back(life, segment.directory(), os.getpid(), context.start_ticks)
        return not self.breaker.why

    def attempt(self, context: Context, patience_s: float) -> tuple[Window, bytes] | None:
        """Waits at most `patience_s` for a window to be due and takes it. None: none was, or it was lost (counted)."""
        if not self._permitted(context):
            self._wait(patience_s)
            return None
        if self._configured is None or context.world_size == 1:
            # Ranks hear of a new configuration at different times; of the first, all before their first window.
            self._configured = context.config.steps_between_windows
        by_executions = self._by_executions(context)
        if by_executions and not self.follower.program:
            self._wait(patience_s)  # a program this rank has not loaded
            return None
        steps = self._now()
        self.stalls.look(steps)
        stepping = steps.begun > 2 and self._age_ns(steps) < max(10e9, 20 * steps.period_ns)
        if stepping:
            return self._by_step(context, steps, patience_s)
        if context.world_size > 1:
            self._wait(patience_s)
            return None
        return self._by_time(context, patience_s)

    def _age_ns(self, steps: Steps) -> float:
        _, num, den = _recorder.host_counter()  # may become another
        return (_recorder.now() - steps.begin) * num / den

    def _by_step(self, context: Context, steps: Steps, patience_s: float) -> tuple[Window, bytes] | None:
        if steps.step < self._after - 2 * self._every:
            self._after = steps.step  # the user began to count again
        opening = placement.next_in(context.run, self._stretches(context, steps), max(self._after, steps.step))
        if opening is None:
            self._wait(patience_s)
            return None
        step, delay, every = opening
        if not _recorder.wait(step, patience_s, bool(self.follower.program)):
            return None
        self._after, self._every = step, every
        if (step // every) % (1 << _thin(context)):
            self.count(self.skipped, "governor")
            return None
        now = self._now()
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
        if context.world_size > 1 and not self._in_place(step):
            self.count(self.skipped, "late")
            return None
        return self._take(context, step, delay_ns, max(now.longest_ns, now.period_ns), every)

    def _in_place(self, step: int) -> bool:
        """The phase may reach into the next step where steps get shorter; further on it is another window's place."""
        return step <= self._now().step <= step + 1

    def _by_time(self, context: Context, patience_s: float) -> tuple[Window, bytes] | None:
        now = time.monotonic_ns()
        if not self._next_time_ns:
            self._next_time_ns = now + placement.SETTLE_NS
        if now < self._next_time_ns:
            self._wait(min(patience_s, (self._next_time_ns - now) / 1e9))
            return None
        # Uniform on half to one and a half periods: a fixed period could stay in step with the program's.
        bits = placement.fingerprint(context.run, self._number + now)
        self._next_time_ns = now + (int(context.config.window_s * 1e9 * (0.5 + bits / 2**64)) << _thin(context))
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
        server = getattr(profiler, "_profiler_server", None)
        if server is not None and not (isinstance(server, ProfilerServer) and server.relayed):
            return "server"
        state = getattr(profiler, "_profile_state", None)
        return "user_session" if getattr(state, "profile_session", None) is not None else ""

    def _governed(self, context: Context) -> bool:
        now = time.monotonic_ns()
        period_ns = now - self._last_ns if self._last_ns else int(context.config.window_s * 1e9)
        if self.taken and self._share > max(BUDGET, context.config.window_budget) * period_ns:
            return True
        self._last_ns = now
        return False

    def _take(
        self, context: Context, step: int, delay_ns: int, longest_ns: int, every: int
    ) -> tuple[Window, bytes] | None:
        reason = self._occupied() or ("governor" if self._governed(context) else "")
        if not reason and self._rest:
            self._rest -= 1
            reason = "stop_failed"
        if reason:
            self.count(self.skipped, reason)
            return None
        wanted = placement.length(longest_ns, self._bytes_per_s, context.config.window_max_bytes)
        self.breaker.opening()
        try:
            steps = self._now()
            start_ns = self._arbiter.open()
            if start_ns < 0:
                self.count(self.skipped, self._arbiter.occupied() or "start_failed")
                return None
            if context.world_size > 1 and not self._in_place(step):
                self._arbiter.abandon("late")  # the machine took the core away while it opened
                self.count(self.dropped, "late")
                return None
            if step >= 0:
                self.stalls.opened(steps)
            opened = read_clocks()
            stopping = self._until(opened.raw_after_ns + wanted.ns)
            closed = read_clocks()
            taken = self._arbiter.close()
        finally:
            self.breaker.closed()
        if isinstance(taken, str):
            # No stall of it is measured: the steps met the user's session too.
            self._failed = self._failed + 1 if taken == "stop_failed" else 0
            self._rest = min(2**self._failed - 1, REST_MAX)
            self.count(self.dropped, taken)
            return None
        self._failed = 0
        self.stalls.closed(self._now())
        self._account(start_ns, taken.stop_ns)
        if stopping:
            self.count(self.dropped, "stopped")
            return None
        if wall_clock_stepped(opened, closed):
            self.count(self.dropped, "clock_step")
            return None
        length_ns = closed.raw_before_ns - opened.raw_after_ns
        self.bytes += len(taken.data)
        # The densest stretch decides, slowly forgotten: the cap must hold in a busy phase too.
        self._bytes_per_s = max(len(taken.data) / length_ns * 1e9, self._bytes_per_s * 0.9, 1.0)
        if len(taken.data) > MAX_SENT_BYTES:
            self.count(self.dropped, "too_large")
            return None
        self._number += 1
        window = Window(
            window_id=self._number,
            length_ns=length_ns,
            opened=opened,
            closed=closed,
            step=-1 if self.follower.program else step,
            open_delay_ns=delay_ns,
            executions=-1,
            longest_ns=longest_ns,
            start_ns=start_ns,
            stop_ns=taken.stop_ns,
            capped=wanted.capped,
            every=every,
            program=self.follower.program,
            execution=step if self.follower.program else 0,
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

    def _account(self, start_ns: int, stop_ns: int) -> None:
        self.taken += 1
        self.start_ns += start_ns
        self.stop_ns += stop_ns
        self._share = start_ns + stop_ns if self.taken == 1 else 0.7 * self._share + 0.3 * (start_ns + stop_ns)
        self.breaker.stopped(stop_ns)


def _thin(context: Context) -> int:
    return max(0, min(context.config.thin_windows, THIN_MAX))


def wall_clock_stepped(opened: Clocks, closed: Clocks) -> bool:
    """REALTIME went on otherwise than MONOTONIC_RAW by more than NTP slews (500 ppm) and both brackets can explain, and
    1 ms: spans, which are in wall time, would lie on both sides of a step."""
    raw_ns = closed.raw_before_ns - opened.raw_before_ns
    unsure_ns = sum(clocks.raw_after_ns - clocks.raw_before_ns for clocks in (opened, closed))
    apart_ns = abs(closed.realtime_ns - opened.realtime_ns - raw_ns)
    return apart_ns > 1_000_000 + unsure_ns + raw_ns // 2000


def read_clocks() -> Clocks:
    before, _, realtime, after = _recorder.clocks()
    return Clocks(before, realtime, after)
