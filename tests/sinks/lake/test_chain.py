"""Chains: one winner a number, whoever else tries, dies or wakes late."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from fleetscope.schema.errors import (
    CommitUnknown,
    EpochFenced,
    GenerationFenced,
    LakeFull,
    LakeUnavailable,
    ManifestInvalid,
    VersionUnknown,
)
from fleetscope.sinks.lake.chain import Chain, chain_numbers, manifest_key
from fleetscope.sinks.lake.faults import armed
from fleetscope.sinks.lake.generation import Generation, current_generation, spread, start_generation
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.manifest import INLINE_STATE_BYTES, Manifest, OffsetRange
from fleetscope.sinks.lake.objects import ObjectStore

pytestmark = pytest.mark.contract


def _manifest(parent: Manifest | None = None, attempt: str = "a", **changes: object) -> Manifest:
    start = 0 if parent is None else parent.offsets[0].end
    made = Manifest(
        chain=0,
        number=1 if parent is None else parent.number + 1,
        generation=1,
        attempt=attempt,
        parent="" if parent is None else parent.digest,
        now_ns=5,
        offsets=(OffsetRange("t", "id-1", 0, start, start + 10),),
        state=b"carried",
        counts={"events": 3},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_committed_manifest_is_read_back_whole(store: ObjectStore) -> None:
    chain = Chain(store, 0)
    assert chain.latest() is None
    first = chain.commit(_manifest())
    second = chain.commit(_manifest(first))
    assert chain.latest() == second
    assert chain.latest(1) == second
    assert chain.latest(2) == second
    assert chain.get(1) == first
    assert chain.get(3) is None
    assert chain.after(0) == [first, second]
    assert chain.after(2) == []
    assert chain.state(second) == b"carried"
    assert chain_numbers(store) == (0,)


def test_the_same_attempt_may_commit_again_and_has_won(store: ObjectStore) -> None:
    chain = Chain(store, 0)
    assert chain.commit(_manifest()) == chain.commit(_manifest())


def test_every_other_attempt_is_fenced(store: ObjectStore) -> None:
    chain = Chain(store, 0)
    chain.commit(_manifest(attempt="winner"))
    with pytest.raises(EpochFenced, match=r"FS5010.*winner"):
        chain.commit(_manifest(attempt="zombie"))


def test_of_many_attempts_one_wins(store: ObjectStore) -> None:
    chain = Chain(store, 0)
    barrier = threading.Barrier(6)

    def racer(name: int) -> str:
        barrier.wait()
        try:
            return chain.commit(_manifest(attempt=f"{name}")).attempt
        except EpochFenced:
            return ""

    with ThreadPoolExecutor(6) as pool:
        won = [name for name in pool.map(racer, range(6)) if name]
    latest = chain.latest()
    assert latest is not None
    assert won == [latest.attempt]


def test_an_epoch_built_on_another_parent_is_fenced(store: ObjectStore) -> None:
    chain = Chain(store, 0)
    first = chain.commit(_manifest())
    with pytest.raises(EpochFenced, match="another one"):
        chain.commit(_manifest(replace(first, attempt="other")))
    with pytest.raises(EpochFenced, match="gone"):
        chain.commit(_manifest(replace(first, number=7)))


def test_ranges_must_join_the_parent_s(store: ObjectStore) -> None:
    chain = Chain(store, 0)
    first = chain.commit(_manifest())
    for start, end in ((9, 20), (11, 20), (10, 9)):
        with pytest.raises(ManifestInvalid, match="FS5011"):
            chain.commit(_manifest(first, offsets=(OffsetRange("t", "id-1", 0, start, end),)))
    chain.commit(_manifest(first, offsets=(OffsetRange("t", "id-1", 0, 10, 10), OffsetRange("t", "id-1", 1, 4, 5))))


def test_a_topic_made_anew_begins_where_it_likes(store: ObjectStore) -> None:
    chain = Chain(store, 0)
    first = chain.commit(_manifest())
    chain.commit(_manifest(first, offsets=(OffsetRange("t", "id-2", 0, 0, 3),)))


def test_large_state_goes_to_an_object_of_its_own(store: ObjectStore) -> None:
    chain = Chain(store, 0)
    state = bytes(range(256)) * 300
    assert len(state) > INLINE_STATE_BYTES
    committed = chain.commit(_manifest(state=state))
    assert committed.state == b""
    stored = store.get(manifest_key(0, 1))
    assert len(stored) < 2_000
    latest = Chain(store, 0).latest()
    assert latest is not None
    assert chain.state(latest) == state
    store.put(latest.state_object, b"damaged")
    with pytest.raises(ManifestInvalid, match="not those that were committed"):
        chain.state(latest)
    store.delete(latest.state_object)
    with pytest.raises(ManifestInvalid, match="is gone"):
        chain.state(latest)


def test_a_worker_that_slept_past_the_sweep_cannot_begin_the_chain_again(store: ObjectStore) -> None:
    chain = Chain(store, 0)
    first = chain.commit(_manifest())
    second = chain.commit(_manifest(first))
    chain.commit(_manifest(second))
    for number in (1, 2):
        store.delete(manifest_key(0, number))
    with pytest.raises(EpochFenced):
        chain.commit(_manifest(attempt="sleeper"))
    with pytest.raises(EpochFenced):
        chain.commit(_manifest(first, attempt="sleeper"))


class _DeafStore(LocalFolder):
    """Does what it is told and loses the answer; then, perhaps, is away for a while."""

    away = False

    def put_if_absent(self, key: str, data: bytes) -> bool:
        super().put_if_absent(key, data)
        raise LakeUnavailable(f"{key}: connection reset")

    def get(self, key: str) -> bytes:
        if self.away:
            raise LakeUnavailable(f"{key}: connection refused")
        return super().get(key)


def test_a_lost_answer_is_looked_up(folder: LocalFolder) -> None:
    from pathlib import Path

    deaf = _DeafStore(Path(folder.url))
    assert Chain(deaf, 0).commit(_manifest()) == _manifest()
    with pytest.raises(EpochFenced):
        Chain(deaf, 0).commit(_manifest(attempt="other"))


def test_an_answer_that_cannot_be_looked_up_is_unknown(folder: LocalFolder) -> None:
    from pathlib import Path

    deaf = _DeafStore(Path(folder.url))
    deaf.away = True
    with pytest.raises(CommitUnknown, match="FS5012"):
        Chain(deaf, 0).commit(_manifest())
    assert Chain(folder, 0).commit(_manifest()) == _manifest()


@pytest.mark.fault
def test_a_full_disk_commits_nothing(folder: LocalFolder) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    with armed("object.written", full), pytest.raises(LakeFull):
        Chain(folder, 0).commit(_manifest())
    assert Chain(folder, 0).latest() is None


def test_foreign_bytes_are_numbered_errors(folder: LocalFolder) -> None:
    chain = Chain(folder, 0)
    for data in (b"", b"{}", b"[]", b'{"version":1}', b"\xff\x00"):
        folder.put(manifest_key(0, 1), data)
        with pytest.raises(ManifestInvalid, match=r"FS5011: chains/chain-0/000000000001\.json"):
            chain.get(1)
    folder.put(manifest_key(0, 1), _manifest().to_bytes().replace(b'"version":1', b'"version":99'))
    with pytest.raises(VersionUnknown, match="FS1002"):
        chain.get(1)
    folder.put(manifest_key(0, 1), replace(_manifest(), number=2).to_bytes())
    with pytest.raises(ManifestInvalid, match="says it is number 2"):
        chain.get(1)


def test_generations_are_fenced_by_their_number(store: ObjectStore) -> None:
    assert current_generation(store) is None
    first = Generation(1, "t", "id", spread(range(4), 2), {0: 0, 1: 0, 2: 0, 3: 0}, {0: 0, 1: 0})
    assert first.chains == {0: (0, 2), 1: (1, 3)}
    assert start_generation(store, first) == start_generation(store, first) == first
    with pytest.raises(GenerationFenced, match="FS5013"):
        start_generation(store, replace(first, starts={0: 9}))
    second = start_generation(store, replace(first, number=2, chains={0: (0, 1, 2, 3)}))
    assert current_generation(store) == second


def test_more_chains_than_partitions_leaves_chains_out() -> None:
    assert spread([0, 1], 5) == {0: (0,), 1: (1,)}
