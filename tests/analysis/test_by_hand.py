"""Tools on lakes of a few rows whose answer can be worked out on paper."""

from collections.abc import Callable
from typing import Any

import pytest

from fleetscope.analysis.devices import THROTTLE_SERIES, device_table
from fleetscope.analysis.estimate import FEWEST, TOO_FEW, UNOBSERVABLE, student_t
from fleetscope.analysis.groups import group_table
from fleetscope.analysis.ledger import balance, ledger_table
from fleetscope.analysis.ops import op_table
from fleetscope.analysis.runs import run_table
from fleetscope.analysis.scope import Scope
from fleetscope.analysis.steps import rank_step_table, step_table
from fleetscope.analysis.top import top_ops
from fleetscope.cli import queries
from fleetscope.schema.vocabulary import Kind, StepFlag
from fleetscope.sinks.lake.read import Snapshot

pytestmark = pytest.mark.unit
EVERYTHING = Scope()
T0 = 1_796_000_000 * 10**9
SECOND = 10**9
Q30 = 1 << 30

HOST = {"host": 1, "name": "h0"}
PROCESS = {"process": 2, "host": 1, "run": 9, "attempt": 8, "run_name": "train", "attempt_name": "try-1", "pid": 77}
DEVICE = {"device": 3, "host": 1, "key": "gpu-uuid", "local_name": "GPU:0", "sku": "H100"}
ROW = {"t_ns": T0, "host": 1, "process": 2, "device": 3}

Lake = Callable[..., Snapshot]


def _squares(values: list[int]) -> dict[str, int]:
    total = sum(value**2 for value in values)
    return {"duty_sq_hi": total >> 32, "duty_sq_lo": total % 2**32}


def test_a_chip_is_throttled_at_an_instant_if_any_reason_says_so(lake_of: Lake) -> None:
    """NVIDIA gives a series a reason. Of 4 instants heat is set at 2, power at 2 (one of them the same): 3 of 4."""
    series = [{"series": 10, "name": THROTTLE_SERIES, "labels": [("reason", "sw_thermal")]},
              {"series": 11, "name": THROTTLE_SERIES, "labels": [("reason", "sw_power_cap")]},
              {"series": 12, "name": THROTTLE_SERIES, "labels": [("reason", "hw_slowdown")]},
              {"series": 13, "name": "fleetscope_chip_power_watts"}]  # fmt: skip
    values = {10: (0, 1, 1, 0), 11: (0, 0, 1, 1), 12: (0, 0, 0, 0), 13: (300, 310, 290, 280)}
    samples = [
        {"t_ns": T0 + at * SECOND, "host": 1, "process": 5, "device": 3, "series": number, "value_int": value}
        for number, row in values.items()
        for at, value in enumerate(row)
    ]
    snapshot = lake_of(hosts=[HOST], devices=[DEVICE], series=series, samples=samples)
    (row,) = device_table(snapshot, EVERYTHING).to_pylist()
    assert row["throttled_ratio"] == 0.75
    assert row["throttle_reasons"] == ["sw_power_cap", "sw_thermal"]
    assert (row["run"], row["host"], row["device"], row["busy_ratio"]) == ("", "h0", "GPU:0", None)
    assert row["power_watts"] == 280.0
    assert device_table(snapshot, Scope(run="train")).num_rows == 0


def test_what_was_never_announced_is_shown_by_its_id(lake_of: Lake) -> None:
    snapshot = lake_of(
        device_10s=[{**ROW, "weight": 1, "observed_ns": 100, "busy_ns": 50}],
        op_10s=[{**ROW, "device": 0, "kind": Kind.COMPUTE, "program": 6, "op": 4, "weight": 1, "count": 1, "sum_ns": 50,
                 "hist_index": [180], "hist_count": [1], "max_ns": 50}],
        ledger=[{"now_ns": T0, "source": 12, "host": 1, "process": 2, "produced": 1, "appended": 1, "stored": 1}],
        step=[{"t_ns": T0, "dur_ns": 5, "run": 9, "attempt": 8, "host": 1, "process": 2, "step": 3}],
    )  # fmt: skip
    (device,) = device_table(snapshot, EVERYTHING).to_pylist()
    assert (device["run"], device["host"], device["device"], device["busy_ratio"]) == ("", "#1", "#3", 0.5)
    (op,) = op_table(snapshot, EVERYTHING).to_pylist()
    assert (op["host"], op["op"], op["count"], op["self_ns"]) == ("#1", "#6 op 4", 1, 50)
    assert top_ops(snapshot, EVERYTHING).column("op").to_pylist() == ["#6 op 4"]
    (source,) = ledger_table(snapshot, EVERYTHING).to_pylist()
    assert (source["host"], source["what"]) == ("#1", "process #2")
    assert rank_step_table(snapshot, EVERYTHING).column("host").to_pylist() == ["#1"]
    assert run_table(snapshot, EVERYTHING).num_rows == 0


