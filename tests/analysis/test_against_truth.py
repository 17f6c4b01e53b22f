"""What the tools say of a simulated fleet, against what it did (agents/simulated/truth.py)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from fleetscope.analysis.devices import device_table
from fleetscope.analysis.inventory import inventory
from fleetscope.analysis.ledger import balance, ledger_table
from fleetscope.analysis.names import unknown_names
from fleetscope.analysis.ops import op_table
from fleetscope.analysis.runs import run_table
from fleetscope.analysis.scope import Scope
from fleetscope.analysis.steps import rank_step_table, step_table
from fleetscope.analysis.top import top_ops
from fleetscope.schema.vocabulary import Kind
from fleetscope.sinks.lake.objects import open_store
from fleetscope.sinks.lake.read import Snapshot

pytestmark = pytest.mark.e2e
EVERYTHING = Scope()
PEAK_FLOPS = 918e12
"""TPU v6e, bf16, of its data sheet."""


class Fleet(Protocol):
    lake: Path
    truth: Path


Ints = NDArray[np.int64]


class Truth:
    """Spans as numpy columns, without those of batches that were lost."""

    def __init__(self, folder: Path) -> None:
        self.tables = {path.stem: pq.read_table(path) for path in folder.glob("*.parquet")}
        spans = self.tables["spans"]
        columns = {name: spans.column(name).to_numpy() for name in spans.column_names}
        lost = np.zeros(spans.num_rows, bool)
        for item in self.tables["damage"].to_pylist():
            if item["kind"] == "lost":
                inside = (columns["seq"] >= item["first"]) & (columns["seq"] < item["first"] + item["rows"])
                lost |= (columns["source"] == item["source"]) & inside
        self.lost = int(lost.sum())
        self.spans = {name: values[~lost] for name, values in columns.items()}
        self.periods = {
            row["device"]: (row["period_num"], row["period_den"]) for row in self.tables["clocks"].to_pylist()
        }

    def device(self, host: int, chip: int) -> dict[str, Ints]:
        """Ops of a chip: no steps, no modules."""
        spans = self.spans
        mine = (spans["host"] == host) & (spans["chip"] == chip) & (spans["kind"] > Kind.MODULE)
        return {name: values[mine] for name, values in spans.items()}

    def dur_ns(self, ops: dict[str, Ints]) -> Ints:
        """Durations of a chip's ops by the nominal period of its clock."""
        num, den = self.periods[int(ops["device"][0])]
        return ops["dur"] * num // den


@pytest.fixture(scope="module")
def truth(small_fleet: Fleet) -> Truth:
    return Truth(small_fleet.truth)


@pytest.fixture(scope="module")
def snapshot(small_fleet: Fleet) -> Snapshot:
    return Snapshot.open(open_store(small_fleet.lake))


def _classes(ops: dict[str, Ints]) -> dict[int, int]:
    """True ns by class: on a line the innermost op counts, across lines compute > collective > copy. By painting
    every instant between two edges, outer ops first."""
    edges = np.unique(np.concatenate([ops["true_begin_ns"], ops["true_end_ns"]]))
    rank = {Kind.CONTAINER: 4, Kind.OTHER: 4, Kind.COPY: 3, Kind.COLLECTIVE: 2, Kind.COMPUTE: 1}
    best = np.full(len(edges), 9)
    for line in np.unique(ops["line"]):
        mine = np.flatnonzero(ops["line"] == line)
        order = mine[np.lexsort((-ops["dur"][mine], ops["true_begin_ns"][mine]))]
        painted = np.full(len(edges), 9)
        first = np.searchsorted(edges, ops["true_begin_ns"][order])
        last = np.searchsorted(edges, ops["true_end_ns"][order])
        for low, high, kind in zip(first, last, ops["kind"][order], strict=True):
            painted[low:high] = rank[Kind(kind)]
        best = np.minimum(best, painted)
    lengths = np.diff(edges, append=edges[-1:])
    return {number: int(lengths[best == number].sum()) for number in (1, 2, 3, 4)}


