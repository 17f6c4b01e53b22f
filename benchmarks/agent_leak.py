"""What a whole agent keeps of processes that came and went: memory, descriptors, threads and files under churn.

A real agent in a process of its own, with short periods and bounds, so that minutes stand for days. Rounds of processes
begin, say hello under a run of their own, record names nobody else has, send a program and a window of their own and
end, every fourth without a word; meanwhile chips are exchanged, the log goes away for every third round, and pages are
scraped. After each round, when the agent has seen all of them off, it is looked at: its live memory, Python objects,
descriptors, threads, and files in its folders (not the log's, which keeps what it is sent).

Live memory is what is in use: bytes of malloc, of Arrow's pool, and blocks of Python's allocator at BLOCK_BYTES each.
The process' private memory is beside it, and no measure of a leak: what allocators hold back comes and goes by 10 MB,
after they were asked to give it up too. `value` is the slope of live memory in MB for 10 000 processes, Theil's (the
median of the slopes of all pairs), after the first third. `--types` says what grew. The last line is one JSON object.
"""

import argparse
import contextlib
import ctypes
import gc
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
from report import report

BUDGET_MB = 1.0
BLOCK_BYTES = 96
"""Of a live block of Python's allocator (they have up to 512 B): 30 MB of an agent are 320 000 of them."""


def agent(folder: Path, shm: Path) -> None:
    """The agent's process: commands come on standard input, a line each; an answer a line."""
    import threading

    from fleetscope.agents.collectors.host import HostCollector
    from fleetscope.agents.collectors.nvidia import NvidiaCollector
    from fleetscope.agents.node import NodeAgent, collect, control, registry, windows
    from fleetscope.agents.simulated.vendors.nvml import FakeNvml, busy_gpu
    from fleetscope.schema.config import Config
    from fleetscope.schema.errors import BrokerUnavailable
    from fleetscope.transport import open_log

    # Bounds within reach of minutes: what fills up to one is no leak, and would look like one until it has.
    registry.FAREWELL_S, registry.RETURN_S, collect.INVENTORY_S = 0.3, 0.5, 0.2
    control.RUNS_KEPT = windows.SHIPPED_PROGRAMS = 32
    away = [False]

    class Log:
        def __init__(self) -> None:
            self._log = open_log(f"file://{folder}/log")

        def __enter__(self) -> "Log":
            return self

        def __exit__(self, *_: object) -> None:
            self._log.close()

        def __getattr__(self, name: str) -> Any:
            if away[0] and name in ("append", "flush"):
                raise BrokerUnavailable("an outage")
            return getattr(self._log, name)

    gpus = [busy_gpu(number) for number in range(1, 5)]
    config = Config(
        state_dir=folder,
        agent={
            "shm_dir": shm,
            "host": "h",
            "batch_s": 0.2,
            "sample_s": 0.2,
            "metrics_address": "127.0.0.1:0",
            "spool_bytes": 4 << 20,
            "batch_bytes": 1 << 18,
        },
        log={"partitions": 1},
    )  # type: ignore[arg-type]
    opener: Any = Log
    node = NodeAgent(config, collectors=[HostCollector(), NvidiaCollector(FakeNvml(gpus))], log_opener=opener)
    node.governor.period_s = 1.0
    node.start()

    stop = threading.Event()

    def rounds() -> None:
        while not stop.is_set():
            node._guarded_tick()
            stop.wait(0.2)

    loop = threading.Thread(target=rounds)
    loop.start()
    print(json.dumps({"address": node.metrics.address}), flush=True)
    for number, line in enumerate(sys.stdin):
        word = line.strip()
        if word == "away":
            away[0] = True
        elif word == "back":
            away[0] = False
        elif word == "chips":
            # A chip is another now, as after a repair or where MIG makes parts anew.
            gpus[number % len(gpus)] = busy_gpu(10 + number)
        elif word == "finished":
            waits = node.spool.wait(0) or node.spool.stats().in_flight > 0
            print(json.dumps([node.registry.finished, len(node.registry), waits]), flush=True)
        elif word == "look":
            print(json.dumps(_look(folder, shm)), flush=True)
        elif word == "types":
            gc.collect()
            print(json.dumps(Counter(type(one).__name__ for one in gc.get_objects()).most_common(60)), flush=True)
    stop.set()
    loop.join()
    node.close()


