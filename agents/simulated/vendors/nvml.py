"""NVML as pynvml offers it: its own constants, structures and errors, but the answers of dicts."""

import ctypes
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml

Gpu = dict[str, Any]
"""`uuid`, and any of: minor, power and power_limit (mW), temperature, threshold and margin (Cel), clock (MHz), used and
total (bytes), utilization (%), energy (mJ), reasons (bits), violations (ns, or {policy: ns}), fields ({number: value,
for links {165: [states]}}), gpm ({number: %, MiB/s}), pids, instance (id), mig ([Gpu or None]), lost. What is not there
is not supported; a value "NVMLError_X" raises that."""

_SIGNED, _WIDE = 5, 3


def _error(name: str) -> Exception:
    """pynvml's exception of that name."""
    for code in range(1000):
        found: Exception = pynvml.NVMLError(code)
        if type(found).__name__ == name:
            return found
    raise ValueError(name)


class FakeNvml:
    """Takes the place of the pynvml module. A function that is not here is one the driver does not have."""

    def __init__(self, gpus: list[Gpu], init: str = "") -> None:
        self.gpus = gpus
        self.init = init
        self.faults: deque[tuple[Gpu, int]] = deque()
        """Xids to come: (chip, code)."""
        self.samples: dict[int, dict[int, float]] = {}
        """GPM samples by address; what a chip said when it was taken."""
        self.calls = 0
        self._allocated = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml") and callable(getattr(pynvml, name, None)):

            def absent(*_: Any) -> None:
                raise _error("NVMLError_FunctionNotFound")

            return absent
        return getattr(pynvml, name)

    def _get(self, handle: Gpu, key: str) -> Any:
        self.calls += 1
        value = handle.get(key, "NVMLError_NotSupported")
        if isinstance(value, str) and value.startswith("NVMLError"):
            raise _error(value)
        if isinstance(value, Callable):  # type: ignore[arg-type]
            return value()
        return value

    def nvmlInit(self) -> None:
        if self.init:
            raise _error(self.init)

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        if "lost" in self.gpus[index]:
            raise _error("NVMLError_GpuIsLost")
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle: Gpu) -> str:
        return str(handle["uuid"])

    def nvmlDeviceGetName(self, handle: Gpu) -> bytes:
        return handle.get("name", b"NVIDIA H200")  # type: ignore[no-any-return]

    def nvmlDeviceGetMigMode(self, handle: Gpu) -> tuple[int, int]:
        return (int("mig" in handle), 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Gpu) -> int:
        return len(handle["mig"])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Gpu, slot: int) -> Gpu:
        if handle["mig"][slot] is None:
            raise _error("NVMLError_NotFound")
        found: Gpu = handle["mig"][slot]
        return found

    def nvmlDeviceGetGpuInstanceId(self, handle: Gpu) -> int:
        return int(self._get(handle, "instance"))

    def nvmlDeviceGetMinorNumber(self, handle: Gpu) -> int:
        return int(self._get(handle, "minor"))

    # ---- values

    def nvmlDeviceGetPowerUsage(self, handle: Gpu) -> int:
        return int(self._get(handle, "power"))

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Gpu) -> int:
        return int(self._get(handle, "power_limit"))

    def nvmlDeviceGetTemperature(self, handle: Gpu, sensor: int) -> int:
        return int(self._get(handle, "temperature"))

    def nvmlDeviceGetTemperatureThreshold(self, handle: Gpu, threshold: int) -> int:
        return int(self._get(handle, "threshold"))

    def nvmlDeviceGetMarginTemperature(self, handle: Gpu) -> int:
        return int(self._get(handle, "margin"))

    def nvmlDeviceGetClockInfo(self, handle: Gpu, domain: int) -> int:
        return int(self._get(handle, "clock"))

    def nvmlDeviceGetMemoryInfo(self, handle: Gpu) -> SimpleNamespace:
        return SimpleNamespace(used=self._get(handle, "used"), total=handle.get("total", 1 << 37))

    def nvmlDeviceGetUtilizationRates(self, handle: Gpu) -> SimpleNamespace:
        return SimpleNamespace(gpu=self._get(handle, "utilization"))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Gpu) -> int:
        return int(self._get(handle, "energy"))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Gpu) -> int:
        return int(self._get(handle, "reasons"))

    def nvmlDeviceGetViolationStatus(self, handle: Gpu, policy: int) -> SimpleNamespace:
        found = self._get(handle, "violations")
        if isinstance(found, dict):
            found = self._get(found, policy)  # type: ignore[arg-type]
        return SimpleNamespace(violationTime=found)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Gpu) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in self._get(handle, "pids")]

    # ---- fields, in NVML's own structures

    def nvmlDeviceGetFieldValues(self, handle: Gpu, asked: list[tuple[int, int]]) -> Any:
        fields = self._get(handle, "fields")
        found = (pynvml.c_nvmlFieldValue_t * len(asked))()
        for entry, (number, scope) in zip(found, asked, strict=True):
            value = fields.get(number)
            if isinstance(value, list):
                value = value[scope] if scope < len(value) else None
            if value is None:
                entry.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
            elif value < 0:
                entry.valueType, entry.value.siVal = _SIGNED, value
            else:
                entry.valueType, entry.value.ullVal = _WIDE, value
        return found

    # ---- GPM

    def nvmlGpmQueryDeviceSupport(self, handle: Gpu) -> SimpleNamespace:
        return SimpleNamespace(isSupportedDevice=int("gpm" in handle))

    def nvmlGpmSampleAlloc(self) -> Any:
        self._allocated += 1
        address = 4096 * self._allocated
        self.samples[address] = {}
        return ctypes.cast(ctypes.c_void_p(address), pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        del self.samples[_address(sample)]

    def nvmlGpmSampleGet(self, handle: Gpu, sample: Any) -> None:
        self.samples[_address(sample)] = dict(self._get(handle, "gpm"))

    def nvmlGpmMigSampleGet(self, handle: Gpu, instance: int, sample: Any) -> None:
        (part,) = [part for part in handle["mig"] if part is not None and part.get("instance") == instance]
        self.nvmlGpmSampleGet(part, sample)

    def nvmlGpmMetricsGet(self, asked: Any) -> None:
        """A metric is what the later sample was told; real ones are the difference of both."""
        later = self.samples[_address(asked.sample2)]
        if not self.samples[_address(asked.sample1)]:
            raise _error("NVMLError_InvalidArgument")
        for place in range(asked.numMetrics):
            metric = asked.metrics[place]
            if metric.metricId in later:
                metric.value = later[metric.metricId]
            else:
                metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED

    # ---- events

    def nvmlEventSetCreate(self) -> object:
        return object()

    def nvmlEventSetFree(self, events: object) -> None: ...

    def nvmlDeviceRegisterEvents(self, handle: Gpu, kinds: int, events: object) -> None:
        if handle.get("no_events"):
            raise _error("NVMLError_NotSupported")

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> SimpleNamespace:
        if not self.faults:
            raise _error("NVMLError_Timeout")
        gpu, code = self.faults.popleft()
        return SimpleNamespace(device=gpu, eventData=code)


def _address(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0


def busy_gpu(number: int, **other: Any) -> Gpu:
    """A chip of Hopper's kind with everything there is to read, at full load."""
    gpu: Gpu = {
        "uuid": f"GPU-{number:08x}-0000-4000-8000-000000000001", "power": 650_000, "power_limit": 700_000,
        "temperature": 71, "margin": 16, "clock": 1755, "used": 100 << 30, "total": 141 << 30, "utilization": 98,
        "energy": 7_000_000, "reasons": 0x4, "violations": 2_500_000_000, "pids": [],
        "fields": {
            5: 3, 6: 0, 38: 0, 52: 0, 59: 0, 82: 88, 94: 1, 138: 1 << 30, 139: 1 << 30, 142: 1, 143: 0, 144: 0, 145: 0,
            165: [1] * 18, 194: -2, 269: 4_000_000_000, 270: 0, 271: 0,
        },
        "gpm": {
            2: 91.0, 3: 40.0, 4: 5.0, 5: 62.5, 10: 55.0, 11: 0.0, 12: 3.0, 13: 1.0, 20: 100.0, 21: 200.0, 60: 9.0,
            61: 8.0,
        },
    }  # fmt: skip
    return gpu | other
