"""The commands as a person or a script meets them: exit codes, what is on stdout and what on stderr."""

import csv
import io
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fleetscope.cli import doctor
from fleetscope.cli.main import app
from fleetscope.schema.config import load

pytestmark = pytest.mark.e2e

QUESTIONS = ("top", "runs", "ops", "steps", "devices", "ledger")


class Fleet(Protocol):
    home: Path
    lake: Path


@pytest.fixture
def ask(small_fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`ask("runs", "--last", "1h")`: a command on the small fleet's lake, in this process."""
    monkeypatch.setenv("FLEETSCOPE_HOME", str(small_fleet.home))
    monkeypatch.delenv("COLUMNS", raising=False)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def _fleetscope(*words: str | Path, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The same as a process of its own."""
    import os

    return subprocess.run(
        [sys.executable, "-m", "fleetscope.cli.main", *map(str, words)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "FLEETSCOPE_HOME": str(home), **more},
    )  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_in_three_forms(ask: Callable[..., Result], question: str) -> None:
    lossy = 1 if question == "ledger" else 0
    table, as_json, as_csv = (ask(question, "-o", form, "-n", "3") for form in ("table", "json", "csv"))
    assert (table.exit_code, as_json.exit_code, as_csv.exit_code) == (lossy,) * 3
    rows = json.loads(as_json.stdout)
    assert 0 < len(rows) <= 3
    parsed = list(csv.DictReader(io.StringIO(as_csv.stdout)))
    assert [list(row) for row in parsed] == [list(row) for row in rows]
    numbers = [name for name, value in rows[0].items() if isinstance(value, int)]
    assert numbers
    assert all(int(parsed[0][name]) == rows[0][name] for name in numbers)
    assert len(table.stdout.splitlines()) >= 2 + len(rows)
    assert "_ns" not in table.stdout.splitlines()[1]


def test_runs_for_a_person(ask: Callable[..., Result]) -> None:
    title, heading, line = ask("runs").stdout.splitlines()
    assert title == "runs"
    assert heading.split()[:6] == ["run", "attempt", "state", "ranks", "hosts", "devices"]
    assert line.split()[:6] == ["small", "small-1", "ended", "3", "3", "6"]
    assert line.rstrip().split()[-2].startswith("2026-11-30")


def test_windows_of_a_run_nobody_heard_of_are_switched_with_a_warning(
    ask: Callable[..., Result], tmp_path: Path
) -> None:
    off = [ask("windows", "off", name, "--log", f"file://{tmp_path}/log") for name in ("smal", "small")]
    assert [(done.exit_code, done.stdout) for done in off] == [
        (0, "windows of smal off: operator\n"), (0, "windows of small off: operator\n")
    ]  # fmt: skip
    assert "no run 'smal' in the lake; there is small" in off[0].stderr
    assert off[1].stderr == ""


def test_devices_put_the_throttled_chip_first(ask: Callable[..., Result]) -> None:
    lines = ask("devices").stdout.splitlines()
    assert lines[2].split()[:3] == ["small", "sim-001", "/device:TPU:0"]
    assert all(" 0.0 %" in line for line in lines[3:])


def test_the_ledger_is_a_finding_where_events_are_lost(ask: Callable[..., Result]) -> None:
    everything = ask("ledger")
    assert everything.exit_code == 1
    assert "in open gaps" in everything.stdout.splitlines()[-1]
    assert everything.stdout.splitlines()[2].split()[:2] == ["small", "sim-000"]
    assert ask("ledger", "--host", "sim-001").exit_code == 0


def test_steps_by_rank(ask: Callable[..., Result]) -> None:
    assert "slowest host" in ask("steps", "-n", "1").stdout
    ranks = json.loads(ask("steps", "--ranks", "-o", "json").stdout)
    assert {row["rank"] for row in ranks[:9]} == {0, 1, 2}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_wrong_name_is_a_finding_that_says_what_there_is(ask: Callable[..., Result], question: str) -> None:
    wrong = ask(question, "--run", "smal", "-o", "json")
    assert (wrong.exit_code, json.loads(wrong.stdout)) == (1, [])
    assert wrong.stderr == "no run 'smal' in the lake; there is small, small-1\n"
    nothing = ask(question, "--run", "small", "--to", "2020-01-01")
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "nothing in this time range\n")


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "--last", "5x"),
        ("runs", "--from", "yesterday"),
        ("runs", "--last", "1h", "--from", "-5m"),
        ("runs", "--from", "-1h", "--to", "-2h"),
        ("runs", "-n", "0"),
        ("runs", "-o", "xml"),
        ("run",),
        ("nonsense",),
        ("query", "selec"),
        ("query", "select * from nosuch"),
        ("simulate", "--fault", "meteor"),
        ("simulate", "--speed", "fast"),
        ("simulate", "--speed", "-1"),
        ("doctor", "--config", "/nosuch.yaml"),
        ("demo", "--seconds", "1"),
    ],
)
def test_wrong_words_are_exit_code_2_and_nothing_on_stdout(ask: Callable[..., Result], words: tuple[str, ...]) -> None:
    wrong = ask(*words)
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert wrong.stderr


def test_queries(ask: Callable[..., Result]) -> None:
    counted = ask("query", "SELECT count(*) AS n FROM spans_named WHERE run_name = 'small'", "-o", "csv")
    assert counted.exit_code == 0
    assert int(counted.stdout.splitlines()[1]) > 10_000
    named = ask("query", "SELECT name, sum(dur_ns) FROM spans_named GROUP BY name ORDER BY 2 DESC LIMIT 5")
    assert len(named.stdout.splitlines()) == 6
    silent = ask("query", "CREATE VIEW v AS SELECT 1")
    assert silent.exit_code == 0


def test_no_lake_is_unavailable_and_an_empty_one_is_not(tmp_path: Path, ask: Callable[..., Result]) -> None:
    for question in (*QUESTIONS, "query"):
        words = (question, "SELECT 1") if question == "query" else (question,)
        absent = ask(*words, "--lake", tmp_path / "none")
        assert (absent.exit_code, absent.stdout) == (69, "")
        assert "FS6001" in absent.stderr
        if question != "query":
            empty = ask(question, "--lake", tmp_path, "-o", "json")
            assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "[]\n", "the lake is empty\n")
    assert ask("lake", "info", "--lake", tmp_path).exit_code == 0
    (tmp_path / "file").touch()
    assert ask("runs", "--lake", tmp_path / "file").exit_code == 69


def test_lake_info_lists_tables_with_units_and_times(ask: Callable[..., Result]) -> None:
    lines = ask("lake", "info").stdout.splitlines()
    assert "generation 1 (chains: 1)" in lines[0]
    assert "round 1, 0 epochs committed since" in lines[0]
    spans = next(line for line in lines if line.startswith("spans "))
    assert " B" in spans
    assert "2026-11-30 00:5" in spans


def test_a_reader_that_goes_away_is_no_error(small_fleet: Fleet) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "fleetscope.cli.main", "query", "SELECT * FROM spans", "-o", "csv", "--lake",
         str(small_fleet.lake)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"t_ns,")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_roles_that_have_nothing_to_talk_to(ask: Callable[..., Result], tmp_path: Path) -> None:
    for words in (("worker", "--once"), ("coordinator", "--once"), ("import", tmp_path / "x"), ("simulate",)):
        done = ask(*words, "--log", "kafka://127.0.0.1:1")
        assert (done.exit_code, done.stdout) == (69, ""), done.stderr
        assert "FS" in done.stderr
    assert ask("worker", "--once", "--log", "ftp://x").exit_code == 2


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = _fleetscope("exporter", "--address", address, home=tmp_path)
    assert done.returncode == 69
    assert "FS5901" in done.stderr
    assert address in done.stderr


@pytest.mark.parametrize("document", ["nonsense", "- 1", ": : :", "worker: {epoch_s: fast}", "log: {url: 'ftp://x'}"])
def test_a_bad_configuration_is_a_usage_error_that_names_the_file_or_key(
    ask: Callable[..., Result], tmp_path: Path, document: str
) -> None:
    (tmp_path / "bad.yaml").write_text(document)
    wrong = ask("config", "check", tmp_path / "bad.yaml")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "bad.yaml" in wrong.stderr or "log.url" in wrong.stderr


# ---- doctor


def _findings(home: Path, **sections: dict[str, object]) -> dict[str, doctor.Finding]:
    return {finding.check: finding for finding in doctor.examine(load(state_dir=home, **sections))}


def test_a_new_machine_is_well_and_doctor_leaves_it_as_it_was(tmp_path: Path) -> None:
    found = _findings(tmp_path / "state", exporter={"address": "127.0.0.1:1"})
    assert not any(finding.ok is False for finding in found.values()), found
    assert {name for name, finding in found.items() if finding.ok is None} >= {
        "agent", "log", "lake", "worker", "coordinator", "exporter",
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_the_small_fleet_is_well(small_fleet: Fleet) -> None:
    found = _findings(small_fleet.home, exporter={"address": "127.0.0.1:1"})
    assert all(found[check].ok for check in ("log", "lake", "worker", "coordinator")), found
    assert found["worker"].detail == "generation 1 (chains: 1), 0 messages wait"
    dealt = _findings(small_fleet.home, exporter={"address": "127.0.0.1:1"}, worker={"chain_count": 2})["worker"]
    assert not dealt.ok
    assert dealt.detail.endswith("but worker.chain_count is 2: the next worker deals them anew")
    escaped = _findings(
        small_fleet.home, exporter={"address": "127.0.0.1:1"}, log={"url": f"file://{small_fleet.home}/%6cog"}
    )
    assert escaped["log"].ok  # the same folder


def test_what_is_broken_is_said(small_fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lake").touch()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "agent.sock"))
    broken = {"log": {"url": "kafka://127.0.0.1:1"}, "agent": {"shm_dir": str(tmp_path / "none")}}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(0)
        found = _findings(tmp_path, **broken, exporter={"address": f"127.0.0.1:{silent.getsockname()[1]}"})
    assert {check: finding.ok for check, finding in found.items()} | {"python": True} == {
        "python": True, "native code": True, "clock source": found["clock source"].ok, "shared memory": False,
        "state folder": True, "agent": False, "log": False, "lake": False, "worker": None, "coordinator": None,
        "exporter": None,
    }  # fmt: skip
    assert "nobody answers" in found["agent"].detail
    assert "FS2001" in found["log"].detail
    monkeypatch.setattr(doctor, "DISK_FLOOR_BYTES", 1 << 60)
    full = _findings(tmp_path)["state folder"]
    assert (full.ok, "less than" in full.detail) == (False, True)
    gone = _findings(tmp_path, lake={"path": str(small_fleet.lake)})["worker"]
    assert (gone.ok, "is not there" in gone.detail) == (False, True)


def test_doctor_is_a_finding_when_something_is_wrong(ask: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sick = ask("doctor", "--lake", tmp_path / "file", "-o", "json")
    assert sick.exit_code == 1
    assert {row["check"]: row["result"] for row in json.loads(sick.stdout)}["lake"] == "WRONG"


# ---- run


def test_run_hands_over_everything_and_keeps_the_programs_exit_code(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    (tmp_path / "f.yaml").write_text(f"agent: {{shm_dir: {shm}, socket: {tmp_path}/a.sock}}")
    code = (
        "import os, sys; print(os.environ['FLEETSCOPE_AGENT__SHM_DIR'], os.environ['FLEETSCOPE_AGENT_SOCKET'],"
        "os.environ['FLEETSCOPE_RUN'], os.environ['FLEETSCOPE_RANK'], os.environ['FLEETSCOPE_FLOPS_PER_STEP'],"
        "sys.argv[1:]); sys.exit(7)"
    )
    words = (
        "--run",
        "mine",
        "--rank",
        "3",
        "--flops-per-step",
        "6.2e15",
        "-c",
        tmp_path / "f.yaml",
        "--",
        sys.executable,
        "-c",
        code,
        "--flag",
        "x",
    )
    done = _fleetscope("run", *words, home=tmp_path)
    assert done.returncode == 7
    assert done.stdout == f"{shm} {tmp_path}/a.sock mine 3 6200000000000000.0 ['--flag', 'x']\n"
    assert f"no agent at {tmp_path}/a.sock" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "no program"),
        (("nosuchprogram",), 69, "no such program"),
        ((sys.executable, "-I", "-c", "print(1)"), 2, "-I ignores PYTHONPATH"),
        ((sys.executable, "-S", "-c", "print(1)"), 2, "-S skips sitecustomize"),
        (("env", "-i", sys.executable, "-c", "print(1)"), 2, "env -i clears PYTHONPATH"),
        (("sh", "-c", f"{sys.executable} -I -c 'import sys; sys.exit(9)'"), 9, "no process of it reported"),
        (("sh", "-c", "kill -KILL $$"), 137, "no process of it reported"),
    ],
)
def test_run_says_what_keeps_the_profiler_out(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    done = _fleetscope("run", "--", *words, home=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


def test_run_prints_a_line_for_a_pth_file(tmp_path: Path) -> None:
    line = _fleetscope("run", "--pth", home=tmp_path).stdout
    assert line.startswith("import ")  # site executes such lines, and no other
    assert line.count("\n") == 1


def test_help_is_there_without_the_heavy_libraries() -> None:
    """`fleetscope --help` and `run` must not wait for a query engine, Beam, Arrow or pydantic."""
    code = (
        "import sys; from fleetscope.cli.main import app;"
        "print([name for name in ('pyarrow', 'duckdb', 'apache_beam', 'pydantic', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