def _windows(duties: list[float], device_duty: float = 0.8, **op: Any) -> dict[str, list[dict[str, Any]]]:
    """A run seen in one window a duty: an op with that share of each, a device `device_duty` busy."""
    units = [int(duty * Q30) for duty in duties]
    whole = [int(device_duty * Q30)] * len(units)
    return {
        "hosts": [HOST], "processes": [PROCESS], "devices": [DEVICE],
        "device_10s": [{**ROW, "weight": 0, "windows": len(units), "observed_ns": 200 * len(units),
                        "busy_ns": 100 * len(units), "compute_ns": 75 * len(units), "model_flops": 10 * len(units),
                        "peak_flop": 100 * len(units), "op_ns": 100 * len(units), "flops_known_ns": 100 * len(units),
                        "duty_q30": sum(whole), **_squares(whole)}],
        "op_10s": [{**ROW, "device": 0, "kind": Kind.COMPUTE, "program": 6, "op": 4, "weight": 0, "windows": len(units),
                    "count": 2 * len(units), "sum_ns": 60 * len(units), "duty_q30": sum(units), **_squares(units),
                    "hist_index": [156], "hist_count": [2 * len(units)], "min_ns": 30, "max_ns": 30, **op}],
        "programs": [{"program": 6, "module": "jit_step"}],
        "ops": [{"program": 6, "op": 4, "name": "dot.4", "category": "convolution", "source_file": "/a/b.py",
                 "source_line": 12, "op_name": "jit(step)/dot", "flops": 90}],
    }  # fmt: skip


def test_shares_from_windows_have_the_interval_of_the_t_table(lake_of: Lake) -> None:
    duties = [0.2, 0.3, 0.25, 0.35, 0.2, 0.3, 0.3, 0.25, 0.3, 0.25]
    (row,) = top_ops(lake_of(**_windows(duties)), EVERYTHING).to_pylist()
    mean = sum(duties) / 10
    spread = (sum((duty - mean) ** 2 for duty in duties) / 9 / 10) ** 0.5
    assert row["share_ratio"] == pytest.approx(mean, rel=1e-6)
    # 2.262: the 97.5 % quantile of Student's t with 9 degrees of freedom.
    assert row["low_ratio"] == pytest.approx(mean - 2.262 * spread, rel=1e-3)
    assert row["high_ratio"] == pytest.approx(mean + 2.262 * spread, rel=1e-3)
    assert student_t(9) == pytest.approx(2.262, abs=1e-3)
    expected = {"run": "train", "op": "dot.4", "category": "convolution", "seen": "windows", "windows": 10,
                "reason": None, "source": "/a/b.py:12", "count": 20, "mean_ns": 30, "module": "jit_step"}  # fmt: skip
    assert {name: row[name] for name in expected} == expected


def test_few_windows_give_a_share_without_an_interval(lake_of: Lake) -> None:
    (row,) = top_ops(lake_of(**_windows([0.5] * (FEWEST - 1))), EVERYTHING).to_pylist()
    assert row["share_ratio"] == pytest.approx(0.5, rel=1e-6)
    assert (row["low_ratio"], row["high_ratio"], row["reason"]) == (None, None, TOO_FEW)


def test_an_op_longer_than_the_windows_is_named_where_it_belongs(lake_of: Lake) -> None:
    tables = _windows([0.1] * 10)
    long = {**tables["op_10s"][0], "op": 5, "duty_q30": 0, "duty_sq_hi": 0, "duty_sq_lo": 0, "sum_ns": 1900, "count": 1}
    tables["op_10s"].append(long)
    tables["ops"].append({"program": 6, "op": 5, "name": "while.5"})
    first, second = top_ops(lake_of(**tables), EVERYTHING, 2).to_pylist()
    assert (first["op"], first["share_ratio"], first["reason"]) == ("while.5", None, UNOBSERVABLE)
    assert (second["op"], second["share_ratio"]) == ("dot.4", pytest.approx(0.1, rel=1e-6))


