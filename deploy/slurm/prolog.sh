#!/bin/bash
# Slurm's Prolog (root, on each node of a job): an agent for this job, as the job's user.
#   slurm.conf: Prolog=/etc/fleetscope/slurm/prolog.sh TaskProlog=/etc/fleetscope/slurm/task_prolog.sh
#               Epilog=/etc/fleetscope/slurm/epilog.sh PrologFlags=Alloc
# For nodes that are given whole to one job: one agent a host. A profiler must never cost a node: a Prolog that fails drains
# it, so this one ends with 0 whatever happens, and the job then runs unrecorded.
set -u
fleetscope=${FLEETSCOPE_BIN:-/opt/fleetscope/bin/fleetscope}
run=${FLEETSCOPE_RUN_ROOT:-/run}/fleetscope-slurm-$SLURM_JOB_ID
state=${FLEETSCOPE_STATE_ROOT:-/var/lib}/fleetscope-slurm/$SLURM_JOB_UID

[ -x "$fleetscope" ] || exit 0
install -d -m 0700 -o "$SLURM_JOB_UID" -g "$SLURM_JOB_GID" "$run" "$state" || exit 0
# The spool stays when the job goes: the next agent of that user on this node ships what was left.
systemd-run --quiet --collect --unit="fleetscope-agent-$SLURM_JOB_ID" \
  --uid="$SLURM_JOB_UID" --gid="$SLURM_JOB_GID" \
  --property=MemoryMax=512M --property=TimeoutStopSec=30 --property=NoNewPrivileges=yes \
  --property=UMask=0077 \
  --setenv=FLEETSCOPE_CONFIG=/etc/fleetscope/fleetscope.yaml \
  --setenv=FLEETSCOPE_STATE_DIR="$state" \
  --setenv=FLEETSCOPE_AGENT__SOCKET="$run/agent.sock" \
  "$fleetscope" agent </dev/null >/dev/null 2>&1 || rm -rf "$run"
exit 0
