"""A chain of manifests: commit is the creation of the next number, and nothing else is.

A zombie, a second worker or a retry all try to create the same number; the store lets one of them. The number's own
attempt finds itself there and has won; every other is fenced and starts again from `latest`.
"""

from dataclasses import replace

from fleetscope.schema.errors import CommitUnknown, EpochFenced, LakeUnavailable, ManifestInvalid, ObjectMissing
from fleetscope.sinks.lake.faults import fault_point
from fleetscope.sinks.lake.manifest import INLINE_STATE_BYTES, Manifest, digest
from fleetscope.sinks.lake.objects import ObjectStore


def chain_folder(chain: int) -> str:
    """Folder of a chain's manifests."""
    return f"chains/chain-{chain}"


def manifest_key(chain: int, number: int) -> str:
    """Key of one manifest; names sort as numbers do."""
    return f"{chain_folder(chain)}/{number:012d}.json"


def chain_numbers(store: ObjectStore) -> tuple[int, ...]:
    """Every chain that ever committed, ascending."""
    names = (name.removeprefix("chain-") for name in store.folders("chains") if name.startswith("chain-"))
    return tuple(sorted(int(name) for name in names if name.isdigit()))


class Chain:
    """Chain `number` of a lake. Many processes may hold it; one wins each manifest number."""

    def __init__(self, store: ObjectStore, number: int) -> None:
        self._store = store
        self.number = number

    def get(self, number: int) -> Manifest | None:
        """The manifest, or None where there is none (not yet, or swept)."""
        key = manifest_key(self.number, number)
        try:
            data = self._store.get(key)
        except ObjectMissing:
            return None
        manifest = Manifest.from_bytes(data, key)
        if (manifest.chain, manifest.number) != (self.number, number):
            raise ManifestInvalid(f"{key}: says it is number {manifest.number} of chain {manifest.chain}")
        return manifest

    def latest(self, known: int = 0) -> Manifest | None:
        """The newest manifest, None for a chain that never committed. `known`: a number that is surely there or swept;
        listing begins behind it."""
        keys = self._store.keys(chain_folder(self.number), manifest_key(self.number, known) if known else "")
        if keys:
            return self.get(_number_of(keys[-1]))
        return self.get(known) if known else None

    def after(self, number: int, limit: int = 1 << 30) -> list[Manifest]:
        """Manifests number+1, number+2, ... up to the first that is not there: one look when nothing is new."""
        found: list[Manifest] = []
        while len(found) < limit:
            manifest = self.get(number + len(found) + 1)
            if manifest is None:
                break
            found.append(manifest)
        return found

    def state(self, manifest: Manifest) -> bytes:
        """The carried state of a manifest, wherever it is kept. Raises ManifestInvalid if its object is damaged or
        gone."""
        if not manifest.state_object:
            return manifest.state
        return stored_state(self._store, manifest.state_object, f"{self.number}/{manifest.number}")

    def commit(self, manifest: Manifest) -> Manifest:
        """Make the epoch real; returns the manifest as stored. All segments must be durable before.

        Raises EpochFenced (another attempt owns this number, or the parent is not what the epoch was built on: drop the
        work, start from `latest`), ManifestInvalid (ranges do not join the parent's), LakeFull or LakeUnavailable
        (nothing was committed), CommitUnknown (look with `get` before doing anything).
        """
        self._check(manifest)
        if len(manifest.state) > INLINE_STATE_BYTES:
            key = f"state/chain-{self.number}/{manifest.number:012d}-{manifest.attempt}-{digest(manifest.state)}"
            self._store.put_if_absent(key, manifest.state)
            manifest = replace(manifest, state=b"", state_object=key)
        key = manifest_key(self.number, manifest.number)
        fault_point("manifest.before_put")
        try:
            created = self._store.put_if_absent(key, manifest.to_bytes())
        except LakeUnavailable as error:
            # the answer was lost, perhaps not the request
            try:
                found = self.get(manifest.number)
            except LakeUnavailable:
                raise CommitUnknown(f"{key}: {error}") from error
            if found is None:
                raise
            created = False
        fault_point("manifest.after_put")
        if not created:
            winner = self.get(manifest.number)
            if winner is None or winner.attempt != manifest.attempt:
                who = "swept" if winner is None else f"attempt {winner.attempt}"
                raise EpochFenced(f"{key} belongs to {who}, not to {manifest.attempt}")
            return winner
        return manifest

    def _check(self, manifest: Manifest) -> None:
        if manifest.chain != self.number:
            raise ManifestInvalid(f"manifest of chain {manifest.chain} offered to chain {self.number}")
        if manifest.number < 1:
            raise ManifestInvalid(f"manifest number {manifest.number}: numbers begin with 1")
        if manifest.number == 1:
            # a worker that slept until its number was swept must not begin the chain again
            newest = self.latest()
            if newest is not None and newest.number > 1:
                raise EpochFenced(f"chain {self.number} is at {newest.number} already")
            return
        parent = self.get(manifest.number - 1)
        if parent is None or parent.digest != manifest.parent:
            state = "is gone" if parent is None else "is another one"
            raise EpochFenced(f"parent of {manifest_key(self.number, manifest.number)} {state}")
        if parent.generation != manifest.generation:
            return
        ends = {(item.topic_id, item.partition): item.end for item in parent.offsets}
        for item in manifest.offsets:
            expected = ends.get((item.topic_id, item.partition), item.start)
            if item.start != expected or item.end < item.start:
                raise ManifestInvalid(
                    f"chain {self.number}, manifest {manifest.number}: {item.topic}/{item.partition} covers "
                    f"[{item.start}, {item.end}), its parent ended at {expected}"
                )


def stored_state(store: ObjectStore, key: str, whose: str) -> bytes:
    """A carried state that is an object of its own. Raises ManifestInvalid if it is damaged or gone."""
    try:
        data = store.get(key)
    except ObjectMissing as error:
        raise ManifestInvalid(f"state {key} of {whose} is gone") from error
    if not key.endswith(digest(data)):
        raise ManifestInvalid(f"state {key}: its bytes are not those that were committed")
    return data


def _number_of(key: str) -> int:
    stem = key.rsplit("/", 1)[-1].removesuffix(".json")
    try:
        return int(stem)
    except ValueError:
        raise ManifestInvalid(f"{key}: not the name of a manifest") from None