class _Mallinfo2(ctypes.Structure):
    """Of malloc.h, all arenas: `uordblks` bytes in use, `hblkhd` in maps of their own."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def _look(folder: Path, shm: Path) -> dict[str, float]:
    gc.collect()
    # What allocators hold back for the next use is no leak: it is given back before anybody counts.
    pa.default_memory_pool().release_unused()
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    libc.mallinfo2.restype = _Mallinfo2
    malloc = libc.mallinfo2()
    live = malloc.uordblks + malloc.hblkhd + pa.total_allocated_bytes() + BLOCK_BYTES * sys.getallocatedblocks()
    private = 0
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Dirty:", "Private_Clean:")):
            private += int(line.split()[1])
    files = [path for path in folder.rglob("*") if path.is_file() and "log" not in path.relative_to(folder).parts]
    return {
        "live_mb": live / 1e6,
        "private_mb": private / 1024,
        "blocks": sys.getallocatedblocks(),
        "objects": len(gc.get_objects()),
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(files) + sum(1 for _ in shm.rglob("*")),
    }


def nursery(folder: Path, shm: Path) -> None:
    """Makes processes: `<first> <count>` on standard input, "done" when all have ended."""
    import socket

    from fleetscope.agents.node.facts import boot_id, start_ticks
    from fleetscope.agents.profiler import protocol
    from fleetscope.native import _recorder as r
    from fleetscope.schema import hlo_pb2 as hlo

    def hello(number: int, segment: str) -> protocol.Hello:
        return protocol.Hello(
            version=protocol.VERSION, pid=os.getpid(), start_ticks=start_ticks(os.getpid()) or 0, boot_id=boot_id(),
            run=f"run {number}", attempt=f"attempt {number}", rank=0, world_size=1, command=f"train.py --run {number}",
            python="", jax="", jaxlib="", platform="cpu", segment=segment, started_ns=time.time_ns(),
        )  # fmt: skip

    def program(number: int) -> bytes:
        shape = hlo.Shape(element_type=11, dimensions=[number + 1])
        one = hlo.Instruction(name=f"parameter.{number}", opcode="parameter", id=1, shape=shape)
        module = hlo.HloModule(name=f"jit_f{number}", id=number, entry_computation_id=2)
        module.computations.add(name="main", id=2, root_id=1).instructions.append(one)
        return bytes(module.SerializeToString())

    def live(number: int) -> None:
        segment = r.open(str(shm))
        r.record(True)
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(60)
            peer.connect(str(folder / "agent.sock"))
            frame = protocol.encode(hello(number, segment))
            peer.sendall(frame[socket.send_fds(peer, [frame], [r.descriptor()]) :])
            reader = protocol.Reader()
            while not list(reader.feed(peer.recv(65536))):
                pass
            for part in range(8):
                with r.annotate(f"region {number} {part}", **{f"key {number}": f"text {number}"}):
                    r.counter(f"counter {number % 64}", part)  # ids of series are cached, 4 096 of them
            body = program(number)
            peer.sendall(protocol.encode(protocol.Program(number, f"jit_f{number}", "cpu", time.time_ns(), 0), body))
            peer.sendall(body)
            now, raw = time.time_ns(), time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            opened, closed = protocol.Clocks(raw, now, raw), protocol.Clocks(raw + 9, now + 9, raw + 9)
            body = _capture(number, now)
            window = protocol.Window(1, 9, opened, closed, 1, 0, -1, 0, 0, 0, False)
            peer.sendall(protocol.encode(window, body) + body)
            peer.sendall(protocol.encode(protocol.Cost(steps=3, step=2, skipped={f"why {number % 7}": 1}, windows=1)))
            if number % 4:
                peer.sendall(protocol.encode(protocol.End(time.time_ns(), 3)))
                r.close(False)

    for line in sys.stdin:
        first, count = map(int, line.split())
        children = []
        for number in range(first, first + count):
            child = os.fork()
            if child == 0:
                status = 1
                with contextlib.suppress(BaseException):
                    live(number)
                    status = 0
                os._exit(status)
            children.append(child)
            if len(children) >= 6:
                assert os.waitpid(children.pop(0), 0)[1] == 0
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
        print("done", flush=True)


def _field(number: int, value: int | bytes) -> bytes:
    """A field of protobuf; numbers below 2^28 take their varint of five bytes."""

    def varint(one: int) -> bytes:
        out = b""
        while one >= 0x80:
            out, one = out + bytes([one & 0x7F | 0x80]), one >> 7
        return out + bytes([one])

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def _capture(number: int, start_ns: int) -> bytes:
    """An XSpace (tsl/profiler/protobuf/xplane.proto) with one op of a module of its own on a host thread."""
    names = {1: b"hlo_op", 2: b"hlo_module", 3: b"program_id", 4: b"device_ordinal"}
    stats = [(1, f"add.{number}".encode()), (2, f"jit_g{number}".encode()), (3, 1 << 20 | number), (4, 0)]
    event = _field(1, 1) + _field(2, 1000) + _field(3, 2000)
    for name, value in stats:
        event += _field(4, _field(1, name) + (_field(4, value) if isinstance(value, int) else _field(5, value)))
    line = _field(1, 7) + _field(2, b"thread") + _field(3, start_ns) + _field(4, event)
    plane = _field(2, b"/host:CPU") + _field(3, line)
    plane += _field(4, _field(1, 1) + _field(2, _field(1, 1) + _field(2, b"op")))
    for name, text in names.items():
        plane += _field(5, _field(1, name) + _field(2, _field(1, name) + _field(2, text)))
    return _field(1, plane)


class Churn:
    """The agent and the nursery, each a process of its own."""

    def __init__(self, folder: Path, shm: Path) -> None:
        me = [sys.executable, __file__, "--folder", str(folder), "--shm", str(shm)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self.agent = subprocess.Popen([*me, "--part", "agent"], env=environment, **pipes)
        self.address = json.loads(self.agent.stdout.readline())["address"]  # type: ignore[union-attr]
        self.nursery = subprocess.Popen([*me, "--part", "nursery"], **pipes)
        self.begun = 0

    def say(self, word: str) -> None:
        assert self.agent.stdin is not None
        self.agent.stdin.write(word + "\n")
        self.agent.stdin.flush()

    def ask(self, word: str) -> Any:
        self.say(word)
        assert self.agent.stdout is not None
        return json.loads(self.agent.stdout.readline())

    def round(self, number: int, count: int) -> None:
        """So many processes come and go; returns when the agent has seen the last of them off."""
        self.say("away" if number % 3 == 1 else "back")
        self.say("chips")
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.write(f"{self.begun} {count}\n")
        self.nursery.stdin.flush()
        assert self.nursery.stdout.readline() == "done\n"
        self.begun += count
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=60) as answer:
            answer.read()
        self.say("back")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            finished, known, waits = self.ask("finished")
            if finished >= self.begun and known == 0 and not waits:
                return
            time.sleep(0.1)
        raise SystemExit(f"the agent has not seen off all of {self.begun}: {finished} ended, {known} known")

    def end(self) -> None:
        for process in (self.nursery, self.agent):
            if process.poll() is None:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(60)


def slope(points: list[tuple[float, float]]) -> float:
    """Theil's: the median of the slopes of all pairs; up to three in ten wild points do not move it much."""
    return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2))


