"""The IPython extension: the profiler in a notebook that was started without it.

    %load_ext fleetscope.agents.profiler.notebook
    %fleetscope            # what it does and whether an agent listens
    %fleetscope run NAME   # the run's name, else the notebook's
    %fleetscope stop       # and start

A server under `fleetscope run -- jupyter lab` needs no extension: its kernels are recorded like any Python. Both at
once are one profiler.
"""

import os
import sys

from fleetscope.agents import profiler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAMES = ("__vsc_ipynb_file__", "JPY_SESSION_NAME")
"""Where Visual Studio Code (a variable of the notebook) and Jupyter (of the environment) leave the notebook's path."""


def notebook_name(user_ns: "dict[str, Any]") -> str:
    """`train` for the notebook a/train.ipynb; "" when nobody says which it is."""
    path = str(user_ns.get(_NAMES[0]) or os.environ.get(_NAMES[1]) or "")
    return os.path.basename(path).removesuffix(".ipynb")


def _start(shell: "Any", name: str = "") -> bool:
    name = name or ("" if os.environ.get("FLEETSCOPE_RUN") else notebook_name(shell.user_ns))
    if name:
        os.environ["FLEETSCOPE_RUN"] = name
    return profiler.start(early=True)


def status() -> str:
    """One line for a person."""
    try:
        from fleetscope.agents.profiler import lifecycle
    except ImportError:
        return f"fleetscope: not built for {sys.implementation.cache_tag}"
    loop = lifecycle._process.loop
    if loop is None:
        return "fleetscope: off"
    run = os.environ.get("FLEETSCOPE_RUN", "")
    agent = "an agent takes it" if loop.attached else "no agent on this host yet, the newest 32 768 spans are kept"
    return f"fleetscope: recording{f' run {run}' if run else ''}; {agent}"


def load_ipython_extension(shell: "Any") -> None:
    """Called by %load_ext. Never raises: a notebook goes on without us."""

    def fleetscope(line: str) -> None:
        """%fleetscope [status | start | stop | run NAME]"""
        word, _, name = line.strip().partition(" ")
        if word == "stop":
            profiler.stop()
        elif word == "run" and name.strip():
            profiler.stop()
            _start(shell, name.strip())
        elif word == "start":
            _start(shell)
        elif word not in ("", "status"):
            print(fleetscope.__doc__, file=sys.stderr)
            return
        print(status())

    shell.register_magic_function(fleetscope, "line", "fleetscope")
    _start(shell)


def unload_ipython_extension(shell: "Any") -> None:
    """Called by %unload_ext: the magic goes, the recording ends; jax keeps the hooks, which do nothing then."""
    shell.magics_manager.magics["line"].pop("fleetscope", None)
    profiler.stop()
