"""What the node agent costs: 10 000 events/s through ring, drain, batch, spool and log, as a process of its own.

CPU time of the agent (all threads, after a warm-up) over wall time, and its PSS at the end. Budget (DESIGN 9): <= 2 %
of a core, <= 150 MB. `--kafka host:port` sends to a broker; without it to the embedded log. The last line is one JSON
object.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import report

from fleetscope.schema.wire_pb2 import Batch
from fleetscope.transport import open_log

BUDGET_SHARE, BUDGET_PSS_MB = 0.02, 150.0
WARM_UP_S = 5.0

_AGENT = """
import signal, sys, threading
from fleetscope.agents.node import NodeAgent
from fleetscope.schema.config import load
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
NodeAgent(load(None, governor={"enabled": False})).run(stop)
"""

_TRAINER = """
import os, socket, sys, time
from fleetscope.agents.profiler import protocol
from fleetscope.native import _recorder as r
shm, path, rate, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
segment = r.open(shm)
r.record(True)
started = int(open(f"/proc/{os.getpid()}/stat").read().rsplit(")", 1)[1].split()[19])
hello = protocol.Hello(version=protocol.VERSION, pid=os.getpid(), start_ticks=started,
    boot_id=open("/proc/sys/kernel/random/boot_id").read().strip(), run="bench", attempt="a", rank=0, world_size=1,
    command="bench", python="", jax="", jaxlib="", platform="", segment=segment, started_ns=time.time_ns())
peer = socket.socket(socket.AF_UNIX)
peer.connect(path)
peer.sendall(protocol.encode(hello))
names = [f"region_{i}" for i in range(64)]
begin, done, step = time.monotonic(), 0, 0
# 100 events a step: the step, and 99 annotations in it, one of ten with an argument.
while (now := time.monotonic()) - begin < seconds:
    while done < (now - begin) * rate:
        with r.step(step):
            for i in range(99):
                with r.annotate(names[i % 64], **({"shard": i} if i % 10 == 0 else {})):
                    pass
        step += 1
        done += 100
    time.sleep(0.005)
print(done)
r.close(False)
"""


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--kafka", default="", help="host:port of a broker; default: the embedded log")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fs-cost-"))
    shm = Path(tempfile.mkdtemp(prefix="fs-cost-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    url = f"kafka://{options.kafka}" if options.kafka else f"file://{folder}/log"
    environment = {
        **os.environ,
        "FLEETSCOPE_STATE_DIR": str(folder),
        "FLEETSCOPE_LOG__URL": url,
        "FLEETSCOPE_AGENT__SHM_DIR": str(shm),
        "OPENBLAS_NUM_THREADS": "1",
    }
    agent = subprocess.Popen([sys.executable, "-c", _AGENT], env=environment)
    try:
        socket = folder / "agent.sock"
        while not socket.exists():
            if agent.poll() is not None:
                return 1
            time.sleep(0.05)
        command = [sys.executable, "-c", _TRAINER, str(shm), str(socket), str(options.rate)]
        trainer = subprocess.Popen([*command, str(options.seconds + WARM_UP_S)], stdout=subprocess.PIPE, text=True)
        time.sleep(WARM_UP_S)
        begin_cpu, begin = cpu_s(agent.pid), time.monotonic()
        time.sleep(options.seconds - 1)
        spent, wall = cpu_s(agent.pid) - begin_cpu, time.monotonic() - begin
        pss = pss_mb(agent.pid)
        produced = int(trainer.communicate()[0])
        time.sleep(2.5)
        agent.send_signal(signal.SIGTERM)
        agent.wait(30)
        rows = size = 0
        with open_log(url) as log:
            for partition, end in log.end_offsets("fleetscope.telemetry").items():
                for message in log.read("fleetscope.telemetry", partition, 0, end):
                    batch = Batch.FromString(message.value)
                    if batch.source.run == "bench":
                        rows += batch.rows
                        size += len(message.value)
    finally:
        if agent.poll() is None:
            agent.kill()
            agent.wait()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(shm, ignore_errors=True)
    share = spent / wall
    lost = produced - rows
    print(f"{produced} events at {options.rate}/s, {rows} in the log, {size / max(rows, 1):.2f} B/event on the wire")
    print(f"agent: {share:.2%} of a core ({spent / wall / options.rate * 1e6:.2f} us/event), PSS {pss:.0f} MB")
    failed = [
        what
        for what, wrong in (
            (f"{share:.2%} of a core", share > BUDGET_SHARE),
            (f"{pss:.0f} MB PSS over {BUDGET_PSS_MB}", pss > BUDGET_PSS_MB),
            (f"{lost} events lost", lost != 0),
        )
        if wrong
    ]
    facts = {"pss_mb": round(pss, 1), "events": produced, "lost": lost}
    facts["wire_bytes_per_event"] = round(size / max(rows, 1), 3)
    return report("agent_cost", round(share, 5), "core", BUDGET_SHARE, failed=failed, **facts)


if __name__ == "__main__":
    sys.exit(main())