def test_windows_are_scaled_to_the_estimated_busy_share(lake_of: Lake) -> None:
    """Seen busy 100 of 200 ns, estimated 0.8: so compute, 75 of 200 seen, is 0.6, and MFU, 10 of 100 seen, 0.16."""
    snapshot = lake_of(**_windows([0.1] * 10))
    for table in (device_table, run_table):
        (row,) = table(snapshot, EVERYTHING).to_pylist()
        assert row["busy_ratio"] == pytest.approx(0.8, rel=1e-6)
        assert row["compute_ratio"] == pytest.approx(0.6, rel=1e-6)
        assert row["mfu_ratio"] == pytest.approx(0.16, rel=1e-6)
        assert (row["seen"], row["windows"]) == ("windows", 10)


def test_spans_that_came_before_their_symbols_are_one_op_with_the_later_ones(lake_of: Lake) -> None:
    tables = _windows([0.1] * 10)
    early = {**tables["op_10s"][0], "program": 777, "op": 0}
    tables["op_10s"].append(early)
    tables["ops"].append({"program": 777, "op": 0, "name": "dot.4"})
    tables["program_loads"] = [{"process": 2, "program_id": 777, "program": 6}]
    snapshot = lake_of(**tables)
    (row,) = top_ops(snapshot, EVERYTHING).to_pylist()
    assert (row["op"], row["count"], row["source"]) == ("dot.4", 40, "/a/b.py:12")
    assert row["share_ratio"] == pytest.approx(0.2, rel=1e-6)
    (op,) = op_table(snapshot, EVERYTHING).to_pylist()
    assert (op["op"], op["count"], op["ordinal"], op["program"]) == ("dot.4", 40, 4, 6)
    assert op["flops_per_s"] == pytest.approx(90 * 40 / 1200e-9)


@pytest.mark.parametrize(
    ("columns", "mfu", "reason"),
    [
        ({"flops_known_ns": 94}, None, "FLOPs known for 94 % of op time"),
        ({"flops_known_ns": 95}, 0.1, None),
        ({"peak_flop": 0}, None, "the peak of the chip is not known"),
        ({"op_ns": 0, "flops_known_ns": 0, "busy_ns": 0, "model_flops": 0}, 0.0, None),
    ],
)
def test_mfu_is_absent_with_a_reason_and_idle_is_0(
    lake_of: Lake, columns: dict[str, int], mfu: float | None, reason: str | None
) -> None:
    row = {"weight": 1, "observed_ns": 200, "busy_ns": 100, "op_ns": 100, "flops_known_ns": 100, "model_flops": 10,
           "peak_flop": 100}  # fmt: skip
    snapshot = lake_of(hosts=[HOST], processes=[PROCESS], devices=[DEVICE], device_10s=[{**ROW, **row, **columns}])
    for table in (device_table, run_table):
        (found,) = table(snapshot, EVERYTHING).to_pylist()
        assert (found["mfu_ratio"], found["mfu_absent"]) == (mfu, reason)


def _step(number: int, dur_ns: int, flags: int = 0, **other: int) -> dict[str, int]:
    begin = {"t_ns": T0 + number * SECOND, "dur_ns": dur_ns, "step": number, "flags": flags}
    return {**begin, "run": 9, "attempt": 8, "host": 1, "process": 2, **other}


def test_a_run_without_devices_has_steps_and_a_reason(lake_of: Lake) -> None:
    snapshot = lake_of(
        hosts=[HOST], processes=[PROCESS],
        step=[_step(0, 900, StepFlag.FIRST | StepFlag.AFTER_COMPILE), _step(1, 10), _step(2, 30),
              _step(3, 500, StepFlag.EVAL), _step(4, 7000, StepFlag.TRUNCATED), _step(5, 0),
              _step(6, 450, StepFlag.MISTIMED), _step(7, 1, StepFlag.MISTIMED | StepFlag.REORDERED)],
        ledger=[{"now_ns": T0, "source": 12, "host": 1, "process": 2, "produced": 12, "appended": 9, "stored": 8,
                 "dropped": [("ring_overwritten", 2)], "dead_lettered": 1}],
    )  # fmt: skip
    (row,) = run_table(snapshot, EVERYTHING).to_pylist()
    assert (row["run"], row["attempt"], row["ranks"], row["hosts"], row["devices"]) == ("train", "try-1", 1, 1, None)
    assert (row["steps"], row["mistimed_steps"], row["step_time_ns"], row["lost"]) == (6, 2, 20, 3)
    assert (row["mfu_ratio"], row["mfu_absent"]) == (None, "no device time was observed")
    assert (row["first_ns"], row["last_ns"]) == (T0, T0 + 7 * SECOND + 1)
    found = step_table(snapshot, EVERYTHING).to_pylist()
    assert [(step["step"], step["flags"]) for step in found] == [
        (7, "reordered, mistimed"), (6, "mistimed"), (4, "truncated"), (3, "eval"), (2, ""), (1, ""),
        (0, "first, after compile"),
    ]  # fmt: skip
    assert found[0]["run"] == "train"
    assert found[0]["compute_ratio"] is None


