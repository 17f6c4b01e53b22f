"""Events of some lines of a capture, as arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.agents.xspace.planes import Line
from fleetscope.agents.xspace.views import Ints, Texts, ints, present, texts
from fleetscope.native.xspace import XSpace


@dataclass(frozen=True, slots=True)
class Events:
    """Rows of XSpace.events, line after line. `line` is the position in the lines they were taken from.

    A column is taken when it is asked for: of its 39 a conversion reads a dozen, most of them null throughout.
    """

    space: XSpace
    rows: Ints
    line: Ints
    base_ns: Ints

    def column(self, name: str) -> pa.Array:
        whole = self.space.events.column(name)
        if whole.null_count == len(whole):
            return whole.slice(0, len(self.rows))
        if len(self.rows) and (np.diff(self.rows) == 1).all():
            return whole.slice(int(self.rows[0]), len(self.rows))
        return whole.take(pa.array(self.rows, pa.int64()))

    def ints(self, name: str, null: int = 0) -> Ints:
        return ints(self.column(name), null)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Which events have a value."""
        return present(self.column(name))

    def texts(self, name: str) -> Texts:
        return texts(self.column(name))

    def metadata_ints(self, name: str, null: int = 0) -> Ints:
        """A column of event_metadata for each event; `null` also where an event has no metadata."""
        row = self.ints("metadata", -1)
        values = np.append(ints(self.space.event_metadata.column(name), null), null)
        return values[row]

    def metadata_texts(self, name: str) -> Texts:
        row = self.ints("metadata", -1)
        of = texts(self.space.event_metadata.column(name))
        return Texts(np.append(of.codes, -1)[row], of.values)

    def select(self, index: Ints) -> "Events":
        """Events at positions, which need not ascend."""
        return Events(self.space, self.rows[index], self.line[index], self.base_ns[index])


def events_of(space: XSpace, lines: Sequence[Line]) -> Events:
    """Every event of the lines."""
    counts = np.array([line.count for line in lines], np.int64)
    which = np.repeat(np.arange(len(lines)), counts)
    first = np.array([line.first for line in lines], np.int64)
    rows = first[which] + np.arange(int(counts.sum())) - (np.cumsum(counts) - counts)[which]
    base = np.array([line.timestamp_ns for line in lines], np.int64)[which]
    return Events(space, rows, which, base)


def name_codes(events: Events, column: str = "name") -> tuple[Ints, list[str]]:
    """(code per event, names): names of event metadata are plain strings, few per capture; -1 for none."""
    row = events.ints("metadata", -1)
    used, inverse = np.unique(row, return_inverse=True)
    names = (
        events.space.event_metadata.column(column).take(pa.array(np.maximum(used, 0))).to_pylist()
        if len(events.space.event_metadata)
        else [""] * len(used)
    )
    codes = inverse.astype(np.int64)
    if len(used) and used[0] < 0:
        codes -= 1
        names = names[1:]
    return codes, names
