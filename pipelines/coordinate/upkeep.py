"""What keeps the lake small between rounds, each on its own clock: small files replaced, leftovers swept, runs
ended."""

import logging
import time
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from fleetscope.pipelines.coordinate.clock_retention import expire_maps
from fleetscope.pipelines.coordinate.moment import Moments
from fleetscope.pipelines.coordinate.runs import finished_runs, silent_runs
from fleetscope.schema.config import LakeConfig
from fleetscope.schema.errors import FleetscopeError, Retryable
from fleetscope.sinks.lake.dimension import newest
from fleetscope.sinks.lake.fold import Merge, fold_rows, read_rows
from fleetscope.sinks.lake.replace import replace_small
from fleetscope.sinks.lake.sweep import sweep

_log = logging.getLogger(__name__)

REPLACE_S = 60.0
SWEEP_S = 3600.0
RUNS_S = 15.0
"""A look at runs and processes costs ~5 ms while one of them runs."""


class Upkeep:
    """`tick` does what is due. A part that fails is logged with its number and tried again at its next time."""

    def __init__(self, moments: Moments, merge: Merge, config: LakeConfig) -> None:
        self._moments = moments
        self._merge = merge
        self._config = config
        now = time.monotonic()
        # a process that lives for minutes only (a demo, a test) replaces but does not sweep
        self._due = {"replace": now + REPLACE_S, "runs": now + RUNS_S, "sweep": now + SWEEP_S, "maps": now + SWEEP_S}

    def tick(self) -> None:
        self._every("replace", REPLACE_S, self.replace)
        self._every("runs", RUNS_S, self.end_runs)
        self._every("maps", SWEEP_S, lambda: expire_maps(self._moments, time.time_ns()))
        self._every("sweep", SWEEP_S, lambda: sweep(self._moments.store))

    def _every(self, what: str, period_s: float, do: Callable[[], object]) -> None:
        if time.monotonic() < self._due[what]:
            return
        try:
            do()
        except Retryable as error:
            _log.warning("%s: %s", what, error)
        except FleetscopeError as error:
            # one damaged file must not keep everything else from being folded
            _log.error("%s: %s", what, error)
        finally:
            self._due[what] = time.monotonic() + period_s

    def replace(self) -> int:
        """Replace the small files that are due; how many went. The next round names the new versions."""
        gone = 0
        for name, table in self._moments.tables.items():
            if table.version < 0:
                continue
            done = replace_small(
                table, self._merge, small_files=self._config.small_files, bin_rows=self._config.replace_rows
            )
            if done.files:
                self._moments.touch(name)
                gone += done.files
        return gone

    def end_runs(self, now_ns: int | None = None) -> int:
        """End the runs all of whose processes ended, and those nobody has heard of for a while; how many."""
        runs = self._newest("runs")
        if not runs.num_rows or not pc.any(pc.equal(runs.column("end_ns"), 0)).as_py():
            return 0
        finished = finished_runs(runs, self._newest("processes"))
        rest = runs.filter(pc.invert(pc.is_in(runs.column("attempt"), value_set=finished.column("attempt"))))
        silent = silent_runs(rest, time.time_ns() if now_ns is None else now_ns)
        ended = pa.concat_tables([finished, silent])
        if ended.num_rows:
            fold_rows(self._moments.tables["runs"], ended, {})
            self._moments.touch("runs")
        return int(ended.num_rows)

    def _newest(self, name: str) -> pa.Table:
        table = self._moments.tables[name]
        table.refresh()
        paths = [item.path for item in table.live()]
        rows = read_rows(table.store, name, paths) if paths else table.spec.schema.empty_table()
        return newest(table.spec, rows)
