"""Event to /metrics on default settings, and what a trickle costs.

A paced simulated fleet (2 hosts x 2 chips) sends through real processes: worker, coordinator, exporter. The page is
polled ten times a second; a batch is visible once its device's observed seconds on the page reach what the truth
says they are with it. An event's latency is that moment minus the event's own end, by the host's wall clock, so the
time an event waits for its batch counts. Then one host with one small step a second for the CPU of worker and
coordinator.

    python benchmarks/freshness.py [--seconds 60] [--log file|kafka|both]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
from report import report

from fleetscope.transport.ports import free_port

P99_BUDGET_S = 5.0
TRICKLE_BUDGET = 0.05
WARM_UP_S = 15.0
_NAME = "fleetscope_device_observed_seconds_total{"


def role(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "FLEETSCOPE_CONFIG": str(folder / "config.yaml")}
    with (folder / f"{words[0]}.log").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "fleetscope.cli.main", *words],
            env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip


def stop(*processes: subprocess.Popen[bytes]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def configure(folder: Path, url: str, port: int) -> None:
    document = {
        "cluster": "freshness", "state_dir": str(folder), "log": {"url": url},
        "exporter": {"address": f"127.0.0.1:{port}"},
    }  # fmt: skip
    (folder / "config.yaml").write_text(json.dumps(document))


def page(port: int) -> dict[str, float]:
    """device key -> observed seconds on the page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    out = {}
    for line in text.splitlines():
        if line.startswith(_NAME):
            labels, _, value = line.rpartition(" ")
            out[labels.split('device="')[1].split('"')[0]] = float(value)
    return out


def latencies(truth: Path, seen: list[tuple[float, dict[str, float]]]) -> np.ndarray:
    """Seconds from the end of an event to the poll that showed it, for 100 points evenly over each batch's time."""
    clocks = {row["device"]: row for row in pq.read_table(truth / "clocks.parquet").to_pylist()}
    total: dict[int, int] = {}
    out = []
    for row in pq.read_table(truth / "ranges.parquet").sort_by("true_to_ns").to_pylist():
        clock = clocks[row["device"]]
        num, den = clock["period_num"], clock["period_den"]
        total[row["device"]] = total.get(row["device"], 0) + row["tick_to"] * num // den - row["tick_from"] * num // den
        if not row["rows"] or row["true_from_ns"] == row["true_to_ns"]:
            continue
        wanted = total[row["device"]] / 1e9 - 1e-6
        when = next((at for at, values in seen if values.get(clock["key"], 0.0) >= wanted), None)
        if when is None:
            raise SystemExit(f"a batch of {clock['key']} never reached the page")
        points = np.linspace(row["true_from_ns"], row["true_to_ns"], 100) / 1e9
        out.append(when - points)
    return np.concatenate(out)


def fresh(url: str, seconds: float, folder: Path) -> dict[str, float]:
    port = free_port()
    configure(folder, url, port)
    up = role(folder, "up")
    seen: list[tuple[float, dict[str, float]]] = []
    try:
        deadline = time.monotonic() + 60
        while not page(port) and time.monotonic() < deadline and up.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1):
                    break
            except OSError:
                time.sleep(0.2)
        fleet = role(
            folder, "simulate", "--hosts", "2", "--chips", "2", "--ops", "150", "--step-ms", "200", "--seconds",
            str(seconds), "--truth", str(folder / "truth"),
        )  # fmt: skip
        after = None
        while after is None or time.monotonic() < after:
            seen.append((time.time(), page(port)))
            time.sleep(0.1)
            if after is None and fleet.poll() is not None:
                after = time.monotonic() + 15
    finally:
        stop(up)
    found = latencies(folder / "truth", seen)
    return {"p50_s": round(float(np.quantile(found, 0.5)), 2), "p99_s": round(float(np.quantile(found, 0.99)), 2)}


def trickle(seconds: float, folder: Path) -> float:
    """Share of a core of worker and coordinator together while one host sends one small step a second."""
    configure(folder, f"file://{folder / 'log'}", free_port())
    fleet = role(
        folder, "simulate", "--hosts", "1", "--chips", "1", "--ops", "10", "--step-ms", "1000", "--seconds",
        str(seconds + WARM_UP_S + 60),
    )  # fmt: skip
    time.sleep(3)
    roles = [role(folder, "worker"), role(folder, "coordinator")]
    try:
        time.sleep(WARM_UP_S)
        before = [psutil.Process(process.pid).cpu_times() for process in roles]
        time.sleep(seconds)
        after = [psutil.Process(process.pid).cpu_times() for process in roles]
    finally:
        stop(fleet, *roles)
    spent = sum(b.user + b.system - a.user - a.system for a, b in zip(before, after, strict=True))
    return spent / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--log", choices=["file", "kafka", "both"], default="both")
    options = parser.parse_args()
    facts: dict[str, float] = {}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleetscope-freshness-")))
        for name in ("file", "kafka") if options.log == "both" else (options.log,):
            folder = root / name
            folder.mkdir()
            url = f"file://{folder / 'log'}"
            if name == "kafka":
                from fleetscope.transport.broker.broker import Broker

                url = stack.enter_context(Broker(folder / "broker")).url
            for key, value in fresh(url, options.seconds, folder).items():
                facts[f"{name}_{key}"] = value
        (root / "trickle").mkdir()
        facts["trickle_core"] = round(trickle(options.seconds, root / "trickle"), 4)
    worst = max(value for key, value in facts.items() if key.endswith("p99_s"))
    failed = [
        what
        for what, wrong in (
            (f"p99 {worst} s", worst > P99_BUDGET_S),
            (f"a trickle costs {facts['trickle_core']:.1%} of a core", facts["trickle_core"] > TRICKLE_BUDGET),
        )
        if wrong
    ]
    more = {**facts, "trickle_budget": TRICKLE_BUDGET, "load": round(os.getloadavg()[0], 1)}
    raise SystemExit(report("freshness", worst, "s", P99_BUDGET_S, failed=failed, **more))


if __name__ == "__main__":
    main()
