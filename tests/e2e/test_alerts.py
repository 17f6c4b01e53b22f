"""Alerts that arrive: simulated hosts, a real agent, a worker, real Prometheus and Alertmanager with the shipped rules,
and a webhook. Durations of the rules are a twelfth: they are for scrapes every 15 s, here one comes every second."""

import contextlib
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from fleetscope.pipelines.coordinate.rounds import Coordinator
from fleetscope.schema.config import load
from fleetscope.sinks.prometheus.exporter import Exporter

pytestmark = pytest.mark.e2e

SCALE = 12
THROTTLE_AT_S, THROTTLE_S = 18, 25
OWN_DELAY_S = 120 / SCALE
"""`for` of FleetscopeThermalThrottling."""
UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
ROOT = Path(__file__).resolve().parents[2] / "deploy"
STEPS = """
import itertools, time
from fleetscope.agents import profiler
for number in itertools.count():
    with profiler.step(number), profiler.annotate("work"):
        time.sleep(0.1)
"""
"""A process of the real agent: what it costs, how far the governor lets it."""
SILENT = "Silent hosts"
"""A panel; nobody is until the agent is killed."""
CHOSEN = {"run": "train", "host": "sim-003"}
"""Of the dashboards' variables that take one value; all others are all."""
THROTTLED = {"alertname": "FleetscopeThermalThrottling", "host": "sim-003", "device": "sim-003/tpu-0000:01:00.0",
             "reason": "thermal", "run": "train", "sku": "TPU v6e"}  # fmt: skip


def _faster(text: str) -> str:
    """A duration, or those in an expression."""

    def twelfth(found: re.Match[str]) -> str:
        number, unit = (part for part in found.groups() if part)
        return f"{int(number) * UNITS[unit] / SCALE:.0f}ms"

    return re.sub(r"(?<=\[)(\d+)(ms|[smh])(?=\])|(?<=offset )(\d+)(ms|[smh])|^(\d+)(ms|[smh])$", twelfth, text)


def _rules(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "prometheus" / name).read_text())
    for group in document["groups"]:
        group["interval"] = _faster(group["interval"])
        for rule in group["rules"]:
            # Half an hour of samples would keep the MFU alert from ever firing here, rightly or not.
            rule["expr"] = _faster(rule["expr"]).replace("[1800000ms]) >= 120", "[1800000ms]) >= 8")
            if "for" in rule:
                rule["for"] = _faster(rule["for"])
    return document


def _alertmanager(url: str) -> dict[str, Any]:
    """The shipped example with its waits a twelfth, told to `url`."""

    def shorten(route: dict[str, Any]) -> None:
        for key in ("group_wait", "group_interval"):
            if key in route:
                route[key] = _faster(route[key])
        for inner in route.get("routes", []):
            shorten(inner)

    document: dict[str, Any] = yaml.safe_load((ROOT / "alertmanager" / "alertmanager.example.yml").read_text())
    shorten(document["route"])
    document["receivers"][0]["webhook_configs"][0]["url"] = url
    return document


@dataclass
class Webhook:
    """What came, when: (monotonic seconds, alert)."""

    came: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    url: str = ""

    def first(self, status: str, **labels: str) -> float | None:
        for at, alert in list(self.came):
            if alert["status"] == status and labels.items() <= alert["labels"].items():
                return at
        return None

    def names(self, name: str) -> set[str]:
        """Hosts (or runs, chains) of what came under a name."""
        found = [alert["labels"] for _, alert in list(self.came) if alert["labels"]["alertname"] == name]
        return {labels.get("device") or labels.get("host") or labels.get("run") or labels["chain"] for labels in found}


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            hook.came += [(time.monotonic(), alert) for alert in body["alerts"]]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook = Webhook(url=f"http://127.0.0.1:{server.server_port}/alerts")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield hook
    server.shutdown()
    server.server_close()


