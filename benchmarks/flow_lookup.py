"""What it takes to find one flow among many, and what a link costs on its way: a lake of N links in as many files as an
hour of rounds leaves, a chain of four hops asked for at random; the same ids looked up in `spans` for comparison.

The last line is one JSON object; value: the median `steps --flow` in seconds over the lake's hour.
"""

import argparse
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from report import report

from fleetscope.analysis.flows import flow_table
from fleetscope.analysis.scope import Scope
from fleetscope.pipelines.links import without_links
from fleetscope.schema.tables import LINKS, SPANS, TABLES
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.read import Snapshot
from fleetscope.sinks.lake.segment import write_segment

BUDGET_S = 1.0
"""DESIGN 9: any tool over an hour."""
T0 = 1_796_000_000 * 10**9
HOPS = 4
SPANS_A_LINK = 20
"""The lake compared with has so many other spans for each that is linked; real ones have hundreds."""


def link_rows(flows: int, processes: int, seed: int) -> pa.Table:
    """Chains of four spans: each of another process consumes what the one before produced; 7 rows a chain."""
    draw = np.random.default_rng(seed)
    first = draw.integers(1, 1 << 62, processes)
    owner = np.arange(flows) % processes
    begin = T0 + np.sort(draw.integers(0, 3600 * 10**9, flows))
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("t_ns", "process", "seq", "role", "context_id")}
    for hop in range(HOPS):
        made = first[owner] + np.arange(flows) // processes * HOPS + hop
        for role, number in ((1, made), (2, made - 1)):
            if (hop == HOPS - 1 and role == 1) or (hop == 0 and role == 2):
                continue
            columns["t_ns"].append(begin + hop * 5_000_000)
            columns["process"].append((owner + hop) % processes)
            columns["seq"].append(np.arange(flows) * HOPS + hop)
            columns["role"].append(np.full(flows, role))
            columns["context_id"].append(number)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    order = np.argsort(joined["t_ns"], kind="stable")
    rows = len(order)
    zeros = np.zeros(rows, np.int64)
    constant = {"dur_ns": 2_000_000, "map": 1, "step": -1, "kind": 8, "program": 5, "line": 0}
    return pa.table(
        {
            field.name: pa.array(
                joined[field.name][order] if field.name in joined else zeros + constant.get(field.name, 0), field.type
            )
            for field in LINKS
        },
        schema=LINKS,
    )


def span_rows(links: pa.Table) -> pa.Table:
    """Spans as they would be with the id in `flow`: one of so many."""
    rows = links.num_rows * SPANS_A_LINK
    flow = np.zeros(rows, np.int64)
    flow[::SPANS_A_LINK] = links.column("context_id").to_numpy()
    times = np.repeat(links.column("t_ns").to_numpy(), SPANS_A_LINK) + np.arange(rows) % SPANS_A_LINK * 1000
    draw = np.random.default_rng(2)
    found = {"t_ns": times, "flow": flow, "dur_ns": draw.integers(1000, 100_000, rows), "op": np.arange(rows) % 500}
    found["seq"] = np.arange(rows)
    zeros = np.zeros(rows, np.int64)
    return pa.table({f.name: pa.array(found.get(f.name, zeros), f.type) for f in SPANS}, schema=SPANS)


def lake(folder: Path, links: pa.Table, files: int, spans: pa.Table | None) -> Snapshot:
    store = LocalFolder(folder)
    segments = []
    for name, table in (("links", links), ("spans", spans)):
        if table is None:
            continue
        cuts = [table.num_rows * part // files for part in range(files + 1)]
        for number, (low, high) in enumerate(pairwise(cuts)):
            segments += write_segment(store, name, table.slice(low, high - low), f"{name}-{number}")
    clock = {field.name: [b"" if pa.types.is_binary(field.type) else 0] for field in TABLES["clock_maps"].schema}
    clock |= {"map": [1], "n": [1], "d": [1], "period_num": [1], "period_den": [1], "final": [False]}
    clock |= {"clock": [""], "quality": [""], "method": [""]}
    segments += write_segment(store, "clock_maps", pa.table(clock, TABLES["clock_maps"].schema), "clocks")
    Chain(store, 0).commit(Manifest(0, 1, 1, "a", "", T0, (), tuple(segments)))
    return Snapshot.open(store)


def cost_of_a_link(links: pa.Table) -> float:
    """ns in the pipeline for the text of a link to become a row."""
    rows = min(links.num_rows, 100_000)
    ids = links.column("context_id").slice(0, rows).to_pylist()
    texts = pa.chunked_array([pa.array([f'{{"_links":[[1,0,{number}]]}}' for number in ids])])
    spans = pa.table({f.name: pa.array(np.zeros(rows, np.int64), f.type) for f in SPANS}, schema=SPANS)
    taken = []
    for _ in range(5):
        begin = time.process_time_ns()
        without_links(spans, texts)
        taken.append((time.process_time_ns() - begin) / rows)
    return min(taken)


def timed(snapshot: Snapshot, ids: list[int], **scope: int) -> list[float]:
    taken = []
    for number in ids:
        begin = time.perf_counter()
        found = flow_table(snapshot, Scope(**scope), number).rows
        taken.append(time.perf_counter() - begin)
        assert found.num_rows == HOPS, found.num_rows
    return taken


def in_spans(snapshot: Snapshot, ids: list[int]) -> list[float]:
    """One look-up of one id in `spans`: a chain takes one a round."""
    taken = []
    for number in ids:
        begin = time.perf_counter()
        with snapshot.duckdb(["spans"]) as connection:
            assert connection.execute("SELECT t_ns, process, seq FROM spans WHERE flow = ?", [number]).fetchall()
        taken.append(time.perf_counter() - begin)
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--links", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--asked", type=int, default=7)
    parser.add_argument("--spans", action="store_true", help=f"compare with {SPANS_A_LINK} times as many spans")
    args = parser.parse_args()
    links = link_rows(args.links // (2 * HOPS - 2), 1000, 1)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.process_time()
        snapshot = lake(Path(folder), links, args.files, span_rows(links) if args.spans else None)
        written = time.process_time() - begin
        size = sum(item.size_bytes for item in snapshot.files("links"))
        draw = np.random.default_rng(3)
        ids = draw.choice(links.column("context_id").to_numpy(), args.asked, replace=False).tolist()
        taken = timed(snapshot, ids)
        spans = in_spans(snapshot, ids[:3]) if args.spans else []
    return report(
        "flow_lookup",
        round(statistics.median(taken), 3),
        "s",
        BUDGET_S,
        links=links.num_rows,
        files=args.files,
        bytes_a_link=round(size / links.num_rows, 1),
        slowest_s=round(max(taken), 3),
        one_look_in_spans_s=round(statistics.median(spans), 3) if spans else None,
        pipeline_ns_a_link=round(cost_of_a_link(links)),
        write_cpu_s=round(written, 2),
    )


if __name__ == "__main__":
    sys.exit(main())
