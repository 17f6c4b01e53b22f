"""Spans and instants of the command line, exit codes, cells: what a person types and reads."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import typer

from fleetscope.cli import exits, scope
from fleetscope.cli.cells import cell, printable
from fleetscope.cli.output import Format, show
from fleetscope.schema import errors

pytestmark = pytest.mark.unit
NOW = 1_800_000_000 * 10**9


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1800000000", NOW),
        ("-15m", NOW - 15 * 60 * 10**9),
        ("2027-01-15T08:00:00", NOW),
        ("2027-01-15T08:00:00+00:00", NOW),
        ("2027-01-15T09:00:00+01:00", NOW),
    ],
)
def test_instants(text: str, ns: int) -> None:
    assert scope.instant_ns(text, NOW) == ns


@pytest.mark.parametrize("text", ["yesterday", "15 parsecs", "", "-15x", "2027-13-01"])
def test_what_is_no_time_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        scope.instant_ns(text, NOW)


def test_last_and_from_exclude_each_other_and_an_empty_range_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="twice"):
        scope.scope_of(None, None, "-1h", None, "15m")
    with pytest.raises(typer.BadParameter, match="not before"):
        scope.scope_of(None, None, "-1h", "-2h", None)
    found = scope.scope_of("r", "h", None, None, "15m")
    assert found.to_ns is None
    assert found.from_ns is not None


@pytest.mark.parametrize(
    ("name", "code"),
    [("ConfigInvalid", 2), ("BrokerUnavailable", 69), ("BufferFull", 75), ("LakeMissing", 69), ("DeliveryUnknown", 75)],
)
def test_exit_codes_say_what_a_caller_can_do(name: str, code: int) -> None:
    assert exits.exit_code(getattr(errors, name)("why")) == code


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("step_time_ns", 20_100_000, "20.1 ms"),
        ("dur_ns", 12, "12 ns"),
        ("busy_ratio", 0.865, "86.5 %"),
        ("size_bytes", 3_145_728, "3.15 MB"),
        ("flops", 1_626_718_863_360, "1.63 TFLOP"),
        ("mfu_ratio", None, "-"),
        ("name", "a\nb\x1b[31m[bold]\0", "a\\nb\\x1b[31m[bold]\\x00"),
    ],
)
def test_cells(name: str, value: object, text: str) -> None:
    assert cell(name, value) == text


def test_names_cannot_move_the_cursor_and_markup_is_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = pa.table(
        {"name": ["\x1b[2J", "[red]x[/red]", "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace")]}
    )
    show(rows, Format.TABLE)
    out = capsys.readouterr().out
    assert "\x1b[2J" not in out
    assert "\\x1b[2J" in out
    assert "[red]x[/red]" in out
    assert printable("\u202e") == "\\u202e"


def test_json_and_csv_carry_numbers_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    rows = pa.table({"t_ns": [1 << 60], "name": ["a,b"]})
    show(rows, Format.JSON)
    assert json.loads(capsys.readouterr().out) == [{"t_ns": 1 << 60, "name": "a,b"}]
    show(rows, Format.CSV)
    assert capsys.readouterr().out.splitlines() == ["t_ns,name", f'{1 << 60},"a,b"']


def _fleetscope(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fleetscope.cli.main", *args], cwd=cwd, capture_output=True, text=True, timeout=60
    )


@pytest.mark.e2e
def test_the_command_keeps_its_exit_codes_and_stdout_for_data(tmp_path: Path) -> None:
    absent = _fleetscope("runs", "--lake", str(tmp_path / "none"), cwd=tmp_path)
    assert (absent.returncode, absent.stdout) == (69, "")
    assert "FS" in absent.stderr
    usage = _fleetscope("runs", "--nonsense", cwd=tmp_path)
    assert usage.returncode == 2
    (tmp_path / "bad.yaml").write_text("lake: {pth: x}\n")
    bad = _fleetscope("config", "check", "bad.yaml", cwd=tmp_path)
    assert bad.returncode == 2
    assert "nearest is 'lake.path'" in bad.stderr
    good = _fleetscope("config", "schema", cwd=tmp_path)
    assert good.returncode == 0
    assert "properties" in json.loads(good.stdout)


def test_logs_of_the_kafka_client_stay_off_unless_asked_for() -> None:
    """An outage of the broker gave nine lines a second, for as long as it lasted."""
    script = (
        "import logging; from fleetscope.cli.roles import start_logging; start_logging({verbose}); "
        "import fleetscope.transport.kafka; print(logging.getLogger('kafka').getEffectiveLevel())"
    )
    for verbose, level in ((False, logging.CRITICAL), (True, logging.DEBUG)):
        done = subprocess.run(
            [sys.executable, "-c", script.format(verbose=verbose)], capture_output=True, text=True, timeout=60
        )
        assert done.stdout.strip() == str(level), done.stderr
