"""The whole way of the fleet's clock: simulated hosts with skewed clocks -> log -> worker and coordinator -> lake ->
`fleetscope clocks`, against the simulator's truth. One host steps, the coordinator is another one half way."""

import importlib
import itertools
import json
import random
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fleetscope.agents.batches import Draft, pack, span_rows
from fleetscope.analysis.arrivals import straggler_table
from fleetscope.analysis.order import find, order
from fleetscope.analysis.scope import Scope
from fleetscope.cli.main import app
from fleetscope.pipelines.coordinate import Coordinator, solver
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import Kind
from fleetscope.sinks.lake.alignment import GUARANTEED
from fleetscope.sinks.lake.read import Snapshot
from fleetscope.sinks.prometheus.state import FleetState

pytestmark = pytest.mark.e2e
BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
HOSTS, HOPS, RESTART = 6, 20, 9
STEPS, STEPPED_S, STEP_NS = 4, 135, 200_000
"""Host 4 steps by 200 us in the 14th hop, behind the restart."""
SECOND = 10**9


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/clock_runs.py with the names that `bench` gives its hosts."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("clock_runs")
    monkeypatch.setattr(module, "CLUSTER", "test")
    monkeypatch.setattr(module, "BOOT", "boot-1")
    # The first hop is not waited for: nobody is late here.
    monkeypatch.setattr(solver, "WAIT_S", 0.0)
    return module


class Taken:
    """A fleet whose hop, once simulated, can be looked at twice."""

    def __init__(self, fleet: Any, hop: int) -> None:
        self._fleet, self._told = fleet, fleet.hop(hop)

    def hop(self, _: int) -> Any:
        return self._told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)


