"""numpy views of XSpace columns: nulls become a stated value, never a float."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def ints(column: pa.Array, null: int = 0) -> Ints:
    """An integer column as int64. One without nulls is not copied."""
    if column.null_count == len(column):
        return np.full(len(column), null, np.int64)
    values: Ints = (column.fill_null(null) if column.null_count else column).to_numpy().astype(np.int64, copy=False)
    return values


def present(column: pa.Array) -> NDArray[np.bool_]:
    """Which rows have a value."""
    if column.null_count in (0, len(column)):
        return np.full(len(column), column.null_count == 0)
    mask: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return mask


@dataclass(frozen=True, slots=True)
class Texts:
    """A dictionary column: `codes` per row (-1 null) into `values`, which all string stats of an XSpace share."""

    codes: Ints
    values: pa.Array

    def at(self, codes: Ints) -> list[str]:
        """Texts of codes >= 0."""
        texts: list[str] = self.values.take(pa.array(codes, pa.int64())).to_pylist()
        return texts

    def take(self, rows: Ints) -> "Texts":
        return Texts(self.codes[rows], self.values)


def texts(column: pa.DictionaryArray) -> Texts:
    return Texts(ints(column.indices, -1), column.dictionary)
