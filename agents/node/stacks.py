"""What threads of a process are in: regions that were begun and not ended, while it lives and when it has died."""

from dataclasses import replace
from typing import Any

import numpy as np

from fleetscope.native.recorder import LAUNCH, STEP, Drained, Info, Open

OPEN_AT_DEATH = 1 << 2
"""Flag of a row that `with_open` made. A record's own flags have two bits, so no process can claim it."""


def age_ns(start: int, now_tick: int, info: Info) -> int:
    """Age of a region that began at tick `start`; 0 for a begin that cannot be: before the segment, or after now."""
    return (now_tick - start) * info.period_num // info.period_den if info.anchor[1] <= start <= now_tick else 0


def with_open(drained: Drained, regions: list[Open], begin: int, end: int, step: int) -> tuple[Drained, int]:
    """`drained` and a row for each region of a process that has died, and the number of those that cannot be.

    Ticks: the segment was made at `begin`, the process is known to have lived until `end`. `step`: the newest begun, -1
    for none.
    """
    whole = [region for region in regions if region.kind < LAUNCH and begin <= region.start <= end]
    # Outermost last, as if each had ended at once: rows of a line are in order of their ends.
    whole.sort(key=lambda region: (region.line, -region.depth))
    columns = {
        "start": [region.start for region in whole],
        "dur": [end - region.start for region in whole],
        "arg": [step if region.kind == STEP else step + 1 for region in whole],
        "seq": [0] * len(whole),
        "name": [region.name for region in whole],
        "line": [region.line for region in whole],
        "kind": [region.kind for region in whole],
        "flow": [0] * len(whole),
        "weight": [1] * len(whole),
        "flags": [OPEN_AT_DEATH] * len(whole),
    }
    joined: dict[str, Any] = {}
    for name, values in columns.items():
        known = getattr(drained, name)
        joined[name] = np.concatenate((known, np.array(values, known.dtype)))
    return replace(drained, **joined), len(regions) - len(whole)
