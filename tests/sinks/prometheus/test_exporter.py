"""The exporter against hand-made records and a real scrape over HTTP."""

import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleetscope.pipelines.coordinate.published import round_record
from fleetscope.schema import config
from fleetscope.schema.errors import ConfigInvalid
from fleetscope.schema.wire_pb2 import MetricsRecord
from fleetscope.sinks.lake.rounds import Round
from fleetscope.sinks.prometheus.exporter import Exporter
from fleetscope.sinks.prometheus.shard import Shard
from fleetscope.sinks.prometheus.state import FleetState
from fleetscope.transport import Topics, open_log

S = 1_000_000_000
BUSY = "fleetscope_device_busy_seconds_total"


def _record(
    epoch: int, value: float, *, chain: int = 0, run: str = "a", device: str = "d0", at: int = 0, generation: int = 0
) -> MetricsRecord:
    record = MetricsRecord(chain=chain, epoch=epoch, run=run, event_ns=at, generation=generation)
    labels = {"run": run, "host": "h0", "device": device, "sku": "TPU v6e"}
    record.samples.add(name=BUSY, value=value, labels=labels)
    return record


def _values(state: FleetState, name: str, now: int = 0) -> dict[tuple[str, ...], float]:
    return next((dict(family.series()) for family in state.families(now) if family.metric.name == name), {})


def _state(budget: int = 100) -> FleetState:
    return FleetState(stale_ns=120 * S, linger_ns=300 * S, series_per_run=budget)


@pytest.mark.unit
def test_counters_add_over_chains_and_an_older_epoch_changes_nothing() -> None:
    state = _state()
    for record in (_record(5, 10.0), _record(4, 9.0), _record(2, 1.5, chain=1), _record(5, 10.0)):
        state.take(record, 0)
    assert _values(state, BUSY) == {("a", "h0", "d0", "TPU v6e"): 11.5}


@pytest.mark.unit
def test_data_older_than_two_minutes_does_not_move_a_live_series() -> None:
    state = _state()
    state.take(_record(1, 10.0, at=1000 * S), 1000 * S)
    state.take(_record(2, 20.0, at=1010 * S), 1200 * S)  # 190 s late: the backlog of a stalled pipeline
    assert _values(state, BUSY, 1200 * S)[("a", "h0", "d0", "TPU v6e")] == 10.0
    state.take(_record(3, 90.0, at=1205 * S), 1206 * S)
    assert _values(state, BUSY, 1206 * S)[("a", "h0", "d0", "TPU v6e")] == 90.0


@pytest.mark.unit
def test_series_leave_five_minutes_after_the_last_event_of_their_run() -> None:
    state = _state()
    state.take(_record(1, 10.0, at=1000 * S), 1000 * S)
    state.take(_record(1, 1.0, run="b", at=1290 * S), 1290 * S)
    assert {labels[0] for labels in _values(state, BUSY, 1299 * S)} == {"a", "b"}
    assert {labels[0] for labels in _values(state, BUSY, 1301 * S)} == {"b"}


@pytest.mark.unit
def test_a_run_stays_whole_while_one_of_its_chains_hears_of_it() -> None:
    state = _state()
    state.take(_record(1, 10.0, at=1000 * S), 1000 * S)
    state.take(_record(1, 1.0, chain=1, at=1290 * S), 1290 * S)
    assert sum(_values(state, BUSY, 1301 * S).values()) == 11.0
    assert _values(state, BUSY, 1591 * S) == {}


@pytest.mark.unit
def test_a_new_generation_is_shown_when_all_its_chains_have_spoken() -> None:
    state = _state()

    def own(chain: int, generation: int, chains: list[int]) -> MetricsRecord:
        return MetricsRecord(chain=chain, generation=generation, chains=chains, epoch=1)

    def total() -> float:
        return sum(_values(state, BUSY).values())

    for record in (_record(7, 10.0), _record(3, 5.0, chain=1), own(0, 0, []), own(1, 0, [])):
        state.take(record, 0)
    assert total() == 15.0
    state.take(_record(7, 15.0, generation=2), 0)
    state.take(own(0, 2, [0, 2]), 0)
    assert total() == 15.0
    state.take(_record(8, 20.0, generation=2), 0)
    state.take(_record(1, 3.0, chain=2, generation=2), 0)
    assert total() == 15.0, "chain 2 has not said that this is all"
    state.take(own(2, 2, [0, 2]), 0)
    assert total() == 23.0
    state.take(_record(9, 99.0), 0)  # a zombie of the first generation
    assert total() == 23.0
    assert state.generation == 2


