"""Nothing blocks, memory stays under its cap, the ledger is exact: log away, spool disk full, trainer killed in
mid-write, agent killed and started again.

In each scene a training process records regions at a steady rate and counts them itself, before and after each, in a
file both sides map; an agent of its own ships them. Afterwards the log is read and every region must be there once, or
be counted as lost by reason, and numbered losses must be exactly the gaps in the numbers.

    bounded.py                 short: 8 s a scene, the embedded log
    bounded.py --full          the log away for 2 minutes
    bounded.py --kafka         a broker of our own, paused while it is "away"

The last line is one JSON object; exit code 1 if anything is not exact, blocked, or over 150 MB.
"""

import argparse
import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from report import report

from fleetscope.schema.wire_pb2 import Batch
from fleetscope.transport import open_log
from fleetscope.transport.broker.broker import Broker

BUDGET_PSS_MB = 150.0
RATE = 20_000
SPOOL_BYTES = 768 << 10
"""Small enough that 8 s without the log overflow it."""
NUMBERED = {"spool_full", "spool_disk", "batch_too_large"}
"""Reasons whose events had numbers (docs/format/wire.md). Stated again here: the benchmark judges the code."""

_AGENT = """
import os, signal, sys, threading
from pathlib import Path
from fleetscope.agents.node import NodeAgent
from fleetscope.schema.config import load
from fleetscope.transport import open_log
from fleetscope.transport.errors import BrokerUnavailable, DeliveryUnknown
flag, config = Path(sys.argv[1]), load(None, governor={"enabled": False})

class Unknown:
    def done(self): return True
    def result(self, timeout_s=None): raise DeliveryUnknown("away")

class Away:
    # While the flag is there nothing is taken; every third message is taken but not acknowledged.
    def __init__(self, log): self.log, self.turn = log, 0
    def create_topics(self, specs): return self.log.create_topics(specs)
    def close(self): self.log.close()
    def append(self, topic, key, value):
        if flag.exists():
            self.turn += 1
            if self.turn % 3 == 0:
                self.log.append(topic, key, value)
                return Unknown()
            raise BrokerUnavailable("away")
        return self.log.append(topic, key, value)

def opener():
    if flag.exists():
        raise BrokerUnavailable("away")
    log = open_log(config.log_url)
    return log if config.log_url.startswith("kafka") else Away(log)

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
NodeAgent(config, log_opener=opener).run(stop)
"""

_TRAINER = """
import mmap, os, socket, struct, sys, time
from fleetscope.agents.profiler import protocol
from fleetscope.native import _recorder as r
shm, path, rate, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
with open(count, "r+b") as file:
    counts = mmap.mmap(file.fileno(), 32)
segment = r.open(shm)
r.record(True)
started = int(open(f"/proc/{os.getpid()}/stat").read().rsplit(")", 1)[1].split()[19])
hello = protocol.Hello(version=protocol.VERSION, pid=os.getpid(), start_ticks=started,
    boot_id=open("/proc/sys/kernel/random/boot_id").read().strip(), run="bounded", attempt="a", rank=0, world_size=1,
    command="bounded", python="", jax="", jaxlib="", platform="", segment=segment, started_ns=time.time_ns())
peer = socket.socket(socket.AF_UNIX)
peer.connect(path)
peer.sendall(protocol.encode(hello))
names = [f"region_{i}" for i in range(64)]
begin, done, worst = time.monotonic(), 0, 0
while not os.path.exists(count + ".stop"):
    now = time.monotonic()
    while done < (now - begin) * rate:
        counts[0:8] = struct.pack("<q", done + 1)
        cpu = time.thread_time_ns()
        with r.annotate(names[done % 64], value=done):
            pass
        worst = max(worst, time.thread_time_ns() - cpu)
        done += 1
        counts[8:32] = struct.pack("<qqq", done, worst, int((now - begin) * 1e9))
    time.sleep(0.002)
r.close(False)
"""


