"""Sources that have been silent for a while, out of the way: packed, and not looked at until one of them speaks.

A source may come back for two days, and must then be known to the last number, or its batches would count as lost, or
twice. But a job that crashes and starts again all night leaves a source behind each time, and 12 000 of them cost every
epoch 2.3 s of CPU [measured]; here they cost the copying of ~120 bytes each.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

BUCKETS = 64
"""A source that comes back has its bucket unpacked: one in 64 of all that are shelved."""

Entry = list[Any]
"""[JSON of the SourceRecord, then of its process, its steps and its programs or None each]."""


@dataclass(slots=True)
class Shelf:
    """Source -> Entry. `packed[b]` holds the sources whose id is b modulo BUCKETS, as base64 of zlib of JSON."""

    packed: dict[int, str] = field(default_factory=dict)

    def take(self, source: int) -> Entry | None:
        """Its entry, which is then no longer here."""
        bucket = source % BUCKETS
        if bucket not in self.packed:
            return None
        entries = self._unpack(bucket)
        found = entries.pop(str(source), None)
        if found is not None:
            self._pack(bucket, entries)
        return found

    def put(self, entries: Mapping[int, Entry]) -> None:
        by_bucket: dict[int, dict[str, Entry]] = {}
        for source, entry in entries.items():
            by_bucket.setdefault(source % BUCKETS, {})[str(source)] = entry
        for bucket, fresh in by_bucket.items():
            self._pack(bucket, {**self._unpack(bucket), **fresh})

    def keep(self, entries: Mapping[int, Entry]) -> None:
        """These and no others."""
        self.packed.clear()
        self.put(entries)

    def items(self) -> Iterator[tuple[int, Entry]]:
        for bucket in sorted(self.packed):
            for source, entry in self._unpack(bucket).items():
                yield int(source), entry

    def _unpack(self, bucket: int) -> dict[str, Entry]:
        if bucket not in self.packed:
            return {}
        entries: dict[str, Entry] = json.loads(zlib.decompress(base64.b64decode(self.packed[bucket])))
        return entries

    def _pack(self, bucket: int, entries: Mapping[str, Entry]) -> None:
        if not entries:
            self.packed.pop(bucket, None)
            return
        text = json.dumps(entries, sort_keys=True, separators=(",", ":"))
        self.packed[bucket] = base64.b64encode(zlib.compress(text.encode(), 6)).decode("ascii")
