"""When a run of several ranks has ended, as far as the worker of one partition can tell."""

from typing import Any

import pytest

from fleetscope.schema import identity
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import Kind

pytestmark = pytest.mark.contract

MS = 1_000_000


def _said(rank: int, world: int, end_ns: int = 0) -> list[wire.Announcement]:
    info = wire.ProcessInfo(pid=100 + rank, start_ticks=77, run="train", attempt="a1", rank=rank, world_size=world)
    said = [wire.Announcement(process=info)]
    if end_ns:
        said.insert(0, wire.Announcement(run_event=wire.RunEvent(event="end", at_ns=end_ns)))
    return said


def _ranks(bench: Any, count: int) -> list[Any]:
    hosts = [bench.host("h1") for _ in range(count)]
    for rank, host in enumerate(hosts):
        host.rank, host.pid = rank, 100 + rank
    return hosts


def _say(bench: Any, host: Any, at: int, said: list[wire.Announcement]) -> None:
    rows = {"start": [at * MS], "dur": [5], "line": 0, "kind": Kind.COMPUTE}
    bench.send(host.spans(host.rank, at * MS, (at + 1) * MS, rows, announcements=said))


def _ends(bench: Any) -> list[int]:
    return [row["end_ns"] for row in bench.rows("runs")]


def test_a_run_of_two_ranks_ends_with_the_second(bench: Any) -> None:
    first, second = _ranks(bench, 2)
    for host in (first, second):
        _say(bench, host, 0, _said(host.rank, 2))
    bench.drain()
    assert _ends(bench) == [0, 0]
    _say(bench, first, 1, _said(0, 2, end_ns=70))
    bench.drain()
    assert _ends(bench) == [0, 0]
    _say(bench, second, 1, _said(1, 2, end_ns=60))
    bench.drain()
    assert sorted(_ends(bench)) == [0, 0, 70]
    # what each process said last holds its own end
    source = first.source
    mine = [row for row in bench.rows("processes") if row["process"] == identity.process_id(source)]
    assert sorted(row["end_ns"] for row in mine) == [0, 70]


def test_a_rank_whose_others_are_elsewhere_does_not_end_the_run(bench: Any) -> None:
    (only,) = _ranks(bench, 1)
    _say(bench, only, 0, _said(0, 2))
    _say(bench, only, 1, _said(0, 2, end_ns=70))
    bench.drain()
    assert _ends(bench) == [0]


def test_a_start_that_is_heard_again_does_not_begin_an_ended_process_anew(bench: Any) -> None:
    (only,) = _ranks(bench, 1)
    _say(bench, only, 0, _said(0, 1))
    _say(bench, only, 1, _said(0, 1, end_ns=70))
    _say(bench, only, 2, [wire.Announcement(run_event=wire.RunEvent(event="start", at_ns=5))])
    bench.drain()
    assert max(_ends(bench)) == 70
    assert bench.rows("runs")[-1]["end_ns"] == 70
