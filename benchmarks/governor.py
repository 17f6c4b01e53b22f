"""How long the governor takes to bring a hot loop within its budget and to let it go, at its own pace of 10 s, and
whether the statistics stay right meanwhile.

One process passes a site at a given rate beside one that is passed 20 times a second, under a node agent of its own.
The agent's own answers say when a level held; that its CPU time really fell is read from /proc; passes are counted by
the process itself. The last line is one JSON object; its value is the seconds from the begin of the load until what the
agent does for it was within the budget, in the first look after.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from agent_cost import cpu_s
from report import report

from fleetscope.agents.node.governor import PERIOD_S
from fleetscope.cli.asking import ask
from fleetscope.schema.config import GovernorConfig
from fleetscope.schema.identity import name_program
from fleetscope.schema.wire_pb2 import Batch
from fleetscope.transport import open_log

BUDGET_S = 4 * PERIOD_S
"""A look that has seen only the load, one more for each factor of 8, and one to see that it is so."""
COUNT_ERROR = 0.01

AGENT = """
import signal, sys, threading
from fleetscope.agents.node import NodeAgent
from fleetscope.schema.config import load
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
NodeAgent(load(None)).run(stop)
"""

PROGRAM = """
import json, select, sys, time
from fleetscope.agents import profiler
from fleetscope.native import _recorder
profiler.start()
while not _recorder.recording():
    time.sleep(0.01)
hot, rare, rate, done, begun = profiler.site("hot"), profiler.site("rare"), 0.0, 0, time.monotonic()
counts = {"hot": 0, "rare": 0}
while True:
    if select.select([sys.stdin], [], [], 0.005)[0]:
        line = sys.stdin.readline()
        if not line:
            break
        rate, done, begun = float(line), 0, time.monotonic()
    due = int((time.monotonic() - begun) * rate) - done
    done += due
    counts["hot"] += due
    for _ in range(due):
        with hot:
            pass
    with rare:
        counts["rare"] += 1
print(json.dumps(counts))
"""


class Watched:
    def __init__(self, folder: Path) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FLEETSCOPE_")}
        environment |= {"FLEETSCOPE_STATE_DIR": str(folder), "FLEETSCOPE_RUN": "governor"}
        environment["FLEETSCOPE_AGENT__METRICS_ADDRESS"] = "127.0.0.1:0"
        self.socket = folder / "agent.sock"
        self.agent = subprocess.Popen([sys.executable, "-c", AGENT], env=environment)
        self.until(self.socket.exists, 60)
        self.program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.until(lambda: bool(self.row()), 60)

    def until(self, true: Any, limit_s: float) -> float:
        """Seconds until it was true; the limit when it never was."""
        begin = time.monotonic()
        while not true() and time.monotonic() - begin < limit_s:
            time.sleep(0.1)
        return time.monotonic() - begin

    def row(self) -> dict[str, Any]:
        return next(iter(ask(self.socket, "processes", self.program.pid)), {})

    def passes(self, rate: float) -> None:
        assert self.program.stdin is not None
        self.program.stdin.write(f"{rate}\n")
        self.program.stdin.flush()

    def agent_share(self, seconds: float) -> float:
        before, begin = cpu_s(self.agent.pid), time.monotonic()
        time.sleep(seconds)
        return (cpu_s(self.agent.pid) - before) / (time.monotonic() - begin)


def weights(folder: Path, pid: int) -> dict[str, int]:
    """Sums of weights by name, of all spans that were shipped."""
    sums = {"hot": 0, "rare": 0}
    with open_log(f"file://{folder}/log") as log:
        for partition, end in log.end_offsets("fleetscope.telemetry").items():
            for message in log.read("fleetscope.telemetry", partition, 0, end):
                batch = Batch.FromString(message.value)
                if batch.source.pid != pid or not batch.rows:
                    continue
                table = pa.ipc.open_stream(batch.payload).read_all()
                if "weight" not in table.schema.names:
                    continue
                for name in sums:
                    mine = pc.equal(table["program"], name_program(name))
                    sums[name] += pc.sum(table["weight"].filter(mine)).as_py() or 0
    return sums


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=50_000, help="passes a second of the hot site")
    args = parser.parse_args()
    budget = GovernorConfig().core_budget
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        watched = Watched(folder)
        try:
            idle = watched.agent_share(PERIOD_S)
            watched.passes(args.rate)
            loaded = watched.agent_share(PERIOD_S / 2)
            lowered_s = PERIOD_S / 2 + watched.until(lambda: watched.row()["level"] > 0, 60)
            within_s = lowered_s + watched.until(lambda: 0 < watched.row()["agent_ratio"] <= budget, 60)
            governed = watched.agent_share(PERIOD_S)
            watched.passes(0)
            raised_s = watched.until(lambda: watched.row()["level"] == 0, 120)
            decisions = list(ask(watched.socket, "decisions"))
            pid = watched.program.pid
            counts = json.loads(watched.program.communicate(timeout=60)[0])
            watched.until(lambda: watched.row().get("state") == "ended", 30)
        finally:
            for process in (watched.program, watched.agent):
                if process.poll() is None:
                    process.terminate()
            watched.agent.wait(60)
        sums = weights(folder, pid)
    errors = {name: abs(sums[name] / counts[name] - 1) for name in counts}
    apart = [(b["at_ns"] - a["at_ns"]) / 1e9 for a, b in itertools.pairwise(decisions)]
    failed = [
        what
        for what, wrong in (
            (f"{within_s:.0f} s until it was within the budget", within_s > BUDGET_S),
            (f"{raised_s:.0f} s until it was let go", raised_s > BUDGET_S),
            (f"counts are wrong by {max(errors.values()):.2%}", max(errors.values()) > COUNT_ERROR),
            ("decisions less than 10 s apart", min(apart, default=PERIOD_S) < PERIOD_S * 0.99),
        )
        if wrong
    ]
    return report(
        "governor",
        round(within_s, 1),
        "s",
        BUDGET_S,
        failed=failed,
        first_decision_s=round(lowered_s, 1),
        let_go_s=round(raised_s, 1),
        agent_core={"idle": round(idle, 4), "loaded": round(loaded, 4), "governed": round(governed, 4)},
        count_error={name: round(error, 5) for name, error in errors.items()},
        passes=counts,
        decisions=[f"{d['was']} -> {d['now']} {d['reason']}" for d in decisions],
        load=round(os.getloadavg()[0], 1),
    )


if __name__ == "__main__":
    sys.exit(main())
