#!/bin/bash
# Slurm's TaskProlog (the job's user, before each task): what it prints as `export` is in the task's environment.
# Only the address of the agent; `fleetscope run` or an import of the profiler in the program does the rest. Rank, run and
# attempt are read from Slurm's own variables.
set -u
socket=${FLEETSCOPE_RUN_ROOT:-/run}/fleetscope-slurm-$SLURM_JOB_ID/agent.sock
[ -S "$socket" ] && echo "export FLEETSCOPE_AGENT_SOCKET=$socket"
exit 0
