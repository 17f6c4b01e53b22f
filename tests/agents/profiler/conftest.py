"""An agent of a few lines that keeps what it is told, and a way to run Python programs against it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleetscope.agents.profiler import protocol
from fleetscope.native.recorder import Drained, Segment


class ToyAgent:
    """Accepts any number of processes, answers each hello with `config`, drains segments when asked."""

    def __init__(self, path: Path, config: protocol.Config) -> None:
        self.path = path
        self.config = config
        self.messages: list[tuple[protocol.Message, bytes]] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        reader = protocol.Reader()
        try:
            while data := connection.recv(1 << 20):
                for message, body in reader.feed(data):
                    assert message is not None
                    self.messages.append((message, body))
                    if isinstance(message, protocol.Hello):
                        connection.sendall(protocol.encode(self.config))
        except OSError:
            return

    def of(self, kind: type) -> list[tuple[protocol.Message, bytes]]:
        return [entry for entry in list(self.messages) if isinstance(entry[0], kind)]

    def wait_for(self, kind: type, count: int = 1, seconds: float = 60) -> list[tuple[protocol.Message, bytes]]:
        until = time.monotonic() + seconds
        while len(self.of(kind)) < count:
            assert time.monotonic() < until, f"{count} {kind.__name__} did not come; there were {self.messages}"
            time.sleep(0.01)
        return self.of(kind)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join()
        self.path.unlink(missing_ok=True)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[..., ToyAgent]]:
    """``agent(window_s=...)`` starts one on ``tmp_path/agent.sock``."""
    started: list[ToyAgent] = []

    def start(**config: object) -> ToyAgent:
        started.append(ToyAgent(tmp_path / "agent.sock", protocol.Config(**config)))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    """Where the processes of a test put their segments."""
    folder = tmp_path / "shm"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def environment(tmp_path: Path, shm: Path) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("FLEETSCOPE_", "SLURM_", "PYTHON"))}
    return clean | {
        "FLEETSCOPE_AGENT_SOCKET": str(tmp_path / "agent.sock"),
        "FLEETSCOPE_AGENT__SHM_DIR": str(shm),
        "JAX_PLATFORMS": "cpu",
    }


@pytest.fixture
def python(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``python(code, *args)``: runs it to its end; a warning or a non-zero status fails the test."""

    def run(code: str, *args: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *args],
            env=environment | more,
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


def drained(path: str) -> tuple[list[str], Drained]:
    """Names of all events in a segment, and the events."""
    segment = Segment(path)
    got = segment.drain(1 << 20)
    names = segment.names()
    return [names[number] for number in got.name], got


@pytest.fixture
def only_segment(shm: Path) -> Callable[[], tuple[list[str], Drained]]:
    """What the one segment in ``shm`` holds."""

    def read() -> tuple[list[str], Drained]:
        (path,) = shm.glob("fleetscope-*.ring")
        return drained(str(path))

    return read
