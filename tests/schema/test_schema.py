"""The schema room's promises: closed files, exact integer arithmetic, stable identities."""

import math
import pickle
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.schema import config, document, durations, errors, hardware, identity, metrics, rational, tables
from fleetscope.schema.errors import Backpressure, ConfigInvalid, FleetscopeError, Permanent, Retryable
from fleetscope.schema.wire_pb2 import Source

pytestmark = pytest.mark.unit
terms = st.integers(1, (1 << 31) - 1)


@pytest.mark.property
@given(x=st.integers(-(1 << 61), 1 << 61), n=terms, d=terms)
def test_floor_mul_is_the_exact_quotient(x: int, n: int, d: int) -> None:
    exact = x * n // d
    if abs(exact) < 1 << 62:
        assert rational.floor_mul(np.array([x], np.int64), n, d)[0] == exact


@pytest.mark.property
@given(
    ticks=st.lists(st.integers(0, 1 << 55), min_size=2, max_size=20), period=st.sampled_from([(5, 4), (1, 1), (40, 97)])
)
def test_durations_add_under_any_split(ticks: list[int], period: tuple[int, int]) -> None:
    edges = durations.nominal_ns(np.array(sorted(ticks), np.int64), *period)
    assert np.diff(edges).sum() == math.floor(max(ticks) * Fraction(*period)) - math.floor(
        min(ticks) * Fraction(*period)
    )


@pytest.mark.property
@given(x=st.integers(0, 1 << 57), period=st.sampled_from([(5, 4), (5, 64), (1, 1), (1000000, 2445403), (125, 3)]))
def test_sub_ticks_give_the_ticks_back(x: int, period: tuple[int, int]) -> None:
    ticks = np.array([x], np.int64)
    ns = durations.nominal_ns(ticks, *period)
    sub = ticks - durations.smallest_ticks(ns, *period)
    assert sub[0] >= 0
    assert (durations.smallest_ticks(ns, *period) + sub)[0] == x
    assert durations.nominal_ns(durations.smallest_ticks(ns, *period), *period)[0] == ns[0]


@pytest.mark.parametrize(("n", "d"), [(0, 1), (-1, 2), ((1 << 31) + 1, 1 << 31)])
def test_ratios_that_could_overflow_are_refused(n: int, d: int) -> None:
    with pytest.raises(ValueError, match="ratio"):
        rational.floor_mul(np.array([1], np.int64), n, d)


