"""Rounds: what a reader opens. `rounds/<r>.json` names one version of every table, all at the same manifests."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from fleetscope.schema.errors import ManifestInvalid, ObjectMissing, VersionUnknown
from fleetscope.sinks.lake.faults import fault_point
from fleetscope.sinks.lake.objects import ObjectStore

ROUND_VERSION = 1
_FOLDER = "rounds"


@dataclass(frozen=True, slots=True)
class Round:
    """One moment of the lake: `versions` of the tables that exist, `folded` manifest number of each chain."""

    number: int
    made_ns: int
    made_by: str
    versions: Mapping[str, int]
    folded: Mapping[int, int]

    def to_bytes(self) -> bytes:
        """As stored: JSON with sorted keys."""
        document = {
            "version": ROUND_VERSION,
            "number": self.number,
            "made_ns": self.made_ns,
            "made_by": self.made_by,
            "versions": dict(self.versions),
            "folded": {str(chain): number for chain, number in self.folded.items()},
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "Round":
        """Inverse of `to_bytes`. Raises ManifestInvalid, VersionUnknown, naming `where`."""
        try:
            document = json.loads(data)
            version = document["version"]
            if version != ROUND_VERSION:
                raise VersionUnknown(f"{where}: round version {version!r}, this reader knows {ROUND_VERSION}")
            return cls(
                int(document["number"]),
                int(document["made_ns"]),
                str(document["made_by"]),
                {str(table): int(number) for table, number in document["versions"].items()},
                {int(chain): int(number) for chain, number in document["folded"].items()},
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ManifestInvalid(f"{where}: not a round: {error!r}") from error


def round_key(number: int) -> str:
    """Key of a round; names sort as numbers do."""
    return f"{_FOLDER}/{number:012d}.json"


def round_keys(store: ObjectStore, after: int = 0) -> list[str]:
    """Keys of the rounds after a number, ascending."""
    return store.keys(_FOLDER, round_key(after) if after else "")


def read_round(store: ObjectStore, key: str) -> Round:
    """A round by its key. Raises ObjectMissing, ManifestInvalid, VersionUnknown."""
    return Round.from_bytes(store.get(key), key)


def newest_round(store: ObjectStore) -> Round | None:
    """None in a lake that was never folded. A round that is swept while it is looked for only means a newer one is
    there."""
    for _ in range(3):
        keys = round_keys(store)
        if not keys:
            return None
        try:
            return read_round(store, keys[-1])
        except ObjectMissing:
            continue
    return None


def commit_round(store: ObjectStore, record: Round) -> bool:
    """Publish it; False if its number is taken: another coordinator leads, look at its round and go on from there."""
    fault_point("round.before_put")
    created = store.put_if_absent(round_key(record.number), record.to_bytes())
    fault_point("round.after_put")
    if created:
        return True
    return read_round(store, round_key(record.number)) == record
