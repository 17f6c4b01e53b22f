"""tests/golden/*.toml: batches as a person would write them, queries, and the rows they must give.

A file says `zero` (wall clock when the counter stands at 0), what is sent (`[[send]]`: one device or host batch;
`drain = true` is the end of an epoch), and what is asked (`[[ask]]`: SQL over the committed tables and `segments`,
expected rows as text). Times and durations in microseconds of the host's counter; rows are [line, kind, op, start, dur]
or [..., step].
"""

from __future__ import annotations

import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from fleetscope.schema.tables import TABLES
from fleetscope.schema.vocabulary import Kind

CASES = sorted((Path(__file__).parents[2] / "golden").glob("*.toml"))


def send(bench: Any, hosts: dict[str, Any], batch: dict[str, Any], zero_ns: int) -> Any:
    name = batch.get("host", "h1")
    if name not in hosts:
        hosts[name] = bench.host(name, zero_ns=zero_ns)
    host = hosts[name]
    rows = batch.get("rows")
    begin, end = batch["from"] * 1000, batch["to"] * 1000
    columns = None
    if rows:
        columns = {
            "line": [row[0] for row in rows],
            "kind": [Kind[row[1].upper()] for row in rows],
            "op": [row[2] for row in rows],
            "start": [row[3] * 1000 for row in rows],
            "dur": [row[4] * 1000 for row in rows],
            "step": [row[5] if len(row) > 5 else -1 for row in rows],
            "program": batch.get("program", 1),
        }
    if "chip" in batch:
        return host.spans(batch["chip"], begin, end, columns)
    return host.host_spans(begin, end, columns)


def table_text(relation: duckdb.DuckDBPyRelation) -> str:
    lines = [" ".join(relation.columns)]
    lines += [" ".join("-" if value is None else str(value) for value in row) for row in relation.fetchall()]
    return "\n".join(lines)


@pytest.mark.golden
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden(bench: Any, path: Path) -> None:
    case = tomllib.loads(path.read_text())
    zero_ns = int(datetime.fromisoformat(case["zero"]).timestamp()) * 1_000_000_000
    hosts: dict[str, Any] = {}
    later: list[Any] = []
    for batch in case["send"]:
        if batch.get("drain"):
            bench.drain()
            continue
        numbered = send(bench, hosts, batch, zero_ns)
        if batch.get("late"):
            later.append(numbered)
        elif not batch.get("lost"):
            bench.send(*([numbered] * (2 if batch.get("twice") else 1)))
        if batch.get("release"):
            bench.send(*later)
    bench.drain()
    with duckdb.connect() as database:
        for name, spec in TABLES.items():
            found = bench.table(name)
            database.register(name, found if found.num_rows else spec.schema.empty_table())
        refs = [ref for manifest in bench.manifests() for ref in manifest.segments]
        database.register(
            "segments",
            pa.table(
                {
                    "file_of": [ref.table for ref in refs],
                    "date": [ref.partition.get("date") for ref in refs],
                    "hour": [ref.partition.get("hour") for ref in refs],
                    "rows": [ref.rows for ref in refs],
                }
            ),
        )
        database.execute("SET TimeZone = 'UTC'")
        for ask in case["ask"]:
            assert table_text(database.sql(ask["sql"])) == ask["rows"].strip(), ask["sql"]
