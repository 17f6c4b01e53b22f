"""Why devices were idle: what the host of a process was doing in the gaps of its devices.

Gaps and host spans of a process come in other batches, often in other epochs, in any order; both are carried for a
while, and a device's row is corrected whenever one of them becomes known: idle_unknown_ns gives to a cause. Rows are
deltas, so every sum over the five idle columns stays what it was: observed - busy, and watched - occupancy.
"""

import base64
import zlib
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.align.spans import Placed
from fleetscope.pipelines.block import Block
from fleetscope.pipelines.merge import merge
from fleetscope.pipelines.occupancy import GAPS
from fleetscope.pipelines.state import PartitionState
from fleetscope.schema.tables import DEVICE_10S
from fleetscope.schema.vocabulary import Kind

Int64s = NDArray[np.int64]

CAUSE_KINDS = (Kind.DATA_WAIT, Kind.COMPILE, Kind.CHECKPOINT, Kind.DISPATCH)
"""In order of precedence: where the host does several things at an instant, on one thread or on many, the first of
these is the cause."""
CAUSE_COLUMNS = ("idle_input_ns", "idle_compile_ns", "idle_checkpoint_ns", "idle_dispatch_ns")

CAUSES = pa.schema([(name, pa.int64()) for name in ("process", "cause", "epoch", "from_n", "to_n", "from_ns", "to_ns")])
"""A host span that may be why a device is idle; `cause` counts in CAUSE_KINDS; times as in GAPS."""

TABLES = {"gaps": GAPS, "causes": CAUSES}

GAPS_KEPT = 128
CAUSES_KEPT = 192
"""Per process, the newest. What is older stays as it was found. Both go into every manifest: ~4 kB of a process with 8
devices and 10 steps a second."""
LEFT_ALONE = 8
"""Epochs whose gaps lie beside each other while there is no cause, before they are joined and the oldest dropped."""
GAPS_NS = 900_000_000_000
CAUSES_NS, DISPATCH_NS = 60_000_000_000, 5_000_000_000
"""How far behind the newest event of their process they are kept. A gap waits for the host span that covers it, which
is told when it ends; a span waits for gaps, which are told within seconds (of windows, within a minute)."""

_DISPATCH = CAUSE_KINDS.index(Kind.DISPATCH)
_CAUSE = np.full(256, -1, np.int64)
_CAUSE[[int(kind) for kind in CAUSE_KINDS]] = np.arange(len(CAUSE_KINDS))


def causes(block: Block, placed: Placed) -> pa.Table:
    """CAUSES of the host threads of a block."""
    rows = np.flatnonzero((_CAUSE[block.kind] >= 0) & placed.counts & (block.dur > 0))
    whose = np.searchsorted(block.offsets, rows, side="right") - 1
    host = block.of_batches("device")[whose] == 0
    rows, whose = rows[host], whose[host]
    columns = {
        "process": block.of_batches("process")[whose],
        "cause": _CAUSE[block.kind[rows]],
        "epoch": block.of_batches("epoch")[whose],
        "from_n": block.in_ns(block.start[rows], whose),
        "to_n": block.in_ns(block.start[rows] + block.dur[rows], whose),
        "from_ns": placed.t_ns[rows],
        "to_ns": placed.t_ns[rows] + placed.dur_ns[rows],
    }
    return pa.table(columns, schema=CAUSES)


def advance(states: Mapping[int, PartitionState], tables: Mapping[str, pa.Table], now_ns: int) -> pa.Table:
    """DEVICE_10S rows that give idle time to its causes; what is carried in `states` moves on. `tables`: those of
    TABLES by name, if any. `now_ns`: no event is newer, whatever it says of itself."""
    new = {name: _by_process(tables.get(name)) for name in TABLES}
    found: list[dict[str, int]] = []
    for state in states.values():
        mine = {record.process for record in state.sources.values()}
        for process in sorted(mine & (set(new["gaps"]) | set(new["causes"]))):
            found += _advance(state, process, new["gaps"].get(process), new["causes"].get(process), now_ns)
    if not found:
        return DEVICE_10S.empty_table()
    rows = {field.name: [row.get(field.name, 0) for row in found] for field in DEVICE_10S}
    return merge("device_10s", [pa.table(rows, schema=DEVICE_10S)])


