"""Who this process is: run, attempt, rank, command. From our own variables, else from what the launcher left."""

import os
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

from fleetscope.agents.profiler import launchers


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
    flops_per_step: float


def flops(text: str) -> float:
    """FLOPs a user declared, as "6.2e15"; 0 for what is no such number: nobody's program ends over it."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 < value < 1e30 else 0.0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


_LAUNCHERS = frozenset(
    "accelerate env ibrun jsrun mpiexec mpirun nice nohup numactl poetry prun setsid srun stdbuf taskset time timeout "
    "torchrun uv".split()
)
"""Words that start another program: not what a person would call the job."""


def script_name(argv: list[str]) -> str:
    """The part of a command line a person would call the job: "train" for `python -u a/train.py --steps 3`."""
    bases = [os.path.basename(word) for word in argv]
    for base in bases:
        if base.endswith(".py") and not base.startswith("-"):
            return base.removesuffix(".py")
    if "-m" in argv[1:-1]:
        return argv[argv.index("-m", 1) + 1]
    for word, base in zip(argv, bases, strict=True):
        if word.startswith("-") or not base or base.startswith(("python", "pypy")):
            continue
        if base in _LAUNCHERS or base.isdecimal() or "=" in word or (base == "run" and "uv" in bases):
            continue
        return base
    return "python"


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
    rank, world = launchers.rank_and_world(environ)
    if known and not environ.get("FLEETSCOPE_RANK"):
        rank, world = known
    return Identity(
        run=launchers.run_name(environ) or script_name(command),
        attempt=launchers.attempt_name(environ) or f"{os.uname().nodename}-{os.getpid()}-{ticks}",
        rank=rank,
        world_size=max(world, rank + 1),
        tenant=launchers.tenant_name(environ),
        command=" ".join(command)[:4096],
        start_ticks=ticks,
        boot_id=boot_id,
        started_ns=time.time_ns() - alive_ns,
        flops_per_step=flops(environ.get("FLEETSCOPE_FLOPS_PER_STEP", "")),
    )


def platform() -> str:
    """Platform of jax's default backend, "" while it has none. Never makes one."""
    return str(getattr(_backend(), "platform", "") or "")


def driver() -> str:
    """Version of the kernel's driver where the system tells it, else what the default backend says of its runtime; a
    word as an allow-list has it: what is neither letter, digit, dot nor underscore is a "-"."""
    if platform() in ("gpu", "cuda"):
        version = next((word for word in _read(NVIDIA).split() if word[:1].isdigit() and "." in word), "")
        if version:
            return version
    return word_of(str(getattr(_backend(), "platform_version", "") or "").removeprefix("PJRT C API"))


def chip() -> str:
    """Kind of the default backend's first device, as a word: "NVIDIA-H200", "TPU-v6-lite"; "" while there is none."""
    try:
        devices = _backend().local_devices()  # type: ignore[attr-defined]
        return word_of(str(devices[0].device_kind))
    except (AttributeError, IndexError, RuntimeError):
        return ""


def word_of(text: str) -> str:
    """`text` as one word of an allow-list's entry, at most 100 characters."""
    kept = "".join(letter if letter.isalnum() or letter in "._" else " " for letter in text)
    return "-".join(kept.split())[:100]


NVIDIA = "/proc/driver/nvidia/version"


def _backend() -> object:
    return getattr(sys.modules.get("jax._src.xla_bridge"), "_default_backend", None)
