"""Waiting for input, found without a window and without a change of code. Two ways, and never both for one wait:

- Loaders we know (inputs_loaders.py): their iterators' `__next__` on the training thread becomes a DATA_WAIT region.
- Any other iterator: between two outermost calls of jitted functions lies a gap, whose length is exact. A thread of
  ours looks at the training thread's stack in some gaps (inputs_stack.py says what it sees). The recorder gives each
  gap the share of looks that found the program waiting for the next item, as one DATA_WAIT named
  "data_wait (inferred)", and none where a region of kind DATA_WAIT says it already.

What this cannot tell: which *step* waited how long when waits vary between gaps shorter than a look (their mean is
right), and waits in a function that is no iterator (`batch = read()`), which stay host time.
"""

import sys
import time
from _thread import start_new_thread
from types import ModuleType

from fleetscope.native import _recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleetscope.agents.profiler.inputs_stack import Stacks

LOOK_S = 0.06
"""Mean time between two looks, jittered by half so that no step time is in step with it: 500 in 30 s, 20 us each."""

IDLE_S = 0.5
LEAST_GAP = 0.02
"""Share of time in unexplained gaps below which nobody looks: there is nothing to find."""

STACKS_FIRST = 32
STACK_S = 1.0
"""Stacks of calls tell which loop is the program's: the first so many calls looked at, then one a second."""


class Inputs:
    """The watch over jitted functions and the sampler, which runs between start() and end() once there is something to
    watch."""

    def __init__(self) -> None:
        self._running = False
        self._ending = True
        self.module: ModuleType | None = None

    def install(self, module: ModuleType) -> None:
        """Into jaxlib._jax: every function that jax.jit makes is watched, those made before as well."""
        real = module.pjit

        def pjit(*args: object, **kwargs: object) -> object:
            function = real(*args, **kwargs)
            _recorder.watch_calls(function)
            return function

        module.pjit = pjit  # type: ignore[attr-defined]
        self.module = module
        if getattr(sys.modules.get("jax"), "jit", None) is not None:
            self._watch_made(module)
        if not self._ending:
            # Else jax came into a process that was stopped, or into a forked child: nothing runs there till start().
            self.start()

    def _watch_made(self, module: ModuleType) -> None:
        """We came late: what jax.jit has made already is found once, in a walk over the collector's objects."""
        import gc

        kind = getattr(module, "PjitFunction", None)
        for thing in gc.get_objects() if kind is not None else ():
            if type(thing) is kind:
                _recorder.watch_calls(thing)

    def start(self) -> None:
        self._ending = False
        if self._running or self.module is None:
            return
        self._running = True
        try:
            start_new_thread(self._run, ())
        except RuntimeError:
            self._running = False

    def end(self) -> None:
        self._ending = True

    def after_fork_in_child(self) -> None:
        self._running, self._ending = False, True

    def _run(self) -> None:
        try:
            self._watch()
        except Exception:
            return  # training goes on; its waits stay unnamed
        finally:
            _recorder.on_watched_call(None)
            self._running = False

    def _watch(self) -> None:
        from fleetscope.agents.profiler.inputs_stack import Stacks

        stacks = Stacks()
        _recorder.on_watched_call(stacks.called)
        looked_at, gaps_ns, worth, stack_at, asked = time.monotonic_ns(), 0.0, False, 0.0, 0
        while not self._ending:
            # The low bits of a clock in ns are as good a die as any, and import nothing.
            time.sleep((LOOK_S if worth else IDLE_S) * (0.5 + (time.perf_counter_ns() >> 4) % 1024 / 1024))
            state = _recorder.gap()
            now = time.monotonic_ns()
            if state is None:
                worth = False
                continue
            ident, calls, in_gap, all_ns, said_ns = state
            if now - looked_at > 1_000_000_000:
                worth = all_ns - said_ns - gaps_ns > LEAST_GAP * (now - looked_at)
                looked_at, gaps_ns = now, all_ns - said_ns
            if not worth and not (in_gap and asked < STACKS_FIRST):
                continue
            if asked < STACKS_FIRST or time.monotonic() >= stack_at:
                asked, stack_at = asked + 1, time.monotonic() + STACK_S
                _recorder.want_stack()
            if in_gap and stacks.known:
                self._look(stacks, ident, calls)

    def _look(self, stacks: "Stacks", ident: int, calls: int) -> None:
        frame = sys._current_frames().get(ident)
        if frame is not None:
            _recorder.gap_sample(calls, stacks.waits(frame))
