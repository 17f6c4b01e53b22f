"""The collector of NVIDIA GPUs: which there are, and one read of all. No driver, no library: no GPUs."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from fleetscope.agents.clocks import DeviceClock
from fleetscope.agents.collectors.collector import Reading, Sample
from fleetscope.agents.collectors.nvidia.fields import fields
from fleetscope.agents.collectors.nvidia.gpm import free, gpm
from fleetscope.agents.collectors.nvidia.gpu import Call, Gpu, is_unsupported, text
from fleetscope.agents.collectors.nvidia.values import CALLS, MIG_CALLS
from fleetscope.agents.collectors.nvidia.xid import XidEvents
from fleetscope.schema import wire_pb2 as wire

STANDING_S = 10.0
"""Errors, repairs, links and margins: their fields are asked of the chip itself and change slowly."""


class NvidiaCollector:
    """Every chip and MIG instance, by UUID; power, clocks and faults are the whole chip's, listed beside its parts."""

    name = "nvidia"
    period_s = 0.0

    def __init__(self, library: Any = None) -> None:
        """`library`: the pynvml module, or one that behaves like it."""
        self._nvml = library
        self._ready = False
        self._gpus: dict[str, Gpu] = {}
        self._errors: Counter[str] = Counter()
        self._xids: XidEvents | None = None

    # ---- which there are

    def inventory(self) -> list[wire.Device]:
        if not self._start():
            return []
        found: dict[str, Gpu] = {}
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            self._failed(error)
            return [gpu.device for gpu in self._gpus.values()]
        for index in range(count):
            try:
                for gpu in self._describe(index):
                    key = gpu.device.key
                    if key in found:
                        # Seen of MIG instances: one UUID twice would be one series twice.
                        self._errors["same_uuid"] += 1
                        continue
                    known = self._gpus.get(key)
                    if known is not None:
                        known.handle, known.parent, known.device = gpu.handle, gpu.parent, gpu.device
                    found[key] = known or gpu
            except self._nvml.NVMLError as error:
                self._failed(error)
        for key in self._gpus.keys() - found.keys():
            self._free(self._gpus[key])
        self._gpus = found
        self._watch()
        return [gpu.device for gpu in found.values()]

    def _start(self) -> bool:
        if self._ready:
            return True
        if self._nvml is None:
            try:
                import pynvml
            except ImportError:
                return False
            self._nvml = pynvml
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            absent = ("LibraryNotFound", "DriverNotLoaded", "GpuNotFound", "NotFound")
            if not type(error).__name__.endswith(absent):
                self._failed(error)
            return False
        self._ready = True
        self._xids = XidEvents(self._nvml)
        return True

    def _failed(self, error: Exception) -> None:
        self._errors[type(error).__name__.removeprefix("NVMLError_") or "Unknown"] += 1

    def _describe(self, index: int) -> Iterator[Gpu]:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, sku = text(nvml.nvmlDeviceGetUUID(handle)), text(nvml.nvmlDeviceGetName(handle))
        if not uuid.strip("GPU-0"):
            # Virtual functions report a UUID of zeros: two of them would become one device.
            self._errors["zero_uuid"] += 1
            return
        device = wire.Device(key=uuid, platform="gpu", sku=sku, local_name=f"/device:GPU:{index}", local_ordinal=index)
        yield Gpu(device, handle, handle, whole=True, path=self._path(handle))
        try:
            enabled = nvml.nvmlDeviceGetMigMode(handle)[0]
            slots = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if enabled else 0
        except nvml.NVMLError:
            return
        for slot in range(slots):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
                key = text(nvml.nvmlDeviceGetUUID(part))
            except nvml.NVMLError:
                continue
            mig = wire.Device(key=key, platform="gpu", sku=sku, partition=f"{uuid}/{slot}", local_ordinal=index)
            yield Gpu(mig, part, handle, whole=False)

    def _path(self, handle: Any) -> str:
        try:
            return f"/dev/nvidia{self._nvml.nvmlDeviceGetMinorNumber(handle)}"
        except self._nvml.NVMLError as error:
            if not is_unsupported(error):
                self._failed(error)
            return ""

    def _watch(self) -> None:
        for key, gpu in self._gpus.items():
            if gpu.whole and self._xids is not None:
                try:
                    self._xids.watch(key, gpu.handle)
                except self._nvml.NVMLError as error:
                    self._failed(error)

    # ---- one read

    def read(self, deadline_s: float) -> Reading:
        if not self._gpus:
            return Reading((), {}, self._take_errors())
        samples: list[Sample] = []
        refused: Counter[str] = Counter()
        holders: dict[str, frozenset[int]] = {}
        now_s = time.monotonic()
        for gpu in self._gpus.values():
            for call in (*CALLS, gpm) if gpu.whole else (*MIG_CALLS, gpm):
                if time.monotonic() > deadline_s:
                    self._errors["deadline"] += 1
                    return self._reading(samples, refused, holders)
                self._call(call, gpu, samples, refused)
            if gpu.whole and now_s - gpu.standing_at_s >= STANDING_S:
                gpu.standing_at_s = now_s
                slow: list[Sample] = []
                self._call(fields, gpu, slow, refused)
                samples += slow
                gpu.standing = slow
            self._hold(gpu, holders)
        if self._xids is not None:
            try:
                self._xids.take()
            except self._nvml.NVMLError as error:
                self._failed(error)
            samples += self._xids.counted()
        return self._reading(samples, refused, holders)

    def _reading(self, samples: list[Sample], refused: Counter[str], holders: dict[str, frozenset[int]]) -> Reading:
        told = {(sample.device, sample.series) for sample in samples}
        standing = [s for gpu in self._gpus.values() for s in gpu.standing if (s.device, s.series) not in told]
        paths = {key: gpu.path for key, gpu in self._gpus.items() if gpu.path}
        return Reading(samples, refused, self._take_errors(), standing, holders, paths=paths)

    def _call(self, call: Call, gpu: Gpu, samples: list[Sample], refused: Counter[str]) -> None:
        if call.__name__ in gpu.unsupported:
            return
        told = False
        try:
            for series, (value, why) in call(self._nvml, gpu):
                told = True
                if value is None:
                    refused[why] += 1
                else:
                    samples.append(Sample(series, value, gpu.device.key))
        except self._nvml.NVMLError as error:
            if not is_unsupported(error):
                self._failed(error)
            elif not told:  # else its other values would go with the one the chip does not have
                gpu.unsupported.add(call.__name__)

    def _hold(self, gpu: Gpu, holders: dict[str, frozenset[int]]) -> None:
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)
        except self._nvml.NVMLError as error:
            if not is_unsupported(error):
                self._failed(error)
            return
        holders[gpu.device.key] = frozenset(int(process.pid) for process in found)

    def _take_errors(self) -> Counter[str]:
        errors, self._errors = self._errors, Counter()
        return errors

    # ----

    def clocks(self) -> list[DeviceClock]:
        """NVML offers no read of a GPU's timer."""
        return []

    def _free(self, gpu: Gpu) -> None:
        try:
            free(self._nvml, gpu)
        except self._nvml.NVMLError as error:
            self._failed(error)

    def close(self) -> None:
        if not self._ready:
            return
        self._ready = False
        for gpu in self._gpus.values():
            self._free(gpu)
        try:
            if self._xids is not None:
                self._xids.close()
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as error:
            self._failed(error)
