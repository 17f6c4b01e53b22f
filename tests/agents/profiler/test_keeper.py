"""`fleetscope run` beside its program: exit codes, signals, launchers, and what it says when nothing reported."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleetscope.agents.profiler import inject

pytestmark = pytest.mark.e2e

WHO = (
    "from fleetscope.agents.profiler import identity; who = identity.find();"
    "print(who.run, who.attempt, who.rank, who.world_size, flush=True)"
)


def command(argv: list[str], environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    variables = inject.environment(argv, environment)
    return inject.keeper_command(
        subprocess.check_output(["which", argv[0]], text=True).strip(), argv, variables
    ), variables


def run(argv: list[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    words, variables = command(argv, environment)
    done = subprocess.run(words, env=variables, cwd=folder, capture_output=True, text=True, timeout=60)
    assert not os.path.exists(variables[inject.REPORT])
    return done


@pytest.fixture
def program(tmp_path: Path, environment: dict[str, str]) -> dict[str, str]:
    (tmp_path / "jax.py").write_text(WHO)
    (tmp_path / "train.py").write_text("import jax\n")
    # Where it is set, ranks write their lines in pieces, which mix.
    return environment | {"PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": ""}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(7)", 7),
        ("1 / 0", 1),
        ("import os; os._exit(255)", 255),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139),
        ("import os, signal, sys; signal.signal(13, signal.SIG_DFL); os.kill(os.getpid(), 13)", 141),
    ],
)
def test_the_exit_code_is_the_programs(code: str, expected: int, program: dict[str, str], tmp_path: Path) -> None:
    done = run([sys.executable, "-c", f"import jax\n{code}"], program, tmp_path)
    assert done.returncode == expected
    assert done.stdout.endswith(" 0 1\n")
    assert "fleetscope" not in done.stderr


def test_a_broken_pipe_ends_the_program_as_it_would_alone(program: dict[str, str], tmp_path: Path) -> None:
    words, variables = command(["sh", "-c", "yes"], program)
    keeper = subprocess.Popen(words, env=variables, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert keeper.stdout
    keeper.stdout.read(2)
    keeper.stdout.close()
    assert keeper.wait(60) == 128 + signal.SIGPIPE


@pytest.mark.parametrize("ignored", [signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM])
def test_a_signal_that_whoever_starts_us_ignores(
    ignored: signal.Signals, program: dict[str, str], tmp_path: Path
) -> None:
    """Found: below a daemon that ignores SIGCHLD the keeper waited for ever for a program that had ended."""
    code = (
        "import signal, subprocess, sys; from pathlib import Path\n"
        "mask = int(Path('/proc/self/status').read_text().partition('SigIgn:')[2].split()[0], 16)\n"
        f"sys.exit(40 + (mask >> {int(ignored) - 1} & 1))"
    )
    words, variables = command([sys.executable, "-c", code], program)
    keeper = subprocess.Popen(
        words, env=variables, cwd=tmp_path, preexec_fn=lambda: signal.signal(ignored, signal.SIG_IGN)
    )
    try:
        assert keeper.wait(30) == 41  # and the program ignores it, as it would alone
    finally:
        keeper.kill()


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGXCPU, signal.SIGABRT, signal.SIGVTALRM,
        signal.SIGRTMIN + 1,
    ],
)  # fmt: skip
def test_a_signal_to_the_keeper_reaches_the_program_once(
    number: signal.Signals, program: dict[str, str], tmp_path: Path
) -> None:
    code = (
        "import signal, sys, time\ngot = []\n"
        f"signal.signal({int(number)}, lambda n, f: got.append(n))\nprint('ready', flush=True)\n"
        "while not got: time.sleep(0.01)\ntime.sleep(0.2)\nsys.exit(40 + len(got))"
    )
    words, variables = command([sys.executable, "-c", code], program)
    keeper = subprocess.Popen(words, env=variables, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert keeper.stdout
    assert keeper.stdout.readline() == b"ready\n"
    keeper.send_signal(number)
    assert keeper.wait(60) == 41
    keeper.stdout.close()


def test_a_killed_keeper_leaves_no_training_run_behind(program: dict[str, str], tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    words, variables = command([sys.executable, "-c", code], program)
    keeper = subprocess.Popen(words, env=variables, stdout=subprocess.PIPE)
    assert keeper.stdout
    child = int(keeper.stdout.readline())
    keeper.kill()
    keeper.wait(60)
    os.unlink(variables[inject.REPORT])
    until = time.monotonic() + 60
    with contextlib.suppress(OSError):  # gone
        while Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
            assert time.monotonic() < until
            time.sleep(0.02)
    keeper.stdout.close()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["sh", "-c", f"{sys.executable} -I -c 'import sys' ; exit 5"], "no process of it reported"),
        (["sh", "-c", f"env -i {sys.executable} train.py; exit 5"], "no process of it reported"),
        (["sh", "-c", f"PYTHONPATH=. {sys.executable} -c 'import sys'; exit 5"], "no process of it reported"),
        (["sh", "-c", "exit 5"], "no process of it reported"),
        ([sys.executable, "-c", "raise SystemExit(5)"], "no process of it imported jax"),
        ([sys.executable, "-c", "import sys; sys.implementation.cache_tag = 'x'; import jax; sys.exit(5)"], ""),
    ],
)
def test_it_says_when_nothing_reported(argv: list[str], said: str, program: dict[str, str], tmp_path: Path) -> None:
    done = run(argv, program, tmp_path)
    assert done.returncode == 5
    assert said in done.stderr
    assert ("warning" in done.stderr) is bool(said)


def test_one_that_reports_is_enough(program: dict[str, str], tmp_path: Path) -> None:
    done = run(["sh", "-c", f"{sys.executable} -I -c pass; {sys.executable} train.py"], program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


TORCHRUN = """
import os, subprocess, sys
count = int(sys.argv[1])
common = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": sys.argv[2], "WORLD_SIZE": str(count)}
ranks = [subprocess.Popen([sys.executable, "-u", *sys.argv[3:]], env={**os.environ, **common, "RANK": str(rank),
         "LOCAL_RANK": str(rank)}) for rank in range(count)]
