"""Records stamped after their counter stepped back (a VM was restored), and before their process noticed."""

from dataclasses import replace

import numpy as np

from fleetscope.native.recorder import Drained

EVENT_COLUMNS = ("start", "dur", "arg", "seq", "name", "line", "kind", "flags", "flow", "weight")
OF_EVENTS = {"arg_row": ("arg_key", "arg_kind", "arg_value"), "link_row": ("link_kind", "link_type", "link_id")}
"""What belongs to an event, by the column that holds the event's row."""


def without_stepped(drained: Drained, earliest: int) -> tuple[Drained, int]:
    """`drained` without the events that end before tick `earliest`, and how many those are.

    All that ended so early was drained long ago: what comes now with such a stamp was read from a counter that had
    stepped back, and when it was cannot be told any more.
    """
    kept = drained.start + drained.dur >= earliest
    odd = int(np.count_nonzero(~kept))
    if not odd:
        return drained, 0
    place = np.cumsum(kept) - 1
    changed = {name: getattr(drained, name)[kept] for name in EVENT_COLUMNS}
    for key, names in OF_EVENTS.items():
        row = getattr(drained, key)
        theirs = kept[row]
        changed[key] = place[row[theirs]].astype(row.dtype)
        changed |= {name: getattr(drained, name)[theirs] for name in names}
    return replace(drained, **changed), odd
