"""Lines of a table that fit a width: long texts are shortened in their middle first, then columns left out, the least
important ones first.

Nothing is padded at the end of a line and nothing wraps, so that grep, cut and awk see one row a line.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

GAP = "  "
SHORTENED = 28
"""A column of texts is not made narrower than that while columns can be left out instead."""
NARROWEST = 8


@dataclass(frozen=True, slots=True)
class Column:
    """Texts of one column under a heading. `rank`: 0 is kept longest."""

    heading: str
    cells: tuple[str, ...]
    right: bool = False
    rank: int = 0

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.heading, *self.cells))


@dataclass(frozen=True, slots=True)
class Laid:
    """Lines of a table, the heading first, and the headings of columns that were left out."""

    lines: tuple[str, ...]
    left_out: tuple[str, ...]


def lay_out(columns: Sequence[Column], width: int | None) -> Laid:
    """`width` in cells of a terminal; None: as wide as it takes."""
    kept = list(columns)
    widths = [column.width for column in kept]
    if width is not None:
        _shorten(kept, widths, width, SHORTENED)
        while len(kept) > 1 and _total(widths) > width:
            # Of columns equally important the last one goes.
            worst = max(range(len(kept)), key=lambda index: (kept[index].rank, index))
            del kept[worst], widths[worst]
            widths = [column.width for column in kept]
            _shorten(kept, widths, width, SHORTENED)
        _shorten(kept, widths, width, NARROWEST)
    texts = [(column.heading, *column.cells) for column in kept]
    lines = [
        GAP.join(_fit(text, size, column.right) for text, size, column in zip(row, widths, kept, strict=True)).rstrip()
        for row in zip(*texts, strict=True)
    ]
    left_out = [column.heading for column in columns if column not in kept]
    return Laid(tuple(lines), tuple(left_out))


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _shorten(columns: Sequence[Column], widths: list[int], width: int, floor: int) -> None:
    """Take from the widest texts until the table fits or none is wider than `floor`. Numbers are never cut."""
    texts = [index for index, column in enumerate(columns) if not column.right]
    while texts and _total(widths) > width:
        widest = max(texts, key=lambda index: widths[index])
        if widths[widest] <= max(floor, cell_len(columns[widest].heading)):
            return
        widths[widest] -= 1


def _fit(text: str, width: int, right: bool) -> str:
    size = cell_len(text)
    if size > width:
        head = (width - 1) // 2
        tail = width - 1 - head
        text = f"{set_cell_size(text, head)}…{_last_cells(text, tail)}"
        size = cell_len(text)
    pad = " " * (width - size)
    return pad + text if right else text + pad


def _last_cells(text: str, width: int) -> str:
    kept = text
    while cell_len(kept) > width:
        kept = kept[1:]
    return kept
