"""Runs that wait for their input, by name: the first thing to know about a slow run, with no device window."""

from dataclasses import dataclass

from fleetscope.analysis.scope import UNUSUAL, Scope
from fleetscope.schema.vocabulary import WINDOW_NS, Kind, StepFlag
from fleetscope.sinks.lake.read import Snapshot

BOUND = 0.2
"""Share of the step time in waits for input from which a run is called input-bound."""

FEWEST = 8
"""Steps a claim needs: the first of a run wait for loaders that only begin."""


@dataclass(frozen=True, slots=True)
class InputWait:
    """What a run waited for input. `steps` 0: the run has no steps, and `wall_ns` is that of whole 10 s windows."""

    run: str
    steps: int
    wait_ns: int
    wall_ns: int

    @property
    def share(self) -> float:
        return self.wait_ns / self.wall_ns

    @property
    def bound(self) -> bool:
        return self.share >= BOUND

    def sentence(self) -> str:
        said = f"{self.run}: input-bound, waits for input {self.share:.0%} of the time"
        if not self.steps:
            return said
        return f"{said}, {self.wait_ns / self.steps / 1e6:.1f} of {self.wall_ns / self.steps / 1e6:.1f} ms a step"


def input_waits(snapshot: Snapshot, scope: Scope) -> list[InputWait]:
    """A run each, those that waited most first.

    From the steps, where there are at least FEWEST settled ones: the wait of a step is its data_wait_ns, and at most
    what its devices stood idle where their executions were seen (watched_ns), because a wait that devices do not
    notice costs nothing. From op_10s for runs without steps: waits on host threads in the whole windows between the
    first and the last of a process.
    """
    found = {wait.run: wait for wait in (*_of_windows(snapshot, scope), *_of_steps(snapshot, scope))}
    return sorted(found.values(), key=lambda wait: (-wait.share, wait.run))


def _of_steps(snapshot: Snapshot, scope: Scope) -> list[InputWait]:
    condition, values = scope.where("s")
    query = f"""
        WITH names AS (SELECT run, max(run_name) AS run_name FROM processes WHERE run_name != '' GROUP BY run),
        settled AS (
            SELECT run, dur_ns,
                   CASE WHEN watched_ns > 0 THEN least(data_wait_ns, idle_ns * dur_ns / watched_ns)
                        ELSE data_wait_ns END AS wait_ns
            FROM step s WHERE {condition} AND dur_ns > 0 AND flags & {UNUSUAL | int(StepFlag.TRUNCATED)} = 0)
        SELECT coalesce(any_value(n.run_name), '') AS run, count(*) AS steps,
               sum(wait_ns)::BIGINT AS wait_ns, sum(dur_ns)::BIGINT AS wall_ns
        FROM settled s LEFT JOIN names n ON n.run = s.run
        GROUP BY s.run HAVING count(*) >= {FEWEST}"""  # noqa: S608 - values are bound
    return _ask(snapshot, scope, query, values, "step")


def _of_windows(snapshot: Snapshot, scope: Scope) -> list[InputWait]:
    condition, values = scope.where("o")
    query = f"""
        WITH mine AS (SELECT * FROM op_10s o WHERE {condition} AND device = 0),
        spans AS (SELECT process, min(t_ns) AS first, max(t_ns) AS last FROM mine GROUP BY process),
        inner_ AS (
            SELECT m.process, sum(CASE WHEN m.kind = {int(Kind.DATA_WAIT)} THEN m.sum_ns ELSE 0 END) AS wait_ns,
                   any_value(s.last - s.first - {WINDOW_NS}) AS wall_ns
            FROM mine m JOIN spans s ON s.process = m.process AND m.t_ns > s.first AND m.t_ns < s.last
            GROUP BY m.process)
        SELECT p.run_name AS run, 0 AS steps, sum(i.wait_ns)::BIGINT AS wait_ns, sum(i.wall_ns)::BIGINT AS wall_ns
        FROM inner_ i JOIN (SELECT process, max(run_name) AS run_name FROM processes GROUP BY process) p USING (process)
        WHERE p.run_name != '' GROUP BY p.run_name HAVING sum(i.wall_ns) > 0"""  # noqa: S608 - values are bound
    return _ask(snapshot, scope, query, values, "op_10s")


def _ask(snapshot: Snapshot, scope: Scope, query: str, values: list[str | int], table: str) -> list[InputWait]:
    with snapshot.duckdb([table, "processes", "hosts"], from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        return [InputWait(*row) for row in connection.sql(query, params=values).fetchall()]
