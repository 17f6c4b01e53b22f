"""Do all ranks take their windows at the same steps? Processes that restart, join late and go back to checkpoints.

With --executions nobody has step numbers: each tick is an execution on the toy plugin, recorded by the real PJRT shim,
and the coordinator names the program, whose executions each process counts from its beginning. Ranks that were started
again, joined late, or ran the program once more than the others have other numbers, and must be left out.

Real: the profiler of each process (its thread, its socket, placement, adoption of schedules), the agents' socket server
and control reader, an embedded log, the coordinator's decisions committed in a lake. Made up: steps of milliseconds
that do nothing, a profiler session that notes at which step it really began, and a second host whose news come up to
3 s late. While it runs the pace of steps changes, so that K changes in flight; ranks are killed and started again; two
join late; training goes back to checkpoints; the whole job starts again under a new attempt, and the coordinator too.

Misplaced: a window that was not where the committed cadence puts it, that really began beyond the step after it, two
windows of one block and attempt at different steps, or (--executions) of one execution number at different ticks.
Budget 0. The last line is one JSON object.
"""

import argparse
import collections
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from report import report

from fleetscope.agents.node import control
from fleetscope.agents.node.server import Connection, SocketServer
from fleetscope.agents.profiler import placement
from fleetscope.agents.profiler.protocol import Config, Cost, Hello, Message, Window
from fleetscope.pipelines.coordinate import cadence as coordinate
from fleetscope.pipelines.coordinate.cadence import Cadences, Decisions
from fleetscope.schema import wire_pb2 as wire
from fleetscope.sinks.lake.objects import open_store
from fleetscope.transport import Topics, open_log

ROOT = Path(__file__).resolve().parent.parent
TOYS = ROOT / "tests" / "native" / "pjrt_shim"
RUN = "same_step"
WINDOW_S = 0.04
TICKS = 1 << 22
TOPICS = Topics()
PACES_S = {False: (0.002, 0.003, 0.006, 0.01), True: (0.012, 0.02, 0.03)}
"""Of steps; of executions longer, as hosts of a fleet have clocks that agree to milliseconds, not to a tenth of one."""
NEVER_S = float("inf")

WORKER = """
import mmap, os, struct, sys, time, types
rank = int(os.environ["FLEETSCOPE_RANK"])
backend = types.ModuleType("jax._src.xla_bridge")
backend._default_backend = types.SimpleNamespace(platform="cpu", platform_version="none")
sys.modules["jax._src.xla_bridge"] = backend
from fleetscope.agents import profiler
from fleetscope.agents.profiler import executions, loop, placement, segment
from fleetscope.agents.profiler.lifecycle import _process
from fleetscope.native import _recorder
placement.MIN_NS, loop.COST_S, loop.PATIENCE_S = 2_000_000, 0.5, 0.1

library, first, more = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

class Session:
    # Notes the step it really began in, and which tick its execution 0 would have been.
    def __init__(self, *options):
        self.step = (_recorder.executions() if library else _recorder.steps())[0]
    def stop(self):
        return struct.pack("<qq", self.step, joined - 1 - more)

module = types.ModuleType("jaxlib._profiler")
module.ProfilerSession, module.ProfileOptions, module.start_server = Session, types.SimpleNamespace, lambda port: None
sys.modules["jaxlib._profiler"] = module
profiler.start(early=True)
file = open(sys.argv[1], "rb")
page = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
steps = memoryview(page).cast("q")
joined = at = steps[0] if first < 0 else first

if library:
    sys.path.insert(0, {toys!r})
    from toys import Toy
    executions.MARK_NS = 500_000_000
    toy = Toy(library)
    assert not toy.wrap()
    client = toy.client()
    train, other = toy.compile(client, "jit_train"), toy.compile(client, "jit_other")
    toy.execute(train, more, devices=1)
while True:
    # steps[0] ticks have been; each rank goes through all of them since it joined, as a barrier makes it.
    while at >= steps[0]:
        time.sleep(0.0005)
    if library:
        toy.execute(train, 1, devices=1)
        if at % 3 == rank % 3:
            toy.execute(other, 1, devices=1)  # what only some ranks do must not count
    else:
        with profiler.step(steps[1 + at]):
            pass
    at += 1
""".replace("{toys!r}", repr(str(TOYS)))


