#!/bin/bash
# Slurm's Epilog (root, on each node, after the job): the agent takes the last events, ships for about ten seconds and ends.
# Not waited for: the next job need not.
set -u
systemctl stop --no-block "fleetscope-agent-$SLURM_JOB_ID.service" >/dev/null 2>&1
rm -rf "${FLEETSCOPE_RUN_ROOT:-/run}/fleetscope-slurm-$SLURM_JOB_ID"
exit 0
