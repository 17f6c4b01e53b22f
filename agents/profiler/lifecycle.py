"""start() and stop(): the segment, the hooks into jax, the thread. Everything heavier is imported when it is needed."""

import atexit
import os
from _thread import allocate_lock, start_new_thread
from types import ModuleType

from fleetscope.native import _recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fleetscope.agents.profiler.arbiter import Arbiter
    from fleetscope.agents.profiler.inputs import Inputs
    from fleetscope.agents.profiler.loop import Loop
    from fleetscope.agents.profiler.programs import Harvest

END_S = 2.0
"""What leaving waits at most for the thread: the stop of a window of 4 MB takes 0.2 s."""


class _Process:
    """What this process has set up."""

    def __init__(self) -> None:
        self.lock = allocate_lock()
        self.loop: Loop | None = None
        self.ended = allocate_lock()  # held while the thread runs
        self.attached = False
        """An agent knows the segment: it stays what it is until the process ends, and the agent removes it."""
        self.arbiter: Arbiter | None = None
        self.harvest: Harvest | None = None
        self.inputs: Inputs | None = None

    def parts(self) -> "tuple[Arbiter, Harvest]":
        """Made once, and kept over stop() and start(): their hooks in jax stay."""
        if self.arbiter is None or self.harvest is None:
            from fleetscope.agents.profiler.arbiter import Arbiter, register_fork
            from fleetscope.agents.profiler.inputs import Inputs
            from fleetscope.agents.profiler.programs import Harvest

            self.arbiter, self.harvest, self.inputs = Arbiter(), Harvest(), Inputs()
            register_fork(self.arbiter, _after_fork_in_child)
            _hook(self.arbiter, self.harvest, self.inputs)
        return self.arbiter, self.harvest


def _hook(arbiter: "Arbiter", harvest: "Harvest", inputs: "Inputs") -> None:
    from fleetscope.agents.profiler import pjrt
    from fleetscope.agents.profiler.hooks import when_imported
    from fleetscope.agents.profiler.inputs_loaders import LOADERS

    def annotations(module: ModuleType) -> None:
        _recorder.patch(module.TraceAnnotation)

    when_imported(
        {
            "jaxlib.xla_client": pjrt.install,
            "jaxlib._jax": inputs.install,
            "jaxlib._profiler": arbiter.install,
            "jax._src.profiler": annotations,
            "jax._src.monitoring": harvest.listen,
            **LOADERS,
        }
    )


_process = _Process()


def _after_fork_in_child() -> None:
    """The child keeps the hooks in jax: no thread, no connection, no recording, until it calls start()."""
    process = _process
    loop, process.loop, process.attached = process.loop, None, False
    process.lock, process.ended = allocate_lock(), allocate_lock()
    _recorder.on_first_use(None)
    if loop is not None:
        loop.close()
    if process.harvest is not None:
        process.harvest.after_fork_in_child()
    if process.inputs is not None:
        process.inputs.after_fork_in_child()


def start(*, early: bool = False) -> bool:
    """Begins to record and to look for the node agent. Called by the first annotation, step or counter by itself.

    `early`: records from now on, for the agent to find when it comes; otherwise from the moment it is there. True when
    the profiler runs. $FLEETSCOPE_DISABLED=1 keeps it off. Never raises.
    """
    try:
        with _process.lock:
            return _start(early)
    except Exception:
        return False


def _start(early: bool) -> bool:
    process = _process
    if process.loop is not None:
        return True
    _recorder.on_first_use(None)
    if os.environ.get("FLEETSCOPE_DISABLED") == "1":
        return False
    arbiter, harvest = process.parts()
    from fleetscope.agents.profiler import segment
    from fleetscope.agents.profiler.loop import Loop

    path = segment.make() if early else ""
    if path:
        _recorder.record(True)
        harvest.wanted = True
    loop = Loop(arbiter, harvest, path, on_backend=_leave_first)
    process.ended.acquire()
    try:
        start_new_thread(_run, (loop, process.ended))
    except RuntimeError:
        process.ended.release()
        return False
    process.loop = loop
    if process.inputs is not None:
        process.inputs.start()
    arbiter.on_lost = harvest.on_program = _recorder.wake
    atexit.register(_leave)
    return True


def _run(loop: "Loop", ended: "Any") -> None:
    try:
        loop.run()
    finally:
        ended.release()


def stop() -> None:
    """Ends what start() began: the open window, the connection, the recording. Waits at most 2 s. Never raises.

    A later start() goes on with the same segment, if an agent has it.
    """
    _end(leaving=False)


def _leave() -> None:
    _end(leaving=True)


def _leave_first() -> None:
    """Exit handlers run last come, first served: a window must be over before jax's own handler drops the backends."""
    atexit.unregister(_leave)
    atexit.register(_leave)


def _end(*, leaving: bool) -> None:
    process = _process
    try:
        with process.lock:
            loop, process.loop = process.loop, None
            if process.inputs is not None:
                process.inputs.end()
            if loop is not None:
                loop.end()
                if process.ended.acquire(timeout=END_S):
                    process.ended.release()
                process.attached = process.attached or loop.attached
            _recorder.record(False)
            if leaving or not process.attached:
                _recorder.close(not process.attached)
    except Exception:
        return


def _first_use() -> None:
    start(early=bool(os.environ.get("FLEETSCOPE_RUN")))


def _wrap_generator(annotation: _recorder.Annotation, function: "Callable[..., Any]") -> "Callable[..., Any]":
    """Decorated coroutine and generator functions: the region is around their run, not the call that makes them."""
    from fleetscope.agents.profiler.wrappers import wrap

    return wrap(annotation, function)


_recorder.on_first_use(_first_use)
_recorder.set_async_wrapper(_wrap_generator)