def test_every_error_has_its_own_number_in_its_room_and_pickles() -> None:
    entries = errors.catalogue()
    numbers = [entry["number"] for entry in entries.values()]
    assert len(set(numbers)) == len(numbers)
    assert {number // 1000 for number in numbers} <= set(range(1, 7))
    for name, entry in entries.items():
        kind = getattr(errors, name)
        assert issubclass(kind, FleetscopeError)
        copy = pickle.loads(pickle.dumps(kind("why")))
        assert (type(copy), str(copy)) == (kind, f"FS{entry['number']}: why")
        assert entry["meaning"].endswith(".")
    assert issubclass(Backpressure, Retryable)
    assert not issubclass(Permanent, Retryable)
    with pytest.raises(AttributeError, match="NoSuchError"):
        errors.NoSuchError  # noqa: B018


def test_metrics_follow_prometheus_naming() -> None:
    for metric in metrics.metrics().values():
        assert metric.name.startswith("fleetscope_")
        assert (metric.type == "counter") == metric.name.endswith("_total")
        assert len(metric.labels) <= metrics.MAX_LABELS
        assert "job" not in metric.labels, "Prometheus' own label"
        assert not {"_ms", "_ns", "_percent"} & {metric.name[-3:], metric.name[-8:]}, "base units, ratios 0..1"
        assert metric.help.endswith(".")


def test_every_table_field_says_its_meaning_and_unit_and_times_are_integers() -> None:
    for spec in tables.TABLES.values():
        assert spec.time in spec.schema.names
        assert set(spec.key) <= set(spec.schema.names)
        for field in spec.schema:
            assert b"unit" in field.metadata
            if field.name.endswith(("_ns", "t_ns")):
                assert field.type == "int64", f"{spec.name}.{field.name}"


def test_every_peak_names_its_source_and_the_v6e_capture_finds_its_chip() -> None:
    skus = hardware.skus()
    wanted = {"TPU v4", "TPU v5e", "TPU v5p", "TPU v6e", "TPU v7x", "A100", "H100", "H200", "B200", "MI300X", "MI355X"}
    assert wanted <= set(skus)
    assert all(len(sku.source) > 20 and sku.best_peak() > 0 for sku in skus.values())
    v6e = hardware.find_sku("tpu v6 lite")
    assert v6e is not None
    assert v6e.peak("bf16") == 918e12  # Cloud TPU documentation, and the capture's own peak_teraflops_per_second
    assert hardware.find_sku("TPU v99") is None
    assert skus["TPU v7x"].peak("bf16") == 2307e12 / 2


def test_identities_are_stable_and_differ_by_every_part() -> None:
    source = Source(cluster="c", host="h", boot_id="b", pid=7, start_ticks=9, incarnation=1)
    again = Source.FromString(source.SerializeToString())
    assert identity.process_id(source) == identity.process_id(again)
    other = Source(cluster="c", host="h", boot_id="b", pid=7, start_ticks=10, incarnation=1)
    assert identity.process_id(source) != identity.process_id(other)
    lost_spool = Source(cluster="c", host="h", boot_id="b", pid=7, start_ticks=9, incarnation=2)
    assert identity.process_id(source) == identity.process_id(lost_spool)
    assert identity.source_id(source) != identity.source_id(lost_spool)
    assert identity.key_hash("ab", "c") != identity.key_hash("a", "bc")
    assert identity.series_id("x", {"a": "1", "b": "2"}) == identity.series_id("x", {"b": "2", "a": "1"})


def test_an_unknown_key_is_an_error_that_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("worker:\n  epoch: 3\n")
    with pytest.raises(ConfigInvalid, match=r"FS1001.*bad\.yaml.*'worker\.epoch', nearest is 'worker\.epoch_s'"):
        config.load(file)
    file.write_text("wroker: {}\n")
    with pytest.raises(ConfigInvalid, match="nearest is 'worker'"):
        config.load(file)
    with pytest.raises(ConfigInvalid, match="no configuration file"):
        config.load(tmp_path / "absent.yaml")


def test_an_unknown_key_in_the_environment_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETSCOPE_WORKER__EPOCHS", "3")
    with pytest.raises(ConfigInvalid, match=r"nearest is 'worker\.epoch_s'"):
        config.load()
    monkeypatch.delenv("FLEETSCOPE_WORKER__EPOCHS")
    monkeypatch.setenv("FLEETSCOPE_WROKER__EPOCH_S", "3")
    with pytest.raises(ConfigInvalid, match=r"FLEETSCOPE_WROKER__EPOCH_S.*nearest is 'worker'"):
        config.load()


def test_flags_win_over_environment_and_that_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "good.yaml"
    file.write_text("cluster: from-file\nworker: {epoch_s: 3, chain_count: 2}\n")
    monkeypatch.setenv("FLEETSCOPE_WORKER__EPOCH_S", "4")
    loaded = config.load(file)
    assert (loaded.cluster, loaded.worker.epoch_s, loaded.worker.chain_count) == ("from-file", 4.0, 2)
    assert config.load(file, worker={"epoch_s": 5}).worker.epoch_s == 5
    monkeypatch.setenv("FLEETSCOPE_CONFIG", str(file))
    assert config.load().cluster == "from-file"


@pytest.mark.parametrize("name", list(document.PAGES))
def test_the_pages_of_docs_are_current(name: str) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / name
    assert page.read_text() == document.PAGES[name](), "run `make docs`"
