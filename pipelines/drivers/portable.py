"""The same graph as a bounded job on a portable runner: Prism, or whatever runner the name says.

Here the plan travels inside the graph, because stages may run in another process, and the pipeline is built for each
epoch. Flags: reference is docs/design/0004-epoch.md; each was needed on Prism 2.77.
"""

import logging
import os
import shutil
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import create_runner

from fleetscope.pipelines import graph
from fleetscope.pipelines.plan import Plan, States
from fleetscope.schema.errors import EpochFailed, RunnerUnavailable

logger = logging.getLogger(__name__)

PRISM_ENVIRONMENT = "FLEETSCOPE_PRISM"
"""Path of the Prism binary. Stock Prism listens on every interface: start it in a network namespace of its own."""


def prism_binary() -> Path:
    """From the environment, or `prism` on PATH. RunnerUnavailable if there is none."""
    named = os.environ.get(PRISM_ENVIRONMENT) or shutil.which("prism")
    if not named or not Path(named).exists():
        raise RunnerUnavailable(f"no Prism binary: set {PRISM_ENVIRONMENT} or put `prism` on PATH")
    return Path(named)


def options_for(runner: str) -> list[str]:
    """Flags of a runner by name. LOOPBACK: stages run in this process, called back over gRPC."""
    if runner == "PrismRunner":
        return [
            "--runner=PrismRunner",
            f"--prism_location={prism_binary()}",
            "--environment_type=LOOPBACK",
            "--prism_log_level=warn",
            # a split of a running bundle ends in "NaN" and a failed job
            "--experiments=prism_disable_sdf_split",
        ]
    return [f"--runner={runner}", "--environment_type=LOOPBACK"]


class PortableGraph:
    """Runs plans on the named runner, one job an epoch."""

    def __init__(self, runner: str) -> None:
        self._name = runner
        self._flags = options_for(runner)

    def __call__(self, plan: Plan, states: States) -> None:
        """Submit the epoch and wait for its end. EpochFailed names the job's final state."""
        options = PipelineOptions(self._flags)
        pipeline = beam.Pipeline(runner=create_runner(self._name), options=options)
        graph.build(pipeline, "", plan.to_bytes(), states)
        state = pipeline.run().wait_until_finish()
        if state != "DONE":
            raise EpochFailed(f"{self._name}: job of epoch {plan.number} ended as {state}")
