"""Links between spans: out of the `args` of wire rows, where they stand first, into rows of their own."""

import re

import pyarrow as pa
import pyarrow.compute as pc

from fleetscope.schema.tables import LINKS
from fleetscope.schema.vocabulary import LINKS as MEMBER

_LINK = r"\[([123]),(\d{1,8}),(-?\d{1,19})\]"
_ONE = re.compile(_LINK)
_ALL = re.compile(rf'\{{"{MEMBER}":\[({_LINK}(?:,{_LINK})*)\],?')
"""The agent writes it so and not otherwise; whatever else begins like it stays an argument. No JSON parser: texts of up
to 128 MiB would become objects."""

_OF_SPAN = tuple(LINKS.names[: LINKS.names.index("role")])
_BEYOND = 1 << 63


def without_links(spans: pa.Table, args: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.Table]:
    """(`args` without the links, LINKS rows). `spans`: SPANS rows, `args`: a text or null for each."""
    if args.null_count == len(args):
        return args, LINKS.empty_table()
    linked = pc.fill_null(pc.starts_with(args, f'{{"{MEMBER}":['), False)
    rows: list[int] = []
    links: list[tuple[int, int, int]] = []
    rest: list[str | None] = []
    for row, text in zip(pc.indices_nonzero(linked).to_pylist(), args.filter(linked).to_pylist(), strict=True):
        found = _ALL.match(text)
        if found is None:
            rest.append(text)
            continue
        for role, context, number in _ONE.findall(found[1]):
            if -_BEYOND <= int(number) < _BEYOND:
                rows.append(row)
                links.append((int(role), int(context), int(number)))
        rest.append("{" + text[found.end() :] if text[found.end() :] != "}" else None)
    if not rest:
        return args, LINKS.empty_table()
    kept = pc.replace_with_mask(args.combine_chunks(), linked.combine_chunks(), pa.array(rest, pa.string()))
    of_span = spans.select(_OF_SPAN).take(pa.array(rows, pa.int64()))
    columns = [
        pa.array([link[place] for link in links], LINKS.field(name).type)
        for place, name in enumerate(("role", "context_type", "context_id"))
    ]
    return pa.chunked_array([kept]), pa.Table.from_arrays([*of_span.columns, *columns], schema=LINKS)
