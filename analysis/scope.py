"""The rows a tool looks at, and the SQL that says so."""

from dataclasses import dataclass

from fleetscope.schema.vocabulary import DEVICE_WORK, Kind, StepFlag

# Step, module and host spans enclose ops; a container's instants belong to what runs inside it (schema.vocabulary).
WORK_KINDS = f"({', '.join(str(int(kind)) for kind in sorted(DEVICE_WORK - {Kind.CONTAINER}))})"

UNUSUAL = int(StepFlag.FIRST | StepFlag.AFTER_COMPILE | StepFlag.EVAL | StepFlag.MISTIMED)
"""Steps whose time says nothing of the steps to come."""

SETTLED_SHARE = 0.95
"""MFU is given where the FLOPs of at least this share of op time are known (DESIGN 3.8)."""

_OF_RUN = ".process IN (SELECT process FROM processes WHERE run_name = ? OR attempt_name = ?)"
_OF_HOST = ".host IN (SELECT host FROM hosts WHERE name = ?)"


def host_name(host_id: str, hosts: str = "h") -> str:
    """SQL of a host's name; its id (as `query` takes it) where the announcement was lost."""
    return f"coalesce(nullif({hosts}.name, ''), '#' || {host_id}::VARCHAR)"


@dataclass(frozen=True, slots=True)
class Scope:
    """Filters of a query; None: everything. Times are fleet ns, half-open. `run` names a run or one attempt of it."""

    run: str | None = None
    host: str | None = None
    from_ns: int | None = None
    to_ns: int | None = None

    @property
    def timed(self) -> bool:
        """Whether it has a bound in time."""
        return self.from_ns is not None or self.to_ns is not None

    def where(self, alias: str, time: str = "t_ns", *, by_run: bool = True) -> tuple[str, list[str | int]]:
        """(condition, parameters) for a table with columns `time`, `process` and `host`, called `alias` in the query.

        `by_run` False: for rows of a host's agent, whose process is of no run.
        """
        parts: list[str] = ["TRUE"]
        values: list[str | int] = []
        if self.from_ns is not None:
            parts.append(f"{alias}.{time} >= ?")
            values.append(self.from_ns)
        if self.to_ns is not None:
            parts.append(f"{alias}.{time} < ?")
            values.append(self.to_ns)
        if self.run is not None and by_run:
            parts.append(alias + _OF_RUN)
            values += [self.run, self.run]
        if self.host is not None:
            parts.append(alias + _OF_HOST)
            values.append(self.host)
        return " AND ".join(parts), values
