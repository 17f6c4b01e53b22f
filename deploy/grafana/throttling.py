"""Throttling: which chips are slowed down, why, and what it costs."""

from board import CELLS, Board, Query, Variable, lines, number, ratio, rows

CHIPS = '{sku=~"$sku",host=~"$host"}'
THROTTLED = f"device:fleetscope_throttled:ratio{CHIPS}"

BOARD = Board(
    "throttling",
    "throttling",
    "Chips that are slowed down: by which of the seven reasons, how hot and how near to their power limit they are, "
    "and what the runs lose.",
    (
        Variable("sku", "sku", "device:fleetscope_throttled:ratio"),
        Variable("host", "host", 'device:fleetscope_throttled:ratio{sku=~"$sku"}'),
    ),
    {
        "Now": (
            number("Chips slowed down", "For more than a twentieth of the last minute.", "none",
                   f"sum(max by (host, device) ({THROTTLED}) > bool 0.05)", bound=1),
            number("Throttled", "Share of chip time, the worst reason.", "percentunit",
                   f"max(avg by (reason) ({THROTTLED}))"),
            number("Hottest chip", "Highest of all sensors.", "celsius",
                   f"max(fleetscope_chip_temperature_celsius{CHIPS})"),
            number("Smallest margin", "Degrees left until a chip slows itself down.", "celsius",
                   f"min(fleetscope_chip_temperature_margin_celsius{CHIPS})", bound=0, below=True),
            number("Nearest to its limit", "Power over power limit, the highest.", "percentunit",
                   f"max(fleetscope_chip_power_watts{CHIPS} / fleetscope_chip_power_limit_watts{CHIPS})"),
            number("Slowest clock kept", "Share of the nominal clock, the lowest run.", "percentunit",
                   "min(run:fleetscope_clock:ratio)"),
        ),
        "Why": (
            ratio("By reason", "Share of chip time, mean over chips. sync waits for other chips: no fault of this one.",
                  ("{{reason}}", f"avg by (reason) ({THROTTLED})")),
            ratio("By SKU", "The same by SKU.", ("{{sku}} {{reason}}", 'sku:fleetscope_throttled:ratio{sku=~"$sku"}')),
            ratio("By host", "The ten most throttled hosts.",
                  ("{{host}} {{reason}}", 'topk(10, host:fleetscope_throttled:ratio{host=~"$host"})')),
            lines("Chips slowed down", "For more than a twentieth of a minute, by reason.", "none",
                  ("{{reason}}", f"sum by (reason) ({THROTTLED} > bool 0.05)"), kind="stack"),
            ratio("In the vendor's words", "Share of chip time by the vendor's own name of the reason.",
                  ("{{reason}} ({{vendor_reason}})", "avg by (reason, vendor_reason) "
                   f"(rate(fleetscope_chip_throttle_seconds_total{CHIPS}[$__rate_interval]))")),
            rows("Slowed down", "Chips over a twentieth of the time; the alert fires after two minutes of heat.",
                 Query("share", f"topk({CELLS}, max by (host, device, reason) ({THROTTLED} > 0.05))", "percentunit"),
                 width=8),
        ),
        "Heat and power": (
            lines("Hottest chips", "The ten hottest.", "celsius",
                  ("{{device}}", f"topk(10, max by (device) (fleetscope_chip_temperature_celsius{CHIPS}))")),
            lines("Smallest margins to slowdown", "The ten smallest; 0 or less: it slows down.", "celsius",
                  ("{{device}}", f"bottomk(10, min by (device) (fleetscope_chip_temperature_margin_celsius{CHIPS}))"),
                  bound=0, below=True, signed=True),
            lines("Lowest clocks", "The ten lowest of each kind.", "hertz",
                  ("{{device}} {{clock}}",
                   f"bottomk by (clock) (10, min by (device, clock) (fleetscope_chip_clock_hertz{CHIPS}))")),
            ratio("Power over limit", "The ten nearest to it.",
                  ("{{device}}", f"topk(10, max by (device) (fleetscope_chip_power_watts{CHIPS} / "
                   f"fleetscope_chip_power_limit_watts{CHIPS}))")),
            lines("Power", "Of all chips, by SKU.", "watt",
                  ("{{sku}}", 'sku:fleetscope_power_watts:sum{sku=~"$sku"}'), kind="stack"),
            lines("Energy", "Joules a second of all chips, from their energy counters: power without gaps.", "watt",
                  ("{{sku}}", "sum by (sku) (max by (host, device, sku) "
                   f"(rate(fleetscope_chip_energy_joules_total{CHIPS}[$__rate_interval])))")),
        ),
        "What it costs": (
            ratio("Throttled by run", "Share of the time the run's chips were slowed down.",
                  ("{{run}} {{reason}}", "run:fleetscope_throttled:ratio")),
            ratio("Clock kept", "Share of the nominal clock the chips of a run kept.",
                  ("{{run}}", "run:fleetscope_clock:ratio")),
            ratio("MFU lost", "MFU at the clock the chips ran at, minus MFU at the nominal one.",
                  ("{{run}}", "run:fleetscope_mfu_at_clock:ratio - run:fleetscope_mfu:ratio")),
        ),
    },
)  # fmt: skip