def test_a_run_that_only_compiles_still_has_a_step_time(lake_of: Lake) -> None:
    snapshot = lake_of(processes=[PROCESS], step=[_step(0, 900, StepFlag.FIRST)])
    assert run_table(snapshot, EVERYTHING).column("step_time_ns").to_pylist() == [900]


@pytest.mark.parametrize(
    ("end_ns", "rank_end_ns", "seen_ns", "state"),
    [
        (T0, 0, T0, "ended"),
        (0, T0, T0, "ended"),
        (0, 0, T0 - 61 * SECOND, "silent"),
        (0, 0, T0 - 59 * SECOND, "running"),
    ],
)
def test_the_state_of_a_run(lake_of: Lake, end_ns: int, rank_end_ns: int, seen_ns: int, state: str) -> None:
    runs = [{"run": 9, "attempt": 8, "name": "train", "attempt_name": "try-1", "end_ns": end_ns}]
    snapshot = lake_of(processes=[{**PROCESS, "seen_ns": seen_ns, "end_ns": rank_end_ns}], runs=runs)
    assert run_table(snapshot, EVERYTHING).column("state").to_pylist() == [state]
    assert run_table(snapshot, Scope(from_ns=T0)).num_rows == 0


def test_a_step_of_two_ranks_names_the_slower(lake_of: Lake) -> None:
    other = {"process": 4, "host": 5, "rank": 1}
    snapshot = lake_of(
        hosts=[HOST, {"host": 5, "name": "h1"}],
        processes=[PROCESS],  # the announcement of rank 1 was lost
        step=[_step(1, 100, data_wait_ns=10, compute_ns=60, covered_ns=80),
              _step(1, 300, data_wait_ns=30, compute_ns=20, covered_ns=120, **other)],
    )  # fmt: skip
    (row,) = step_table(snapshot, EVERYTHING).to_pylist()
    expected = {"run": "train", "step": 1, "ranks": 2, "step_time_ns": 200, "slowest_ns": 300, "slowest_host": "h1",
                "slowest_rank": 1, "data_wait_ns": 20, "compute_ratio": 0.4}  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert rank_step_table(snapshot, EVERYTHING).column("run").to_pylist() == ["train", "train"]
    assert step_table(snapshot, Scope(host="h1")).column("ranks").to_pylist() == [1]


def test_the_ledger_adds_up_or_says_that_it_does_not(lake_of: Lake) -> None:
    """Source 12: of 100 produced 5 were dropped, 90 numbered, 5 are under way; of the 90 are 70 stored, 2 dead, 10 in a
    gap, 8 lost."""
    old = {"now_ns": T0, "epoch": 1, "source": 12, "host": 1, "process": 2, "lost": [{"first": 0, "last": 4}]}
    new = {"now_ns": T0 + 1, "epoch": 2, "source": 12, "host": 1, "process": 2, "produced": 100, "appended": 90,
           "stored": 70, "dead_lettered": 2, "duplicate": 3, "dropped": [("spool_full", 4), ("no_ring", 1)],
           "gaps": [{"first": 10, "last": 19}], "lost": [{"first": 20, "last": 22}]}  # fmt: skip
    wrong = {"now_ns": T0, "source": 13, "host": 1, "process": 0, "produced": 5, "appended": 5, "stored": 7}
    rows = ledger_table(lake_of(hosts=[HOST], processes=[PROCESS], ledger=[old, new, wrong]), EVERYTHING)
    first, second = rows.to_pylist()
    expected = {"what": "process 77", "in_flight": 5, "dropped": 5, "open_gap": 10, "lost": 8, "unbalanced": 0,
                "lost_ranges": [{"first": 0, "last": 4}, {"first": 20, "last": 22}]}  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    assert (second["what"], second["unbalanced"], second["in_flight"]) == ("agent", 2, 0)
    sums = balance(rows)
    assert (sums.sources, sums.produced, sums.stored, sums.duplicate, sums.unbalanced) == (2, 105, 77, 3, 2)
    assert not sums.clean


