"""What threads are in now, over the agent's socket and on its page; and what they were in when they died."""

import json
import os
import socket
import struct
import time
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from fleetscope.agents.node import answers
from fleetscope.agents.profiler import protocol
from fleetscope.cli.main import app
from fleetscope.schema.identity import name_program
from fleetscope.schema.vocabulary import Kind, SpanFlag

from .conftest import Child, MakeAgent, batches, eventually

SLOTS_OFFSET, SLOT_BYTES, OPEN_OFFSET = 8192, 128, 8192 + 64 * 128  # docs/format/recorder.md
IN_THREADS = (
    "import threading; hold = threading.Event(); gate = threading.Barrier(2)\n"
    "def work():\n"
    " with r.annotate('shard'), r.annotate('read'):\n"
    "  gate.wait(); hold.wait()\n"
    "threading.Thread(target=work, name='loader', daemon=True).start(); gate.wait()"
)


def asked(agent: Any, query: protocol.Query) -> protocol.Answer:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(60)
        peer.connect(str(agent.server.path))
        peer.sendall(protocol.encode(query))
        reader = protocol.Reader()
        while True:
            for answer, _ in reader.feed(peer.recv(65536)):
                assert isinstance(answer, protocol.Answer)
                return answer


def rows(agent: Any, what: str, **more: int) -> list[dict[str, Any]]:
    return json.loads(asked(agent, protocol.Query(what, **more)).rows)


def in_regions(child: Child) -> None:
    child.do("connect()")
    child.do("s = r.step(7); s.__enter__(); a = r.annotate('save'); a.__enter__()")
    child.do(f"exec({IN_THREADS!r})")


@pytest.mark.unit
def test_each_thread_shows_what_it_is_in_and_for_how_long(
    make_agent: MakeAgent, spawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_agent()
    child: Child = spawn()
    before = time.monotonic_ns()
    in_regions(child)
    time.sleep(0.3)
    inside = time.monotonic_ns()
    found = rows(agent, "stacks")
    assert [(row["thread"], row["depth"], row["region"], row["kind"]) for row in found] == [
        ("MainThread", 0, "step", "step"), ("MainThread", 1, "save", "host"),
        ("loader", 0, "shard", "host"), ("loader", 1, "read", "host"),
    ]  # fmt: skip
    assert {row["pid"] for row in found} == {child.pid}
    for row in found:
        assert row["open_ns"] + 1e6 >= 300e6
        assert row["open_ns"] <= time.monotonic_ns() - before
    assert found[0]["open_ns"] >= found[1]["open_ns"] >= found[2]["open_ns"] >= 0.99 * (inside - before) - 1e9
    page = urllib.request.urlopen(f"http://{agent.metrics.address}/metrics", timeout=60).read().decode()
    (family,) = [f for f in text_string_to_metric_families(page) if f.name == "fleetscope_open_span_seconds"]
    (sample,) = family.samples
    assert sample.labels == {"host": "h1", "run": "run", "rank": "0", "pid": str(child.pid)}
    assert found[0]["open_ns"] / 1e9 <= sample.value <= (time.monotonic_ns() - before) / 1e9

    monkeypatch.setenv("FLEETSCOPE_STATE_DIR", str(tmp_path / "s"))
    said = CliRunner().invoke(app, ["stacks", "-o", "json", "--pid", str(child.pid)])
    assert [row["region"] for row in json.loads(said.stdout)] == ["step", "save", "shard", "read"]
    assert json.loads(CliRunner().invoke(app, ["stacks", "-o", "json", "--pid", "1"]).stdout) == []
    told = json.loads(CliRunner().invoke(app, ["agent", "status", "-o", "json"]).stdout)
    assert (told["agent"]["host"], told["agent"]["processes"]) == ("h1", 1)
    (one,) = told["processes"]
    assert (one["pid"], one["step"], one["state"], one["recording"]) == (child.pid, 7, "connected", True)
    elsewhere = CliRunner().invoke(app, ["stacks", "--host", "h2"])
    assert (elsewhere.exit_code, "FS3102" in elsewhere.output) == (69, True)
    child.do("hold.set(); a.__exit__(None, None, None); s.__exit__(None, None, None)")
    eventually(lambda: rows(agent, "stacks") == [])


@pytest.mark.unit
def test_a_host_without_an_agent_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETSCOPE_STATE_DIR", str(tmp_path))
    for words in (["stacks"], ["agent", "status"]):
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, "FS3102" in done.output) == (69, True)


