"""The wheel and the sdist hold the rooms, the native modules and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOM_NAMES = {"schema", "native", "transport", "agents", "sinks", "pipelines", "analysis", "cli"}


def build(kind: str, repository: Path, out: Path) -> Path:
    """Through the build back end itself; the build folder of the checkout is used again, so nothing compiles twice."""
    code = (
        f"from scikit_build_core.build import build_{kind} as build;"
        f"build({str(out)!r}, config_settings={{'build-dir': 'build/dev'}})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel_names(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with zipfile.ZipFile(build("wheel", repository, tmp_path_factory.mktemp("wheel"))) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def sdist_names(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with tarfile.open(build("sdist", repository, tmp_path_factory.mktemp("sdist"))) as archive:
        return {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}


def test_wheel_holds_the_rooms_and_no_global_name(wheel_names: set[str]) -> None:
    roots = {name.split("/")[0] for name in wheel_names}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"fleetscope"}
    assert {name.split("/")[1] for name in wheel_names if name.startswith("fleetscope/")} == ROOM_NAMES


def test_wheel_ships_data_types_and_native_modules(wheel_names: set[str], repository: Path) -> None:
    for room in ROOM_NAMES:
        assert f"fleetscope/{room}/py.typed" in wheel_names
    for data in (repository / "schema").glob("*.json"):
        assert f"fleetscope/schema/{data.name}" in wheel_names
    assert [name for name in wheel_names if name.startswith("fleetscope/native/") and name.endswith(".so")]


def test_wheel_leaves_sources_out(wheel_names: set[str]) -> None:
    """Of `native/` only what is imported is shipped: no C++, build files, fuzz targets or corpora."""
    native = [name for name in wheel_names if name.startswith("fleetscope/native/")]
    public = {"fleetscope/native/include/fleetscope/recorder.h", "fleetscope/native/cmake/fleetscope-config.cmake"}
    assert public <= set(native)
    native = [name for name in native if name not in public]
    assert [name for name in native if not name.endswith((".py", ".pyi", ".so", "/py.typed"))] == []
    assert [name for name in wheel_names if name.endswith((".proto", "CMakeLists.txt", ".md"))] == []


def test_sdist_builds_and_tests_elsewhere(sdist_names: set[str]) -> None:
    """Everything the build reads is in it; the type checkers' link (a cycle) and built things are not."""
    assert {"pyproject.toml", "LICENSE", "README.md", "native/CMakeLists.txt"} <= sdist_names
    assert [n for n in sdist_names if n.startswith((".ns", ".venv", ".components", "build/", "dist/"))] == []
    assert [n for n in sdist_names if n.endswith((".so", ".pyc"))] == []
