"""Start, stop, kill, pause and restart one Kafka broker."""

from __future__ import annotations

import base64
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from kafka.errors import KafkaError

from fleetscope.transport.broker.config import LOGGING, server_properties
from fleetscope.transport.broker.jars import find_jars, find_java
from fleetscope.transport.errors import BrokerFailed, FleetscopeError
from fleetscope.transport.kafka.preflight import connect_admin
from fleetscope.transport.kafka.settings import Cluster, KafkaSettings
from fleetscope.transport.ports import free_port

# Start-up counts, not throughput: C1 only and the serial collector answer after 2 s on an idle machine, 7-9 s on a busy
# one, with 336 MB resident.
_JVM = ("-Xmx384m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_STOP_S = 20.0


class Broker:
    """`with Broker(folder) as broker: open_log(broker.url)`.

    Data, configuration and log lie in `folder`; the same folder started again is the same broker with the same ports. A
    process started from the main thread dies with its parent, so that a killed test run leaves none behind.
    """

    def __init__(self, folder: Path, jars: Path | None = None, properties: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.log_file = folder / "broker.log"
        self._jars = find_jars(jars)
        self._java = find_java()
        self._properties = dict(properties or {})
        self._ports: tuple[int, int] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self._ports[0]}" if self._ports else ""

    @property
    def url(self) -> str:
        """For `open_log`."""
        return f"kafka://{self.address}"

    @property
    def alive(self) -> bool:
        """Whether its process runs, answering or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._running().pid

    def start(self, timeout_s: float = 90.0) -> None:
        """Returns once it answers. BrokerFailed with the end of its log if it does not."""
        if self.alive:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._ports is None:
            self._ports = self._own_ports()
            self._prepare()
        command = self._command("kafka.Kafka", str(self.folder / "server.properties"))
        if threading.current_thread() is threading.main_thread() and (setpriv := shutil.which("setpriv")):
            command = [setpriv, "--pdeathsig", "SIGKILL", *command]
        with open(self.log_file, "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._wait_until_it_answers(timeout_s)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after 20 s."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """SIGKILL: what a machine that lost its power looks like to the clients."""
        process = self._running()
        process.kill()
        process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nobody answers, from now on: the signal returns before the last of a JVM's
        threads has stopped, and one of them still answers then."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        while process.poll() is None and not _stopped(process.pid):
            time.sleep(0.005)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._running().send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise BrokerFailed(f"the broker in {self.folder} is not running, see {self.log_file}")
        return self._process

    def _command(self, main: str, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return [self._java, *_JVM, logging, "-cp", f"{self._jars}/*", main, *arguments]

    def _own_ports(self) -> tuple[int, int]:
        """Two that differ, from each other and from those of `extra.listeners`, which nobody holds yet either."""
        taken = {int(port) for port in re.findall(r":(\d+)", self._properties.get("extra.listeners", ""))}
        while (broker := free_port()) in taken:
            pass
        while (controller := free_port()) in {*taken, broker}:
            pass
        return broker, controller

    def _prepare(self) -> None:
        assert self._ports is not None
        data = self.folder / "data"
        properties = self.folder / "server.properties"
        properties.write_text(server_properties(str(data), *self._ports, self._properties))
        (self.folder / "log4j2.properties").write_text(LOGGING)
        if (data / "meta.properties").exists():
            return
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        # An id that begins with "-" would be taken for an option.
        command = self._command("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(properties))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BrokerFailed(f"Kafka could not format {data}:\n{(done.stdout + done.stderr)[-2000:]}")

    def _wait_until_it_answers(self, timeout_s: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BrokerFailed(f"Kafka ended with {self._process.returncode}:\n{self._log_end()}")
            if _answers(self.address):
                return
            time.sleep(0.1)
        self.stop()
        raise BrokerFailed(f"Kafka does not answer after {timeout_s} s:\n{self._log_end()}")

    def _log_end(self) -> str:
        return self.log_file.read_text(errors="replace")[-2000:]


def _stopped(pid: int) -> bool:
    """Every thread of the process has stopped (proc(5): state T)."""
    try:
        return all(
            stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat")
        )
    except OSError:
        return False  # a thread that ended just now


def _answers(address: str) -> bool:
    """True once the broker gives its metadata: the port opens earlier, while the node still registers."""
    try:
        admin = connect_admin(Cluster((address,), KafkaSettings(connect_timeout_s=2.0, request_timeout_s=2.0)))
    except FleetscopeError:
        return False
    try:
        return bool(admin.describe_cluster()["brokers"])
    except KafkaError:
        return False
    finally:
        admin.close()


def run_foreground(folder: Path, jars: Path | None = None) -> int:
    """For `fleetscope kafka serve`: run until SIGINT or SIGTERM, print the address on stdout; the exit code."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    with Broker(folder, jars) as broker:
        print(broker.url, flush=True)
        while not stopped.wait(0.5):
            if not broker.alive:
                print(f"the broker ended by itself, see {broker.log_file}", file=sys.stderr)
                return 69
    return 0
