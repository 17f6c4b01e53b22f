"""Events out of a ring -> rows of the wire."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.agents.batches import clean_text, sample_rows, span_rows
from fleetscope.agents.collectors import Series
from fleetscope.agents.node.pjrt import Host, Pjrt, concatenated
from fleetscope.agents.node.stacks import OPEN_AT_DEATH
from fleetscope.agents.redaction import DROPPED, KEEP_ALL, Redaction
from fleetscope.native import recorder
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.identity import name_program
from fleetscope.schema.vocabulary import LINKS, Kind, LinkRole, SpanFlag

_NO_KEYS = (json.dumps(LINKS), json.dumps(DROPPED))
"""Nobody but links say what is linked; of an argument that may not be told its value may not either."""
_ROLES = {recorder.PRODUCER: f"[{LinkRole.PRODUCES:d},", recorder.CONSUMER: f"[{LinkRole.CONSUMES:d},"}
_BOTH = f"[{LinkRole.PRODUCES | LinkRole.CONSUMES:d},"


@dataclass(frozen=True, slots=True)
class Rows:
    """What one drain became. Either part may be None."""

    spans: pa.RecordBatch | None
    samples: pa.RecordBatch | None
    lines: frozenset[int]
    names: frozenset[int]
    """Name ids used by spans: those have to be announced."""
    series: tuple[Series, ...]
    announcements: tuple[wire.Announcement, ...] = ()
    lost: Mapping[str, int] = field(default_factory=dict)
    """Records that are no rows, by reason: of a kind nobody knows, counters whose name found the table full."""


NAME_LIMIT = 8192
"""Of a segment's table. A damaged record may claim any id; beyond this it is "other", as for a full table."""


