"""Exactness: a simulated fleet with every fault through log, workers and coordinators to the lake, against its truth.

The comparison knows nothing of the pipeline's kernels: it reads the simulator's Parquet and the lake with DuckDB and
numpy, recomputes nesting and busy time on its own, and converts ticks with integers wider than 64 bits. Prints one JSON
line last; exit code 1 on any mismatch, each named on stderr.

    python benchmarks/exact.py            # 120 s of 8 x 4, 20 kills, a zombie, two coordinators, both logs: ~10 minutes
    python benchmarks/exact.py --short --log file
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from exact_truth import Mismatch, compare
from report import report

from fleetscope.agents.simulated import Simulation
from fleetscope.schema import config
from fleetscope.sinks.lake.generation import current_generation
from fleetscope.sinks.lake.objects import open_store

ROOT = Path(__file__).resolve().parents[1]


def fleetscope(*arguments: str, folder: Path) -> subprocess.Popen[bytes]:
    """One role as a process of its own, its log in `folder`."""
    environment = {**os.environ, "FLEETSCOPE_CONFIG": str(folder / "config.yaml")}
    with (folder / f"{arguments[0]}.log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "fleetscope.cli.main", *arguments],
            env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip


FEW_FILES = 20
"""An epoch or two of a worker."""


def drain(folder: Path, options: argparse.Namespace, rng: random.Random) -> dict[str, int]:
    """Run workers and coordinators to the end of the log, killing, stopping and waking them on the way.

    Most blows wait until the role has written something new to the lake, so that they fall in the middle of work on any
    machine; the others fall at any time, in its imports too. `mid_work`: blows after which the lake held files that
    were not there before. A worker that sleeps has begun: files of an epoch are there and its manifest, mostly, is not.
    """
    counts = {"kills": 0, "mid_work": 0, "zombies": 0, "generations": 1}
    steps = len(options.rechain) + 1
    changes = {options.kill * (index + 1) // steps: count for index, count in enumerate(options.rechain)}
    zombie: subprocess.Popen[bytes] | None = None
    for _ in range(6 * options.kill):
        due = [kills for kills in sorted(changes) if kills <= counts["kills"]]
        # Not before the last change has happened: one that no worker saw would be none.
        count = changes.pop(due[0]) if due and generation(folder) == counts["generations"] else 0
        if count:
            # Only what is folded can be dealt anew; the blow that follows falls between fences and epochs.
            finish("coordinator", folder, 1)
            deal(folder, count)
            counts["generations"] += 1
        wants_zombie = options.zombie and zombie is None
        if counts["kills"] >= options.kill and not wants_zombie:
            break
        role = "worker" if wants_zombie or count else rng.choice(["worker", "worker", "coordinator"])
        before = files(folder / "lake")
        process = fleetscope(role, "--once", folder=folder)
        if not struck_late_enough(process, folder / "lake", before, options, rng):
            continue  # it was done before the blow: nothing was struck
        reached = files(folder / "lake") > before
        if wants_zombie and reached:
            process.send_signal(signal.SIGSTOP)
            zombie = process
            counts["zombies"] += 1
            continue
        process.kill()
        process.wait()
        counts["kills"] += 1
        counts["mid_work"] += files(folder / "lake") > before
    for count in changes.values():
        finish("worker", folder, 1)
        finish("coordinator", folder, 1)
        deal(folder, count)
    finish("worker", folder, 1)
    finish("coordinator", folder, options.coordinators)
    counts["generations"] = generation(folder)
    if zombie is not None:
        # It wakes with an epoch half done that others have long committed: it must lose, and nothing may be doubled.
        zombie.send_signal(signal.SIGCONT)
        zombie.wait(120)
        finish("worker", folder, 1)
    finish("coordinator", folder, options.coordinators)
    return counts


def struck_late_enough(
    process: subprocess.Popen[bytes], lake: Path, before: int, options: argparse.Namespace, rng: random.Random
) -> bool:
    """Wait for the moment of the blow. False: the role ended first."""
    deadline = time.monotonic() + rng.uniform(0.2, options.kill_within)
    if rng.random() < 0.75:
        deadline = time.monotonic() + 120
        while process.poll() is None and files(lake) <= before and time.monotonic() < deadline:
            time.sleep(0.01)
        deadline = time.monotonic() + rng.uniform(0, 0.2)
    else:
        # On a fast machine a role that is left alone drains the whole log, and nothing is left to be struck in.
        while process.poll() is None and files(lake) <= before + FEW_FILES and time.monotonic() < deadline:
            time.sleep(0.01)
        deadline = time.monotonic()
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return True
    return False


def deal(folder: Path, chain_count: int) -> None:
    """Another number of chains for the workers to come."""
    document = json.loads((folder / "config.yaml").read_text())
    document["worker"]["chain_count"] = chain_count
    (folder / "config.yaml").write_text(json.dumps(document))


def generation(folder: Path) -> int:
    """Of the lake's chains; 0 before there are any."""
    found = current_generation(open_store(folder / "lake"))
    return found.number if found is not None else 0


