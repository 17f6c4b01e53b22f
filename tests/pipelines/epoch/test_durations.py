"""Step and op times as native histograms: through a pipeline, an exporter and a real Prometheus, against the durations
that were sent, and against the lake's own quantiles."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from fleetscope.pipelines.coordinate.rounds import Coordinator
from fleetscope.pipelines.histogram import quantile
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.exponential import SKEW
from fleetscope.schema.vocabulary import Kind
from fleetscope.sinks.lake.read import Snapshot
from fleetscope.sinks.prometheus.exporter import Exporter

STEP = "fleetscope_run_step_duration_seconds"
OP = "fleetscope_run_op_duration_seconds"
START = 1_000_000_000
SHARES = (0.05, 0.37, 0.5, 0.9, 0.99)


def _send(bench: Any, seed: int) -> dict[str, np.ndarray]:
    """Two hosts: ops of two kinds and steps, log-normal; their durations in ns."""
    rng = np.random.default_rng(seed)
    sent: dict[str, list[np.ndarray]] = {"compute": [], "collective": [], "step": []}
    for name in ("h1", "h2"):
        host = bench.host(name)
        at = START
        for number, kind in enumerate(("compute", "collective")):
            dur = (
                np.maximum(5, np.round(rng.lognormal(math.log(30_000 * (1 + 9 * number)), 1.2, 300) / 5)).astype(int)
                * 5
            )
            dur[:3] = 0
            start = at + np.concatenate(([0], np.cumsum(dur[:-1] + 10)))
            at = int(start[-1] + dur[-1]) + 100
            rows = {"start": start, "dur": dur, "line": 0, "kind": int(Kind[kind.upper()]), "program": 3, "op": number}
            bench.send(host.spans(0, int(start[0]), at, rows))
            sent[kind].append(dur)
        steps = np.round(rng.lognormal(math.log(0.2e9), 0.4, 60)).astype(int)
        begins = START + np.concatenate(([0], np.cumsum(steps)))
        rows = {"start": begins, "dur": [9] * 61, "line": 1, "kind": int(Kind.STEP), "step": range(61)}
        bench.send(host.host_spans(START, int(begins[-1]) + 1000, rows))
        sent["step"].append(steps)
    return {kind: np.sort(np.concatenate(found)) for kind, found in sent.items()}


def _published(bench: Any) -> dict[tuple[str, str], wire.MetricsRecord.Durations]:
    """(metric, kind) -> sums over partitions' records of the run; there is one chain."""
    found = {}
    for value in bench.log.read_compacted(bench.topics.metrics).values():
        for sample in wire.MetricsRecord.FromString(value).samples:
            if sample.HasField("durations"):
                found[sample.name, sample.labels.get("kind", "")] = sample.durations
    return found


@pytest.mark.unit
def test_every_step_and_op_is_counted_once_whatever_the_epochs(bench: Any) -> None:
    first = _send(bench, 1)
    bench.drain()
    told = _published(bench)
    assert {key[1] for key in told if key[0] == OP} == {"compute", "collective"}
    for kind in ("compute", "collective"):
        durations = told[OP, kind]
        assert durations.zero + sum(durations.count) == len(first[kind]) == 600
        assert (durations.zero, durations.sum_ns) == (6, first[kind].sum())
    steps = told[STEP, ""]
    assert (sum(steps.count), steps.sum_ns) == (120, first["step"].sum())
    before = {key: dict(zip(durations.bucket, durations.count, strict=True)) for key, durations in told.items()}
    second = bench.host("h3")
    bench.send(second.spans(0, START, START + 10**6, {"start": [START], "dur": [500], "line": 0, "kind": Kind.COMPUTE}))
    bench.drain()
    after = {
        key: dict(zip(durations.bucket, durations.count, strict=True)) for key, durations in _published(bench).items()
    }
    assert after[STEP, ""] == before[STEP, ""]
    grown = {k: n - before[OP, "compute"].get(k, 0) for k, n in after[OP, "compute"].items()}
    assert sum(grown.values()) == 1, "one op more"
    assert min(grown.values()) == 0, "no bucket became fewer"


