"""Host and chip: what one machine and each of its chips does, whose they are, what is broken."""

from asked import ZERO
from board import Board, Query, Variable, lines, number, ratio, rows

CHIPS = '{host="$host",device=~"$device"}'
HOST = '{host="$host"}'

BOARD = Board(
    "host",
    "host and chip",
    "One host: its chips with their owners, power, heat, memory, links and errors, and the host's own CPU, memory, "
    "network, disk.",
    (
        Variable("host", "host", "fleetscope_agent_time_seconds", many=False),
        Variable("device", "device", 'fleetscope_chip_state{host="$host"}'),
    ),
    {
        "Now": (
            number("Chips", "Chips the agent sees.", "none",
                   f"count(group by (device) (device:fleetscope_chip_state:info{CHIPS}))"),
            number("Busy chips", "As the driver says.", "none",
                   'sum(device:fleetscope_chip_state:info{host="$host",device=~"$device",state="busy"})'),
            number("MFU", "Mean of the runs on it.", "percentunit", f"avg(host:fleetscope_mfu:ratio{HOST})"),
            number("Power", "Of all chips.", "watt", f"sum(max by (device) (fleetscope_chip_power_watts{CHIPS}))"),
            number("Hottest chip", "Highest of all sensors.", "celsius",
                   f"max(fleetscope_chip_temperature_celsius{CHIPS})"),
            number("Page age", "Since the agent last answered; a silent host is an alert.", "s",
                   f"time() - max(timestamp(fleetscope_agent_time_seconds{HOST}))", bound=60),
        ),
        "Chips": (
            rows("Chips", "What each chip is doing now.",
                 Query("busy", 'max by (device, sku) (fleetscope_chip_state'
                       '{host="$host",device=~"$device",state="busy"})'),
                 Query("power", f"max by (device, sku) (fleetscope_chip_power_watts{CHIPS})", "watt"),
                 Query("temperature", f"max by (device, sku) (fleetscope_chip_temperature_celsius{CHIPS})", "celsius"),
                 Query("clock", f"max by (device, sku) (fleetscope_chip_clock_hertz{CHIPS})", "hertz"),
                 Query("memory", f"max by (device, sku) (fleetscope_chip_memory_used_bytes{CHIPS} / "
                       f"fleetscope_chip_memory_total_bytes{CHIPS})", "percentunit"),
                 Query("throttled", f"max by (device, sku) (device:fleetscope_throttled:ratio{CHIPS})", "percentunit"),
                 width=14),
            rows("Owners", "Whose the chips are: by the kubelet, Slurm, and processes that have them open.",
                 Query("owner", "group by (device, namespace, pod, container, run, attempt, slurm_job) "
                       f"(fleetscope_chip_owner_info{CHIPS})"), width=10),
            lines("State", "Busy: the driver says so. Allocated, idle: somebody has it. Unknown: nobody can say.",
                  "none",
                  ("{{state}}", f"sum by (state) (device:fleetscope_chip_state:info{CHIPS})"), kind="stack"),
            lines("Power", "What chips draw, and what they may.", "watt",
                  ("{{device}}", f"max by (device) (fleetscope_chip_power_watts{CHIPS})"),
                  ("limit", f"max(fleetscope_chip_power_limit_watts{CHIPS})")),
            lines("Temperature", "By sensor.", "celsius",
                  ("{{device}} {{sensor}}", f"max by (device, sensor) (fleetscope_chip_temperature_celsius{CHIPS})")),
            lines("Margin to slowdown", "Degrees left until the chip slows itself down; 0 or less: it does.", "celsius",
                  ("{{device}}", f"min by (device) (fleetscope_chip_temperature_margin_celsius{CHIPS})"), bound=0,
                  below=True, signed=True),
            ratio("Throttled by reason", "Share of the time slowed down.",
                  ("{{device}} {{reason}}", f"max by (device, reason) (device:fleetscope_throttled:ratio{CHIPS})"),
                  maximum=1),
            lines("Clock", "By kind of clock.", "hertz",
                  ("{{device}} {{clock}}", f"max by (device, clock) (fleetscope_chip_clock_hertz{CHIPS})")),
            ratio("Memory in use", "Of the device's memory.",
                  ("{{device}}", f"max by (device) (fleetscope_chip_memory_used_bytes{CHIPS} / "
                   f"fleetscope_chip_memory_total_bytes{CHIPS})"), maximum=1),
            ratio("Utilization, as the driver says", "Share of time any kernel ran. It misleads: a chip that waits in "
                  "a collective is utilized.",
                  ("{{device}}", f"max by (device) (fleetscope_chip_utilization_ratio{CHIPS})"), maximum=1),
            ratio("Units in use", "Share of time a unit of the chip was in use, mean over chips: sm and tensor are "
                  "NVIDIA's, memory is of the bandwidth.",
                  ("{{unit}}", f"avg by (unit) (fleetscope_chip_unit_active_ratio{CHIPS})"), maximum=1),
        ),
        "Links and errors": (
            lines("Link traffic", "Over all links of a kind, all chips.", "Bps",
                  ("{{link}} {{direction}}",
                   f"sum by (link, direction) (rate(fleetscope_chip_link_bytes_total{CHIPS}[$__rate_interval]))")),
            lines("Links not up", "Degraded or down, by kind.", "none",
                  ("{{link}} {{state}}", "sum by (link, state) (max by (device, link, state) (fleetscope_chip_links"
                   '{host="$host",device=~"$device",state!="up"}))'), bound=1),
            lines("Link errors", "By what was done about them.", "cps",
                  ("{{link}} {{kind}}",
                   f"sum by (link, kind) (rate(fleetscope_chip_link_errors_total{CHIPS}[$__rate_interval]))")),
            lines("Memory errors in an hour", "ECC. Corrected ones wear out; an uncorrected one ended a program.",
                  "none",
                  ("{{device}} {{severity}}",
                   f"max by (device, severity) (increase(fleetscope_chip_ecc_errors_total{CHIPS}[1h]))")),
            lines("Memory repair", "Rows replaced by spare ones, and chips whose repair waits for a reset or failed.",
                  "none",
                  ("{{device}} rows {{severity}}", f"max by (device, severity) (fleetscope_chip_remapped_rows{CHIPS})"),
                  ("{{device}} {{state}}", f"max by (device, state) (fleetscope_chip_memory_repair{CHIPS})")),
            lines("Faults in an hour", "By the vendor's code (Xid); FleetscopeChipFault tells each.", "none",
                  ("{{device}} {{vendor_code}}", "max by (device, vendor_code) "
                   f"(increase(fleetscope_chip_faults_total{CHIPS}[1h])){ZERO}"), bound=1),
            lines("Quarantined chips", "Whose values are withheld because they tell what cannot be.", "none",
                  ("{{device}} {{reason}}", f"max by (device, reason) (fleetscope_chip_quarantined{CHIPS}){ZERO}"),
                  bound=1),
            lines("Programs waiting", "In the queue of the chip, as its runtime says.", "none",
                  ("{{device}}", f"max by (device) (fleetscope_chip_queued_programs{CHIPS})")),
            lines("Operations of the TPU runtime", "99th percentile by operation; the runtime's own buckets.", "s",
                  ("{{operation}}", "histogram_quantile(0.99, sum by (operation, le) "
                   f"(rate(fleetscope_tpu_operation_seconds_bucket{HOST}[$__rate_interval])))")),
        ),
        "Work": (
            ratio("MFU and shares", "Of the runs on this host.",
                  ("mfu {{run}}", f"host:fleetscope_mfu:ratio{HOST}"),
                  ("hfu {{run}}", f"host:fleetscope_hfu:ratio{HOST}"),
                  ("busy {{run}}", f"host:fleetscope_duty:ratio{HOST}"),
                  ("compute {{run}}", f"host:fleetscope_compute_share:ratio{HOST}"), maximum=1),
            lines("Step time", "From what processes tell the agent.", "s",
                  ("{{run}}", f"host:fleetscope_step_seconds:mean{HOST}")),
            lines("Idle chips", "That a run has and that ran nothing for two minutes, as far as the pipeline knows.",
                  "none",
                  ("idle", f"host:fleetscope_chips_idle:count{HOST}")),
        ),
        "Host": (
            ratio("CPU", "Share of all cores, by mode.",
                  ("{{mode}}", "max by (mode) (rate(fleetscope_host_cpu_seconds_total"
                   '{host="$host",mode!="idle"}[$__rate_interval])) / on () group_left () '
                   f"sum(max by (mode) (rate(fleetscope_host_cpu_seconds_total{HOST}[$__rate_interval])))"),
                  kind="stack", maximum=1),
            lines("Memory", "Of the host.", "bytes",
                  ("total", f"max(fleetscope_host_memory_total_bytes{HOST})"),
                  ("available", f"max(fleetscope_host_memory_available_bytes{HOST})")),
            ratio("Pressure", "Share of time some or all tasks waited for a resource (Linux PSI).",
                  ("{{resource}} {{kind}}", "max by (resource, kind) "
                   f"(rate(fleetscope_host_pressure_seconds_total{HOST}[$__rate_interval]))")),
            lines("Network", "All interfaces.", "Bps",
                  ("received", f"max(rate(fleetscope_host_network_receive_bytes_total{HOST}[$__rate_interval]))"),
                  ("sent", f"max(rate(fleetscope_host_network_transmit_bytes_total{HOST}[$__rate_interval]))")),
            lines("Network cards", "By card; InfiniBand and RoCE past the kernel too.", "Bps",
                  ("{{nic}} received",
                   f"max by (nic) (rate(fleetscope_host_nic_receive_bytes_total{HOST}[$__rate_interval]))"),
                  ("{{nic}} sent",
                   f"max by (nic) (rate(fleetscope_host_nic_transmit_bytes_total{HOST}[$__rate_interval]))")),
            lines("Errors of network cards", "Packets dropped or broken.", "pps",
                  ("{{nic}} {{direction}}",
                   f"max by (nic, direction) (rate(fleetscope_host_nic_errors_total{HOST}[$__rate_interval]))")),
            lines("Disk", "All disks.", "Bps",
                  ("read", f"max(rate(fleetscope_host_disk_read_bytes_total{HOST}[$__rate_interval]))"),
                  ("written", f"max(rate(fleetscope_host_disk_written_bytes_total{HOST}[$__rate_interval]))")),
            ratio("Memory in use by NUMA node", "A node that is full makes the others give.",
                  ("node {{node}}", f"1 - max by (node) (fleetscope_host_numa_memory_free_bytes{HOST}) / "
                   f"max by (node) (fleetscope_host_numa_memory_total_bytes{HOST})"), maximum=1),
            lines("NUMA misses", "Pages a node gave because the one that was meant had none.", "cps",
                  ("node {{node}}",
                   f"max by (node) (rate(fleetscope_host_numa_misses_total{HOST}[$__rate_interval]))")),
        ),
    },
)  # fmt: skip
