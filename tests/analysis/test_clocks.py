"""`fleetscope clocks` on maps made by hand, whose answers can be worked out on paper."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fleetscope.analysis.arrivals import Arrivals, ranking
from fleetscope.cli.main import app
from fleetscope.schema.vocabulary import Kind

pytestmark = pytest.mark.unit
T0 = 1_796_000_000 * 10**9
HOP = T0 // 10**10
US, MS, SECOND = 10**3, 10**6, 10**9
H1, H2, H3 = 1, 2, 3
WRITER = {1: 11, 2: 12, 3: 13}
"""Host -> the segment its rows were written with."""
AHEAD = {1: 0, 2: 3 * MS, 3: -2 * MS}
"""Wall clocks against fleet time."""
RAW = 5_000 * SECOND


def wall(host: int, **more: Any) -> dict[str, Any]:
    line = {"x0": RAW, "y0": T0 + AHEAD[host], "n": 1, "d": 1, "valid_from": RAW, "valid_to": RAW + 9 * SECOND}
    return {
        "map": WRITER[host], "epoch": 100 + host, "host": host, "clock": "monotonic_raw", "version": 1, "err_ns": US,
        "quality": "unsynced", "period_num": 1, "period_den": 1, **line, **more,
    }  # fmt: skip


def solved(name: int, host: int, version: int, begin_s: int, end_s: int, **more: Any) -> dict[str, Any]:
    """fleet = T0 + (raw - RAW), 10 ppm slower than host 2's counter."""
    d = {H2: 1_000_010_000}.get(host, 1_000_000_000)
    made = {"x0": RAW, "y0": T0, "n": 1_000_000_000, "d": d, "valid_from": RAW + begin_s * SECOND}
    return {
        "map": name, "epoch": 100 + host, "host": host, "clock": "monotonic_raw", "version": version, **made,
        "valid_to": RAW + end_s * SECOND, "quality": "guaranteed", "lo_ns": -8 * US, "hi_ns": 9 * US, "sigma_ns": 700,
        "err_ns": 9 * US, "method": "filter", "reference": 101, "period_num": 1, "period_den": 1, **more,
    }  # fmt: skip


def span(host: int, seq: int, at_ns: int, dur_ns: int, **more: Any) -> dict[str, Any]:
    """Of process 10 + host; `at_ns`: since T0 by the fleet's clock."""
    return {"process": 10 + host, "seq": seq, "host": host, "t_ns": T0 + at_ns + AHEAD[host], "dur_ns": dur_ns,
            "map": WRITER[host], "step": -1, **more}  # fmt: skip


