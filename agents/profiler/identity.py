"""Who this process is: run, attempt, rank, command. From our own variables, else from what the launcher left."""

import os
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

_RANK = ("FLEETSCOPE_RANK", "JAX_PROCESS_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "RANK")
_WORLD = (
    "FLEETSCOPE_WORLD_SIZE",
    "JAX_NUM_PROCESSES",
    "SLURM_NTASKS",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "WORLD_SIZE",
)
_RUN = ("FLEETSCOPE_RUN", "SLURM_JOB_NAME")
_TENANT = ("FLEETSCOPE_TENANT", "SLURM_JOB_ACCOUNT")


class Identity(NamedTuple):
    """What a Hello says about the process and does not change."""

    run: str
    attempt: str
    rank: int
    world_size: int
    tenant: str
    command: str
    start_ticks: int
    boot_id: str
    started_ns: int


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def _number(environ: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        text = environ.get(name, "")
        if text.isdecimal():
            return int(text)
    return default


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def script_name(argv: list[str]) -> str:
    """The part of a command line a person would call the job: "train" for `python -u a/train.py --steps 3`."""
    for word in argv:
        base = os.path.basename(word)
        if word.startswith("-") or not base or base.startswith(("python", "pypy")):
            continue
        return base.removesuffix(".py")
    return "python"


def _attempt(environ: Mapping[str, str], fallback: str) -> str:
    """Equal on all ranks of one start, different at the next. A requeued Slurm job keeps its id: the restart counts."""
    named = environ.get("FLEETSCOPE_ATTEMPT")
    if named:
        return named
    job = environ.get("SLURM_JOB_ID")
    if job:
        restart = environ.get("SLURM_RESTART_COUNT", "0")
        return f"slurm-{job}-{environ.get('SLURM_STEP_ID', '0')}-{restart}"
    return environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or fallback


def distributed() -> tuple[int, int] | None:
    """(process id, number of processes) once jax.distributed has been initialised; jax itself is not imported."""
    module = sys.modules.get("jax._src.distributed")
    state = getattr(module, "global_state", None)
    processes = getattr(state, "num_processes", None)
    rank = getattr(state, "process_id", None)
    if getattr(state, "client", None) is None or not isinstance(processes, int) or not isinstance(rank, int):
        return None
    return rank, processes


def find(environ: Mapping[str, str] = os.environ) -> Identity:
    """The identity of this process, read anew: launchers' variables may be set, and jax.distributed be up, later."""
    stat = _read("/proc/self/stat").rpartition(")")[2].split()
    ticks = int(stat[19]) if len(stat) > 19 else 0
    boot_id = _read("/proc/sys/kernel/random/boot_id").strip()
    alive_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
    command = _read("/proc/self/cmdline").rstrip("\0").split("\0")
    known = distributed()
    rank = _number(environ, _RANK, 0)
    world = _number(environ, _WORLD, 1)
    if known and not environ.get("FLEETSCOPE_RANK"):
        rank, world = known
    return Identity(
        run=_first(environ, _RUN) or script_name(command),
        attempt=_attempt(environ, f"{os.uname().nodename}-{os.getpid()}-{ticks}"),
        rank=rank,
        world_size=max(world, rank + 1),
        tenant=_first(environ, _TENANT),
        command=" ".join(command)[:4096],
        start_ticks=ticks,
        boot_id=boot_id,
        started_ns=time.time_ns() - alive_ns,
    )


def platform() -> str:
    """Platform of jax's default backend, "" while it has none. Never makes one."""
    return str(getattr(_backend(), "platform", "") or "")


def driver() -> str:
    """First line of what the default backend says about its runtime and driver."""
    return str(getattr(_backend(), "platform_version", "") or "").partition("\n")[0]


def _backend() -> object:
    return getattr(sys.modules.get("jax._src.xla_bridge"), "_default_backend", None)