@pytest.mark.unit
def test_a_run_beyond_its_budget_folds_into_other_and_says_so() -> None:
    state = _state(budget=2)
    record = MetricsRecord(epoch=1, run="a")
    for i in range(5):
        labels = {"run": "a", "host": f"h{i}", "device": "d", "sku": "x"}
        record.samples.add(name=BUSY, value=1.0, labels=labels)
    state.take(record, 0)
    values = _values(state, BUSY)
    assert values == {("a", "h0", "d", "x"): 1.0, ("a", "h1", "d", "x"): 1.0, ("a", "other", "other", "other"): 3.0}
    assert _values(state, "fleetscope_exporter_series_over_budget") == {("a",): 3.0}


def _block(epoch: int, devices: int, *, part: int = 0, chain: int = 0) -> MetricsRecord:
    """As a worker of this version writes it: device i is on host i // 2 and has been busy for i + epoch seconds."""
    record = MetricsRecord(epoch=epoch, run="a", part=part, chain=chain)
    block = record.blocks.add(label_names=("host", "device", "sku"))
    for device in range(devices):
        block.labels.extend((f"h{device // 2}", f"d{device}", "x"))
    block.columns.add(name=BUSY, values=[float(device + epoch) for device in range(devices)])
    return record


@pytest.mark.unit
def test_devices_in_a_block_are_the_series_they_were_one_by_one() -> None:
    state = _state(budget=4)
    state.take(_block(1, 6), 0)
    expected = {("a", f"h{i // 2}", f"d{i}", "x"): i + 1.0 for i in range(4)}
    folded = ("a", "other", "other", "other")
    assert _values(state, BUSY) == {**expected, folded: 5.0 + 6.0}
    assert _values(state, "fleetscope_exporter_series_over_budget") == {("a",): 2.0}
    # Who was shown stays so, whoever comes: what is folded is a counter and may not fall.
    state.take(_record(1, 100.0, device="new", chain=1), 0)
    state.take(_block(2, 6), 0)
    found = _values(state, BUSY)
    assert {labels: found[labels] for labels in expected} == {labels: value + 1 for labels, value in expected.items()}
    assert found[folded] >= 13.0
    state.take(_block(5, 6, chain=1), 0)
    assert _values(state, BUSY)["a", "h1", "d3", "x"] == 5.0 + 8.0, "chains add"


@pytest.mark.unit
def test_shards_have_each_host_once_and_what_is_of_no_host_once() -> None:
    whole = _state()
    shards = [FleetState(120 * S, 300 * S, 5, Shard(number, 3)) for number in range(3)]
    of_run = MetricsRecord(epoch=1, run="b")
    of_run.samples.add(name="fleetscope_run_steps_total", value=7, labels={"run": "b"})
    for state in (whole, *shards):
        for record in (_block(1, 40), _record(1, 2.5, run="b"), of_run):
            state.take(record, 0)
    found = [_values(state, BUSY) for state in shards]
    hosts = [{labels[1] for labels in values} - {f"other {i}/3"} for i, values in enumerate(found)]
    assert all(len(each) > 1 for each in hosts)
    assert not hosts[0] & hosts[1] | hosts[0] & hosts[2] | hosts[1] & hosts[2]
    everything = _values(whole, BUSY)
    assert sum(sum(values.values()) for values in found) == sum(everything.values())
    told = {labels for values in found for labels in values}
    assert len(told) == sum(map(len, found)), "what is folded is a series of its shard"
    steps = [_values(state, "fleetscope_run_steps_total") for state in shards]
    assert steps == [{("b",): 7.0}, {}, {}]


@pytest.mark.unit
@pytest.mark.parametrize("damage", ["labels", "values", "name", "gauge", "run", "nothing"])
def test_a_damaged_block_is_counted_not_served(damage: str) -> None:
    state = _state()
    record = _block(1, 3)
    (block,) = record.blocks
    if damage == "labels":
        block.labels.append("one more")
    elif damage == "values":
        block.columns[0].values.pop()
    elif damage == "name":
        block.columns[0].name = "fleetscope_from_the_future_total"
    elif damage == "gauge":
        block.columns[0].name = "fleetscope_chip_power_watts"
    elif damage == "run":
        block.label_names[0] = "run"
    else:
        del block.label_names[:]
    state.take(record, 0)
    assert _values(state, BUSY) == {}
    assert _values(state, "fleetscope_exporter_unknown_samples")[()] >= 1


