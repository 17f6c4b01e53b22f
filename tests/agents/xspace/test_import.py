"""A capture file into the log: numbering by content, clocks, announcements, files that are no captures."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fleetscope.agents.batches import Numberer, pack
from fleetscope.agents.programs.chunks import join_chunks
from fleetscope.agents.xspace.importing import Imported, import_capture, import_drafts, read_capture, source_of
from fleetscope.pipelines.align.clocks import ClockState
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import Config, load
from fleetscope.schema.errors import XSpaceUnreadable
from fleetscope.transport import Topics, open_log

Get = Callable[[str], Imported]
V6E = "xprof__tpu_inference_2.xplane.pb"
START_NS, STOP_NS = 1_741_722_099_081_044_120, 1_741_722_197_726_153_802
"""profile_start_time and profile_stop_time of the v6e sample's Task Environment plane."""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load(None, state_dir=tmp_path)


def batches(config: Config) -> list[wire.Batch]:
    with open_log(config.log_url) as opened:
        topic = Topics(config.log.topic_prefix).telemetry
        ends = opened.end_offsets(topic)
        values = [message.value for partition, end in ends.items() for message in opened.read(topic, partition, 0, end)]
    return [wire.Batch.FromString(value) for value in values]


@pytest.mark.unit
def test_a_file_in_the_log(config: Config, samples: Path) -> None:
    report = import_capture(config, samples / "xplane" / V6E, run="serve")
    assert report.column("device").to_pylist()[-1] == "all"
    assert report.column("ops").to_pylist() == [1_504, 1_503, 1_503, 1_503, 6_013]
    found = batches(config)
    assert [batch.batch_number for batch in found] == list(range(len(found)))
    first = 0
    for batch in found:
        assert batch.first_event == first
        first += batch.rows
        assert batch.produced == first
        assert (batch.source.run, batch.source.pid) == ("serve", 1)
    # 6 013 ops, 414 executions, and every host event: 26 723 - 6 013 - 414 - 600 asynchronous - 426 trace marks.
    assert first == 6_013 + 414 + 19_270
    devices = {batch.device.local_name: batch for batch in found if batch.HasField("device")}
    assert sorted(devices) == [f"/device:TPU:{i}" for i in range(4)]
    assert {batch.window.complete for batch in devices.values()} == {True}
    assert len({batch.device.key for batch in devices.values()}) == 4
    told = [announcement for batch in found for announcement in batch.announcements]
    kinds = {announcement.WhichOneof("info") for announcement in told}
    assert kinds == {"host", "process", "device", "line", "name", "program_load", "run_event"}
    loads = {load.program_load.program_id: load.program_load.module for load in told if load.HasField("program_load")}
    assert sorted(loads.values()) == ["jit__psum", "jit_broadcast_in_dim", "jit_convert_element_type", "jit_f"]


@pytest.mark.unit
def test_programs_travel_with_what_the_capture_declares(config: Config, samples: Path) -> None:
    import_capture(config, samples / "xplane" / V6E)
    with open_log(config.log_url) as opened:
        topic = Topics(config.log.topic_prefix).programs
        chunks = [
            wire.ProgramChunk.FromString(message.value)
            for partition, end in opened.end_offsets(topic).items()
            for message in opened.read(topic, partition, 0, end)
        ]
    tables = {chunk.module: join_chunks([chunk]) for chunk in chunks}
    assert len(tables) == 4
    psum = tables["jit__psum"]
    assert psum is not None
    [row] = [row for row in psum.to_pylist() if row["name"] == "all-reduce"]
    # Read from the file with google.protobuf: stats of event metadata 10 of /device:TPU:0.
    assert (row["declared_flops"], row["declared_bytes"]) == (1_342_177_280, 10_737_418_240)
    assert row["declared_bytes_hbm"] == 10_737_418_240
    assert (row["category"], row["op_name"]) == ("all-reduce", "jit(_psum)/jit(main)/reduce_sum")


@pytest.mark.unit
def test_importing_twice_gives_the_same_numbers(config: Config, samples: Path) -> None:
    for _ in range(2):
        import_capture(config, samples / "xplane" / "tracelens__mi300_jax08_gemm.xplane.pb")
    found = batches(config)
    half = len(found) // 2
    assert half * 2 == len(found)

    def numbers(batch: wire.Batch) -> tuple[int, int, int, int, bytes]:
        return batch.source_id, batch.batch_number, batch.first_event, batch.rows, batch.payload

    assert [numbers(batch) for batch in found[:half]] == [numbers(batch) for batch in found[half:]]


