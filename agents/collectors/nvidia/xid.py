"""Xid faults as events, each counted once. NVML's "last Xid" would stay for ever, and an alert on it too."""

from collections import Counter
from typing import Any

from fleetscope.agents.collectors.collector import Sample
from fleetscope.agents.collectors.named import chip
from fleetscope.agents.collectors.nvidia.gpu import is_unsupported, text

A_READ = 64
"""Events taken at one read: a chip that falls off the bus reports by the thousand."""
CODES = 32
"""Different codes of a chip; more of them are "other"."""


class XidEvents:
    """Faults of all chips since the agent began. Not thread-safe."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._watched: set[str] = set()
        self._unsupported: set[str] = set()
        self._counts: dict[str, Counter[str]] = {}

    def watch(self, key: str, handle: Any) -> None:
        """Listen to a chip. Raises NVMLError but for a chip that tells no faults."""
        if key in self._watched or key in self._unsupported:
            return
        if self._set is None:
            self._set = self._nvml.nvmlEventSetCreate()
        try:
            self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, self._set)
        except self._nvml.NVMLError as error:
            if not is_unsupported(error):
                raise
            self._unsupported.add(key)
            return
        self._watched.add(key)

    def take(self) -> None:
        """Takes what has come, without waiting. Raises NVMLError."""
        for _ in range(A_READ if self._set is not None else 0):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except self._nvml.NVMLError as error:
                if type(error).__name__.endswith("Timeout"):
                    break
                raise
            key = text(self._nvml.nvmlDeviceGetUUID(event.device))
            counts = self._counts.setdefault(key, Counter())
            code = str(int(event.eventData))
            counts[code if code in counts or len(counts) < CODES else "other"] += 1

    def counted(self) -> list[Sample]:
        """All faults so far."""
        return [
            Sample(chip("faults_total", vendor_code=f"xid_{code}"), count, key)
            for key, counts in self._counts.items()
            for code, count in counts.items()
        ]

    def close(self) -> None:
        """Raises NVMLError."""
        if self._set is not None:
            self._nvml.nvmlEventSetFree(self._set)
            self._set = None
        self._watched.clear()
