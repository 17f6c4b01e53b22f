"""Records of a PJRT shim, written through the native table by another process: what the agent ships of them."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fleetscope.agents.node import harvest
from fleetscope.agents.node.devices import Devices
from fleetscope.agents.node.pjrt import Pjrt, Seen, read_device
from fleetscope.native import recorder
from fleetscope.native.recorder import Drained
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.hlo_pb2 import HloModule
from fleetscope.schema.identity import device_id, key_hash, name_program, process_id, series_id
from fleetscope.schema.vocabulary import BatchFlag, Kind, SpanFlag

from .conftest import Child, MakeAgent, batches, eventually
from .test_agent import announced, table

_SHIM = """
import ctypes as c
class Argument(c.Structure):
    _fields_ = (("key", c.c_uint32), ("kind", c.c_uint8), ("value", c.c_uint64))
class Record(c.Structure):
    _fields_ = (("start", c.c_uint64), ("dur", c.c_uint64), ("arg", c.c_uint64), ("name", c.c_uint32),
                ("kind", c.c_uint8), ("flags", c.c_uint8), ("argument_count", c.c_uint32),
                ("arguments", c.POINTER(Argument)))
class Api(c.Structure):
    _fields_ = (("version", c.c_uint32), ("struct_size", c.c_uint32), ("epoch", c.CFUNCTYPE(c.c_uint32)),
                ("now", c.CFUNCTYPE(c.c_uint64)),
                ("name", c.CFUNCTYPE(c.c_uint32, c.c_uint32, c.c_char_p, c.c_uint64)),
                ("write", c.CFUNCTYPE(c.c_int, c.c_uint32, c.POINTER(Record))))
pointer = c.pythonapi.PyCapsule_GetPointer
pointer.restype, pointer.argtypes = c.c_void_p, (c.py_object, c.c_char_p)
api = Api.from_address(pointer(r.native_api, b"fleetscope.native._recorder.native_api"))
def name(text):
    return api.name(api.epoch(), text.encode(), len(text.encode()))
def put(kind, start, dur, arg, text="", flags=0, devices=None):
    arguments = (Argument * 1)(Argument(name("devices"), 40, devices or 0)) if devices else None
    assert api.write(api.epoch(), c.byref(Record(start, dur, arg, name(text) if text else 0, kind, flags,
                                                1 if devices else 0, arguments)))
def device(ordinal, **said):
    put(20, api.now(), 0, ordinal, json.dumps({"ordinal": ordinal, "platform": "cpu", "kind": "cpu", **said}))