@pytest.mark.unit
def test_raw_device_time_is_placed_on_the_line_of_the_clean_ops(imported: Get) -> None:
    """The pipeline's clock code on our snapshots: 51 % of ops are displaced upwards in the capture, the rest lie
    within 18 us of one line per core (xprof.md 5.3). That line is where the batch must be placed.
    """
    capture = imported("v6e")
    source = source_of(capture, "test")
    state = ClockState()
    placed_devices = 0
    for draft in import_drafts(capture, source):
        state.take(draft.source, draft.snapshots)
        if draft.device is None:
            continue
        placed_devices += 1
        assert draft.clock is not None
        placed = state.place(draft.source, draft.clock, draft.tick_from, draft.tick_to, 0)
        assert state.counters["without_clock"] == 0
        assert draft.rows is not None
        ticks = draft.rows.column("start").to_numpy().tolist()
        [segment] = [piece for piece in placed if piece.valid_from <= min(ticks) <= max(ticks) < piece.valid_to]
        inside_session = [segment.y0 + (tick - segment.x0) * segment.n // segment.d for tick in ticks]
        assert START_NS < min(inside_session) < max(inside_session) < STOP_NS
        # Nominal placement (no drift) of a tick 78 s in is 1.2 ms early: 15.04 ppm of 78 s.
        last = max(ticks)
        nominal = START_NS + last * 5 // 4
        placed_last = segment.y0 + (last - segment.x0) * segment.n // segment.d
        assert placed_last - nominal == pytest.approx(15.045e-6 * last * 1.25 - 67_000, abs=20_000)
    assert placed_devices == 4
    # Two of the wall clock and two of each chip: none was refused or went backwards.
    assert state.counters == {"taken": 10}


@pytest.mark.unit
def test_a_capture_without_a_start_is_placed_by_the_files_date(samples: Path, tmp_path: Path) -> None:
    copy = tmp_path / "old.xplane.pb"
    copy.write_bytes((samples / "xplane" / "xprof__demo_gpu_v100x8_tf_2020.xplane.pb").read_bytes())
    capture = read_capture(copy)
    assert not capture.report.start_stated
    assert capture.capture.session.start_ns == copy.stat().st_mtime_ns
    first = capture.capture.devices[0].rows.column("start")[0].as_py()
    assert 0 <= first - copy.stat().st_mtime_ns < 10 * 10**9


@pytest.mark.unit
def test_many_names_are_spread_over_headers(imported: Get) -> None:
    """5 056 names of the V100 capture are 0.6 MB; a header that held them all would not fit beside 8 MiB of payload."""
    capture = imported("v100")
    numberer = Numberer(1)
    headers = []
    names = 0
    for draft in import_drafts(capture, source_of(capture, "test")):
        for packed in pack(draft):
            numbered = numberer.number(packed, 0)
            headers.append(len(numbered.value) - len(packed.payload))
        names += sum(announcement.HasField("name") for announcement in draft.announcements)
    assert names >= 5_056
    assert max(headers) < 256 << 10


@pytest.mark.fault
@pytest.mark.parametrize("damage", ["cut", "mangled", "text", "empty", "missing", "folder"])
def test_files_that_are_no_captures(config: Config, samples: Path, tmp_path: Path, damage: str) -> None:
    good = (samples / "xplane" / V6E).read_bytes()
    file = tmp_path / f"{damage}.xplane.pb"
    content = {
        "cut": good[: len(good) // 2],
        # What happened to the file at the head of openxla/xprof: read as UTF-8 text and written again.
        "mangled": good.decode("utf-8", "replace").encode(),
        "text": b"#!/bin/sh\necho no capture\n",
        "empty": b"",
    }
    if damage in content:
        file.write_bytes(content[damage])
    elif damage == "folder":
        file.mkdir()
    with pytest.raises(XSpaceUnreadable) as error:
        import_capture(config, file)
    assert str(file) in str(error.value)
    assert str(error.value).startswith("FS3050: ")
    if damage == "cut":
        assert "at byte" in str(error.value)
