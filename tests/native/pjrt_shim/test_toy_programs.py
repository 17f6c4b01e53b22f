"""Programs that come and go, and their HLO beside the segment."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.fault

Run = Callable[..., dict[str, Any]]


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
        until(lambda: len(records.programs()) + counts()["hlo_left_out"] == 5100)
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
