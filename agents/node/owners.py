"""Whose a chip is: the pod that claims it, the run and Slurm job of the process that has it open. Never by a name."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleetscope.agents.batches import clean_text
from fleetscope.agents.collectors import Claim
from fleetscope.agents.node.facts import start_ticks
from fleetscope.agents.profiler import launchers
from fleetscope.agents.redaction import KEEP_ALL, Redaction
from fleetscope.schema import wire_pb2 as wire

REPLICA = "::"
"""NVIDIA's device plugin gives one GPU several times as UUID::N (time slicing, MPS): then it has several owners."""
TPU = "google.com/tpu"
DEPTH = 16
"""Generations between the process that says hello and the one that has the chip open: launcher, shell, worker."""
NAME_BYTES = 256


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """Who has a chip; "" where that is not known."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    run: str = ""
    attempt: str = ""
    slurm_job: str = ""


class Pods:
    """Claims of pods, joined with devices. A chip handed from pod to pod is told of both for a while: until the kubelet
    forgets a pod that has ended, the one it told of later has it. Not thread-safe."""

    def __init__(self) -> None:
        self._seen: dict[Claim, int] = {}
        self._number = 0
        self.odd: Counter[str] = Counter()
        """Claims on devices nobody knows, and devices two pods claimed, by reason."""

    def of(self, claims: Iterable[Claim], devices: Sequence[wire.Device]) -> dict[str, list[Owner]]:
        """Device key -> its owners: one, but for a chip that is shared."""
        keys = {device.key: device for device in devices}
        names = {device.local_name: device for device in devices if device.local_name}
        ordinals = {str(device.local_ordinal): device for device in devices if device.platform == "tpu"}
        self._number += 1
        seen: dict[Claim, int] = {}
        found: dict[str, dict[str, tuple[int, Claim]]] = {}
        for claim in claims:
            seen[claim] = when = self._seen.get(claim, self._number)
            name, replica, _ = claim.device_id.partition(REPLICA)
            device = keys.get(name) or names.get(name) or (ordinals.get(name) if claim.resource == TPU else None)
            if device is None:
                self.odd["unknown_device"] += claim not in self._seen
                continue
            place = claim.device_id if replica else ""
            held = found.setdefault(device.key, {})
            other = held.get(place)
            if other is not None:
                self.odd["claimed_twice"] += not {claim, other[1]} <= self._seen.keys()
            if other is None or when >= other[0]:
                held[place] = (when, claim)
        self._seen = seen
        return {key: [_owner(claim) for _, claim in held.values()] for key, held in found.items()}


def _owner(claim: Claim) -> Owner:
    return Owner(*(clean_text(name, NAME_BYTES) for name in (claim.namespace, claim.pod, claim.container)))


def parent(pid: int) -> int | None:
    """Of a process this agent can see; None if it is gone, or in a namespace of its own."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(stat[stat.rfind(b")") + 2 :].split()[1])


def environment(pid: int) -> dict[str, str]:
    """Variables a process was started with, as text whatever bytes they are. OSError if that may not be read."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return {name.decode("utf-8", "replace"): clean_text(value, NAME_BYTES)
            for name, mark, value in (pair.partition(b"=") for pair in pairs) if mark}  # fmt: skip


class Holders:
    """Owners of processes that have a chip open. `parent_of`, `variables_of`: as /proc tells. Not thread-safe."""

    def __init__(
        self,
        parent_of: Callable[[int], int | None] = parent,
        variables_of: Callable[[int], Mapping[str, str]] = environment,
        born: Callable[[int], int | None] = start_ticks,
        redaction: Redaction = KEEP_ALL,
    ) -> None:
        self._redaction = redaction
        self._parent, self._variables, self._born = parent_of, variables_of, born
        self._launched: dict[tuple[int, int], Owner] = {}
        self.odd: Counter[str] = Counter()
        """Processes nothing can be said of, each once, by reason."""
        self._odd_before: set[tuple[int, str]] = set()

    def of(self, pids: Iterable[int], greeted: Mapping[int, Owner]) -> list[Owner]:
        """Owners of these processes. `greeted`: run and attempt of processes that said hello, by pid in this agent's
        namespace. A process counts as the nearest of its ancestors that did, itself first."""
        return sorted({owner for pid in pids if (owner := self._one(pid, greeted)) is not None})

    def _one(self, pid: int, greeted: Mapping[int, Owner]) -> Owner | None:
        born = self._born(pid)
        if born is None:
            # Ended since, or its namespace is not below the agent's: run the agent with hostPID.
            self._note(pid, "pid_not_visible")
            return Owner()
        launched = self._launched.get((pid, born))
        if launched is None:
            launched = self._launched[pid, born] = self._read(pid)
        at: int | None = pid
        for _ in range(DEPTH):
            if at is None or at <= 1:
                break
            if at in greeted:
                said = greeted[at]
                return Owner(run=said.run, attempt=said.attempt, slurm_job=launched.slurm_job)
            at = self._parent(at)
        return launched

    def _read(self, pid: int) -> Owner:
        try:
            variables = self._variables(pid)
        except OSError:
            self._note(pid, "environment_denied")
            return Owner()
        run, attempt = launchers.run_name(variables), launchers.attempt_name(variables)
        run, attempt = self._redaction.of("runs", run), self._redaction.of("runs", attempt)
        return Owner(run=run, attempt=attempt, slurm_job=variables.get("SLURM_JOB_ID", ""))

    def _note(self, pid: int, reason: str) -> None:
        if (pid, reason) not in self._odd_before:
            self._odd_before.add((pid, reason))
            self.odd[reason] += 1

    def forget(self, alive: Iterable[int]) -> None:
        """Only these processes still have a chip open: what was kept of others goes."""
        kept = set(alive)
        self._launched = {key: owner for key, owner in self._launched.items() if key[0] in kept}
        self._odd_before = {key for key in self._odd_before if key[0] in kept}