class Host:
    """An agent's part in it: a socket, a control reader whose news may come late, reports to the log."""

    def __init__(self, folder: Path, url: str, delay_s: float, seed: int) -> None:
        self.folder = folder
        self.windows: list[tuple[str, int, Window, int, int]] = []
        self.costs: dict[tuple[int, int], Cost] = {}
        self._random = random.Random(seed)
        self._log = open_log(url)
        self._controls = control.Controls()
        self._delay_s = delay_s
        self.server = SocketServer(folder / "agent.sock", self._handle, lambda _: None)
        self.reader = control.ControlReader(lambda: open_log(url), TOPICS.control, self._controls, self._news)
        self.server.start()
        self.reader.start()

    def _news(self) -> None:
        time.sleep(self._random.random() * self._delay_s)
        self.server.post(self._controls.schedule)

    def _handle(self, connection: Connection, message: Message, body: bytes) -> tuple[Message, ...]:
        hello = connection.hello
        if isinstance(message, Hello):
            schedule = self._controls.schedule(message)
            config = Config(window_s=WINDOW_S, window_budget=1.0)
            # A late host tells a process that comes what it knows, but not before it knows it.
            return (config,) if schedule is None or self._delay_s else (config, schedule)
        if hello is None:
            return ()
        if isinstance(message, Window):
            self.windows.append((hello.attempt, hello.rank, message, *struct.unpack("<qq", body)))
        elif isinstance(message, Cost):
            self.costs[hello.pid, hello.start_ticks] = message
            source = wire.Source(
                run=hello.run, attempt=hello.attempt, rank=hello.rank, boot_id=hello.boot_id, pid=hello.pid,
                start_ticks=hello.start_ticks,
            )  # fmt: skip
            said = control.report(source, hello, message, time.time_ns())
            self._log.append(TOPICS.reports, control.report_key(source), said.SerializeToString())
        return ()

    def close(self) -> None:
        self.reader.stop()
        self.server.stop()
        self._log.close()


class Job:
    """Ranks as processes, half of them on each host, and the steps they go through."""

    def __init__(self, folder: Path, hosts: list[Host], ranks: int, library: str) -> None:
        """`library`: of the toy plugin, whose executions are the steps; "": steps have numbers."""
        self._folder, self._hosts = folder, hosts
        self.ranks, self.library = ranks, library
        self._first = 0
        self.attempt = 0
        self.lives = 0
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.tick_s, self.step = PACES_S[bool(library)][1], 0
        path = folder / "ticks"
        with path.open("wb") as file:
            file.truncate(8 * TICKS)
        self._file = path.open("r+b")
        self._page = mmap.mmap(self._file.fileno(), 0)
        self._steps = memoryview(self._page).cast("q")
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick)
        self._ticker.start()

    def _tick(self) -> None:
        while not self._stop.wait(self.tick_s):
            at = self._steps[0]
            self._steps[1 + at] = self.step
            self._steps[0] = at + 1
            self.step += 1

    def start(self, rank: int, from_the_first: bool = False) -> None:
        """From the first tick of the attempt, as a job does whose ranks wait for each other; else from now."""
        self.lives += 1
        # A shared-memory folder of its own a life: the kills here are no crashes to remember.
        shm = self._folder / f"shm-{self.lives}"
        shm.mkdir()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FLEETSCOPE_")}
        environment |= {
            "FLEETSCOPE_RUN": RUN,
            "FLEETSCOPE_ATTEMPT": f"a{self.attempt}",
            "FLEETSCOPE_RANK": str(rank),
            "FLEETSCOPE_WORLD_SIZE": str(self.ranks),
            "FLEETSCOPE_AGENT__SHM_DIR": str(shm),
            "FLEETSCOPE_AGENT_SOCKET": str(self._hosts[rank % len(self._hosts)].folder / "agent.sock"),
        }
        # One of those that begin together warms up with one execution more.
        argv = [sys.executable, "-c", WORKER, str(self._folder / "ticks"), self.library]
        argv += [str(self._first if from_the_first else -1), str(int(from_the_first and rank == 3))]
        self.processes[rank] = subprocess.Popen(argv, env=environment)

    def kill(self, rank: int) -> None:
        process = self.processes.pop(rank, None)
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def again(self, back: int) -> None:
        """The whole job under a new attempt, from a checkpoint."""
        for rank in list(self.processes):
            self.kill(rank)
        self.attempt += 1
        self.step = max(0, self.step - back)
        self.begin(self.ranks)

    def begin(self, ranks: int) -> None:
        self._first = self._steps[0]
        for rank in range(ranks):
            self.start(rank, from_the_first=True)

    def close(self) -> None:
        for rank in list(self.processes):
            self.kill(rank)
        self._stop.set()
        self._ticker.join()
        self._steps.release()
        self._page.close()
        self._file.close()


