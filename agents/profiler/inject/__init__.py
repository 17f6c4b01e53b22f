"""The profiler in a program that does not know of it: `fleetscope run -- python train.py`.

Through the environment alone: a folder of ours comes first on PYTHONPATH, with a `sitecustomize` that waits for jax.
The same variables reach what the program starts: subprocesses, spawn, forkserver, launchers, console scripts, and
Pythons of other environments, to which the profiler is carried ($FLEETSCOPE_CARRIED).
"""

import os
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleetscope.agents.profiler import launchers
from fleetscope.agents.profiler.identity import script_name

SITE = str(Path(__file__).with_name("site"))
"""The folder that goes on PYTHONPATH."""

KEEPER = str(Path(__file__).with_name("keeper.py"))
"""Runs the program, waits for it and says at its end when nothing of it reported."""

CARRIED = "FLEETSCOPE_CARRIED"
REPORT = "FLEETSCOPE_REPORT"


def carried() -> str:
    """Where a Python without fleetscope finds the profiler: the folder of `agents`, then those of `native`."""
    from fleetscope.native import __path__ as native

    folders = [os.path.dirname(os.path.dirname(os.path.dirname(SITE))), *native]
    try:
        from fleetscope.native import _recorder
    except ImportError:
        pass
    else:
        folders.append(os.path.dirname(str(_recorder.__file__)))
    return os.pathsep.join(dict.fromkeys(os.path.abspath(folder) for folder in folders))


def environment(argv: Sequence[str], base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables to run `argv` with: `base`, our folder first on PYTHONPATH, and a run and attempt if it names none.

    Under a launcher (Slurm, mpirun, torchrun) attempt, and with Slurm the run, are the launcher's: each rank may call
    this by itself and all say the same. $FLEETSCOPE_AGENT_SOCKET is passed on as it is; whoever wants another agent
    sets it in `base`.
    """
    result = dict(base)
    others = [part for part in result.get("PYTHONPATH", "").split(os.pathsep) if part and part != SITE]
    result["PYTHONPATH"] = os.pathsep.join([SITE, *others])
    result.setdefault(CARRIED, carried())
    if not launchers.run_name(result):
        result["FLEETSCOPE_RUN"] = script_name(list(argv))
    if not launchers.attempt_name(result) and not _spans_hosts(argv):
        # One launcher, one attempt: ranks started by this command share it.
        result["FLEETSCOPE_ATTEMPT"] = uuid.uuid4().hex[:12]
    return result


def _spans_hosts(argv: Sequence[str]) -> bool:
    """torchrun started once a host: an attempt of our own would differ from host to host; its rendezvous id does not"""
    words = [word.replace("_", "-") for word in argv]
    for place, word in enumerate(words):
        if word.startswith("--nnodes="):
            return word != "--nnodes=1"
        if word == "--nnodes":
            return words[place + 1 : place + 2] != ["1"]
    return False


def keeper_command(program: str, argv: Sequence[str], variables: dict[str, str]) -> list[str]:
    """The command that runs `program` as `argv` under the keeper, with its report's name put into `variables`.

    Below another `fleetscope run` the outer keeper listens to all: the program is run as it is.
    """
    if variables.get(REPORT):
        return [program, *argv[1:]]
    try:
        file, variables[REPORT] = tempfile.mkstemp(prefix="fleetscope-run-")
        os.close(file)
    except OSError:
        # Nowhere to write: the program runs all the same, and nobody says at its end that nothing was recorded.
        variables.pop(REPORT, None)
    return [sys.executable, "-I", "-S", KEEPER, variables.get(REPORT, ""), program, *argv]


def pth_line() -> str:
    """A line for a .pth file in site-packages: the profiler in every program of that environment, also under -I."""
    return f"import sys; sys.path.append({SITE!r}); import _fleetscope_waiting"
