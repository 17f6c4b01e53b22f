"""A process whose first announcement was lost: its rows come from the headers of its batches, until it speaks."""

from __future__ import annotations

from typing import Any

import pytest

from fleetscope.pipelines.coordinate.runs import silent_runs
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.identity import attempt_id, process_id, run_id
from fleetscope.schema.tables import RUNS
from fleetscope.schema.vocabulary import Kind
from fleetscope.sinks.lake.read import Snapshot
from fleetscope.transport.log import Log

pytestmark = pytest.mark.contract

MS = 1_000_000


def _say(bench: Any, host: Any, at: int, said: list[wire.Announcement] | None = None) -> None:
    rows = {"start": [at * MS], "dur": [5], "line": 0, "kind": Kind.COMPUTE}
    bench.send(host.spans(0, at * MS, (at + 1) * MS, rows, announcements=said or []))


def _info(**more: Any) -> wire.Announcement:
    return wire.Announcement(
        process=wire.ProcessInfo(pid=4242, start_ticks=77, run="train", attempt="a1", rank=3, world_size=1, **more)
    )


def _read(bench: Any, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = Snapshot.open(bench.store).table(table).to_pylist()
    return rows


def _published(log: Log, topic: str) -> list[wire.MetricsRecord]:
    end = log.end_offsets(topic)
    values = [message.value for part in end for message in log.read(topic, part, 0, end[part], max_bytes=1 << 24)]
    return [wire.MetricsRecord.FromString(value) for value in values]


def test_spans_and_series_have_their_run_before_the_process_is_announced(bench: Any, series_of: Any) -> None:
    host = bench.host("h1", rank=3)
    _say(bench, host, 0)
    _say(bench, host, 1)
    bench.drain()
    run, attempt = run_id("test", "train"), attempt_id("test", "train", "a1")
    (process,) = _read(bench, "processes")
    names = ("process", "pid", "run", "attempt", "run_name", "attempt_name", "rank")
    assert tuple(process[name] for name in names) == (
        process_id(host.source), 4242, run, attempt, "train", "a1", 3,
    )  # fmt: skip
    (known,) = _read(bench, "runs")
    assert (known["run"], known["attempt"], known["name"], known["end_ns"]) == (run, attempt, "train", 0)
    with Snapshot.open(bench.store).duckdb() as connection:
        named = connection.sql("SELECT run_name, count(*) FROM spans_named GROUP BY ALL").fetchall()
    assert named == [("train", 2)]
    samples = [sample for record in _published(bench.log, bench.topics.metrics) for sample in series_of(record)]
    runs = {labels["run"] for name, labels, _ in samples if name == "fleetscope_device_busy_seconds_total"}
    assert runs == {"train"}
    stored = [item for item in samples if item[0] == "fleetscope_events_total" and item[1]["outcome"] == "stored"]
    assert (stored[-1][1]["run"], stored[-1][2]) == ("train", 2)


@pytest.mark.parametrize("set_back_ns", [0, 10**18], ids=["later", "by a clock set back"])
def test_what_it_says_of_itself_wins(bench: Any, set_back_ns: int) -> None:
    host = bench.host("h1", rank=3)
    _say(bench, host, 0)
    bench.drain()
    host.zero_ns -= set_back_ns
    _say(bench, host, 1, [_info(command="train.py", start_ns=5)])
    host.zero_ns += set_back_ns
    _say(bench, host, 2)
    bench.drain()
    (process,) = _read(bench, "processes")
    assert (process["command"], process["start_ns"], process["world_size"]) == ("train.py", 5, 1)
    (run,) = _read(bench, "runs")
    assert (run["start_ns"], run["seen_ns"] > 1) == (5, True)


def test_a_refused_announcement_leaves_a_run_too(bench: Any) -> None:
    host = bench.host("h1", rank=3)
    _say(bench, host, 0, [_info(command="x" * 5000)])
    _say(bench, host, 1)
    bench.drain()
    assert [row["run_name"] for row in _read(bench, "processes")] == ["train"]
    assert len(_read(bench, "dead_letter")) == 1


def test_an_end_does_not_end_a_run_of_unknown_size(bench: Any) -> None:
    host = bench.host("h1", rank=3)
    end = wire.Announcement(run_event=wire.RunEvent(event="end", at_ns=70))
    _say(bench, host, 0)
    _say(bench, host, 1, [end])
    bench.drain()
    assert [row["end_ns"] for row in _read(bench, "runs")] == [0]
    _say(bench, host, 2, [_info()])
    _say(bench, host, 3, [end])
    bench.drain()
    assert [row["end_ns"] for row in _read(bench, "runs")] == [70]
    assert [row["end_ns"] for row in _read(bench, "processes")] == [70]


def test_nothing_is_presumed_without_a_run_or_of_who_spoke(bench: Any) -> None:
    agent = bench.host("h1", run="", attempt="")
    _say(bench, agent, 0)
    _say(bench, bench.host("h2", rank=3), 0, [_info()])
    _say(bench, bench.host("h2", rank=3), 1)
    bench.drain()
    assert [row["seen_ns"] > 1 for row in bench.rows("processes")] == [True]


def test_silence_does_not_end_a_run_nobody_announced(bench: Any) -> None:
    _say(bench, bench.host("h1"), 0)
    bench.drain()
    runs = Snapshot.open(bench.store).table("runs")
    assert runs.num_rows == 1
    assert silent_runs(runs.cast(RUNS), 1 << 61).num_rows == 0
