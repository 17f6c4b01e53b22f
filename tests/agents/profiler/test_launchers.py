"""Who a rank is, from the variables that launchers set. From their manuals: torchrun, Open MPI, MPICH, Slurm, GKE."""

import pytest

from fleetscope.agents.profiler.identity import find, flops, script_name
from fleetscope.agents.profiler.launchers import attempt_name, rank_and_world, run_name

pytestmark = pytest.mark.unit

TORCH = {
    "TORCHELASTIC_RUN_ID": "j7",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_MCA_ess_base_jobid": "9001"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "3"}
BATCH = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_JOB_NAME": "llama"}
SRUN = BATCH | {"SLURM_STEP_ID": "2", "SLURM_PROCID": "11", "SLURM_STEP_NUM_TASKS": "12"}
GKE = {
    "TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b,c,d", "MEGASCALE_SLICE_ID": "2", "MEGASCALE_NUM_SLICES": "3",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        (TORCH, (5, 8)),
        (OPENMPI, (2, 4)),
        (HYDRA, (1, 3)),
        (SRUN, (11, 12)),
        (BATCH, (0, 1)),  # the batch script itself: one process, whatever SLURM_NTASKS says
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, (3, 4)),
        ({"PMIX_RANK": "3", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "6"}, (3, 6)),
        ({"PMIX_RANK": "3"}, (3, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        ({"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "5"}, (1, 5)),
        (GKE, (9, 12)),
        ({"TPU_WORKER_ID": "3", "TPU_WORKER_HOSTNAMES": "a,b,c,d"}, (3, 4)),
        # The innermost wins.
        (SRUN | TORCH, (5, 8)),
        (SRUN | OPENMPI, (2, 4)),
        (SRUN | {"RANK": "1", "WORLD_SIZE": "2"}, (11, 12)),
        (SRUN | TORCH | {"JAX_PROCESS_ID": "7", "JAX_NUM_PROCESSES": "9"}, (7, 9)),
        (TORCH | {"FLEETSCOPE_RANK": "0", "FLEETSCOPE_WORLD_SIZE": "1"}, (0, 1)),
        # Numbers that are none, and none that are too small.
        ({"RANK": "x", "WORLD_SIZE": "2"}, (0, 1)),
        ({"RANK": "-1", "PMI_RANK": "2", "PMI_SIZE": "1"}, (2, 3)),
        ({"FLEETSCOPE_RANK": "6"}, (6, 7)),
    ],
)  # fmt: skip
def test_rank_and_number_of_ranks(environ: dict[str, str], expected: tuple[int, int]) -> None:
    assert rank_and_world(environ) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ""),
        ({"FLEETSCOPE_ATTEMPT": "a"}, "a"),
        (SRUN, "slurm-77-2-0"),
        (SRUN | {"SLURM_RESTART_COUNT": "3"}, "slurm-77-2-3"),
        (TORCH, "torch-j7"),
        (TORCH | {"TORCHELASTIC_RESTART_COUNT": "2"}, "torch-j7-r2"),
        (TORCH | {"TORCHELASTIC_RESTART_COUNT": "2", "FLEETSCOPE_ATTEMPT": "a"}, "a-r2"),
        ({"TORCHELASTIC_RUN_ID": "none", "RANK": "0"}, ""),
        (OPENMPI, "9001"),
    ],
)
def test_an_attempt_is_one_for_all_ranks_and_another_after_a_restart(environ: dict[str, str], expected: str) -> None:
    assert attempt_name(environ) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, ""), (SRUN, "llama"), (SRUN | {"SLURM_JOB_NAME": "bash"}, ""), (SRUN | {"FLEETSCOPE_RUN": "x"}, "x")],
)
def test_run(environ: dict[str, str], expected: str) -> None:
    assert run_name(environ) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python -u a/train.py --steps 3", "train"),
        ("torchrun --nproc-per-node 2 a/train.py", "train"),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "train"),
        ("mpirun -np 2 python train.py", "train"),
        ("uv run train.py", "train"),
        ("python -m maxtext.train config", "maxtext.train"),
        ("/opt/bin/fit --fast", "fit"),
        ("uv run fit", "fit"),
        ("srun -n 4 fit", "fit"),
        ("env A=1 fit", "fit"),
        ("python", "python"),
    ],
)
def test_what_a_person_would_call_the_job(words: str, expected: str) -> None:
    assert script_name(words.split()) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("6.2e15", 6.2e15), ("1000", 1000.0), ("", 0.0), ("many", 0.0), ("-1", 0.0), ("nan", 0.0), ("inf", 0.0)],
)
def test_flops_a_user_declares(text: str, expected: float) -> None:
    assert flops(text) == expected
    assert find({"FLEETSCOPE_FLOPS_PER_STEP": text}).flops_per_step == expected


@pytest.mark.parametrize("text", ["9" * 10, "9" * 5000, "-1", "1e3", "\u0661", "1 2", ""])
def test_a_rank_that_is_none_is_not_believed(text: str) -> None:
    assert rank_and_world({"RANK": text, "WORLD_SIZE": "4"}) == (0, 1)
    assert rank_and_world({"RANK": "3", "WORLD_SIZE": text}) == (3, 4)