@dataclass
class Stage:
    """Processes and threads of a test; all end with it."""

    folder: Path
    environment: dict[str, str]
    stack: contextlib.ExitStack

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        output = self.stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(words, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self.stack.callback(_end, process)
        return process

    def role(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        return self.start(name, sys.executable, "-m", "fleetscope.cli.main", *words)

    def thread(self, run: Callable[[threading.Event], None]) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=run, args=(stop,), daemon=True)
        thread.start()
        self.stack.callback(thread.join, 20)
        self.stack.callback(stop.set)

    def alertmanager(self, binary: Path, port: int, hook: Webhook) -> None:
        (self.folder / "alertmanager.yml").write_text(yaml.safe_dump(_alertmanager(hook.url)))
        # Debian's finds its templates at one place only; see conftest.
        share, installed = binary.parents[1] / "share", Path("/usr/share/prometheus/alertmanager").exists()
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        unshare = ["unshare", *user, "--mount", "sh", "-c", 'mount --bind "$0" /usr/share && exec "$@"', str(share)]
        self.start(
            "alertmanager", *([] if installed else unshare), str(binary),
            f"--config.file={self.folder / 'alertmanager.yml'}",
            f"--storage.path={self.folder / 'am'}", f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        )  # fmt: skip
        _until(lambda: _get(f"http://127.0.0.1:{port}/-/ready") is not None, 60, "Alertmanager")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    (tmp_path / "shm").mkdir()
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("FLEETSCOPE_", "PYTHON"))}
    with contextlib.ExitStack() as stack:
        yield Stage(tmp_path, clean | {"FLEETSCOPE_CONFIG": str(tmp_path / "fleetscope.yaml")}, stack)


@dataclass
class Panels:
    """The dashboards, and which of their queries had no answer yet."""

    asked: ModuleType
    url: str
    since_s: float
    boards: dict[str, dict[str, Any]] = field(init=False)
    empty: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.boards = self.asked.boards()
        every = [query for uid, board in self.boards.items() for query in self.asked.queries(uid, board)]
        assert {(query.board, query.title) for query in every} >= set(self.asked.NOT_SIMULATED)
        self.empty = [query for query in every if (query.board, query.title) not in self.asked.NOT_SIMULATED]

    def _ask(self, path: str, **parameters: Any) -> Any:
        return json.loads(_get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}") or "{}").get("data")

    def answer(self, query: Any, expr: str) -> list[dict[str, Any]]:
        """The series of a query from the begin on, for what a reader would choose."""
        variables = self.asked.variables(self.boards[query.board])
        expr = self.asked.filled(expr, {name: "" if many else CHOSEN[name] for name, (*_, many) in variables.items()})
        found = self._ask("query_range", query=_faster(expr), start=self.since_s, end=time.time(), step=1)
        return list(found["result"]) if found else []

    def still_empty(self) -> set[str]:
        """Titles. What stands in for series that are not there yet is no answer."""
        left = []
        for query in self.empty:
            found = self.answer(query, query.expr.replace(self.asked.ZERO, ""))
            if not found:
                left.append(query)
            for label in re.findall(r"{{(\w+)}}", query.legend) if found else ():
                assert any(label in series["metric"] for series in found), (query.name, label)
        self.empty = left
        print("no answer yet:", "; ".join(query.name for query in left))
        return {query.title for query in left}

    def choices(self) -> dict[tuple[str, str], list[str]]:
        """(dashboard, variable) -> values to choose among."""
        found = {}
        for uid, board in self.boards.items():
            chosen: dict[str, str] = {}
            for name, (selector, label, many) in self.asked.variables(board).items():
                match = {"match[]": self.asked.filled(selector, chosen)}
                found[uid, name] = self._ask(f"label/{label}/values", **match) or []
                chosen[name] = "" if many else CHOSEN[name]
        return found

    def draw(self, pictures: ModuleType, now_s: float, folder: Path) -> None:
        caption = "drawn from query results, not by Grafana: four simulated hosts, durations a twelfth"
        shown = pictures.Shown(self.since_s, now_s, time.time(), caption)
        for uid, board in self.boards.items():
            answers = {(q.panel["id"], q.ref): self.answer(q, q.expr) for q in self.asked.queries(uid, board)}
            pictures.draw(uid, board, answers, shown, folder / f"{uid.removeprefix('fleetscope-')}.png")


