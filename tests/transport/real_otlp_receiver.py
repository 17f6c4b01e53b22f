"""OTLP into a real receiver, the endpoint of Prometheus 3 (built from Go modules): `make e2e-otlp`.

Not collected by `make test`: Debian's Prometheus (2.42) has no such endpoint yet, and building one takes some minutes.
"""

import contextlib
import json
import math
import subprocess
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

from fleetscope.schema.config import OtlpConfig
from fleetscope.schema.exponential import SKEW, native_bucket
from fleetscope.schema.metrics import Metric, metric, metrics
from fleetscope.schema.otlp import conventions
from fleetscope.transport.exposition import application
from fleetscope.transport.families import Classic, Durations, Family
from fleetscope.transport.otlp import pusher
from fleetscope.transport.scrape import ScrapeServer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

STEP = metric("fleetscope_run_step_duration_seconds")
Ask = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def prometheus(
    require: Callable[[str], Path], free_port: Callable[[], int], tmp_path: Path
) -> Iterator[tuple[str, Ask, Path]]:
    """(address, a way to ask it, file of targets to scrape)"""
    port, targets = free_port(), tmp_path / "targets.json"
    targets.write_text("[]")
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "scrape_native_histograms": True},
        "scrape_configs": [
            {"job_name": "scraped", "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}]}
        ],
        "storage": {"tsdb": {"out_of_order_time_window": "5m"}},
    }))  # fmt: skip
    with (tmp_path / "prometheus.log").open("wb") as output:
        process = subprocess.Popen(
            [str(require("otlp")), f"--config.file={tmp_path / 'prometheus.yml'}", "--web.enable-otlp-receiver",
             f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"

    def ask(query: str) -> list[dict[str, Any]]:
        url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=60) as answer:
            return list(json.loads(answer.read())["data"]["result"])
        return []

    try:
        end_s = time.monotonic() + 60
        while not ask("vector(1)") and time.monotonic() < end_s:
            time.sleep(0.1)
        yield address, ask, targets
    finally:
        process.terminate()
        process.wait(60)


def _families(durations: Durations) -> list[Family]:
    """One series of every metric there is."""

    def family(spec: Metric) -> Family:
        labels = tuple(f"a {label}" for label in spec.labels)
        if spec.native is not None:
            return Family(spec, histograms={labels: durations if spec == STEP else Durations(spec.native, {3: 2})})
        if spec.type == "histogram":
            return Family(spec, classic={labels: Classic([0.1], [1, 3], 2.0)})
        return Family(spec, {labels: 0.25})

    return [family(spec) for spec in metrics().values()]


def test_every_metric_is_taken_and_is_the_series_a_scrape_has(prometheus: tuple[str, Ask, Path]) -> None:
    address, ask, targets = prometheus
    rng = np.random.default_rng(7)
    sent_ns = np.sort(np.round(rng.lognormal(math.log(0.2e9), 0.6, 2000)).astype(np.int64))
    from fleetscope.pipelines.histogram import bucket_index

    bucket, count = np.unique(native_bucket(bucket_index(sent_ns).astype(np.int64), 5), return_counts=True)
    steps = Durations(5)
    steps.add(bucket.tolist(), count.tolist(), 0, float(sent_ns.sum() / 1e9))
    families = _families(steps)
    config = OtlpConfig(endpoint=f"{address}/api/v1/otlp/v1/metrics", timeout_s=60)
    made = pusher(config, "fleetscope-agent", "a host", lambda: families, cluster="prod", host="a host")
    assert made is not None
    made.push()
    assert {outcome: points for outcome, points in made.points.items() if points} == {"accepted": len(families)}

    pushed = {one["metric"]["__name__"] for one in ask('{job="fleetscope/fleetscope-agent"}')}
    own = {spec.name for spec in metrics().values() if spec.name not in conventions() and spec.type != "histogram"}
    assert own <= pushed
    assert STEP.name in pushed
    assert {
        "hw_power_watts",
        "hw_energy_joules_total",
        "hw_gpu_utilization_ratio",
        "system_cpu_time_seconds_total",
    } <= pushed
    (power,) = ask("hw_power_watts")
    assert (power["metric"]["hw_id"], power["metric"]["instance"]) == ("a device", "a host"), "two hosts are two series"
    (about,) = ask('target_info{job="fleetscope/fleetscope-agent"}')
    assert (about["metric"]["host_name"], about["metric"]["fleetscope_cluster"]) == ("a host", "prod")

    # The same, scraped: by protobuf, since this one takes native histograms.
    server = ScrapeServer("127.0.0.1", 0, application(lambda: [f for f in families if not f.classic]))
    try:
        targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{server.port}"]}]))
        end_s = time.monotonic() + 60
        while not ask(f'{STEP.name}{{job="scraped"}}') and time.monotonic() < end_s:
            time.sleep(0.2)
    finally:
        server.stop()
    for name in sorted(own):
        (by_push,), (by_scrape,) = (ask(f'{name}{{job="{job}"}}') for job in ("fleetscope/fleetscope-agent", "scraped"))
        told = [
            {key: value for key, value in one["metric"].items() if key not in ("job", "instance")}
            for one in (by_push, by_scrape)
        ]
        assert told[0] == told[1], name
        assert by_push["value"][1] == by_scrape["value"][1] == "0.25"
    for share in (0.05, 0.5, 0.9, 0.99):
        answers = ask(f"histogram_quantile({share}, {STEP.name})")
        assert len(answers) == 2
        true_s = sent_ns[math.ceil(share * len(sent_ns)) - 1] / 1e9
        for one in answers:
            ratio = true_s / float(one["value"][1])
            assert SKEW / 2 ** (1 / 32) <= ratio <= SKEW * 2 ** (1 / 32), one["metric"]["job"]


def test_a_sum_that_falls_is_a_reset(prometheus: tuple[str, Ask, Path]) -> None:
    address, ask, _ = prometheus
    value = [0.0]
    spec = metric("fleetscope_agent_events_total")
    made = pusher(
        OtlpConfig(endpoint=f"{address}/api/v1/otlp/v1/metrics", timeout_s=60), "s", "i",
        lambda: [Family(spec, {("h",): value[0]})],
    )  # fmt: skip
    assert made is not None
    for value[0] in (100.0, 150.0, 20.0, 30.0):
        made.push()
        time.sleep(0.05)
    assert made.points["accepted"] == 4
    (resets,) = ask("resets(fleetscope_agent_events_total[1m])")
    assert resets["value"][1] == "1"
