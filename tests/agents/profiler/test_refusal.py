"""Command lines that keep the profiler out, seen before anything runs; and words that only look like it."""

import sys
from pathlib import Path

import pytest

from fleetscope.agents.profiler.inject.refusal import obstacle

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("python -I x.py", "python -I ignores PYTHONPATH"),
        ("python3.12 -E -c pass", "python -E ignores PYTHONPATH"),
        ("/opt/venv/bin/python -S x.py", "python -S skips sitecustomize"),
        ("python -uIB x.py", "python -I ignores PYTHONPATH"),
        ("python -X dev -I x.py", "python -I ignores PYTHONPATH"),
        ("python -W error -OO -Es x.py", "python -E ignores PYTHONPATH"),
        ("env -i python x.py", "env -i clears PYTHONPATH"),
        ("env -i A=1 python x.py", "env -i clears PYTHONPATH"),
        ("env - python x.py", "env -i clears PYTHONPATH"),
        ("/usr/bin/env --ignore-environment python x.py", "env -i clears PYTHONPATH"),
        ("env A=1 -u PYTHONPATH python x.py", "env -u drops PYTHONPATH"),
        ("env -u HOME -uPYTHONPATH python x.py", "env -u drops PYTHONPATH"),
        ("env PYTHONPATH=/x python x.py", "env replaces PYTHONPATH: PYTHONPATH=/x"),
        ("env A=1 python -I x.py", "python -I ignores PYTHONPATH"),
        ("nice -n 5 numactl -N 0 python -I x.py", "python -I ignores PYTHONPATH"),
        ("mpirun -n 2 env -i python x.py", "env -i clears PYTHONPATH"),
        ("srun -n 2 python -I x.py", "python -I ignores PYTHONPATH"),
        ("srun --export=NONE python x.py", "srun --export=NONE clears PYTHONPATH"),
        ("uv run python -S x.py", "python -S skips sitecustomize"),
        ("sudo python x.py", "sudo clears PYTHONPATH"),
    ],
)
def test_refused(words: str, said: str) -> None:
    assert obstacle(words.split()) == said


@pytest.mark.parametrize(
    "words",
    [
        "python -m I -E",
        "python -c -E",
        "python x.py -I -E -S",
        "python -X importtime -W Ignore x",
        "python -XI -WE x",
        "python - -I",
        "torchrun -E x.py",
        "env A=1 -u HOME python x",
        "env python x.py PYTHONPATH=/x",
        "sudo -E python x.py",
        "srun --export=ALL python x.py",
        "train -i",
    ],
)
def test_let_through(words: str) -> None:
    assert obstacle(words.split()) == ""


@pytest.mark.parametrize(("flags", "refused"), [("", False), (" -u", False), (" -Es", True), (" -I", True)])
def test_the_first_line_of_a_console_script(tmp_path: Path, flags: str, refused: bool) -> None:
    tool = tmp_path / "tool"
    tool.write_text(f"#!{sys.executable}{flags}\n")
    tool.chmod(0o755)
    assert (f"(first line of {tool})" in obstacle([str(tool), "x"])) is refused
