"""The rows a tool looks at, and the SQL that says so."""

from dataclasses import dataclass

# Step, module and host spans enclose ops; a container's instants belong to what runs inside it (schema.vocabulary).
WORK_KINDS = "(0, 3, 4, 5, 6, 7)"

_OF_RUN = ".process IN (SELECT process FROM processes WHERE run_name = ? OR attempt_name = ?)"
_OF_HOST = ".host IN (SELECT host FROM hosts WHERE name = ?)"


@dataclass(frozen=True, slots=True)
class Scope:
    """Filters of a query; None: everything. Times are fleet ns, half-open. `run` names a run or one attempt of it."""

    run: str | None = None
    host: str | None = None
    from_ns: int | None = None
    to_ns: int | None = None

    def where(self, alias: str, time: str = "t_ns") -> tuple[str, list[str | int]]:
        """(condition, parameters) for a table with columns `time` and `process`, called `alias` in the query."""
        parts: list[str] = ["TRUE"]
        values: list[str | int] = []
        if self.from_ns is not None:
            parts.append(f"{alias}.{time} >= ?")
            values.append(self.from_ns)
        if self.to_ns is not None:
            parts.append(f"{alias}.{time} < ?")
            values.append(self.to_ns)
        if self.run is not None:
            parts.append(alias + _OF_RUN)
            values += [self.run, self.run]
        if self.host is not None:
            parts.append(alias + _OF_HOST)
            values.append(self.host)
        return " AND ".join(parts), values
