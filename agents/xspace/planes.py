"""Which planes and lines of a capture are device work, which are the host, and what a plane says of its device."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fleetscope.native.xspace import OWNER_PLANE, XSpace

_DEVICE = re.compile(r"^/device:(?!CUSTOM:)([A-Za-z_]+):(\d{1,9})(?: (SparseCore.*))?$")
_STREAM = re.compile(r"^Stream #(\d{1,9})(?!\d)")
# Lines of an accelerator plane that hold work. The rest repeats it: modules, steps, asynchronous ops, name scopes,
# framework ops. GPU planes may carry an "XLA Ops" line too, derived from the streams, so there only streams count.
_OP_LINES = frozenset({"XLA Ops", "Sparse Core Ops"})
_MODULE_LINES = frozenset({"XLA Modules"})
_STEP_LINES = frozenset({"Steps"})


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plane. Its events are rows [first, first + count) of XSpace.events."""

    row: int
    id: int
    name: str
    timestamp_ns: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class DevicePlane:
    """An accelerator: one plane, or a TPU core with the planes of its SparseCores."""

    platform: str
    ordinal: int
    name: str
    op_lines: tuple[Line, ...]
    module_lines: tuple[Line, ...] = ()
    step_lines: tuple[Line, ...] = ()
    other_lines: tuple[Line, ...] = ()
    stats: Mapping[str, Any] = field(default_factory=dict)


def lines_by_plane(space: XSpace) -> dict[int, list[Line]]:
    """plane row -> its lines, in file order."""
    columns = ("plane", "line", "id", "name", "display_name", "timestamp_ns", "first_event", "event_count")
    out: dict[int, list[Line]] = {}
    for plane, row, id_, name, display, timestamp, first, count in zip(
        *(space.lines.column(name).to_pylist() for name in columns), strict=True
    ):
        out.setdefault(plane, []).append(Line(row, id_, display or name, timestamp, first, count))
    return out


def plane_stats(space: XSpace) -> dict[int, dict[str, Any]]:
    """plane row -> stat name -> value."""
    out: dict[int, dict[str, Any]] = {}
    rows = np.flatnonzero(space.stats.column("owner").to_numpy() == OWNER_PLANE)
    for stat in space.stats.take(rows).to_pylist():
        values = (stat["str_value"], stat["bytes_value"], stat["double_value"], stat["int_value"])
        value = next((value for value in values if value is not None), None)
        out.setdefault(stat["row"], {})[stat["name"] or str(stat["stat_id"])] = value
    return out


def _is_stream(platform: str, line: Line) -> bool:
    return platform != "tpu" and _STREAM.match(line.name) is not None


def stream_number(line: Line) -> int | None:
    """Stream #134(Compute) -> 134."""
    match = _STREAM.match(line.name)
    return int(match[1]) if match else None


def device_planes(space: XSpace) -> list[DevicePlane]:
    """Accelerators of the capture in file order. XLA:CPU has no plane of its own: see cpu.py."""
    lines, stats = lines_by_plane(space), plane_stats(space)
    found: dict[tuple[str, int], DevicePlane] = {}
    for plane, name in enumerate(space.planes.column("name").to_pylist()):
        match = _DEVICE.match(name)
        if match is None:
            continue
        platform, ordinal = match[1].lower(), int(match[2])
        of_plane = lines.get(plane, [])
        streams = tuple(line for line in of_plane if _is_stream(platform, line))
        ops = streams or (() if platform == "gpu" else tuple(line for line in of_plane if line.name in _OP_LINES))
        modules = tuple(line for line in of_plane if line.name in _MODULE_LINES)
        steps = tuple(line for line in of_plane if line.name in _STEP_LINES)
        other = tuple(line for line in of_plane if line not in (*ops, *modules, *steps))
        known = found.get((platform, ordinal))
        if known is None:
            found[platform, ordinal] = DevicePlane(
                platform, ordinal, name, ops, modules, steps, other, stats.get(plane, {})
            )
        else:
            found[platform, ordinal] = DevicePlane(
                platform,
                ordinal,
                known.name,
                known.op_lines + ops,
                known.module_lines + modules,
                known.step_lines + steps,
                known.other_lines + other,
                {**stats.get(plane, {}), **known.stats},
            )
    return list(found.values())


def host_planes(space: XSpace) -> list[int]:
    """Rows of planes with host threads."""
    names = space.planes.column("name").to_pylist()
    return [row for row, name in enumerate(names) if name.startswith("/host:") and name != "/host:metadata"]
