"""Against a plugin that misbehaves on request and keeps its own log: exact records, and the caller never notices us."""

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


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("nothing=1", "it has no GetPjrtApi, or that gives nothing"),
        ("major=1", "PJRT API major 1"),
        ("slots=40,minor=5", "a table of 360 bytes"),
        ("size=65548,minor=106", "a table of 65548 bytes"),
        ("size=1003,minor=60", "a table of 1003 bytes"),
        ("slots=120,minor=106", "minor 106 with 120 slots"),
        ("slots=100,minor=90", "minor 90 with 100 slots"),
        ("slots=136,minor=106,edge=1", "its table is shorter than it says"),
        ("hole=9", "slot 9 is no function"),
    ],
)
def test_a_plugin_that_lies_about_its_size_is_refused(on_toy: Run, options: str, reason: str) -> None:
    said = on_toy(f"""
        records = Records(folder)
        toy = Toy(library, {options!r})
        why = toy.wrap()
        again = toy.wrap()
        _pjrt_shim.refused()  # what agents/profiler/pjrt.py says once jaxlib has loaded it
        until(lambda: records.counter("pjrt_refused_wraps") == 1)
        say(why=why, again=again, counts=counts())
    """)
    assert said["why"] == said["again"] == reason
    assert said["counts"]["refused"] == 1


@pytest.mark.parametrize(
    "options", ["minor=33,slots=101", "minor=54,slots=112", "minor=90,slots=128", "minor=140,slots=160"]
)
def test_older_and_newer_versions_keep_size_minor_and_every_function(on_toy: Run, options: str) -> None:
    said = on_toy(f"""
        records, toy = begin({options!r}, mode=THREAD)
        plain = Toy(library, {options!r}).unwrapped()
        words = lambda table, n: list((c.c_uint64 * n).from_address(table.value))
        size = words(plain.table, 1)[0]
        ours, real = words(toy.table, size // 8), words(plain.table, size // 8)
        changed = [i - 5 for i in range(5, size // 8) if ours[i] != real[i]]
        client = toy.client()
        executable = toy.compile(client, "jit_f")
        toy.execute(executable, 10, size=80)
        toy.execute(executable, 10, size=72)  # a caller from before execute_device
        toy.execute(executable, 10, size=144)  # one from later
        toy.settle()
        say(size=[ours[0], real[0]], version=[ours[2:5] == real[2:5]], changed=changed, dones=len(records.of(17)))
    """)
    hooked = {10, 11, 20, 22, 50, 53, 55, 56, 70, 100, 102, 120}
    slots = int(options.partition("slots=")[2])
    assert said["size"] == [40 + 8 * slots] * 2
    assert said["version"] == [True]
    assert set(said["changed"]) == {slot for slot in hooked if slot < slots}
    assert said["dones"] == 120


@pytest.mark.parametrize(("profiler", "added"), [(1, False), (0, True)])
def test_the_extension_chain_is_kept(on_toy: Run, profiler: int, added: bool) -> None:
    said = on_toy(f"""
        records, toy = begin("profiler={profiler}")
        plain = Toy(library, "profiler={profiler}").unwrapped()
        def chain(table):
            at, found = (c.c_uint64 * 2).from_address(table.value)[1], []
            while at:
                found.append((at, (c.c_int * 4).from_address(at)[2]))
                at = (c.c_uint64 * 3).from_address(at)[2]
            return found
        say(ours=chain(toy.table), real=chain(plain.table))
    """)
    assert len(said["real"]) == 1 + profiler
    if added:
        assert said["ours"][1:] == said["real"]
        assert said["ours"][0][1] == 1
    else:
        assert said["ours"] == said["real"]


