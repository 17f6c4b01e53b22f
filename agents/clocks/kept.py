"""Epochs of a host's counters, kept over a restart of the agent.

Found: `resets` began at 0 with each start. An agent that restarted after a VM had been restored gave ticks of before
and after one epoch, and the pipeline, for which a tick cannot mean two times, left the host unsynced from then on.
"""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from fleetscope.schema import wire_pb2 as wire

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostReading:
    """(MONOTONIC_RAW ns, host counter, REALTIME ns, MONOTONIC_RAW ns), read in this order."""

    raw_before_ns: int
    counter: int
    realtime_ns: int
    raw_after_ns: int


Epochs = Mapping[str, tuple[wire.ClockEpoch, HostReading]]
"""Of each counter its epoch and a reading of it."""


class KeptEpochs:
    """Of one boot, in one file. A boot begins all counters anew."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path, self._boot_id = path, boot_id

    def load(self) -> Epochs:
        """Empty where there is nothing, or nothing that can be read."""
        try:
            kept = json.loads(self._path.read_bytes())
            if kept["boot_id"] != self._boot_id:
                return {}
            return {name: _read(name, *values) for name, values in kept["counters"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s: %s", self._path, error)
            return {}

    def keep(self, epochs: Epochs) -> None:
        partial = self._path.with_name(self._path.name + ".new")
        counters = {
            name: [epoch.resets, epoch.period_num, epoch.period_den, *astuple(reading)]
            for name, (epoch, reading) in epochs.items()
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps({"boot_id": self._boot_id, "counters": counters}))
            os.replace(partial, self._path)
        except OSError as error:
            log.warning("%s: %s", self._path, error)


def _read(name: str, resets: int, num: int, den: int, *reading: int) -> tuple[wire.ClockEpoch, HostReading]:
    epoch = wire.ClockEpoch(clock=name, resets=resets, period_num=num, period_den=den, width_bits=64)
    return epoch, HostReading(*map(int, reading))
