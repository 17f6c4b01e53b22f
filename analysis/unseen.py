"""Ops that run for longer than any window: no span of theirs exists, so they are told by what is missing.

A program's executions took a time that is known (PJRT shim). What windows found its ops to take is less than that, by
about the length of the longest window in each execution: then an op that runs so long is there, and it is one of those
its table lists in the entry computation and nobody ever saw. No gap between ops is that long, but many of them may add
up to it, so a tenth of the time has to be missing as well.
"""

from dataclasses import dataclass
from typing import Any

import duckdb

from fleetscope.analysis import identity
from fleetscope.analysis.calibrate import Exact, total_ns
from fleetscope.analysis.estimate import FEWEST, Q30, UNOBSERVABLE, Estimate, joined, mean, unknown
from fleetscope.analysis.sampling import Process, Row, Sampled
from fleetscope.analysis.scope import WORK_KINDS, host_name
from fleetscope.schema.vocabulary import Kind

MISSING_SHARE = 0.1
"""Of the time of a program's executions."""

LONG_SHARE = 0.75
"""Of the longest window must be missing in each execution: what was seen is an estimate, and from there on an op counts
as unobservable when some of its spans are seen (OP_10S.near_q30)."""

NEGLIGIBLE = 0.01
"""An op with less of its program's FLOPs and less of its bytes is not the one that takes a tenth of its time."""

NO_WORK = (
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "add-dependency", "partition-id",
    "replica-id", "domain", "opt-barrier",
)  # fmt: skip
"""Instructions of an entry computation that no device runs, so that no window ever shows them."""

_WAITS = f"({int(Kind.COLLECTIVE)}, {int(Kind.INFEED)}, {int(Kind.OUTFEED)})"
"""Kinds whose time is that of others: neither FLOPs nor bytes bound it."""

TABLES = ("op_10s", "device_10s", "windows", "processes", "hosts", *identity.TABLES)
"""What a connection must have."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """An op of a process that no window can show."""

    process: int
    about: dict[str, Any]
    """run, host, rank, op, category, flops, bytes_hbm, module, source, op_name, shape, program, ordinal."""
    missing_ratio: float
    """At least so much of the time of the program's executions no op explains that was seen."""
    share_most: float
    """At most so much of the device time of the process is the op's: all that is missing."""
    windows: int

    @property
    def estimate(self) -> Estimate:
        return unknown(self.windows, UNOBSERVABLE)


def unseen(connection: duckdb.DuckDBPyConnection, of: Sampled, condition: str, values: list[str | int]) -> list[Unseen]:
    """Of the scope `condition` (alias s), those that may take most first.

    Empty where executions were not counted by a shim, or an op table is not there: then nothing says that time is
    missing, or nothing whose it is.
    """
    found: list[Unseen] = []
    suspects: dict[int, dict[int, float]] = {}
    processes = of.by_process()
    longest_ns = _longest_ns(connection, condition, values)
    for number, process in processes.items():
        if process.exact and process.windows >= FEWEST:
            missing = {program: missing_ratio(process, program, longest_ns.get(number, 0)) for program in process.exact}
            suspects[number] = {program: ratio for program, ratio in missing.items() if ratio}
    programs = sorted({program for mine in suspects.values() for program in mine})
    if not programs:
        return []
    entries = _never_seen(connection, programs, condition, values)
    who = _who(connection, [number for number, mine in suspects.items() if mine])
    for number, mine in sorted(suspects.items()):
        process = processes[number]
        for program, ratio in mine.items():
            most = ratio * process.exact[program].time_ns / process.watched_ns
            found += [
                Unseen(number, {**who.get(number, _NOBODY), **about}, ratio, most, process.windows)
                for about in entries.get(program, ())
            ]
    return sorted(found, key=lambda op: -op.share_most)


