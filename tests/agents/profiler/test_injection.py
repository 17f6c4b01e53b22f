"""`fleetscope run`: where the profiler gets in, where it does not, and that it breaks nothing on the way."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fleetscope.agents.profiler import inject

# Stands for jax, whose import takes seconds: injection acts on the name alone.
FAKE_JAX = "import sys; print('started' if 'fleetscope.agents.profiler.lifecycle' in sys.modules else 'not started')"


@pytest.fixture
def program(tmp_path: Path, environment: dict[str, str]) -> dict[str, str]:
    """A folder with a module called jax, and programs of several kinds that import it; variables to run them with."""
    (tmp_path / "jax.py").write_text(FAKE_JAX)
    (tmp_path / "train.py").write_text("import jax\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("import jax\n")
    children = """
    import multiprocessing, sys
    def work():
        import jax
    if __name__ == "__main__":
        process = multiprocessing.get_context(sys.argv[1]).Process(target=work)
        process.start()
        process.join()
        assert process.exitcode == 0
    """
    (tmp_path / "children.py").write_text(textwrap.dedent(children))
    tool = tmp_path / "tool"
    tool.write_text(f"#!{sys.executable}\nimport sys; sys.path.insert(0, {str(tmp_path)!r}); import jax\n")
    tool.chmod(0o755)
    return environment | {"PYTHONPATH": str(tmp_path)}


def run(argv: list[str], environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(
        argv, env=inject.environment(argv, environment), cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.e2e
@pytest.mark.parametrize(
    "argv",
    [
        [sys.executable, "train.py"],
        [sys.executable, "-m", "package"],
        [sys.executable, "-c", "import jax"],
        [sys.executable, "-O", "-X", "dev", "train.py"],
        ["./tool"],
        ["sh", "-c", f"{sys.executable} train.py"],
        [sys.executable, "children.py", "fork"],
        [sys.executable, "children.py", "spawn"],
        [sys.executable, "children.py", "forkserver"],
        [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, 'train.py'], check=True)"],
    ],
    ids=["script", "module", "command", "flags", "tool", "shell", "fork", "spawn", "forkserver", "subprocess"],
)
def test_it_gets_in(argv: list[str], program: dict[str, str], tmp_path: Path) -> None:
    assert inject.obstacle(argv) == ""
    assert run(argv, program, tmp_path) == "started"


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([sys.executable, "-I", "-c"], "python -I ignores PYTHONPATH"),
        ([sys.executable, "-E", "-c"], "python -E ignores PYTHONPATH"),
        ([sys.executable, "-S", "-c"], "python -S skips sitecustomize"),
        ([sys.executable, "-uIB", "-c"], "python -I ignores PYTHONPATH"),
        (["env", "-i", sys.executable, "-c"], "env -i clears PYTHONPATH"),
        (["env", "PYTHONPATH=/x", sys.executable, "-c"], "env replaces PYTHONPATH: PYTHONPATH=/x"),
    ],
)
def test_it_stays_out_says_so_and_the_program_runs(
    argv: list[str], said: str, program: dict[str, str], tmp_path: Path
) -> None:
    argv = [*argv, f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import jax"]
    assert inject.obstacle(argv) == said
    assert run(argv, program, tmp_path) == "not started"


@pytest.mark.unit
@pytest.mark.parametrize(
    "argv",
    [
        ["python", "-m", "I"],
        ["python", "-c", "-E"],
        ["python", "-X", "importtime", "-W", "Ignore", "x"],
        ["torchrun", "-E"],
        ["env", "A=1", "python", "x"],
    ],
)
def test_letters_that_are_no_flags_of_python(argv: list[str]) -> None:
    assert inject.obstacle(argv) == ""


@pytest.mark.e2e
def test_a_sitecustomize_of_the_users_still_runs(program: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("MARK = 1\nprint('theirs', __name__, __file__.rpartition('/')[2])\n")
    argv = [sys.executable, "-c", "import sitecustomize; print(sitecustomize.MARK); import jax"]
    assert run(argv, program, tmp_path).splitlines() == ["theirs sitecustomize sitecustomize.py", "1", "started"]


@pytest.mark.e2e
def test_a_broken_sitecustomize_fails_as_it_would_without_us(program: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise KeyError('theirs')\n")
    argv = [sys.executable, "train.py"]
    plain = subprocess.run(argv, env=program, cwd=tmp_path, capture_output=True, text=True)
    ours = subprocess.run(argv, env=inject.environment(argv, program), cwd=tmp_path, capture_output=True, text=True)
    assert ours.returncode == plain.returncode == 0
    assert "KeyError: 'theirs'" in plain.stderr
    assert "KeyError: 'theirs'" in ours.stderr
    assert ours.stdout.strip() == "started"


@pytest.mark.e2e
def test_a_python_that_has_no_fleetscope_runs_as_ever(tmp_path: Path, environment: dict[str, str]) -> None:
    """-S -P with a sitecustomize imported by hand: our folder on the path, the package not."""
    (tmp_path / "jax.py").write_text("print('jax')")
    code = f"import sys; sys.path[:0] = [{inject.SITE!r}, {str(tmp_path)!r}]; import sitecustomize; import jax"
    done = subprocess.run([sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("jax\n", "", 0)


@pytest.mark.unit
def test_variables() -> None:
    base = {"PYTHONPATH": os.pathsep.join(["/a", "/b"]), "OTHER": "1"}
    got = inject.environment(["python3.11", "-u", "jobs/train.py", "--steps", "3"], base)
    assert got["PYTHONPATH"].split(os.pathsep) == [inject.SITE, "/a", "/b"]
    assert got["FLEETSCOPE_RUN"] == "train"
    assert got["OTHER"] == "1"
    again = inject.environment(["python", "other.py"], got)
    assert again == got
    assert got["FLEETSCOPE_ATTEMPT"] != inject.environment(["x"], base)["FLEETSCOPE_ATTEMPT"]
    assert "FLEETSCOPE_ATTEMPT" not in inject.environment(["x"], {"SLURM_JOB_ID": "7"})
