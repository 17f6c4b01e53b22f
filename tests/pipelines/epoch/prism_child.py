"""Run as a program inside a network namespace of its own: drain one log into two lakes, by FnApiRunner and by Prism.

argv: state folder. Prints what differs; exit status 0 if nothing does.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fleetscope.pipelines.drivers.epoch import Worker
from fleetscope.schema.config import Config
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.objects import open_store

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
state = Path(sys.argv[1])
ATTEMPT = {"now_ns", "seen_ns"}


def drain(runner: str) -> dict[str, list[dict[str, Any]]]:
    lake = state / f"lake-{runner}"
    config = Config(
        state_dir=state,
        log={"partitions": 2},
        lake={"path": lake},
        worker={"clock_wait_s": 0.0, "runner": runner},
    )
    epochs = Worker(config).run_once()
    assert epochs == 1, epochs
    store = open_store(lake)
    tables: dict[str, list[pa.Table]] = {}
    for manifest in Chain(store, 0).after(0):
        for ref in manifest.segments:
            found = pq.read_table(store.location(ref.key), filesystem=store.filesystem(), partitioning=None)
            tables.setdefault(ref.table, []).append(found)
    rows = {}
    for name, parts in tables.items():
        plain = [{k: v for k, v in row.items() if k not in ATTEMPT} for row in pa.concat_tables(parts).to_pylist()]
        rows[name] = sorted(plain, key=repr)
    return rows


ours, prism = drain("FnApiRunner"), drain("PrismRunner")
differing = [name for name in sorted(set(ours) | set(prism)) if ours.get(name) != prism.get(name)]
print({name: len(found) for name, found in prism.items()}, "differing:", differing)
sys.exit(1 if differing or not prism.get("spans") else 0)