@contextlib.contextmanager
def _prometheus(binary: Path, folder: Path, port: int, target: int) -> Iterator[Callable[[str], list[Any]]]:
    """A real one that scrapes `target` each second and takes native histograms."""
    (folder / "prometheus.yml").write_text(yaml.safe_dump({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "fleetscope", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
    }))  # fmt: skip
    with (folder / "prometheus.log").open("wb") as output:
        process = subprocess.Popen(
            [str(binary), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
             f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=native-histograms"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip

    def ask(query: str) -> list[Any]:
        url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=60) as answer:
            return list(json.loads(answer.read())["data"]["result"])
        return []

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.e2e
def test_a_real_prometheus_has_the_quantiles_of_the_lake(
    bench: Any, tmp_path: Path, require: Callable[[str], Path], free_port: Callable[[], int]
) -> None:
    binary = require("prometheus")
    sent = _send(bench, 2)
    bench.drain()
    Coordinator(bench.config, store=bench.store, log=bench.log).round_once()
    # The events are of another year: they leave the page never, not after five minutes.
    section = {"address": "127.0.0.1:0", "linger_s": 5e9, "stale_s": 5e9}
    exporter = Exporter(bench.config.model_copy(update={"exporter": bench.config.exporter.model_copy(update=section)}))
    exporter.start()
    stop = threading.Event()
    thread = threading.Thread(target=exporter.run, args=(stop,))
    thread.start()
    try:
        with _prometheus(binary, tmp_path, free_port(), exporter.port) as ask:
            end_s = time.monotonic() + 90
            while not ask(f'histogram_count({OP}{{kind="compute"}})') and time.monotonic() < end_s:
                time.sleep(0.2)
            counts = {
                kind: ask(f'histogram_count({OP}{{kind="{kind}"}})')[0]["value"][1]
                for kind in ("compute", "collective")
            }
            assert counts == {"compute": "600", "collective": "600"}
            assert float(ask(f"histogram_sum({STEP})")[0]["value"][1]) == pytest.approx(sent["step"].sum() / 1e9)
            assert not ask(f"{STEP}_bucket"), "scraped as text"
            asked = {
                (kind, share): float(ask(f"histogram_quantile({share}, {series})")[0]["value"][1])
                for kind, series in (("step", STEP), *((k, f'{OP}{{kind="{k}"}}') for k in ("compute", "collective")))
                for share in SHARES
            }
    finally:
        stop.set()
        thread.join(60)
    buckets = _lake(bench)
    for (kind, share), quantile_s in asked.items():
        true_s = sent[kind][max(math.ceil(share * len(sent[kind])), 1) - 1] * 1e-9
        width = 2 ** (1 / (32 if kind == "step" else 8))
        # schema/exponential.py: the true one is in the same bucket times SKEW.
        assert SKEW / width <= true_s / quantile_s <= SKEW * width, (kind, share)
        if kind != "step":
            low, high = quantile(*buckets[kind], share, 0, 2**62)
            assert low * 1e-9 <= true_s <= high * 1e-9
            assert SKEW / width <= low * 1e-9 / quantile_s, (kind, share)
            assert high * 1e-9 / quantile_s <= SKEW * width * (1 + 1e-6), (kind, share)


def _lake(bench: Any) -> dict[str, tuple[list[int], list[int]]]:
    """Kind -> (buckets, counts) of op_10s as a reader sees it."""
    found: dict[str, dict[int, int]] = {}
    for row in Snapshot.open(bench.store).table("op_10s").to_pylist():
        of = found.setdefault(Kind(row["kind"]).name.lower(), {})
        for index, count in zip(row["hist_index"], row["hist_count"], strict=True):
            of[index] = of.get(index, 0) + count
    return {kind: (sorted(of), [of[index] for index in sorted(of)]) for kind, of in found.items()}
