"""The whole path, exactly: benchmarks/exact.py in its short form on both logs; its comparison is shown to fail."""

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.e2e
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def _exact(folder: Path, log: str, *more: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "exact.py", "--short", "--keep", folder, "--log", log, *more],
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1])[log])


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Path, list[object]], object]:
    """benchmarks/exact_truth.compare."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found = importlib.import_module("exact_truth").compare
    return cast(Callable[[Path, Path, list[object]], object], found)


@pytest.mark.timeout(450)
def test_every_event_once_through_kills_a_zombie_other_chains_and_two_coordinators_on_the_embedded_log(
    tmp_path: Path, compare: Callable[[Path, Path, list[object]], object]
) -> None:
    result = _exact(tmp_path, "file", "--rechain", "3", "2")
    assert result["lost_on_purpose"]
    # Of spans whose clock may have been set unseen no bound is claimed: few, or the check of bounds would be hollow.
    assert cast(int, result["extrapolated"]) < cast(int, result["spans"]) * 0.02
    assert (result["kills"], result["zombies"], result["generations"]) == (4, 1, 3)
    # Would it see a difference? One tick, one row, one window.
    truth = tmp_path / "file" / "truth"
    changes: dict[str, Callable[[pa.Table], pa.Table]] = {
        "begin ticks differ": lambda table: _bump(table, "start", 1),
        "duration ticks differ": lambda table: _bump(table, "dur", 1),
        "identities differ": lambda table: _bump(table, "op", 1),
        "a span is too much": lambda table: table.filter(pa.array(np.arange(table.num_rows) != 4000)),
        "a span is missing": lambda table: pa.concat_tables([table, _bump(table.slice(4000, 1), "seq", 1 << 40)]),
        "a span lies outside its stated error": lambda table: _bump(table, "wall_begin_ns", 10**9),
    }
    for what, change in changes.items():
        changed = tmp_path / "changed"
        shutil.copytree(truth, changed)
        pq.write_table(change(pq.read_table(changed / "spans.parquet")), changed / "spans.parquet")
        found: list[object] = []
        compare(changed, tmp_path / "file" / "lake", found)
        assert what in {str(mismatch.what) for mismatch in found}  # type: ignore[attr-defined]
        shutil.rmtree(changed)


def _bump(table: pa.Table, column: str, by: int) -> pa.Table:
    index = table.schema.get_field_index(column)
    values = table[column].to_numpy().copy()
    values[min(4000, len(values) - 1)] += by
    return table.set_column(index, table.schema.field(index), pa.array(values, table.schema.field(index).type))


@pytest.mark.timeout(450)
def test_every_event_once_through_kills_on_a_real_kafka_broker(tmp_path: Path, require: Callable[[str], Path]) -> None:
    require("kafka")
    result = _exact(tmp_path, "kafka")
    assert result["lost_on_purpose"]
    # Of spans whose clock may have been set unseen no bound is claimed: few, or the check of bounds would be hollow.
    assert cast(int, result["extrapolated"]) < cast(int, result["spans"]) * 0.02
    assert (result["kills"], result["zombies"]) == (4, 1)
