"""amd-smi's Python library: dicts with "N/A" for what a chip has not, and its own exceptions with a number."""

import ctypes
import errno
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

Gpu = dict[str, Any]
"""`uuid`, `bdf`, and any of: partition, power_info, power_cap (uW), temperatures (Cel by type and metric), clocks,
vram, activity, energy, ecc, links, link_status, violations, pids. What is not there is not supported; an int raises the
library's exception of that number; an exception raises it."""

NOT_SUPPORTED = 2


class AmdSmiLibraryException(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self._code = code

    def get_error_code(self) -> int:
        return self._code


class FakeAmdSmi:
    """Takes the place of the amdsmi module."""

    AmdSmiTemperatureType = SimpleNamespace(JUNCTION="junction", VRAM="vram")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current", CRITICAL="critical")
    AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")

    def __init__(self, gpus: list[Gpu], init: int = 0) -> None:
        self.gpus = gpus
        self.init = init
        self.open = False

    def _get(self, gpu: Gpu, name: str) -> Any:
        value = gpu.get(name, NOT_SUPPORTED)
        if isinstance(value, int):
            raise AmdSmiLibraryException(value)
        if isinstance(value, Exception):
            raise value
        return value

    def amdsmi_init(self) -> None:
        if self.init:
            raise AmdSmiLibraryException(self.init)
        self.open = True

    def amdsmi_shut_down(self) -> None:
        self.open = False

    def amdsmi_get_processor_handles(self) -> list[Gpu]:
        return self.gpus

    def amdsmi_get_gpu_device_uuid(self, gpu: Gpu) -> str:
        return str(self._get(gpu, "uuid"))

    def amdsmi_get_gpu_device_bdf(self, gpu: Gpu) -> str:
        return str(self._get(gpu, "bdf"))

    def amdsmi_get_gpu_kfd_info(self, gpu: Gpu) -> dict[str, Any]:
        return {"kfd_id": 1, "node_id": 2, "current_partition_id": gpu.get("partition", 0)}

    def amdsmi_get_gpu_asic_info(self, gpu: Gpu) -> dict[str, Any]:
        return {"market_name": "AMD Instinct MI300X", "asic_serial": "0x1"}

    def amdsmi_get_power_info(self, gpu: Gpu) -> Any:
        return self._get(gpu, "power_info")

    def amdsmi_get_power_cap_info(self, gpu: Gpu) -> Any:
        return {"power_cap": self._get(gpu, "power_cap")["uw"]}

    def amdsmi_get_temp_metric(self, gpu: Gpu, kind: str, metric: str) -> Any:
        return self._get(self._get(gpu, "temperatures"), f"{kind} {metric}")["cel"]

    def amdsmi_get_clock_info(self, gpu: Gpu, kind: str) -> Any:
        return {"clk": self._get(gpu, "clocks")[kind], "min_clk": 100, "max_clk": 2100}

    def amdsmi_get_gpu_vram_usage(self, gpu: Gpu) -> Any:
        return self._get(gpu, "vram")

    def amdsmi_get_gpu_activity(self, gpu: Gpu) -> Any:
        return self._get(gpu, "activity")

    def amdsmi_get_energy_count(self, gpu: Gpu) -> Any:
        return self._get(gpu, "energy")

    def amdsmi_get_gpu_total_ecc_count(self, gpu: Gpu) -> Any:
        return self._get(gpu, "ecc")

    def amdsmi_get_link_metrics(self, gpu: Gpu) -> Any:
        return {"links": self._get(gpu, "links")}

    def amdsmi_get_gpu_xgmi_link_status(self, gpu: Gpu) -> Any:
        return {"status": self._get(gpu, "link_status"), "total_links": 8}

    def amdsmi_get_violation_status(self, gpu: Gpu) -> Any:
        return dict(self._get(gpu, "violations"))

    def amdsmi_get_gpu_process_list(self, gpu: Gpu) -> list[dict[str, Any]]:
        return [{"name": "python", "pid": pid, "mem": 1} for pid in self._get(gpu, "pids")]


def busy_gpu(number: int, **other: Any) -> Gpu:
    """A chip of MI300's kind with everything there is to read, at full load."""
    gpu: Gpu = {
        "uuid": f"{number:08x}-0000-1000-80f1-000000000001", "bdf": f"0000:{number:02x}:00.0", "pids": [],
        "power_info": {"socket_power": 740, "current_socket_power": "N/A", "average_socket_power": "N/A"},
        "power_cap": {"uw": 750_000_000},
        "temperatures": {
            "junction current": {"cel": 92}, "junction critical": {"cel": 100}, "vram current": {"cel": 70},
        },
        "clocks": {"gfx": 2100, "mem": 1300}, "vram": {"vram_total": 196_592, "vram_used": 150_000},
        "activity": {"gfx_activity": 97, "umc_activity": 45, "mm_activity": "N/A"},
        "energy": {"energy_accumulator": 1_000_000, "counter_resolution": 15.3, "timestamp": 1},
        "ecc": {"correctable_count": 4, "uncorrectable_count": 1, "deferred_count": 0},
        "links": [{"bdf": "x", "link_type": 2, "read": 1000, "write": 2000}] * 7, "link_status": ["U"] * 6 + ["D", "X"],
        "violations": {
            "reference_timestamp": 1_000_000, "violation_timestamp": 5, "acc_counter": 1000, "acc_prochot_thrm": 0,
            "acc_ppt_pwr": 100, "acc_socket_thrm": 0, "acc_vr_thrm": 0, "acc_hbm_thrm": "N/A", "per_ppt_pwr": 10,
            "per_prochot_thrm": 0, "per_socket_thrm": 0, "per_vr_thrm": 0, "per_hbm_thrm": "N/A",
        },
    }  # fmt: skip
    return gpu | other


class FakeRenderNode:
    """amdgpu's answers at a render node: a counter of `khz`, at `value` (of a test's making) each time it is read."""

    def __init__(self, khz: int = 100_000) -> None:
        self.khz = khz
        self.value: Callable[[], int] = lambda: 0
        self.asked: list[int] = []

    def ioctl(self, descriptor: int, code: int, request: bytes) -> int:
        if code != 0x40206445 or len(request) != 32:
            raise OSError(errno.EINVAL, "Invalid argument")
        pointer, size, query = struct.unpack_from("@QII", request)
        self.asked.append(query)
        if query == 0x05:
            answer = struct.pack("@Q", self.value())
        elif query == 0x16:
            answer = struct.pack("@8I", 0x74A1, 0, 0, 0, 0, 0, 0, self.khz).ljust(size, b"\0")
        else:
            raise OSError(errno.EINVAL, "Invalid argument")
        ctypes.memmove(pointer, answer, min(size, len(answer)))
        return 0