def test_several_plugins_have_tables_devices_and_programs_of_their_own(on_toy: Run) -> None:
    said = on_toy("""
        import shutil
        records = Records(folder)
        toys = []
        for number in range(9):
            shutil.copy(library, f"{folder}/toy{number}.so")
            toys.append(Toy(f"{folder}/toy{number}.so", "devices=2"))
        why = [toy.wrap(f"toy{number}") for number, toy in enumerate(toys)]
        same = Toy(f"{folder}/toy0.so", "devices=2")
        same.wrap("another name")
        for number, toy in enumerate(toys[:8]):
            toy.set(mode=INLINE)
            toy.execute(toy.compile(toy.client(), f"jit_{number}"), number + 1, devices=2)
        dones = {}
        for row in records.of(17):
            dones.setdefault(row["name"], set()).add(row["arg"] & 4095)
        import json
        devices = [json.loads(row["name"]) for row in records.of(20)]
        say(why=why, tables=len({toy.table.value for toy in toys[:8]}), same=same.table.value == toys[0].table.value,
            dones={k: sorted(v) for k, v in dones.items()}, plugins=[d["plugin"] for d in devices],
            ordinals=[d["ordinal"] for d in devices], one=devices[3])
    """)  # fmt: skip
    assert said["why"] == [""] * 8 + ["more than 8 plugins"]
    assert said["tables"] == 8
    assert said["same"]
    assert said["dones"] == {f"jit_{n}#{n + 1}": [2 * n, 2 * n + 1] for n in range(8)}
    assert said["ordinals"] == list(range(16))
    assert said["plugins"] == [f"toy{n // 2}" for n in range(16)]
    assert said["one"] == {
        "platform": "toy", "kind": "toy v1", "id": 101, "local_hardware_id": 1, "process_index": 3, "plugin": "toy1",
        "coords": [1, 2, 0], "core_on_chip": 1, "plugin_version": 'toy "1.0"', "ordinal": 3,
    }  # fmt: skip


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


def test_loads_unloads_and_five_thousand_live_executables(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=INLINE)
        client = toy.client()
        live = [toy.compile(client, f"jit_f{i}", cached=i % 2 == 1) for i in range(5000)]
        for executable in live:
            toy.execute(executable, 1, devices=1)
        records.read()
        for executable in live[::2]:
            toy.unload(executable)
        again = [toy.compile(client, f"jit_g{i}") for i in range(100)]  # pointers come again
        for executable in again:
            toy.execute(executable, 1, devices=1)
        until(lambda: len(records.programs()) + counts()["hlo_left_out"] == 5100, 60)
        handed = {int(name.removesuffix(".pb")) for name in records.programs()}
        kept = set(range(2, 5001, 2)) | set(range(5001, 5101))  # all that was not unloaded is handed over
        for executable in live[1::2] + again:
            toy.unload(executable)
        until(lambda: toy.live("described") == 0)
        loads, unloads, dones = records.of(21), records.of(22), records.of(17)
        say(loads=len(loads), cached=sum(r["arg"] & 1 for r in loads),
            labels=all(r["name"].endswith(f"#{r['arg'] >> 1}") for r in loads),
            unloads=len({r["name"] for r in unloads}), dones=[len(dones), len({r["name"] for r in dones})],
            live=toy.live("loaded"), late=toy.live("late"), missing=len(kept - handed), lost=records.lost)
    """)  # fmt: skip
    assert said["loads"] == 5100
    assert said["cached"] == 2500
    assert said["labels"]
    assert said["unloads"] == 5100
    assert said["dones"] == [5100, 5100]
    assert said["live"] == said["lost"] == said["late"] == said["missing"] == 0


def test_hlo_waits_in_at_most_64_mib_and_the_rest_is_counted(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=INLINE, hlo_bytes=10 << 20)
        client = toy.client()
        for i in range(10):
            toy.compile(client, f"jit_f{i}")
        until(lambda: counts()["hlo_left_out"] == 4)
        first = records.programs()
        for name in first[:3]:
            os.unlink(records.path + ".hlo/" + name)  # as the agent does
        for i in range(3):
            toy.compile(client, f"jit_g{i}")
        until(lambda: len(records.programs()) == 6)
        last = records.programs()
        sizes = {os.path.getsize(records.path + ".hlo/" + name) for name in last}
        content = open(records.path + ".hlo/11.pb", "rb").read()
        say(first=first, last=last, sizes=list(sizes), letters=sorted(set(content)), counts=counts())
    """)
    assert said["first"] == [f"{n}.pb" for n in range(1, 7)]
    assert said["last"] == sorted([f"{n}.pb" for n in (4, 5, 6, 11, 12, 13)])
    assert said["sizes"] == [10 << 20]
    assert said["letters"] == [ord("a") + 10]
    assert said["counts"]["hlo_left_out"] == 4