def files(lake: Path) -> int:
    """How many the lake holds."""
    return sum(1 for path in lake.rglob("*") if path.is_file())


def finish(role: str, folder: Path, copies: int) -> None:
    """`copies` of a role at once, to the end."""
    processes = [fleetscope(role, "--once", folder=folder) for _ in range(copies)]
    codes = [process.wait(600) for process in processes]
    if 0 not in codes:
        raise SystemExit(f"{role} ended with {codes}, see {folder}/{role}.log")


def simulate(folder: Path, options: argparse.Namespace) -> int:
    """The fleet into the log and its truth into folder/truth; the number of events."""
    loaded = config.load(folder / "config.yaml")
    faults = options.fault or ["all"]
    simulation = Simulation(
        loaded, hosts=options.hosts, chips=options.chips, seconds=options.seconds, seed=options.seed,
        truth=folder / "truth", speed="max", faults=faults, ops=options.ops, step_ms=options.step_ms,
    )  # fmt: skip
    simulation.run(threading.Event())
    return simulation.events


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--chips", type=int, default=4)
    parser.add_argument("--ops", type=int, default=1500)
    parser.add_argument("--step-ms", type=float, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", action="append", help="as for fleetscope simulate; default all")
    parser.add_argument("--log", choices=["file", "kafka", "both"], default="both")
    parser.add_argument("--kill", type=int, default=20, help="roles struck by SIGKILL at random times")
    parser.add_argument("--kill-within", type=float, default=8.0, help="seconds")
    parser.add_argument(
        "--zombie", action=argparse.BooleanOptionalAction, default=True, help="a worker sleeps through others' epochs"
    )
    parser.add_argument(
        "--rechain", type=int, nargs="*", default=[], metavar="COUNT", help="numbers of chains, one after the other"
    )
    parser.add_argument("--coordinators", type=int, default=2)
    parser.add_argument("--short", action="store_true", help="20 s, 300 ops a step, 4 kills: for CI")
    parser.add_argument("--keep", type=Path, help="folder to work in, kept")
    options = parser.parse_args()
    if options.short:
        options.seconds, options.ops, options.kill, options.kill_within = 20, 300, min(options.kill, 4), 6.0
    return options


def measure(log: str, options: argparse.Namespace, stack: ExitStack) -> tuple[dict[str, object], list[Mismatch]]:
    """One fleet through one kind of log; what was counted, and what differs."""
    folder = options.keep / log if options.keep else Path(stack.enter_context(tempfile.TemporaryDirectory()))
    folder.mkdir(parents=True, exist_ok=True)
    url = f"file://{folder / 'log'}"
    if log == "kafka":
        from fleetscope.transport.broker.broker import Broker

        url = stack.enter_context(Broker(folder / "kafka")).url
    document = {
        "cluster": "exact",
        "state_dir": str(folder),
        "log": {"url": url},
        "lake": {"path": str(folder / "lake")},
        # Epochs small enough that a run has many of them to be struck in.
        "worker": {"epoch_max_bytes": (128 << 10) if options.short else (2 << 20)},
    }
    (folder / "config.yaml").write_text(json.dumps(document))
    started = time.monotonic()
    events = simulate(folder, options)
    struck = drain(folder, options, random.Random(options.seed))
    mismatches: list[Mismatch] = []
    rarely = (
        struck["kills"] < options.kill
        or struck["mid_work"] + struck["zombies"] < options.kill / 4
        or struck["zombies"] < options.zombie
        or struck["generations"] < 1 + len(options.rechain)
    )
    if rarely:
        mismatches.append(Mismatch("struck too rarely", f"{struck} of {options.kill}"))
    facts = compare(folder / "truth", folder / "lake", mismatches)
    seconds = round(time.monotonic() - started, 1)
    return {"events": events, "mismatches": len(mismatches), "seconds": seconds, **struck, **facts}, mismatches


def main() -> None:
    options = parse()
    facts: dict[str, object] = {}
    found: list[Mismatch] = []
    with ExitStack() as stack:
        for log in ("file", "kafka") if options.log == "both" else (options.log,):
            facts[log], mismatches = measure(log, options, stack)
            found += [Mismatch(f"{log}: {mismatch.what}", mismatch.detail) for mismatch in mismatches]
    failed = [f"{mismatch.what}: {mismatch.detail}" for mismatch in found]
    raise SystemExit(report("exact", len(found), "mismatches", 0, failed=failed, **facts))


if __name__ == "__main__":
    main()
