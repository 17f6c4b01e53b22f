"""The IPython extension, on a shell with the three things of IPython's that it uses."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from fleetscope.agents.profiler.protocol import Hello

pytestmark = pytest.mark.e2e

SHELL = """
import os, sys, time, types
class Shell:
    def __init__(self, user_ns):
        self.user_ns = user_ns
        self.magics_manager = types.SimpleNamespace(magics={"line": {}})
    def register_magic_function(self, function, kind, name):
        self.magics_manager.magics[kind][name] = function
    def magic(self, line):
        self.magics_manager.magics["line"]["fleetscope"](line)
from fleetscope.agents.profiler import notebook
"""


def test_in_a_notebook(python: Callable[..., subprocess.CompletedProcess[str]], agent: Callable[..., Any]) -> None:
    toy = agent(enabled=True)
    code = (
        SHELL
        + """
shell = Shell({"__vsc_ipynb_file__": "/home/a/train.ipynb"})
notebook.load_ipython_extension(shell)
notebook.load_ipython_extension(shell)      # loaded twice: nothing more
until = time.monotonic() + 60
while "an agent takes it" not in notebook.status() and time.monotonic() < until:
    time.sleep(0.05)
shell.magic("")
shell.magic("stop")
shell.magic("run other")
while "an agent takes it" not in notebook.status() and time.monotonic() < until:
    time.sleep(0.05)
shell.magic("nonsense")
notebook.unload_ipython_extension(shell)
print(notebook.status(), shell.magics_manager.magics)
"""
    )
    done = python(code)
    lines = done.stdout.splitlines()
    assert lines[0] == "fleetscope: recording run train; an agent takes it"
    assert lines[1] == "fleetscope: off"
    assert lines[2].startswith("fleetscope: recording run other; ")
    assert lines[3] == "fleetscope: off {'line': {}}"
    assert "%fleetscope [status" in done.stderr
    assert [hello.run for hello, _ in toy.of(Hello)][:1] == ["train"]
    assert {hello.run for hello, _ in toy.of(Hello)} == {"train", "other"}


@pytest.mark.parametrize(
    ("ns", "environment", "expected"),
    [({}, "", ""), ({}, "a/b.ipynb", "b"), ({"__vsc_ipynb_file__": "/x/y.ipynb"}, "a/b.ipynb", "y"), ({}, "b", "b")],
)
def test_its_name(ns: dict[str, Any], environment: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fleetscope.agents.profiler.notebook import notebook_name

    monkeypatch.setenv("JPY_SESSION_NAME", environment)
    assert notebook_name(ns) == expected
