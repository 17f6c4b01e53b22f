"""The rooms are fleetscope's alone: folder names as common as `agents` or `schema` must not become global modules."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.unit

ROOM_NAMES = ("schema", "native", "transport", "agents", "sinks", "pipelines", "analysis", "cli")
# What the design puts at the root beside the rooms; none of it is importable code.
NOT_ROOMS = {"tests", "benchmarks", "examples", "docs", "deploy", "build", "dist"}


@pytest.fixture(scope="module")
def settings(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text())


def run(code: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def tracked(repository: Path) -> list[str]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=repository, capture_output=True, text=True, check=True)
    return [name for name in listing.stdout.split("\0") if name]


@pytest.mark.parametrize("name", [*ROOM_NAMES, "tests"])
def test_room_is_no_global_module(name: str, tmp_path: Path) -> None:
    """PyPI has projects named agents, pipelines and schema: ours may not shadow them."""
    found = run(
        f"import importlib.util as u; s = u.find_spec({name!r}); print(s.origin if s else None)",
        tmp_path,
    )
    assert "fleetscope" not in found
    assert found == "None"


def test_fleetscope_has_no_init(repository: Path, tmp_path: Path) -> None:
    assert not (repository / "__init__.py").exists()
    assert run("import fleetscope; print(getattr(fleetscope, '__file__', None))", tmp_path) == "None"


def test_importing_agents_imports_nothing(tmp_path: Path) -> None:
    """A training process pays for all that `from fleetscope.agents import profiler` drags in: the package is empty."""
    code = (
        "import sys; import fleetscope; before = set(sys.modules); import fleetscope.agents;"
        "print(sorted(set(sys.modules) - before))"
    )
    assert run(code, tmp_path) == "['fleetscope.agents']"


def test_every_room_is_listed_everywhere(repository: Path, settings: dict[str, Any]) -> None:
    """A room that one list lacks is silently not shipped, not type-checked or not held by the import contracts."""
    rooms = {name.split("/")[0] for name in tracked(repository) if name.endswith(".py") and "/" in name}
    rooms = {room for room in rooms if not room.startswith(".")} - NOT_ROOMS
    dotted = {f"fleetscope.{room}" for room in rooms}
    tool = settings["tool"]
    assert tool["scikit-build"]["wheel"]["packages"] == {f"fleetscope/{room}": room for room in rooms}
    assert set(tool["mypy"]["packages"]) == dotted
    assert set(tool["importlinter"]["root_packages"]) == dotted
    assert set(tool["coverage"]["run"]["source"]) == rooms
    assert rooms <= set(tool["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"])
    assert set(ROOM_NAMES) == rooms
    for room in rooms:
        assert (repository / room / "py.typed").exists(), f"{room}/py.typed: without it a consumer's mypy sees no types"


def test_import_contracts_are_complete(settings: dict[str, Any]) -> None:
    """The table of the design, section 2: per room every other room is allowed by it or forbidden by a contract."""
    allowed = {
        "schema": set(),
        "native": set(),
        "transport": {"schema"},
        "agents": {"schema", "native", "transport"},
        "sinks": {"schema", "transport"},
        "pipelines": {"schema", "transport", "sinks"},
        "analysis": {"schema", "sinks"},
    }
    contracts = settings["tool"]["importlinter"]["contracts"]
    for room, may_import in allowed.items():
        forbidden: set[str] = set()
        for contract in contracts:
            if f"fleetscope.{room}" in contract["source_modules"]:
                forbidden |= {m.removeprefix("fleetscope.") for m in contract["forbidden_modules"]}
        assert forbidden & set(ROOM_NAMES) == set(ROOM_NAMES) - may_import - {room}, room


def test_the_profiler_brings_the_standard_library_and_native_alone(tmp_path: Path) -> None:
    """It loads in every training process: 5 ms and 3 MB are its budget, numpy alone costs ten times that."""
    code = (
        "import sys; import fleetscope; before = set(sys.modules); from fleetscope.agents import profiler;"
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = run(code, tmp_path).split()
    assert "fleetscope.agents.profiler" in loaded
    ours = {name for name in loaded if name.split(".")[0] == "fleetscope"}
    allowed = ("fleetscope.agents", "fleetscope.agents.profiler", "fleetscope.native")
    assert [name for name in ours if not name.startswith(allowed[1:]) and name != allowed[0]] == []
    assert [name for name in set(loaded) - ours if name.split(".")[0] not in sys.stdlib_module_names] == []