def test_a_client_goes_while_its_programs_are_being_read(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=INLINE, hlo_stall_us=150_000)
        client = toy.client()
        executables = [toy.compile(client, f"jit_f{i}") for i in range(20)]
        time.sleep(0.05)  # the keeper is inside the plugin now
        begun = time.monotonic()
        for executable in executables:
            toy.unload(executable)
        toy.lib.toy_client_destroy(toy.table, client)
        took = time.monotonic() - begun
        described = toy.live("described")
        time.sleep(0.4)
        say(took=took, described=described, after=toy.live("described"), programs=records.programs(),
            stopped=_pjrt_shim.stop(2000))
    """)
    assert said["described"] == said["after"] == 0
    assert said["took"] < 2.0  # one program's reading, not twenty's
    assert len(said["programs"]) <= 10
    assert said["stopped"]


def test_no_program_is_asked_for_its_hlo_once_it_is_unloaded(on_toy: Run) -> None:
    """A short program compiles, runs and ends: XLA:CPU crashed when its HLO was read beside that."""
    said = on_toy("""
        records, toy = begin(mode=INLINE, hlo_stall_us=20_000)
        client = toy.client()
        kept = toy.compile(client, "jit_kept")
        for i in range(30):
            executable = toy.compile(client, f"jit_f{i}")
            time.sleep(0.004 * (i % 8))  # before, while and after the keeper is with it
            toy.unload(executable)
        time.sleep(0.2)
        say(late=toy.live("late"), described=toy.live("described"), kept=len(records.programs()))
    """)
    assert said["late"] == 0
    assert said["described"] == 1  # of the program that is still there
    assert said["kept"] >= 1


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


def test_a_full_disk_loses_hlo_only(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=INLINE)
        open(records.path + ".hlo", "w").close()  # a file where the folder should be: nothing can be written
        client = toy.client()
        executable = toy.compile(client, "jit_f")
        until(lambda: counts()["hlo_left_out"] == 1)
        failed = toy.execute(executable, 10)
        say(failed=failed, dones=len(records.of(17)))
    """)
    assert said == {"failed": 0, "dones": 40}