def test_an_empty_lake_answers_with_nothing(lake_of: Lake) -> None:
    snapshot = lake_of()
    for table in (run_table, device_table, op_table, top_ops, step_table, rank_step_table, ledger_table):
        assert table(snapshot, EVERYTHING).num_rows == 0
    assert balance(ledger_table(snapshot, EVERYTHING)).clean


def test_what_commands_show_is_there(lake_of: Lake) -> None:
    snapshot = lake_of()
    shown: dict[Callable[..., Any], tuple[str, ...]] = {
        run_table: queries.RUNS, device_table: queries.DEVICES, op_table: queries.OPS, top_ops: queries.TOP,
        ledger_table: queries.LEDGER,
    }  # fmt: skip
    for table, columns in shown.items():
        assert set(columns) <= set(table(snapshot, EVERYTHING).column_names)
    steps = {name for table in (step_table, rank_step_table) for name in table(snapshot, EVERYTHING).column_names}
    assert set(queries.STEPS) <= steps
    assert set(queries.GROUPS) <= set(group_table(snapshot, EVERYTHING, "program").column_names)
    assert "mfu_declared_ratio" in queries.RUNS, "whoever declares FLOPs (run --flops-per-step) looks there"


def test_hfu_clock_and_dtypes_of_a_run(lake_of: Lake) -> None:
    """A TPU v6e: 918 TFLOP/s, so 918 000 FLOP a ns. Seen for 1 000 ns; 400 of them at 3/4 of its clock."""
    peak = 918_000
    device = {"weight": 1, "observed_ns": 1000, "busy_ns": 900, "op_ns": 900, "flops_known_ns": 870,
              "flops": 300 * peak, "model_flops": 200 * peak, "peak_flop": 600 * peak}  # fmt: skip
    slow = {**device, **dict.fromkeys(("observed_ns", "busy_ns", "op_ns", "flops_known_ns", "flops", "model_flops"), 0)}
    slow |= {"peak_flop": 400 * peak, "peak_flop_clock": 300 * peak, "t_ns": T0 + 10 * SECOND}
    op = {"process": 2, "host": 1, "program": 6, "kind": int(Kind.COMPUTE), "weight": 1, "count": 2, "sum_ns": 300}
    ops = [
        {"program": 6, "op": 1, "name": "dot.1", "opcode": "dot", "flops": 100 * peak, "model_flops": 50 * peak,
         "dtype": "bf16"},
        {"program": 6, "op": 2, "name": "dot.2", "opcode": "dot", "flops": 50 * peak, "model_flops": 50 * peak,
         "dtype": "s8"},
        {"program": 6, "op": 3, "name": "f.3", "opcode": "custom-call", "flops": None, "unknown": "custom-call magic"},
        {"program": 6, "op": 4, "name": "while.4", "opcode": "while", "flops": 900 * peak, "dtype": "bf16"},
    ]  # fmt: skip
    rows = [{**op, "op": 1}, {**op, "op": 2}, {**op, "op": 3, "count": 1, "sum_ns": 30},
            {**op, "op": 4, "kind": int(Kind.CONTAINER), "child_ns": 290}]  # fmt: skip
    snapshot = lake_of(
        hosts=[HOST], processes=[PROCESS], devices=[{**DEVICE, "sku": "TPU v6 Lite"}], ops=ops, op_10s=rows,
        device_10s=[{**ROW, **device}, {**ROW, **slow}],
        runs=[{"run": 9, "attempt": 8, "declared_flops_per_step": 2e6 * peak}], step=[_step(1, 10_000_000)],
    )  # fmt: skip
    (found,) = run_table(snapshot, EVERYTHING).to_pylist()
    assert found["hfu_ratio"] == pytest.approx(0.3)
    assert found["mfu_ratio"] == pytest.approx(0.2)
    assert found["flops_coverage_ratio"] == pytest.approx(870 / 900)
    assert found["clock_ratio"] == pytest.approx(0.75)
    assert found["mfu_at_clock_ratio"] == pytest.approx(0.2 / 0.75)
    # 200 ns of products in bf16; 100 in int8, whose peak is twice that. What a loop holds counts by itself.
    assert dict(found["hfu_by_dtype"]) == {"bf16": pytest.approx(0.2), "s8": pytest.approx(0.05)}
    assert dict(found["mfu_by_dtype"]) == {"bf16": pytest.approx(0.1), "s8": pytest.approx(0.05)}
    assert found["flops_unknown"] == ["custom-call magic"]
    # Declared: 2e6 ns of the chip's peak in a step of 10e6.
    assert found["mfu_declared_ratio"] == pytest.approx(0.2)
    (one,) = device_table(snapshot, EVERYTHING).to_pylist()
    assert (one["hfu_ratio"], one["clock_ratio"]) == (pytest.approx(0.3), pytest.approx(0.75))


