"""No secret in command lines, literal variables, ConfigMaps and images of what is shipped to run fleetscope."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = sorted(Path(__file__).with_name("golden").glob("*.yaml"))
PODS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
SECRET = re.compile(r"secret|passw|token|access_?key|credential", re.IGNORECASE)
COMMANDS = sorted([*(ROOT / "deploy" / "systemd").glob("*.service"), *(ROOT / "deploy" / "slurm").glob("*.sh")])


def _specs(node: Any) -> Iterator[dict[str, Any]]:
    """Containers, wherever they stand in a manifest."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("containers", "initContainers"):
                yield from value
            yield from _specs(value)
    elif isinstance(node, list):
        for item in node:
            yield from _specs(item)


@pytest.mark.parametrize("path", [*GOLDEN, *PODS], ids=lambda path: path.stem)
def test_pods_have_secrets_from_secrets_alone(path: Path) -> None:
    documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    containers = list(_specs(documents))
    assert containers
    for container in containers:
        words = [*container.get("command", []), *container.get("args", [])]
        assert [word for word in words if SECRET.search(word)] == []
        literal = [v for v in container.get("env", []) if "value" in v]
        # Where a Secret is mounted may be said.
        literal = [
            v for v in literal if not (v["name"].endswith("_FILE") and v["value"].startswith("/etc/fleetscope-"))
        ]
        assert [v for v in literal if SECRET.search(v["name"]) or SECRET.search(v["value"])] == []
        # A URL may hold a password in its query; only a Secret gives one with settings of security.
        assert [v for v in literal if "sasl_" in v["value"] or "@" in v["value"]] == []
    for document in documents:
        if document["kind"] == "ConfigMap":
            assert [key for text in document["data"].values() for key in re.findall(r"^\s*([\w.]+):", text, re.M)
                    if SECRET.search(key)] == []  # fmt: skip
        names = {
            **document.get("metadata", {}).get("labels", {}),
            **document.get("metadata", {}).get("annotations", {}),
        }
        assert [key for key in names if SECRET.search(key)] == []
        assert document["kind"] != "Secret", "the chart makes none: it names those that are there"


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.name)
def test_units_and_scripts_pass_no_secret(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    assert [line for line in lines if SECRET.search(line) or "sasl_" in line] == []
    commands = [line for line in lines if line.startswith("ExecStart=")]
    assert all(len(line.split()) <= 2 for line in commands), "a role and nothing else: all settings come from files"


def test_an_image_is_made_of_sources_alone() -> None:
    docker = ROOT / "deploy" / "docker"
    lines = (docker / "Dockerfile").read_text().splitlines()
    assert [
        line for line in lines if line.startswith(("ARG", "ENV", "RUN", "CMD", "ENTRYPOINT")) and SECRET.search(line)
    ] == []
    ignored = (docker / "Dockerfile.dockerignore").read_text().split()
    kept = {word[1:] for word in ignored if word.startswith("!")}
    assert "*" in ignored
    rooms = {"agents", "analysis", "cli", "native", "pipelines", "schema", "sinks", "transport"}
    assert kept == {*rooms, "pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