class Names:
    """Names of one segment, by id: cleaned text, what may be told of it, and the hash of that."""

    def __init__(self, read: Callable[[int], list[str]], redaction: Redaction = KEEP_ALL) -> None:
        self._read = read
        self._redaction = redaction
        self._texts: list[str] = []
        self._told: list[str] = []
        self._hashes = np.empty(0, np.int64)

    def upto(self, highest: int) -> None:
        """Learn all names up to this id; one the table does not have becomes "other"."""
        if highest < len(self._texts):
            return
        fresh = [clean_text(text) for text in self._read(len(self._texts))]
        fresh += ["other"] * (highest + 1 - len(self._texts) - len(fresh))
        self._texts += fresh
        told = [self._redaction.annotation(text) for text in fresh]
        self._told += told
        hashes = np.array([name_program(text) for text in told], np.int64)
        self._hashes = np.concatenate([self._hashes, hashes])

    def text(self, name: int) -> str:
        name = name if 0 <= name < NAME_LIMIT else 0
        self.upto(name)
        return self._texts[name]

    def told(self, name: int) -> str:
        """What may leave the host; DROPPED for a name of which nothing may."""
        name = name if 0 <= name < NAME_LIMIT else 0
        self.upto(name)
        return self._told[name]

    def dropped(self, names: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which are of names of which nothing may be told."""
        used = [name for name in np.unique(names).tolist() if self.told(name) == DROPPED]
        return np.isin(names, used)

    def hashes(self, names: NDArray[np.int32]) -> NDArray[np.int64]:
        known = np.where((names >= 0) & (names < NAME_LIMIT), names, 0)
        if len(known):
            self.upto(int(known.max()))
        return self._hashes[known]


def rows_of(drained: recorder.Drained, names: Names, since: int, pjrt: Pjrt | None = None, now_s: float = 0.0) -> Rows:
    """Spans (kinds below LAUNCH, and those `pjrt` makes of the shim's records) and samples.

    A span that began before tick `since` was open across a cut: CUT_BATCH, because what is nested in it may have gone
    with an earlier batch.
    """
    is_span = drained.kind < recorder.LAUNCH
    spans = samples = None
    lines: frozenset[int] = frozenset()
    used: frozenset[int] = frozenset()
    series: tuple[Series, ...] = ()
    host = pjrt.take(drained, now_s) if pjrt is not None else Host()
    if is_span.any() or host.columns["start"]:
        spans = _spans(drained, is_span, names, since, host)
        lines = frozenset(np.unique(drained.line[is_span]).tolist()) | host.threads
        used = frozenset(np.unique(drained.name[is_span]).tolist())
    is_sample = (drained.kind == recorder.COUNTER_INT) | (drained.kind == recorder.COUNTER_FLOAT)
    unknown = int(np.count_nonzero(~is_span & ~is_sample & ((drained.kind > recorder.UNLOAD) | (pjrt is None))))
    # A span without its name still took its time; a value without its name would be mixed with all others like it.
    nameless = is_sample & ((drained.name <= 0) | (drained.name >= NAME_LIMIT))
    lost = {"invalid_row": unknown, "name_limit": int(np.count_nonzero(nameless))}
    is_sample &= ~nameless
    if is_sample.any():
        is_sample &= ~names.dropped(drained.name)
    if is_sample.any() or host.samples:
        samples, series = _samples(drained, np.flatnonzero(is_sample), names, pjrt, host)
    return Rows(spans, samples, lines, used, series, tuple(host.announcements), lost)


def _spans(
    drained: recorder.Drained, chosen: NDArray[np.bool_], names: Names, since: int, host: Host
) -> pa.RecordBatch:
    start, kind, arg = drained.start[chosen], drained.kind[chosen], drained.arg[chosen]
    args = None
    if len(drained.arg_row) or len(drained.link_row) or drained.flow.any():
        texts = _args(drained, names)
        place = np.cumsum(chosen) - 1
        args = {int(place[row]): text for row, text in texts.items() if chosen[row]}
    columns: dict[str, NDArray[Any]] = {
        "start": start,
        "dur": drained.dur[chosen],
        "line": drained.line[chosen],
        "kind": kind,
        "flow": drained.flow[chosen],
        "weight": drained.weight[chosen],
        "program": names.hashes(drained.name[chosen]),
        "step": np.where(kind == Kind.STEP, arg, arg - 1),
    }
    if host.columns["start"]:
        columns = concatenated(columns, host)
    flags = np.where(columns["start"] < since, int(SpanFlag.CUT_BATCH), 0)
    unended = drained.flags[chosen] & OPEN_AT_DEATH != 0
    flags[: len(unended)] |= np.where(unended, int(SpanFlag.TRUNCATED), 0)
    return span_rows(**columns, flags=flags, args=args)


def _args(drained: recorder.Drained, names: Names) -> dict[int, str]:
    """Row -> its arguments as one JSON object; its links are the first of them (docs/format/wire.md).

    Put together from quoted names, which are few: json.dumps an event would be a quarter of the agent's CPU time.
    """
    quoted = {
        name: json.dumps(names.told(name))
        for name in {
            *np.unique(drained.arg_key).tolist(),
            *np.unique(drained.arg_value[drained.arg_kind == recorder.ARG_NAME]).tolist(),
        }
    }
    floats = drained.arg_value.view(np.float64)
    parts = {row: [f'"{LINKS}":[{",".join(links)}]'] for row, links in _links(drained).items()}
    columns = (drained.arg_row, drained.arg_key, drained.arg_kind, drained.arg_value)
    for index, (row, key, kind, value) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if kind == recorder.ARG_FLOAT:
            number = float(floats[index])
            text = repr(number) if math.isfinite(number) else f'"{number}"'
        else:
            text = quoted[value] if kind == recorder.ARG_NAME else str(value)
        if quoted[key] not in _NO_KEYS:
            parts.setdefault(row, []).append(f"{quoted[key]}:{text}")
    return {row: f"{{{','.join(found)}}}" for row, found in parts.items()}


def _links(drained: recorder.Drained) -> dict[int, list[str]]:
    """Row -> its links as JSON, [role, context type, context id]. A flow is made and gone on with by whoever has it."""
    found = {row: [f"{_BOTH}0,{drained.flow[row]}]"] for row in np.flatnonzero(drained.flow).tolist()}
    columns = (drained.link_row, drained.link_kind, drained.link_type, drained.link_id)
    for row, kind, context, number in zip(*(column.tolist() for column in columns), strict=True):
        found.setdefault(row, []).append(f"{_ROLES[kind]}{context},{number}]")
    return found


def _samples(
    drained: recorder.Drained, chosen: NDArray[np.int64], names: Names, pjrt: Pjrt | None, host: Host
) -> tuple[pa.RecordBatch, tuple[Series, ...]]:
    floats, used = drained.value_float, drained.name[chosen].tolist()
    devices = dict.fromkeys(used, 0)
    series = {name: Series(names.told(name)) for name in devices}
    if pjrt is not None:
        for name in devices:
            found = pjrt.device_sample(names.text(name))
            if found is not None:
                series[name], devices[name] = Series(found[0]), found[1]
    integral = (drained.kind[chosen] == recorder.COUNTER_INT).tolist()
    values = [
        int(drained.arg[row]) if whole else float(floats[row])
        for row, whole in zip(chosen.tolist(), integral, strict=True)
    ]
    rows = sample_rows(
        tick=drained.start[chosen].tolist() + [tick for tick, *_ in host.samples],
        series=[series[name].id for name in used] + [made.id for _, made, *_ in host.samples],
        values=values + [value for _, _, value, _ in host.samples],
        device=[devices[name] for name in used] + [device for *_, device in host.samples],
    )
    return rows, tuple({*series.values(), *(made for _, made, *_ in host.samples)})