def churn(rounds: int, size: int, types: bool = False) -> tuple[list[dict[str, float]], list[tuple[str, float]]]:
    """A look after each round, with the number of processes so far; and what types grew after the first third."""
    folder = Path(tempfile.mkdtemp(prefix="fs-leak-"))
    shm = Path(tempfile.mkdtemp(prefix="fs-leak-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    looks, before, grown = [], Counter[str](), []
    made = Churn(folder, shm)
    try:
        for number in range(rounds):
            made.round(number, size)
            looks.append({"processes": made.begun, **made.ask("look")})
            if types and number == rounds // 3:
                before = Counter(dict(made.ask("types")))
        if types:
            after = Counter(dict(made.ask("types")))
            grown = [(name, count - before[name]) for name, count in after.most_common() if count > before[name]]
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(shm, ignore_errors=True)
    return looks, grown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--size", type=int, default=50, help="processes a round")
    parser.add_argument("--types", action="store_true", help="say which types of objects there are more of")
    parser.add_argument("--part", choices=("agent", "nursery"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shm", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        {"agent": agent, "nursery": nursery}[options.part](options.folder, options.shm)
        return 0
    looks, grown = churn(options.rounds, options.size, options.types)
    kept = looks[len(looks) // 3 :]
    slopes = {
        name: slope([(look["processes"], look[name]) for look in kept]) for name in kept[0] if name != "processes"
    }
    for look in looks[:: max(1, len(looks) // 12)]:
        print(" ".join(f"{name} {value:.{2 * name.endswith('_mb')}f}" for name, value in look.items()))
    for name, count in sorted(grown, key=lambda pair: -pair[1])[:15]:
        print(f"  {count:+d} {name}")
    value = 10_000 * slopes["live_mb"]
    failed = [f"{value:.2f} MB for 10 000 processes"] * (value > BUDGET_MB)
    failed += [f"{slopes[name]:.4f} {name} for a process" for name in ("fds", "threads", "files") if slopes[name] > 0]
    facts = {f"{name}_a_process": round(slopes[name], 4) for name in ("blocks", "objects", "fds", "threads", "files")}
    facts["processes"] = int(looks[-1]["processes"])
    facts["live_mb"], facts["private_mb"] = round(looks[-1]["live_mb"], 1), round(looks[-1]["private_mb"], 1)
    return report("agent_leak", round(value, 3), "MB/10k processes", BUDGET_MB, failed=failed, **facts)


if __name__ == "__main__":
    sys.exit(main())
