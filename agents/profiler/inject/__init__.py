"""The profiler in a program that does not know of it: `fleetscope run -- python train.py`.

Through PYTHONPATH alone: a folder of ours comes first on it, with a `sitecustomize` that waits for jax. The same
variables reach what the program starts: subprocesses, spawn, forkserver, console scripts of the same environment.
"""

import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleetscope.agents.profiler.identity import script_name

SITE = str(Path(__file__).with_name("site"))
"""The folder that goes on PYTHONPATH."""


def environment(argv: Sequence[str], base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables to run `argv` with: `base`, our folder first on PYTHONPATH, and a run and attempt if it names none.

    $FLEETSCOPE_AGENT_SOCKET is passed on as it is; whoever wants another agent sets it in `base`.
    """
    result = dict(base)
    others = [part for part in result.get("PYTHONPATH", "").split(os.pathsep) if part and part != SITE]
    result["PYTHONPATH"] = os.pathsep.join([SITE, *others])
    result.setdefault("FLEETSCOPE_RUN", script_name(list(argv)))
    if not result.get("SLURM_JOB_ID"):
        # One launcher, one attempt: ranks started by this command share it. Slurm's ranks share their job's id.
        result.setdefault("FLEETSCOPE_ATTEMPT", uuid.uuid4().hex[:12])
    return result


def obstacle(argv: Sequence[str]) -> str:
    """Why the profiler will not get into `argv`, as far as its words show it; "" when nothing speaks against it.

    Said to the user before the program runs: -I, -E and -S are there to keep the likes of us out, and stay obeyed.
    """
    words = list(argv)
    if not words:
        return "there is no command"
    if os.path.basename(words[0]) == "env":
        for word in words[1:]:
            if word in ("-i", "-", "--ignore-environment"):
                return "env -i clears PYTHONPATH"
            if not word.startswith("-") and "=" not in word:
                words = words[words.index(word) :]
                break
        assignments = [word for word in argv[1:] if word.startswith("PYTHONPATH=")]
        if assignments:
            return f"env replaces PYTHONPATH: {assignments[0]}"
    if not os.path.basename(words[0]).startswith(("python", "pypy")):
        return ""
    for word in words[1:]:
        if not word.startswith("-") or word == "-" or word.startswith("--"):
            break
        if word[1] in "cm":
            break
        flags = [flag for flag in word[1:] if flag in "IES"] if word[1] not in "XW" else []
        if flags:
            effect = "skips sitecustomize" if flags[0] == "S" else "ignores PYTHONPATH"
            return f"python -{flags[0]} {effect}"
    return ""


def other_python(argv: Sequence[str]) -> bool:
    """`argv` names a Python that is not ours: fleetscope must be installed there too, or the program runs without."""
    if not argv or not os.path.basename(argv[0]).startswith(("python", "pypy")) or os.sep not in argv[0]:
        return False
    return os.path.abspath(argv[0]) not in {os.path.abspath(sys.executable), os.path.realpath(sys.executable)}