def _get(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return str(answer.read().decode())
    except OSError:
        return None


def _until(what: Callable[[], Any], seconds: float, name: str) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, f"{name} did not come in {seconds:.0f} s"
        time.sleep(0.2)
    return found


@pytest.mark.timeout(180)
def test_lag_silences_utilization_and_nothing_else(
    require: Callable[[str], Path], free_port: Callable[[], int], stage: Stage, webhook: Webhook
) -> None:
    port = free_port()
    stage.alertmanager(require("prometheus-alertmanager"), port, webhook)

    def post(ends_s: float, **labels: str) -> None:
        at = time.time()
        # One that began long ago would be told at once, whatever its group waits, and race with what inhibits it.
        stamps = {"startsAt": min(at, at + ends_s - 1), "endsAt": at + ends_s}
        body = {"labels": labels} | {
            key: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(value)) for key, value in stamps.items()
        }
        url = f"http://127.0.0.1:{port}/api/v2/alerts"
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(url, json.dumps([body]).encode(), headers), timeout=30).close()

    mfu = {"alertname": "FleetscopeMfuBelowOwnMedian", "run": "a", "severity": "warning", "area": "utilization"}
    lag = {"alertname": "FleetscopePipelineLag", "chain": "0", "severity": "critical", "area": "pipeline"}
    heat = {"alertname": "FleetscopeThermalThrottling", "host": "h0", "severity": "warning", "area": "device"}
    post(300, **lag)
    _until(lambda: webhook.first("firing", **lag), 30, "the lag")
    post(300, **mfu)
    post(300, **heat)
    _until(lambda: webhook.first("firing", **heat), 30, "the heat")
    time.sleep(3)  # several of the 0.8 s its group waits
    assert webhook.names(mfu["alertname"]) == set()
    post(-1, **lag)
    _until(lambda: webhook.first("firing", **mfu), 30, "MFU, once the lag has ended")


