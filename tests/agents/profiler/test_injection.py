"""Injection: where the profiler gets in, and that it breaks nothing on the way. jax is a module of one line here."""

import importlib.util
import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

from fleetscope.agents.profiler import inject
from fleetscope.agents.profiler.inject.refusal import obstacle
from fleetscope.native import _recorder

_spec = importlib.util.spec_from_file_location("minors", Path(__file__).parents[3] / "native/minors.py")
assert _spec is not None
assert _spec.loader is not None
minors = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(minors)

UV = str(Path(sys.executable).with_name("uv"))

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
        [UV, "run", "--no-project", "--offline", "-p", sys.executable, "train.py"],
        [sys.executable, "children.py", "fork"],
        [sys.executable, "children.py", "spawn"],
        [sys.executable, "children.py", "forkserver"],
        [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, 'train.py'], check=True)"],
    ],
    ids=["script", "module", "command", "flags", "tool", "shell", "uv", "fork", "spawn", "forkserver", "subprocess"],
)
def test_it_gets_in(argv: list[str], program: dict[str, str], tmp_path: Path) -> None:
    assert obstacle(argv) == ""
    assert run(argv, program, tmp_path) == "started"


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
def test_a_sitecustomize_that_stands_before_ours(program: dict[str, str], tmp_path: Path) -> None:
    """Something between us and the program put its folder first. The real jax looks for plugins, and finds us."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("MARK = 1\n")
    code = (
        "import sys, sitecustomize; assert sitecustomize.MARK; import jax; "
        "name = 'fleetscope.agents.profiler.lifecycle'; before = name in sys.modules; "
        "jax.devices(); print(before, name in sys.modules)"
    )
    argv = ["sh", "-c", f'PYTHONPATH={mine}:$PYTHONPATH exec {sys.executable} -c "{code}"']
    environment = program | {"PYTHONPATH": ""}  # without the jax of one line
    (tmp_path / "elsewhere").mkdir()
    assert run(argv, environment, tmp_path / "elsewhere") == "False True"


@pytest.mark.e2e
def test_injected_twice(program: dict[str, str], tmp_path: Path) -> None:
    """Our folder under two names, a line in the code and the plugin: one thread, one profiler, the user's hook once."""
    (tmp_path / "other").symlink_to(inject.SITE)
    (tmp_path / "sitecustomize.py").write_text("print('theirs')\n")
    (tmp_path / "jax.py").write_text(
        "import sys\nfrom fleetscope.agents import profiler\nprofiler.start()\nimport jax_plugins.fleetscope\n"
        "import os\nprint(len(os.listdir('/proc/self/task')), sum('_Waiting' in str(f) for f in sys.meta_path))"
    )
    argv = [sys.executable, "-c", "import jax"]
    environment = inject.environment(argv, program)
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "other"), environment["PYTHONPATH"]])
    done = subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("theirs\n2 0\n", "")


@pytest.mark.e2e
def test_a_line_in_a_pth_file_also_reaches_isolated_programs(program: dict[str, str], tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (site,) = tmp_path.glob("venv/lib/python*/site-packages")
    (site / "fleetscope.pth").write_text(inject.pth_line() + "\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import jax"
    argv = [str(tmp_path / "venv" / "bin" / "python"), "-I", "-c", code]
    carried = {inject.CARRIED: inject.carried()}  # a wheel needs none: native lies beside agents
    done = subprocess.run(argv, env=program | carried, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("started\n", "")


def pythons() -> list[str]:
    """A Python of every minor version that this build has a recorder for, this one first."""
    found = [str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")]
    for built in Path(str(_recorder.__file__)).parent.glob("_recorder.cpython-3*.so"):
        minor = built.name.split("-")[1].removeprefix("3")
        if minor != str(sys.version_info.minor):
            found += minors.candidates(f"3.{minor}")[-1:]
    return found


@pytest.mark.e2e
@pytest.mark.parametrize("python", pythons(), ids=os.path.basename)
def test_an_environment_without_fleetscope(python: str, program: dict[str, str], tmp_path: Path) -> None:
    """The profiler is carried in, and with it nothing else of this environment."""
    bare = tmp_path / "bare"
    subprocess.run([python, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=60)
    (tmp_path / "jax.py").write_text(
        FAKE_JAX
        + "\nimport importlib.util as u; print([n for n in ('numpy', 'pyarrow', 'pydantic') if u.find_spec(n)])"
        "\nfrom fleetscope.agents import profiler\nwith profiler.step(1): print(profiler.start())"
    )
    got = run([str(bare / "bin" / "python"), "train.py"], program, tmp_path)
    assert got.splitlines() == ["started", "[]", "True"]


@pytest.mark.e2e
def test_a_python_the_profiler_cannot_be_carried_to_runs_as_ever(program: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("print('jax')")
    argv = [sys.executable, "-S", "-c", "import sitecustomize; import jax"]
    nothing = {inject.CARRIED: os.pathsep.join([str(tmp_path / "no"), str(tmp_path / "where")])}
    assert run(argv, program | nothing, tmp_path) == "jax"


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
