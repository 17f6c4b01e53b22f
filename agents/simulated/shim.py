"""The PJRT shim's stream of a simulated host: launches and completions, told late and in no order, made into batches
by the agent's own code. The truth beside it is worked out step by step, from the definition alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fleetscope.agents.node.executions import Completion, DeviceRows, Executions
from fleetscope.agents.simulated.host import Host
from fleetscope.agents.simulated.steps import FleetStep

LABEL = 1
DISPATCH_NS = 5_000
"""From the begin of the step's annotation to the launch."""
LATEST_NS = 45_000_000
"""A completion is told at most so long after it happened: within what the agent waits for."""
PER_MS = 1_000_000
"""Ticks of the process' counter, in which all of this is."""


@dataclass(slots=True)
class Shim:
    """Of one host. Times are ticks of its raw counter."""

    host: Host
    program: int
    rng: np.random.Generator
    executions: Executions = field(default_factory=Executions)
    told_late: list[tuple[int, int, Completion]] = field(default_factory=list)
    """(tick at which it is told, chip, completion)"""
    launched: int = 0
    ended: dict[int, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Devices and the program are known from the first moment on."""
        for chip in self.host.chips:
            self.executions.add_device(chip.number, chip.device, self.host.raw.one(0))
        self.executions.launches.program(LABEL, len(self.host.chips))

    def add(self, number: int, step: FleetStep, data_ns: int) -> list[dict[str, int]]:
        """A step is launched on all chips of the host; the truth of its executions."""
        enqueue = self.host.raw.one(data_ns + DISPATCH_NS)
        self.executions.launches.launch(number + 1, enqueue, LABEL)
        truth = []
        for chip in self.host.chips:
            column = self.host.number * len(self.host.chips) + chip.number
            end = self.host.raw.one(int(step.end[column].max()))
            begin = max(enqueue, self.ended.get(chip.number, 0))
            self.ended[chip.number] = end
            late = int(self.rng.integers(0, LATEST_NS))
            self.told_late.append((end + late, chip.number, Completion(end, enqueue, number + 1, LABEL)))
            truth.append({
                "host": self.host.number, "chip": chip.number, "device": chip.device_id, "launch": number + 1,
                "enqueue": enqueue, "begin": begin, "end": end,
            })  # fmt: skip
        return truth

    def settle(self, true_ns: int, last: bool = False) -> Iterator[DeviceRows]:
        """Batches that can be told at a moment of true time."""
        now = self.host.raw.one(true_ns)
        due = [item for item in self.told_late if last or item[0] <= now]
        self.told_late = [item for item in self.told_late if not last and item[0] > now]
        for index in self.rng.permutation(len(due)):
            _, chip, completion = due[index]
            self.executions.add_done(chip, completion)
        told = self._program
        yield from self.executions.finish(now, told) if last else self.executions.settle(now, PER_MS, told)

    def _program(self, label: int) -> tuple[int, bool]:
        return self.program, False


def shims(hosts: Sequence[Host], program: int, seed: int) -> list[Shim]:
    return [Shim(host, program, np.random.default_rng([seed, 700 + host.number])) for host in hosts]
