"""Line numbers of host threads: stable from window to window, as far as the producer's ids are."""

from collections.abc import Sequence

import numpy as np

from fleetscope.agents.batches import clean_text
from fleetscope.agents.xspace.events import Events
from fleetscope.agents.xspace.planes import Line
from fleetscope.agents.xspace.views import Ints


class ThreadNumbers:
    """A thread's 64-bit id folded to a positive int32. Two threads of a capture that fold alike get neighbouring
    numbers.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        taken: dict[int, int] = {}
        self._numbers = np.zeros(len(lines), np.int64)
        self._names = [clean_text(line.name) for line in lines]
        for i, line in enumerate(lines):
            number = ((line.id ^ (line.id >> 32)) & 0x7FFFFFFF) or 1
            # Lines of equal id are one timeline (xplane.proto), in whatever plane they stand.
            while taken.setdefault(number, line.id) != line.id:
                number = number % 0x7FFFFFFF + 1
            self._numbers[i] = number

    def number(self, events: Events) -> tuple[Ints, dict[int, str]]:
        """(line number per event, number -> thread name of those that occur)."""
        used = np.unique(events.line).tolist()
        return self._numbers[events.line], {int(self._numbers[i]): self._names[i] for i in used}
