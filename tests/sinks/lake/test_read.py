"""Readers: one moment of all tables, names joined late, repeated keys merged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

from fleetscope.pipelines.coordinate.rounds import merge_rows
from fleetscope.schema.errors import ManifestInvalid, SegmentInvalid, VersionUnknown
from fleetscope.schema.tables import OP_10S, TABLES
from fleetscope.schema.vocabulary import Kind, SpanFlag
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.fold import fold_table
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.sinks.lake.read import Snapshot
from fleetscope.sinks.lake.rounds import Round, commit_round, newest_round, round_key
from fleetscope.sinks.lake.segment import write_segment
from fleetscope.sinks.lake.tables import LakeTable

SECOND_NS = 1_000_000_000


def _commit(store: ObjectStore, chain: int, parent: Manifest | None, **tables: pa.Table) -> Manifest:
    number = 1 if parent is None else parent.number + 1
    segments = []
    for index, (name, rows) in enumerate(tables.items()):
        segments += write_segment(store, name, rows, f"{chain}-{number}-a-{index}")
    made = Manifest(chain, number, 1, "a", "" if parent is None else parent.digest, number, (), tuple(segments))
    return Chain(store, chain).commit(made)


def _publish(store: ObjectStore, number: int, *manifests: Manifest) -> Round:
    chains: dict[int, list[Manifest]] = {}
    for manifest in manifests:
        chains.setdefault(manifest.chain, []).append(manifest)
    previous = newest_round(store)
    floor = {} if previous is None else previous.folded
    versions = {}
    for name in TABLES:
        table = LakeTable(store, name)
        fold_table(table, chains, floor, merge_rows)
        if table.version >= 0:
            versions[name] = table.version
    folded = {**floor, **{chain: items[-1].number for chain, items in chains.items()}}
    record = Round(number, number, "test", versions, folded)
    assert commit_round(store, record)
    return record


@pytest.mark.contract
def test_an_empty_lake_is_an_empty_snapshot(store: ObjectStore) -> None:
    snapshot = Snapshot.open(store)
    assert (snapshot.round, snapshot.tail, snapshot.now_ns) == (None, (), 0)
    for name, spec in TABLES.items():
        rows = snapshot.table(name)
        assert rows.num_rows == 0
        assert rows.schema.names == spec.schema.names
    with snapshot.duckdb(threads=1) as connection:
        assert connection.sql("SELECT count(*) FROM spans_named").fetchall() == [(0,)]
        assert connection.sql("SELECT count(*) FROM ledger_now").fetchall() == [(0,)]


@pytest.mark.contract
def test_a_committed_epoch_is_visible_at_once_and_only_once_after_its_fold(folder: LocalFolder, make_rows: Any) -> None:
    first = _commit(folder, 0, None, spans=make_rows("spans", 2, seq=[1, 2]))
    assert Snapshot.open(folder).table("spans").column("seq").to_pylist() == [1, 2]
    assert Snapshot.open(folder, include_tail=False).table("spans").num_rows == 0
    _publish(folder, 1, first)
    second = _commit(folder, 0, first, spans=make_rows("spans", 1, seq=[3]))
    assert sorted(Snapshot.open(folder).table("spans").column("seq").to_pylist()) == [1, 2, 3]
    assert Snapshot.open(folder, include_tail=False).table("spans").num_rows == 2
    # a fold that has not made its round yet: the table is ahead of the round, the reader is not
    fold_table(LakeTable(folder, "spans"), {0: [second]}, {0: 1}, merge_rows)
    assert sorted(Snapshot.open(folder).table("spans").column("seq").to_pylist()) == [1, 2, 3]
    assert Snapshot.open(folder, include_tail=False).table("spans").num_rows == 2


@pytest.mark.contract
def test_sql_over_an_object_store_sees_the_same_rows(store: ObjectStore, make_rows: Any, noon_ns: int) -> None:
    _commit(store, 0, None, spans=make_rows("spans", 3, seq=[1, 2, 3], dur_ns=[10, 20, 30], child_ns=[1, 2, 3]))
    snapshot = Snapshot.open(store)
    with snapshot.duckdb(threads=1) as connection:
        assert connection.sql("SELECT sum(self_ns)::BIGINT, min(t_ns) FROM spans WHERE seq > 1").fetchall() == [
            (45, noon_ns + 1)
        ]
    assert snapshot.table("spans", ["seq"], pc.field("dur_ns") >= 20).column("seq").to_pylist() == [2, 3]


@pytest.mark.unit
def test_time_bounds_leave_out_whole_files(folder: LocalFolder, make_rows: Any, noon_ns: int) -> None:
    parent = None
    for minute in range(4):
        times = noon_ns + minute * 60 * SECOND_NS + np.arange(5)
        parent = _commit(folder, 0, parent, spans=make_rows("spans", 5, t_ns=times, seq=np.arange(5) + 5 * minute))
    snapshot = Snapshot.open(folder)
    bounds = {"from_ns": noon_ns + 60 * SECOND_NS + 2, "to_ns": noon_ns + 120 * SECOND_NS + 1}
    assert len(snapshot.files("spans", **bounds)) == 2
    assert snapshot.table("spans", **bounds).column("seq").to_pylist() == [7, 8, 9, 10]
    assert parent is not None
    _publish(folder, 1, *Chain(folder, 0).after(0))
    folded = Snapshot.open(folder)
    assert len(folded.files("spans", **bounds)) == 2
    assert sorted(folded.table("spans", **bounds).column("seq").to_pylist()) == [7, 8, 9, 10]


@pytest.mark.unit
def test_rollup_rows_of_a_key_are_one_row_to_a_reader(folder: LocalFolder, make_rows: Any, noon_ns: int) -> None:
    key = {"t_ns": [noon_ns] * 2, "op": [1, 2], "weight": 1}
    first = _commit(
        folder, 0, None,
        op_10s=make_rows("op_10s", 2, count=[1, 5], sum_ns=[10, 50], child_ns=[4, 0], min_ns=[10, 8], max_ns=[10, 12],
                         hist_index=[[106], [96, 114]], hist_count=[[1], [2, 3]], **key),
        device_10s=make_rows("device_10s", 1, t_ns=[noon_ns], busy_ns=7, err_ns=40),
    )  # fmt: skip
    _publish(folder, 1, first)
    _commit(
        folder, 0, first,
        op_10s=make_rows("op_10s", 2, count=[2, 1], sum_ns=[30, 9], child_ns=[1, 0], min_ns=[9, 9], max_ns=[21, 9],
                         hist_index=[[101, 106], [-32768]], hist_count=[[1, 1], [1]], **key),
        device_10s=make_rows("device_10s", 1, t_ns=[noon_ns], busy_ns=5, err_ns=90),
    )  # fmt: skip
    rows = Snapshot.open(folder).table("op_10s").sort_by("op")
    assert rows.schema.equals(OP_10S)
    found = {name: rows.column(name).to_pylist() for name in ("count", "sum_ns", "child_ns", "min_ns", "max_ns")}
    assert found == {
        "count": [3, 6],
        "sum_ns": [40, 59],
        "child_ns": [5, 0],
        "min_ns": [9, 8],
        "max_ns": [21, 12],
    }
    assert rows.column("hist_index").to_pylist() == [[101, 106], [-32768, 96, 114]]
    assert rows.column("hist_count").to_pylist() == [[1, 2], [1, 2, 3]]
    devices = Snapshot.open(folder).table("device_10s", ["busy_ns", "err_ns"])
    assert devices.to_pylist() == [{"busy_ns": 12, "err_ns": 90}]
    with Snapshot.open(folder).duckdb(threads=1) as connection:
        assert connection.sql("SELECT op, self_ns FROM op_10s ORDER BY op").fetchall() == [(1, 35), (2, 59)]


@pytest.mark.unit
def test_an_unknown_error_bound_stays_unknown(folder: LocalFolder, make_rows: Any, noon_ns: int) -> None:
    first = _commit(folder, 0, None, device_10s=make_rows("device_10s", 1, t_ns=[noon_ns], err_ns=-1))
    _commit(folder, 0, first, device_10s=make_rows("device_10s", 1, t_ns=[noon_ns], err_ns=90))
    assert Snapshot.open(folder).table("device_10s").column("err_ns").to_pylist() == [-1]


@pytest.mark.unit
def test_the_newest_row_of_a_dimension_key_wins(folder: LocalFolder, make_rows: Any) -> None:
    first = _commit(folder, 0, None, hosts=make_rows("hosts", 2, host=[1, 2], name=["a", "b"], seen_ns=[9, 9]))
    _publish(folder, 1, first)
    _commit(folder, 0, first, hosts=make_rows("hosts", 2, host=[1, 2], name=["newer", "older"], seen_ns=[10, 8]))
    snapshot = Snapshot.open(folder)
    rows = snapshot.table("hosts").sort_by("host")
    assert rows.column("name").to_pylist() == ["newer", "b"]
    with snapshot.duckdb(threads=1) as connection:
        assert connection.sql("SELECT name FROM hosts ORDER BY host").fetchall() == [("newer",), ("b",)]


@pytest.mark.unit
def test_a_key_announced_twice_in_one_epoch_is_one_row(folder: LocalFolder, make_rows: Any) -> None:
    _commit(folder, 0, None, hosts=make_rows("hosts", 3, host=[1, 1, 1], name=["a", "c", "b"], seen_ns=[1, 3, 2]))
    with Snapshot.open(folder).duckdb(threads=1) as connection:
        assert connection.sql("SELECT name FROM hosts").fetchall() == [("c",)]


@pytest.mark.unit
def test_names_are_joined_late(folder: LocalFolder, make_rows: Any) -> None:
    spans = make_rows(
        "spans", 4,
        host=1, process=[2, 2, 2, 2], device=[3, 0, 3, 3], seq=[1, 2, 3, 4], dur_ns=10,
        kind=[Kind.COMPUTE, Kind.HOST, Kind.MODULE, Kind.COMPUTE],
        program=[50, 60, 50, 777], op=[4, 0, 0, 4],
        flags=[0, 0, 0, int(SpanFlag.PROVISIONAL_PROGRAM)],
    )  # fmt: skip
    first = _commit(folder, 0, None, spans=spans)
    with Snapshot.open(folder).duckdb(threads=1) as connection:
        assert connection.sql("SELECT name, category FROM spans_named").fetchall() == [(None, None)] * 4
    second = _commit(
        folder, 0, first,
        hosts=make_rows("hosts", 1, host=1, name="node-1"),
        processes=make_rows("processes", 1, process=2, run=9, run_name="train", rank=3),
        devices=make_rows("devices", 1, device=3, key="chip-3", sku="TPU v4"),
        names=make_rows("names", 1, program=60, name="data/load"),
        program_loads=make_rows("program_loads", 1, process=2, program_id=777, program=50),
        programs=make_rows("programs", 1, program=50, module="jit_step"),
        ops=make_rows("ops", 2, program=50, op=[4, 0], name=["fusion.4", "param"], category=["loop fusion", "p"],
                      source_file="a.py", source_line=12),
    )  # fmt: skip
    assert second.number == 2
    with Snapshot.open(folder).duckdb(threads=1) as connection:
        found = connection.sql(
            "SELECT name, category, host_name, run_name, rank, sku, source_line FROM spans_named ORDER BY seq"
        ).fetchall()
    assert found == [
        ("fusion.4", "loop fusion", "node-1", "train", 3, "TPU v4", 12),
        ("data/load", None, "node-1", "train", 3, None, None),
        ("jit_step", None, "node-1", "train", 3, "TPU v4", None),
        ("fusion.4", "loop fusion", "node-1", "train", 3, "TPU v4", 12),
    ]


@pytest.mark.unit
def test_a_provisional_op_is_found_by_its_name(folder: LocalFolder, make_rows: Any) -> None:
    """Ordinals of a provisional table are its own: op 0 of it is op 7 of the program."""
    early = {"process": 2, "program": 777, "op": 0, "kind": Kind.COMPUTE}
    _commit(
        folder, 0, None,
        spans=make_rows("spans", 2, seq=[1, 2], flags=[int(SpanFlag.PROVISIONAL_PROGRAM), 0],
                        **(early | {"program": [777, 50], "op": [0, 7]})),
        op_10s=make_rows("op_10s", 1, **early),
        program_loads=make_rows("program_loads", 1, process=2, program_id=777, program=50),
        ops=make_rows("ops", 3, program=[777, 50, 50], op=[0, 0, 7], name=["dot.9", "param", "dot.9"],
                      category=["", "parameter", "convolution"]),
    )  # fmt: skip
    with Snapshot.open(folder).duckdb(threads=1) as connection:
        for view in ("spans_named", "ops_named"):
            found = connection.sql(f"SELECT DISTINCT program, op, name, category FROM {view}").fetchall()
            assert found == [(50, 7, "dot.9", "convolution")]


@pytest.mark.unit
def test_flags_keep_their_highest_bit(folder: LocalFolder, make_rows: Any) -> None:
    _commit(folder, 0, None, spans=make_rows("spans", 2, flags=[2**31, 1]))
    assert Snapshot.open(folder).table("spans").column("flags").to_pylist() == [2**31, 1]


@pytest.mark.unit
def test_a_missing_file_is_a_numbered_error(folder: LocalFolder, make_rows: Any) -> None:
    made = _commit(folder, 0, None, spans=make_rows("spans", 1))
    snapshot = Snapshot.open(folder)
    Path(folder.location(made.segments[0].key)).unlink()
    with pytest.raises(SegmentInvalid, match="FS5021: table spans"):
        snapshot.table("spans")


@pytest.mark.contract
def test_rounds_are_created_once(store: ObjectStore) -> None:
    record = Round(1, 5, "me", {"spans": 3}, {0: 7})
    assert newest_round(store) is None
    assert commit_round(store, record)
    assert commit_round(store, record)  # its own maker finds it made
    assert not commit_round(store, replace(record, made_by="other"))
    assert commit_round(store, replace(record, number=10))
    assert newest_round(store) == replace(record, number=10)
    store.put(round_key(11), b"{")
    with pytest.raises(ManifestInvalid, match="FS5011: rounds/000000000011"):
        newest_round(store)
    store.put(round_key(11), b'{"version":2}')
    with pytest.raises(VersionUnknown):
        newest_round(store)


@pytest.mark.unit
def test_a_lake_may_lie_in_any_folder(tmp_path: Path, make_rows: Any) -> None:
    odd = LocalFolder(tmp_path / "it's [a] *lake*, isn't it?" / "env=prod")
    first = _commit(odd, 0, None, spans=make_rows("spans", 2, seq=[1, 2]), hosts=make_rows("hosts", 1, host=5))
    _publish(odd, 1, first)
    _commit(odd, 0, first, spans=make_rows("spans", 1, seq=[3]))
    with Snapshot.open(odd).duckdb(threads=1) as connection:
        assert connection.sql("SELECT seq, date, hour FROM spans ORDER BY seq").fetchall() == [
            (seq, "2025-06-15", "12") for seq in (1, 2, 3)
        ]


@pytest.mark.contract
def test_the_outside_world_reads_the_tables_as_delta(folder: LocalFolder, make_rows: Any, noon_ns: int) -> None:
    times = [noon_ns, noon_ns + 3600 * SECOND_NS]
    first = _commit(folder, 0, None, spans=make_rows("spans", 2, t_ns=times, seq=[1, 2], flags=[2**31, 0], host=[5, 6]))
    _publish(folder, 1, first)
    url = folder.location_url("tables/spans")
    rows = DeltaTable(url).to_pyarrow_table(filters=[("hour", "=", "13"), ("t_ns", ">", noon_ns + 1)])
    assert rows.select(["seq", "host", "kind", "date"]).to_pylist() == [
        {"seq": 2, "host": 6, "kind": 0, "date": "2025-06-15"}
    ]
    everything = QueryBuilder().register("spans", DeltaTable(url)).execute("SELECT seq, flags FROM spans ORDER BY seq")
    assert pa.table(everything.read_all()).to_pylist() == [{"seq": 1, "flags": -(2**31)}, {"seq": 2, "flags": 0}]
    assert DeltaTable(url).schema().fields[0].metadata["unit"] == "ns"
