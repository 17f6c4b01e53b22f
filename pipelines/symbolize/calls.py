"""The call graph of a program: an order in which callees come first, and how often each computation runs.

Iterative: a damaged table may call itself, or nest thousands deep.
"""

from collections.abc import Iterable, Mapping

MOST = 1 << 62
"""Executions are counted up to here; beyond, a program is nonsense and only ratios of them matter."""


def callees_first(calls: Mapping[int, Iterable[int]]) -> tuple[list[int], set[int]]:
    """(computations ordered so that what one calls stands before it, those that reach themselves)."""
    order: list[int] = []
    cyclic: set[int] = set()
    state: dict[int, int] = {}  # 1: on the path, 2: done
    for root in calls:
        if root in state:
            continue
        state[root] = 1
        path = [(root, iter(calls[root]))]
        while path:
            computation, ahead = path[-1]
            for callee in ahead:
                if callee not in calls:
                    continue
                if state.get(callee) == 1:
                    cyclic.add(callee)
                elif callee not in state:
                    state[callee] = 1
                    path.append((callee, iter(calls[callee])))
                    break
            else:
                path.pop()
                state[computation] = 2
                order.append(computation)
    return order, cyclic


def executions(
    order: list[int], sites: Mapping[int, Iterable[tuple[int, int]]], entries: Iterable[int]
) -> dict[int, int]:
    """computation -> how often one execution of the program runs it. `sites`: caller -> (callee, times a run)."""
    times = dict.fromkeys(order, 0)
    for entry in entries:
        if entry in times:
            times[entry] = 1
    for caller in reversed(order):
        if not times[caller]:
            continue
        for callee, runs in sites.get(caller, ()):
            if callee in times:
                times[callee] = min(times[callee] + times[caller] * runs, MOST)
    return times
