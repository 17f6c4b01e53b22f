"""What the clock of the fleet leaves in the lake: maps, verdicts, asymmetry of paths; and what exporters are told.

Rows are folded once a round, as symbols are, so that a reader sees them with the rows they place. A map that cannot be
is counted and not stored.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from fleetscope.pipelines.align.steps import Kind, Verdict
from fleetscope.pipelines.coordinate.host_maps import HostMap
from fleetscope.pipelines.coordinate.moment import Moments
from fleetscope.pipelines.coordinate.solver import Solver
from fleetscope.schema import identity
from fleetscope.schema.tables import CLOCK_EDGES, CLOCK_MAPS, CLOCK_VERDICTS
from fleetscope.sinks.lake.alignment import columns_of, impossible
from fleetscope.sinks.lake.fold import fold_rows

_log = logging.getLogger(__name__)

EDGES_EVERY = 6
"""Hops between two looks at all paths: what they lean to is learned in minutes."""
EDGES_KEPT = 1000
ROWS_HELD = 1 << 20
"""While the lake takes none: an hour of 1 400 hosts. The oldest go, and readers keep the maps of before."""


class ClockTables:
    """Follows one solver. `take` after each poll, `fold` before each round."""

    def __init__(self, moments: Moments, solver: Solver) -> None:
        self._moments = moments
        self._solver = solver
        self.refused: Counter[str] = Counter()
        self.steps: Counter[int] = Counter()
        """Of each clock epoch since this solver began."""
        self._maps: dict[int, dict[str, Any]] = {}
        self._verdicts: dict[int, dict[str, Any]] = {}
        self._edges: dict[tuple[int, int], dict[str, Any]] = {}

    @property
    def waiting(self) -> bool:
        """Whether there are rows to be folded."""
        return bool(self._maps or self._verdicts or self._edges)

    def take(self, now_ns: int) -> None:
        """What was solved since the last call."""
        solver = self._solver
        for made in solver.table_rows():
            row = made.row(self._host(made.node), now_ns)
            self._maps[row["map"]] = row
        for verdict in solver.take_verdicts():
            row = self._verdict(*verdict, now_ns)
            self._verdicts[row["verdict"]] = row
            if verdict[1].kind is Kind.STEP:
                self.steps[solver.clock.epochs[verdict[1].node]] += 1
        result = solver.result
        if result is not None:
            self._maps |= {row["map"]: row for row in [*self._live(now_ns), *self._utc(now_ns)]}
            if result.number % EDGES_EVERY == 0:
                self._edges |= {(row["host"], row["peer"]): row for row in self._paths(now_ns)}
        for name in list(self._maps)[: max(0, len(self._maps) - ROWS_HELD)]:
            del self._maps[name]

    def fold(self) -> None:
        """Into the tables; kept where that fails with a Retryable."""
        for name, schema, rows in (
            ("clock_maps", CLOCK_MAPS, self._maps),
            ("clock_verdicts", CLOCK_VERDICTS, self._verdicts),
            ("clock_edges", CLOCK_EDGES, self._edges),
        ):
            if not rows:
                continue
            table = pa.Table.from_pylist(list(rows.values()), schema)
            if name == "clock_maps":
                refused, kept = impossible(columns_of(table))
                table = table.filter(pa.array(kept))
                self.refused += refused
            fold_rows(self._moments.tables[name], table, {})
            self._moments.touch(name)
            rows.clear()

    def _host(self, node: int) -> int:
        cluster, host, _, _ = self._solver.records.hosts[node]
        return identity.host_id(cluster, host)

    def _live(self, now_ns: int) -> Iterator[dict[str, Any]]:
        """From the newest hop on, one row a host: the next one replaces it. Those of a coordinator that is gone stay,
        until where the next one's maps begin."""
        for made in self._solver.live:
            name = identity.key_hash("live", made.epoch, self._solver.term)
            yield made.row(self._host(made.node), now_ns) | {"map": name, "method": "live"}

    def _utc(self, now_ns: int) -> Iterator[dict[str, Any]]:
        """UTC -> fleet time, of the hop."""
        result, settings = self._solver.result, self._solver.settings
        if result is None or result.utc is None or result.reference < 0:
            return
        cluster = self._solver.records.hosts[result.reference][0]
        at, ahead = self._solver.clock.middle(result.number), round(result.utc.middle_ns)
        lo, hi = int(np.floor(result.utc.lo_ns)) - ahead, int(np.ceil(result.utc.hi_ns)) - ahead
        epoch, half = identity.key_hash("utc", cluster), settings.hop_ns // 2
        line = HostMap(
            result.reference, epoch, at - ahead - half, at - half, 1, 1, at - ahead + half, lo, hi, 0, "guaranteed",
            "utc", result.number, False, self._solver.clock.epochs[result.reference],
        )  # fmt: skip
        yield line.row(0, now_ns) | {"clock": "utc"}

    def _verdict(self, number: int, verdict: Verdict, now_ns: int) -> dict[str, Any]:
        node = verdict.node
        host, epoch = (self._host(node), self._solver.clock.epochs[node]) if node >= 0 else (0, 0)
        return {
            "verdict": identity.key_hash("verdict", epoch, number, verdict.kind.value, *sorted(verdict.proof)),
            "t_ns": int(verdict.from_ns), "end_ns": int(verdict.to_ns), "host": host, "epoch": epoch,
            "kind": verdict.kind.value, "size_ns": round(min(abs(verdict.size_ns), 2.0**62)),
            "hosts": [self._host(other) for other in verdict.proof], "version": number, "seen_ns": now_ns,
        }  # fmt: skip

    def _paths(self, now_ns: int) -> Iterator[dict[str, Any]]:
        worst = self._solver.clock.pairs.asymmetry().worst(EDGES_KEPT)
        columns = (worst.a, worst.b, worst.ns, worst.round_trip_ns, worst.hops)
        for a, b, ns, round_trip_ns, hops in zip(*(column.tolist() for column in columns), strict=True):
            yield {
                "host": self._host(a), "peer": self._host(b), "asymmetry_ns": round(ns),
                "round_trip_ns": round(round_trip_ns), "hops": hops, "seen_ns": now_ns,
            }  # fmt: skip
