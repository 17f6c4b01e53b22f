"""Interfaces of a host of 8 chips, built, for the benchmarks of collectors: gRPC servers in a process of their own, so
that their CPU time is not the agent's.

    python benchmarks/vendor_host.py FOLDER     serves a TPU runtime and a kubelet until its standard input ends
"""

import json
import subprocess
import sys
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from fleetscope.agents.collectors.kubelet import LIST
from fleetscope.agents.simulated.vendors import tpu
from fleetscope.schema import podresources_pb2 as pods
from fleetscope.schema import tpu_runtime_pb2 as runtime

CHIPS = 8


class _Kubelet(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc ships no types
    """Forty pods, as a node has; each of the first eight has a chip."""

    def __init__(self) -> None:
        told = pods.ListPodResourcesResponse()
        for number in range(40):
            container = told.pod_resources.add(name=f"train-{number}", namespace="team").containers.add(name="main")
            if number < CHIPS:
                container.devices.add(resource_name="nvidia.com/gpu", device_ids=[_uuid(number)])
        self._answer = told.SerializeToString()

    def service(self, details: Any) -> Any:
        if details.method != LIST:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._answer, None, None)


def _uuid(number: int) -> str:
    from fleetscope.agents.simulated.vendors.nvml import busy_gpu

    return str(busy_gpu(number + 1)["uuid"])


def _serve(folder: Path) -> None:
    served = tpu.Runtime()
    per_chip = {
        "tpu.runtime.tensorcore.dutycycle.percent": 97.0,
        "tpu.runtime.hbm.memory.usage.bytes": 2.0e10,
        "tpu.runtime.hbm.memory.total.bytes": 3.4e10,
        "hlo.queue.size.gauge": 3.0,
    }
    for name, value in per_chip.items():
        served.answers[name] = tpu.gauges(name, [(chip, value) for chip in range(CHIPS)])
    for operation in ("dcn_transfer_latencies", "dcn_inbound_transfer_latencies", "collective_end_to_end_latencies",
                      "host_to_device_transfer_latencies", "device_to_host_transfer_latencies"):  # fmt: skip
        answer = runtime.MetricResponse()
        for size in ("1MB", "4MB", "8MB+"):
            answer.metric.metrics.append(tpu.distribution([3] * 40, 10, 1.5, 900.0, size))
        served.answers[f"megascale.{operation}.microsecond.cumulative.distribution"] = answer.SerializeToString()
    kubelet = grpc.server(futures.ThreadPoolExecutor(2), handlers=[_Kubelet()])
    kubelet.add_insecure_port(f"unix://{folder}/kubelet.sock")
    kubelet.start()
    (folder / "ready.tmp").write_text(json.dumps({"port": served.port}))
    (folder / "ready.tmp").rename(folder / "ready")
    sys.stdin.read()
    kubelet.stop(0).wait()
    served.close()


class VendorHost:
    """The servers' process. `runtime`: address of the TPU runtime, `kubelet`: its socket; `root`: a host of 8 TPU chips
    as its kernel shows it, with this machine's own processes."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen([sys.executable, __file__, str(folder)], stdin=subprocess.PIPE)
        ready = folder / "ready"
        while not ready.exists():
            if self._process.poll() is not None:
                raise SystemExit("the vendors' servers did not start")
            time.sleep(0.05)
        self.runtime = f"127.0.0.1:{json.loads(ready.read_text())['port']}"
        self.kubelet = folder / "kubelet.sock"
        self.root = tpu.tree(folder / "root", CHIPS)
        (self.root / "proc").rmdir()
        (self.root / "proc").symlink_to("/proc")

    def close(self) -> None:
        self._process.communicate(timeout=30)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
