"""Which chains there are, which partitions each owns, and where they start: `chains/generations/<g>.json`,
put-if-absent.

Changing the number of chains is a new generation. It starts where its predecessor ended: at those offsets, with the
carried state of that moment, which is one object beside the record, because manifests are swept after a day and a chain
of the new generation may be without a worker for longer. An old generation's worker finds its next number taken.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetscope.schema.errors import GenerationFenced, ManifestInvalid, VersionUnknown
from fleetscope.sinks.lake.chain import stored_state
from fleetscope.sinks.lake.manifest import digest
from fleetscope.sinks.lake.objects import ObjectStore

GENERATION_VERSION = 2
"""1 had no carried state: only a lake's first generation could be written."""
_FOLDER = "chains/generations"
STATES = "state/generations"
"""Folder of the states generations begin with."""


@dataclass(frozen=True, slots=True)
class Generation:
    """`chains`: chain -> its partitions of the telemetry topic. `starts`: partition -> first offset of this generation.
    `bases`: chain -> number of the last manifest it had before (0: none). `now_ns`: newest `now` before it.
    `state_object`: key of the carried state of all its partitions ("": nobody has read anything yet)."""

    number: int
    topic: str
    topic_id: str
    chains: Mapping[int, tuple[int, ...]]
    starts: Mapping[int, int]
    bases: Mapping[int, int]
    now_ns: int = 0
    state_object: str = ""

    def to_bytes(self) -> bytes:
        """As stored: JSON with sorted keys."""
        document = {
            "version": GENERATION_VERSION,
            "number": self.number,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "chains": {str(chain): list(partitions) for chain, partitions in self.chains.items()},
            "starts": {str(partition): offset for partition, offset in self.starts.items()},
            "bases": {str(chain): number for chain, number in self.bases.items()},
            "now_ns": self.now_ns,
            "state_object": self.state_object,
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "Generation":
        """Inverse of `to_bytes`. Raises ManifestInvalid, VersionUnknown, naming `where`."""
        try:
            document = json.loads(data)
            if document["version"] not in (1, GENERATION_VERSION):
                raise VersionUnknown(
                    f"{where}: version {document['version']!r}, this reader knows up to {GENERATION_VERSION}"
                )
            return cls(
                int(document["number"]),
                str(document["topic"]),
                str(document["topic_id"]),
                {int(chain): tuple(partitions) for chain, partitions in document["chains"].items()},
                {int(partition): int(offset) for partition, offset in document["starts"].items()},
                {int(chain): int(number) for chain, number in document["bases"].items()},
                int(document.get("now_ns", 0)),
                str(document.get("state_object", "")),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ManifestInvalid(f"{where}: not a generation: {error!r}") from error


def spread(partitions: Sequence[int], chain_count: int) -> dict[int, tuple[int, ...]]:
    """Chain -> partitions, p to chain p mod chain_count; chains without a partition are left out."""
    chains = {chain: tuple(p for p in partitions if p % chain_count == chain) for chain in range(chain_count)}
    return {chain: owned for chain, owned in chains.items() if owned}


def generations(store: ObjectStore) -> list[Generation]:
    """All of them, oldest first."""
    return [Generation.from_bytes(store.get(key), key) for key in store.keys(_FOLDER)]


def current_generation(store: ObjectStore) -> Generation | None:
    """The newest generation, None in a lake no worker ever opened."""
    found = generations(store)
    return found[-1] if found else None


def start_generation(store: ObjectStore, generation: Generation) -> Generation:
    """Create it, or accept it if an equal one is there (two workers started at once). Raises GenerationFenced if a
    different one has its number."""
    key = f"{_FOLDER}/{generation.number:06d}.json"
    if store.put_if_absent(key, generation.to_bytes()):
        return generation
    found = Generation.from_bytes(store.get(key), key)
    if found != generation:
        raise GenerationFenced(f"{key} was started by another worker with other chains or offsets")
    return found


def put_state(store: ObjectStore, number: int, state: bytes) -> str:
    """Keep the state generation `number` begins with; its key. Equal states have equal keys."""
    key = f"{STATES}/{number:06d}-{digest(state)}"
    store.put_if_absent(key, state)
    return key


def get_state(store: ObjectStore, generation: Generation) -> bytes:
    """Raises ManifestInvalid if its object is damaged or gone."""
    return stored_state(store, generation.state_object, f"generation {generation.number}")
