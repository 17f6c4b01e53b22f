"""The profiler's own thread: talks to the agent, sends programs and windows, lets windows be taken."""

import os
import sys
import time
from collections.abc import Callable

from fleetscope.agents.profiler import executions, identity, protocol, segment
from fleetscope.agents.profiler.arbiter import Arbiter
from fleetscope.agents.profiler.connection import Link
from fleetscope.agents.profiler.programs import Harvest
from fleetscope.agents.profiler.stalls import Steps
from fleetscope.agents.profiler.windows import Context, Windows
from fleetscope.native import _recorder

PATIENCE_S = 0.5
"""How long the thread looks away from its socket while it waits for a window."""
COST_S = 5.0
ANSWER_S = 1.0
"""How long the end of a process waits for the agent to say that it has the segment. A loader that lived for 60 ms was
gone, with all it had recorded, before the thread had looked for an answer."""
CLOCK_S = 60.0
"""Between two looks at what the kernel keeps time by. Whether the counter goes on as it did is looked at every turn."""
HARVEST_PAUSE_S = 0.05
"""Between two programs taken from a running process: each holds the GIL ~20 ms a MB."""


class Loop:
    """run() is the thread's body; end() makes it return."""

    def __init__(self, arbiter: Arbiter, harvest: Harvest, segment_path: str, on_backend: Callable[[], None]) -> None:
        self._arbiter = arbiter
        self._harvest = harvest
        self._segment = segment_path
        self._on_backend = on_backend
        self._ending = False
        self._link = Link(protocol.default_socket())
        self._windows = Windows(arbiter, self._wait)
        self._config = protocol.Config(enabled=False)
        self._schedule: protocol.Schedule | None = None
        self._said: protocol.Hello | None = None
        self._who: tuple[object, identity.Identity] | None = None
        self._machine = ("", "", "")  # platform, chip, driver
        self._clock: tuple[str, tuple[int, int, int, int]] | None = None
        """The counter that stamps, and its newest reading."""
        self._clock_at = 0.0
        self._cost_at = 0.0
        self._thread_cpu_ns = 0
        self._region_cost: tuple[int, int] | None = None
        self.attached = False
        """An agent has answered: the segment is its to remove."""

    def end(self) -> None:
        self._ending = True
        _recorder.wake()

    def close(self) -> None:
        """In a forked child, where the thread is gone."""
        self._link.close()

    def run(self) -> None:
        segment.sweep(segment.directory())
        while not self._ending:
            try:
                self._turn()
            except Exception:
                # Whatever it was, it is ours and not the user's; at most one a patience.
                self._link.close()
                self._wait(PATIENCE_S)
        self._say_goodbye()

    def _wait(self, seconds: float) -> bool:
        if not self._ending:
            _recorder.wait(None, seconds)
        return self._ending

    def _turn(self) -> None:
        self._thread_cpu_ns = time.thread_time_ns()
        self._watch_clock()
        if not self._link.connected:
            if not self._link.connect():
                self._wait(PATIENCE_S)
                return
            self._segment = self._segment or segment.make()
            self._harvest.forget_sent()
            self._said = None
        self._introduce()
        for message in self._link.receive():
            if isinstance(message, protocol.Config):
                self._configure(message)
            elif isinstance(message, protocol.Schedule):
                self._schedule = message
        self._send_programs()
        if self._link.connected and time.monotonic() >= self._cost_at:
            self._cost_at = time.monotonic() + COST_S
            self._link.send(self._cost())
        if not self._config.enabled or not self._link.connected:
            self._wait(PATIENCE_S)
            return
        window = self._windows.attempt(self._context(), PATIENCE_S)
        if window is not None and not self._link.send(*window):
            self._windows.count(self._windows.dropped, "not_sent")

    def _watch_clock(self) -> None:
        """A segment holds ticks of one clock: where that becomes another (the kernel stops to trust the TSC, a VM is
        restored), the process goes on in another segment."""
        now = time.monotonic()
        look = now >= self._clock_at
        if look:
            self._clock_at = now + CLOCK_S
        if self._clock is not None:
            why = _recorder.clock_change(look, *self._clock)
            if why and self._segment:
                self._renew(why)
        counter = _recorder.host_counter()[0]
        self._clock = (counter, _recorder.clocks(counter))

    def _renew(self, why: str) -> None:
        recording = _recorder.recording()
        self._segment = segment.renew(attached=self.attached)  # goes on recording, but where the first try fails
        self._windows.clock_changed()
        if recording and self._segment:
            _recorder.record(True)
            _recorder.instant(f"clock change: {why}")

    def _introduce(self) -> None:
        """Says hello, and again when jax, its backend or its ranks have become known (not when jax tears them down)."""
        hello = self._hello()
        if hello.platform and not (self._said and self._said.platform):
            self._on_backend()
        if hello != self._said and self._link.send(hello, descriptor=_recorder.descriptor()):
            self._said = hello

    def _identity(self) -> identity.Identity:
        """Found again only when something it depends on has changed: it reads files of /proc."""
        depends = identity.distributed()
        if self._who is None or self._who[0] != depends:
            self._who = (depends, identity.find())
        return self._who[1]

    def _hello(self) -> protocol.Hello:
        who = self._identity()
        jax, jaxlib = sys.modules.get("jax"), sys.modules.get("jaxlib")
        return protocol.Hello(
            version=protocol.VERSION,
            pid=os.getpid(),
            start_ticks=who.start_ticks,
            boot_id=who.boot_id,
            run=who.run,
            attempt=who.attempt,
            rank=who.rank,
            world_size=who.world_size,
            command=who.command,
            python=sys.version.split()[0],
            jax=str(getattr(jax, "__version__", "")),
            jaxlib=str(getattr(jaxlib, "__version__", "")),
            platform=identity.platform() or (self._said.platform if self._said else ""),
            segment=self._segment,
            started_ns=who.started_ns,
            tenant=who.tenant,
            flops_per_step=who.flops_per_step,
        )

    def _context(self) -> Context:
        said = self._hello()
        if said.platform != self._machine[0]:
            self._machine = (said.platform, identity.chip(), identity.driver())
        return Context(
            run=said.run,
            attempt=said.attempt,
            rank=said.rank,
            world_size=said.world_size,
            config=self._config,
            schedule=self._schedule,
            start_ticks=said.start_ticks,
            platform=said.platform,
            chip=self._machine[1],
            driver=self._machine[2],
            jaxlib=said.jaxlib,
            last_compile_ns=self._harvest.last_compile_ns,
        )

    def _configure(self, config: protocol.Config) -> None:
        first = not self.attached
        self.attached = True
        self._config = config
        _recorder.set_level(max(0, min(config.level, 255)), config.categories_off)
        _recorder.set_thinning(max(0, min(config.thin_rest, 255)), config.thin)
        _recorder.record(config.enabled)
        wanted = self._harvest.wanted
        self._harvest.wanted = config.enabled
        if config.enabled and (first or not wanted):
            for _ in self._harvest.take_live():
                if self._wait(HARVEST_PAUSE_S):
                    return

    def _send_programs(self) -> None:
        while (program := self._harvest.next()) is not None and self._link.connected:
            if not self._link.send(*program):
                return
            self._harvest.sent()

    def _cost(self) -> protocol.Cost:
        windows = self._windows
        steps = Steps(*_recorder.steps())
        if self._region_cost is None:
            self._region_cost = _recorder.region_cost()
        return protocol.Cost(
            windows=windows.taken,
            start_ns=windows.start_ns,
            stop_ns=windows.stop_ns,
            stop_max_ns=self._arbiter.stop_max_ns,
            window_bytes=windows.bytes,
            harvests=self._harvest.count,
            harvest_ns=self._harvest.ns,
            harvests_left_out=self._harvest.left_out,
            user_delay_max_ns=self._arbiter.delay_max_ns,
            thread_cpu_ns=self._thread_cpu_ns,
            skipped=dict(windows.skipped),
            dropped=dict(windows.dropped),
            broken=bool(windows.breaker.why),
            breaker=windows.breaker.why,
            stall_ns=windows.stalls.mean_ns,
            stalls=len(windows.stalls),
            step=steps.step,
            steps=steps.begun,
            period_ns=steps.period_ns,
            longest_ns=steps.longest_ns,
            settled_steps=steps.since_compile,
            configured_k=windows.configured,
            schedule=self._schedule.number if self._schedule is not None else 0,
            ran=executions.ran(),
            followed=windows.follower.report(),
            record_ps=self._region_cost[0],
            pass_ps=self._region_cost[1],
        )

    def _be_known(self) -> None:
        """What was recorded before an agent answered is lost with the segment, unless the agent has it now."""
        if not self._link.connected and self._link.connect():
            self._said = None
        if self._link.connected:
            self._introduce()
        until = time.monotonic() + ANSWER_S
        while self._link.connected and not self.attached and time.monotonic() < until:
            self.attached = any(isinstance(message, protocol.Config) for message in self._link.receive())
            if not self.attached:
                time.sleep(0.002)

    def _say_goodbye(self) -> None:
        try:
            self._thread_cpu_ns = time.thread_time_ns()
            self._arbiter.abandon("stopped")
            if self._segment and not self.attached:
                self._be_known()
            if self._link.connected:
                self._introduce()
                self._send_programs()
                self._link.send(self._cost())
                self._link.send(protocol.End(time.time_ns(), _recorder.steps()[2]))
        except Exception:
            self._link.close()
        self._link.close()
