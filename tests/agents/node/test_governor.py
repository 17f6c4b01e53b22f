"""What recording costs is kept within its budgets: by the rules alone, and with real processes and their profilers."""

import itertools
import json
import math
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from fleetscope.agents.node import NodeAgent
from fleetscope.agents.node.governed import Governed, load
from fleetscope.agents.node.governor import PERIOD_S, Governor, fair_share
from fleetscope.agents.node.ladder import CAPS, NAMES, REST, ladder, thinning
from fleetscope.agents.node.meter import Meter, RoundCost
from fleetscope.agents.profiler.protocol import Cost
from fleetscope.cli.main import app
from fleetscope.native.recorder import HOST, LAUNCH, Drained
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import AgentConfig, Config, GovernorConfig, ProfilerConfig
from fleetscope.schema.identity import name_program

from .conftest import batches, eventually

unit = pytest.mark.unit


class Simulated:
    """A process that passes its sites at given rates, as a governor meets it. A record costs it 25 ns, one left out 10,
    the agent 1 us."""

    def __init__(self, governor: Governor, pid: int, rates: dict[str, float], launches: float = 0.0) -> None:
        self.governor, self.rates, self.launches = governor, rates, launches
        self.key, self.final, self.meter = (pid, 1), False, Meter()
        self.source = wire.Source(pid=pid, run="r", rank=pid)
        self.names = list(rates)
        self.events = self.windows = 0
        self.passes: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self.meter.said(Cost(record_ps=25_000, pass_ps=10_000))

    def name_text(self, name: int) -> str:
        return self.names[name]

    @property
    def state(self) -> Governed:
        return self.governor.of(self.key)

    def lives(self, seconds: float, noise: float = 0.0) -> None:
        ids: list[int] = []
        weights: list[int] = []
        for name, rate in self.rates.items():
            passes = round(rate * seconds * (1 + random.uniform(-noise, noise)))
            shift = self.state.thin.of(name)
            kept = 0 if self.governor.rung(self.key).level == 0 else round(passes / 2**shift)
            ids += [self.names.index(name)] * kept
            weights += [1 << shift] * kept
            self.passes[name] += passes
            self.told[name] += kept << shift
        launches = round(self.launches * seconds)
        zeros = np.zeros(len(ids) + launches, np.int64)
        kind = np.array([HOST] * len(ids) + [LAUNCH] * launches, np.uint8)
        columns: dict[str, Any] = dict.fromkeys(Drained.__slots__, zeros)
        columns |= {"name": np.array(ids + [0] * launches, np.int32), "kind": kind, "lost": 0, "more": False}
        columns |= dict.fromkeys(("arg_row", "arg_key", "arg_kind", "arg_value"), zeros[:0])
        columns["weight"] = np.array(weights + [1] * launches, np.int32)
        self.events += len(kind)
        self.meter.drained(Drained(**columns), self.events, 8192)
        self.meter.ns["drain"] += 1000.0 * len(kind)

    def takes_windows(self, count: int, stall_ms: int) -> None:
        self.windows += count
        self.meter.said(Cost(windows=self.windows, stalls=8, stall_ns=stall_ms * 1_000_000))


def world(step: float = 1.0, core: float = 100.0, **profiler: Any) -> Governor:
    return Governor(GovernorConfig(step_budget=step, core_budget=core), ProfilerConfig(**profiler))


def looks(governor: Governor, processes: list[Any], count: int, noise: float = 0.0, now_s: float = 0.0) -> float:
    """The governor's clock after so many looks."""
    for _ in range(count):
        for process in processes:
            process.lives(PERIOD_S, noise)
        now_s += PERIOD_S
        governor.look(now_s, processes, 1000)
        assert governor.look(now_s + PERIOD_S / 2, processes, 1000) == frozenset()
    return now_s


def began(governor: Governor, processes: list[Any]) -> None:
    governor.look(0.0, processes, 1000)


