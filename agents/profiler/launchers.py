"""Rank, number of ranks, run, attempt, tenant from what launchers leave in the environment. Which wins is written here.

Ours, then jax's, then the innermost launcher: an mpirun or torchrun inside a Slurm job inherits the job's variables,
so theirs come before Slurm's. Rank and number always come from the same launcher.
"""

from collections.abc import Mapping

Environ = Mapping[str, str]

_RANKS: tuple[tuple[str, ...], ...] = (
    ("", "FLEETSCOPE_RANK", "FLEETSCOPE_WORLD_SIZE"),
    ("", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
    ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"),
    ("", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    # PMIx leaves the number to its own protocol: Slurm's, who starts it, or Open MPI's.
    ("", "PMIX_RANK", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"),
    ("", "PMI_RANK", "PMI_SIZE"),
    ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    ("", "RANK", "WORLD_SIZE"),
)
"""(variable that must be there too, rank, number of ranks in any of the others), the first that gives a rank wins.

torchrun's RANK counts before Slurm's only with the mark of torchrun: a RANK alone may be an operator's node number.
Slurm's counts only inside a step: a batch script sees SLURM_PROCID=0 and SLURM_NTASKS=n, and is one process.
"""

_NO_NAMES = frozenset({"bash", "sh", "zsh", "interactive", "wrap", "fleetscope", "python", "python3"})
"""What Slurm calls a job whose user gave it no name: the command."""


def _number(environ: Environ, name: str) -> int | None:
    text = environ.get(name, "").strip()
    # No launcher starts 10^9 ranks: what is longer is a mistake, and would fit no message.
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= 9 else None


def rank_and_world(environ: Environ) -> tuple[int, int]:
    """(rank, number of ranks); (0, 1) without a launcher. A number that is missing is rank + 1."""
    for mark, rank_name, *world_names in _RANKS:
        if mark and not environ.get(mark):
            continue
        rank = _number(environ, rank_name)
        if rank is None:
            continue
        world = next((number for name in world_names if (number := _number(environ, name))), 0)
        return rank, max(world, rank + 1)
    return _of_tpu(environ)


def _of_tpu(environ: Environ) -> tuple[int, int]:
    """A TPU pod: slices of equally many workers, numbered slice by slice, as jax itself numbers its processes."""
    worker = _number(environ, "TPU_WORKER_ID")
    if worker is None:
        return 0, 1
    workers = max(len([name for name in environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]), worker + 1)
    index = _number(environ, "MEGASCALE_SLICE_ID") or 0
    slices = max(_number(environ, "MEGASCALE_NUM_SLICES") or 1, index + 1)
    return index * workers + worker, slices * workers


def run_name(environ: Environ) -> str:
    """Ours, else the name a user gave a Slurm job, else ""."""
    named = environ.get("FLEETSCOPE_RUN")
    if named:
        return named
    job = environ.get("SLURM_JOB_NAME", "")
    return "" if job in _NO_NAMES else job


def tenant_name(environ: Environ) -> str:
    """Ours, else the account a Slurm job is charged to, else ""."""
    return environ.get("FLEETSCOPE_TENANT") or environ.get("SLURM_JOB_ACCOUNT") or ""


def attempt_name(environ: Environ) -> str:
    """Equal on all ranks of one start, different at the next; "" when no launcher says.

    A requeued Slurm job keeps its id: the restart counts. torchrun restarts its workers under the same launcher and
    the same attempt of ours: they are another attempt.
    """
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    again = f"-r{restart}" if restart not in ("", "0") else ""
    named = environ.get("FLEETSCOPE_ATTEMPT")
    if named:
        return named + again
    job = environ.get("SLURM_JOB_ID")
    if job:
        step = environ.get("SLURM_STEP_ID", "0")
        return f"slurm-{job}-{step}-{environ.get('SLURM_RESTART_COUNT', '0')}{again}"
    elastic = environ.get("TORCHELASTIC_RUN_ID", "")
    if elastic and elastic != "none":
        return f"torch-{elastic}{again}"
    return environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or ""
