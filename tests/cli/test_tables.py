"""What a person sees, as text: the tables at several widths, and what programs get instead."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from fleetscope.cli.layout import NARROWEST, Column, lay_out
from fleetscope.cli.output import Format, show, show_records

ROWS = pa.table(
    {
        "run": ["transformer", "simulated"],
        "step_time_ns": pa.array([60_470_000, 263_900_000]),
        "mfu_ratio": pa.array([0.0612, None], pa.float64()),
        "began_ns": pa.array([1_796_000_003_137_000_000, 0]),
        "source": ["/srv/models/train_transformer.py:56", None],
        "count": pa.array([1_234_567, 3]),
        "process": pa.array([-71479535730, 5]),
    }
)
ORDER = ("run", "step_time_ns", "source", "mfu_ratio", "count", "began_ns", "process")

WIDE = """\
runs
run          step time    mfu                    began  source                                   count       process
transformer   60.47 ms  6.1 %  2026-11-30 00:53:23.137  /srv/models/train_transformer.py:56  1,234,567  -71479535730
simulated     263.9 ms      -                     0 ns  -                                            3             5
two notes
"""
AT_72 = """\
runs
run          step time    mfu  source                              count
transformer   60.47 ms  6.1 %  /srv/models/tr…ansformer.py:56  1,234,567
simulated     263.9 ms      -  -                                       3
two notes
"""
AT_53 = """\
runs
run          step time  source
transformer   60.47 ms  /srv/models/tr…nsformer.py:56
simulated     263.9 ms  -
two notes
"""


def _shown(width: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.delenv("COLUMNS", raising=False)
    if width is not None:
        monkeypatch.setenv("COLUMNS", str(width))
    show(ROWS, Format.TABLE, "runs", columns=ORDER, notes=["two notes"])
    captured = capsys.readouterr()
    return captured.out, captured.err


@pytest.mark.golden
def test_a_pipe_gets_every_column_on_lines_as_long_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _shown(None, capsys, monkeypatch) == (WIDE, "")


@pytest.mark.golden
def test_a_terminal_gets_what_fits_and_is_told_what_did_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = _shown(72, capsys, monkeypatch)
    assert out == AT_72
    assert err == "left out: began, process (a wider terminal, or -o json)\n"
    out, err = _shown(53, capsys, monkeypatch)
    assert out == AT_53
    assert "mfu, began, count, process" in err


@pytest.mark.unit
def test_nothing_is_data_on_stdout_when_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    none = ROWS.slice(0, 0)
    show(none, Format.TABLE, "runs", notes=["no run 'x'"])
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "no run 'x'\n")
    show(none, Format.JSON)
    assert json.loads(capsys.readouterr().out) == []
    show(none, Format.CSV)
    assert capsys.readouterr().out == ",".join(ROWS.column_names) + "\n"


@pytest.mark.unit
def test_programs_get_numbers_maps_and_nulls(capsys: pytest.CaptureFixture[str]) -> None:
    rows = pa.table(
        {
            "t_ns": [1 << 60],
            "share": [float("nan")],
            "by": pa.array([[("spool_full", 4)]], pa.map_(pa.string(), pa.int64())),
            "gaps": [[{"first": 1, "last": 2}]],
            "at": pa.array([1_796_000_003_137_000_001], pa.timestamp("ns")),
            "blob": [b"\x00\xff"],
        }
    )
    show(rows, Format.JSON)
    (found,) = json.loads(capsys.readouterr().out)
    assert found == {
        "t_ns": 1 << 60,
        "share": None,
        "by": {"spool_full": 4},
        "gaps": [{"first": 1, "last": 2}],
        "at": "2026-11-30 00:53:23.137000001",
        "blob": "00ff",
    }
    show(rows, Format.CSV)
    assert capsys.readouterr().out.splitlines()[1] == (
        f'{1 << 60},,"{{""spool_full"": 4}}","[{{""first"": 1, ""last"": 2}}]",2026-11-30 00:53:23.137000001,00ff'
    )


@pytest.mark.golden
def test_a_query_too_wide_for_the_terminal_is_shown_field_by_field(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    show_records(ROWS.slice(0, 1), Format.TABLE)
    assert capsys.readouterr().out == (
        "row 1\n"
        "  run           transformer\n"
        "  step_time_ns  60.47 ms\n"
        "  mfu_ratio     6.1 %\n"
        "  began_ns      2026-11-30 00:53:23.137\n"
        "  source        /srv/models/train_transformer.py:56\n"
        "  count         1,234,567\n"
        "  process       -71479535730\n"
    )
    show_records(ROWS.select(["run", "count"]), Format.TABLE)
    assert capsys.readouterr().out.splitlines()[0] == "run              count"


@pytest.mark.unit
def test_columns_of_one_name_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    show(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), Format.JSON)
    assert json.loads(capsys.readouterr().out) == [{"a": 1, "a_1": 2}]


_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=40)


@pytest.mark.property
@given(
    st.lists(st.tuples(_TEXT, st.booleans(), st.integers(0, 5)), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(20, 100),
)
def test_lines_fit_and_numbers_are_whole(kinds: list[tuple[str, bool, int]], rows: int, width: int) -> None:
    columns = [
        Column(f"c{at}", tuple(str(10**at) if right else text + "x" * row for row in range(rows)), right, rank)
        for at, (text, right, rank) in enumerate(kinds)
    ]
    laid = lay_out(columns, width)
    assert len(laid.lines) == rows + 1
    assert all(line == line.rstrip() for line in laid.lines)
    kept = [column for column in columns if column.heading not in laid.left_out]
    assert kept
    if len(kept) > 1 or kept[0].right is False:
        assert all(cell_len(line) <= max(width, NARROWEST) for line in laid.lines)
    for column in kept:
        if column.right:
            assert all(text in line for text, line in zip(column.cells, laid.lines[1:], strict=True))
    worst = max((column.rank for column in kept), default=0)
    assert all(column.rank >= min(c.rank for c in kept) for column in columns if column.heading in laid.left_out)
    assert worst <= max(column.rank for column in columns)
    assert lay_out(columns, None).left_out == ()


@pytest.mark.e2e
@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_terminal_gets_bold_headings_unless_it_says_no(
    tmp_path: Path, variables: dict[str, str], coloured: bool
) -> None:
    ours, theirs = pty.openpty()
    code = (
        "import pyarrow as pa; from fleetscope.cli.output import Format, show;"
        "show(pa.table({'name': ['x']}), Format.TABLE, 'names')"
    )
    keep = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    try:
        subprocess.run(
            [sys.executable, "-c", code], stdout=theirs, check=True, cwd=tmp_path, timeout=60,
            env={**keep, "TERM": "xterm", **variables},
        )  # fmt: skip
        text = os.read(ours, 4096).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert ("\x1b[1m" in text) is coloured
    assert "names" in text