@unit
def test_a_hot_site_is_thinned_at_the_first_look_and_let_go_afterwards() -> None:
    governor = world(core=500e-6)
    process = Simulated(governor, 1, {"hot": 2000.0, "rare": 3.0})
    began(governor, [process])
    now_s = looks(governor, [process], 1)
    assert process.state.rung > 0
    assert process.state.thin.of("hot") >= 2  # 2 ms/s to half of one
    assert process.state.thin.of("rare") == 0  # the guilty site alone
    assert [(d.lever, d.was, d.reason) for d in governor.decisions] == [("regions", 0, "agent")]
    looks(governor, [process], 100, 0.05, now_s)
    assert process.state.shares.drain <= 500e-6
    assert len(governor.decisions) == 1  # a steady load: nothing more to decide
    assert process.told["hot"] == pytest.approx(process.passes["hot"], rel=0.01)
    process.rates = {"hot": 20.0, "rare": 3.0}
    looks(governor, [process], 3, 0.05, now_s + 100 * PERIOD_S)
    assert (process.state.rung, process.state.thin.of("hot")) == (0, 0)
    assert governor.decisions[-1].reason == "under_budget"


@unit
@pytest.mark.parametrize("edge", [0.5, 0.72, 0.9, 1.0, 1.1, 1.5, 2.0, 3.1])
def test_a_load_at_the_edge_does_not_make_it_oscillate(edge: float) -> None:
    random.seed(7)
    governor = world(core=500e-6)
    process = Simulated(governor, 1, {"hot": 500.0 * edge})
    began(governor, [process])
    looks(governor, [process], 360, 0.3)  # an hour, of periods that differ by a third either way
    lowered = [decision.now > decision.was for decision in governor.decisions]
    turns = sum(a != b for a, b in itertools.pairwise(lowered))
    assert turns <= 24  # a raise that is taken back is tried again after 20, 40, 80 ... 640 s: twelve times


@unit
def test_who_is_not_guilty_is_left_alone() -> None:
    governor = world(core=0.001)
    guilty = Simulated(governor, 1, {"hot": 5000.0})
    innocent = [Simulated(governor, pid, {"step part": 50.0}) for pid in range(2, 8)]
    began(governor, [guilty, *innocent])
    looks(governor, [guilty, *innocent], 10)
    assert guilty.state.rung > 0
    assert [process.state.rung for process in innocent] == [0] * 6
    assert sum(p.state.shares.drain for p in (guilty, *innocent)) <= 0.001
    # Cost that is no annotation's: there is nothing to gain by throwing annotations away.
    launching = Simulated(governor, 9, {"few": 100.0}, launches=5000.0)
    looks(governor, [guilty, *innocent, launching], 10, now_s=1000.0)
    assert launching.state.rung == 0


@unit
def test_what_a_round_costs_is_not_what_its_records_cost() -> None:
    """By a machine where a round costs 2 ms and a record 3 us, whoever is heard: a calm process alone, and both."""
    random.seed(5)
    for rates in ([50], [5000], [50, 5000], [0, 3, 200]):
        cost = RoundCost()
        for _ in range(400):
            for rate in rates:
                records = round(rate * random.uniform(0.8, 1.2))
                cost.add(records, round(2e6 + records * 3e3 * random.uniform(0.9, 1.3)))
        of_records = cost.record_ns * max(rates)
        assert of_records <= 1.2 * 3e3 * max(rates) + 2e6
        if len(rates) == 2:
            assert cost.record_ns == pytest.approx(3.3e3, rel=0.1)


@unit
def test_fair_share_fills_the_budget_exactly() -> None:
    assert fair_share([1, 2, 3], 6) == math.inf
    assert fair_share([1, 2, 9], 6) == 3
    assert fair_share([4, 5, 9], 6) == 2
    random.seed(3)
    for _ in range(200):
        costs = [random.expovariate(1) for _ in range(random.randrange(1, 9))]
        share = fair_share(costs, 2.0)
        assert sum(min(cost, share) for cost in costs) == pytest.approx(min(2.0, sum(costs)))


