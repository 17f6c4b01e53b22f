"""Run by `runpy` in a child of the fork server: a worker that drains, and signals itself at a named point.

Globals given: CONFIG, POINT, SIGNAL.
"""

import os
from typing import Any

from fleetscope.pipelines.drivers.epoch import Worker
from fleetscope.sinks.lake import faults

given: dict[str, Any] = globals()
with faults.armed(given["POINT"], lambda: os.kill(os.getpid(), given["SIGNAL"])):
    Worker(given["CONFIG"]).run_once()