@pytest.mark.unit
def test_long_answers_come_in_parts(make_agent: MakeAgent, spawn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ANSWER_BYTES", 300)
    agent = make_agent()
    for rank in range(2):
        in_regions(spawn(rank))
    found: list[dict[str, Any]] = []
    query, pages = protocol.Query("stacks"), 0
    while True:
        answer = asked(agent, query)
        assert len(answer.rows) < 500
        found += json.loads(answer.rows)
        pages += 1
        if not answer.more:
            break
        query = query._replace(process=answer.process, row=answer.row)
    assert pages > 2
    assert [row["region"] for row in found] == ["step", "save", "shard", "read"] * 2
    again = rows(agent, "stacks", process=-5, row=-(1 << 40))
    assert [row["region"] for row in again] == [row["region"] for row in found[: len(again)]]
    assert rows(agent, "stacks", process=1 << 60) == []
    assert rows(agent, "what") == []


@pytest.mark.fault
def test_what_a_killed_process_was_in_is_kept_as_truncated(
    make_agent: MakeAgent, spawn: Any, tmp_path: Path
) -> None:  # fmt: skip
    agent = make_agent()
    child: Child = spawn()
    in_regions(child)
    child.do("[r.annotate('done').__enter__().__exit__(None, None, None) for _ in range(3)]")
    agent.tick()
    lived_at = agent.clocks.now()
    time.sleep(0.2)
    agent.tick()
    child.kill()
    agent.tick()
    died_at = agent.clocks.now()
    agent.close()
    found = batches(tmp_path / "s", child.pid)
    shipped = [row for b in found if b.rows for row in pa.ipc.open_stream(b.payload).read_all().to_pylist()]
    cut = [row for row in shipped if row["flags"] & SpanFlag.TRUNCATED]
    names = {name_program(name): name for name in ("step", "save", "shard", "read", "done")}
    assert sorted(names[row["program"]] for row in cut) == ["read", "save", "shard", "step"]
    assert sum(names[row["program"]] == "done" for row in shipped) == 3
    for row in cut:
        assert lived_at <= row["start"] + row["dur"] <= died_at
        assert row["step"] == 7
        assert (row["kind"] == Kind.STEP) == (names[row["program"]] == "step")
    last = found[-1]
    assert last.produced == 7
    assert not last.dropped


@pytest.mark.fault
def test_a_process_that_lies_about_its_stack_harms_nobody(
    make_agent: MakeAgent, spawn: Any, tmp_path: Path, shm: Path
) -> None:  # fmt: skip
    agent = make_agent()
    child: Child = spawn()
    in_regions(child)
    (path,) = shm.glob("*.ring")
    with open(path, "r+b") as file:
        regions = struct.pack("<QQ", (1 << 64) - 1, 0xFF << 32 | 0xFFFFFFFF) + struct.pack("<QQ", 0, 8 << 32 | 8191)
        os.pwrite(file.fileno(), regions, OPEN_OFFSET)
        for depth in (65, 1 << 31, (1 << 32) - 1):
            os.pwrite(file.fileno(), struct.pack("<I", depth), SLOTS_OFFSET + 20)
            assert {row["thread"] for row in rows(agent, "stacks")} == {"loader"}
        os.pwrite(file.fileno(), struct.pack("<I", 2), SLOTS_OFFSET + 20)
    lies = [row for row in rows(agent, "stacks") if row["thread"] == "MainThread"]
    assert [row["region"] for row in lies] == ["other", "other"]
    assert [row["open_ns"] for row in lies] == [0, 0]
    child.kill()
    agent.tick()
    assert agent.failed_rounds == 0
    agent.close()
    last = batches(tmp_path / "s", child.pid)[-1]
    assert {entry.reason: entry.events for entry in last.dropped} == {"invalid_row": 2}
    assert last.produced == 4
