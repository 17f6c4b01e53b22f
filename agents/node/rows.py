"""Events out of a ring -> rows of the wire."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.agents.batches import clean_text, sample_rows, span_rows
from fleetscope.agents.collectors import Series
from fleetscope.native import recorder
from fleetscope.schema.identity import name_program
from fleetscope.schema.vocabulary import Kind, SpanFlag


@dataclass(frozen=True, slots=True)
class Rows:
    """What one drain became. Either part may be None."""

    spans: pa.RecordBatch | None
    samples: pa.RecordBatch | None
    lines: frozenset[int]
    names: frozenset[int]
    """Name ids used by spans: those have to be announced."""
    series: tuple[Series, ...]


NAME_LIMIT = 8192
"""Of a segment's table. A damaged record may claim any id; beyond this it is "other", as for a full table."""


class Names:
    """Names of one segment, by id: cleaned text and its hash."""

    def __init__(self, read: Callable[[int], list[str]]) -> None:
        self._read = read
        self._texts: list[str] = []
        self._hashes = np.empty(0, np.int64)

    def upto(self, highest: int) -> None:
        """Learn all names up to this id; one the table does not have becomes "other"."""
        if highest < len(self._texts):
            return
        fresh = [clean_text(text) for text in self._read(len(self._texts))]
        fresh += ["other"] * (highest + 1 - len(self._texts) - len(fresh))
        self._texts += fresh
        hashes = np.array([name_program(text) for text in fresh], np.int64)
        self._hashes = np.concatenate([self._hashes, hashes])

    def text(self, name: int) -> str:
        name = name if 0 <= name < NAME_LIMIT else 0
        self.upto(name)
        return self._texts[name]

    def hashes(self, names: NDArray[np.int32]) -> NDArray[np.int64]:
        known = np.where((names >= 0) & (names < NAME_LIMIT), names, 0)
        if len(known):
            self.upto(int(known.max()))
        return self._hashes[known]


def rows_of(drained: recorder.Drained, names: Names, since: int) -> Rows:
    """Spans (kinds below 32) and samples. A span that began before tick `since` was open across a cut: CUT_BATCH,
    because what is nested in it may have gone with an earlier batch."""
    is_span = drained.kind < recorder.COUNTER_INT
    spans = samples = None
    lines: frozenset[int] = frozenset()
    used: frozenset[int] = frozenset()
    series: tuple[Series, ...] = ()
    if is_span.any():
        spans = _spans(drained, is_span, names, since)
        lines = frozenset(np.unique(drained.line[is_span]).tolist())
        used = frozenset(np.unique(drained.name[is_span]).tolist())
    is_sample = (drained.kind == recorder.COUNTER_INT) | (drained.kind == recorder.COUNTER_FLOAT)
    if is_sample.any():
        samples, series = _samples(drained, np.flatnonzero(is_sample), names)
    return Rows(spans, samples, lines, used, series)


def _spans(drained: recorder.Drained, chosen: NDArray[np.bool_], names: Names, since: int) -> pa.RecordBatch:
    start, kind, arg = drained.start[chosen], drained.kind[chosen], drained.arg[chosen]
    args = None
    if len(drained.arg_row):
        texts = _args(drained, names)
        place = np.cumsum(chosen) - 1
        args = {int(place[row]): text for row, text in texts.items() if chosen[row]}
    return span_rows(
        start=start,
        dur=drained.dur[chosen],
        line=drained.line[chosen],
        kind=kind,
        program=names.hashes(drained.name[chosen]),
        step=np.where(kind == Kind.STEP, arg, arg - 1),
        flags=np.where(start < since, int(SpanFlag.CUT_BATCH), 0),
        args=args,
    )


def _args(drained: recorder.Drained, names: Names) -> dict[int, str]:
    """Row -> its arguments as one JSON object.

    Put together from quoted names, which are few: json.dumps an event would be a quarter of the agent's CPU time.
    """
    quoted = {
        name: json.dumps(names.text(name))
        for name in {
            *np.unique(drained.arg_key).tolist(),
            *np.unique(drained.arg_value[drained.arg_kind == recorder.ARG_NAME]).tolist(),
        }
    }
    floats = drained.arg_value.view(np.float64)
    parts: dict[int, list[str]] = {}
    columns = (drained.arg_row, drained.arg_key, drained.arg_kind, drained.arg_value)
    for index, (row, key, kind, value) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if kind == recorder.ARG_FLOAT:
            number = float(floats[index])
            text = repr(number) if math.isfinite(number) else f'"{number}"'
        else:
            text = quoted[value] if kind == recorder.ARG_NAME else str(value)
        parts.setdefault(row, []).append(f"{quoted[key]}:{text}")
    return {row: f"{{{','.join(found)}}}" for row, found in parts.items()}


def _samples(
    drained: recorder.Drained, chosen: NDArray[np.int64], names: Names
) -> tuple[pa.RecordBatch, tuple[Series, ...]]:
    floats, used = drained.value_float, [names.text(name) for name in drained.name[chosen].tolist()]
    series = {text: Series(text) for text in dict.fromkeys(used)}
    integral = (drained.kind[chosen] == recorder.COUNTER_INT).tolist()
    values = [
        int(drained.arg[row]) if whole else float(floats[row])
        for row, whole in zip(chosen.tolist(), integral, strict=True)
    ]
    rows = sample_rows(tick=drained.start[chosen], series=[series[text].id for text in used], values=values)
    return rows, tuple(series.values())
