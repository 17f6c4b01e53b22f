"""CPU that a host's clock inputs cost it: snapshots and their records, who disciplines the clock, probes.

    python benchmarks/clock_inputs.py [--seconds 20] [--peers 5] [--rate 1]

One probe port with its own thread, as the agent runs it; as many peers as it asks and as ask it are ports of another
process, on loopback. CPU of its thread is the kernel's figure (/proc/self/task/.../schedstat), wake-ups included, of
each period. A second of records (snapshot, the other clocks, the burst every ten) and a look at all sources are timed
as CPU of their thread. Of all of these the tenth percentile. On loopback a sender pays for the delivery too. The last
line is JSON; the value is the share of a core, all together. Exit 1 over 0.1 %.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from report import report

from fleetscope.agents.clocks import ClockSources, HostClocks
from fleetscope.agents.node.clocking import ClockRecords
from fleetscope.agents.node.facts import Host
from fleetscope.agents.probes import ALL_STAMPS, Me, Peer, ProbePort, Roster

BUDGET = 0.001
KEY = bytes(range(32))
SUBJECT, FIRST = 1, 100
LOOKS = 400


def port_of(number: int, clocks: HostClocks, rate_hz: float) -> ProbePort:
    me = Me(number, f"boot-{number}".encode())

    def everyone(roster: Roster) -> Sequence[Peer]:
        return list(roster.by_id.values())

    return ProbePort(("127.0.0.1", 0), lambda: (KEY,), lambda: me, clocks.read_raw, everyone, 1 / rate_hz)


def be_peers(count: int, rate_hz: float, subject: int) -> None:
    """The other process: says its ports, and serves until its input ends."""
    clocks = HostClocks()
    ports = [port_of(FIRST + number, clocks, rate_hz) for number in range(count)]
    for port in ports:
        port.know(Roster([Peer(SUBJECT, "subject", ("127.0.0.1", subject))]))
        port.start()
    print(json.dumps([port.address[1] for port in ports]), flush=True)
    sys.stdin.read()
    for port in ports:
        port.stop()


def cpu_ns(thread: str) -> int:
    """Of the thread of that name in this process."""
    wanted = next(t.native_id for t in threading.enumerate() if t.name == thread)
    return int(Path(f"/proc/self/task/{wanted}/schedstat").read_text().split()[0])


def probes(seconds: float, count: int, rate_hz: float) -> tuple[float, dict[str, object]]:
    """(CPU ns a second of the port's thread, what it did)"""
    port = port_of(SUBJECT, HostClocks(), rate_hz)
    command = [sys.executable, __file__, "--be", str(port.address[1]), "--peers", str(count), "--rate", str(rate_hz)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        numbers = json.loads(other.stdout.readline())
        port.know(Roster(Peer(FIRST + n, f"p{n}", ("127.0.0.1", number)) for n, number in enumerate(numbers)))
        port.start()
        time.sleep(3)  # cookies are known, codes are warm
        port.take()
        counts, begin, spent = Counter(port.counts), time.monotonic(), []
        before = cpu_ns("fleetscope-probes")
        while time.monotonic() < begin + seconds:
            time.sleep(1 / rate_hz)
            now = cpu_ns("fleetscope-probes")
            spent.append((now - before) * rate_hz)
            before = now
        passed = time.monotonic() - begin
        done, _ = port.take()
        did = {
            name: round((port.counts[name] - counts[name]) / passed, 1) for name in ("sent", "answered", "exchanges")
        }
        rtt_us = [((e.returned - e.sent) - (e.answered - e.received)) / 1000 for e in done]
        facts = {
            "a_second": did,
            "kernel_stamped": round(sum(e.stamps == ALL_STAMPS for e in done) / max(1, len(done)), 3),
            "rtt_us_p50": round(float(np.median(rtt_us)), 1) if rtt_us else None,
            "lost": port.lost,
        }
        return float(np.percentile(spent, 10)), facts | {"probes_us_a_second_p50": round(np.median(spent) / 1000, 1)}
    finally:
        port.stop()
        other.stdin.close()
        other.wait(30)
        other.stdout.close()


def a_call_ns(call: object, times: int) -> float:
    """Tenth percentile of the thread's CPU of one call."""
    spent = []
    for _ in range(times):
        begin = time.thread_time_ns()
        call()  # type: ignore[operator]
        spent.append(time.thread_time_ns() - begin)
    return float(np.percentile(spent, 10))


def records() -> tuple[float, float, float]:
    """CPU ns of a round's record, of one with a burst, and of a look at all sources."""
    clocks, sources, sizes = HostClocks(), ClockSources(), []
    made = ClockRecords(Host.here("bench"), clocks, sources, 1.0, lambda value: sizes.append(len(value)))
    now = {"s": 0.0}

    def round_(step_s: float) -> None:
        now["s"] += step_s
        made.check()
        made.tick(now["s"], clocks.snapshot())

    look = a_call_ns(sources.look, LOOKS)
    plain = a_call_ns(lambda: round_(1.0 / 1000 + 0.9 + 1e-3), LOOKS)
    burst = a_call_ns(lambda: round_(11.0), LOOKS)
    sources.close()
    return plain, burst, look


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--peers", type=int, default=5)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--be", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        be_peers(options.peers, options.rate, options.be)
        return 0
    plain, burst, look = records()
    port_ns, facts = probes(options.seconds, options.peers, options.rate)
    total = (0.9 * plain + 0.1 * burst + look + port_ns) / 1e9
    parts = {
        "record_us": round(plain / 1000, 1), "burst_us": round(burst / 1000, 1), "sources_us": round(look / 1000, 1),
        "probes_us_a_second": round(port_ns / 1000, 1),
    }  # fmt: skip
    return report("clock_inputs", round(total, 6), "cores", BUDGET, **parts, **facts)


if __name__ == "__main__":
    sys.exit(main())
