"""Committed manifests that are not folded yet, chain by chain, each verified to follow the one before it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleetscope.schema.errors import ManifestInvalid
from fleetscope.schema.tables import TABLES
from fleetscope.sinks.lake.chain import Chain, manifest_key
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.objects import ObjectStore

HELD_MANIFESTS = 2_000
"""A chain's unfolded manifests are held in memory up to this many (~4 kB each); the rest waits for the next round."""


def check_joins(parent: Manifest, parent_digest: str, child: Manifest) -> None:
    """ManifestInvalid unless `child` was built on `parent` and begins where it ended, partition by partition.

    Across generations only the number must follow: the new one's partitions begin at offsets its own record states.
    """
    where = manifest_key(child.chain, child.number)
    if child.number != parent.number + 1 or child.parent != parent_digest:
        raise ManifestInvalid(f"{where} was not built on number {parent.number} as it is stored")
    if child.generation != parent.generation:
        return
    ends = {(item.topic_id, item.partition): item.end for item in parent.offsets}
    for item in child.offsets:
        end = ends.get((item.topic_id, item.partition), item.start)
        if item.start != end or item.end < item.start:
            raise ManifestInvalid(
                f"{where}: {item.topic}/{item.partition} covers [{item.start}, {item.end}), its parent ended at {end}"
            )


@dataclass(slots=True)
class ChainTail:
    """Manifests folded+1 ... of one chain, as far as they have been seen. Carried state is dropped: only workers need
    it."""

    chain: Chain
    folded: int
    manifests: list[Manifest]
    _last: Manifest | None = None
    _last_digest: str = ""

    @classmethod
    def begin(cls, store: ObjectStore, number: int, folded: int) -> "ChainTail":
        return cls(Chain(store, number), folded, [])

    @property
    def target(self) -> int:
        """Number of the newest manifest seen."""
        return self.folded + len(self.manifests)

    @property
    def rows(self) -> int:
        return sum(manifest.rows for manifest in self.manifests)

    def within(self, rows: int) -> tuple[int, int]:
        """(number, rows): the furthest manifest up to which at most `rows` rows have to be merged, and how many have;
        always one manifest further than `folded` if there is one."""
        merged = 0
        target = self.folded
        for manifest in self.manifests:
            own = sum(item.rows for item in manifest.segments if TABLES[item.table].kind in ("rollup", "dimension"))
            if target > self.folded and merged + own > rows:
                break
            target, merged = manifest.number, merged + own
        return target, merged

    def look(self) -> None:
        """See what was committed since. Raises ManifestInvalid: the chain is damaged and must not be folded further."""
        if self._last is None and self.folded > 0 and (parent := self.chain.get(self.folded)) is not None:
            self._remember(parent)
        for manifest in self.chain.after(self.target, HELD_MANIFESTS - len(self.manifests)):
            if self._last is not None and self._last.number == manifest.number - 1:
                check_joins(self._last, self._last_digest, manifest)
            self.manifests.append(self._remember(manifest))

    def _remember(self, manifest: Manifest) -> Manifest:
        self._last_digest = manifest.digest
        self._last = replace(manifest, state=b"")
        return self._last

    def advance(self, folded: int) -> None:
        """Forget what a round has folded."""
        if folded > self.target:
            self._last = None
        self.manifests = [manifest for manifest in self.manifests if manifest.number > folded]
        self.folded = max(self.folded, folded)


def pending_rows(tails: Sequence[ChainTail]) -> int:
    return sum(tail.rows for tail in tails)
