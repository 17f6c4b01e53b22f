"""What the page of a simulated host tells of hardware beside what is recorded: limits, links, errors, the host itself.

Counters grow with the time the chips were busy, so that they stand when the run does. Nothing here is an event: a
simulated chip has no Xid and tells no lie.
"""

from fleetscope.agents.node.metrics import Values
from fleetscope.agents.simulated.host import Chip
from fleetscope.schema.metrics import metric

POWER_LIMIT_WATTS = 225.0
MEMORY_BYTES = 32 << 30
SLOWS_CELSIUS = 80.0
"""Where Chip.warm begins to slow down."""
ICI_LINKS = 4
LINK_BYTES_PER_S = {"ici": 20e9, "pcie": 1e9}
UNITS = {"tensor": 0.6, "memory": 0.4}
"""Shares of busy time."""
OPERATIONS = {"host_transfer": 0.002, "collective": 0.0005}
"""Of the TPU runtime: how long one takes, in seconds; each has one a busy second in ten of that time."""
BUCKETS_S = (0.0001, 0.001, 0.01, 0.1)

HOST_MEMORY_BYTES = 1 << 40
CPUS = 96
NODES = 2
NETWORK_BYTES_PER_S, DISK_BYTES_PER_S = 50e6, 20e6


def chip_values(chip: Chip, busy: float, busy_s: float) -> Values:
    """Of a chip that is busy for `busy` of this second and was for `busy_s` in all."""
    who = {"device": chip.device.key, "sku": chip.device.sku}
    yield "fleetscope_chip_memory_total_bytes", who, MEMORY_BYTES
    yield "fleetscope_chip_power_limit_watts", who, POWER_LIMIT_WATTS
    yield "fleetscope_chip_temperature_margin_celsius", who, round(SLOWS_CELSIUS - chip.temperature, 1)
    yield "fleetscope_chip_utilization_ratio", who, busy
    yield "fleetscope_chip_queued_programs", who, 2 if busy > 0 else 0
    for unit, share in UNITS.items():
        yield "fleetscope_chip_unit_active_ratio", {**who, "unit": unit}, busy * share / chip.slowdown
    for link, count in (("ici", ICI_LINKS), ("pcie", 1)):
        for state in metric("fleetscope_chip_links").values["state"]:
            yield "fleetscope_chip_links", {**who, "link": link, "state": state}, count if state == "up" else 0
        for direction in metric("fleetscope_chip_link_bytes_total").values["direction"]:
            labels = {**who, "link": link, "direction": direction}
            yield "fleetscope_chip_link_bytes_total", labels, LINK_BYTES_PER_S[link] * busy_s
        for kind in metric("fleetscope_chip_link_errors_total").values["kind"]:
            yield "fleetscope_chip_link_errors_total", {**who, "link": link, "kind": kind}, 0
    for name in ("fleetscope_chip_ecc_errors_total", "fleetscope_chip_remapped_rows"):
        for severity in metric(name).values["severity"]:
            yield name, {**who, "severity": severity}, 0
    for state in metric("fleetscope_chip_memory_repair").values["state"]:
        yield "fleetscope_chip_memory_repair", {**who, "state": state}, 0


def host_values(seconds: float, busy_s: float) -> Values:
    """Of the host after `seconds`, in `busy_s` of which its chips were busy."""
    shares = {"user": 0.2, "system": 0.02, "iowait": 0.005, "steal": 0.0}
    for mode, share in shares.items():
        yield "fleetscope_host_cpu_seconds_total", {"mode": mode}, CPUS * share * busy_s
    idle_s = CPUS * (seconds - sum(shares.values()) * busy_s)
    yield "fleetscope_host_cpu_seconds_total", {"mode": "idle"}, idle_s
    yield "fleetscope_host_memory_total_bytes", {}, HOST_MEMORY_BYTES
    yield "fleetscope_host_memory_available_bytes", {}, HOST_MEMORY_BYTES * 3 // 4
    for way in ("receive", "transmit"):
        yield f"fleetscope_host_network_{way}_bytes_total", {}, NETWORK_BYTES_PER_S * busy_s
        yield f"fleetscope_host_nic_{way}_bytes_total", {"nic": "eth0"}, NETWORK_BYTES_PER_S * busy_s
        yield "fleetscope_host_nic_errors_total", {"nic": "eth0", "direction": way}, 0
    for way in ("read", "written"):
        yield f"fleetscope_host_disk_{way}_bytes_total", {}, DISK_BYTES_PER_S * busy_s
    for node in map(str, range(NODES)):
        yield "fleetscope_host_numa_memory_total_bytes", {"node": node}, HOST_MEMORY_BYTES // NODES
        yield "fleetscope_host_numa_memory_free_bytes", {"node": node}, HOST_MEMORY_BYTES // NODES // 2
        yield "fleetscope_host_numa_misses_total", {"node": node}, 0
    for resource in ("cpu", "io", "memory"):
        for kind, share in (("some", 0.01), ("full", 0.001)):
            yield "fleetscope_host_pressure_seconds_total", {"resource": resource, "kind": kind}, share * busy_s
    for operation, took_s in OPERATIONS.items():
        count = int(busy_s / took_s / 10)
        who = {"operation": operation, "size": ""}
        for bound in (*BUCKETS_S, float("inf")):
            labels = {**who, "le": "+Inf" if bound == float("inf") else str(bound)}
            yield "fleetscope_tpu_operation_seconds_bucket", labels, count if took_s <= bound else 0
        yield "fleetscope_tpu_operation_seconds_count", who, count
        yield "fleetscope_tpu_operation_seconds_sum", who, count * took_s
