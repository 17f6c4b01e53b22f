"""Which executions were launched and are not complete, on which devices they may still complete."""

from collections import OrderedDict
from dataclasses import dataclass

OPEN_LIMIT = 1 << 13
"""Launches under way in one process. A plugin that never completes would otherwise fill the agent."""
DONE_LIMIT = 1 << 14
"""Complete launches remembered, to know a completion that is told twice."""
LABEL_LIMIT = 1 << 16
STALE_S = 60
"""A launch that later ones of its program overtook so long ago has lost its completion."""


@dataclass(slots=True)
class Launch:
    enqueue: int
    label: int
    expected: int
    """Completions to come in all; 0 not known."""
    done: int = 0
    """Bits of the ordinals that completed."""


@dataclass(slots=True)
class _Label:
    devices: int = 0
    """Completions of a launch; 0 not known."""
    seen: int = 0
    """Bits of the ordinals it ever completed on."""
    newest: int = 0
    """Enqueue of the newest of its launches that completed anywhere."""


class Launches:
    """Launches and completions come in any order: a call that returns late is recorded after what it started.

    The oldest of each kind goes at its limit. Ordered dictionaries: the first key of a plain one is found by
    walking over all that were deleted before it, with 16 384 remembered two fifths of the time of an execution.
    """

    def __init__(self) -> None:
        self.open: OrderedDict[int, Launch] = OrderedDict()
        self._labels: OrderedDict[int, _Label] = OrderedDict()
        self._done: OrderedDict[int, int] = OrderedDict()
        """Launch -> bits, of those complete."""

    def program(self, label: int, devices: int) -> None:
        """How many devices a program's launches run on."""
        if 0 < devices <= 4096:
            self._label(label).devices = devices

    def _label(self, label: int) -> _Label:
        known = self._labels.get(label)
        if known is None:
            if len(self._labels) >= LABEL_LIMIT:
                self._labels.popitem(last=False)
            known = self._labels[label] = _Label()
        return known

    def launch(self, launch: int, enqueue: int, label: int, devices: int = 0) -> None:
        """A launch that did not fail."""
        if launch in self._done:
            return
        known = self.open.get(launch)
        if known is None:
            self._keep(launch, Launch(enqueue, label, devices))
            return
        known.expected = devices or known.expected
        self._close_if_done(launch, known)

    def _keep(self, launch: int, item: Launch) -> None:
        if len(self.open) >= OPEN_LIMIT:
            self.open.popitem(last=False)
        self.open[launch] = item

    def complete(self, launch: int, ordinal: int, enqueue: int, label: int) -> bool:
        """A completion on a device; False if it was told before."""
        bit = 1 << ordinal
        bits = self._done.get(launch)
        if bits is not None:
            self._done[launch] = bits | bit
            return not bits & bit
        known = self.open.get(launch)
        if known is None:
            known = Launch(enqueue, label, 0)
            self._keep(launch, known)
        if known.done & bit:
            return False
        known.done |= bit
        mine = self._label(label)
        mine.seen |= bit
        mine.newest = max(mine.newest, enqueue)
        self._close_if_done(launch, known)
        return True

    def _expected(self, item: Launch) -> int:
        return item.expected or self._label(item.label).devices

    def _close_if_done(self, launch: int, item: Launch) -> None:
        expected = self._expected(item)
        if expected and item.done.bit_count() >= expected:
            self._close(launch, item)

    def _close(self, launch: int, item: Launch) -> None:
        self.open.pop(launch, None)
        self._done[launch] = item.done
        if len(self._done) > DONE_LIMIT:
            self._done.popitem(last=False)

    def _may_run_on(self, item: Launch, ordinal: int) -> bool:
        bit = 1 << ordinal
        if item.done & bit:
            return False
        label, expected = self._label(item.label), self._expected(item)
        if label.seen & bit or not label.seen:
            return True
        # A program whose devices are all known runs on no other. Where their number was never told, one completion is
        # taken to name them: the others follow within moments, or it would hold back every device for STALE_S.
        return label.seen.bit_count() < expected if expected else not item.done

    def open_since(self, ordinal: int) -> int | None:
        """Oldest enqueue that may still complete on a device."""
        return min((item.enqueue for item in self.open.values() if self._may_run_on(item, ordinal)), default=None)

    def in_flight(self, ordinal: int) -> list[tuple[int, int, int]]:
        """(launch, enqueue, label) that may still complete on a device, in order of enqueue."""
        found = [
            (launch, item.enqueue, item.label)
            for launch, item in self.open.items()
            if self._may_run_on(item, ordinal) and self._runs_on(item, ordinal)
        ]
        return sorted(found, key=lambda entry: (entry[1], entry[0]))

    def _runs_on(self, item: Launch, ordinal: int) -> bool:
        """As far as is known: what never completed anywhere is not claimed for a device it was never seen on."""
        seen = self._label(item.label).seen
        return bool(seen >> ordinal & 1) or not seen

    def forget_stale(self, now: int, per_s: int) -> int:
        """Give up launches whose completions got lost; how many there were."""
        stale = [
            (launch, item)
            for launch, item in self.open.items()
            if now - item.enqueue > STALE_S * per_s and self._label(item.label).newest > item.enqueue
        ]
        partly = 0
        for launch, item in stale:
            # Where the number of devices was never told, what completed somewhere is taken for complete.
            partly += item.done.bit_count() < self._expected(item) or not item.done
            self._close(launch, item)
        return partly

    def carried(self, limit: int) -> list[list[int]]:
        """The newest launches under way, as JSON."""
        newest = list(self.open.items())[-limit:]
        return [[launch, item.enqueue, item.label, self._expected(item), item.done] for launch, item in newest]

    def restore(self, value: list[list[int]]) -> None:
        for launch, enqueue, label, expected, done in value:
            self._keep(int(launch), Launch(enqueue, label, expected, done))
