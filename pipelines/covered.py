"""Which ticks of a device a source has observed: batches hold all lines of a device for disjoint ranges (DESIGN 3.1).

Were a range observed twice, its ops, busy and observed time would count twice, and nothing later could tell.
"""

from fleetscope.schema.errors import RangeOverlap

RANGES = 16
"""Newest disjoint ranges remembered per device: contiguous batches need one, profiler windows one each."""


def observe(ranges: list[list[int]], tick_from: int, tick_to: int, whose: str) -> None:
    """Add [tick_from, tick_to) to ascending disjoint `ranges`; neighbours join, the oldest beyond RANGES are forgotten.

    RangeOverlap, with `ranges` unchanged, if some of it was observed before. What was forgotten passes unseen.
    """
    if tick_from == tick_to:
        return
    index = len(ranges)
    while index and ranges[index - 1][0] > tick_from:
        index -= 1
    for near in ranges[max(0, index - 1) : index + 1]:
        if near[0] < tick_to and tick_from < near[1]:
            raise RangeOverlap(f"{whose}: ticks [{tick_from}, {tick_to}) overlap [{near[0]}, {near[1]})")
    ranges.insert(index, [tick_from, tick_to])
    if index + 1 < len(ranges) and ranges[index][1] == ranges[index + 1][0]:
        ranges[index][1] = ranges.pop(index + 1)[1]
    if index and ranges[index - 1][1] == ranges[index][0]:
        ranges[index - 1][1] = ranges.pop(index)[1]
    del ranges[:-RANGES]
