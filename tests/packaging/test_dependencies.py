"""Extras by role: what a training host installs, and what the pinned set may say."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.unit


def installed_by(extra: str) -> set[str]:
    """Names of all distributions that ``pip install fleetscope[extra]`` brings, by their own metadata, transitively."""
    seen: set[tuple[str, str]] = set()
    names: set[str] = set()
    queue = [("fleetscope", extra)]
    while queue:
        name, of_extra = queue.pop()
        if (name, of_extra) in seen:
            continue
        seen.add((name, of_extra))
        names.add(name)
        try:
            lines = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        for line in lines:
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate({"extra": of_extra}):
                continue
            dependency = canonicalize_name(requirement.name)
            queue += [(dependency, e) for e in {"", *requirement.extras}]
    return names


def test_closure_follows_extras() -> None:
    """The walk itself: `demo` names other extras of fleetscope, and Beam brings packages of its own."""
    assert {"apache-beam", "jax", "objsize"} <= installed_by("demo")


@pytest.mark.parametrize("package", ["apache-beam", "duckdb", "deltalake", "jax"])
def test_a_training_host_does_not_install(package: str) -> None:
    """Beam alone is 300 MB; the agent needs none of these. It has grpcio, for the kubelet and TPUs."""
    agent = installed_by("agent")
    assert "kafka-python" in agent
    assert package not in agent


def test_kafka_never_without_its_checksum() -> None:
    """kafka-python falls back to a checksum in Python that makes it 20 times slower, and says nothing."""
    for extra in ("agent", "pipeline", "exporter"):
        names = installed_by(extra)
        assert {"kafka-python", "crc32c"} <= names, extra


def test_oracle_is_for_tests_only() -> None:
    assert "xprof" in installed_by("dev")
    assert "xprof" not in installed_by("all")


def test_constraints_are_pins_alone(repository: Path) -> None:
    """No address, path or option: the file must serve whichever registry a site uses."""
    for line in (repository / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+( ; [^@:]+)?", line), line


def test_constraints_name_everything_installed(repository: Path) -> None:
    lines = [Requirement(line) for line in (repository / "constraints.txt").read_text().splitlines()]
    here = [line for line in lines if line.marker is None or line.marker.evaluate()]
    pinned = {canonicalize_name(line.name): str(line.specifier).removeprefix("==") for line in here}
    wanted = (installed_by("all") | installed_by("dev")) - {"fleetscope"}
    assert wanted - set(pinned) == set()
    assert {name: distribution(name).version for name in wanted} == {name: pinned[name] for name in wanted}