def missing_ratio(process: Process, program: int, longest_ns: int) -> float:
    """Share of the time of a program's executions that no op explains, if it tells of an op longer than the windows;
    else 0. Missing is what the upper end of what was seen leaves."""
    exact = process.exact[program]
    met = process.windows * exact.time_ns / process.watched_ns if process.watched_ns else 0.0
    if not exact.executions or longest_ns <= 0 or met < FEWEST:
        return 0.0
    missing_ns = exact.time_ns - _most_seen_ns(process, process.programs.get(program), exact)
    long_enough = missing_ns >= LONG_SHARE * longest_ns * exact.executions
    return missing_ns / exact.time_ns if long_enough and missing_ns >= MISSING_SHARE * exact.time_ns else 0.0


def _most_seen_ns(process: Process, row: Row | None, exact: Exact) -> float:
    """Upper end of the ns in ops of a program over all its executions."""
    if row is None:
        return 0.0
    calibrated = total_ns(row, row, exact)
    if calibrated.known:
        return calibrated.high
    alone = mean(row["duty_q30"], joined(row["duty_sq_hi"], row["duty_sq_lo"]), process.windows)
    return alone.high / Q30 * process.watched_ns


def _longest_ns(connection: duckdb.DuckDBPyConnection, condition: str, values: list[str | int]) -> dict[int, int]:
    """Process -> length of its longest window."""
    query = f"SELECT process, max(length_ns) FROM windows s WHERE {condition} GROUP BY process"  # noqa: S608 - bound
    return {process: int(length) for process, length in connection.sql(query, params=values).fetchall()}


_NOBODY: dict[str, Any] = {"run": "", "host": None, "rank": None}


def _who(connection: duckdb.DuckDBPyConnection, processes: list[int]) -> dict[int, dict[str, Any]]:
    """Process -> run, host, rank."""
    query = f"""SELECT p.process, coalesce(p.run_name, '') AS run, {host_name("p.host")} AS host, p.rank
        FROM processes p LEFT JOIN hosts h ON h.host = p.host
        WHERE list_contains(?::BIGINT[], p.process)"""  # noqa: S608 - values are bound
    rows = connection.sql(query, params=[processes]).to_arrow_table().to_pylist()
    return {row.pop("process"): row for row in rows}


def _never_seen(
    connection: duckdb.DuckDBPyConnection, programs: list[int], condition: str, values: list[str | int]
) -> dict[int, list[dict[str, Any]]]:
    """Program -> entry ops that work, are not negligible, and of which no process of the scope has a span."""
    silent = ", ".join(f"'{opcode}'" for opcode in NO_WORK)
    query = f"""
        WITH {identity.OPS},
        seen AS (
            SELECT DISTINCT {identity.PROGRAM} AS program, {identity.OP} AS op
            FROM op_10s s {identity.JOIN} WHERE {condition} AND s.kind != {int(Kind.MODULE)}),
        entries AS (
            SELECT *, flops::DOUBLE / nullif(sum(flops) OVER (PARTITION BY program), 0) AS of_flops,
                   bytes_accessed::DOUBLE / nullif(sum(bytes_accessed) OVER (PARTITION BY program), 0) AS of_bytes
            FROM ops WHERE entry AND list_contains(?::BIGINT[], program) AND opcode NOT IN ({silent})
                 AND (kind IN {WORK_KINDS} OR kind = {int(Kind.CONTAINER)}))
        SELECT o.name AS op, nullif(o.category, '') AS category, o.flops, o.bytes_hbm, {identity.ABOUT}, o.program,
               o.op AS ordinal
        FROM entries o LEFT JOIN programs m ON m.program = o.program
             ANTI JOIN seen ON seen.program = o.program AND seen.op = o.op
        WHERE o.kind IN {_WAITS} OR o.flops IS NULL OR o.bytes_accessed IS NULL
              OR greatest(coalesce(o.of_flops, 0), coalesce(o.of_bytes, 0)) >= {NEGLIGIBLE}
        ORDER BY o.program, o.op"""  # noqa: S608 - values are bound
    found: dict[int, list[dict[str, Any]]] = {}
    for row in connection.sql(query, params=[*values, programs]).to_arrow_table().to_pylist():
        found.setdefault(row["program"], []).append(row)
    return found