@pytest.mark.unit
def test_a_histogram_adds_over_chains_and_one_of_other_buckets_is_unknown() -> None:
    name = "fleetscope_run_step_duration_seconds"

    def record(chain: int, schema: int, counts: dict[int, int]) -> MetricsRecord:
        made = MetricsRecord(epoch=1, run="a", chain=chain)
        told = made.samples.add(name=name, labels={"run": "a"}).durations
        told.schema, told.zero, told.sum_ns = schema, 1, 2_500_000_000
        told.bucket.extend(counts)
        told.count.extend(counts.values())
        return made

    state = _state()
    for one in (record(0, 5, {-3: 2, 7: 1}), record(1, 5, {7: 4}), record(2, 3, {7: 4})):
        state.take(one, 0)
    (family,) = [family for family in state.families(0) if family.metric.name == name]
    (told,) = family.histograms.values()
    assert (told.counts, told.zero, told.sum_s, told.count) == ({-3: 2, 7: 5}, 2, 5.0, 9)
    assert _values(state, "fleetscope_exporter_unknown_samples") == {(): 1.0}


@pytest.mark.unit
def test_a_sample_nobody_knows_is_counted_not_served() -> None:
    state = _state()
    record = MetricsRecord(epoch=1, run="a")
    record.samples.add(name="fleetscope_from_the_future_total", value=1)
    record.samples.add(name=BUSY, value=1, labels={"run": "a"})
    state.take(record, 0)
    assert _values(state, BUSY) == {}
    assert _values(state, "fleetscope_exporter_unknown_samples") == {(): 2.0}


@pytest.mark.e2e
def test_a_scrape_sees_a_record_within_seconds_and_two_exporters_agree(tmp_path: Path) -> None:
    loaded = config.load(None, state_dir=tmp_path, exporter={"address": "127.0.0.1:0"})
    stop = threading.Event()
    exporters = [Exporter(loaded), Exporter(loaded)]
    threads = [threading.Thread(target=exporter.run, args=(stop,)) for exporter in exporters]
    for exporter, thread in zip(exporters, threads, strict=True):
        exporter.start()
        thread.start()
    try:
        with open_log(loaded.log_url) as log:
            topics = Topics(loaded.log.topic_prefix)
            log.create_topics(topics.specs(loaded.log.partitions))
            log.append(topics.metrics, b"0/a", b"\xff not a record")
            log.append(topics.metrics, b"0/a", _record(7, 3.25, at=time.time_ns()).SerializeToString())
            log.flush()
            deadline = time.monotonic() + 60
            pages = ["", ""]
            while time.monotonic() < deadline and not all(f"{BUSY}{{" in page for page in pages):
                pages = [_get(exporter.address) for exporter in exporters]
                time.sleep(0.1)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    for page in pages:
        samples = {s.name: s for f in text_string_to_metric_families(page) for s in f.samples}
        assert samples[BUSY].value == 3.25
        assert samples[BUSY].labels == {"run": "a", "host": "h0", "device": "d0", "sku": "TPU v6e"}
        assert samples["fleetscope_exporter_unreadable_total"].value == 1


@pytest.mark.fault
def test_poison_in_the_topic_is_counted_and_the_rest_is_served(tmp_path: Path) -> None:
    loaded = config.load(None, state_dir=tmp_path, exporter={"address": "127.0.0.1:0"})
    now = time.time_ns()
    later = _record(1 << 62, 99.0, at=now)
    later.now_ns = now + 86_400 * S
    for_ever = _record(1 << 62, 99.0, at=(1 << 63) - 1)
    odd = _record(3, float("nan"), run='<b>\n"\\\0', device="d" * 100_000, at=now)
    odd.samples.add(name="no_such_metric", value=1.0)
    odd.samples.add(name=BUSY, value=1.0, labels={"colour": "red"})
    poison = [
        b"",
        b"\xff\xfe" * 50,
        b"\x0a\xff\xff\xff\xff\x0f",
        *(r.SerializeToString() for r in (later, for_ever, odd)),
    ]
    exporter = Exporter(loaded)
    exporter.start()
    try:
        with open_log(loaded.log_url) as log:
            topics = Topics(loaded.log.topic_prefix)
            log.create_topics(topics.specs(loaded.log.partitions))
            for value in [*poison, _record(7, 3.25, at=now).SerializeToString(), *poison]:
                log.append(topics.metrics, b"0/a", value)
            log.flush()
            with closing(log.tail(topics.metrics)) as tail:
                while exporter.poll(tail, 1.0):
                    pass
        page = _get(exporter.address)
    finally:
        exporter.close()
    samples = [s for f in text_string_to_metric_families(page) for s in f.samples]
    values = {s.labels["run"]: s.value for s in samples if s.name == BUSY}
    assert values["a"] == 3.25
    (unreadable,) = (s.value for s in samples if s.name == "fleetscope_exporter_unreadable_total")
    assert unreadable == 2 * 4, "an empty message is an empty record"
    (unknown,) = (s.value for s in samples if s.name == "fleetscope_exporter_unknown_samples")
    assert unknown == 2


