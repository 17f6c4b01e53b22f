"""What draining costs: ns a record in native code, and the share of a core for 1 M records/s from 8 processes.

The first: CPU time of `Segment.drain` over rings that are full, the 10th percentile of many drains. The second: 8
processes write 125 000 records/s each, in bursts of 5 ms, through the C header; one reader polls all as the node agent
does, with its period, and its CPU time is taken; nothing may be lost. The last line is one JSON object.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from typing import Any

from recorder_native import build
from report import report

RECORD_NS, SHARE = 20.0, 0.04
PROCESSES, RATE = 8, 1_000_000
POLL_S = 0.02
"""Eight times a ring of 32 768 in the time it takes to fill."""


def record_ns(drains: int) -> tuple[float, int]:
    """(10th percentile, records a drain)"""
    from fleetscope.native import _recorder
    from fleetscope.native.recorder import Segment

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        loops = build(folder)
        _recorder.on_first_use(None)
        segment = Segment(_recorder.open(folder))
        _recorder.record(True)
        taken = []
        records = 30_000
        for _ in range(drains):
            loops.region(records)
            begin = time.thread_time_ns()
            drained = segment.drain()
            taken.append((time.thread_time_ns() - begin) / records)
            assert len(drained) == records
            assert drained.lost == 0
        _recorder.close(True)
    return sorted(taken)[len(taken) // 10], records


def write(folder: str, rate: float, ready: Any, stop: Event) -> None:
    from fleetscope.native import _recorder

    loops = build(folder)
    _recorder.on_first_use(None)
    path = _recorder.open(folder)
    _recorder.record(True)
    ready.put(path)
    begin, written = time.monotonic(), 0
    while not stop.is_set():
        due = int((time.monotonic() - begin) * rate) - written
        if due > 0:
            loops.region(due)
            written += due
        time.sleep(0.005)
    ready.put(written)
    _recorder.record(False)


def share_of_core(seconds: float) -> dict[str, float]:
    from fleetscope.native.recorder import Segment

    context = multiprocessing.get_context("spawn")
    ready, stop = context.Queue(), context.Event()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        folders = [os.path.join(folder, str(number)) for number in range(PROCESSES)]
        for each in folders:
            os.mkdir(each)
        writers = [context.Process(target=write, args=(each, RATE / PROCESSES, ready, stop)) for each in folders]
        for writer in writers:
            writer.start()
        segments = [Segment(ready.get(timeout=120)) for _ in writers]
        for segment in segments:
            segment.drain(1 << 20)
        # From here on: what was written before is not the reader's to keep up with.
        kept = lost = 0
        begin, cpu = time.monotonic(), time.process_time()
        while time.monotonic() - begin < seconds:
            for segment in segments:
                drained = segment.drain()
                kept, lost = kept + len(drained), lost + drained.lost
            time.sleep(POLL_S)
        took_s, cpu_s = time.monotonic() - begin, time.process_time() - cpu
        stop.set()
        for writer in writers:
            writer.join(30)
    return {"share": cpu_s / took_s, "records_per_s": kept / took_s, "lost": lost, "ns_a_record": cpu_s / kept * 1e9}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drains", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    one_ns, records = record_ns(args.drains)
    fleet = share_of_core(args.seconds)
    # Two shared cores cannot always run eight writers in time: the share is of what they wrote.
    share = fleet["share"] * RATE / fleet["records_per_s"]
    failed = [f"{one_ns:.1f} ns a record"] * (one_ns > RECORD_NS)
    failed += [f"{share:.1%} of a core at {RATE} records/s"] * (share > SHARE)
    failed += [f"{fleet['lost']:.0f} records lost"] * (fleet["lost"] > 0)
    return report(
        "recorder_drain",
        round(one_ns, 2),
        "ns a record",
        RECORD_NS,
        failed=failed,
        records_a_drain=records,
        share_of_core=round(share, 4),
        share_budget=SHARE,
        measured={name: round(value, 4) for name, value in fleet.items()},
        load=[round(load, 2), round(os.getloadavg()[0], 2)],
    )


if __name__ == "__main__":
    sys.exit(main())
