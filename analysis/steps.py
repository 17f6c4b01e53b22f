"""Steps and what their time went to."""

import pyarrow as pa

from fleetscope.analysis.scope import Scope
from fleetscope.sinks.lake.read import Snapshot


def step_table(snapshot: Snapshot, scope: Scope, limit: int = 50) -> pa.Table:
    """Newest steps first. Times in ns; device classes only where devices were observed (covered_ns)."""
    condition, values = scope.where("s")
    query = f"""
        SELECT coalesce(p.run_name, '') AS run, coalesce(h.name, '') AS host, s.rank, s.step, s.dur_ns AS step_time_ns,
               s.data_wait_ns, s.dispatch_ns, s.compile_ns, s.checkpoint_ns, s.compute_ns, s.collective_ns, s.copy_ns,
               s.covered_ns, s.executions, s.source, s.t_ns::VARCHAR AS began
        FROM step s LEFT JOIN processes p USING (process) LEFT JOIN hosts h ON h.host = s.host
        WHERE {condition} ORDER BY s.t_ns DESC, s.process LIMIT {int(limit)}"""  # noqa: S608 - values are bound
    with snapshot.duckdb(["step", "processes", "hosts"], from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        return connection.sql(query, params=values).to_arrow_table()
