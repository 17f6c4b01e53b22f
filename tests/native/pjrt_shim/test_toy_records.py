"""Records against the plugin's own log: every enqueue, completion and transfer, whose it is, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.fault

Run = Callable[..., dict[str, Any]]


def test_every_enqueue_and_completion_of_64_threads_is_exact(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=THREAD)
        client = toy.client()
        executables = [toy.compile(client, f"jit_f{i}") for i in range(64)]
        number_of = {toy.lib.toy_id(e): f"jit_f{i}" for i, e in enumerate(executables)}
        for _ in range(8):  # 4 800 records a round, which may all lie in one ring of 8 192
            toy.execute_threads(executables, 25, devices=2)
            toy.settle()
            records.read_on()
        names, log = records.segment.names(), toy.log()
        columns = records.read()
        launch, done = columns["kind"] == 16, columns["kind"] == 17
        label = lambda rows: [names[n].partition("#")[0] for n in columns["name"][rows]]
        launches = {}  # launch id -> row
        for i in np.flatnonzero(launch):
            launches[int(columns["arg"][i])] = i
        # The n-th launch of a program, by its start, is the n-th execution in the plugin's log.
        per_program = {}
        for identity, row in launches.items():
            program = names[columns["name"][row]].partition("#")[0]
            per_program.setdefault(program, []).append((int(columns["start"][row]), identity))
        where = {}
        for program, rows in per_program.items():
            for number, (_, identity) in enumerate(sorted(rows)):
                where[identity] = (program, number)
        seen, wrong = set(), 0
        truth = {(number_of[int(e)], int(n), int(d)): (int(q), int(b), int(a)) for e, n, d, q, b, a, _ in log}
        for i in np.flatnonzero(done):
            identity, ordinal = int(columns["arg"][i]) >> 12, int(columns["arg"][i]) & 4095
            program, number = where[identity]
            seen.add((program, number, ordinal))
            enqueued, before, after = truth[program, number, ordinal]
            row = launches[identity]
            start, finish = int(columns["start"][i]), int(columns["start"][i]) + int(columns["dur"][i])
            inside = start <= enqueued <= start + int(columns["dur"][row]) and int(columns["start"][row]) == start
            wrong += not (inside and before <= finish <= after and label(np.array([i]))[0] == program)
        say(launches=len(launches), dones=int(done.sum()), seen=len(seen), truth=len(truth),
            missing=len(truth.keys() - seen), wrong=wrong, lost=records.lost, counts=counts(),
            no_ring=records.segment.state().no_ring,
            complaints=toy.live("complaints"))
    """)  # fmt: skip
    assert said["launches"] == 64 * 200
    assert said["dones"] == said["seen"] == said["truth"] == 64 * 200 * 2
    assert (said["missing"], said["wrong"], said["lost"], said["no_ring"]) == (0, 0, 0, 0)
    assert said["counts"] == {
        "errors": 0, "refused": 0, "twice": 0, "untracked": 0, "hlo_left_out": 0, "in_flight": 0,
    }  # fmt: skip
    assert said["complaints"] == 0


def test_a_caller_that_asks_for_no_events_sees_its_arguments_unchanged(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=THREAD)
        executable = toy.compile(toy.client(), "jit_f")
        failed = toy.execute(executable, 300, devices=3, want=False)
        toy.settle()
        until(lambda: toy.live("events") == 0)  # ours were destroyed, each once
        say(failed=failed, dones=sorted(r["arg"] for r in records.of(17)), complaints=toy.live("complaints"))
    """)
    assert said["failed"] == said["complaints"] == 0
    assert said["dones"] == [launch << 12 | device for launch in range(1, 301) for device in range(3)]


def test_completions_in_any_order_belong_to_their_launch(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=HELD, reverse=1)
        executable = toy.compile(toy.client(), "jit_f")
        toy.execute(executable, 50, devices=2)
        before = len(records.of(17))
        toy.lib.toy_release(c.c_int64(30))
        half = [r["arg"] for r in records.of(17)]
        toy.lib.toy_release(c.c_int64(1000))
        dones = records.of(17)
        starts = {r["arg"]: r["start"] for r in records.of(16)}
        say(before=before, half=half, all=sorted(r["arg"] for r in dones), counts=counts(),
            starts=all(starts[r["arg"] >> 12] == r["start"] for r in dones),
            order=[r["arg"] >> 12 for r in sorted(dones, key=lambda r: r["start"] + r["dur"])])
    """)  # fmt: skip
    assert said["before"] == 0
    assert sorted(said["half"]) == sorted(launch << 12 | device for launch in range(36, 51) for device in range(2))
    assert said["all"] == [launch << 12 | device for launch in range(1, 51) for device in range(2)]
    assert said["starts"]
    assert said["order"] == [launch for launch in range(50, 0, -1) for _ in range(2)]
    assert said["counts"]["in_flight"] == 0