def test_shares_of_devices(snapshot: Snapshot, truth: Truth) -> None:
    rows = device_table(snapshot, EVERYTHING).to_pylist()
    assert len(rows) == 6
    ranges = truth.tables["ranges"].to_pylist()
    for row in rows:
        host, chip = int(row["host"][-1]), int(row["device"][-1])
        ops = truth.device(host, chip)
        seen = sum(r["true_to_ns"] - r["true_from_ns"] for r in ranges if (r["host"], r["chip"]) == (host, chip))
        damage = [d for d in truth.tables["damage"].to_pylist() if d["kind"] == "lost" and d["host"] == host]
        if damage:
            continue  # which stretch of time its lost batches observed is not in the truth
        classes = _classes(ops)
        assert row["observed_ns"] == pytest.approx(seen, rel=1e-4)
        assert row["busy_ratio"] == pytest.approx(sum(classes.values()) / seen, rel=1e-3)
        assert row["compute_ratio"] == pytest.approx(classes[1] / seen, rel=1e-3)
        assert row["collective_ratio"] == pytest.approx(classes[2] / seen, rel=1e-3)
        assert row["copy_ratio"] == pytest.approx(classes[3] / seen, abs=1e-4)
        modules = (truth.spans["host"] == host) & (truth.spans["chip"] == chip) & (truth.spans["kind"] == Kind.MODULE)
        assert row["executions"] == modules.sum()
        assert (row["seen"], row["run"], row["sku"]) == ("all", "small", "TPU v6e")


def test_the_throttled_chip_comes_first_and_only_it(snapshot: Snapshot) -> None:
    first, *rest = device_table(snapshot, EVERYTHING).to_pylist()
    assert (first["host"], first["device"]) == ("sim-001", "/device:TPU:0")
    # It is throttled from 8 s on and takes some seconds to get hot.
    assert 0.5 < first["throttled_ratio"] <= 0.8
    assert {row["throttled_ratio"] for row in rest} == {0.0}
    assert first["clock_hertz"] < min(row["clock_hertz"] for row in rest)
    assert first["temperature_celsius"] > max(row["temperature_celsius"] for row in rest)
    early = device_table(snapshot, Scope(to_ns=_begin(snapshot) + 8 * 10**9)).to_pylist()
    assert {row["throttled_ratio"] for row in early} == {0.0}


def _begin(snapshot: Snapshot) -> int:
    return int(min(snapshot.table("samples", ["t_ns"]).column("t_ns").to_pylist()))


def _step_times(truth: Truth, host: int) -> Ints:
    steps = truth.tables["steps"]
    begins = [row["wall_begin_ns"] for row in steps.to_pylist() if row["host"] == host]
    return np.diff(np.array(sorted(begins), np.int64))


def test_a_run_at_a_glance(snapshot: Snapshot, truth: Truth) -> None:
    (row,) = run_table(snapshot, EVERYTHING).to_pylist()
    names = ("run", "attempt", "state", "ranks", "hosts", "devices", "seen", "mfu_absent", "world_size")
    assert [row[name] for name in names] == ["small", "small-1", "ended", 3, 3, 6, "all", None, 3]
    times = [_step_times(truth, host) for host in (1, 2)]
    assert row["steps"] == max(len(one) for one in times)
    # Two lost batches of host 0 leave out no more than a second of its steps; the first step of a rank does not count.
    assert row["step_time_ns"] == pytest.approx(np.mean(np.concatenate([one[1:] for one in times])), rel=5e-3)
    seen = sum(r["true_to_ns"] - r["true_from_ns"] for r in truth.tables["ranges"].to_pylist())
    flops = sum(truth.tables["steps"].column("flops").to_pylist())
    assert row["mfu_ratio"] == pytest.approx(flops / (seen / 1e9 * PEAK_FLOPS), rel=0.02)
    assert row["lost"] == sum(d["rows"] for d in truth.tables["damage"].to_pylist() if d["kind"] == "lost")


def test_times_and_counts_of_ops_are_exact(snapshot: Snapshot, truth: Truth) -> None:
    spans = truth.spans
    rows = op_table(snapshot, EVERYTHING, limit=10_000).to_pylist()
    found = {(row["host"], row["ordinal"]): row for row in rows}
    checked = 0
    for host in range(3):
        ops = [truth.device(host, chip) for chip in range(2)]
        times: dict[int, list[int]] = {}
        inner: dict[int, int] = {}
        for one in ops:
            dur = truth.dur_ns(one)
            parent = _parents(one)
            for at, number in enumerate(one["op"].tolist()):
                times.setdefault(number, []).append(int(dur[at]))
                if parent[at] >= 0:
                    above = int(one["op"][parent[at]])
                    inner[above] = inner.get(above, 0) + int(dur[at])
        for number, all_ns in times.items():
            if (f"sim-{host:03d}", number) not in found:
                assert number in set(spans["op"][spans["kind"] == Kind.CONTAINER].tolist())
                continue
            row = found[f"sim-{host:03d}", number]
            assert (row["count"], row["min_ns"], row["max_ns"]) == (len(all_ns), min(all_ns), max(all_ns))
            assert row["self_ns"] == sum(all_ns) - inner.get(number, 0)
            assert row["mean_ns"] == pytest.approx(np.mean(all_ns), abs=1)
            for name, share in (("p50_ns", 0.5), ("p99_ns", 0.99)):
                exact = float(np.quantile(all_ns, share, method="inverted_cdf"))
                assert exact <= row[name] <= exact * 1.023 + 1
            checked += 1
    assert checked == len(found) > 150


