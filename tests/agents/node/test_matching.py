"""Programs of a TPU's windows, which it names by fingerprints of its own: by what the shim was told, or not at all."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetscope.agents.node import executions, harvest, windows
from fleetscope.agents.node.matching import Module, Ran, alignments, certain, modules_of
from fleetscope.agents.xspace import OpTables, convert, read_xspace
from fleetscope.schema.hlo_pb2 import HloModule
from fleetscope.schema.identity import key_hash, process_id
from fleetscope.schema.vocabulary import Kind, SpanFlag

from .conftest import Child, MakeAgent, batches
from .test_agent import announced, table
from .test_pjrt import shimmed

NAMES = ("jit_convert_element_type", "jit_broadcast_in_dim", "jit__psum", "jit_f")
"""Modules of the capture, in the order in which they first ran."""


def seen_in(path: Path) -> list[tuple[Module, ...]]:
    """Modules of the real capture by device."""
    tables = OpTables("test")
    capture = convert(read_xspace(path.read_bytes(), "v6e"), tables, host=False)
    return [modules_of(spans, tables) for spans in capture.devices]


@pytest.fixture(scope="module")
def v6e(samples: Path) -> list[tuple[Module, ...]]:
    return seen_in(samples / "xplane" / "xprof__tpu_inference_2.xplane.pb")


def told(seen: tuple[Module, ...], before: list[Ran], after: list[Ran]) -> list[Ran]:
    """What a shim would have been told: programs 1 to 4 by their names, and others around them."""
    return [*before, *(Ran(item.name, 1 + NAMES.index(item.name)) for item in seen), *after]


@pytest.mark.unit
def test_a_real_capture_meets_the_programs_of_its_process(v6e: list[tuple[Module, ...]]) -> None:
    assert [len(seen) for seen in v6e] == [105, 103, 103, 103]
    assert [sorted({item.name for item in seen}) for seen in v6e[:2]] == [sorted(NAMES), ["jit__psum", "jit_f"]]
    dice = random.Random(3)
    # Before it: an older jit_f, of other shapes, and what else the process ran.
    before = [Ran(dice.choice((*NAMES, "jit_eval")), 9) for _ in range(200)] + [Ran("jit_f", 8)] * 3
    after = [Ran("jit_eval", 7)] * 5
    found = certain(alignments(seen, told(seen, before, after)) for seen in v6e)
    assert found == {item.program_id: 1 + NAMES.index(item.name) for seen in v6e for item in seen}
    assert all(abs(program_id) > 1 << 40 for program_id in found), "no module's id, a fingerprint"


@pytest.mark.unit
def test_nothing_is_named_where_the_window_may_lie_in_two_ways(v6e: list[tuple[Module, ...]]) -> None:
    window = v6e[1]
    # It ran as a whole twice, once with another jit_f: both are possible, and psum is the same in both.
    again = [Ran(item.name, 5 if item.name == "jit_f" else 3) for item in window]
    ids = {item.name: item.program_id for item in window}
    assert certain([alignments(window, told(window, again, []))]) == {ids["jit__psum"]: 3}
    # Two programs of one name in turn, and the window a stretch of it.
    turns = [Ran("jit_f", 1 + place % 2) for place in range(40)]
    assert certain([alignments([Module(7 + place % 2, "jit_f") for place in range(10)], turns)]) == {}
    # In a stretch that tells them apart they are known.
    turns = [Ran("jit_f", program) for program in (1, 1, 2, 1, 2, 2, 2, 1)]
    assert certain([alignments([Module(i, "jit_f") for i in (7, 8, 7, 8, 8)], turns)]) == {7: 1, 8: 2}
    # What was never told, one device that says otherwise, and a fingerprint nobody has.
    assert alignments(window, told(window, [], [])[:50]) == {}
    assert certain([{7: {1}}, {7: {2}}, {8: {3}}]) == {8: 3}
    assert certain([alignments([Module(7, "jit_f")], [Ran("jit_f", 0)])]) == {}


def hlo(name: str, number: int) -> HloModule:
    module = HloModule(name=name, id=number)
    computation = module.computations.add(name="main", id=1, root_id=2)
    for instruction in range(number + 1):
        computation.instructions.add(name=f"x.{instruction}", id=2 + instruction, opcode="parameter")
    return module


@pytest.mark.e2e
def test_windows_of_the_real_capture_and_hand_made_records_of_a_shim(
    make_agent: MakeAgent,
    spawn: Callable[..., Child],
    tmp_path: Path,
    samples: Path,
    v6e: list[tuple[Module, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, name in ((windows, "AROUND_NS"), (executions, "SLACK_NS"), (executions, "CALL_NS")):
        monkeypatch.setattr(module, name, 20_000_000)
    agent, child = make_agent(), shimmed(spawn)
    agent.tick()
    process = next(iter(agent.registry))
    assert process.segment is not None
    folder = harvest.folder_of(process.segment.path)
    folder.mkdir()
    loads = {name: load for load, name in enumerate(NAMES, 1)}
    for load, name in [*enumerate(NAMES, 1), (5, "jit_f")]:
        (folder / f"{load}.pb").write_bytes(hlo(name, load).SerializeToString())
    child.do("make, known = name, {}")  # a name is made once, as the shim does
    child.do("name = lambda text: known[text] if text in known else known.setdefault(text, make(text))")
    for ordinal in range(4):
        said = f'{{"ordinal": {ordinal}, "platform": "tpu", "kind": "TPU v6 lite", "local_hardware_id": {ordinal}}}'
        child.do(f"put(20, api.now() - (1 << 40), 0, {ordinal}, {said!r})")
    for load, name in [*enumerate(NAMES, 1), (5, "jit_f")]:
        child.do(f"put(21, api.now(), 1, {load} << 1, '{name}#{load}', devices=1)")
    # An older jit_f ran just before on each device, then what the capture saw.
    ran = [(ordinal, "jit_f#5") for ordinal in range(4) for _ in range(3)]
    ran += [(k, f"{item.name}#{loads[item.name]}") for k, seen in enumerate(v6e) for item in seen]
    child.do("begin = r.clocks()")
    child.do(
        f"ran, at = {ran!r}, api.now()\nfor launch, (ordinal, label) in enumerate(ran, 1):\n"
        "    put(16, at + launch * 9, 1, launch, label); put(17, at + launch * 9, 8, launch << 12 | ordinal, label)"
        .replace("\n", "\\n").join(("exec('''", "''')"))
    )  # fmt: skip
    child.do("end = r.clocks()")
    child.do("clocks = [protocol.Clocks(a, c, d) for a, _, c, d in (begin, end)]")
    child.do(f"body = open({str(samples / 'xplane' / 'xprof__tpu_inference_2.xplane.pb')!r}, 'rb').read()")
    child.do("window = protocol.Window(1, 10**9, *clocks, -1, 0, -1, 0, 1000, 1000, False)")
    child.do("send(window, body)")
    deadline = time.monotonic() + 60
    while len(process.tables.programs()) < 8 and time.monotonic() < deadline:
        agent.tick()
        time.sleep(0.02)
    child.do("send(window._replace(window_id=2), body)")
    while process.windows["decoded"] < 2 and time.monotonic() < deadline:
        agent.tick()
        time.sleep(0.02)
    assert process.pjrt is not None
    while process.pjrt.counts["window_unplaced"] < 8 and time.monotonic() < deadline:
        agent.tick()
        time.sleep(0.02)
    # Right names at times that cannot be: the records were made by hand, all within microseconds.
    assert (process.pjrt.counts["window_unplaced"], process.pjrt.counts["window_placed"]) == (8, 0)
    child.close()
    agent.close()
    found = batches(tmp_path / "s", child.pid)
    loaded = {load.program_id: load for load in announced(found, "program_load")}
    scope = process_id(process.source)
    truth = {item.program_id: item.name for seen in v6e for item in seen}
    for program_id, name in truth.items():
        load = loaded[key_hash("provisional", f"{scope}", program_id)]
        assert load.module == name
        assert load.program == loaded[key_hash("provisional", scope, f"{name}#{loads[name]}")].program
    assert len({load.program for load in loaded.values()}) == 5
    # The second window knows them.
    rows = [[row for row in table(b).to_pylist() if row["kind"] == Kind.MODULE] for b in found if b.HasField("window")]
    first, second = rows[:4], rows[4:]
    assert all(row["flags"] & SpanFlag.PROVISIONAL_PROGRAM for batch in first for row in batch)
    assert not any(row["flags"] & SpanFlag.PROVISIONAL_PROGRAM for batch in second for row in batch)
    known: set[Any] = {load.program for load in loaded.values()}
    assert {row["program"] for batch in second for row in batch} <= known
