"""Collectors in threads of their own: a read that hangs makes its own values old and nothing else."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from fleetscope.agents.collectors import Collector, Reading, Sample
from fleetscope.agents.collectors.plausible import Judge
from fleetscope.schema import wire_pb2 as wire

log = logging.getLogger(__name__)

INVENTORY_S = 60.0
STALE_PERIODS = 3
"""A value not read again for so many periods is absent from /metrics: old is not current."""
HUNG_S = 2.0
"""So long after its deadline a read that has not come back counts as hung."""
PENDING_READINGS, PENDING_SNAPSHOTS = 60, 600
"""Kept for the next batch; a stalled agent loop must not grow memory."""


class CollectorRunner:
    """Reads one collector every `period_s`. Values are taken by the agent's loop and looked at by scrapes."""

    def __init__(self, collector: Collector, period_s: float, now_tick: Callable[[], int]) -> None:
        self.collector = collector
        self._period_s = period_s
        self._now_tick = now_tick
        self._lock = threading.Lock()
        self._pending: list[tuple[int, Sequence[Sample]]] = []
        self._snapshots: list[wire.ClockSnapshot] = []
        self._latest: Reading = Reading()
        self._devices: list[wire.Device] = []
        self._read_s = time.monotonic()
        self._begun_s = 0.0
        """Of the read that has not come back; 0 while there is none."""
        self._hung = False
        self._judge = Judge()
        self.refused: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._untold: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"fleetscope-{collector.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """A collector that hangs is left behind: its thread is a daemon."""
        self._stop.set()
        self._thread.join(1.0)
        if not self._thread.is_alive():
            self.collector.close()

    def _run(self) -> None:
        inventory_s = -INVENTORY_S
        while not self._stop.is_set():
            self._begun_s = begin = time.monotonic()
            try:
                if begin - inventory_s >= INVENTORY_S:
                    devices = self.collector.inventory()
                    with self._lock:
                        self._devices = devices
                    inventory_s = begin
                reading = self._judged(self.collector.read(begin + self._period_s))
                self._keep(reading, self._brackets())
            except Exception as error:  # a source's defect must not end its thread
                log.exception("collector %s", self.collector.name)
                self.errors[type(error).__name__] += 1
            self._begun_s, self._hung = 0.0, False
            self._stop.wait(max(0.05, begin + self._period_s - time.monotonic()))

    def _brackets(self) -> list[wire.ClockSnapshot]:
        """Of device counters; one that cannot be read now must not take the values of its device with it."""
        taken = []
        for clock in self.collector.clocks():
            try:
                snapshot = clock.snapshot()
            except (OSError, ValueError):
                self.errors["clock"] += 1
                continue
            if snapshot is not None:
                taken.append(snapshot)
        return taken

    def _judged(self, reading: Reading) -> Reading:
        with self._lock:
            self._judge.forget([device.key for device in self._devices])
            return self._judge.judge(reading)

    def _keep(self, reading: Reading, snapshots: list[wire.ClockSnapshot]) -> None:
        tick = self._now_tick()
        with self._lock:
            self._latest, self._read_s = reading, time.monotonic()
            self.refused.update(reading.refused)
            self._untold.update(reading.refused)
            self.errors.update(reading.errors)
            self._snapshots = [*self._snapshots, *snapshots][-PENDING_SNAPSHOTS:]
            if reading.samples and len(self._pending) < PENDING_READINGS:
                self._pending.append((tick, reading.samples))

    def take(self) -> tuple[list[tuple[int, Sequence[Sample]]], list[wire.ClockSnapshot], int]:
        """(readings as (tick, samples), brackets of device clocks, values refused), all since the last call"""
        begun_s = self._begun_s
        if begun_s and not self._hung and time.monotonic() > begun_s + self._period_s + HUNG_S:
            self._hung = True
            self.errors["hung"] += 1
        with self._lock:
            pending, self._pending = self._pending, []
            snapshots, self._snapshots = self._snapshots, []
            refused = self._untold.total()
            self._untold.clear()
        return pending, snapshots, refused

    @property
    def age_s(self) -> float:
        """Since the last read that came back."""
        return time.monotonic() - self._read_s

    @property
    def current(self) -> Reading:
        """The last read; one without values once it is old."""
        return self._latest if self.age_s <= STALE_PERIODS * self._period_s + 1 else Reading()

    def latest(self) -> Sequence[Sample]:
        """Values of the last read and those that still hold, unless they are old."""
        reading = self.current
        return (*reading.samples, *reading.standing)

    def devices(self) -> list[wire.Device]:
        with self._lock:
            return list(self._devices)

    @property
    def paths(self) -> Mapping[str, str]:
        """As last told: a file in /dev stays while its driver does."""
        return self._latest.paths

    def quarantined(self) -> dict[str, str]:
        """Devices whose values are withheld, and why."""
        with self._lock:
            return self._judge.quarantined()
