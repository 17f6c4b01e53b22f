"""The simulator keeps its own promises: same seed same fleet, truth that matches what was sent, faults that happen."""

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleetscope.agents.simulated import Simulation
from fleetscope.agents.simulated.faults import SHAPES, parse_faults
from fleetscope.agents.simulated.program import make_program
from fleetscope.pipelines.symbolize.cost import cost_program
from fleetscope.schema import config
from fleetscope.schema.errors import FleetscopeError
from fleetscope.schema.vocabulary import Kind
from fleetscope.schema.wire_pb2 import Batch
from fleetscope.transport import Topics, open_log


def _simulate(folder: Path, **more: object) -> dict[str, pa.Table]:
    loaded = config.load(None, state_dir=folder)
    options: dict[str, object] = {"hosts": 2, "chips": 4, "seconds": 8, "ops": 40, "step_ms": 250.0, "speed": "max"}
    Simulation(loaded, truth=folder / "truth", **{**options, **more}).run(threading.Event())  # type: ignore[arg-type]
    return {file.stem: pq.read_table(file) for file in (folder / "truth").glob("*.parquet")}


def _sent(folder: Path) -> list[Batch]:
    loaded = config.load(None, state_dir=folder)
    with open_log(loaded.log_url) as log:
        topic = Topics(loaded.log.topic_prefix).telemetry
        ends = log.end_offsets(topic)
        return [Batch.FromString(m.value) for p, end in ends.items() for m in log.read(topic, p, 0, end)]


def _rows(batch: Batch) -> pa.Table:
    return pa.ipc.open_stream(batch.payload).read_all()


@pytest.mark.unit
def test_the_same_seed_is_the_same_fleet_and_another_is_not(tmp_path: Path) -> None:
    first = _simulate(tmp_path / "a", seconds=3)["spans"].drop_columns(["source"])
    again = _simulate(tmp_path / "b", seconds=3)["spans"].drop_columns(["source"])
    other = _simulate(tmp_path / "c", seconds=3, seed=2)["spans"].drop_columns(["source"])
    assert first.equals(again)
    assert first.num_rows > 0
    assert not first.equals(other)


@pytest.mark.unit
def test_what_was_sent_is_what_the_truth_says_even_across_a_wrap_of_the_register(tmp_path: Path) -> None:
    truth = _simulate(tmp_path, seconds=28, step_ms=1000.0)
    sent = {}
    for batch in _sent(tmp_path):
        if batch.rows and batch.device.key:
            rows = _rows(batch)
            seqs = range(batch.first_event, batch.first_event + batch.rows)
            for seq, start, dur in zip(seqs, rows["start"].to_pylist(), rows["dur"].to_pylist(), strict=True):
                sent[batch.source_id, seq] = (start, dur)
    told = truth["spans"].filter(pa.compute.greater_equal(truth["spans"]["chip"], 0))
    expected = {
        (source, seq): (start, dur)
        for source, seq, start, dur in zip(
            *(told[name].to_pylist() for name in ("source", "seq", "start", "dur")), strict=True
        )
    }
    assert sent == expected
    # The x16 register of chip 1 is 45 bits wide and begins at most 25 s before its wrap: ticks beyond were unwrapped.
    chip = told.filter(pa.compute.equal(told["chip"], 1))
    assert pa.compute.max(chip["start"]).as_py() > 1 << 45 > pa.compute.min(chip["start"]).as_py()


@pytest.mark.unit
def test_true_and_device_time_agree_to_the_parts_per_million_the_clocks_are_off(tmp_path: Path) -> None:
    truth = _simulate(tmp_path)
    spans, clocks = truth["spans"], {row["device"]: row for row in truth["clocks"].to_pylist()}
    for device, clock in clocks.items():
        mine = spans.filter(pa.compute.equal(spans["device"], device))
        ticks = np.ptp(mine["start"].to_numpy()) * clock["period_num"] / clock["period_den"]
        true = np.ptp(mine["true_begin_ns"].to_numpy())
        assert (ticks / true - 1) * 1e6 == pytest.approx(clock["ppm"], abs=1.0)


@pytest.mark.unit
def test_all_chips_leave_a_step_together_and_the_throttled_one_last_to_arrive(tmp_path: Path) -> None:
    fault = ["throttle:host=1,chip=2,at=0,for=100,slowdown=2"]
    spans = _simulate(tmp_path, faults=fault, seconds=30, busy=0.5)["spans"]
    barrier = spans.filter(pa.compute.equal(spans["op"], 39))
    late = barrier.to_pylist()
    last = [row for row in late if row["step"] == max(r["step"] for r in late)]
    ends = [row["true_end_ns"] for row in last]
    assert max(ends) - min(ends) <= 20_000
    slow = max(last, key=lambda row: row["true_begin_ns"])
    assert (slow["host"], slow["chip"]) == (1, 2)


