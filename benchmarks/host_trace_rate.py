"""What a host of the example sends: bytes a second on the wire at the default level, host trace and all else.

`examples/train_transformer.py` under `fleetscope run`, an agent at its defaults, an embedded log. The bytes of the
messages the agent appended in the time the program trained, by kind of payload, over that time. Host spans, their
names and counters are the host trace; device windows and counters of the machine are shown beside it.

    python benchmarks/host_trace_rate.py [--seconds 60]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from report import report
from roles import Site

from fleetscope.schema import wire_pb2
from fleetscope.transport import Topics, open_log

BUDGET = 20_000.0
"""Bytes a second and host: what 2 000 hosts send then is 40 MB/s."""

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_transformer.py"


def of_kind(batch: "wire_pb2.Batch") -> str:
    if batch.HasField("device"):
        return "device"
    if not batch.source.pid:
        return "machine"
    return {wire_pb2.PAYLOAD_SPANS: "host_spans", wire_pb2.PAYLOAD_SAMPLES: "counters"}.get(
        batch.payload_kind, "heartbeats"
    )


def sent(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Bytes and rows by kind of payload of all that is in the log."""
    size: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    topic = Topics().telemetry
    with open_log(f"file://{folder / 'log'}") as log:
        for partition, end in log.end_offsets(topic).items():
            for message in log.read(topic, partition, 0, end):
                batch = wire_pb2.Batch.FromString(message.value)
                kind = of_kind(batch)
                size[kind] += len(message.key) + len(message.value)
                rows[kind] += batch.rows
    return size, rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fleetscope-rate-") as name:
        folder = Path(name)
        with Site(folder) as site:
            words = ("run", "--run", "rate", "--", sys.executable, str(EXAMPLE), "--seconds", str(args.seconds))
            began = time.monotonic()
            program = subprocess.Popen(
                site.command(*words), env=site.environment, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            said, _ = program.communicate(timeout=args.seconds + 120)
            took = time.monotonic() - began
        size, rows = sent(folder)
    steps = int(said.splitlines()[-1].split()[0])
    trace = size["host_spans"] + size["counters"] + size["heartbeats"]
    failed = []
    if trace / args.seconds > BUDGET:
        failed.append(f"{trace / args.seconds:.0f} B/s of host trace over {BUDGET:.0f}")
    if rows["host_spans"] < 2 * steps:
        failed.append(f"{rows['host_spans']} host spans of {steps} steps: the trace is not whole")
    return report(
        "host_trace_rate", round(trace / args.seconds), "B/s", BUDGET, failed=failed,
        seconds=round(took, 1), steps=steps,
        **{f"{kind}_bytes_per_s": round(count / args.seconds) for kind, count in sorted(size.items())},
        **{f"{kind}_rows": count for kind, count in sorted(rows.items())},
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