@unit
def test_passes_that_alone_are_too_dear_switch_the_sites_off_and_are_tried_again() -> None:
    governor = world(step=20e-6)
    process = Simulated(governor, 1, {"hot": 3000.0})  # 30 us/s for passes that leave no record
    began(governor, [process])
    now_s = looks(governor, [process], 12)
    assert governor.rungs[-1].level == 0
    assert [d.now for d in governor.decisions][-1] >= len(governor.rungs) - 2  # off, or tried
    assert len(governor.rungs) - 1 in [d.now for d in governor.decisions]
    looks(governor, [process], 360, now_s=now_s)
    trials = [d.reason for d in governor.decisions].count("trial")
    assert 4 <= trials <= 10  # in an hour: after 10, 20, 40 ... 640 s, not after each 10
    # Even so a trial lets no flood through: the sites are as thin as they were.
    assert process.state.thin.of("hot") >= 5
    process.rates = {"hot": 10.0}
    looks(governor, [process], 140, now_s=now_s + 3600)
    assert process.state.rung == 0


@unit
def test_windows_are_thinned_by_their_stalls_and_come_back() -> None:
    governor = world(step=0.005)
    process = Simulated(governor, 1, {})
    process.takes_windows(0, 0)
    began(governor, [process])
    now_s = 0.0
    for _ in range(30):  # one in 20 s costs 300 ms: 1.5 %
        process.takes_windows(1 if int(now_s / 20) % (1 << process.state.window_shift) == 0 else 0, 300)
        now_s = looks(governor, [process], 2, now_s=now_s)
    assert process.state.window_shift == 2
    assert [(d.lever, d.was, d.now, d.reason) for d in governor.decisions] == [
        ("windows", 0, 1, "windows"), ("windows", 1, 2, "windows"),
    ]  # fmt: skip
    for _ in range(120):
        process.takes_windows(1 if int(now_s / 20) % (1 << process.state.window_shift) == 0 else 0, 10)
        now_s = looks(governor, [process], 2, now_s=now_s)
    assert process.state.window_shift == 0


@unit
def test_no_site_leaves_more_than_the_cap_and_no_more_are_thinned_than_must_be() -> None:
    random.seed(1)
    passes = {f"site {n}": 10 ** random.uniform(0, 6) for n in range(60)}
    for cap in CAPS:
        thin = thinning(passes, cap)
        for name, rate in passes.items():
            assert rate / 2 ** thin.of(name) <= cap
            assert thin.of(name) == 0 or rate / 2 ** (thin.of(name) - 1) > cap
        assert thin.rest == 0
    many = {f"file {n}": 1.0 for n in range(100_000)}  # names from data: each is passed once
    thin = thinning(many, 32)
    assert len(thin.names) <= NAMES
    assert (100_000 - NAMES) / 2**thin.rest <= REST * 32
    assert set(thin.names.values()) == {0}
    assert [rung.level for rung in ladder(3)[-4:]] == [3, 2, 1, 0]


@unit
def test_what_an_earlier_life_left_is_no_reason_to_fail(tmp_path: Path) -> None:
    path = tmp_path / "governed.json"
    assert load(path, "b") == {}
    for kept in ("[]", "{", '{"boot_id": "old", "processes": {"1-1": {"rung": 3}}}'):
        path.write_text(kept)
        assert load(path, "b") == {}
    for said in ({"rung": "x"}, 7, {"rung": 3, "thin": 5}, {"rung": 3, "thin": {"a": "b"}, "rest": 0}):
        path.write_text(json.dumps({"boot_id": "b", "processes": {"1-1": said}}))
        assert Governor(GovernorConfig(), ProfilerConfig(), load(path, "b")).of((1, 1)).rung == 0


_PROGRAM = """
import json, select, sys, time
from fleetscope.agents import profiler
from fleetscope.native import _recorder
profiler.start()
while not _recorder.recording():
    time.sleep(0.01)
hot, counts, rate, done, begun = profiler.site("hot"), {"hot": 0, "named": 0, "rare": 0}, 0, 0, time.monotonic()
while True:
    if select.select([sys.stdin], [], [], 0.005)[0]:
        line = sys.stdin.readline()
        if not line:
            break
        rate, done, begun = float(line), 0, time.monotonic()
    due = int((time.monotonic() - begun) * rate) - done
    done += due
    for n in range(due):
        with hot:
            pass
        if n % 2:
            with profiler.annotate("named", n=n):
                pass
            counts["named"] += 1
    counts["hot"] += due
    with profiler.annotate("rare"):
        counts["rare"] += 1
print(json.dumps(counts))
"""


