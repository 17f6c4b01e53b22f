"""A segment of the test's own process that records."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetscope.native import _recorder as recorder
from fleetscope.native.recorder import Segment


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    recorder.on_first_use(None)
    path = recorder.open(str(tmp_path))
    recorder.record(True)
    yield Segment(path)
    recorder.set_level(1, ())
    recorder.set_thinning(0, {})
    recorder.close(True)
