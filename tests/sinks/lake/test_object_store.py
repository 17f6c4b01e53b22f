"""A lake in a bucket of a real S3 server, and what a store can do to it: lose answers, throttle, go away, refuse."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
from deltalake import DeltaTable

from fleetscope.pipelines.coordinate.rounds import merge_rows
from fleetscope.schema.errors import EpochFenced, LakeAddressInvalid, LakeDenied, LakeUnavailable
from fleetscope.sinks.lake import remote_store
from fleetscope.sinks.lake.address import parse_address
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.fold import fold_table
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.objects import ObjectStore, open_store
from fleetscope.sinks.lake.read import Snapshot
from fleetscope.sinks.lake.remote_store import RemoteStore, probe
from fleetscope.sinks.lake.rounds import Round, commit_round
from fleetscope.sinks.lake.segment import write_segment
from fleetscope.sinks.lake.tables import LakeTable

pytestmark = pytest.mark.fault


class S3(Protocol):
    endpoint: str
    key: str
    secret: str

    def options(self) -> dict[str, str]: ...


class FaultyS3(S3, Protocol):
    fault: Callable[[str, str], str]
    seen: Counter[tuple[str, str]]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer tries, 10 ms apart: what happens between them is what is tested."""
    backoff = {"init_backoff": timedelta(milliseconds=10), "max_backoff": timedelta(milliseconds=50), "base": 2}
    monkeypatch.setattr(remote_store, "_RETRY", {**remote_store._RETRY, "max_retries": 4, "backoff": backoff})


def _behind(proxy: FaultyS3, tmp_path: Path) -> ObjectStore:
    return open_store(f"s3://lake/faults/{tmp_path.name}", proxy.options())


def _first(what: str, times: int, method: str = "PUT") -> Callable[[str, str], str]:
    left = [times]

    def fault(asked: str, path: str) -> str:
        if asked != method or left[0] == 0:
            return ""
        left[0] -= 1
        return what

    return fault