@contextmanager
def running(config: Config) -> Iterator[NodeAgent]:
    agent, stop = NodeAgent(config, collectors=[]), threading.Event()
    agent.governor.period_s = 1.0
    agent.start()

    def rounds() -> None:
        while not stop.wait(agent.tick()):
            pass

    thread = threading.Thread(target=rounds)
    thread.start()
    try:
        yield agent
    finally:
        stop.set()
        thread.join()
        agent.close()


@pytest.mark.e2e
def test_a_hot_process_is_lowered_the_other_is_not_and_its_statistics_stay_right(
    tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Looks every second in place of ten; an agent that restarts goes on where the last one was."""
    # Not the default: a round without records costs what the machine makes of it.
    config = Config(state_dir=tmp_path / "s", agent=AgentConfig(shm_dir=shm), governor=GovernorConfig(core_budget=0.02))
    monkeypatch.setenv("FLEETSCOPE_STATE_DIR", str(tmp_path / "s"))
    monkeypatch.setenv("FLEETSCOPE_AGENT__SHM_DIR", str(shm))
    monkeypatch.setenv("FLEETSCOPE_RUN", "governed")
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    programs = [subprocess.Popen([sys.executable, "-c", _PROGRAM], **pipes) for _ in range(2)]
    for program in programs:
        request.addfinalizer(program.kill)
    hot, calm = programs

    def says(rate: float) -> None:
        hot.stdin.write(f"{rate}\n")
        hot.stdin.flush()

    with running(config) as agent:

        def state(program: subprocess.Popen[str]) -> Governed:
            return next(agent.governor.of(p.key) for p in agent.registry if p.hello.pid == program.pid)

        eventually(lambda: len(agent.registry) == 2)
        says(20_000)
        eventually(lambda: state(hot).rung > 0)
        eventually(lambda: 0 < state(hot).shares.drain < config.governor.core_budget)
        assert (state(calm).rung, state(calm).thin.of("rare")) == (0, 0)
        told = json.loads(CliRunner().invoke(app, ["agent", "status", "-o", "json"]).stdout)
        assert told["agent"]["core_budget_ratio"] == 0.02
        assert {(d["pid"], d["lever"]) for d in told["decisions"]} == {(hot.pid, "regions")}
        assert (told["decisions"][0]["was"], told["decisions"][0]["reason"]) == (0, "agent")
        by_pid = {row["pid"]: row for row in told["processes"]}
        assert by_pid[hot.pid]["level"] > 0 == by_pid[calm.pid]["level"]
        assert by_pid[calm.pid]["records"] == "every region"
    lowered = state(hot).thin
    with running(config) as agent:
        eventually(lambda: len(agent.registry) == 2)
        assert state(hot).thin == lowered  # before its first look
        eventually(lambda: all(process.connected for process in agent.registry))
        says(0)
        eventually(lambda: state(hot).rung == 0)
        counts = [json.loads(program.communicate(timeout=60)[0]) for program in programs]
        eventually(lambda: agent.registry.finished == 2)
    for program, count in zip(programs, counts, strict=True):
        found = batches(tmp_path / "s", program.pid)
        # What was left out is no loss: its weight says it. A machine too busy for 20 000 records/s overwrites some.
        dropped = {d.reason: d.events for d in found[-1].dropped if d.events}
        lost = dropped.pop("ring_overwritten", 0) if program is hot else 0
        assert dropped == {}
        assert found[-1].produced == lost + sum(b.rows for b in found)
        spans = [pa.ipc.open_stream(b.payload).read_all() for b in found if b.payload_kind == wire.PAYLOAD_SPANS]
        rows = pa.concat_tables([table.select(["program", "weight"]) for table in spans]).to_pylist()
        for name, passes in count.items():
            weights = [row["weight"] for row in rows if row["program"] == name_program(name)]
            # At each change a block of 2^k passes is cut: one pass of it stands for as many as it had, on average.
            assert abs(sum(weights) - passes) <= (4 + lost) * max(weights, default=0) + 0.001 * passes
            assert (program, name) != (hot, "hot") or max(weights) > 1
            assert program is hot or set(weights) <= {1}
