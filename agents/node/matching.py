"""Which of a process' programs a window's modules are, where the window names them by another number than HLO does.

A TPU names a module by a 64-bit fingerprint of its own. Both sides know the order in which one device ran modules, and
their names: the window's are a stretch of those the PJRT shim was told. A program is matched only if every way to lay
the window along what ran around its time says the same of it: two programs of one name in turn may fit in two ways, and
then neither is named. Nothing is guessed from lengths.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fleetscope.agents.xspace import DeviceSpans, OpTables
from fleetscope.schema.vocabulary import Kind, SpanFlag

MODULES = 1024
"""Of one device and window that are laid along the stream; more would say nothing else."""
AROUND_NS = 1_000_000_000
"""Before and after a window, where its executions may lie: completions are told late, and programs may be long."""


class Module(NamedTuple):
    """One execution in a window."""

    program_id: int
    name: str


class Ran(NamedTuple):
    """One execution that the shim was told. `program`: its fingerprint, 0 if that is not known."""

    name: str
    program: int


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A window whose modules have names of another kind. `devices`: natural key -> what it saw there, in order."""

    devices: dict[str, tuple[Module, ...]]
    begin: int
    end: int
    """Ticks of the host between which its executions completed."""
    until_s: float
    """Monotonic: when it is given up."""


@dataclass(frozen=True, slots=True)
class Matched:
    """Program id of a process' windows -> fingerprint."""

    programs: dict[int, int]


def modules_of(spans: DeviceSpans, tables: OpTables) -> tuple[Module, ...]:
    """Executions of a device in a window, in order; empty where all of them are known programs."""
    rows = spans.rows
    kind, flags = rows.column("kind").to_numpy(), rows.column("flags").to_numpy()
    mine = np.flatnonzero((kind == Kind.MODULE) & (flags & SpanFlag.TRUNCATED == 0))
    if not np.any(flags[mine] & SpanFlag.PROVISIONAL_PROGRAM):
        return ()
    mine = mine[np.argsort(rows.column("start").to_numpy()[mine], kind="stable")][:MODULES]
    named = tables.modules()
    return tuple(Module(*named.get(key, (0, ""))) for key in rows.column("program").to_numpy()[mine].tolist())


def alignments(seen: Sequence[Module], told: Sequence[Ran]) -> dict[int, set[int]]:
    """Program id -> programs it would be, over all stretches of `told` that have the names of `seen` in order and in
    which each program id is one program. `told` must hold all that ran on the device while the window was open."""
    possible: dict[int, set[int]] = {}
    if not seen or len(seen) > len(told):
        return possible
    codes: dict[str, int] = {}
    wanted = np.array([codes.setdefault(item.name, len(codes)) for item in seen])
    names = np.array([codes.get(item.name, -1) for item in told])
    programs = np.array([item.program for item in told], np.int64)
    ids = np.array([item.program_id for item in seen], np.int64)
    places = {int(program_id): np.flatnonzero(ids == program_id) for program_id in np.unique(ids)}
    for offset in range(len(told) - len(seen) + 1):
        if not np.array_equal(names[offset : offset + len(seen)], wanted):
            continue
        found = {program_id: programs[offset + at] for program_id, at in places.items()}
        if all((values == values[0]).all() for values in found.values()):
            for program_id, values in found.items():
                possible.setdefault(program_id, set()).add(int(values[0]))
    return possible


def certain(devices: Iterable[dict[int, set[int]]]) -> dict[int, int]:
    """Program id -> program, of those that all devices that ran it say alike and in one way only."""
    possible: dict[int, set[int]] = {}
    for device in devices:
        for program_id, programs in device.items():
            possible[program_id] = possible.get(program_id, set()) | programs
    return {
        program_id: next(iter(found)) for program_id, found in possible.items() if len(found) == 1 and 0 not in found
    }