def _by_process(table: pa.Table | None) -> dict[int, Int64s]:
    """process -> int64[rows, columns without the process]."""
    if table is None or not table.num_rows:
        return {}
    columns = np.stack([column.to_numpy() for column in table.columns], axis=1).astype(np.int64)
    names = table.column_names
    rest = np.delete(columns, names.index("process"), axis=1)
    owner = columns[:, names.index("process")]
    return {int(process): rest[owner == process] for process in np.unique(owner)}


HOST, DEVICE, WEIGHT, WINDOW, EPOCH, FROM_N, TO_N, FROM_NS, TO_NS = range(9)
GIVEN = TO_NS + 1
"""First of the columns of a carried gap that say what each cause was given."""
_CAUSE_EPOCH, _CAUSE_FROM, _CAUSE_WIDTH = 1, 2, 6


def _advance(
    state: PartitionState, process: int, gaps: Int64s | None, spans: Int64s | None, now_ns: int
) -> list[dict[str, int]]:
    """Carried: [texts of gaps with what was given of them, text of causes]."""
    gap_texts, spans_text = state.idle.get(process, ([], ""))
    width = GIVEN + len(CAUSE_KINDS)
    fresh = np.zeros((0 if gaps is None else len(gaps), width), np.int64)
    if gaps is not None:
        fresh[:, :GIVEN] = gaps
    if spans is None and not spans_text and len(fresh) <= GAPS_KEPT and len(gap_texts) < LEFT_ALONE:
        # Nothing to give it to: most processes of a fleet whose hosts are not instrumented.
        state.idle[process] = [[*gap_texts, _packed(fresh, FROM_N)] if len(fresh) else gap_texts, ""]
        return []
    old_gaps = [_unpacked(text, width, FROM_N) for text in gap_texts]
    old_spans = _unpacked(spans_text, _CAUSE_WIDTH, _CAUSE_FROM)
    together = np.concatenate((*old_gaps, fresh))
    every = old_spans if spans is None else np.concatenate((old_spans, spans))
    given = _given(together, every)
    changed = given - together[:, GIVEN:]
    moved = np.flatnonzero(changed.any(axis=1))
    rows = [
        {
            "t_ns": int(gap[WINDOW]),
            "host": int(gap[HOST]),
            "process": process,
            "device": int(gap[DEVICE]),
            "weight": int(gap[WEIGHT]),
            **{name: int(value) for name, value in zip(CAUSE_COLUMNS, change, strict=True)},
            "idle_unknown_ns": -int(change.sum()),
        }
        for gap, change in zip(together[moved], changed[moved], strict=True)
    ]
    together[:, GIVEN:] = given
    kept_gaps, kept_spans = _kept(_joined(together), every, now_ns)
    state.idle[process] = [
        [_packed(kept_gaps, FROM_N)] if len(kept_gaps) else [],
        _packed(kept_spans, _CAUSE_FROM),
    ]
    return rows


def _packed(rows: Int64s, at: int) -> str:
    """Rows as text that is copied from epoch to epoch unread while their process is silent: as numbers in the state's
    JSON they cost every epoch 1.2 ms a process.

    Of the four times from column `at` on (from_n, to_n, from_ns, to_ns) the first, and what hardly changes; then each
    column's differences, which compress to a tenth.
    """
    if not len(rows):
        return ""
    out = rows.copy()
    out[:, at + 1] -= rows[:, at]
    out[:, at + 2 : at + 4] -= rows[:, at : at + 2]
    columns = np.diff(out.T, axis=1, prepend=0).astype("<i8")
    return base64.b64encode(zlib.compress(columns.tobytes(), 1)).decode("ascii")


def _unpacked(text: str, width: int, at: int) -> Int64s:
    if not text:
        return np.zeros((0, width), np.int64)
    columns = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8").reshape(width, -1)
    out: Int64s = np.cumsum(columns, axis=1, dtype=np.int64).T.copy()
    out[:, at + 1] += out[:, at]
    out[:, at + 2 : at + 4] += out[:, at : at + 2]
    return out


