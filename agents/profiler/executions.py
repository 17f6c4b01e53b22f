"""Executions of one program in place of steps: what the PJRT shim counts, and what ranks compare their counts by.

The coordinator names the program, the same for all ranks of an attempt (DESIGN 5). Each counts its executions from the
beginning of the process, so a rank that started again counts otherwise than the rest. That is seen by the execution
which ended first after the same moment: ranks whose devices wait for each other are then within one, less the time
from the moment to its end.
"""

import sys
import time

from fleetscope.agents.profiler.protocol import Followed, Ran
from fleetscope.native import _recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK_NS = 5_000_000_000
"""Between two moments, on REALTIME."""
RAN = 8
"""Programs that are reported: a training run has one or two that take most of the time."""


def _shim() -> "Any":
    """The native half, where a plugin was wrapped; None on jax's built-in CPU, whose executions nobody counts."""
    return sys.modules.get("fleetscope.native._pjrt_shim")


def ran() -> tuple[Ran, ...]:
    shim = _shim()
    if shim is None:
        return ()
    programs = [Ran(*row) for row in shim.programs()]
    return tuple(sorted(programs, key=lambda one: -one.busy_ns)[:RAN])


class Follower:
    """Follows the program the coordinator named."""

    def __init__(self) -> None:
        self.program = ""
        self._mark_ns = 0
        self._mark_ticks = 0
        _, self._period_num, self._period_den = _recorder.host_counter()

    def follow(self, program: str) -> None:
        """Counts executions of `program` once it is loaded; "": of none."""
        if program == self.program:
            return
        shim, self.program = _shim(), ""
        if shim is None:
            return
        if shim.follow(program):  # else it is not loaded yet, and what was followed before no longer is
            self.program, self._mark_ns = program, 0

    def report(self) -> Followed:
        """The pace so far, with the last mark if an execution has met it; sets the next."""
        if not self.program:
            return Followed()
        execution, _, _, period_ns, longest_ns, settled = _recorder.executions()
        mark_ns, marked, after_ns = self._mark_ns, -1, 0
        found = _recorder.marked() if mark_ns else None
        if found is not None:
            marked = found[0]
            after_ns = (found[1] - self._mark_ticks) * self._period_num // self._period_den
        if found is not None or time.time_ns() > mark_ns + MARK_NS:
            self._set_mark()
        return Followed(
            self.program, execution, period_ns, longest_ns, settled, mark_ns if marked >= 0 else 0, marked, after_ns
        )

    def _set_mark(self) -> None:
        _, counter, realtime_ns, _ = _recorder.clocks()
        self._mark_ns = (realtime_ns // MARK_NS + 1) * MARK_NS
        self._mark_ticks = counter + (self._mark_ns - realtime_ns) * self._period_den // self._period_num
        _recorder.mark(self._mark_ticks)
