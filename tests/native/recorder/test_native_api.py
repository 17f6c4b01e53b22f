"""The table that native code writes records through: any thread, more threads than rings, closed gates."""

import ctypes as c
import threading
from collections import Counter

import pytest

from fleetscope.native import _recorder as recorder
from fleetscope.native.recorder import ARG_INT, DONE, FAILED, LAUNCH, LOAD, Segment

pytestmark = pytest.mark.unit


class Argument(c.Structure):
    _fields_ = (("key", c.c_uint32), ("kind", c.c_uint8), ("value", c.c_uint64))


class Record(c.Structure):
    _fields_ = (
        ("start", c.c_uint64),
        ("dur", c.c_uint64),
        ("arg", c.c_uint64),
        ("name", c.c_uint32),
        ("kind", c.c_uint8),
        ("flags", c.c_uint8),
        ("argument_count", c.c_uint32),
        ("arguments", c.POINTER(Argument)),
    )


class Api(c.Structure):
    _fields_ = (
        ("version", c.c_uint32),
        ("struct_size", c.c_uint32),
        ("epoch", c.CFUNCTYPE(c.c_uint32)),
        ("now", c.CFUNCTYPE(c.c_uint64)),
        ("name", c.CFUNCTYPE(c.c_uint32, c.c_uint32, c.c_char_p, c.c_uint64)),
        ("write", c.CFUNCTYPE(c.c_int, c.c_uint32, c.POINTER(Record))),
        ("segment", c.CFUNCTYPE(c.c_int, c.c_uint32, c.c_char_p, c.c_uint64)),
        ("period", c.CFUNCTYPE(None, c.POINTER(c.c_uint64), c.POINTER(c.c_uint64))),
        ("execution_begins", c.CFUNCTYPE(None, c.c_uint32, c.c_int64, c.c_uint64)),
        ("execution_ends", c.CFUNCTYPE(None, c.c_uint32, c.c_int64, c.c_uint64)),
        ("follow", c.CFUNCTYPE(None, c.c_uint32)),
    )


@pytest.fixture(scope="module")
def api() -> Api:
    pointer = c.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = c.c_void_p, (c.py_object, c.c_char_p)
    table = Api.from_address(pointer(recorder.native_api, b"fleetscope.native._recorder.native_api"))
    assert table.struct_size == c.sizeof(Api)
    return table


def test_a_record_comes_out_as_it_went_in(api: Api, segment: Segment) -> None:
    epoch = api.epoch()
    name, key = api.name(epoch, b"jit_f#1", 7), api.name(epoch, b"devices", 7)
    begin = api.now()
    arguments = (Argument * 1)(Argument(key, ARG_INT, 8))
    assert api.write(epoch, Record(begin, 5, 3, name, LAUNCH, 0, 0, None))
    assert api.write(epoch, Record(begin, 1 << 41, 3 << 12 | 7, name, DONE, FAILED, 0, None))
    assert api.write(epoch, Record(begin, 9, 2, name, LOAD, 0, 1, arguments))
    got = segment.drain()
    assert [segment.names()[n] for n in got.name] == ["jit_f#1"] * 3
    assert got.start.tolist() == [begin] * 3
    assert got.dur.tolist() == [5, 1 << 41, 9]
    assert got.arg.tolist() == [3, 3 << 12 | 7, 2]
    assert got.kind.tolist() == [LAUNCH, DONE, LOAD]
    assert got.flags.tolist() == [0, FAILED, 0]
    assert (got.arg_row.tolist(), got.arg_value.tolist()) == ([2], [8])
    buffer = c.create_string_buffer(512)
    assert api.segment(epoch, buffer, 512)
    assert buffer.value.decode() == segment.path


def test_more_threads_than_rings_lose_nothing(api: Api, segment: Segment) -> None:
    epoch, threads, each = api.epoch(), 80, 60
    together = threading.Barrier(threads, timeout=60)
    refused: list[int] = []

    def write(number: int) -> None:
        together.wait()
        for i in range(each):
            if not api.write(epoch, Record(api.now(), 0, number << 32 | i, 0, DONE, 0, 0, None)):
                refused.append(number)
        together.wait()  # all rings are held at once

    pool = [threading.Thread(target=write, args=(n,)) for n in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    assert not refused
    with recorder.annotate("still room for Python"):
        pass
    got = segment.drain(1 << 20)
    written = got.arg[got.kind == DONE]
    assert Counter(written.tolist()) == Counter(n << 32 | i for n in range(threads) for i in range(each))
    assert len(got) == threads * each + 1
    assert (got.lost, segment.state().no_ring) == (0, 0)
    rings = Counter((got.line[got.kind == DONE] >> 8).tolist())
    assert len(rings) == 49  # 48 of their own, and the one they share
    shared = max(rings, key=lambda ring: rings[ring])
    assert rings[shared] == (threads - 48) * each
    assert [segment.names()[t.name] for t in segment.threads() if t.line >> 8 == shared] == ["plugin threads"]


def test_a_closed_gate_says_so_and_late_writers_hit_nothing(api: Api, segment: Segment) -> None:
    epoch = api.epoch()
    recorder.record(False)
    assert api.epoch() == 0
    assert api.name(epoch, b"x", 1) == 0
    recorder.close(True)
    outcome = []
    late = threading.Thread(target=lambda: outcome.append(api.write(epoch, Record(1, 1, 1, 0, LAUNCH, 0, 0, None))))
    late.start()
    late.join()
    assert outcome == [0]
    assert not api.segment(epoch, c.create_string_buffer(512), 512)


def test_executions_of_the_program_that_is_followed_are_a_pace_of_their_own(api: Api) -> None:
    recorder.compiled()  # whatever ran before: the first execution is the one that met a compile
    steps = recorder.steps()
    api.follow(7)
    for number, at in ((1, 1_000), (2, 3_000), (5, 5_000), (4, 6_000)):  # the last by a thread that came late
        api.execution_begins(7, number, at)
        api.execution_begins(8, number + 100, at)  # another program's
    assert recorder.executions()[:3] == (5, 5_000, 3)
    assert recorder.executions()[5] == 2
    assert recorder.steps() == steps
    assert recorder.wait(5, 0, True)
    assert not recorder.wait(6, 0, True)
    # A waiter is woken by the execution it waits for, from a thread without the GIL.
    beginner = threading.Timer(0.05, api.execution_begins, (7, 6, 7_000))
    beginner.start()
    assert recorder.wait(6, 60, True)
    beginner.join()
    # What ends first at or after a mark, and nothing before it or of another program.
    recorder.mark(10_000)
    for whose, number, at in ((7, 3, 9_999), (8, 4, 10_001), (7, 5, 10_002), (7, 6, 10_003)):
        api.execution_ends(whose, number, at)
    assert recorder.marked() == (5, 10_002)
    recorder.mark(20_000)
    assert recorder.marked() is None
    recorder.compiled()
    assert recorder.executions()[5] == 0
    api.follow(9)
    assert recorder.executions()[:3] == (-1, 0, 0)
    assert recorder.marked() is None
    api.follow(0)
