"""A real jax process under the injected profiler: annotations, programs, device windows, all the way to the log."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from fleetscope.agents.node import NodeAgent
from fleetscope.agents.programs.chunks import join_chunks
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import AgentConfig, Config, ProfilerConfig
from fleetscope.schema.identity import name_program
from fleetscope.schema.vocabulary import Kind, SpanFlag

from .conftest import batches, shipped

_TRAIN = """
import sys, time
import jax, jax.numpy as jnp
@jax.jit
def train_step(x):
    return jnp.tanh(x @ x) / 10
x = jnp.ones((256, 256))
train_step(x).block_until_ready()
end, n = time.time() + float(sys.argv[1]), 0
while time.time() < end:
    with jax.profiler.StepTraceAnnotation("train", step_num=n):
        with jax.profiler.TraceAnnotation("feed", shard=n % 4):
            time.sleep(0.002)
        x = train_step(x).block_until_ready()
    n += 1
print(n)
"""


@pytest.mark.e2e
def test_a_jax_program_that_knows_nothing_of_us(tmp_path: Path, shm: Path, repository: Path) -> None:
    state = tmp_path / "s"
    config = Config(state_dir=state, agent=AgentConfig(shm_dir=shm, batch_s=0.5), profiler=ProfilerConfig(window_s=1.0))
    agent, stop = NodeAgent(config, collectors=[]), threading.Event()
    thread = threading.Thread(target=agent.run, args=(stop,))
    thread.start()
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "FLEETSCOPE_RUN": "e2e",
        "FLEETSCOPE_STATE_DIR": str(state),
        "FLEETSCOPE_AGENT__SHM_DIR": str(shm),
        "PYTHONPATH": str(repository / "agents" / "profiler" / "inject" / "site"),
    }
    try:
        command = [sys.executable, "-c", _TRAIN, "5"]
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        steps = int(child.communicate(timeout=120)[0])
        deadline = time.monotonic() + 60
        while agent.registry.finished < 1 and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        stop.set()
        thread.join()
    found = batches(state, child.pid)
    assert [b.batch_number for b in found] == list(range(len(found)))
    assert not [d for d in found[-1].dropped if d.events]
    assert found[-1].produced == sum(b.rows for b in found)
    threads = [pa.ipc.open_stream(b.payload).read_all() for b in found if b.rows and not b.HasField("device")]
    rows = pa.concat_tables([t for t in threads if "kind" in t.schema.names]).to_pylist()
    step_rows = [row for row in rows if row["kind"] == Kind.STEP]
    # The profiler sees what follows its connection; the loop begins after a compilation, seconds later.
    assert sorted(row["step"] for row in step_rows) == list(range(steps))
    feeds = [row for row in rows if row["program"] == name_program("feed")]
    assert len(feeds) == steps
    assert all(row["dur"] > 0 for row in feeds)
    assert any(row["kind"] == Kind.COMPILE for row in rows)

    windows = [b for b in found if b.HasField("device") and b.rows]
    assert windows
    loads = {a.program_load.program for b in found for a in b.announcements if a.WhichOneof("info") == "program_load"}
    for batch in windows:
        table = pa.ipc.open_stream(batch.payload).read_all()
        begin, end = table["start"].to_numpy(), table["start"].to_numpy() + table["dur"].to_numpy()
        assert (begin >= batch.tick_from).all()
        assert (end <= batch.tick_to).all()
        assert set(table["weight"].to_pylist()) == {0}
        assert abs(batch.window.length_ticks - (batch.tick_to - batch.tick_from)) < 5_000_000
    last = pa.ipc.open_stream(windows[-1].payload).read_all()
    resolved = [row for row in last.to_pylist() if not row["flags"] & SpanFlag.PROVISIONAL_PROGRAM]
    assert {row["program"] for row in resolved} <= loads
    assert {Kind.MODULE, Kind.COMPUTE} <= {row["kind"] for row in resolved}

    chunks = [wire.ProgramChunk.FromString(value) for value in shipped(state, "fleetscope.programs")]
    modules = {chunk.module for chunk in chunks}
    assert "jit_train_step" in modules
    train = [chunk for chunk in chunks if chunk.module == "jit_train_step" and chunk.source == "hlo"]
    ops = join_chunks(train)
    assert ops is not None
    assert "dot" in " ".join(ops["opcode"].to_pylist())
    ends = [a for b in found for a in b.announcements if a.WhichOneof("info") == "run_event"]
    assert [event.run_event.event for event in ends][-1] == "end"
