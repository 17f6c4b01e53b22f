"""Memory of a recording process when nobody reads: bounded by configuration, and constant however much it records.

A process writes 10^8 records through the C header with no agent; its resident memory (with the segment) and the blocks
of the segment's file are taken after the first tenth and at the end. The last line is one JSON object.
"""

import argparse
import os
import sys
import tempfile
import time

from recorder_native import build
from report import report

GROWTH_BYTES = 1 << 20
"""What the interpreter itself may take meanwhile."""


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000_000)
    args = parser.parse_args()
    from fleetscope.native import _recorder
    from fleetscope.native.recorder import Segment

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        loops = build(folder)
        _recorder.on_first_use(None)
        path = _recorder.open(folder)
        _recorder.record(True)
        begin = time.process_time()
        loops.region(args.records // 10)
        early, early_file = resident_bytes(), os.stat(path).st_blocks * 512
        for _ in range(9):
            loops.region(args.records // 10)
        late, late_file = resident_bytes(), os.stat(path).st_blocks * 512
        took_s = time.process_time() - begin
        segment = Segment(path)
        drained = segment.drain(1 << 20)
        counted = segment.state().events
        _recorder.close(True)
    written = args.records // 10 * 10
    failed = [f"grew by {late - early} B"] * (late - early > GROWTH_BYTES)
    failed += [f"the file grew by {late_file - early_file} B"] * (late_file != early_file)
    failed += [f"{counted} events counted of {written}"] * (counted != written)
    failed += ["taken and lost do not add up"] * (len(drained) + drained.lost != written)
    return report(
        "recorder_memory",
        late - early,
        "bytes more after ten times the records",
        GROWTH_BYTES,
        failed=failed,
        records=written,
        resident_bytes=late,
        segment_bytes=late_file,
        kept=len(drained),
        lost=drained.lost,
        ns_a_record=round(took_s / written * 1e9, 1),
    )


if __name__ == "__main__":
    sys.exit(main())