sys.exit(max(rank.wait() for rank in ranks))
"""

SRUN = """
for rank in 0 1; do
  SLURM_JOB_ID=9 SLURM_STEP_ID=0 SLURM_JOB_NAME=fit SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=$rank "$@" &
done
wait
"""

MPIRUN = """
for rank in 0 1 2; do OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_RANK=$rank OMPI_MCA_ess_base_jobid=77 "$@" & done
wait
"""


def launcher(folder: Path, name: str, text: str, first_line: str) -> str:
    path = folder / name
    path.write_text(f"#!{first_line}\n{text}")
    path.chmod(0o755)
    return str(path)


def test_ranks_of_a_torchrun(program: dict[str, str], tmp_path: Path) -> None:
    torchrun = launcher(tmp_path, "torchrun", TORCHRUN, sys.executable)
    done = run([torchrun, "2", "0", "train.py"], program, tmp_path)
    lines = sorted(line.split() for line in done.stdout.splitlines())
    assert [(line[0], line[2], line[3]) for line in lines] == [("train", "0", "2"), ("train", "1", "2")]
    assert len({line[1] for line in lines}) == 1
    again = run([torchrun, "1", "1", "train.py"], program | {"FLEETSCOPE_ATTEMPT": "a"}, tmp_path)
    assert again.stdout.split() == ["train", "a-r1", "0", "1"]


def test_ranks_of_an_srun_started_outside_or_inside(program: dict[str, str], tmp_path: Path) -> None:
    srun = launcher(tmp_path, "srun", SRUN, "/bin/sh")
    outside = run([srun, sys.executable, "train.py"], program, tmp_path)
    words, variables = command([sys.executable, "train.py"], program | {"SLURM_JOB_ID": "9", "SLURM_JOB_NAME": "fit"})
    inside = subprocess.run([srun, *words], env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert sorted(inside.stdout.splitlines()) == ["fit slurm-9-0-0 0 2", "fit slurm-9-0-0 1 2"]
    # Started outside, before there was a job: the run is the script, the attempt this command's.
    lines = sorted(line.split() for line in outside.stdout.splitlines())
    assert [(line[0], line[2], line[3]) for line in lines] == [("train", "0", "2"), ("train", "1", "2")]
    assert len({line[1] for line in lines}) == 1


def test_ranks_of_an_mpirun(program: dict[str, str], tmp_path: Path) -> None:
    mpirun = launcher(tmp_path, "mpirun", MPIRUN, "/bin/sh")
    done = run([mpirun, sys.executable, "train.py"], program, tmp_path)
    assert sorted(line.split()[2:] for line in done.stdout.splitlines()) == [["0", "3"], ["1", "3"], ["2", "3"]]
    assert len({line.split()[1] for line in done.stdout.splitlines()}) == 1


def test_a_run_within_a_run_reports_to_the_outer(program: dict[str, str], tmp_path: Path) -> None:
    inner = [sys.executable, "-m", "fleetscope.cli.main", "run", "--", sys.executable, "train.py"]
    done = run(inner, program | {"FLEETSCOPE_HOME": str(tmp_path)}, tmp_path)
    assert done.returncode == 0
    assert "nothing was recorded on this host" not in done.stderr
    assert done.stdout.startswith("train ")


def test_a_program_that_clears_its_environment_first(program: dict[str, str], tmp_path: Path) -> None:
    """Found: the warning at the end said that no process imported jax."""
    done = run([sys.executable, "-c", "import os; os.environ.clear(); import jax"], program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(" 0 1\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_without_standard_streams(closed: str, program: dict[str, str], tmp_path: Path) -> None:
    """Found: without a standard output the program was never started."""
    entry = "from fleetscope.cli.main import app; app()"
    words = [sys.executable, "-c", entry, "run", "--", sys.executable, "-c", "import jax; raise SystemExit(5)"]
    done = subprocess.run(["bash", "-c", f'"$@" {closed}', "x", *words], env=program, cwd=tmp_path, timeout=60)
    assert done.returncode == 5


def test_without_a_folder_to_write_into(
    program: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    words, variables = command([sys.executable, "-c", "import jax; raise SystemExit(6)"], program)
    done = subprocess.run(words, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (6, "")
    assert inject.REPORT not in variables