def pss_mb(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


@dataclass
class Scene:
    """Folders and processes of one scenario."""

    name: str
    url: str = ""
    small_disk: bool = False
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="fs-bounded-")))
    shm: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="fs-bounded-", dir="/dev/shm")))
    agent: Any = None
    trainer: Any = None
    worst_pss_mb: float = 0.0

    def __post_init__(self) -> None:
        self.url = self.url or f"file://{self.folder}/log"
        self.flag = self.folder / "away"
        self.count = self.folder / "count"
        self.count.write_bytes(bytes(32))

    def start_agent(self) -> None:
        state = self.folder / "s"
        environment = {
            **os.environ,
            "FLEETSCOPE_STATE_DIR": str(state),
            "FLEETSCOPE_LOG__URL": self.url,
            "FLEETSCOPE_LOG__TOPIC_PREFIX": self.name,
            "FLEETSCOPE_AGENT__SHM_DIR": str(self.shm),
            "FLEETSCOPE_AGENT__SPOOL_BYTES": str(SPOOL_BYTES),
            "OPENBLAS_NUM_THREADS": "1",
        }
        command = [sys.executable, "-c", _AGENT, str(self.flag)]
        if self.small_disk:
            spool = state / "spool"
            spool.mkdir(parents=True, exist_ok=True)
            # A disk of its own, in a namespace of its own: 1 MiB, of which the reserve takes half.
            mount = f'mount -t tmpfs -o size=1100k tmpfs "{spool}" && exec "$@"'
            command = ["unshare", "-Urm", "sh", "-c", mount, "sh", *command]
        self.agent = subprocess.Popen(command, env=environment)
        deadline = time.monotonic() + 30
        while not self.lock_held(state / "agent.sock") and time.monotonic() < deadline:
            if self.agent.poll() is not None:
                raise SystemExit(f"{self.name}: the agent did not start")
            time.sleep(0.05)

    def lock_held(self, socket: Path) -> bool:
        lock = socket.with_name(socket.name + ".lock")
        return socket.exists() and lock.exists() and lock.read_text().strip() == f"pid {self.agent.pid}"

    def start_trainer(self) -> None:
        arguments = [str(self.shm), str(self.folder / "s" / "agent.sock"), str(RATE), str(self.count)]
        self.trainer = subprocess.Popen([sys.executable, "-c", _TRAINER, *arguments])

    def watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.worst_pss_mb = max(self.worst_pss_mb, pss_mb(self.agent.pid))
            time.sleep(0.25)

    def counts(self) -> tuple[int, int, int, int]:
        """(regions begun, regions ended, worst region in ns of CPU, ns since the first)"""
        with self.count.open("r+b") as file, mmap.mmap(file.fileno(), 32) as counts:
            begun, ended, worst, elapsed = struct.unpack("<qqqq", counts[:32])
        return begun, ended, worst, elapsed

    def finish(self) -> dict[str, Any]:
        self.folder.joinpath("count.stop").touch()
        self.trainer.wait()
        self.watch(9)
        self.agent.send_signal(signal.SIGTERM)
        self.agent.wait(60)
        begun, ended, worst, elapsed = self.counts()
        result = {"scene": self.name, **judge(self.url, self.name, begun, ended), "pss_mb": round(self.worst_pss_mb, 1)}
        result["worst_region_us"] = worst / 1000
        # It kept its pace: nothing it did waited for anybody.
        result["pace"] = round(ended / (RATE * elapsed / 1e9), 3)
        result["ok"] = result["exact"] and self.worst_pss_mb <= BUDGET_PSS_MB and result["pace"] > 0.9
        self.close()
        return result

    def close(self) -> None:
        for process in (self.trainer, self.agent):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.shm, ignore_errors=True)


