"""The way of a thing by its id, on links whose answer can be worked out on paper."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fleetscope.analysis.flows import flow_table, key_text, newest_flows, parse_key
from fleetscope.analysis.scope import Scope
from fleetscope.analysis.steps import rank_step_table, step_table
from fleetscope.analysis.stitch import Clock, Edge, Span, in_order, uses
from fleetscope.cli.main import app
from fleetscope.schema.vocabulary import Kind
from fleetscope.sinks.lake.read import Snapshot

pytestmark = pytest.mark.unit
T0 = 1_796_000_000 * 10**9
MS, US = 10**6, 10**3
PRODUCES, CONSUMES, BOTH = 1, 2, 3

Lake = Callable[..., Snapshot]
Link = dict[str, Any]

LOADER, TRAINER, OTHER, LOST = 2, 3, 4, 5
"""Processes: the first two on host 1 with one clock, the others on hosts with clocks of their own."""
_HOST = {LOADER: 1, TRAINER: 1, OTHER: 2, LOST: 3}
_MAP = {1: 11, 2: 12, 3: 13}


def world(links: list[Link], **more: list[Link]) -> dict[str, list[Link]]:
    """Tables: clocks of host 1 (0.5 ns a tick, error 2 us), host 2 (1 us) and host 3 (unknown)."""
    clock = {"x0": 1000, "y0": T0, "n": 1, "d": 2, "period_num": 1, "period_den": 2, "quality": "guaranteed"}
    run = {"run": 9, "run_name": "train", "attempt_name": "a"}
    return {
        "links": links,
        "clock_maps": [
            {**clock, "map": 11, "epoch": 1, "err_ns": 2 * US},
            {**clock, "map": 12, "epoch": 2, "err_ns": 1 * US},
            {**clock, "map": 13, "epoch": 3, "err_ns": -1},
        ],
        "hosts": [{"host": host, "name": f"h{host}"} for host in (1, 2, 3)],
        "processes": [
            {**run, "process": process, "host": _HOST[process], "pid": 100 + process, "attempt": attempt}
            for process, attempt in ((LOADER, 8), (TRAINER, 8), (OTHER, 7), (LOST, 0))
        ],
        "lines": [{"process": TRAINER, "line": 0, "name": "MainThread"}],
        "names": [{"program": number, "name": name} for number, name in enumerate(("load", "train", "send", "get"), 1)],
        **more,
    }


_SEQ = iter(range(10**9))


def link(
    process: int, at_ms: float, dur_ms: float, role: int, number: int, *, name: int = 1, seq: int = -1, **more: Any
) -> Link:
    host = _HOST[process]
    row = {"process": process, "host": host, "map": _MAP[host], "t_ns": T0 + round(at_ms * MS), "program": name}
    row |= {"dur_ns": round(dur_ms * MS), "role": role, "context_id": number, "seq": next(_SEQ) if seq < 0 else seq}
    return {"step": -1, "kind": int(Kind.HOST), **row, **more}


def chain(snapshot: Snapshot, number: int, **scope: Any) -> list[dict[str, Any]]:
    return flow_table(snapshot, Scope(**scope), number).rows.to_pylist()


def test_one_batch_from_its_loader_through_the_step_to_another_host(lake_of: Lake) -> None:
    snapshot = lake_of(
        **world(
            [
                link(LOADER, 0, 10, PRODUCES, 7, t_sub=1),
                link(TRAINER, 15, 20, CONSUMES, 7, name=2, seq=500, step=3, kind=int(Kind.STEP)),
                link(TRAINER, 34, 1, PRODUCES, 8, name=3),  # inside the step, and ends with it
                link(OTHER, 40, 5, CONSUMES, 8, name=4, context_type=0),
                link(LOADER, 11, 9, PRODUCES, 99),  # the next batch, of no concern
                link(TRAINER, 36, 9, CONSUMES, 99, name=2),
            ]
        )
    )
    load, train, send, get = chain(snapshot, 7)
    assert [row["name"] for row in (load, train, send, get)] == ["load", "train", "send", "get"]
    assert [row["after"] for row in (load, train, send, get)] == [[], [1], [2], [3]]
    # t_sub 1 of a clock of two ticks a nanosecond: the first began half a nanosecond later than it says
    assert (train["begin_ns"], train["begin_error_ns"], train["wait_ns"], train["wait_error_ns"]) == (
        15 * MS - 1, 0, 5 * MS - 1, 0
    )  # fmt: skip
    assert (load["order"], train["order"], send["order"], get["order"]) == (None, "clock", "inside", "clock")
    assert (get["begin_ns"], get["begin_error_ns"], get["wait_ns"], get["wait_error_ns"]) == (
        40 * MS, 3 * US, 5 * MS, 3 * US
    )  # fmt: skip
    assert (train["host"], train["pid"], train["thread"], train["step"], train["run"]) == (
        "h1",
        103,
        "MainThread",
        3,
        "train",
    )
    assert (get["host"], get["pid"], get["thread"], get["step"]) == ("h2", 104, None, None)
    assert (train["consumes"], send["produces"], train["dur_ns"]) == (["7"], ["8"], 20 * MS)
    assert [row["name"] for row in chain(snapshot, 8)] == ["load", "train", "send", "get"], "what led to it, too"
    assert [row["name"] for row in chain(snapshot, 8, host="h2")] == ["load", "train", "send", "get"], "wherever it was"
    assert chain(snapshot, 77) == []
    assert newest_flows(snapshot, Scope(), 3) == ["8", "99", "7"]


def test_two_clocks_order_nothing_within_their_errors(lake_of: Lake) -> None:
    snapshot = lake_of(
        **world(
            [
                link(LOADER, 0, 10, PRODUCES, 1), link(OTHER, 10.0029, 1, CONSUMES, 1),
                link(LOADER, 0, 10, PRODUCES, 2), link(OTHER, 10.0031, 1, CONSUMES, 2),
                link(LOADER, 0, 10, PRODUCES, 3), link(LOST, 5000, 1, CONSUMES, 3),
                link(LOADER, 0, 10, PRODUCES, 4), link(TRAINER, 9.999999, 1, CONSUMES, 4),
                # the clocks say that it was got before it was made
                link(LOADER, 10, 1, PRODUCES, 5), link(OTHER, 8.9985, 1, CONSUMES, 5),
            ]
        )
    )  # fmt: skip
    seen = {number: chain(snapshot, number)[-1] for number in (1, 2, 3, 4, 5)}
    assert [(seen[n]["order"], seen[n]["wait_ns"], seen[n]["wait_error_ns"]) for n in (1, 2, 3, 4)] == [
        ("link", 2900, 3000), ("clock", 3100, 3000), ("link", 4_990 * MS, None), ("link", -1, 0),
    ]  # fmt: skip
    made, got = chain(snapshot, 5)
    assert (made["produces"], got["consumes"], got["begin_ns"]) == (["5"], ["5"], -1_001_500)
    assert got["order"] == "link"


def test_an_id_that_is_used_again_is_another_flow(lake_of: Lake) -> None:
    rows = []
    for use in range(3):
        rows += [link(LOADER, 100 * use, 1, PRODUCES, 7), link(TRAINER, 100 * use + 5, 1, CONSUMES, 7)]
    # another run gives the same numbers, at the same time
    rows += [link(OTHER, 202, 1, PRODUCES, 7), link(OTHER, 204, 1, CONSUMES, 7, name=4)]
    snapshot = lake_of(**world(rows))
    found = flow_table(snapshot, Scope(), 7)
    assert (found.uses, [row["host"] for row in found.rows.to_pylist()]) == (4, ["h2", "h2"])
    mine = chain(snapshot, 7, to_ns=T0 + 150 * MS)
    assert [(row["host"], row["began_ns"]) for row in mine] == [("h1", T0 + 100 * MS), ("h1", T0 + 105 * MS)]
    assert len(chain(snapshot, 7, host="h1")) == 2


def test_ranks_that_number_from_0_stay_apart(lake_of: Lake) -> None:
    """Each process has a loader thread and a training thread; batch 3 of one is not batch 3 of the other."""
    rows = []
    for process, late in ((LOADER, 0), (TRAINER, 30), (OTHER, 15)):
        rows += [link(process, late + 0, 4, PRODUCES, 3, line=1), link(process, late + 10, 4, CONSUMES, 3, name=2)]
    snapshot = lake_of(**world(rows))
    found = flow_table(snapshot, Scope(), 3)
    assert (found.uses, [row["pid"] for row in found.rows.to_pylist()]) == (3, [103, 103])
    assert [row["pid"] for row in chain(snapshot, 3, to_ns=T0 + 12 * MS)] == [102, 102]
    assert [row["wait_ns"] for row in chain(snapshot, 3, host="h2")] == [None, 6 * MS]


def test_many_consumers_producers_and_nobody_at_the_other_end(lake_of: Lake) -> None:
    rows = [link(LOADER, 0, 1, PRODUCES, 1)] + [link(TRAINER, 2 + n, 1, CONSUMES, 1) for n in range(5)]
    rows += [link(LOADER, n, 1, PRODUCES, 2) for n in range(4)] + [link(TRAINER, 0, 9, CONSUMES, 2)]
    rows += [link(LOADER, 0, 1, PRODUCES, 3), link(TRAINER, 0, 1, CONSUMES, 4), link(LOST, 9, 1, CONSUMES, 4)]
    snapshot = lake_of(**world(rows))
    assert [row["after"] for row in chain(snapshot, 1)] == [[], [1], [1], [1], [1], [1]]
    *made, got = chain(snapshot, 2)
    assert (len(made), got["after"], got["wait_ns"]) == (4, [1, 2, 3, 4], -4 * MS), "it waited since before the last"
    assert [row["after"] for row in chain(snapshot, 3)] == [[]]
    assert [row["after"] for row in chain(snapshot, 4)] == [[], []], "what made it was not seen"


def test_a_cycle_and_a_span_of_many_links_end(lake_of: Lake) -> None:
    there, back = [(link(LOADER, 0, 9, role, number, seq=900)) for role, number in ((PRODUCES, 1), (CONSUMES, 2))]
    more = [link(TRAINER, 1, 9, role, number, seq=901, name=2) for role, number in ((CONSUMES, 1), (PRODUCES, 2))]
    itself = [link(TRAINER, 20, 1, role, 3, seq=902) for role in (PRODUCES, CONSUMES)]
    snapshot = lake_of(**world([there, back, *more, *itself]))
    assert [(row["name"], row["after"]) for row in chain(snapshot, 1)] == [("load", [2]), ("train", [1])]
    assert [row["after"] for row in chain(snapshot, 3)] == [[]]


def test_spans_with_a_mere_flow_follow_each_other(lake_of: Lake) -> None:
    """FLEETSCOPE_FLOW names no role: as drawn by others, each goes on with the one that began before it."""
    rows = [link(LOADER, 3, 1, BOTH, 6), link(TRAINER, 0, 1, BOTH, 6), link(TRAINER, 8, 1, CONSUMES, 6, name=4)]
    rows.append(link(LOADER, 5, 1, BOTH, 6))
    assert [row["after"] for row in chain(lake_of(**world(rows)), 6)] == [[], [1], [2], [3]]


def test_tasks_that_lie_in_each_other_by_chance_stay_apart(lake_of: Lake) -> None:
    """Two requests of one event loop: the second begins, is answered and ends while the first waits."""
    rows = [link(TRAINER, 0, 50, role, number, seq=800) for role, number in ((CONSUMES, 1), (PRODUCES, 2))]
    rows += [link(TRAINER, 10, 5, role, number, seq=801) for role, number in ((CONSUMES, 3), (PRODUCES, 4))]
    snapshot = lake_of(**world(rows))
    assert len(chain(snapshot, 1)) == 1
    assert len(chain(snapshot, 3)) == 1


def test_what_goes_into_a_batch_comes_before_it(lake_of: Lake) -> None:
    """A batch is produced; the requests in it are consumed inside."""
    rows = [
        link(OTHER, 0, 1, PRODUCES, 1),
        link(TRAINER, 10, 20, PRODUCES, 5, name=2),
        link(TRAINER, 11, 1, CONSUMES, 1),
    ]
    rows += [link(LOADER, 40, 1, CONSUMES, 5, name=3)]
    snapshot = lake_of(**world(rows))
    assert [(row["name"], row["after"]) for row in chain(snapshot, 1)] == [
        ("load", []), ("load", [1]), ("train", [2]), ("send", [3]),
    ]  # fmt: skip


def test_a_long_chain_and_an_id_of_everybody_are_cut_and_say_so(lake_of: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetscope.analysis.links.MOST_LINKS", 2000)
    rows = [link(LOADER, 0, 1, PRODUCES, 0)] + [link(TRAINER, 2, 1, CONSUMES, 0) for _ in range(3000)]
    for n in range(1, 300):  # each step asks for what the next one gets
        rows += [
            link(TRAINER, 10 * n, 1, role, number, seq=10**6 + n) for role, number in ((CONSUMES, n), (PRODUCES, n + 1))
        ]
    snapshot = lake_of(**world(rows))
    whole = flow_table(snapshot, Scope(), 150, limit=20)
    assert (whole.rows.num_rows, whole.more) == (20, True)
    assert {150} <= {int(number) for row in whole.rows.to_pylist() for number in row["consumes"]}
    asked = [int(row["consumes"][0]) for row in whole.rows.to_pylist()]
    assert asked == list(range(min(asked), min(asked) + 20)), "the nearest ones"
    crowd = flow_table(snapshot, Scope(), 0, limit=20)
    assert (crowd.rows.num_rows, crowd.more) == (20, True)


def test_steps_name_what_they_went_on_with(lake_of: Lake) -> None:
    step = {"host": 1, "run": 9, "attempt": 8, "step": 3, "dur_ns": 50 * MS, "source": "declared"}
    rows = [{**step, "process": TRAINER, "rank": 0}, {**step, "process": LOADER, "rank": 1, "dur_ns": 10 * MS}]
    links = [
        link(TRAINER, 1, 1, CONSUMES, 5, step=3), link(TRAINER, 2, 1, CONSUMES, 6, step=3, context_type=11),
        link(LOADER, 0, 1, PRODUCES, 7, step=3), link(LOADER, 1, 1, CONSUMES, 8, step=3, kind=int(Kind.STEP)),
        link(LOADER, 0, 1, CONSUMES, 9, step=3),
    ]  # fmt: skip
    snapshot = lake_of(**world(links), step=rows)
    assert [row["flow"] for row in step_table(snapshot, Scope()).to_pylist()] == ["5"]
    ranks = {row["rank"]: row["flow"] for row in rank_step_table(snapshot, Scope()).to_pylist()}
    assert ranks == {0: "5", 1: "8"}


def test_an_id_as_it_is_typed() -> None:
    assert parse_key("123") == (None, 123)
    assert parse_key("0x7b") == (None, 123)
    assert parse_key(str((1 << 64) - 1)) == parse_key("-1") == (None, -1)
    assert parse_key("batcher:5") == parse_key("10:5") == (10, 5)
    assert [key_text(key) for key in ((0, -1), (10, 5), (99, 5))] == ["-1", "batcher:5", "99:5"]
    for text in ("", "x", "1.5", "nobody:5", f"{1 << 64}", "-9223372036854775809", "-1:5", f"{1 << 24}:5", "batcher:"):
        with pytest.raises(ValueError, match=r"invalid literal|64 bits"):
            parse_key(text)


def test_the_command(lake_of: Lake, tmp_path: Path) -> None:
    lake_of(**world([link(LOADER, 0, 10, PRODUCES, 7), link(TRAINER, 15, 20, CONSUMES, 7, name=2)]))
    there = ["--lake", str(tmp_path / "lake")]
    done = CliRunner().invoke(app, ["steps", "--flow", "7", "-o", "json", *there])
    assert (done.exit_code, [row["name"] for row in json.loads(done.stdout)]) == (0, ["load", "train"])
    shown = CliRunner().invoke(app, ["steps", "--flow", "generic:7", *there])
    assert ("train" in shown.output, "5 ms" in shown.output) == (True, True)
    wrong = CliRunner().invoke(app, ["steps", "--flow", "8", *there])
    assert (wrong.exit_code, "no flow 8 in the lake; the newest are 7" in wrong.output) == (1, True)
    nobody = CliRunner().invoke(app, ["steps", "--flow", "7", "--run", "nobody", *there])
    assert (nobody.exit_code, "no run 'nobody'" in nobody.output) == (1, True)
    for words in (["--flow", "x"], ["--flow", "7", "--ranks"]):
        assert CliRunner().invoke(app, ["steps", *words, *there]).exit_code == 2


def test_hosts_are_ordered_by_the_fleets_clock_where_there_is_one(lake_of: Lake) -> None:
    """The wall clock of host 2 is 3 ms behind: what it took from host 1 seems to have ended before it was made."""
    links = [link(LOADER, 10, 1, PRODUCES, 7), link(OTHER, 9, 1, CONSUMES, 7, name=4)]
    tables = world(links)
    for row in tables["clock_maps"]:
        row |= {"version": 1, "valid_to": 10**15}
    known = {"version": T0 // 10**10, "n": 1, "d": 2, "valid_to": 10**15, "quality": "guaranteed"}
    # Ticks of half a ns -> a host's counter of whole ones -> the fleet.
    for host, (late, lo, hi) in enumerate(((0, -3, 2), (3 * MS, -4, 5)), 1):
        half = {**known, "version": 1, "map": 30 + host, "epoch": host, "ref": 100 + host, "x0": 1000, "y0": 0}
        whole = {**known, "map": 20 + host, "epoch": 100 + host, "y0": T0 + late, "lo_ns": lo * US, "hi_ns": hi * US}
        tables["clock_maps"] += [half, whole | {"d": 1}]
    snapshot = lake_of(**tables)
    (first, second) = flow_table(snapshot, Scope(), 7).rows.to_pylist()
    assert (first["host"], second["host"], second["begin_ns"]) == ("h1", "h2", 2 * MS)
    assert (second["wait_ns"], second["wait_error_ns"], second["order"]) == (MS, 3 * US + 5 * US + 2, "clock")
    (first, second) = flow_table(Snapshot.open(snapshot.store, clock_version=0), Scope(), 7).rows.to_pylist()
    assert (first["host"], second["host"], second["begin_ns"], second["order"]) == ("h1", "h2", -MS, "link")


def test_every_holder_is_in_one_use_and_every_span_in_the_order_once() -> None:
    draw = random.Random(3)
    for _ in range(300):
        spans = []
        for seq in range(draw.randrange(1, 12)):
            produces, consumes = (frozenset({(0, 1)} if draw.random() < 0.5 else ()) for _ in range(2))
            start, dur = draw.randrange(40), draw.randrange(10)
            clock = draw.choice((None, Clock(1, 0, 1, 1), Clock(2, 3, 1, 1)))
            spans.append(
                Span(
                    draw.randrange(3),
                    seq,
                    0,
                    draw.randrange(2),
                    draw.randrange(2),
                    start,
                    start,
                    dur,
                    clock,
                    produces,
                    consumes,
                )
            )
        found = uses(spans, (0, 1))
        members = [
            {s.id for item in use for s in ((item.before, item.after) if isinstance(item, Edge) else (item,))}
            for use in found
        ]
        assert sorted(name for use in members for name in use) == sorted(
            s.id for s in spans if s.produces or s.consumes
        )
        edges = [item for use in found for item in use if isinstance(item, Edge)]
        place = {span.id: n for n, span in enumerate(in_order(spans, edges))}
        assert len(place) == len(spans)
        if not any(span.produces and span.consumes for span in spans):
            assert all(place[edge.before.id] < place[edge.after.id] for edge in edges)