def test_inserted_twice_it_records_once(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=INLINE)
        executable = toy.compile(toy.client(), "jit_f")
        table = toy.table.value
        import ctypes
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p,) * 3
        name = ctypes.create_string_buffer(b"pjrt_c_api")
        again = _pjrt_shim.wrap("toy", new(table, ctypes.addressof(name), None))
        from toys import pointer
        toy.table = c.c_void_p(pointer(again))
        toy.execute(executable, 10, devices=1)
        say(same=toy.table.value == table, launches=len(records.of(16)))
    """)
    assert said == {"same": True, "launches": 10}


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


@pytest.mark.parametrize(("profiler", "planes"), [(1, ["TOYOWN"]), (0, [f"TOY:{i}" for i in range(4)])])
def test_jax_profiles_through_the_plugins_own_extension_or_ours(on_toy: Run, profiler: int, planes: list[str]) -> None:
    said = on_toy(f"""
        os.environ["JAX_PLATFORMS"] = "cpu"
        records, toy = begin("profiler={profiler}", mode=THREAD, stall_us=300)
        import glob
        import jax
        from jaxlib import _profiler
        _profiler.register_plugin_profiler(_pjrt_shim.wrap("toy", library))
        executable = toy.compile(toy.client(), "jit_f")
        with jax.profiler.trace(folder + "/trace"):
            toy.execute(executable, 30, devices=4)
            toy.settle()
        (file,) = glob.glob(folder + "/trace/**/*.xplane.pb", recursive=True)
        planes = [plane for plane in jax.profiler.ProfileData.from_file(file).planes if "CUSTOM" in plane.name]
        events = {{}}
        for plane in planes:
            events[plane.name] = sorted((e.start_ns, e.duration_ns) for line in plane.lines for e in line.events)
        say(planes=sorted(events), events=events, own=toy.live("profiles"))
    """)  # fmt: skip
    assert said["planes"] == [f"/device:CUSTOM:{name}" for name in planes]
    assert said["own"] == profiler
    if profiler:
        return
    for events in said["events"].values():
        assert len(events) == 30
        # One worker completes four devices in turn, 0.3 ms each.
        ends = [start + duration for start, duration in events]
        assert all(later[0] >= end - 1 for end, later in zip(ends, events[1:], strict=False))
        assert ends[-1] - events[0][0] >= 30 * 4 * 0.3e6 * 0.9


def test_what_is_left_beside_a_segment_goes_with_it(on_toy: Run) -> None:
    said = on_toy("""
        records, toy = begin(mode=INLINE)
        toy.compile(toy.client(), "jit_f")
        until(lambda: len(records.programs()) == 1)
        from fleetscope.agents.profiler import segment
        dead = folder + "/fleetscope-1-1.ring"
        open(dead, "w").close()
        os.makedirs(dead + ".hlo")
        open(dead + ".hlo/7.pb", "w").close()
        os.utime(dead, (1, 1))
        swept = segment.sweep(folder)
        _recorder.close(True)
        say(left=sorted(name for name in os.listdir(folder) if "fleetscope" in name), swept=swept)
    """)
    assert said == {"left": [], "swept": 1}


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


def test_windows_calibrated_with_exact_counts_tell_the_plugins_truth(on_toy: Run) -> None:
    """Windows alone lose what they cut; the ratio inside them, times the shim's count, is the whole (DESIGN 5)."""
    said = on_toy("""
        os.environ["JAX_PLATFORMS"] = "cpu"
        records, toy = begin("profiler=1,devices=1", mode=THREAD, stall_us=6000)
        info = records.segment.info
        tick_ns = info.period_num / info.period_den
        toy.set(period_ps=round(tick_ns * 1000))
        import glob
        import jax
        from jaxlib import _profiler
        _profiler.register_plugin_profiler(_pjrt_shim.wrap("toy", library))
        jax.numpy.ones(1).block_until_ready()
        executable = toy.compile(toy.client(), "jit_f")
        over = []
        def train():  # two executions ahead, all the time
            while not over:
                if toy.lib.toy_waiting() < 3:
                    toy.execute(executable, 1, devices=1)
                time.sleep(0.0005)
        thread = threading.Thread(target=train)
        thread.start()
        observed, cut, ops, complete = 0.0, 0.0, 0.0, 0
        for window in range(12):
            with jax.profiler.trace(f"{folder}/trace{window}"):
                begun = time.perf_counter()
                time.sleep(0.05)
                observed += time.perf_counter() - begun
            (file,) = glob.glob(f"{folder}/trace{window}/**/*.xplane.pb", recursive=True)
            (plane,) = [p for p in jax.profiler.ProfileData.from_file(file).planes if "TOYOWN" in p.name]
            modules, line = plane.lines
            complete += len(list(modules.events))
            ops += sum(e.duration_ns for e in line.events if e.name == "large")
            cut += sum(e.duration_ns for e in modules.events)
        over.append(1)
        thread.join()
        toy.settle()
        log, dones = toy.log(), sorted((r["start"] + r["dur"], r["start"]) for r in records.of(17))
        busy = float((log[:, 4] - log[:, 6]).sum()) * tick_ns
        occupied, free_from = 0, 0
        for done, enqueued in dones:
            occupied += done - max(enqueued, free_from)
            free_from = done
        say(executions=len(log), dones=len(dones), large=0.7 * busy, estimate=ops / complete * len(dones),
            busy=busy, occupied=occupied * tick_ns, duty=cut / 1e9 / observed, complete=complete)
    """)
    assert said["dones"] == said["executions"] > 50
    assert said["complete"] > 30
    assert said["estimate"] == pytest.approx(said["large"], rel=0.15)
    # Occupancy is an upper bound of busy time, and close to it while the queue is never empty.
    assert said["busy"] * 0.999 <= said["occupied"] <= said["busy"] * 1.3
    assert said["duty"] < 0.97  # what the windows alone say of a device that is never idle