@pytest.mark.timeout(400)
def test_a_hot_chip_a_paused_pipeline_and_a_killed_agent(
    require: Callable[[str], Path], free_port: Callable[[], int], stage: Stage, webhook: Webhook,
    grafana: Callable[[str], ModuleType],
) -> None:  # fmt: skip
    prometheus, alertmanager = require("prometheus"), require("prometheus-alertmanager")
    exporter_port, agent_port, prometheus_port, alertmanager_port = (free_port() for _ in range(4))
    folder = stage.folder
    (folder / "probes.key").write_text("7e57" * 8)
    (folder / "fleetscope.yaml").write_text(yaml.safe_dump({
        "cluster": "alerts",
        "state_dir": str(folder),
        "agent": {
            "shm_dir": str(folder / "shm"), "metrics_address": f"127.0.0.1:{agent_port}", "host": "real",
            "probes": {"enabled": True, "address": "127.0.0.1:0", "key_file": str(folder / "probes.key")},
        },
        "exporter": {"address": f"127.0.0.1:{exporter_port}"},
        "coordinator": {"round_s": 5},
    }))  # fmt: skip
    worker = stage.role("worker", "worker")
    agent = stage.role("agent", "agent")
    stage.role("steps", "run", "--run", "live", "--", sys.executable, "-c", STEPS)
    stage.role(
        "simulate", "simulate", "--hosts", "4", "--chips", "2", "--seconds", "600", "--ops", "12", "--step-ms", "500",
        "--busy", "0.6", "--run", "train", "--shim", "--pages", str(folder / "pages.json"),
        "--fault", f"throttle:host=3,chip=1,at={THROTTLE_AT_S},for={THROTTLE_S},slowdown=1.3",
    )  # fmt: skip
    config = load(folder / "fleetscope.yaml")
    stage.thread(Exporter(config).run)
    stage.thread(Coordinator(config).run)
    stage.alertmanager(alertmanager, alertmanager_port, webhook)
    for name in ("fleetscope.rules.yml", "fleetscope.alerts.yml"):
        (folder / name).write_text(yaml.safe_dump(_rules(name), sort_keys=False))
    (folder / "prometheus.yml").write_text(yaml.safe_dump({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["fleetscope.rules.yml", "fleetscope.alerts.yml"],
        "scrape_configs": [
            {"job_name": "fleetscope", "static_configs": [
                {"targets": [f"127.0.0.1:{exporter_port}", f"127.0.0.1:{agent_port}"]}]},
            {"job_name": "simulated", "file_sd_configs": [{"files": ["pages.json"], "refresh_interval": "1s"}]},
        ],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager_port}"]}]}]},
    }))  # fmt: skip
    stage.start(
        "prometheus", str(prometheus), f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{prometheus_port}",
        "--enable-feature=native-histograms",
    )  # fmt: skip

    panels = Panels(grafana("asked"), f"http://127.0.0.1:{prometheus_port}", time.time())

    def ask(query: str) -> list[Any]:
        url = f"http://127.0.0.1:{prometheus_port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        return list(json.loads(_get(url) or '{"data":{"result":[]}}')["data"]["result"])

    targets = json.loads(
        _until(lambda: (folder / "pages.json").exists() and (folder / "pages.json").read_text(), 60, "pages")
    )
    hot = targets[0]["targets"][3]
    throttled = re.compile(r'^fleetscope_chip_throttled\{.*01:00\.0".*\} 1\.0$', re.MULTILINE)
    _until(lambda: throttled.search(_get(f"http://{hot}/metrics") or ""), 60, "the throttled chip")
    seen_s = time.monotonic()
    arrived_s = _until(lambda: webhook.first("firing", **THROTTLED), OWN_DELAY_S + 15, "the alert of the hot chip")
    print(f"{arrived_s - seen_s:.1f} s from the page to the webhook, {OWN_DELAY_S:.0f} of them the rule's own")
    assert arrived_s - seen_s <= OWN_DELAY_S + 10

    # Every panel has an answer; who is silent is asked for once somebody is.
    hot_s = time.time()
    _until(lambda: panels.still_empty() <= {SILENT}, 60, "the answer to a panel")
    for (uid, name), values in panels.choices().items():
        assert values, (uid, name)
        assert name not in CHOSEN or CHOSEN[name] in values, (uid, name)

    # While it cools: the worker is paused, the real agent killed.
    assert ask('run:fleetscope_mfu:ratio{run="train"}'), "the MFU alert has nothing to judge"
    assert ask('fleetscope_agent_time_seconds{host="real"}')
    worker.send_signal(signal.SIGSTOP)
    agent.kill()
    _until(lambda: webhook.first("firing", alertname="FleetscopeHostSilent", host="real"), 30, "the silent host")
    _until(lambda: webhook.first("resolved", **THROTTLED), THROTTLE_S + 30, "the end of the throttling")
    _until(lambda: webhook.first("firing", alertname="FleetscopePipelineLag", chain="0"), 60, "the lag")
    time.sleep(5)  # the lag has its way with everything else
    worker.send_signal(signal.SIGCONT)
    _until(lambda: webhook.first("resolved", alertname="FleetscopePipelineLag"), 40, "the end of the lag")

    assert webhook.names("FleetscopeMfuBelowOwnMedian") == set()
    assert webhook.names("FleetscopeHostSilent") == {"real"}
    assert webhook.names("FleetscopeThermalThrottling") == {THROTTLED["device"]}
    assert webhook.names("FleetscopeClockUnsynced") == set()
    assert webhook.names("FleetscopeLakeNotFolding") == webhook.names("FleetscopeEventsLost") == set()
    assert panels.still_empty() == set()
    if folder_of_pictures := os.environ.get("FLEETSCOPE_PICTURES"):  # `make pictures`
        panels.draw(grafana("pictures"), hot_s, Path(folder_of_pictures))
