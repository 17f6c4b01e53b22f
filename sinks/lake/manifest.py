"""Manifests: an epoch is real when, and only when, its manifest exists. docs/format/lake.md has the JSON."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from fleetscope.schema.errors import ManifestInvalid, VersionUnknown
from fleetscope.sinks.lake.segment import SegmentRef

MANIFEST_VERSION = 1
INLINE_STATE_BYTES = 64 << 10
"""Carried state up to this size stands in the manifest (15 kB at 100 hosts, 151 kB at 1 000 were measured)."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition. `topic_id` is what makes them comparable: a topic made anew has
    another."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One epoch of one chain. Numbers begin with 1; `parent` is the digest of number - 1 ("" for the first).

    `attempt` is unique to one try of one worker at this epoch: who finds the number taken by its own attempt has won.
    """

    chain: int
    number: int
    generation: int
    attempt: str
    parent: str
    now_ns: int
    offsets: tuple[OffsetRange, ...]
    segments: tuple[SegmentRef, ...] = ()
    state: bytes = b""
    state_object: str = ""
    """Key of the carried state when it is over INLINE_STATE_BYTES; `Chain.state` reads either."""
    clock_map_version: int = 0
    code_version: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Totals of the epoch by name (events, stored, dead_lettered, ...), for people and the coordinator."""

    @property
    def rows(self) -> int:
        """Rows of all its segments."""
        return sum(segment.rows for segment in self.segments)

    def to_bytes(self) -> bytes:
        """Canonical JSON: sorted keys, no spaces; equal manifests are equal bytes."""
        document = {
            "version": MANIFEST_VERSION,
            "chain": self.chain,
            "number": self.number,
            "generation": self.generation,
            "attempt": self.attempt,
            "parent": self.parent,
            "now_ns": self.now_ns,
            "offsets": [
                {
                    "topic": item.topic,
                    "topic_id": item.topic_id,
                    "partition": item.partition,
                    "from": item.start,
                    "to": item.end,
                }
                for item in sorted(self.offsets, key=lambda item: (item.topic_id, item.partition))
            ],
            "segments": [
                {
                    "table": item.table,
                    "path": item.path,
                    "partition": dict(item.partition),
                    "rows": item.rows,
                    "size_bytes": item.size_bytes,
                    "stats": item.stats,
                }
                for item in self.segments
            ],
            "state": b64encode(self.state).decode("ascii"),
            "state_object": self.state_object,
            "clock_map_version": self.clock_map_version,
            "code_version": self.code_version,
            "counts": dict(self.counts),
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        """Of its bytes as stored: what the next manifest names as its parent."""
        return digest(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "Manifest":
        """Raises ManifestInvalid or VersionUnknown naming `where`."""
        try:
            document: dict[str, Any] = json.loads(data)
            version = document["version"]
        except (ValueError, TypeError, KeyError) as error:
            raise ManifestInvalid(f"{where}: not a manifest: {error!r}") from error
        if version != MANIFEST_VERSION:
            raise VersionUnknown(f"{where}: manifest version {version!r}, this reader knows {MANIFEST_VERSION}")
        try:
            return cls(
                chain=int(document["chain"]),
                number=int(document["number"]),
                generation=int(document["generation"]),
                attempt=str(document["attempt"]),
                parent=str(document["parent"]),
                now_ns=int(document["now_ns"]),
                offsets=tuple(
                    OffsetRange(item["topic"], item["topic_id"], item["partition"], item["from"], item["to"])
                    for item in document["offsets"]
                ),
                segments=tuple(SegmentRef(**item) for item in document["segments"]),
                state=b64decode(document["state"]),
                state_object=str(document["state_object"]),
                clock_map_version=int(document["clock_map_version"]),
                code_version=str(document["code_version"]),
                counts=dict(document["counts"]),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ManifestInvalid(f"{where}: {error!r}") from error


def digest(data: bytes) -> str:
    """Short hash of bytes, for names and parents."""
    return xxhash.xxh3_128_hexdigest(data)
