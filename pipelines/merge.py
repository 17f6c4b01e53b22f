"""The one merge of rollup rows, used by the pipeline's combine and by the fold.

Rows of one key become one row: numbers add, worst errors and extremes compare, histograms add by bucket. Every
operation is associative and commutative on int64 (addition wraps, bit for bit), and the result is sorted by key, so
any order and grouping of parts gives the same bytes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.grouping import combined, ranks
from fleetscope.pipelines.histogram import ZERO_BUCKET
from fleetscope.schema.tables import TABLES

Int64s = NDArray[np.int64]

_INT64_MAX = np.iinfo(np.int64).max

_RULES: dict[str, dict[str, str]] = {
    "op_10s": {"min_ns": "min", "max_ns": "max", "hist_index": "histogram", "hist_count": "histogram"},
    "device_10s": {"err_ns": "worst", "run_ahead_max": "max"},
    "completeness": {"err_ns": "worst"},
    # Parts of a step come from its host thread (when, how long, what it waited for) and from devices (time by class):
    # they are disjoint, so times add (a part may take time back: a begin that comes late cuts a step); what only one
    # part knows is 0 or -1 in the others, so the largest wins; a declared step stays declared.
    "step": {
        "run": "known",
        "host": "known",
        "rank": "max",
        "source": "first",
        "program": "known",
        "flags": "or",
        "confidence": "max",
    },
    "step_program": {"host": "known"},
}
"""Rule of a column that is no key; "add" where none is named.

worst: the largest, but -1 (unknown) beats all. known: the largest as an unsigned number, 0 is nothing. first:
alphabetical.
"""


def merge(name: str, tables: Sequence[pa.Table]) -> pa.Table:
    """One row a key, ascending by key, one chunk. `name` is that of a rollup table; columns are those of its schema."""
    spec = TABLES[name]
    whole = pa.concat_tables(tables) if tables else spec.schema.empty_table()
    whole = whole.select(spec.schema.names).combine_chunks()
    if not whole.num_rows:
        return spec.schema.empty_table()
    columns = {field.name: whole.column(field.name) for field in spec.schema}
    code, _ = combined([ranks(_numbers(columns[key])) for key in spec.key])
    order = np.argsort(code, kind="stable")
    code = code[order]
    first = np.flatnonzero(np.concatenate(([True], code[1:] != code[:-1])))
    if len(first) == len(code):
        ordered = whole if bool((order[1:] > order[:-1]).all()) else whole.take(pa.array(order)).combine_chunks()
        return ordered if ordered.schema.equals(spec.schema, check_metadata=True) else ordered.cast(spec.schema)
    rules = _RULES[name]
    merged: dict[str, pa.Array] = {}
    for field in spec.schema:
        rule = rules.get(field.name, "add")
        if field.name in spec.key:
            merged[field.name] = pa.array(_numbers(columns[field.name])[order[first]], field.type)
        elif rule == "histogram":
            if field.name == "hist_index":
                group = np.empty(len(order), np.int64)
                group[order] = np.repeat(np.arange(len(first)), np.diff(first, append=len(order)))
                lists = _histograms(columns["hist_index"], columns["hist_count"], group, len(first))
                merged["hist_index"], merged["hist_count"] = lists
        elif rule == "first":
            ranked = columns[field.name].combine_chunks().dictionary_encode()
            words = sorted(ranked.dictionary.to_pylist())
            number = np.array([words.index(word) for word in ranked.dictionary.to_pylist()], np.int64)
            least = np.minimum.reduceat(number[ranked.indices.to_numpy()][order], first)
            merged[field.name] = pa.array([words[i] for i in least.tolist()], field.type)
        else:
            merged[field.name] = pa.array(_reduced(rule, columns, field.name, order, first), field.type)
    return pa.table(merged, schema=spec.schema)


def _reduced(rule: str, columns: dict[str, pa.ChunkedArray], name: str, order: Int64s, first: Int64s) -> NDArray[Any]:
    values = _numbers(columns[name])
    if rule == "add" and not values.any():
        # Estimator columns of whole observations: half of the columns of a row.
        return np.zeros(len(first), values.dtype)
    values = values[order]
    if rule == "min":
        return _counted_minimum(values, _numbers(columns["count"])[order], first)
    return _REDUCE[rule](values, first)


def _numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    array: NDArray[Any] = column.to_numpy()
    return array


def _add(values: NDArray[Any], first: Int64s) -> NDArray[Any]:
    return np.add.reduceat(values, first)


def _max(values: NDArray[Any], first: Int64s) -> NDArray[Any]:
    return np.maximum.reduceat(values, first)


def _or(values: NDArray[Any], first: Int64s) -> NDArray[Any]:
    return np.bitwise_or.reduceat(values, first)


def _worst(values: Int64s, first: Int64s) -> Int64s:
    found = np.maximum.reduceat(np.where(values < 0, _INT64_MAX, values), first)
    return np.where(found == _INT64_MAX, -1, found)


def _known(values: Int64s, first: Int64s) -> Int64s:
    # Ids are signed hashes and 0 means none: as unsigned numbers 0 is the least.
    return np.maximum.reduceat(values.view(np.uint64), first).view(np.int64)


def _counted_minimum(values: Int64s, count: Int64s, first: Int64s) -> Int64s:
    """A row that counts no span (estimator columns of a unit whose spans ended in other windows) has no shortest
    one."""
    found = np.minimum.reduceat(np.where(count == 0, _INT64_MAX, values), first)
    return np.where(np.add.reduceat(count, first) == 0, 0, found)


_REDUCE: dict[str, Callable[[NDArray[Any], Int64s], NDArray[Any]]] = {
    "add": _add,
    "max": _max,
    "or": _or,
    "worst": _worst,
    "known": _known,
}


def _histograms(
    index: pa.ChunkedArray, count: pa.ChunkedArray, group: Int64s, groups: int
) -> tuple[pa.Array, pa.Array]:
    """Lists of merged buckets, ascending by index, of each group."""
    lists, counts = _one(index), _one(count)
    lengths = np.diff(lists.offsets.to_numpy())
    buckets = lists.flatten().to_numpy().astype(np.int64) - ZERO_BUCKET
    numbers = counts.flatten().to_numpy()
    if not len(buckets):
        empty = pa.array(np.zeros(groups + 1, np.int32))
        return (
            pa.ListArray.from_arrays(empty, pa.array([], pa.int16())),
            pa.ListArray.from_arrays(empty, pa.array([], pa.int64())),
        )
    code = np.repeat(group, lengths) << 16 | buckets
    order = np.argsort(code, kind="stable")
    code = code[order]
    first = np.flatnonzero(np.concatenate(([True], code[1:] != code[:-1])))
    return histogram_lists(
        code[first] >> 16, (code[first] & 0xFFFF) + ZERO_BUCKET, _sums(numbers[order], first), groups
    )


def _sums(values: Int64s, first: Int64s) -> Int64s:
    return np.add.reduceat(values, first)


def _one(column: pa.ChunkedArray) -> pa.ListArray:
    array = column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def histogram_lists(group: Int64s, index: Int64s, count: Int64s, groups: int) -> tuple[pa.ListArray, pa.ListArray]:
    """hist_index and hist_count columns from buckets in order (group, index); every group in [0, groups) gets a
    list."""
    offsets = np.zeros(groups + 1, np.int32)
    np.cumsum(np.bincount(group, minlength=groups), out=offsets[1:])
    return (
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(index.astype(np.int16))),
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(count)),
    )