@pytest.mark.unit
def test_flops_of_the_truth_are_those_of_the_cost_pass_and_every_kind_occurs() -> None:
    program = make_program(3, 1500)
    cost = cost_program(program.table.ops)[1]
    assert (cost.flops, cost.model_flops) == (program.flops, program.flops)
    shares = np.bincount(program.kind, minlength=16) / 1500
    assert shares[Kind.COMPUTE] == pytest.approx(0.88, abs=0.04)
    assert shares[Kind.COLLECTIVE] == pytest.approx(0.07, abs=0.02)
    assert shares[Kind.COPY] == pytest.approx(0.03, abs=0.02)
    assert shares[Kind.CONTAINER] == pytest.approx(0.08 / 3, abs=0.02)
    assert np.median(program.median_ns) == pytest.approx(20_000, rel=0.15)


@pytest.mark.unit
@pytest.mark.parametrize(
    "shape",
    [
        {"seconds": 40, "step_ms": 9000.0, "busy": 0.9},  # steps longer than the seconds batches are made in
        # shorter than the step annotation when the straggler's data is there at last
        {"seconds": 6, "step_ms": 20.0, "ops": 10, "faults": ["straggler:host=1,at=2,for=2"]},
    ],
)
def test_every_shape_of_step_gives_batches_that_keep_to_the_wire(tmp_path: Path, shape: dict[str, object]) -> None:
    truth = _simulate(tmp_path, **{"ops": 40, **shape})
    for batch in _sent(tmp_path):
        if batch.rows and batch.HasField("device"):
            start, dur = (_rows(batch)[name].to_numpy() for name in ("start", "dur"))
            assert batch.tick_from <= start.min() <= (start + dur).max() <= batch.tick_to
    host = truth["spans"].filter(pa.compute.equal(truth["spans"]["chip"], -1)).sort_by("start").to_pylist()
    assert host
    for process in {row["process"] for row in host}:
        open_until: list[int] = []
        for row in [row for row in host if row["process"] == process]:
            while open_until and open_until[-1] <= row["start"]:
                open_until.pop()
            open_until.append(row["start"] + row["dur"])
            assert open_until == sorted(open_until, reverse=True), "one thread's annotations lie inside each other"


@pytest.mark.unit
def test_lost_batches_are_missing_late_ones_come_after_and_duplicates_twice(tmp_path: Path) -> None:
    faults = ["lost:host=0,at=2,count=2", "duplicate:host=1,at=2,count=2", "late:host=1,at=5,count=1,by=2"]
    truth = _simulate(tmp_path, faults=faults)
    damage = {(row["kind"], row["source"], row["batch"]) for row in truth["damage"].to_pylist()}
    assert sorted(kind for kind, _, _ in damage) == ["duplicate"] * 2 + ["late"] + ["lost"] * 2
    order = [(batch.source_id, batch.batch_number) for batch in _sent(tmp_path)]
    for kind, source, batch in damage:
        assert order.count((source, batch)) == {"lost": 0, "duplicate": 2, "late": 1}[kind]
        if kind == "late":
            assert order.index((source, batch)) > order.index((source, batch + 1))


@pytest.mark.unit
def test_a_restarted_agent_goes_on_counting(tmp_path: Path) -> None:
    _simulate(tmp_path, faults=["restart:host=0,at=4"])
    numbers: dict[int, list[int]] = {}
    for batch in _sent(tmp_path):
        numbers.setdefault(batch.source_id, []).append(batch.batch_number)
    assert all(sorted(set(found)) == list(range(len(set(found)))) for found in numbers.values())
    assert len(numbers) == 4, "an agent and a process on each of two hosts, before and after"


@pytest.mark.unit
@pytest.mark.parametrize(
    "text", ["meteor", "throttle:host=99", "throttle:colour=3", "lost:count", "throttle:at=soon", "throttle:chip=4"]
)
def test_a_fault_that_is_not_understood_is_a_numbered_error(text: str) -> None:
    with pytest.raises(FleetscopeError, match="FS3080"):
        parse_faults([text], 60, 8, 4)


@pytest.mark.unit
def test_all_is_one_of_each_kind_and_fits_a_small_fleet() -> None:
    assert {fault.kind for fault in parse_faults(["all"], 60, 1, 1)} == set(SHAPES)
    assert {fault.kind for fault in parse_faults(["all-but-lost"], 60, 8, 4)} == set(SHAPES) - {"lost"}
