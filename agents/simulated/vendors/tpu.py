"""A TPU host as its kernel shows it (a folder like /), libtpu's metric server (real gRPC) and SDK, the GKE plugin."""

import http.server
import threading
from collections.abc import Callable, Iterable
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc

from fleetscope.agents.collectors.tpu.runtime import GET
from fleetscope.schema import tpu_runtime_pb2 as runtime

V6E, V7X, V4 = "0x006f", "0x0076", "0x005e"


def tree(root: Path, chips: int, device: str = V6E, holders: dict[int, list[int]] | None = None) -> Path:
    """`holders`: pid -> chips it has open. Chips on 0000:00:04.0 and following, by VFIO (v4 by accel), beside a network
    card of the same vendor."""
    pci = root / "sys/bus/pci/devices"
    for number in range(chips):
        entry = pci / f"0000:00:{4 + number:02x}.0"
        entry.mkdir(parents=True)
        for name, text in (("vendor", "0x1ae0"), ("device", device), ("subsystem_device", "0x0000")):
            (entry / name).write_text(text + "\n")
        if device == V4:
            (root / f"sys/class/accel/accel{number}").mkdir(parents=True)
            (root / f"sys/class/accel/accel{number}/device").symlink_to(entry)
        else:
            # Groups are numbered as the kernel meets them, not as the chips are: here from behind.
            (entry / "iommu_group").symlink_to(f"/sys/kernel/iommu_groups/{chips - number}")
    card = pci / "0000:00:01.0"
    card.mkdir(parents=True, exist_ok=True)
    (card / "vendor").write_text("0x1ae0\n")
    (card / "device").write_text("0x0042\n")
    (root / "proc").mkdir()
    for pid, opened in (holders or {}).items():
        folder = root / f"proc/{pid}/fd"
        folder.mkdir(parents=True)
        for place, chip in enumerate(opened):
            (folder / str(place)).symlink_to(f"/dev/accel{chip}" if device == V4 else f"/dev/vfio/{chips - chip}")
    return root


def gauges(name: str, values: Iterable[tuple[int, float]], ordinal_as_text: bool = False) -> bytes:
    """A metric of the runtime: (device id, value) each."""
    answer = runtime.MetricResponse()
    answer.metric.name = name
    for number, value in values:
        entry = answer.metric.metrics.add()
        if ordinal_as_text:
            inner = entry.attribute.value.kvlist_attr.attributes.add(key="device_ordinal")
            inner.value.string_attr = str(number)
        else:
            entry.attribute.key = "device-id"
            entry.attribute.value.int_attr = number
        entry.gauge.as_double = value
    return answer.SerializeToString()


def distribution(counts: list[int], scale: float, growth: float, mean: float, size: str = "") -> runtime.Metric:
    """With exponential buckets; the first is what lies below `scale`."""
    entry = runtime.Metric()
    if size:
        entry.attribute.value.kvlist_attr.attributes.add(key="buffer-size").value.string_attr = size
    told = entry.distribution
    told.count, told.mean = sum(counts), mean
    told.bucket_counts.extend(counts)
    told.bucket_options.exponential_buckets.scale = scale
    told.bucket_options.exponential_buckets.growth_factor = growth
    return entry


class Runtime(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc ships no types
    """Metric name -> the answer's bytes, or a status to fail with. A name that is not there is NOT_FOUND."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes | grpc.StatusCode | Callable[[], bytes]] = {}
        self._server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[self])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer, None, None) if details.method == GET else None

    def _answer(self, request: bytes, context: Any) -> bytes:
        found = self.answers.get(runtime.MetricRequest.FromString(request).metric_name, grpc.StatusCode.NOT_FOUND)
        if isinstance(found, grpc.StatusCode):
            context.abort(found, "as told")
        answer: bytes = found() if callable(found) else found
        return answer

    def close(self) -> None:
        self._server.stop(0).wait()


class Monitoring:
    """libtpu.sdk.tpumonitoring: name -> rows of text. `as_attribute`: newer releases have `data` as one."""

    def __init__(self, rows: dict[str, Any], as_attribute: bool = False) -> None:
        self.rows = rows
        self._as_attribute = as_attribute

    def get_metric(self, name: str) -> SimpleNamespace:
        if name not in self.rows:
            raise ValueError(f"unsupported metric {name}")
        found = self.rows[name]
        if isinstance(found, Exception):
            raise found
        return SimpleNamespace(data=found if self._as_attribute else lambda: found)


class Plugin:
    """The device plugin's /metrics."""

    def __init__(self) -> None:
        self.text = ""
        self.status = 200
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(outer.text.encode("utf-8", "surrogateescape"))

            def log_message(self, *_: Any) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
