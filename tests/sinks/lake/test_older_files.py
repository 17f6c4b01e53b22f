"""Lakes written before a table had all of its columns: read, folded, replaced and grown, with 0 for what is absent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import obstore.store
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from fleetscope.pipelines.coordinate.rounds import merge_rows
from fleetscope.schema.columns import is_later
from fleetscope.schema.tables import TABLES
from fleetscope.sinks.lake import encode
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.fold import fold_table, read_rows
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.sinks.lake.read import Snapshot
from fleetscope.sinks.lake.remote_store import RemoteStore
from fleetscope.sinks.lake.replace import replace_small
from fleetscope.sinks.lake.rounds import Round, commit_round
from fleetscope.sinks.lake.segment import write_segment
from fleetscope.sinks.lake.tables import LakeTable

pytestmark = pytest.mark.contract

GROWN = [name for name, spec in TABLES.items() if any(is_later(field) for field in spec.schema)]


@contextmanager
def _format_1() -> Iterator[None]:
    """Tables as the first format declared them, for what is written inside."""
    caches = (encode.stored_schema, encode._options, encode._leaf_paths)
    now = dict(TABLES)
    try:
        for name, spec in now.items():
            older = [field for field in spec.schema if not is_later(field)]
            TABLES[name] = replace(spec, schema=pa.schema(older))
        for cached in caches:
            cached.cache_clear()
        yield
    finally:
        TABLES.update(now)
        for cached in caches:
            cached.cache_clear()


def _commit(store: ObjectStore, parent: Manifest | None, **tables: pa.Table) -> Manifest:
    number = 1 if parent is None else parent.number + 1
    segments = []
    for index, (name, rows) in enumerate(tables.items()):
        segments += write_segment(store, name, rows, f"0-{number}-a-{index}")
    made = Manifest(0, number, 1, "a", "" if parent is None else parent.digest, number, (), tuple(segments))
    return Chain(store, 0).commit(made)


def _fold(store: ObjectStore, name: str, *manifests: Manifest) -> LakeTable:
    table = LakeTable(store, name)
    fold_table(table, {0: list(manifests)}, {}, merge_rows)
    return table


def test_every_table_that_has_grown_is_looked_at() -> None:
    assert {"device_10s", "step"} <= set(GROWN)


@pytest.mark.parametrize("remote", [False, True], ids=["folder", "obstore"])
@pytest.mark.parametrize("newer_file", [False, True], ids=["alone", "beside newer"])
def test_readers_take_zero(tmp_path: Any, make_rows: Any, remote: bool, newer_file: bool) -> None:
    (tmp_path / "lake").mkdir()
    store: ObjectStore = (
        RemoteStore.over(obstore.store.LocalStore(tmp_path / "lake"), str(tmp_path / "lake"))
        if remote
        else LocalFolder(tmp_path / "lake")
    )
    with _format_1():
        first = _commit(
            store,
            None,
            device_10s=make_rows("device_10s", 1, device=7, executions=3, weight=1),
            step=make_rows("step", 1, process=4, dur_ns=10, flags=8, source="declared"),
        )
    if newer_file:
        more = make_rows("device_10s", 1, device=7, executions=1, weight=1, queue_ns=11, run_ahead_max=2)
        later = make_rows("step", 1, process=4, queue_ns=5, confidence=900, source="inferred")
        _commit(store, first, device_10s=more, step=later)
    snapshot = Snapshot.open(store)
    (device,) = snapshot.table("device_10s").to_pylist()
    (step,) = snapshot.table("step").to_pylist()
    assert (device["device"], device["executions"]) == (7, 4 if newer_file else 3)
    assert (device["queue_ns"], device["run_ahead_max"], device["idle_unknown_ns"]) == (
        (11, 2, 0) if newer_file else (0, 0, 0)
    )
    assert (step["dur_ns"], step["flags"], step["queue_ns"], step["confidence"]) == (
        (10, 8, 5, 900) if newer_file else (10, 8, 0, 0)
    )
    with snapshot.duckdb(["device_10s"]) as connection:
        found = connection.sql("SELECT sum(queue_ns), max(t_ns % 10) FROM device_10s WHERE device = 7")
        assert found.fetchall() == [(11 if newer_file else 0, 0)]


def test_a_fold_merges_files_of_both_formats_and_the_table_grows(folder: LocalFolder, make_rows: Any) -> None:
    with _format_1():
        first = _commit(folder, None, device_10s=make_rows("device_10s", 1, device=7, executions=3))
        _fold(folder, "device_10s", first)
        held = DeltaTable(folder.location("tables/device_10s"))
        assert "queue_ns" not in {field.name for field in held.schema().fields}
        second = _commit(folder, first, device_10s=make_rows("device_10s", 1, device=7, executions=1))
    third = _commit(folder, second, device_10s=make_rows("device_10s", 1, device=7, executions=1, queue_ns=9))
    table = _fold(folder, "device_10s", first, second, third)
    assert len(table.live()) == 2
    newest = read_rows(folder, "device_10s", [item.path for item in table.live()]).to_pylist()
    assert sorted((row["executions"], row["queue_ns"]) for row in newest) == [(2, 9), (3, 0)]
    held = DeltaTable(folder.location("tables/device_10s"))
    names = [field.name for field in held.schema().fields]
    assert set(TABLES["device_10s"].schema.names) < set(names)
    assert len(names) == len(set(names))
    before = table.version
    assert table.refresh() == before, "it grows once"


def test_a_replace_merges_files_of_both_formats(folder: LocalFolder, make_rows: Any) -> None:
    with _format_1():
        first = _commit(folder, None, step=make_rows("step", 1, process=4, dur_ns=3, source="declared"))
        _fold(folder, "step", first)
    second = _commit(folder, first, step=make_rows("step", 1, process=4, dur_ns=4, d2h_ns=6, source="declared"))
    table = _fold(folder, "step", first, second)
    made = replace_small(table, merge_rows, small_files=2)
    assert (made.files, made.rows) == (2, 1)
    assert commit_round(folder, Round(1, 1, "test", {"step": table.version}, {0: 2}))
    (row,) = Snapshot.open(folder).table("step").to_pylist()
    assert (row["dur_ns"], row["d2h_ns"], row["idle_ns"]) == (7, 6, 0)


def test_two_coordinators_grow_a_table_once(folder: LocalFolder, make_rows: Any) -> None:
    with _format_1():
        first = _commit(folder, None, step=make_rows("step", 1, process=4, source="declared"))
        tables = [_fold(folder, "step", first), _fold(folder, "step", first)]
    for table in tables:
        table.refresh()
    second = _commit(folder, first, step=make_rows("step", 1, process=5, d2h_ns=6, source="declared"))
    for table in tables:
        fold_table(table, {0: [first, second]}, {}, merge_rows)
    assert len(tables[0].live()) == 2
    names = [field.name for field in DeltaTable(folder.location("tables/step")).schema().fields]
    assert len(names) == len(set(names))