def test_a_chip_whose_peak_nobody_knows_has_no_share_of_it_by_dtype_either(lake_of: Lake) -> None:
    device = {"weight": 1, "observed_ns": 1000, "busy_ns": 900, "op_ns": 900, "flops_known_ns": 900, "flops": 300}
    op = {"process": 2, "host": 1, "program": 6, "kind": int(Kind.COMPUTE), "weight": 1, "count": 2, "sum_ns": 300}
    snapshot = lake_of(
        hosts=[HOST], processes=[PROCESS], devices=[{**DEVICE, "sku": "XPU 1"}], device_10s=[{**ROW, **device}],
        ops=[{"program": 6, "op": 1, "name": "dot.1", "opcode": "dot", "flops": 150, "dtype": "bf16"}],
        op_10s=[{**op, "op": 1}],
    )  # fmt: skip
    (found,) = run_table(snapshot, EVERYTHING).to_pylist()
    assert (found["hfu_ratio"], found["mfu_absent"]) == (None, "the peak of the chip is not known")
    assert found["hfu_by_dtype"] is None, "not infinite"


def test_hfu_and_mfu_of_steps_whose_executions_were_all_seen(lake_of: Lake) -> None:
    program = {"program": 6, "module": "jit_step", "flops": 3000, "model_flops": 2000, "flops_known": True}
    device = {"weight": 1, "observed_ns": 100, "peak_flop": 1000}
    about = {"program": 6, "executions": 2}
    snapshot = lake_of(
        hosts=[HOST], processes=[PROCESS], devices=[DEVICE], programs=[program], device_10s=[{**ROW, **device}],
        step=[_step(1, 1000, **about, covered_ns=1000), _step(2, 1000, **about, covered_ns=300)],
    )  # fmt: skip
    for table in (step_table, rank_step_table):
        second, first = table(snapshot, EVERYTHING).to_pylist()
        # Two executions of 3 000 FLOPs in 1 000 ns at 10 a ns.
        assert (first["hfu_ratio"], first["mfu_ratio"]) == (pytest.approx(0.6), pytest.approx(0.4))
        assert (second["hfu_ratio"], second["mfu_ratio"]) == (None, None), "seen in windows only"


_PEAK = 918_000
"""bf16 FLOP a ns of a v6e."""
_PROGRAM = {"program": 6, "module": "jit_step", "flops": _PEAK * 10**6, "model_flops": _PEAK * 10**6 * 2 // 3,
            "flops_known": True}  # fmt: skip
_CHIPS = [DEVICE, {**DEVICE, "device": 4, "key": "other", "local_name": "GPU:1"}]