def _given(gaps: Int64s, spans: Int64s) -> Int64s:
    """int64[gaps, causes]: ns of each gap that lie in each cause.

    In a clock that device and host share, N of ticks is compared, so that a gap cut in two has the sum of its parts. In
    fleet time else: two clocks disagree by parts per million, so no more is given than the gap is long.
    """
    out = np.zeros((len(gaps), len(CAUSE_KINDS)), np.int64)
    if not len(spans):
        return out
    for epoch in np.unique(gaps[:, EPOCH]).tolist():
        mine = gaps[:, EPOCH] == epoch
        same = spans[spans[:, _CAUSE_EPOCH] == epoch]
        if len(same):
            out[mine] = _overlaps(gaps[mine][:, [FROM_N, TO_N]], same[:, [0, 2, 3]])
        else:
            out[mine] = _overlaps(gaps[mine][:, [FROM_NS, TO_NS]], spans[:, [0, 4, 5]])
            excess = np.maximum(out[mine].sum(axis=1) - (gaps[mine][:, TO_N] - gaps[mine][:, FROM_N]), 0)
            rows = np.flatnonzero(mine)
            out[rows, out[mine].argmax(axis=1)] -= excess
    return out


def _overlaps(gaps: Int64s, spans: Int64s) -> Int64s:
    """int64[gaps, causes] of gaps (from, to) and spans (cause, from, to), the first cause of an instant alone."""
    edges = np.unique(np.concatenate((spans[:, 1], spans[:, 2])))
    counts = np.zeros((len(CAUSE_KINDS), len(edges)), np.int64)
    np.add.at(counts, (spans[:, 0], np.searchsorted(edges, spans[:, 1])), 1)
    np.add.at(counts, (spans[:, 0], np.searchsorted(edges, spans[:, 2])), -1)
    active = counts.cumsum(axis=1) > 0
    taken = np.zeros(len(edges), np.bool_)
    out = np.zeros((len(gaps), len(CAUSE_KINDS)), np.int64)
    lengths = np.diff(edges, append=edges[-1:])
    for cause in range(len(CAUSE_KINDS)):
        mine = active[cause] & ~taken
        taken |= mine
        # time of the cause before each edge; between two edges it grows or stands still
        before = np.concatenate(([0], np.cumsum(np.where(mine, lengths, 0))))[:-1]

        def upto(at: Int64s, mine: NDArray[np.bool_] = mine, before: Int64s = before) -> Int64s:
            place = np.searchsorted(edges, at, side="right") - 1
            inside = np.maximum(place, 0)
            grown = before[inside] + np.where(mine[inside], at - edges[inside], 0)
            return np.where(place < 0, 0, grown)

        out[:, cause] = upto(gaps[:, 1]) - upto(gaps[:, 0])
    return out


def _joined(gaps: Int64s) -> Int64s:
    """Gaps that continue one another in one window as one: an idle device is told about once a second."""
    order = np.lexsort((gaps[:, FROM_N], gaps[:, EPOCH], gaps[:, WINDOW], gaps[:, WEIGHT], gaps[:, DEVICE]))
    gaps = gaps[order]
    if len(gaps) < 2:
        return gaps
    same = (gaps[1:, [HOST, DEVICE, WEIGHT, WINDOW, EPOCH]] == gaps[:-1, [HOST, DEVICE, WEIGHT, WINDOW, EPOCH]]).all(
        axis=1
    )
    heads = np.concatenate(([True], ~(same & (gaps[1:, FROM_N] == gaps[:-1, TO_N]))))
    first = np.flatnonzero(heads)
    last = np.append(first[1:], len(gaps)) - 1
    joined = gaps[first].copy()
    joined[:, [TO_N, TO_NS]] = gaps[last][:, [TO_N, TO_NS]]
    joined[:, GIVEN:] = np.add.reduceat(gaps[:, GIVEN:], first, axis=0)
    return joined


def _kept(gaps: Int64s, spans: Int64s, now_ns: int) -> tuple[Int64s, Int64s]:
    """What is carried on. A gap that a forgotten span may lie in goes with it: looked at again, it would lose what it
    was given."""
    newest = min(now_ns, max([int(part.max()) for part in (gaps[:, TO_NS], spans[:, 5]) if len(part)], default=0))
    spans = spans[np.argsort(spans[:, 5], kind="stable")]
    horizon = np.where(spans[:, 0] == _DISPATCH, DISPATCH_NS, CAUSES_NS)
    stays = spans[:, 5] > newest - horizon
    stays[: max(0, len(spans) - CAUSES_KEPT)] = False
    forgotten = int(spans[~stays, 5].max(initial=0))
    gaps = gaps[(gaps[:, TO_NS] > newest - GAPS_NS) & (gaps[:, FROM_NS] >= forgotten)]
    return gaps[np.argsort(gaps[:, TO_NS], kind="stable")][-GAPS_KEPT:], spans[stays]