def _parents(ops: dict[str, Ints]) -> list[int]:
    """Index of the span directly around each, -1 none; lines apart, by a stack."""
    parent = [-1] * len(ops["op"])
    for line in np.unique(ops["line"]):
        mine = np.flatnonzero(ops["line"] == line)
        stack: list[int] = []
        for at in mine[np.lexsort((-ops["dur"][mine], ops["start"][mine]))].tolist():
            while stack and ops["start"][stack[-1]] + ops["dur"][stack[-1]] < ops["start"][at] + ops["dur"][at]:
                stack.pop()
            while stack and ops["start"][stack[-1]] + ops["dur"][stack[-1]] <= ops["start"][at]:
                stack.pop()
            parent[at] = stack[-1] if stack else -1
            stack.append(at)
    return parent


def test_top_is_the_share_of_the_run_s_device_time(snapshot: Snapshot, truth: Truth) -> None:
    rows = top_ops(snapshot, Scope(run="small"), 1000).to_pylist()
    observed = sum(row["observed_ns"] for row in device_table(snapshot, EVERYTHING).to_pylist())
    by_host: dict[int, int] = {}
    for op in op_table(snapshot, EVERYTHING, limit=10_000).to_pylist():
        by_host[op["ordinal"]] = by_host.get(op["ordinal"], 0) + op["self_ns"]
    assert {row["ordinal"]: row["time_ns"] for row in rows} == by_host
    shares = [row["share_ratio"] for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert shares == pytest.approx([row["time_ns"] / observed for row in rows])
    barrier = next(row for row in rows if row["op"].startswith("all-reduce"))
    assert (barrier["category"], barrier["seen"], barrier["low_ratio"]) == ("all-reduce", "all", None)
    assert barrier["source"].startswith("train.py:")
    assert [row["op"] for row in top_ops(snapshot, EVERYTHING, 3).to_pylist()] == [row["op"] for row in rows[:3]]


def test_steps_name_the_straggler(snapshot: Snapshot, truth: Truth) -> None:
    rows = step_table(snapshot, EVERYTHING, 1000).to_pylist()
    begins = [row["began_ns"] for row in rows]
    assert begins == sorted(begins, reverse=True)
    told = {(s["host"], s["step"]): s for s in truth.tables["steps"].to_pylist()}
    ranks = rank_step_table(snapshot, Scope(host="sim-002"), 1000).to_pylist()
    assert {row["host"] for row in ranks} == {"sim-002"}
    for row in ranks:
        # The wait for the data of a step lies before its begin, in the step before it; its clock is off by 20 ppm.
        assert row["data_wait_ns"] == pytest.approx(told[2, row["step"] + 1]["data_wait_ns"], rel=5e-5, abs=2_000)
        assert row["step_time_ns"] == pytest.approx(_step_times(truth, 2)[row["step"]], rel=1e-3)
    slow = {row["step"] for row in ranks if row["data_wait_ns"] > 200_000_000}
    assert 10 < len(slow) < 40
    (entered,) = [row for row in rows if row["step"] == min(slow)]
    assert (entered["slowest_host"], entered["slowest_rank"]) == ("sim-002", 2)
    assert entered["slowest_ns"] > 1.5 * entered["step_time_ns"]
    assert "first" in rows[-1]["flags"]
    whole = [row for row in rows if row["ranks"] == 3]
    assert len(whole) > 80
    assert all(0.3 < row["compute_ratio"] < 0.9 for row in whole[1:])
    assert whole[5]["executions"] == 6


def test_the_ledger_names_what_was_lost_and_sent_twice(snapshot: Snapshot, truth: Truth) -> None:
    rows = ledger_table(snapshot, EVERYTHING).to_pylist()
    damage = truth.tables["damage"].to_pylist()
    lost = [d for d in damage if d["kind"] == "lost"]
    twice = [d for d in damage if d["kind"] == "duplicate"]
    assert (len(lost), len(twice)) == (2, 2)
    worst = rows[0]
    assert (worst["host"], worst["what"], worst["run"]) == ("sim-000", "process 4000", "small")
    assert worst["open_gap"] + worst["lost"] == sum(d["rows"] for d in lost)
    named = {
        n for r in (worst["open_ranges"] or []) + (worst["lost_ranges"] or []) for n in range(r["first"], r["last"] + 1)
    }
    assert named == {n for d in lost for n in range(d["first"], d["first"] + d["rows"])}
    (again,) = [row for row in rows if row["duplicate"]]
    assert (again["host"], again["duplicate"]) == ("sim-002", sum(d["rows"] for d in twice))
    sums = balance(ledger_table(snapshot, EVERYTHING))
    assert sums.sources == 6
    assert sums.produced == sums.stored + sums.lost + sums.open_gap
    stored = snapshot.table("spans", ["seq"]).num_rows + snapshot.table("samples", ["seq"]).num_rows
    assert (sums.stored, sums.in_flight, sums.unbalanced, sums.clean) == (stored, 0, 0, False)
    assert sums.stored == len(truth.spans["seq"]) + snapshot.table("samples", ["seq"]).num_rows
    assert balance(ledger_table(snapshot, Scope(host="sim-001"))).clean


@pytest.mark.parametrize(
    "table",
    [run_table, device_table, op_table, top_ops, step_table, rank_step_table, ledger_table],
    ids=lambda function: function.__name__,
)
def test_every_tool_obeys_every_filter(snapshot: Snapshot, table: Callable[..., pa.Table]) -> None:
    first, last = _begin(snapshot), snapshot.now_ns
    rows = table(snapshot, EVERYTHING).num_rows
    assert rows
    assert table(snapshot, Scope(run="small")).num_rows in (rows, rows - 3)  # the ledger also has the agents
    assert table(snapshot, Scope(run="small-1")).num_rows == table(snapshot, Scope(run="small")).num_rows
    assert table(snapshot, Scope(from_ns=first - 60 * 10**9, to_ns=last + 1)).num_rows == rows
    for nothing in (
        Scope(run="smal"), Scope(host="sim-9"), Scope(to_ns=first - 60 * 10**9), Scope(from_ns=last + 10**12),
    ):  # fmt: skip
        assert table(snapshot, nothing).num_rows == 0, nothing
    some = table(snapshot, Scope(host="sim-001"))
    assert some.num_rows
    for name in ("host", "slowest_host"):
        if name in some.column_names:
            assert set(some.column(name).to_pylist()) == {"sim-001"}


def test_limits_are_obeyed(snapshot: Snapshot) -> None:
    tables: list[Callable[..., Any]] = [device_table, op_table, top_ops, step_table, rank_step_table]
    for table in tables:
        assert table(snapshot, EVERYTHING, limit=2).num_rows == 2


def test_ops_are_found_by_part_of_a_name(snapshot: Snapshot) -> None:
    rows = op_table(snapshot, EVERYTHING, "all-gather", 1000).to_pylist()
    assert rows
    assert all("all-gather" in row["op"] for row in rows)
    assert op_table(snapshot, EVERYTHING, "%", 10).num_rows == 0


def test_a_wrong_name_is_told_from_an_empty_answer(snapshot: Snapshot) -> None:
    assert unknown_names(snapshot, Scope(run="small", host="sim-001")) == []
    assert unknown_names(snapshot, Scope(run="smal")) == ["no run 'smal' in the lake; there is small, small-1"]
    (host,) = unknown_names(snapshot, Scope(host="xyz"))
    assert host == "no host 'xyz' in the lake; there is sim-000, sim-001, sim-002"


def test_the_inventory_counts_what_is_there(snapshot: Snapshot, truth: Truth) -> None:
    rows = {row["table"]: row for row in inventory(snapshot).to_pylist()}
    assert rows["spans"]["rows"] == len(truth.spans["seq"])
    assert rows["hosts"]["rows"] >= 3
    assert rows["spans"]["bytes_per_row"] == rows["spans"]["size_bytes"] / rows["spans"]["rows"]
    assert abs(rows["spans"]["first_ns"] - int(truth.spans["wall_begin_ns"].min())) < 10**6
    assert (rows["dead_letter"]["rows"], rows["dead_letter"]["first_ns"]) == (0, None)
