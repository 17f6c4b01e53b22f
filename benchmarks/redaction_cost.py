"""What redaction of names adds to the agent: rows of the same drained events, with and without a policy that hashes.

CPU time of `rows_of` over 10 000 events of 64 names, one in ten with an argument; the two taken in turns, and tenth
percentiles compared. A name is hashed when it is first met, so what remains is nothing an event: budget 2 %.
`name_us` is what a name costs then. The last line is one JSON object.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from report import report

from fleetscope.agents.node.rows import Names, rows_of
from fleetscope.agents.redaction import KEEP_ALL, Redaction
from fleetscope.native import _recorder
from fleetscope.native.recorder import Drained, Segment
from fleetscope.schema.config import RedactionConfig

BUDGET = 1.02
NAMES, OTHERS = 64, 3
"""Of regions; the argument's, the thread's and "other"."""
FRESH = 10_000


def drained(folder: Path, events: int) -> tuple[Drained, Segment]:
    segment = _recorder.open(str(folder))
    _recorder.record(True)
    for i in range(events):
        with _recorder.annotate(f"region_{i % NAMES}", **({"shard": i} if i % 10 == 0 else {})):
            pass
    reader = Segment(segment)
    return reader.drain(), reader


def cpu_us(took: Drained, names: Names) -> float:
    begin = time.thread_time_ns()
    rows_of(took, names, 0)
    return (time.thread_time_ns() - begin) / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--events", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fs-redaction-") as folder:
        key = Path(folder) / "key"
        key.write_bytes(b"0123456789abcdef")
        policy = Redaction(RedactionConfig(annotations="hash", programs="hash", key_file=key))
        took, reader = drained(Path(folder), options.events)
        plain, hashed = Names(reader.names, KEEP_ALL), Names(reader.names, policy)
        spent: dict[int, list[float]] = {id(plain): [], id(hashed): []}
        for number in range(options.rounds):
            for names in (plain, hashed) if number % 2 else (hashed, plain):
                spent[id(names)].append(cpu_us(took, names))
        _recorder.close(True)
    met = policy.worked_out
    begin = time.thread_time_ns()
    for number in range(FRESH):
        policy.annotation(f"a name that was not met before, {number}")
    a_name_us = (time.thread_time_ns() - begin) / 1e3 / FRESH
    without, with_ = (float(np.percentile(spent[id(names)], 10)) for names in (plain, hashed))
    value = with_ / without
    print(
        f"{with_:.0f} us with a policy, {without:.0f} us without, of {options.events} events; {a_name_us:.1f} us a name"
    )
    failed = [f"{value:.3f} times the cost"] * (value > BUDGET)
    if met > NAMES + OTHERS:
        failed.append(f"{met} names worked out of {NAMES + OTHERS}")
    facts = {"names_worked_out": met, "name_us": round(a_name_us, 2)}
    return report("redaction_cost", round(value, 4), "ratio", BUDGET, failed=failed, **facts)


if __name__ == "__main__":
    sys.exit(main())
