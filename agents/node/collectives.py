"""Executions that no rank leaves before all have entered, as the PJRT shim tells them: facts about clocks of hosts.

A program qualifies whose entry computation runs a collective over all devices of the job that needs something of
each: what is inside a branch may not run, and of a smaller group nobody here knows which ranks it is of. Enqueued at
or before it began, complete at or after it ended: so every rank's enqueue is not later than any rank's completion,
whatever their clocks say.

Ranks agree on an execution by its number: how often its program had run in this process. That is only known where
everything was told from the first launch on. Where it was not, nothing is claimed; where ranks count differently all
the same (one ran the program once more), the solver finds the contradiction.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fleetscope.agents.node.executions import MODULE_LINE, DeviceRows
from fleetscope.agents.programs.kinds import base_opcode
from fleetscope.agents.programs.optable import Program
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.identity import key_hash
from fleetscope.schema.vocabulary import CollectiveFlag

BARRIER_LIKE = frozenset({"all-reduce", "all-gather", "reduce-scatter", "all-to-all"})
"""What each rank gets has a part of every other: a permute or a broadcast has not."""
A_SECOND = 2
"""Observations of a program in a second, at most: bounds gain little by more (native-clock.md B4 has one)."""
RawOf = Callable[[int], tuple[int, int]]
"""Tick -> ns of MONOTONIC_RAW, and what that may be off."""
PROGRAMS = 64
"""Of one process that are counted; more are not observed."""


@dataclass(frozen=True, slots=True)
class Passed:
    """One execution: ticks of the process' counter."""

    program: int
    sequence: int
    enqueue: int
    end: int
    device: str


def spans_job(program: Program, devices: int) -> bool:
    """Whether every execution passes a collective over `devices` devices."""
    ops = program.ops.select(("opcode", "entry", "dims")).to_pylist()
    barriers = (op for op in ops if op["entry"] and base_opcode(op["opcode"]) in BARRIER_LIKE)
    return any(_group(op["dims"]) == devices for op in barriers)


def _group(dims: str | None) -> int:
    try:
        said = json.loads(dims or "{}").get("group", 0)
    except (ValueError, AttributeError):
        return 0
    return said if isinstance(said, int) else 0


class Collectives:
    """Of one process; one device stands for all of them."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._spans: dict[int, bool] = {}
        self._count: Counter[int] = Counter()
        self._newest: dict[int, int] = {}
        self._every: dict[int, int] = {}
        self._device = ""
        self._passed: list[Passed] = []

    def take(self) -> list[Passed]:
        """Those since the last call."""
        passed, self._passed = self._passed, []
        return passed

    def note(
        self, told: Iterable[DeviceRows], programs: Sequence[Program], devices: int, whole: bool, a_second: int
    ) -> None:
        """Executions of a round. `devices`: of this process; `whole`: all its launches were told; `a_second`: ticks."""
        if self._world < 2:
            return
        for program in programs:
            if program.program not in self._spans and len(self._spans) < PROGRAMS:
                self._spans[program.program] = spans_job(program, self._world * devices)
        if not any(self._spans.values()):
            return
        for batch in told:
            self._device = self._device or batch.device.key
            if batch.device.key == self._device and batch.rows.num_rows:
                self._rows(batch, whole, a_second)

    def _rows(self, batch: DeviceRows, whole: bool, a_second: int) -> None:
        names = ("line", "start", "dur", "program", "args", "flow")
        line, start, dur, program, args, flow = (batch.rows.column(name).to_pylist() for name in names)
        # Those that waited: their QUEUE span says when they were enqueued.
        enqueued = {flow[row]: start[row] for row, on in enumerate(line) if on != MODULE_LINE}
        for row, key in enumerate(program):
            if line[row] != MODULE_LINE or not self._spans.get(key):
                continue
            self._count[key] += 1
            end, number = start[row] + dur[row], self._count[key]
            if not whole or args[row] or not self._chosen(key, number, end, a_second):
                continue
            self._passed.append(Passed(key, number, enqueued.get(flow[row], start[row]), end, batch.device.key))

    def _chosen(self, key: int, number: int, end: int, a_second: int) -> bool:
        """One in a power of two, so that ranks of different pace choose alike where they can."""
        before, self._newest[key] = self._newest.get(key), end
        if before is not None and end > before:
            every = 1
            while every * (end - before) * A_SECOND < a_second and every < 1 << 20:
                every *= 2
            # A pace that changes for one execution must not change what is chosen.
            known = self._every.get(key, every)
            self._every[key] = max(known // 2, min(known * 2, every)) or 1
        return number % self._every.get(key, 1) == 0


def observation(source: wire.Source, world: int, passed: Passed, raw_of: RawOf) -> wire.CollectiveObservation:
    """As the wire has it."""
    group = key_hash("collective", source.cluster, source.run, source.attempt, passed.program, 0, 0)
    (start, early), (end, late) = raw_of(passed.enqueue), raw_of(passed.end)
    flags = CollectiveFlag.BARRIER_LIKE | CollectiveFlag.FROM_SHIM
    return wire.CollectiveObservation(
        group=group, sequence=passed.sequence, rank=source.rank, size=world, start_ns=start, end_ns=end,
        err_ns=max(early, late), flags=int(flags), device=passed.device,
    )  # fmt: skip
