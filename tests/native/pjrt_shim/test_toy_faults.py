"""A plugin that fails, hangs, forks or dies on request: the caller never notices us, and the records say so."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.fault

Run = Callable[..., dict[str, Any]]


def test_what_never_completes_stays_in_flight(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=NEVER)
        executable = toy.compile(toy.client(), "jit_f")
        toy.execute(executable, 2000, devices=2)
        toy.set(mode=INLINE)
        toy.execute(executable, 5, devices=2)
        say(launches=len(records.of(16)), dones=len(records.of(17)), counts=counts())
    """)
    assert (said["launches"], said["dones"]) == (2005, 10)
    assert said["counts"]["in_flight"] == 4000


def test_completed_twice_is_recorded_once_and_counted(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=TWICE)
        executable = toy.compile(toy.client(), "jit_f")
        toy.execute(executable, 400, devices=2)
        toy.settle()
        toy.set(mode=THREAD)
        toy.execute(executable, 400, devices=2)
        toy.settle()
        until(lambda: records.counter("pjrt_completions_twice") == 800)
        say(dones=sorted(r["arg"] for r in records.of(17)), counts=counts())
    """)
    assert said["dones"] == [launch << 12 | device for launch in range(1, 801) for device in range(2)]
    assert (said["counts"]["twice"], said["counts"]["in_flight"]) == (800, 0)


def test_errors_go_to_the_caller_and_into_the_records(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=EXECUTE_FAILS)
        client = toy.client()
        executable = toy.compile(client, "jit_f")
        refused = toy.execute(executable, 7, devices=2)
        toy.set(mode=DEVICE_FAILS)
        accepted = toy.execute(executable, 5, devices=2)
        toy.settle()
        bad = toy.compile(client, "fail jit_g").value
        toy.set(mode=EXECUTE_FAILS)
        transfers = toy.lib.toy_transfer(toy.table, client, c.c_int64(4096))
        until(lambda: records.counter("pjrt_errors") == 7 + 10 + 1 + 2)
        say(refused=refused, accepted=accepted, bad=bad, transfers=transfers,
            launches=[r["flags"] for r in records.of(16)], dones=[r["flags"] for r in records.of(17)],
            loads=[(r["flags"], r["arg"], r["name"]) for r in records.of(21)],
            h2d=[r["flags"] for r in records.of(18)], d2h=[r["flags"] for r in records.of(19)], counts=counts())
    """)  # fmt: skip
    assert (said["refused"], said["accepted"], said["bad"], said["transfers"]) == (7, 0, None, 2)
    assert said["launches"] == [1] * 7 + [0] * 5
    assert said["dones"] == [1] * 10
    assert said["loads"] == [[0, 2, "jit_f#1"], [1, 0, ""]]
    assert 1 in said["h2d"]
    assert 1 in said["d2h"]
    assert said["counts"]["errors"] == 20


@pytest.mark.parametrize(("mode", "dones"), [("ON_READY_FAILS", 0), ("ON_READY_LIES", 100)])
def test_a_plugin_without_callbacks_is_untracked_not_in_flight(on_toy: Run, mode: str, dones: int) -> None:
    said = on_toy(f"""
        records, toy = begin(mode={mode})
        executable = toy.compile(toy.client(), "jit_f")
        for want in (True, False):
            toy.execute(executable, 25, devices=2, want=want)
        say(launches=len(records.of(16)), dones=len(records.of(17)), counts=counts(), events=toy.live("events"))
    """)
    assert (said["launches"], said["dones"], said["events"]) == (50, dones, 0)
    assert (said["counts"]["untracked"], said["counts"]["in_flight"]) == (100, 0)


def test_a_plugin_that_hangs_delays_the_end_by_at_most_two_seconds(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=INLINE, hlo_stall_us=8_000_000)
        client = toy.client()
        toy.compile(client, "jit_f")
        time.sleep(0.1)
        begun = time.monotonic()
        ended = _pjrt_shim.stop(300)
        say(took=time.monotonic() - begun, ended=ended)
        os._exit(0)
    """)
    assert not said["ended"]
    assert 0.25 < said["took"] < 2


def test_a_child_of_a_process_with_a_client_forwards_only(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=INLINE)
        client = toy.client()
        executable = toy.compile(client, "jit_f")
        toy.execute(executable, 10)
        before = len(records.of(17))
        pid = os.fork()
        if pid == 0:
            failed = toy.execute(executable, 5)
            another = toy.compile(client, "jit_child")
            failed += toy.execute(another, 5)
            toy.unload(another)
            mine = _recorder.open(folder + "/child") if os.makedirs(folder + "/child") is None else ""
            _recorder.record(True)
            failed += toy.execute(executable, 5)
            recorded = len(Segment(mine).drain())
            os._exit(0 if failed == 0 and recorded == 0 else 1)
        status = os.waitpid(pid, 0)[1]
        toy.execute(executable, 10)
        say(status=status, before=before, after=len(records.of(17)))
    """)
    assert said == {"status": 0, "before": 40, "after": 80}


def test_a_fork_before_any_client_leaves_the_child_fresh(on_toy: Run) -> None:
    said = on_toy("""
        pid = os.fork()
        if pid == 0:
            records, toy = begin(mode=INLINE)
            toy.execute(toy.compile(toy.client(), "jit_f"), 10)
            until(lambda: len(records.programs()) == 1)
            os._exit(0 if len(records.of(17)) == 40 else 1)
        say(status=os.waitpid(pid, 0)[1])
    """)
    assert said == {"status": 0}


def test_killed_in_flight_leaves_the_launches_for_whoever_reads(on_toy: Run) -> None:
    said = on_toy("""
        import signal
        import fleetscope.native.recorder
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            records, toy = begin(mode=NEVER)
            executable = toy.compile(toy.client(), "jit_f")
            toy.set(mode=INLINE)
            toy.execute(executable, 20, devices=1)
            toy.set(mode=NEVER)
            toy.execute(executable, 3, devices=1)
            os.write(write_end, records.path.encode())
            time.sleep(60)
        path = os.read(read_end, 1000).decode()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        got = Segment(path).drain()
        launches = set(got.arg[got.kind == 16].tolist())
        dones = set((got.arg[got.kind == 17] >> 12).tolist())
        say(launches=len(launches), open=sorted(launches - dones), lost=got.lost)
    """)
    assert said == {"launches": 23, "open": [21, 22, 23], "lost": 0}