@dataclass
class Site:
    """`true_ns`: (host, seq) -> true begin of every span sent, since the simulation began."""

    bench: Any
    fleet: Any
    runs: ModuleType
    true_ns: dict[tuple[int, int], int]
    durations: dict[tuple[int, int], int]
    sent: list[int]

    def batch(self, host: int, arrivals: Any, hop: int) -> Any:
        """What the device of a host did in a hop: its collectives, in ticks of 1.25 ns of its own counter."""
        source = wire.Source(
            cluster="test", host=f"h{host}", boot_id="boot-1", pid=100 + host, start_ticks=7, run="train", attempt="a",
            rank=host,
        )  # fmt: skip
        seconds = np.arange(hop * 10, hop * 10 + 11) * SECOND
        raw = self.fleet.crystals.read(np.full(11, host), seconds)
        ticks = raw * 4 // 5
        mine = arrivals.host == host
        start, end = arrivals.start[mine] * 4 // 5, arrivals.end[mine] * 4 // 5
        inside = (start >= ticks[0]) & (end < ticks[-1])
        start, end, step = start[inside], end[inside], arrivals.sequence[mine][inside]
        for number, (x, y) in enumerate(zip(start.tolist(), end.tolist(), strict=True), self.sent[host]):
            # The same reading of the counter, exactly: 5 / 4 ns a tick.
            self.true_ns[host, number] = int(self.fleet.true(np.array([host]), np.array([-(-x * 5 // 4)]))[0])
            self.durations[host, number] = (y - x) * 5 // 4
        self.sent[host] += len(start)
        device = wire.Device(key=f"h{host}/chip0", platform="tpu", sku="TPU v5e")
        clock = wire.ClockEpoch(clock="gtc", device=device.key, period_num=5, period_den=4)
        wall = self.runs.EPOCH_NS + seconds + int(self.fleet.wall[host])
        snapshots = [
            wire.ClockSnapshot(clock=read, ref=self.runs.RAW, value=int(value), ref_before=at - 50, ref_after=at + 50)
            for at, tick, shown in zip(raw.tolist(), ticks, wall, strict=True)
            for read, value in ((clock, tick), (self.runs.WALL, shown))
        ]
        rows = span_rows(start=start, dur=end - start, line=0, kind=int(Kind.COLLECTIVE), program=5, op=1, step=step)
        said = wire.Announcement(host=wire.HostInfo(cpus=1))
        draft = Draft(
            source, int(ticks[0]), int(ticks[-1]), clock, device, rows, snapshots=snapshots, announcements=[said]
        )
        return [self.bench.numberer.number(packed, int(wall[-1])) for packed in pack(draft)]

    def hop(self, number: int) -> None:
        """Told by all agents, records twice and in any order."""
        taken = Taken(self.fleet, number)
        arrivals = taken.hop(number)[1]
        for host in range(HOSTS):
            self.bench.send(*self.batch(host, arrivals, number))
        records = self.runs.told(taken, number) * 2
        random.Random(number).shuffle(records)
        for record in records:
            self.bench.log.append(self.bench.topics.clocks, record.source.host.encode(), record.SerializeToString())
        self.bench.log.flush()


@pytest.fixture
def lake(bench: Any, runs: ModuleType) -> tuple[Site, Snapshot]:
    """Three minutes of a fleet, stored and solved."""
    fleet = runs.Fleet(5, HOSTS, HOPS * 10 + 20)
    fleet.collectives = importlib.import_module("clocklab.fleet").Collectives(size=HOSTS, hiccup=0.0)
    fleet.crystals.step(STEPS, STEPPED_S, STEP_NS)
    site = Site(bench, fleet, runs, {}, {}, [0] * HOSTS)
    worker = bench.worker()
    coordinator = Coordinator(bench.config, store=bench.store, log=bench.log)
    coordinator._tell_clocks()
    for number in range(HOPS):
        if number == RESTART:
            coordinator.round_once()
            coordinator.close()
            coordinator = Coordinator(bench.config, store=bench.store, log=bench.log)
            coordinator._tell_clocks()
        site.hop(number)
        worker.run_once()
        coordinator._tell_clocks()
        if number % 4 == 3:
            coordinator.round_once()
    coordinator.round_once()
    coordinator.close()
    return site, Snapshot.open(bench.store)


def test_hosts_step_and_order_as_the_simulator_says(lake: tuple[Site, Snapshot], bench: Any) -> None:
    site, snapshot = lake
    hosts = {row["process"]: int(row["name"][1:]) for row in _named(snapshot)}
    rows = snapshot.table("spans")
    # No event is lost, and no map changes a duration.
    assert rows.num_rows == len(site.true_ns) > 800
    keys = [(hosts[p], seq) for p, seq in zip(rows["process"].to_pylist(), rows["seq"].to_pylist(), strict=True)]
    assert rows["dur_ns"].to_pylist() == [site.durations[key] for key in keys]

    _within_bounds(site, snapshot, keys)
    _said_on_the_command_line(bench, site)
    _ordered(site, snapshot, keys, rows["process"].to_pylist())
    _told_to_exporters(bench)


def _named(snapshot: Snapshot) -> list[dict[str, Any]]:
    with snapshot.duckdb(["processes", "hosts"]) as connection:
        return (
            connection.sql("SELECT p.process, h.name FROM processes p JOIN hosts h USING (host)")
            .to_arrow_table()
            .to_pylist()
        )


def _within_bounds(site: Site, snapshot: Snapshot, keys: list[tuple[int, int]]) -> None:
    written = Snapshot.open(snapshot.store, clock_version=0).table("spans")
    columns = (written[name].to_numpy() for name in ("map", "t_ns", "t_sub"))
    order_of = {
        (p, s): place
        for place, (p, s) in enumerate(zip(written["process"].to_pylist(), written["seq"].to_pylist(), strict=True))
    }
    assert len(order_of) == len(keys)
    placed = snapshot.alignment.place(*columns)
    true = np.array([site.true_ns[key] for key in keys])
    proved = placed.moved & (placed.quality == GUARANTEED)
    assert placed.moved.mean() > 0.85  # all but the first hop and the last ones
    assert proved.mean() > 0.5  # nor what no coordinator saw both ends of, nor the step
    error = placed.t_ns - site.runs.EPOCH_NS - true
    step = np.array([number for _, number in keys])
    # The error of two rows of one moment: what all share is the axis.
    by_moment: dict[int, list[int]] = {}
    for place in np.flatnonzero(proved).tolist():
        by_moment.setdefault(int(true[place]) // (100 * 10**6), []).append(place)
    checked = 0
    worst, before = [], []
    wall = written["t_ns"].to_numpy() - site.runs.EPOCH_NS - true
    for places in by_moment.values():
        for a, b in itertools.combinations(places, 2):
            apart = error[a] - error[b]
            # true - stated in [lo, hi] of each, against one reference
            assert placed.lo_ns[b] - placed.hi_ns[a] <= apart <= placed.hi_ns[b] - placed.lo_ns[a], (
                keys[a],
                keys[b],
                step[a],
            )
            worst.append(abs(int(apart)))
            before.append(abs(int(wall[a] - wall[b])))
            checked += 1
    assert checked > 1000
    assert np.median(worst) < 10_000 < 100_000 < np.median(before)


def _said_on_the_command_line(bench: Any, site: Site) -> None:
    def ask(*words: str) -> Any:
        folder = str(bench.store.location(""))
        shown = CliRunner().invoke(app, ["clocks", *words, "--lake", folder, "-o", "json"])
        assert shown.exit_code == 0, shown.output
        return json.loads(shown.stdout)

    rows = {row["host"]: row for row in ask()}
    assert set(rows) == {f"h{host}" for host in range(HOSTS)}
    assert {name: row["steps"] for name, row in rows.items() if row["steps"]} == {"h4": 1}
    assert rows["h4"]["step_ns"] == pytest.approx(STEP_NS, rel=0.2)
    at_s = (rows["h4"]["stepped_ns"] - site.runs.EPOCH_NS) / SECOND
    assert STEPPED_S - 11 <= at_s <= STEPPED_S + 10
    for name, row in rows.items():
        assert row["quality"] == "guaranteed"
        assert row["bound_ns"] < 200_000
        # its wall clock against the fleet's; the fleet itself is within what wall clocks say of UTC
        assert abs(row["offset_ns"] - site.fleet.wall[int(name[1:])]) < 2 * site.fleet.max_error_ns
        assert row["worst_peer"] is not None
    told = ask("explain", "h4")
    assert "step" in {row["kind"] for row in told["verdicts"]}
    assert len(ask("edges")) >= HOSTS
    with Snapshot.open(bench.store).duckdb(["spans"]) as connection:
        # ids are signed: one with a minus is an event, no option
        events = connection.sql(
            "SELECT process || ':' || seq FROM spans WHERE step > 0 ORDER BY process LIMIT 2"
        ).fetchall()
    (said,) = ask("order", *(event for (event,) in events))
    assert "one clock" in said["why"]
    ranked = ask("stragglers", "--run", "train")
    assert {row["host"] for row in ranked} == set(rows)


def _ordered(site: Site, snapshot: Snapshot, keys: list[tuple[int, int]], processes: list[int]) -> None:
    """What is claimed is so; and something is claimed that wall clocks could not."""
    draw = random.Random(1)
    names = dict(zip(keys, processes, strict=True))
    chosen = draw.sample(sorted(keys, key=lambda key: site.true_ns[key])[60:-120], 40)
    near = sorted(keys, key=lambda key: site.true_ns[key])
    at = {key: place for place, key in enumerate(near)}
    claims = 0
    pairs = [(key, near[at[key] + draw.randrange(1, 5)]) for key in chosen]
    events = [(names[key], key[1]) for pair in pairs for key in pair]
    found = dict(zip(events, find(snapshot, events), strict=True))
    for a, b in pairs:
        first, second = found[names[a], a[1]], found[names[b], b[1]]
        assert first is not None
        assert second is not None
        said = order(first, second)
        end_a, end_b = site.true_ns[a] + site.durations[a], site.true_ns[b] + site.durations[b]
        if said.word == "before":
            assert end_a < site.true_ns[b]
        elif said.word == "after":
            assert end_b < site.true_ns[a]
        claims += said.word in ("before", "after")
    assert claims > 3
    # Of hops that are solved to the end, and lie before the step.
    covered = (site.runs.EPOCH_NS + seconds * SECOND for seconds in (20, 110))
    _, (said,) = straggler_table(snapshot, Scope("train", None, *covered))
    assert said.before > 500  # milliseconds apart, collectives of 2 ms
    assert (said.after, said.proved) == (0, 0)


def _told_to_exporters(bench: Any) -> None:
    state = FleetState(10**15, 10**15, 10_000)
    for message in bench.log.read_compacted(bench.topics.metrics).values():
        state.take(wire.MetricsRecord.FromString(message), 0)
    shown = {family.metric.name: family.samples for family in state.families(0)}
    assert shown["fleetscope_clock_nodes"] == {(): HOSTS}
    assert shown["fleetscope_clock_steps_total"]["h4",] == 1
    assert set(shown["fleetscope_clock_host_quality"]) == {(f"h{host}", "guaranteed") for host in range(HOSTS)}
    assert 0 < shown["fleetscope_clock_host_bound_seconds"]["h0",] < 200e-6
    assert shown["fleetscope_exporter_unknown_samples"] == {(): 0}
