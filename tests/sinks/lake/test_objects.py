"""The object store contract, on every implementation."""

from __future__ import annotations

import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from fleetscope.schema.errors import LakeAddressInvalid, LakeFull, ObjectMissing
from fleetscope.sinks.lake.faults import armed
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.objects import ObjectStore, open_store

pytestmark = pytest.mark.contract


def test_only_the_first_creation_of_a_key_takes_effect(store: ObjectStore) -> None:
    assert store.put_if_absent("a/b.json", b"first")
    assert not store.put_if_absent("a/b.json", b"second")
    assert store.get("a/b.json") == b"first"
    assert store.size("a/b.json") == 5


def test_of_many_threads_one_creates_each_key(store: ObjectStore) -> None:
    barrier = threading.Barrier(4)

    def racer(name: int) -> list[int]:
        barrier.wait()
        return [key for key in range(40) if store.put_if_absent(f"race/{key}", f"{name}".encode())]

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(racer, range(4)))
    assert Counter(key for keys in won for key in keys) == Counter(range(40))
    for name, keys in enumerate(won):
        assert all(store.get(f"race/{key}") == f"{name}".encode() for key in keys)


def test_put_replaces_and_delete_may_be_repeated(store: ObjectStore) -> None:
    store.put("k", b"1")
    store.put("k", b"22")
    assert store.get("k") == b"22"
    store.delete("k")
    store.delete("k")
    assert store.size("k") is None
    with pytest.raises(ObjectMissing, match="FS5001"):
        store.get("k")


def test_keys_are_sorted_below_a_folder_and_after_a_key(store: ObjectStore) -> None:
    for key in ("c/2", "c/1", "c/d/3", "c2/9", "a"):
        store.put(key, b"")
    assert store.keys("c") == ["c/1", "c/2", "c/d/3"]
    assert store.keys("c", "c/1") == ["c/2", "c/d/3"]
    assert store.keys("nothing/here") == []
    assert store.folders("c") == ["d"]
    assert set(store.modified("c")) == {"c/1", "c/2", "c/d/3"}


def test_a_file_is_created_once_and_never_written_again(store: ObjectStore) -> None:
    assert store.add_file("t/x.parquet", lambda sink: sink.write(b"abc")) == 3
    assert store.add_file("t/x.parquet", lambda sink: sink.write(b"longer")) is None
    with store.filesystem().open_input_file(store.location("t/x.parquet")) as file:
        assert file.read() == b"abc"


def test_a_failing_writer_leaves_nothing(store: ObjectStore) -> None:
    def write(sink: object) -> None:
        raise pa.ArrowInvalid("no such encoding")

    with pytest.raises(pa.ArrowInvalid):
        store.add_file("t/x.parquet", write)
    assert store.keys("t") == []
    assert not store.modified("t")


def test_unfinished_writes_are_not_listed(folder: LocalFolder) -> None:
    folder.put("t/a", b"x")
    (Path(folder.url) / "t" / ".writing-77-torn").write_bytes(b"half a file")
    assert folder.keys("t") == ["t/a"]
    assert set(folder.modified("t")) == {"t/a", "t/.writing-77-torn"}


@pytest.mark.fault
@pytest.mark.parametrize("point", ["object.written", "object.before_link"])
def test_a_full_disk_leaves_nothing_and_says_so(folder: LocalFolder, point: str) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    with armed(point, full), pytest.raises(LakeFull, match="FS5003"):
        folder.put_if_absent("chains/x.json", b"manifest")
    assert dict(folder.modified("chains")) == {}
    assert folder.put_if_absent("chains/x.json", b"manifest")


def test_addresses(tmp_path: Path) -> None:
    by_path = open_store(tmp_path / "a b")
    by_url = open_store((tmp_path / "a b").as_uri())
    by_path.put("k", b"v")
    assert by_url.get("k") == b"v"
    assert os.path.isdir(tmp_path / "a b")
    with pytest.raises(LakeAddressInvalid, match="FS5004"):
        open_store("ftp://host/lake")
