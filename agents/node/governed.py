"""What the governor holds of one process, and a decision about it. Kept over a restart of the agent."""

import json
import logging
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetscope.agents.node.ladder import EVERYTHING, NAMES, NOTHING, Shares, Thinning

log = logging.getLogger(__name__)

REGIONS, WINDOWS = "regions", "windows"
"""What is lowered and raised."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`was`, `now`: rungs of the ladder, or halvings of the rate of windows. Shares are those that led to it."""

    at_ns: int
    """REALTIME."""
    pid: int
    run: str
    rank: int
    lever: str
    was: int
    now: int
    reason: str
    recorder_ratio: float
    windows_ratio: float
    agent_ratio: float
    """Of a core, for this process: drained and decoded."""
    text: str


@dataclass(slots=True)
class Governed:
    """`rung` and `window_shift` 0: everything is recorded. Moments are of the governor's own clock, in seconds."""

    wait_s: float
    """Before the next raise."""
    rung: int = 0
    thin: Thinning = EVERYTHING
    window_shift: int = 0
    changed_s: float = float("-inf")
    raised_s: float = float("-inf")
    shares: Shares = NOTHING
    """In the last look; of windows and their decoding since `windows_since_s`."""
    windows: float = 0.0
    decode: float = 0.0
    windows_since_s: float | None = None
    windows_seen: int = 0
    windows_ns: tuple[float, float] = (0.0, 0.0)
    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By lever and reason."""

    def carried(self) -> dict[str, Any]:
        return {
            "rung": self.rung,
            "thin": self.thin.names,
            "rest": self.thin.rest,
            "windows": self.window_shift,
            "wait_s": self.wait_s,
        }

    def restore(self, kept: Mapping[str, Any], rungs: int, now_s: float) -> None:
        """Raises ValueError, KeyError, TypeError or AttributeError for what `carried` did not make."""
        names = {str(name): int(shift) for name, shift in list(kept["thin"].items())[:NAMES]}
        rung, rest, windows, wait_s = int(kept["rung"]), int(kept["rest"]), int(kept["windows"]), float(kept["wait_s"])
        self.thin, self.rung = Thinning(names, rest), min(max(rung, 0), rungs - 1)
        self.window_shift, self.wait_s = max(0, windows), max(self.wait_s, wait_s)
        self.changed_s = now_s


Kept = dict[str, dict[str, Any]]
"""By "<pid>-<start ticks>"."""


def load(path: Path, boot_id: str) -> Kept:
    """What an earlier life of the agent had decided for processes of this boot; empty when that cannot be read."""
    try:
        kept = json.loads(path.read_bytes())
        return dict(kept["processes"]) if kept["boot_id"] == boot_id else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: %s", path, error)
        return {}


def keep(path: Path, boot_id: str, processes: Kept) -> None:
    partial = path.with_name(path.name + ".new")
    try:
        partial.write_text(json.dumps({"boot_id": boot_id, "processes": processes}))
        os.replace(partial, path)
    except OSError as error:
        log.warning("%s: %s", path, error)