@pytest.fixture
def ask(lake_of: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """`ask(words, code=0, **tables)`: what a command answers about a lake of these rows and three hosts."""
    made: dict[str, bool] = {}

    def run(*words: str, code: int = 0, text: bool = False, **tables: list[dict[str, Any]]) -> Any:
        if not made:
            hosts = [{"host": host, "name": f"h{host}", "labels": []} for host in (H1, H2, H3)]
            processes = [
                {"process": 10 + host, "host": host, "rank": host - 1, "run": 9, "attempt": 8, "run_name": "train",
                 "attempt_name": "a"} for host in (H1, H2, H3)
            ]  # fmt: skip
            lake_of(hosts=hosts, processes=processes, **tables)
            made["lake"] = True
        shown = CliRunner().invoke(
            app, ["clocks", *words, "--lake", str(tmp_path / "lake"), *([] if text else ["-o", "json"])]
        )
        assert shown.exit_code == code, shown.output
        return shown.output if text or code else json.loads(shown.stdout)

    return run


MAPS = [
    *(wall(host) for host in (H1, H2, H3)),
    *(solved(20 + host, host, HOP + 7, 0, 10, final=True, method="smoother") for host in (H1, H2)),
    solved(32, H2, HOP + 7, 60, 70, lo_ns=-20 * US, y0=T0),
    solved(31, H1, HOP + 7, 60, 70),
    solved(33, H3, HOP + 7, 60, 70, quality="statistical", lo_ns=0, hi_ns=0, err_ns=-1, sigma_ns=4_000),
]  # fmt: skip


def test_hosts_with_offset_drift_bound_quality_step_and_edge(ask: Callable[..., Any]) -> None:
    verdicts = [
        {"verdict": 1, "host": H2, "kind": "step", "t_ns": T0 + 30 * SECOND, "end_ns": T0 + 40 * SECOND,
         "size_ns": 200 * US, "version": HOP + 3},
        {"verdict": 2, "host": H2, "kind": "step", "t_ns": T0 + 20 * SECOND, "size_ns": 50 * US, "version": HOP + 2},
        {"verdict": 3, "host": H3, "kind": "contradiction", "t_ns": T0 + 60 * SECOND, "size_ns": 9 * US,
         "hosts": [H1, H3], "version": HOP + 7},
    ]  # fmt: skip
    edges = [
        {"host": H1, "peer": H2, "asymmetry_ns": 4 * US, "hops": 9},
        {"host": H1, "peer": H3, "asymmetry_ns": -7 * US},
    ]
    rows = {row["host"]: row for row in ask(clock_maps=MAPS, clock_verdicts=verdicts, clock_edges=edges)}
    assert list(rows) == ["h3", "h2", "h1"]  # the least certain first
    shown = {name: [row[name] for row in rows.values()] for name in rows["h1"]}
    assert shown["quality"] == ["statistical", "guaranteed", "guaranteed"]
    assert shown["bound_ns"] == [None, 20 * US, 9 * US]
    assert shown["drift_ppm"] == pytest.approx([0, 10, 0], abs=1e-6)
    assert shown["offset_ns"] == [None, 3 * MS + 90 * US, 0]  # 10 ppm of 9 s is 90 us
    assert (shown["step_ns"], shown["steps"]) == ([None, 200 * US, None], [0, 2, 0])
    assert shown["quarantined"] == ["contradiction", None, None]
    assert shown["worst_peer"] == ["h1", "h1", "h3"]
    assert shown["worst_asymmetry_ns"] == [7 * US, -4 * US, -7 * US]
    assert shown["reference"] == ["h1"] * 3

    told = ask("explain", "h3")
    assert told["verdicts"] == [
        {"from_ns": T0 + 60 * SECOND, "end_ns": 0, "kind": "contradiction", "size_ns": 9 * US, "proof": ["h1", "h3"]}
    ]
    assert [(row["host"], row["peer"]) for row in told["edges"]] == [("h1", "h3")]
    assert [(row["from_ns"], row["quality"], row["lo_ns"]) for row in told["maps"]] == [
        (T0 + 60 * SECOND, "statistical", None)
    ]
    assert "h9" in ask("explain", "h9", code=1, text=True)
    assert [row["asymmetry_ns"] for row in ask("edges")] == [-7 * US, 4 * US]


def test_a_lake_without_solved_clocks_says_what_is_missing(ask: Callable[..., Any]) -> None:
    assert ask(clock_maps=[wall(H1)]) == []
    assert "agent.probes" in ask(text=True)


def test_an_impossible_map_is_named(ask: Callable[..., Any]) -> None:
    wrong = [solved(41, H1, HOP, 0, 10, lo_ns=10 * US), solved(42, H1, HOP, 0, 10, d=5), solved(43, H1, HOP, 0, 10)]
    assert "maps left out that cannot be: 1 (interval), 1 (rate)" in ask(clock_maps=[wall(H1), *wrong], text=True)


ORDERS = {
    # apart (end to begin), both bounds: h1 is at most 9 us early... -8 - 9 = 17 us either way
    "before": (span(H1, 1, 1 * MS, 100 * US), span(H2, 1, 1 * MS + 117 * US + 11 * US, 5 * US)),
    "after": (span(H1, 1, 2 * MS, 100 * US), span(H2, 1, 1 * MS, 5 * US)),
    "concurrent": (span(H1, 1, 1 * MS, 100 * US), span(H2, 1, 1 * MS + 116 * US, 5 * US)),
}


@pytest.mark.parametrize("word", sorted(ORDERS))
def test_order_is_claimed_only_beyond_both_bounds(ask: Callable[..., Any], word: str) -> None:
    maps = [*(wall(host) for host in (H1, H2, H3)), solved(21, H1, HOP, 0, 10), solved(22, H2, HOP, 0, 10, d=10**9)]
    (row,) = ask("order", "11:1", "12:1", clock_maps=maps, spans=list(ORDERS[word]))
    assert (row["order"], row["within_ns"]) == (word, 17 * US)
    (row,) = ask("order", "12:1", "11:1")
    assert row["order"] == {"before": "after", "after": "before"}.get(word, word)
    # by wall clocks, 3 ms apart, the second would be after the first whatever happened: that is not claimed
    (row,) = ask("order", "11:1", "12:1", "--clock-version", "0")
    assert (row["order"], row["within_ns"]) == ("unknown", None)
    assert "placed by its own wall clock" in row["why"]
    assert "no span 12:7" in ask("order", "11:1", "12:7", code=1, text=True)
    assert "PROCESS:SEQ" in ask("order", "11", "12:7", code=2, text=True)


def test_one_clock_or_a_link_need_no_bound(ask: Callable[..., Any]) -> None:
    made = {"role": 1, "context_id": 77, "process": 11, "seq": 3, "host": H1, "map": 11, "t_ns": T0}
    took = {"role": 2, "context_id": 77, "process": 13, "seq": 1, "host": H3, "map": 13, "t_ns": T0 - 5 * MS}
    spans = [span(H1, 1, 0, 10), span(H1, 2, 11, 10), span(H1, 3, 0, 10), span(H3, 1, -3 * MS, 10)]
    (row,) = ask("order", "11:1", "11:2", clock_maps=[wall(H1), wall(H3)], spans=spans, links=[made, took])
    assert (row["order"], row["apart_ns"]) == ("concurrent", 1)  # a tick is a ns: 1 ns apart is not beyond it
    assert "one clock" in row["why"]
    (row,) = ask("order", "11:3", "13:1")
    assert (row["order"], row["within_ns"]) == ("before", None)
    assert "link" in row["why"]


def collective(host: int, step: int, at_ns: int, dur_ns: int) -> dict[str, Any]:
    return span(host, 10 * step, step * 100 * MS + at_ns, dur_ns, kind=int(Kind.COLLECTIVE), step=step, program=5, op=1)


def test_a_host_is_blamed_only_beyond_the_others_intervals(ask: Callable[..., Any]) -> None:
    """Three ranks, ten steps; h3 is 40 us late in four of them, 4 us in six: within what clocks may be off."""
    spans = []
    for step in range(10):
        late = 40 * US if step < 4 else 4 * US
        end = 100 * US
        spans += [
            collective(H1, step, 0, end),
            collective(H2, step, US, end - US),
            collective(H3, step, late, end - late),
        ]
    maps = [*(wall(host) for host in (H1, H2, H3)), *(solved(20 + h, h, HOP, 0, 10, d=10**9) for h in (H1, H2, H3))]
    rows = ask("stragglers", "--run", "train", clock_maps=maps, spans=spans)
    assert [(row["host"], row["last"], row["proved"], row["collectives"]) for row in rows] == [
        ("h3", 10, 4, 10), ("h1", 0, 0, 10), ("h2", 0, 0, 10)
    ]  # fmt: skip
    # the last of the others is h2, 1 us late; what both may be off: 8 + 9 us
    assert (rows[0]["late_at_least_ns"], rows[0]["within_ns"]) == (39 * US - 17 * US, 17 * US)
    # by wall clocks h2 seems 3 ms ahead, h3 2 ms behind: of 3 pairs in 10 collectives all are impossible
    said = ask("stragglers", "--run", "train", text=True)
    assert (
        "of 30 pairs of ranks that met, one seems to have left before the other came in 30 by wall clocks and 0" in said
    )
    assert "by the fleet's (0 beyond its bounds)" in said
    assert "no run 'trian' in the lake; there is train" in ask("stragglers", "--run", "trian", code=1, text=True)
    assert "no host 'h9'" in ask("stragglers", "--host", "h9", code=1, text=True)
    assert "no collective that two ranks met in" in ask("stragglers", "--run", "train", "--to", "2020-01-01", text=True)


def arrivals(which: Any, who: Any, t_ns: Any, proved: Any, err_ns: int = 10) -> Arrivals:
    nothing, bound = np.zeros(len(which), np.int64), np.full(len(which), err_ns)
    return Arrivals(which, who, t_ns, t_ns, nothing, -bound, bound + who, proved, np.ones(len(which), bool))


@pytest.mark.parametrize("seed", range(8))
def test_ranking_is_what_its_definition_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 400
    rows = arrivals(
        rng.integers(0, 150, count), rng.integers(0, 5, count), rng.permutation(count) * 7, rng.random(count) < 0.9
    )
    met: dict[int, dict[int, tuple[int, bool]]] = {}
    columns = (part.tolist() for part in (rows.which, rows.who, rows.t_ns, rows.proved))
    for which, who, t_ns, proved in zip(*columns, strict=True):
        ranks = met.setdefault(which, {})
        ranks[who] = max(ranks.get(who, (t_ns, proved)), (t_ns, proved))
    expected: dict[int, Counter[str]] = {}
    for ranks in met.values():
        if len(ranks) > 1:
            last = max(ranks, key=lambda who: ranks[who][0])
            end = max(t_ns + 10 + who for who, (t_ns, _) in ranks.items() if who != last)
            blamed = all(proved for _, proved in ranks.values()) and ranks[last][0] - 10 > end
            for who in ranks:
                expected.setdefault(who, Counter())["collectives"] += 1
            expected[last] += Counter(last=1, proved=int(blamed))
    found = ranking(rows)
    assert {who: {name: told[name] for name in ("collectives", "last", "proved")} for who, told in found.items()} == {
        who: {name: told[name] for name in ("collectives", "last", "proved")} for who, told in expected.items()
    }
    assert ranking(arrivals(np.arange(count), *(getattr(rows, name) for name in ("who", "t_ns", "proved")))) == {}


def test_ranking_takes_time_in_proportion_to_rows() -> None:
    """In proportion to their square this took 20 s."""
    count = 400_000
    which, who = np.divmod(np.arange(count), 2)
    began = time.process_time()
    found = ranking(arrivals(which, who, 100 * np.arange(count), np.ones(count, bool)))
    assert time.process_time() - began < 10
    assert (found[0]["proved"], found[1]["proved"]) == (0, count // 2)
