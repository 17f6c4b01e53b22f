"""What the host did at each instant: one thing, so that the parts of a time never add to more than the time."""

from collections.abc import Iterable

ORDER = ("data_wait_ns", "compile_ns", "checkpoint_ns", "h2d_ns", "d2h_ns", "dispatch_ns")
"""Of several things at an instant, on any threads, the first counts, as where a device is idle (pipelines.idle)."""


def exclusive(spans: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """ns of each column, in ORDER, from (column, begin, end)."""
    of: dict[str, list[tuple[int, int]]] = {}
    for column, begin, end in spans:
        of.setdefault(column, []).append((begin, end))
    found: dict[str, int] = {}
    taken: list[tuple[int, int]] = []
    before = 0
    for column in ORDER:
        if column in of:
            taken = _union([*taken, *of[column]])
            covered = sum(end - begin for begin, end in taken)
            found[column], before = covered - before, covered
    return found


def _union(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for begin, end in sorted(intervals):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out