def live(job: Job, hosts: list[Host], url: str, lake: Path, args: argparse.Namespace) -> tuple[int, dict[str, int]]:
    """Runs until enough windows have come; (seconds, what was done to the job)."""
    done: collections.Counter[str] = collections.Counter()
    dice = random.Random(args.seed)
    log = open_log(url)

    def coordinator() -> Cadences:
        return Cadences(log, TOPICS.reports, TOPICS.control, open_store(lake), WINDOW_S, 1.0)

    cadences = coordinator()
    cadences.poll()
    begin = time.monotonic()
    late = 1 if job.library else 2
    job.begin(job.ranks - late)
    due = {"late": begin + 6, "kill": begin + 9, "rewind": begin + 8, "pace": begin + 5, "coordinator": begin + 12}
    due["attempt"] = begin + 35
    every = {"kill": 4, "rewind": 7, "pace": 9, "coordinator": 13, "attempt": 40}
    if job.library:
        # Who was killed stays out until the next attempt, and with half of them out there are no windows at all.
        every |= {"kill": 13, "attempt": 24}
        due |= {"kill": begin + 2, "rewind": NEVER_S, "attempt": begin + 24}
    # 2 + 4 windows a rank and second: what a machine of two cores wakes in time for.
    while sum(len(host.windows) for host in hosts) < args.windows and time.monotonic() - begin < args.seconds:
        time.sleep(0.2)
        cadences.poll()
        now = time.monotonic()
        for what in [what for what, at_s in due.items() if now >= at_s]:
            done[what] += 1
            if what == "late":
                for rank in range(job.ranks - late, job.ranks):
                    job.start(rank)
                due[what] = NEVER_S
                continue
            due[what] = now + every[what]
            if what == "kill":
                rank = dice.choice(sorted(job.processes))
                job.kill(rank)
                job.start(rank)
            elif what == "rewind":
                job.step = max(0, job.step - dice.choice((3, 40, 500, 4000)))
            elif what == "pace":
                job.tick_s = dice.choice(PACES_S[bool(job.library)])
            elif what == "coordinator":
                cadences.close()
                cadences = coordinator()
            else:
                job.again(dice.choice((0, 300)))
    cadences.close()
    log.close()
    return int(time.monotonic() - begin), dict(done)


