"""What every test may ask for: sample captures, real components, free ports.

A component that is missing skips the test and says what is missing; with ``FLEETSCOPE_REQUIRE_ALL=1`` (CI) it fails it.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

from fleetscope.transport.broker.broker import Broker

ROOT = Path(__file__).resolve().parent.parent
COMPONENTS = Path(os.environ.get("FLEETSCOPE_COMPONENTS", ROOT / ".components"))

# Shared runners are slow in bursts, so no deadline; one sequence of examples, so that a red run is red again.
hypothesis.settings.register_profile("fleetscope", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("fleetscope")


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


_COMPONENTS: dict[str, tuple[Callable[[], Path | None], str]] = {
    "kafka": (_kafka, "install Java 17 and run `make components-kafka`"),
    "prism": (_prism, "run `make components-prism` (needs go, unshare and ip)"),
    "prometheus": (lambda: _from_prometheus_package("prometheus"), "run `make components-prometheus`"),
    "promtool": (lambda: _from_prometheus_package("promtool"), "run `make components-prometheus`"),
}


@pytest.fixture(scope="session")
def require() -> Callable[[str], Path]:
    """``require("kafka")`` -> path of the jar folder, of the binary for ``prism``, ``prometheus``, ``promtool``."""

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
def samples() -> Path:
    """Folder of the real captures (``xplane/``, ``chakra/``): ``$FLEETSCOPE_SAMPLES``, else ``../shared/samples``."""
    folder = Path(os.environ.get("FLEETSCOPE_SAMPLES", ROOT.parent / "shared" / "samples"))
    if not folder.is_dir():
        _missing("the folder of sample captures", f"set FLEETSCOPE_SAMPLES (looked at {folder})")
    return folder


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Each call gives a loopback TCP port that was free a moment ago and differs from the ones given before."""
    given: set[int] = set()

    def take() -> int:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            if port not in given:
                given.add(port)
                return port

    return take


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return ROOT


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