"""


def shimmed(spawn: Callable[..., Child], **more: int) -> Child:
    """A connected process whose records are those of a shim."""
    child = spawn(**more)
    child.do("connect()")
    child.do(f"exec({_SHIM!r}, globals())")
    return child


def run_of(batch: wire.Batch) -> bool:
    return bool(batch.flags & BatchFlag.EXECUTIONS)


def modules(found: list[wire.Batch]) -> list[dict[str, Any]]:
    """Executions, as rows."""
    rows = (row for batch in found if run_of(batch) for row in table(batch).to_pylist())
    return [row for row in rows if row["kind"] == Kind.MODULE]


@pytest.mark.e2e
def test_records_become_device_batches_host_rows_samples_and_names(
    make_agent: MakeAgent, spawn: Callable[..., Child], tmp_path: Path
) -> None:
    agent = make_agent()
    child = shimmed(spawn, rank=2)
    child.do("device(0, local_hardware_id=1); t = api.now()")
    child.do("put(21, t, 50, 7 << 1, 'jit_step#7', devices=1)")
    child.do("put(16, t + 100, 10, 1, 'jit_step#7'); put(16, t + 120, 10, 2, 'jit_step#7')")
    child.do("put(17, t + 120, 900, 2 << 12, 'jit_step#7'); put(17, t + 100, 400, 1 << 12, 'jit_step#7')")
    child.do("put(17, t + 120, 900, 2 << 12, 'jit_step#7')")
    child.do("put(18, t + 5, 40, (4096 << 12)); put(19, t + 700, 20, (512 << 12)); put(19, t + 800, 20, (8 << 12))")
    child.do("put(32, t + 1, 0, 123, 'pjrt_memory_bytes_in_use/0')")
    # The fingerprint never comes: executions wait for it 5 s; a clock of the test's own saves them.
    agent.tick()
    process = next(iter(agent.registry))
    assert process.pjrt is not None
    process.pjrt.learn(7, 4242)
    time.sleep(0.1)
    agent.tick()
    child.close()
    agent.tick()
    agent.close()
    found = batches(tmp_path / "s", child.pid)
    executed = [batch for batch in found if run_of(batch)]
    rows = [row for batch in executed for row in table(batch).to_pylist()]
    ran = modules(found)
    t = ran[0]["start"] - 100
    assert [(row["start"] - t, row["dur"], row["exec"], row["flow"]) for row in ran] == [
        (100, 400, 0, 1),
        (500, 520, 1, 2),
    ]
    assert {(row["program"], row["flags"], row["line"], row["weight"]) for row in ran} == {
        (4242, int(SpanFlag.INFERRED_BEGIN), 4096, 1)
    }
    assert [(row["start"] - t, row["dur"], row["exec"], row["flow"]) for row in rows if row["kind"] == Kind.QUEUE] == [
        (120, 380, 0, 2)
    ]
    assert [batch.tick_from for batch in executed[1:]] == [batch.tick_to for batch in executed[:-1]]
    key = "h1/cpu/2/1"
    assert {batch.device.key for batch in executed} == {key}
    assert {(batch.clock.clock, batch.clock.period_num) for batch in found if run_of(batch)} <= {
        (batch.clock.clock, batch.clock.period_num) for batch in found if not run_of(batch) and batch.rows
    }
    assert {device.device.key for device in announced(found, "device")} == {key}
    host = [row for batch in found if batch.payload_kind == wire.PAYLOAD_SPANS and not run_of(batch)
            for row in table(batch).to_pylist()]  # fmt: skip
    assert [(row["kind"], row["start"] - t, row["dur"], row["flow"]) for row in host if row["kind"] < Kind.H2D] == [
        (Kind.DISPATCH, 100, 10, 1),
        (Kind.DISPATCH, 120, 10, 2),
    ]
    assert sorted((row["kind"], row["start"] - t, row["dur"]) for row in host if row["kind"] >= Kind.H2D) == [
        (Kind.H2D, 5, 40),
        (Kind.D2H, 700, 20),
        (Kind.D2H, 800, 20),
    ]
    names = {name.name: name.program for name in announced(found, "name")}
    assert names["jit_step"] == name_program("jit_step")
    assert {row["program"] for row in host if row["kind"] == Kind.H2D} == {names["host to device"]}
    samples = {
        (row["series"], row["device"]): row["value_int"]
        for batch in found
        if batch.payload_kind == wire.PAYLOAD_SAMPLES
        for row in table(batch).to_pylist()
    }
    number = device_id(key)
    assert samples[series_id("pjrt_h2d_bytes_total", {}), number] == 4096
    assert samples[series_id("pjrt_d2h_bytes_total", {}), number] == 520
    assert samples[series_id("pjrt_memory_bytes_in_use", {}), number] == 123
    assert process.pjrt.counts == {"duplicate": 1}


@pytest.mark.fault
def test_a_killed_process_leaves_what_was_in_flight_truncated(
    make_agent: MakeAgent, spawn: Callable[..., Child], tmp_path: Path
) -> None:
    agent = make_agent()
    child = shimmed(spawn)
    child.do("device(0); t = api.now(); put(16, t, 10, 1, 'jit_f#1'); put(16, t + 5, 10, 2, 'jit_f#1')")
    time.sleep(0.05)
    agent.tick()
    alive = agent.clocks.now()
    time.sleep(0.3)
    child.kill()
    agent.tick()
    agent.close()
    rows = modules(batches(tmp_path / "s", child.pid))
    assert [row["flow"] for row in rows] == [1, 2]
    assert all(row["flags"] & SpanFlag.TRUNCATED for row in rows)
    assert rows[0]["dur"] > 0
    assert rows[0]["start"] + rows[0]["dur"] <= alive, "up to when it was last seen alive"
    assert rows[1]["dur"] == 0


@pytest.mark.fault
def test_an_agent_that_starts_again_tells_each_execution_once(
    make_agent: MakeAgent, spawn: Callable[..., Child], tmp_path: Path
) -> None:
    first = make_agent()
    child = shimmed(spawn)
    child.do("device(0); t = api.now(); put(21, t, 1, 1 << 1, 'jit_f#1', devices=1)")
    child.do("[put(16, t + 100 * i, 1, i, 'jit_f#1') for i in range(1, 9)]")
    child.do("[put(17, t + 100 * i, 90, i << 12, 'jit_f#1') for i in range(1, 5)]")
    next(iter(first.registry)).pjrt.learn(1, 77)  # type: ignore[union-attr]
    time.sleep(0.1)
    first.tick()
    next(iter(first.registry)).pjrt.learn(1, 77)  # type: ignore[union-attr]
    time.sleep(0.1)
    first.tick()
    first.close()
    second = make_agent()
    child.do("[put(17, t + 100 * i, 90, i << 12, 'jit_f#1') for i in range(4, 9)]")
    time.sleep(0.1)
    second.tick()
    child.close()
    second.tick()
    second.close()
    rows = modules(batches(tmp_path / "s", child.pid))
    assert [(row["flow"], row["exec"], row["dur"]) for row in rows] == [(i, i - 1, 90) for i in range(1, 9)]


@pytest.mark.e2e
def test_hlo_is_taken_fingerprinted_announced_and_removed(
    make_agent: MakeAgent, spawn: Callable[..., Child], tmp_path: Path
) -> None:
    agent = make_agent()
    child = shimmed(spawn)
    agent.tick()
    process = next(iter(agent.registry))
    assert process.segment is not None
    folder = harvest.folder_of(process.segment.path)
    folder.mkdir()
    module = HloModule(name="jit_step", id=31)
    computation = module.computations.add(name="main", id=1, root_id=2)
    computation.instructions.add(name="x", id=2, opcode="parameter")
    (folder / "7.pb").write_bytes(module.SerializeToString())
    (folder / "8.pb").write_bytes(b"\\xff" * 100)
    (folder / "9.pb").symlink_to("/etc/passwd")
    (folder / "half.pb.partial").write_bytes(b"x")
    os.mkfifo(folder / "10.pb")
    child.do("device(0); t = api.now(); put(21, t, 1, 7 << 1, 'jit_step#7', devices=1)")
    child.do("put(16, t + 1, 1, 1, 'jit_step#7'); put(17, t + 1, 9, 1 << 12, 'jit_step#7')")
    deadline = time.monotonic() + 60
    while {path.name for path in folder.iterdir()} != {"half.pb.partial"} and time.monotonic() < deadline:
        agent.tick()
        time.sleep(0.05)
    assert {path.name for path in folder.iterdir()} == {"half.pb.partial"}
    child.close()
    eventually(lambda: agent.tick() > 0 and not folder.exists())  # its connection may outlive it for a round
    agent.close()
    found = batches(tmp_path / "s", child.pid)
    (load,) = announced(found, "program_load")
    label = key_hash("provisional", process_id(process.source), "jit_step#7")
    assert (load.program_id, load.module) == (label, "jit_step")
    rows = [row for batch in found if run_of(batch) for row in table(batch).to_pylist()]
    assert [(row["program"], row["flags"]) for row in rows] == [(load.program, int(SpanFlag.INFERRED_BEGIN))]
    assert process.windows["program_undecodable"] == 1
    assert process.pjrt is not None
    assert process.pjrt.label_of(7, "another name in its HLO") == "jit_step#7", "as its LOAD said"


@pytest.mark.unit
def test_a_device_has_one_key_whoever_names_it() -> None:
    from types import SimpleNamespace

    gpus = [wire.Device(key=key, platform="gpu", local_ordinal=n) for n, key in enumerate(("GPU-other", "GPU-uuid"))]
    devices = Devices(SimpleNamespace(name="h1"), lambda: gpus)  # type: ignore[arg-type]
    process: Any = SimpleNamespace(hello=SimpleNamespace(rank=4), os_pid=0, pjrt=None)
    for platform in ("cuda", "CUDA", "rocm"):
        seen = read_device(json.dumps({"platform": platform, "kind": "H100", "local_hardware_id": 1}), 0)
        assert seen is not None
        assert devices.seen(process, seen).key == "GPU-uuid"
    tpu = read_device(json.dumps({"platform": "tpu", "kind": "TPU v6e", "coords": [0, 1, 0]}), 3)
    assert tpu == Seen("tpu", 3, "TPU v6e", "tpu:3", "[0, 1, 0]")
    spans: Any = SimpleNamespace(platform="tpu", ordinal=3, sku="TPU v6e", name="/device:TPU:3", stats={})
    assert devices.seen(process, tpu).key == devices(process, spans).key == "h1/tpu/4/3"


@pytest.mark.unit
@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"platform": 3}', '{"platform": ""}', "[" * 5000, '{"kind": "x"}', "\\ud800"],
)
def test_a_device_record_that_is_none_is_counted(text: str) -> None:
    assert read_device(text, 0) is None


def _drained(records: list[tuple[int, ...]]) -> Drained:
    columns = np.array(records, np.int64).reshape(-1, 7).T
    empty = np.zeros(0, np.int64)
    return Drained(
        start=columns[0], dur=columns[1], arg=columns[2], seq=np.arange(len(records)), name=columns[3].astype(np.int32),
        line=columns[4].astype(np.int32), kind=columns[5].astype(np.uint8), flags=columns[6].astype(np.uint8),
        flow=np.zeros(len(records), np.int64),
        weight=np.ones(len(records), np.int32),
        arg_row=empty.astype(np.int32), arg_key=empty.astype(np.int32), arg_kind=empty.astype(np.uint8),
        arg_value=empty, link_row=empty.astype(np.int32), link_kind=empty.astype(np.uint8),
        link_type=empty.astype(np.int32), link_id=empty, lost=0, more=False,
    )  # fmt: skip


@pytest.mark.fault
def test_records_of_noise_neither_raise_nor_grow() -> None:
    random = np.random.default_rng(5)
    texts = ["", '{"platform": "cpu"}', "f#1", "#", "f#99999999999999999999999", "x#-1", "{", "f#１"]
    pjrt = Pjrt(1, lambda name: texts[name % len(texts)], lambda seen: wire.Device(key=f"{seen.ordinal}"))
    for _ in range(30):
        wide = random.choice([1 << 10, 1 << 40, (1 << 62) - 1])
        records = [
            (
                int(random.integers(-5, wide)), int(random.integers(-5, wide)), int(random.integers(-9, 1 << 62)),
                int(random.integers(0, 8)), int(random.integers(0, 1 << 20)), int(random.integers(16, 32)),
                int(random.integers(0, 4)),
            )
            for _ in range(300)
        ]  # fmt: skip
        top = (1 << 63) - 1
        kinds = (recorder.LAUNCH, recorder.DONE, recorder.H2D, recorder.LOAD, recorder.DEVICE)
        records += [(start, top, 1 << 12, 1, 1, kind, 0) for start in (1, top) for kind in kinds]
        pjrt.take(_drained(records), 0.0)
        for told in pjrt.settle(1 << 50, 1000, 10.0):
            rows: pa.RecordBatch = told.rows
            assert told.tick_from < told.tick_to
            assert rows.num_rows == 0 or min(rows.column("dur").to_pylist()) >= 0
    list(pjrt.finish(1 << 61))
    assert len(pjrt.executions.lanes) <= 256
    assert pjrt.counts["impossible"] > 0
    assert pjrt.counts["unknown_kind"] > 0


@pytest.mark.fault
def test_devices_that_two_clients_call_alike_stay_two() -> None:
    """Found: their ranges overlapped, so the chain refused the batches of both."""
    said = json.dumps({"platform": "cpu", "kind": "cpu", "local_hardware_id": 0})
    texts = [said, "f#1"]
    pjrt = Pjrt(1, lambda name: texts[name], lambda seen: wire.Device(key=f"h/cpu/0/{seen.ordinal}"))
    records = [(10, 0, ordinal, 0, 1, recorder.DEVICE, 0) for ordinal in (0, 1)]
    for ordinal in (0, 1):
        launch = ordinal + 1
        records += [(1000, 5, launch, 1, 1, recorder.LAUNCH, 0)]
        records += [(1000, 50, launch << 12 | ordinal, 1, 1, recorder.DONE, 0)]
    host = pjrt.take(_drained(records), 0.0)
    told = [*pjrt.settle(1 << 40, 1000, 10.0), *pjrt.finish(1 << 41)]
    ranges: dict[str, list[tuple[int, int]]] = {}
    for batch in told:
        ranges.setdefault(batch.device.key, []).append((batch.tick_from, batch.tick_to))
    assert sorted(ranges) == ["h/cpu/0/0", "h/cpu/0/0#1"]
    for found in ranges.values():
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(found)))
    assert pjrt.counts["device_alike"] == 1
    assert {item.device.device.key for item in host.announcements if item.HasField("device")} == set(ranges)


@pytest.mark.fault
def test_a_folder_that_is_a_link_and_files_that_are_none(tmp_path: Path) -> None:
    """A process chooses what lies beside its segment: nothing beyond may be read or removed."""
    segment, victim = tmp_path / "fleetscope-1-1.ring", tmp_path / "victim"
    victim.mkdir()
    (victim / "1.pb").write_bytes(b"precious")
    harvest.folder_of(segment).symlink_to(victim)
    assert list(harvest.waiting(str(segment), set())) == []
    harvest.discard(str(harvest.folder_of(segment) / "1.pb"))
    harvest.remove_folder(segment)
    assert (victim / "1.pb").read_bytes() == b"precious"
    harvest.folder_of(segment).unlink()
    folder = harvest.folder_of(segment)
    folder.mkdir()
    (folder / "1.pb").mkdir()
    (folder / "2.pb").symlink_to(victim / "1.pb")
    os.mkfifo(folder / "3.pb")
    with (folder / "4.pb").open("wb") as sparse:
        sparse.truncate(harvest.HLO_BYTES + 1)
    (folder / "..\\5.pb").write_bytes(b"x")
    (folder / "6.pb").write_bytes(b"whole")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        found = [(item.load, body) for item, body in harvest.waiting(str(segment), set())]
        assert found == [(6, b"whole")]
    assert len(os.listdir("/proc/self/fd")) == before
    assert (victim / "1.pb").exists()
