"""Links out of the arguments of wire rows; texts that no agent of ours writes."""

import time

import pyarrow as pa
import pytest

from fleetscope.pipelines.links import without_links
from fleetscope.schema.tables import SPANS

pytestmark = pytest.mark.unit


def taken(texts: list[str | None]) -> tuple[list[str | None], list[tuple[int, int, int, int]]]:
    """(arguments that are left, (seq, role, context type, context id) of each link)"""
    rows = len(texts)
    columns = {field.name: pa.array([0] * rows, field.type) for field in SPANS}
    columns["seq"] = pa.array(range(rows), pa.int64())
    spans = pa.table(columns, schema=SPANS)
    left, links = without_links(spans, pa.chunked_array([pa.array(texts, pa.string())]))
    return left.to_pylist(), [
        (row["seq"], row["role"], row["context_type"], row["context_id"]) for row in links.to_pylist()
    ]


def test_links_leave_the_arguments_and_have_rows_of_their_own() -> None:
    least, most = -(1 << 63), (1 << 63) - 1
    left, links = taken(
        [None, '{"a":1}', '{"_links":[[1,0,7]]}', f'{{"_links":[[2,16777215,{least}],[3,0,{most}]],"a":"]}},"}}', "{}"]
    )
    assert left == [None, '{"a":1}', None, '{"a":"]},"}', "{}"]
    assert links == [(2, 1, 0, 7), (3, 2, 16777215, least), (3, 3, 0, most)]
    assert taken([None, None]) == ([None, None], [])


@pytest.mark.parametrize(
    "text",
    [
        '{"_links":[]}', '{"_links":[[0,0,1]]}', '{"_links":[[4,0,1]]}', '{"_links":[[1,-1,1]]}',
        '{"_links":[[1,0,1.5]]}', '{"_links":[[1,0,1],]}', '{"_links":[[1,0,12345678901234567890]]}',
        '{"_links":[[1,123456789,1]]}', '{"_links":[', '{"_links":"[[1,0,1]]"}', '{ "_links":[[1,0,1]]}',
        '{"a":{"_links":[[1,0,1]]}}', '"_links":[[1,0,1]]',
    ],
)  # fmt: skip
def test_what_is_not_written_as_the_agent_writes_it_stays_an_argument(text: str) -> None:
    assert taken([text]) == ([text], [])


def test_an_id_beyond_64_bits_is_left_out_and_a_huge_text_takes_no_longer_than_its_length() -> None:
    assert taken(['{"_links":[[1,0,9999999999999999999],[1,0,5]]}']) == ([None], [(0, 1, 0, 5)])
    many = ",".join("[1,0,5]" for _ in range(50_000))
    begin = time.process_time()
    assert len(taken([f'{{"_links":[{many}]}}'])[1]) == 50_000
    assert taken([f'{{"_links":[{many},x]}}'])[1] == []
    assert time.process_time() - begin < 20