@pytest.mark.usefixtures("quick")
def test_a_put_whose_answer_was_lost_is_recognised_as_one_s_own(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    store = _behind(faulty_s3, tmp_path)
    faulty_s3.fault = _first("lose", 1)
    assert store.put_if_absent("mine", b"1")
    assert faulty_s3.seen["PUT", "lose"] == 1
    assert faulty_s3.seen["PUT", ""] >= 1  # it was tried again, and found itself
    faulty_s3.fault = _first("lose", 1)
    assert store.add_file("file", lambda sink: sink.write(b"abc")) == 3
    # the same bytes of somebody else are not one's own
    assert not store.put_if_absent("mine", b"1")


@pytest.mark.usefixtures("quick")
def test_a_put_none_of_whose_tries_was_answered_is_looked_for(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    store = _behind(faulty_s3, tmp_path)
    faulty_s3.fault = lambda method, path: "lose" if method == "PUT" else ""
    assert store.put_if_absent("mine", b"1")
    assert faulty_s3.seen["PUT", "lose"] == 5
    faulty_s3.fault = lambda method, path: "refuse" if method == "PUT" else ""
    with pytest.raises(LakeUnavailable, match="FS5002"):
        store.put_if_absent("never", b"1")
    assert store.size("never") is None


@pytest.mark.usefixtures("quick")
def test_who_lost_the_race_and_the_answer_has_lost(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    store = _behind(faulty_s3, tmp_path)
    store.put_if_absent("k", b"theirs")
    faulty_s3.fault = _first("lose", 2)
    assert not store.put_if_absent("k", b"mine")
    assert store.get("k") == b"theirs"


@pytest.mark.usefixtures("quick")
def test_an_epoch_commits_though_answers_are_lost_and_a_zombie_is_fenced(
    faulty_s3: FaultyS3, tmp_path: Path, make_rows: Any
) -> None:
    chain = Chain(_behind(faulty_s3, tmp_path), 0)
    faulty_s3.fault = lambda method, path: "lose" if method == "PUT" else ""
    first = chain.commit(Manifest(0, 1, 1, "a", "", 1, (), ()))
    assert chain.latest() == first
    with pytest.raises(EpochFenced):
        chain.commit(Manifest(0, 1, 1, "b", "", 1, (), ()))


@pytest.mark.usefixtures("quick")
def test_throttling_is_waited_out(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    store = _behind(faulty_s3, tmp_path)
    for method in ("PUT", "GET", "HEAD"):
        faulty_s3.fault = _first("503", 3, method)
        assert store.put_if_absent(f"k{method}", b"1")
        assert store.get(f"k{method}") == b"1"
        assert store.size(f"k{method}") == 1
        assert store.keys("")
        assert faulty_s3.seen[method, "503"] == 3


@pytest.mark.usefixtures("quick")
def test_a_store_that_is_away_is_waited_for_so_long_and_no_longer(faulty_s3: FaultyS3, tmp_path: Path) -> None:
    faulty_s3.fault = lambda method, path: "refuse"
    store = RemoteStore.open(parse_address(f"s3://lake/{tmp_path.name}", faulty_s3.options()))
    began = time.monotonic()
    for call in (
        lambda: store.put_if_absent("k", b"1"), lambda: store.put("k", b"1"), lambda: store.get("k"),
        lambda: store.size("k"), lambda: store.keys(""), lambda: store.folders(""), lambda: store.delete("k"),
        lambda: store.modified(""), lambda: Snapshot.open(store), lambda: LakeTable(store, "spans").refresh(),
    ):  # fmt: skip
        with pytest.raises(LakeUnavailable, match="FS5002"):
            call()
    assert time.monotonic() - began < 60
    faulty_s3.fault = lambda method, path: ""
    assert store.put_if_absent("k", b"1")


@pytest.mark.usefixtures("quick")
def test_a_fold_whose_answer_was_lost_adds_no_row_twice(faulty_s3: FaultyS3, tmp_path: Path, make_rows: Any) -> None:
    store = _behind(faulty_s3, tmp_path)
    table = LakeTable(store, "spans")
    segments = write_segment(store, "spans", make_rows("spans", 3, seq=[1, 2, 3]), "0-1-a-0")
    manifest = Chain(store, 0).commit(Manifest(0, 1, 1, "a", "", 1, (), tuple(segments)))
    table.refresh(create=True)
    commits = f"_delta_log/{table.version + 1:020d}.json"
    lost = _first("lose", 1)
    faulty_s3.fault = lambda method, path: lost(method, path) if path.endswith(commits) else ""
    for _ in range(3):
        fold_table(table, {0: [manifest]}, {}, merge_rows)
    assert faulty_s3.seen["PUT", "lose"] == 1
    assert commit_round(store, Round(1, 1, "t", {"spans": table.version}, {0: 1}))
    assert sorted(Snapshot.open(store).table("spans").column("seq").to_pylist()) == [1, 2, 3]


def test_credentials_bucket_and_absence_are_told_apart_at_once(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    good, url = s3.options(), f"s3://lake/{tmp_path.name}"
    probe(parse_address(url, good))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    nobody = {**good, "endpoint": "http://127.0.0.1:9"}
    cases: list[tuple[str, Mapping[str, str], type[Exception], str]] = [
        (url, {**good, "secret_access_key": "not" + s3.secret}, LakeDenied, "refuses these credentials"),
        (url, {**good, "access_key_id": "not" + s3.key}, LakeDenied, "refuses these credentials"),
        ("s3://nobucket/x", good, LakeDenied, "no such bucket"),
        (url, nobody, LakeUnavailable, "FS5002"),
        (url, {"endpoint": s3.endpoint, "metadata_endpoint": "http://127.0.0.1:9"}, LakeDenied, "no credentials"),
    ]
    for where, options, error, words in cases:
        began = time.monotonic()
        with pytest.raises(error, match=words) as caught:
            probe(parse_address(where, options))
        assert time.monotonic() - began < 5
        _no_secret(f"{caught.value!r} {caught.value.__cause__!r}", s3)
    # not an empty lake, and not an object that is missing
    for store in (open_store("s3://nobucket/x", good), open_store(url, {**good, "secret_access_key": "wrong"})):
        for call in (lambda s=store: s.get("k"), lambda s=store: Snapshot.open(s), lambda s=store: s.put("k", b"1")):
            with pytest.raises(LakeDenied, match="FS5006") as caught:
                call()
            _no_secret(str(caught.value), s3)
        with pytest.raises(LakeDenied):
            LakeTable(store, "spans").refresh()
    _no_secret(caplog.text, s3)
    _no_secret(repr(parse_address(url, good)), s3)


def _no_secret(text: str, s3: S3) -> None:
    assert s3.secret not in text
    assert s3.key not in text


def test_more_than_a_page_of_names_is_listed_in_order(s3: S3, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    store = open_store(f"s3://lake/many/{tmp_path.name}", s3.options())
    wanted = [f"chains/chain-0/{number:012d}.json" for number in range(1, 2301)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b""), wanted))
    assert store.keys("chains") == wanted
    assert store.keys("chains/chain-0", wanted[1099]) == wanted[1100:]
    assert set(store.modified("chains")) == set(wanted)
    assert store.folders("chains") == ["chain-0"]


@pytest.fixture
def filled(s3: S3, tmp_path: Path, make_rows: Any) -> tuple[ObjectStore, ObjectStore]:
    """The same rows in a folder and in a bucket, one manifest folded, one behind the round."""
    stores = []
    for store in (open_store(tmp_path / "lake"), open_store(f"s3://lake/read/{tmp_path.name}", s3.options())):
        parent, table = None, LakeTable(store, "spans")
        for number in (1, 2):
            rows = make_rows("spans", 2, seq=[number, number + 10], host=[number, 7])
            segments = write_segment(store, "spans", rows, f"0-{number}-a-0")
            digest = "" if parent is None else parent.digest
            parent = Chain(store, 0).commit(Manifest(0, number, 1, "a", digest, number, (), tuple(segments)))
            if number == 1:
                fold_table(table, {0: [parent]}, {}, merge_rows)
                assert commit_round(store, Round(1, 1, "t", {"spans": table.version}, {0: 1}))
        stores.append(store)
    return stores[0], stores[1]


def test_sql_sees_the_same_in_a_bucket_as_in_a_folder(filled: tuple[ObjectStore, ObjectStore]) -> None:
    sql = "SELECT date, hour, retention_class, host, sum(seq), count(*) FROM spans GROUP BY ALL ORDER BY ALL"
    answers = []
    for store in filled:
        with Snapshot.open(store).duckdb() as connection:
            answers.append(connection.sql(sql).fetchall())
    assert answers[0] == answers[1]
    assert answers[0] == [
        ("2025-06-15", "12", "standard", 1, 1, 1),
        ("2025-06-15", "12", "standard", 2, 2, 1),
        ("2025-06-15", "12", "standard", 7, 23, 2),
    ]


def test_the_outside_world_reads_the_tables_of_a_bucket(filled: tuple[ObjectStore, ObjectStore], s3: S3) -> None:
    """deltalake and pyarrow with no more than the usual variables."""
    _, store = filled
    options = {f"AWS_{name.upper()}": value for name, value in s3.options().items()}
    options |= {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    table = DeltaTable(f"{store.url}/tables/spans", storage_options=options)
    assert sorted(table.to_pyarrow_table().column("seq").to_pylist()) == [1, 11]


@pytest.mark.unit
def test_addresses_hold_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("s3://KEY:SECRET@bucket/x", "s3://bucket/x?secret=SECRET", "s3:///x", "gs://k:SECRET@b/x"):
        with pytest.raises(LakeAddressInvalid, match="FS5004") as caught:
            parse_address(bad)
        assert "SECRET" not in str(caught.value)
    with pytest.raises(LakeAddressInvalid, match="nonsense") as caught:
        open_store("s3://bucket/x", {"nonsense": "SECRET"})
    assert "SECRET" not in str(caught.value)


@pytest.mark.unit
def test_options_and_environment_meet_in_one_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    given = parse_address("s3://b/p/", {"Endpoint": "http://h:1/", "aws_region": "eu-1"})
    assert given.url == "s3://b/p"
    assert given.options == {
        "AWS_ENDPOINT_URL": "http://h:1", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "eu-1", "AWS_CONDITIONAL_PUT": "etag",
    }  # fmt: skip
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://store.example")
    assert parse_address("s3://b/p").options["AWS_ALLOW_HTTP"] == "false"
    assert parse_address("/a b").folder == Path("/a b")
    assert parse_address("file:///a%20b").folder == Path("/a b")