def test_an_execution_on_one_named_device_carries_its_number(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=INLINE)
        client = toy.client()
        executable = toy.compile(client, "jit_f")
        for number in (2, 0, 3):
            toy.execute(executable, 1, devices=1, one=toy.lib.toy_device(client, c.c_int64(number)))
        toy.execute(executable, 1, devices=1, one=12345)  # a device no client of ours has
        say(dones=[r["arg"] for r in records.of(17)], launches=len(records.of(16)))
    """)
    assert said == {"dones": [1 << 12 | 2, 2 << 12 | 0, 3 << 12 | 3, 4 << 12 | 4095], "launches": 4}


def test_transfers_carry_bytes_device_and_direction(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=THREAD, stall_us=2000)
        client = toy.client()
        failed = toy.lib.toy_transfer(toy.table, client, c.c_int64(1 << 20))
        toy.settle()
        until(lambda: toy.live("events") == 0)
        ns = records.segment.info.period_num / records.segment.info.period_den
        say(failed=failed, h2d=[r["arg"] for r in records.of(18)], d2h=[r["arg"] for r in records.of(19)],
            durations=[r["dur"] * ns for kind in (18, 19) for r in records.of(kind)], complaints=toy.live("complaints"))
    """)  # fmt: skip
    assert said["failed"] == said["complaints"] == 0
    assert said["h2d"] == [(1 << 20) << 12 | 1] * 2
    assert said["d2h"] == [(1 << 20) << 12 | 1] * 3
    assert all(duration >= 2e6 for duration in said["durations"])


def test_memory_is_told_once_a_second_where_the_platform_tells_it(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin("devices=2")
        toy.client()
        until(lambda: records.counter("pjrt_memory_bytes_limit/1") is not None)
        say(use=[records.counter(f"pjrt_memory_bytes_in_use/{i}") for i in range(2)],
            limit=[records.counter(f"pjrt_memory_bytes_limit/{i}") for i in range(2)], counts=counts())
    """)
    assert said["use"] == [1100, 1101]
    assert said["limit"] == [5000, 5000]
    assert said["counts"]["errors"] == 0


def test_threads_are_called_what_python_calls_them(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=THREAD)
        executable = toy.compile(toy.client(), "jit_f")
        toy.execute(executable)  # the first record of this thread is not an annotation
        def work():
            toy.execute(executable)
            with _recorder.annotate("region"):
                pass
            named.append(1)
            hold.wait()
        named, hold = [], threading.Event()
        thread = threading.Thread(target=work, name="loader-3")
        thread.start()
        until(lambda: named)
        toy.settle()
        records.read()
        names = records.segment.names()
        say(names=sorted(names[t.name] for t in records.segment.threads()))
        hold.set()
    """)
    assert set(said["names"]) - {"fleetscope-pjrt", "toy-device"} == {"MainThread", "loader-3"}


def test_what_comes_while_recording_is_off_is_told_when_it_goes_on(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=INLINE)
        toy.compile(toy.client(), "jit_before")
        until(lambda: len(records.programs()) == 1)
        _recorder.record(False)
        executable = toy.compile(toy.client(), "jit_off")
        toy.execute(executable, 3)
        _recorder.record(True)
        toy.execute(executable, 1, devices=1)
        until(lambda: len(records.programs()) == 2)
        say(loads=[r["name"] for r in records.of(21)], devices=len(records.of(20)), launches=len(records.of(16)))
    """)
    assert said == {"loads": ["jit_before#1", "jit_off#2"], "devices": 8, "launches": 1}


def test_executions_are_counted_by_module_name_whatever_is_recorded_or_recompiled(on_toy: Run) -> None:
    """Ranks count alike although their agents come at other times, and a program that is compiled anew goes on."""
    said = on_toy("""
        records, toy = begin(mode=THREAD)
        client = toy.client()
        train, other = toy.compile(client, "jit_train"), toy.compile(client, "jit_other")
        _recorder.record(False)
        toy.execute(train, 5, devices=4)
        _recorder.record(True)
        early = _pjrt_shim.follow("jit_none")
        toy.execute(train, 3, devices=4)
        found = _pjrt_shim.follow("jit_train")
        toy.unload(train)
        again = toy.compile(client, "jit_train")
        toy.execute(other, 7, devices=1)
        toy.execute(again, 2, devices=4)
        toy.execute(again, 1, devices=1, one=toy.lib.toy_device(client, c.c_int64(2)))
        toy.settle()
        newest = _recorder.executions()
        # The first execution that ends after a mark, by the first of its four devices, told once.
        toy.set(mode=HELD)
        toy.execute(again, 6, devices=4)
        _recorder.mark(_recorder.now())
        toy.lib.toy_release(c.c_int64(5))
        until(lambda: _recorder.marked() is not None)
        marked = _recorder.marked()[0]
        toy.lib.toy_release(c.c_int64(100))
        toy.settle()
        after = _recorder.marked()[0]
        _pjrt_shim.follow("")
        programs = {name: (count, busy > 0) for name, count, busy in _pjrt_shim.programs()}
        say(early=early, found=found, newest=newest[:1] + newest[2:3], marked=marked, after=after,
            programs=programs, steps=_recorder.steps()[0])
    """)
    assert (said["early"], said["found"]) == (False, True)
    assert said["newest"] == [11, 3]  # 5 + 3 + 2 + 1; three of them since it was followed
    assert said["marked"] == said["after"] == 12
    assert said["programs"] == {"jit_train": [17, True], "jit_other": [7, True]}
    assert said["steps"] == -1
