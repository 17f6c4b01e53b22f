#!/bin/bash
# Slurm's TaskProlog (the job's user, before each task): what it prints as `export` is in the task's environment.
# Only the address of the agent; `fleetscope run` or an import of the profiler in the program does the rest. Rank, run and
# attempt are read from Slurm's own variables. The agent may need a second more: a profiler tries again.
set -u
folder=${FLEETSCOPE_RUN_ROOT:-/run}/fleetscope-slurm-$SLURM_JOB_ID
[ -d "$folder" ] && echo "export FLEETSCOPE_AGENT_SOCKET=$folder/agent.sock"
exit 0
