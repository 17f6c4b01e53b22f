"""What the conversion gives for one device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from fleetscope.agents.batches import span_rows
from fleetscope.agents.xspace.session import Clock


@dataclass(frozen=True, slots=True)
class DeviceSpans:
    """Spans of one device: all its lines over one stretch, rows of schema.payloads.WIRE_SPANS in their order.

    `lines`: line number -> name. `names`: program -> kernel name, of spans that belong to no HLO op. `executions`:
    program executions among the rows (MODULE spans; 0 where the platform does not tell them apart). `skipped`: events
    of the plane that are no spans here, by line or reason. `anchors`: pairs (tick, Unix ns) that place a clock of its
    own.
    """

    platform: str
    ordinal: int
    name: str
    sku: str
    clock: Clock
    rows: pa.RecordBatch
    lines: Mapping[int, str]
    names: Mapping[int, str] = field(default_factory=dict)
    executions: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    anchors: tuple[tuple[int, int], ...] = ()
    stats: Mapping[str, Any] = field(default_factory=dict)


_DEFAULTS: dict[str, ArrayLike] = {"program": 0, "op": 0, "exec": -1, "step": -1, "flow": 0, "flags": 0}


def join_rows(parts: Sequence[Mapping[str, ArrayLike]]) -> pa.RecordBatch:
    """WIRE_SPANS rows of several groups of columns (start, dur, line, kind and any of the rest), in the order of the
    wire.
    """
    merged: dict[str, ArrayLike] = {}
    for name in ("start", "dur", "line", "kind", *_DEFAULTS):
        columns = []
        for part in parts:
            values = part[name] if name in part else _DEFAULTS[name]
            columns.append(np.broadcast_to(np.asarray(values), np.shape(part["start"])))
        merged[name] = np.concatenate(columns)
    return span_rows(**merged)
