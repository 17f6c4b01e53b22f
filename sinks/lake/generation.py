"""Which chains there are, which partitions each owns, and where they start: `chains/generations/<g>.json`,
put-if-absent.

Changing the number of chains is a new generation, which starts at the offsets its predecessors were folded to; an old
generation's worker finds its number no longer the newest and stops.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetscope.schema.errors import GenerationFenced, ManifestInvalid, VersionUnknown
from fleetscope.sinks.lake.objects import ObjectStore

GENERATION_VERSION = 1
_FOLDER = "chains/generations"


@dataclass(frozen=True, slots=True)
class Generation:
    """`chains`: chain -> its partitions of the telemetry topic. `starts`: partition -> first offset of this generation.
    `bases`: chain -> number of the last manifest it had before (0: none)."""

    number: int
    topic: str
    topic_id: str
    chains: Mapping[int, tuple[int, ...]]
    starts: Mapping[int, int]
    bases: Mapping[int, int]

    def to_bytes(self) -> bytes:
        document = {
            "version": GENERATION_VERSION,
            "number": self.number,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "chains": {str(chain): list(partitions) for chain, partitions in self.chains.items()},
            "starts": {str(partition): offset for partition, offset in self.starts.items()},
            "bases": {str(chain): number for chain, number in self.bases.items()},
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "Generation":
        try:
            document = json.loads(data)
            if document["version"] != GENERATION_VERSION:
                raise VersionUnknown(
                    f"{where}: version {document['version']!r}, this reader knows {GENERATION_VERSION}"
                )
            return cls(
                int(document["number"]),
                str(document["topic"]),
                str(document["topic_id"]),
                {int(chain): tuple(partitions) for chain, partitions in document["chains"].items()},
                {int(partition): int(offset) for partition, offset in document["starts"].items()},
                {int(chain): int(number) for chain, number in document["bases"].items()},
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
