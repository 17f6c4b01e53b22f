"""Steps of a process without annotations, from the programs one of its devices runs.

The dominant program (most device time) begins a step each time it begins. Where a fixed number k >= 2 of its executions
is followed by one of another program (gradient accumulation), the step begins at the first of the k. A program that is
not part of the usual step and takes a fair share of one begins a step of its own, flagged: evaluation between training
steps. Confidence is how regular the steps were: the share of the newest whose length is within a quarter of their
median.

Completions of a device may be told in another order than it worked in: a callback that is late changes places with the
next. A device works in order of launch, so programs are put into the told begins in that order; what begins where
another execution was told is flagged. No begin is made up: each is one that was told.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

INFER_AFTER = 16
"""Executions of one program without any annotation before steps are inferred: annotations may come one epoch later."""
PATIENT_UNTIL = 64
"""Executions of it until which another program that was seen once or twice is waited for: it may end each step."""
REGULAR = 0.8
"""Share of the groups between two closing programs that must have the same size."""
NEAR = 4
"""A step is regular within 1 / NEAR of the median."""
LONG = 5
"""An unusual program begins a step of its own if one execution takes 1 / LONG of a step."""
PERIODS = 32
LATE_NS = 200_000_000
"""Longest that a completion is told late: a callback whose thread lost its core. Looked for, not guaranteed."""
LEARN_AGAIN = 64
"""Executions on the device without the leading program, after which another leads: a new phase, a recompilation."""


class Ran(NamedTuple):
    """One execution."""

    begin_ns: int
    device: int
    program: int
    window: int
    dur_ns: int
    launch: int = 0
    """Its launch in the process, ascending; 0: not told."""
    reordered: bool = False
    """Told at another place among the executions of its device, or right behind one that was."""


class Begin(NamedTuple):
    """A step begins. `confidence` (1/1000): of the step that ends here."""

    begin_ns: int
    evaluation: bool
    after_gap: bool
    """Another profiler window: between the two nothing was seen, and the step before has no end."""
    confidence: int
    reordered: bool
    """Known to about an execution: completions had changed places."""


@dataclass(slots=True)
class Leader:
    """What steps are told by, carried."""

    device: int = 0
    program: int = 0
    closer: int = 0
    """The program that ends a step; 0: each execution of `program` begins one."""
    usual: list[int] = field(default_factory=list)
    """Programs that are part of the step."""
    periods: list[int] = field(default_factory=list)
    at: int = -(1 << 62)
    """Begin of the newest execution looked at."""
    begun: int = 0
    """Begin of the open step, 0 none."""
    training: bool = True
    closed: bool = True
    window: int = 0
    absent: int = 0
    """Executions on the device since the leading program's newest."""
    unordered: bool = False
    """Completions have changed places in this process."""

    def to_json(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> "Leader":
        if len(value) == 2:
            return cls(int(value[0]), int(value[1]), usual=[int(value[1])])
        return cls(*value)

    @property
    def confidence(self) -> int:
        if len(self.periods) < 2:
            return 0
        middle = median(self.periods)
        near = sum(abs(period - middle) * NEAR <= middle for period in self.periods)
        return 1000 * near // len(self.periods)


def in_launch_order(executions: Iterable[Ran]) -> list[Ran]:
    """Ascending by begin, as told; on each device the programs in the order of their launches."""
    found = sorted(executions, key=lambda item: (item.begin_ns, item.device))
    places: dict[int, list[int]] = {}
    for index, item in enumerate(found):
        if item.launch:
            places.setdefault(item.device, []).append(index)
    for indices in places.values():
        moved = False
        told = [found[index] for index in indices]
        for index, place, item in zip(indices, told, sorted(told, key=lambda item: item.launch), strict=True):
            before, moved = moved, item.launch != place.launch
            if moved or before:
                found[index] = place._replace(program=item.program, launch=item.launch, reordered=True)
    return found


def settled(leader: Leader, executions: Sequence[Ran]) -> Sequence[Ran]:
    """Those that no completion still to come can change places with: all, in a process where none ever did."""
    leader.unordered |= any(item.reordered for item in executions)
    if not leader.unordered:
        return executions
    ends = (item.begin_ns + item.dur_ns for item in executions if item.device == leader.device)
    newest = max(ends, default=0)
    return [item for item in executions if item.begin_ns + item.dur_ns <= newest - LATE_NS]


def learn(executions: Sequence[Ran]) -> Leader | None:
    """Who leads, once there are enough executions; ascending by begin."""
    total: Counter[int] = Counter()
    count: Counter[tuple[int, int]] = Counter()
    for item in executions:
        total[item.program] += item.dur_ns
        count[item.program, item.device] += 1
    if not total:
        return None
    program = max(total, key=lambda key: (total[key], key))
    device = max((key[1] for key in count if key[0] == program), key=lambda key: (count[program, key], key))
    if count[program, device] < INFER_AFTER:
        return None
    mine = [item for item in executions if item.device == device]
    # What ran before its first execution (initialisation) is no part of a step.
    del mine[: next(index for index, item in enumerate(mine) if item.program == program)]
    others = {item.program for item in mine} - {program}
    times = Counter(item.program for item in mine)
    rare = any(times[other] < 3 for other in others)
    if rare and count[program, device] < PATIENT_UNTIL:
        return None
    found = Leader(device, program, closer=_closer(mine, program, others))
    found.usual = sorted(_usual(mine, found))
    # What is known of all of them counts for the first of them too.
    trial = Leader.from_json(found.to_json())
    list(begins(trial, mine))
    found.periods = trial.periods
    return found


def _closer(mine: Sequence[Ran], program: int, others: set[int]) -> int:
    """The program of which one execution follows every k of `program`; 0 if there is none."""
    best, size = 0, 1
    for other in sorted(others):
        groups: list[int] = []
        run, repeated = 0, False
        for item in mine:
            if item.program == program:
                run += 1
            elif item.program == other:
                repeated |= run == 0 and bool(groups)
                groups.append(run)
                run = 0
        groups = groups[1:]  # the first may have begun before we looked
        if repeated or len(groups) < 2:
            continue
        usual, times = Counter(groups).most_common(1)[0]
        if usual >= 2 and times >= REGULAR * len(groups) and usual > size:
            best, size = other, usual
    return best


def _usual(mine: Sequence[Ran], leader: Leader) -> set[int]:
    """Programs in at least half of the steps."""
    steps: list[set[int]] = []
    closed = True
    for item in mine:
        if item.program == leader.program and closed:
            steps.append(set())
            closed = not leader.closer
        if steps:
            steps[-1].add(item.program)
        closed |= item.program == leader.closer
    held = Counter(program for step in steps for program in step)
    return {program for program, times in held.items() if 2 * times >= len(steps)} | {leader.program}


def begins(leader: Leader, executions: Sequence[Ran]) -> Iterator[Begin]:
    """Begins of steps among new executions, ascending; `leader` moves on. Those looked at before are passed over."""
    for item in executions:
        if item.device != leader.device or item.begin_ns <= leader.at:
            continue
        leader.at = item.begin_ns
        if item.program == leader.program:
            leader.absent = 0
            if not leader.closed and leader.training:
                continue
            leader.closed = not leader.closer
            yield _open(leader, item, evaluation=False)
            continue
        leader.absent += 1
        if item.program == leader.closer:
            leader.closed = True
        elif item.program not in leader.usual and leader.begun and _is_long(leader, item):
            leader.closed = True
            yield _open(leader, item, evaluation=True)


def _is_long(leader: Leader, item: Ran) -> bool:
    return bool(leader.periods) and item.dur_ns * LONG >= median(leader.periods)


def _open(leader: Leader, item: Ran, *, evaluation: bool) -> Begin:
    gap = bool(leader.begun) and item.window != leader.window
    if leader.begun and not gap and leader.training:
        leader.periods = [*leader.periods, item.begin_ns - leader.begun][-PERIODS:]
    confidence = leader.confidence
    leader.begun, leader.training, leader.window = item.begin_ns, not evaluation, item.window
    return Begin(item.begin_ns, evaluation, gap, confidence, item.reordered)
