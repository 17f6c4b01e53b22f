"""Laws of the merge on rows made up at random, for every rollup table: order and grouping never show, bit for bit."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.pipelines.merge import merge
from fleetscope.schema.tables import TABLES

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
ROLLUPS = ["op_10s", "device_10s", "step", "completeness"]


def _values(name: str, field: pa.Field) -> st.SearchStrategy[Any]:
    if field.name in TABLES[name].key:
        return st.integers(0, 2)
    if field.name == "source":
        return st.sampled_from(["declared", "inferred"])
    if field.name == "err_ns":
        return st.integers(-1, 3)
    if pa.types.is_uint32(field.type):
        return st.integers(0, 15)
    if pa.types.is_int32(field.type):
        return st.integers(-1, 100)
    return INT64


@st.composite
def _rows(draw: st.DrawFn, name: str) -> pa.Table:
    schema = TABLES[name].schema
    plain = [field for field in schema if not pa.types.is_list(field.type)]
    rows = draw(st.lists(st.fixed_dictionaries({field.name: _values(name, field) for field in plain}), max_size=6))
    for row in rows:
        if name == "op_10s":
            buckets = draw(st.dictionaries(st.sampled_from([-32768, -1, 0, 5, 2015]), st.integers(1, 9), max_size=3))
            row["count"] = sum(buckets.values())
            row["min_ns"] = draw(st.integers(0, 99)) if buckets else 0
            row["max_ns"] = draw(st.integers(100, 200)) if buckets else 0
            row["hist_index"], row["hist_count"] = sorted(buckets), [buckets[index] for index in sorted(buckets)]
    return pa.Table.from_pylist(rows, schema=schema)


@pytest.mark.property
@pytest.mark.parametrize("name", ROLLUPS)
@given(data=st.data())
@settings(max_examples=35)
def test_associative_and_commutative(name: str, data: st.DataObject) -> None:
    a, b, c = (data.draw(_rows(name)) for _ in range(3))
    whole = merge(name, [a, b, c])
    assert merge(name, [merge(name, [a, b]), c]).equals(whole)
    assert merge(name, [a, merge(name, [b, c])]).equals(whole)
    assert merge(name, [c, b, a]).equals(whole)
    assert merge(name, [whole]).equals(whole)
    assert merge(name, [whole, whole.slice(0, 0)]).equals(whole)
    keys = list(zip(*(whole.column(key).to_pylist() for key in TABLES[name].key), strict=True))
    assert keys == sorted(set(keys))


@pytest.mark.property
@given(st.data())
@settings(max_examples=35)
def test_ops_merge_as_python_adds(data: st.DataObject) -> None:
    tables = [data.draw(_rows("op_10s")) for _ in range(2)]
    expected: dict[tuple[int, ...], dict[str, Any]] = {}
    for row in (row for table in tables for row in table.to_pylist()):
        into = expected.setdefault(tuple(row[key] for key in TABLES["op_10s"].key), {"hist": {}, "min": None, "max": 0})
        for column in ("count", "sum_ns", "duty_q30", "exec_sq", "sumsq_hi"):
            # Sums wrap at 64 bits: only that keeps the order of adding invisible.
            into[column] = (into.get(column, 0) + row[column] + (1 << 63)) % (1 << 64) - (1 << 63)
        for index, count in zip(row["hist_index"], row["hist_count"], strict=True):
            into["hist"][index] = into["hist"].get(index, 0) + count
        if row["count"]:
            into["min"] = min(row["min_ns"], row["min_ns"] if into["min"] is None else into["min"])
            into["max"] = max(row["max_ns"], into["max"])
    merged = merge("op_10s", tables).to_pylist()
    assert len(merged) == len(expected)
    for row in merged:
        into = expected[tuple(row[key] for key in TABLES["op_10s"].key)]
        assert {name: row[name] for name in ("count", "sum_ns", "duty_q30", "exec_sq", "sumsq_hi")} == {
            name: into[name] for name in ("count", "sum_ns", "duty_q30", "exec_sq", "sumsq_hi")
        }
        assert dict(zip(row["hist_index"], row["hist_count"], strict=True)) == into["hist"]
        assert (row["min_ns"], row["max_ns"]) == (into["min"] or 0, into["max"])


def _step(**known: Any) -> dict[str, Any]:
    row = {field.name: 0 for field in TABLES["step"].schema}
    return {**row, "attempt": 5, "process": 6, "step": 7, "t_ns": 8, "rank": -1, "source": "inferred", **known}


@pytest.mark.unit
def test_a_step_is_put_together_from_its_host_and_its_devices() -> None:
    host = _step(dur_ns=100, run=-4, rank=3, source="declared", data_wait_ns=10, flags=1)
    device = _step(compute_ns=60, covered_ns=80, executions=1, program=-2, flags=2)
    tables = [pa.Table.from_pylist([row], schema=TABLES["step"].schema) for row in (host, device)]
    (row,) = merge("step", tables).to_pylist()
    assert row == _step(
        dur_ns=100,
        run=-4,
        rank=3,
        source="declared",
        data_wait_ns=10,
        flags=3,
        compute_ns=60,
        covered_ns=80,
        executions=1,
        program=-2,
    )


@pytest.mark.unit
def test_an_unknown_error_is_the_worst() -> None:
    schema = TABLES["completeness"].schema
    rows = [dict.fromkeys(schema.names, 1) | {"err_ns": err} for err in (7, -1, 9)]
    (row,) = merge("completeness", [pa.Table.from_pylist(rows, schema=schema)]).to_pylist()
    assert (row["err_ns"], row["events"]) == (-1, 3)


@pytest.mark.unit
@pytest.mark.parametrize("name", ROLLUPS)
def test_nothing_merges_to_nothing(name: str) -> None:
    assert merge(name, []).equals(TABLES[name].schema.empty_table())
