"""The table that jaxlib gets for a plugin's: of its size and version, with its extensions, or none at all."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.fault

Run = Callable[..., dict[str, Any]]


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