def judge(job: Job, hosts: list[Host], lake: Path) -> dict[str, Any]:
    decisions = Decisions(open_store(lake))
    stretches = {}
    for attempt in range(job.attempt + 1):
        newest = decisions.newest((RUN, f"a{attempt}"))
        stretches[f"a{attempt}"] = list(newest.stretches) if newest is not None else []
    unknown = elsewhere = beyond = 0
    blocks: dict[tuple[str, int, int], set[int]] = collections.defaultdict(set)
    takers: dict[tuple[str, int], set[int]] = collections.defaultdict(set)
    ticks: dict[tuple[str, int], set[int]] = collections.defaultdict(set)
    windows = [entry for host in hosts for entry in host.windows]
    for attempt, rank, window, began, origin in windows:
        step = window.execution if job.library else window.step
        (stretch,) = [s for s in stretches[attempt] if s.from_step <= step < s.until_step] or [None]
        if stretch is None or stretch.program != window.program or bool(window.program) != bool(job.library):
            unknown += 1
            continue
        elsewhere += step != placement.opening(RUN, stretch.k, step // stretch.k, stretch.strata)[0]
        elsewhere += window.every != stretch.k
        beyond += not step <= began <= step + 1
        blocks[attempt, stretch.k, step // stretch.k].add(step)
        takers[attempt, step].add(rank)
        ticks[attempt, step].add(origin + step if job.library else 0)
    skipped: collections.Counter[str] = collections.Counter()
    for cost in (cost for host in hosts for cost in host.costs.values()):
        skipped.update({f"skipped_{why}": n for why, n in cost.skipped.items()})
        skipped.update({f"lost_{why}": n for why, n in cost.dropped.items()})
    return {
        "windows": len(windows),
        "outside_a_stretch": unknown,
        "not_at_the_opening": elsewhere,
        "began_beyond": beyond,
        "blocks_with_two_steps": sum(len(steps) > 1 for steps in blocks.values()),
        "at_different_ticks": sum(len(found) > 1 for found in ticks.values()),
        "steps_with_windows": len(takers),
        "taken_by_several": sum(len(ranks) > 1 for ranks in takers.values()),
        "ranks_a_step": round(len(windows) / max(1, len(takers)), 2),
        "values_of_k": sorted({s.k for found in stretches.values() for s in found}),
        "stretches": sum(len(found) for found in stretches.values()),
        **skipped,
    }


def toy_library(folder: Path) -> str:
    sys.path.insert(0, str(TOYS))
    import toys

    return str(toys.build(folder, ROOT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--windows", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1200.0, help="ends then, and fails if windows are missing")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--executions", action="store_true", help="no step numbers: the shim's counts instead")
    args = parser.parse_args()
    if args.executions:
        coordinate.PATIENCE_S = 2.0  # of a job that runs for seconds
    with tempfile.TemporaryDirectory(prefix="fs-") as name:
        folder = Path(name)
        library = toy_library(folder) if args.executions else ""
        url, lake = f"file://{folder}/log", folder / "lake"
        with open_log(url) as log:
            log.create_topics(TOPICS.specs(1))
        hosts = []
        for number, delay_s in enumerate((0.0, 3.0)):
            (folder / f"h{number}").mkdir()
            hosts.append(Host(folder / f"h{number}", url, delay_s, args.seed + number))
        job = Job(folder, hosts, args.ranks, library)
        try:
            seconds, done = live(job, hosts, url, lake, args)
        finally:
            job.close()
            for host in hosts:
                host.close()
        facts = judge(job, hosts, lake)
    misplaced = sum(
        facts[key]
        for key in (
            "outside_a_stretch", "not_at_the_opening", "began_beyond", "blocks_with_two_steps", "at_different_ticks"
        )
    )  # fmt: skip
    failed = [
        what
        for what, wrong in (
            (f"{misplaced} windows on different steps", misplaced > 0),
            (f"{facts['windows']} windows of {args.windows}", facts["windows"] < args.windows),
            ("hardly a step was taken by several ranks", facts["taken_by_several"] * 4 < facts["steps_with_windows"]),
            ("K never changed", len(facts["values_of_k"]) < 2),
        )
        if wrong
    ]
    return report(
        "same_execution" if args.executions else "same_step",
        misplaced, "windows on different steps", 0, failed=failed, ranks=args.ranks, seconds=seconds,
        lives=job.lives, attempts=job.attempt + 1, done=done, **facts,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