def judge(url: str, prefix: str, begun: int, ended: int) -> dict[str, Any]:
    """The balance of the trainer's source, from the log alone against what the trainer counted."""
    by_number: dict[tuple[int, int], bytes] = {}
    repeated = contradictory = 0
    with open_log(url) as log:
        topic = f"{prefix}.telemetry"
        for partition, end in log.end_offsets(topic).items():
            for message in log.read(topic, partition, log.start_offsets(topic)[partition], end):
                batch = Batch.FromString(message.value)
                if batch.source.run != "bounded":
                    continue
                key = (batch.source_id, batch.batch_number)
                repeated += key in by_number
                contradictory += by_number.setdefault(key, message.value) != message.value
    batches = [Batch.FromString(value) for _, value in sorted(by_number.items())]
    sources = {batch.source_id for batch in batches}
    kept = sum(batch.rows for batch in batches)
    last = batches[-1]
    dropped = {entry.reason: entry.events for entry in last.dropped}
    gaps, expected = 0, 0
    for batch in batches:
        gaps += batch.first_event - expected
        expected = batch.first_event + batch.rows
    numbered = sum(events for reason, events in dropped.items() if reason in NUMBERED)
    unnumbered = sum(dropped.values()) - numbered
    exact = (
        len(sources) == 1
        and contradictory == 0
        and gaps == numbered
        and last.produced == kept + gaps + unnumbered
        # A killed process may have stored a region it had not counted yet, or begun one it never ended.
        and ended <= last.produced <= begun
    )
    return {
        "exact": exact,
        "begun": begun,
        "ended": ended,
        "produced": last.produced,
        "in_log": kept,
        "gaps": gaps,
        "dropped": dropped,
        "repeated_batches": repeated,
        "contradictory": contradictory,
        "sources": len(sources),
    }


def log_away(seconds: float, url: str, away: Callable[[bool, Scene], None]) -> dict[str, Any]:
    scene = Scene("away", url)
    scene.start_agent()
    scene.start_trainer()
    scene.watch(2)
    away(True, scene)
    scene.watch(seconds)
    away(False, scene)
    scene.watch(2)
    return scene.finish()


def disk_full(seconds: float, url: str) -> dict[str, Any]:
    scene = Scene("full", url, small_disk=True)
    scene.flag.touch()
    scene.start_agent()
    scene.start_trainer()
    scene.watch(seconds)
    scene.flag.unlink()
    result = scene.finish()
    result["ok"] = result["ok"] and result["dropped"].get("spool_disk", 0) > 0
    return result


def trainer_killed(url: str) -> dict[str, Any]:
    scene = Scene("killed", url)
    scene.start_agent()
    scene.start_trainer()
    scene.watch(random.uniform(2.0, 4.0))
    scene.trainer.kill()
    return scene.finish()


def agent_killed(url: str, times: int) -> dict[str, Any]:
    scene = Scene("restarted", url)
    scene.start_agent()
    scene.start_trainer()
    for _ in range(times):
        scene.watch(random.uniform(0.5, 1.5))
        scene.agent.kill()
        scene.agent.wait()
        scene.start_agent()
    scene.watch(2)
    return scene.finish()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the log away for 120 s instead of 8")
    parser.add_argument("--kafka", action="store_true", help="a real broker, paused while it is away")
    parser.add_argument("--scene", action="append", choices=("away", "full", "killed", "restarted"))
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    chosen = options.scene or ["away", "full", "killed", "restarted"]
    folder = Path(tempfile.mkdtemp(prefix="fs-broker-"))
    broker = Broker(folder) if options.kafka else None

    def away(begin: bool, scene: Scene) -> None:
        if broker is not None:
            broker.pause() if begin else broker.resume()
        elif begin:
            scene.flag.touch()
        else:
            scene.flag.unlink()

    try:
        url = ""
        if broker is not None:
            broker.start()
            url = broker.url
        scenes: dict[str, Callable[[], dict[str, Any]]] = {
            "away": lambda: log_away(120.0 if options.full else 8.0, url, away),
            "full": lambda: disk_full(8.0, url),
            "killed": lambda: trainer_killed(url),
            "restarted": lambda: agent_killed(url, 5),
        }
        results = []
        for name in chosen:
            results.append(scenes[name]())
            print(json.dumps(results[-1]), flush=True)
    finally:
        if broker is not None:
            broker.stop()
        shutil.rmtree(folder, ignore_errors=True)
    exact = sum(result["exact"] for result in results)
    failed = [str(result["scene"]) for result in results if not result["ok"]]
    worst = max(float(result["pss_mb"]) for result in results)
    return report("bounded", worst, "MB PSS", BUDGET_PSS_MB, failed=failed, scenes=len(results), exact=exact)


if __name__ == "__main__":
    sys.exit(main())