@pytest.mark.unit
def test_a_run_in_parts_is_one_run() -> None:
    state = _state()
    first, second = _record(5, 10.0, device="d0"), _record(5, 2.0, device="d1")
    second.part = 1
    for record in (first, second, _record(6, 11.0, device="d0")):
        state.take(record, 0)
    assert _values(state, BUSY) == {("a", "h0", "d0", "TPU v6e"): 11.0, ("a", "h0", "d1", "TPU v6e"): 2.0}


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


@pytest.mark.unit
def test_lag_grows_while_nothing_is_committed() -> None:
    """The record said 2 s at its commit; 90 s later nothing newer has come."""
    record = MetricsRecord(chain=1, epoch=4, now_ns=1002 * S, event_ns=1000 * S)
    record.samples.add(name="fleetscope_pipeline_lag_seconds", value=2.0, labels={"chain": "1"})
    state = _state()
    state.take(record, 1002 * S)
    assert _values(state, "fleetscope_pipeline_lag_seconds", 1092 * S) == {("1",): 92.0}


@pytest.mark.unit
def test_a_backlog_is_what_the_log_holds_beyond_the_offsets_of_a_chain() -> None:
    """By hand: of chain 0 (10 - 7) + (4 - 4), of chain 1 what was deleted and made anew counts as nothing."""
    state = _state()
    for chain, offsets in ((0, {0: 7, 2: 4}), (1, {1: 50})):
        record = MetricsRecord(chain=chain, epoch=4, now_ns=S, event_ns=S)
        for partition, offset in offsets.items():
            record.committed.add(partition=partition, offset=offset)
        state.take(record, S)
    state.take(MetricsRecord(chain=2, epoch=1, now_ns=S, event_ns=S), S)  # an older worker's
    families = {f.metric.name: f.samples for f in state.families(S, {0: 10, 1: 3, 2: 4, 3: 9})}
    assert families["fleetscope_pipeline_backlog_messages"] == {("0",): 3.0, ("1",): 0.0}
    assert "fleetscope_pipeline_backlog_messages" not in {f.metric.name for f in state.families(S)}


@pytest.mark.unit
def test_what_the_newest_round_holds_is_shown_beside_every_generation() -> None:
    def round_(number: int, folded: dict[int, int]) -> MetricsRecord:
        return round_record(Round(number, number * S, "me", {}, folded), 0)

    state = _state()
    for record in (round_(7, {0: 40, 1: 12}), _record(41, 1.0, generation=3), round_(6, {0: 31})):
        state.take(record, 0)
    assert _values(state, "fleetscope_lake_folded_epoch") == {("0",): 40.0, ("1",): 12.0}
    assert _values(state, "fleetscope_lake_round") == {(): 7.0}
    assert _values(state, BUSY) == {("a", "h0", "d0", "TPU v6e"): 1.0}


@pytest.mark.unit
def test_a_taken_port_is_a_numbered_error(tmp_path: Path, free_port: Callable[[], int]) -> None:
    address = f"127.0.0.1:{free_port()}"
    loaded = config.load(None, state_dir=tmp_path, exporter={"address": address})
    first = Exporter(loaded)
    first.start()
    try:
        with pytest.raises(Exception, match="FS5901"):
            Exporter(loaded).start()
    finally:
        first.close()


@pytest.mark.unit
@pytest.mark.parametrize("shard", ["3/3", "1", "/", "-1/2", "a/b", "0/0"])
def test_a_shard_that_is_none_is_refused(shard: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"exporter\.shard"):
        Exporter(config.load(None, exporter={"address": "127.0.0.1:0", "shard": shard}))


@pytest.mark.unit
@pytest.mark.parametrize("address", ["9464", "127.0.0.1:http", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_a_numbered_error(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"exporter\.address"):
        Exporter(config.load(None, state_dir=tmp_path, exporter={"address": address})).start()
