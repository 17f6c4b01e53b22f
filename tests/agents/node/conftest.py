"""An agent of its own folder, and training processes made of nothing but the recorder and the socket's protocol."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fleetscope.agents.collectors import Collector
from fleetscope.agents.node import NodeAgent
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import AgentConfig, Config, OtlpConfig
from fleetscope.schema.errors import UnknownTopic
from fleetscope.transport import open_log

_CHILD = """
import json, os, signal, socket, sys, time
from fleetscope.agents.profiler import protocol
from fleetscope.native import _recorder as r
shm, path, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
segment = r.open(shm)
r.record(True)
started = int(open(f"/proc/{os.getpid()}/stat").read().rsplit(")", 1)[1].split()[19])
hello = protocol.Hello(version=protocol.VERSION, pid=os.getpid(), start_ticks=started,
    boot_id=open("/proc/sys/kernel/random/boot_id").read().strip(), run="run", attempt="a1", rank=rank, world_size=1,
    command="train.py", python="3.11", jax="", jaxlib="", platform="cpu", segment=segment, started_ns=time.time_ns())
peer = None
def connect():
    global peer
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(path)
    send(hello)
    reader = protocol.Reader()
    while True:
        for message, _ in reader.feed(peer.recv(65536)):
            return message
def send(message, body=b""):
    frame = protocol.encode(message, body) + body
    peer.sendall(frame[socket.send_fds(peer, [frame], [r.descriptor()]):])
def say(**what):
    os.write(1, json.dumps(what).encode() + b"\\n")
for line in sys.stdin:
    exec(line)
    say(done=line.strip())
"""


class Child:
    """A training process that runs the Python lines it is given."""

    def __init__(self, shm: Path, socket: Path, rank: int = 0, inside: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*inside, sys.executable, "-c", _CHILD, str(shm), str(socket), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def do(self, line: str) -> list[dict[str, Any]]:
        """Run one line; what it said on the way."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        said: list[dict[str, Any]] = []
        while True:
            answer = json.loads(self.process.stdout.readline())
            if "done" in answer:
                return said
            said.append(answer)

    def kill(self) -> None:
        self.process.kill()
        # Before its input ends: what runs inside something else would take that for its end, and see to it.
        self.process.wait(60)
        self.close()

    def close(self) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process.wait(60)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


MakeAgent = Callable[..., NodeAgent]


@pytest.fixture
def make_agent(tmp_path: Path, shm: Path) -> Iterator[MakeAgent]:
    """Started agents that tick when the test says so; closed at the end."""
    made: list[NodeAgent] = []

    def make(collectors: list[Collector] | None = None, otlp: dict[str, Any] | None = None, **agent: Any) -> NodeAgent:
        options: dict[str, Any] = {"shm_dir": shm, "host": "h1", "sample_s": 0.05, "spool_bytes": 64 << 20, **agent}
        # A short path: a unix socket's may have 108 bytes.
        config = Config(state_dir=tmp_path / "s", agent=AgentConfig(**options), otlp=OtlpConfig(**(otlp or {})))
        built = NodeAgent(config, collectors=collectors or [])
        built.start()
        made.append(built)
        return built

    yield make
    for agent in made:
        agent.close()


@pytest.fixture
def spawn(shm: Path, tmp_path: Path) -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def start(rank: int = 0, inside: Sequence[str] = ()) -> Child:
        child = Child(shm, tmp_path / "s" / "agent.sock", rank, inside)
        children.append(child)
        return child

    yield start
    for child in children:
        if child.process.poll() is None:
            child.kill()


def eventually(true: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "did not come about"
        time.sleep(0.02)


def shipped(state_dir: Path, topic: str = "fleetscope.telemetry") -> list[bytes]:
    """Every value of a topic of the embedded log below `state_dir`."""
    with open_log(f"file://{state_dir}/log") as log:
        try:
            ends = log.end_offsets(topic)
        except UnknownTopic:  # the agent has not sent anything yet
            return []
        return [m.value for partition, end in sorted(ends.items()) for m in log.read(topic, partition, 0, end)]


def batches(state_dir: Path, pid: int | None = None) -> list[wire.Batch]:
    """In the log's order; `pid` 0 is the agent itself."""
    found = [wire.Batch.FromString(value) for value in shipped(state_dir)]
    return [batch for batch in found if pid is None or batch.source.pid == pid]