def _executions_alone(lake_of: Lake, sku: str, process: dict[str, Any], program: dict[str, Any]) -> Snapshot:
    """No op was ever seen; launches are told by a label's number until the load.

    Two chips watched for 1 s each; one ran 300 executions of 1e-3 s at a v6e's peak (2/3 of it model FLOPs), the other
    nothing: half of what both could have done was not asked for. 0.8 ms of an execution are bf16, the rest int8, whose
    peak is twice that. The first chip's clock was sampled for half of the time, at three quarters.
    """
    ran = {**ROW, "kind": int(Kind.MODULE), "program": 60, "op": 0, "weight": 1, "count": 300, "sum_ns": SECOND // 2}
    dot = {"program": 6, "opcode": "dot", "entry": True}
    ops = [{**dot, "op": 1, "flops": _PEAK * 800_000, "model_flops": _PEAK * 400_000, "dtype": "bf16"},
           {**dot, "op": 2, "flops": _PEAK * 400_000, "model_flops": _PEAK * 400_000, "dtype": "s8"},
           {**dot, "op": 3, "flops": _PEAK * 100_000, "model_flops": 0, "dtype": "s8", "entry": False}]  # fmt: skip
    clocked = {"watched_peak_flop": 1000, "watched_peak_flop_clock": 750}
    return lake_of(
        hosts=[HOST], processes=[process], devices=[{**chip, "sku": sku} for chip in _CHIPS], ops=ops,
        programs=[program], program_loads=[{"process": 2, "program_id": 60, "program": 6}], op_10s=[ran],
        device_10s=[{**ROW, "weight": 1, "watched_ns": SECOND // 2, "occupancy_ns": SECOND // 2, "executions": 300},
                    {**ROW, "t_ns": T0 + 10 * SECOND, "weight": 1, "watched_ns": SECOND // 2, **clocked},
                    {**ROW, "device": 4, "weight": 1, "watched_ns": SECOND}],
        runs=[{"run": 9, "attempt": 8, "declared_flops_per_step": 0.5e6 * _PEAK}],
        step=[_step(1, 10**6, program=6, executions=1, watched_ns=2 * 10**6)],
    )  # fmt: skip


def test_executions_alone_give_hfu_and_mfu_of_runs_and_devices(lake_of: Lake) -> None:
    snapshot = _executions_alone(lake_of, "TPU v6 Lite", PROCESS, _PROGRAM)
    (run,) = run_table(snapshot, EVERYTHING).to_pylist()
    assert (run["hfu_ratio"], run["mfu_ratio"]) == (pytest.approx(0.15), pytest.approx(0.1))
    assert (run["flops_coverage_ratio"], run["mfu_absent"], run["busy_ratio"]) == (1.0, None, None)
    assert run["mfu_declared_ratio"] == pytest.approx(0.25), "half a chip-ms of work in a ms of two chips"
    # 300 x 0.8 ms and 300 x 0.2 ms of 2 s
    assert dict(run["hfu_by_dtype"]) == {"bf16": pytest.approx(0.12), "s8": pytest.approx(0.03)}
    assert dict(run["mfu_by_dtype"]) == {"bf16": pytest.approx(0.06), "s8": pytest.approx(0.03)}
    assert (run["clock_ratio"], run["hfu_at_clock_ratio"]) == (0.75, pytest.approx(0.2))
    by_name = {row["device"]: row for row in device_table(snapshot, EVERYTHING).to_pylist()}
    assert (by_name["GPU:0"]["hfu_ratio"], by_name["GPU:0"]["mfu_ratio"]) == (pytest.approx(0.3), pytest.approx(0.2))
    assert (by_name["GPU:0"]["clock_ratio"], by_name["GPU:0"]["mfu_at_clock_ratio"]) == (0.75, pytest.approx(0.8 / 3))
    assert (by_name["GPU:1"]["clock_ratio"], by_name["GPU:1"]["mfu_at_clock_ratio"]) == (None, None)
    assert (by_name["GPU:1"]["hfu_ratio"], by_name["GPU:1"]["mfu_absent"]) == (0.0, None), "idle is 0, not unknown"


@pytest.mark.parametrize(
    ("sku", "known", "labels", "hfu", "reason"),
    [
        ("TPU v6 Lite", False, [], None, "FLOPs known for 0 % of execution time"),
        ("XPU 1", True, [], None, "the peak of the chip is not known"),
        ("cpu", True, [("peak_flops_per_s", "1.836e15")], pytest.approx(0.075), None),
        ("cpu", True, [("peak_flops_per_s", "fast")], None, "the peak of the chip is not known"),
    ],
)
def test_executions_alone_with_something_unknown(
    lake_of: Lake, sku: str, known: bool, labels: list[tuple[str, str]], hfu: float | None, reason: str | None
) -> None:
    """A chip without a data sheet counts at the peak its process measured."""
    process, program = {**PROCESS, "labels": labels}, {**_PROGRAM, "flops_known": known}
    (run,) = run_table(_executions_alone(lake_of, sku, process, program), EVERYTHING).to_pylist()
    assert (run["hfu_ratio"], run["mfu_absent"], run["hfu_by_dtype"] is None) == (hfu, reason, hfu is None)
