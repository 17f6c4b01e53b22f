"""The accountable lake of world.py, as a module (tests are no package)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fleetscope.sinks.lake.local_store import LocalFolder

WORLD = Path(__file__).with_name("world.py")


@pytest.fixture(scope="session")
def world() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lake_world", WORLD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lake_world"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    return LocalFolder(tmp_path / "lake")
