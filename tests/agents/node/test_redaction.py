"""A whole agent under names that are secret: with the policy on, none of them leaves it, in whatever form."""

import hashlib
import json
import logging
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

from fleetscope.agents.node.control import Controls
from fleetscope.agents.node.owners import Holders, Owner
from fleetscope.agents.profiler import protocol
from fleetscope.agents.redaction import DROPPED, Redaction, admitted, answered
from fleetscope.agents.redaction import policy as policy_module
from fleetscope.schema import hlo_pb2 as hlo
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import RedactionConfig, load
from fleetscope.schema.errors import ConfigInvalid
from fleetscope.transport.log import Message

from .conftest import Child, MakeAgent, eventually, shipped
from .test_hostile import hello, window

MARK = "s3cr3t"
"""In every name that is planted."""
PLANTED = (
    "run attempt tenant label argv region key text counter thread module instruction scope target source frame ran "
    "followed kernel cpuop cpumodule cputhread windowprogram"
).split()


def secret(what: str) -> str:
    return f"{MARK}_{what}_"


def policy(folder: Path, mode: str) -> RedactionConfig:
    key = folder / "redaction.key"
    key.write_text("0123456789abcdef-fleet\n")
    kinds = ("annotations", "programs", "ops", "sources", "commands")
    runs = "hash" if mode == "drop" else mode  # what tells sources apart cannot be dropped
    return RedactionConfig(**dict.fromkeys(kinds, mode), runs=runs, key_file=key)


def program() -> bytes:
    """A module with a name in every place that can hold one."""
    frames = hlo.StackFrameIndex(
        file_names=[f"/src/{secret('frame')}.py"],
        file_locations=[hlo.StackFrameIndex.FileLocation(file_name_id=1, line=3)],
        stack_frames=[hlo.StackFrameIndex.StackFrame(file_location_id=1)],
    )
    shape = hlo.Shape(element_type=11, dimensions=[8])
    instructions = [
        hlo.Instruction(name="x", opcode="parameter", id=1, shape=shape),
        hlo.Instruction(
            name=f"{secret('instruction')}.3",
            opcode="custom-call",
            id=2,
            shape=shape,
            operand_ids=[1],
            custom_call_target=secret("target"),
            metadata=hlo.OpMetadata(
                op_name=f"jit(f)/jvp({secret('scope')})/dot_general", source_file=f"/src/{secret('source')}.py"
            ),
        ),
        hlo.Instruction(
            name="add.1", opcode="add", id=3, shape=shape, operand_ids=[2, 2], metadata=hlo.OpMetadata(stack_frame_id=1)
        ),
    ]
    entry = hlo.Computation(name="main", id=7, instructions=instructions, root_id=3)
    return bytes(
        hlo.HloModule(
            name=f"jit_{secret('module')}",
            id=11,
            computations=[entry],
            entry_computation_id=7,
            stack_frame_index=frames,
        ).SerializeToString()
    )


def capture(plane: Any, xspace_bytes: Callable[..., bytes], start_ns: int) -> bytes:
    """A window: an op of a program nobody has sent, and a kernel of no program."""
    host = plane("/host:CPU").line(
        secret("cputhread"),
        [
            {
                "name": secret("cpuop"), "at": 10**9, "dur": 10**6, "hlo_op": secret("cpuop"),
                "hlo_module": secret("cpumodule"), "program_id": 77, "run_id": 1, "device_ordinal": 0,
            }
        ],
        id_=5,
        timestamp_ns=start_ns,
    )  # fmt: skip
    gpu = plane("/device:GPU:0").line(
        "Stream #13(Compute)", [{"name": secret("kernel"), "at": 10**9, "dur": 10**6}], id_=13, timestamp_ns=start_ns
    )
    return xspace_bytes(host, gpu, start_ns=start_ns)


def read(peer: socket.socket, kind: type) -> Any:
    reader = protocol.Reader()
    while True:
        for message, _ in reader.feed(peer.recv(65536)):
            if isinstance(message, kind):
                return message


def told(state: Path) -> Iterator[bytes]:
    """Everything that is or was on its way, as bytes and unpacked."""
    for path in sorted(state.rglob("*")):
        if path.is_file():
            yield str(path).encode() + b"\0" + path.read_bytes()
    for value in shipped(state):
        batch = wire.Batch.FromString(value)
        yield str(batch).encode()
        if batch.payload:
            yield str(pa.ipc.open_stream(batch.payload).read_all().to_pylist()).encode()
    for value in shipped(state, "fleetscope.programs"):
        chunk = wire.ProgramChunk.FromString(value)
        yield str(pa.ipc.open_stream(chunk.ops).read_all().to_pylist()).encode() + chunk.module.encode()
    for topic in ("fleetscope.reports", "fleetscope.clocks"):
        for value in shipped(state, topic):
            yield value


def found(places: dict[str, list[bytes]]) -> dict[str, set[str]]:
    """Planted name -> where it was seen."""
    return {
        what: where
        for what in PLANTED
        if (where := {place for place, texts in places.items() if any(secret(what).encode() in t for t in texts)})
    }


@pytest.fixture
def whole(
    tmp_path: Path,
    make_agent: MakeAgent,
    spawn: Callable[..., Child],
    caplog: pytest.LogCaptureFixture,
    plane: Any,
    xspace_bytes: Callable[..., bytes],
) -> Callable[[str], dict[str, list[bytes]]]:
    """``whole(mode)``: where what can be read after an agent has seen every name."""

    def run(mode: str) -> dict[str, list[bytes]]:
        caplog.set_level(logging.DEBUG)
        agent = make_agent(redaction=policy(tmp_path, mode), batch_s=0.1)
        child = spawn()
        sent = window(program=secret("windowprogram"))
        _record(child, sent, capture(plane, xspace_bytes, sent.opened.realtime_ns))
        eventually(lambda: (agent.tick(), agent.decoder.idle() and not _pending(agent))[1])
        page = urllib.request.urlopen(f"http://{agent.metrics.address}/metrics").read()
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(60)
            peer.connect(str(agent.server.path))
            peer.sendall(protocol.encode(protocol.Query("stacks")))
            answer = read(peer, protocol.Answer)
        assert "thread" in answer.rows
        log_folder = list(told(agent.config.state_dir))  # the spool too, while it is there
        child.kill()
        eventually(lambda: (agent.tick(), not any(not p.final for p in agent.registry))[1])
        agent.close()
        return {
            "page": [page],
            "socket": [answer.rows.encode()],
            "log": [caplog.text.encode()],
            "state": [*log_folder, *told(agent.config.state_dir)],
        }

    return run


def _pending(agent: Any) -> bool:
    return any(process.pending or not process.windows["decoded"] for process in agent.registry)


def _record(child: Child, sent: protocol.Window, body: bytes) -> None:
    names = {what: secret(what) for what in PLANTED}
    child.do(f"names = {names!r}")
    child.do("import threading; threading.current_thread().name = names['thread']")
    child.do(
        "hello = hello._replace(run=names['run'], attempt=names['attempt'], tenant=names['tenant'],"
        " labels={'team': names['label']}, command='train.py --token=' + names['argv'])"
    )
    child.do("connect()")
    child.do("with r.annotate(names['region'], **{names['key']: names['text']}): r.counter(names['counter'], 3)")
    child.do("held = r.annotate(names['region']); held.__enter__()")
    child.do("thread = threading.Thread(target=lambda: r.span('x', 8, 0.001), name=names['thread']); thread.start()")
    child.do(f"send(protocol.Program(11, 'jit_' + names['module'], 'cpu', {time.time_ns()}, 0), {program()!r})")
    child.do(
        "send(protocol.Cost(steps=3, step=2, ran=(protocol.Ran(names['ran'], 3, 10),),"
        " followed=protocol.Followed(names['followed'], 3)))"
    )
    child.do(f"from fleetscope.agents.profiler.protocol import *; send({sent!r}, {body!r})")


@pytest.mark.e2e
def test_without_a_policy_every_name_is_told(whole: Callable[[str], dict[str, list[bytes]]]) -> None:
    """Else the tests below could not fail."""
    assert set(found(whole("keep"))) == set(PLANTED)


@pytest.mark.e2e
@pytest.mark.parametrize("mode", ["hash", "drop"])
def test_no_name_leaves_an_agent_that_may_not_tell_it(
    mode: str, whole: Callable[[str], dict[str, list[bytes]]]
) -> None:
    places = whole(mode)
    assert found(places) == {}
    every = b"".join(text for texts in places.values() for text in texts)
    assert MARK.encode() not in every
    assert b"dot_general" in every, "words of jax stay: FLOPs and recomputation are told by them"
    assert (DROPPED.encode() in every) == (mode == "drop")


@pytest.fixture
def hashed(tmp_path: Path) -> Redaction:
    return Redaction(policy(tmp_path, "hash"))


@pytest.mark.unit
def test_a_name_has_one_digest_in_a_fleet_and_is_worked_out_once(tmp_path: Path, hashed: Redaction) -> None:
    """By hand: BLAKE2b of 10 bytes, keyed with the 32 byte BLAKE2b of the key file without its newline."""
    key = hashlib.blake2b(b"0123456789abcdef-fleet", digest_size=32).digest()
    digest = "~" + hashlib.blake2b(b"load batch", key=key, digest_size=10).hexdigest()
    assert [hashed.annotation("load batch") for _ in range(3)] == [digest] * 3
    assert hashed.worked_out == 1
    assert hashed.of("commands", digest) == digest, "what was hashed before stays"
    (tmp_path / "redaction.key").write_text("another key of a fleet")
    other = Redaction(RedactionConfig(annotations="hash", key_file=tmp_path / "redaction.key"))
    assert other.annotation("load batch") not in ("load batch", digest)
    assert other.of("programs", "jit_f") == "jit_f", "a kind of which nothing was said is kept"


@pytest.mark.unit
def test_words_of_compiler_jax_and_recorder_stay(hashed: Redaction) -> None:
    assert hashed.annotation("data_wait (inferred)") == "data_wait (inferred)"
    assert hashed.annotation("compile f") == f"compile {hashed.of('programs', 'f')}"
    for name in ("fusion.3", "loop_multiply_fusion.12", "all-reduce-start", "dot.1.remat2.7", "get-tuple-element"):
        assert hashed.instruction(name) == name
    told = hashed.instruction("my_kernel.clone.4")
    assert told == hashed.of("ops", "my_kernel") + ".clone.4"
    path = "jit(step)/transpose(jvp(Net))/rematted_computation/attention/dot_general"
    net, attention = hashed.of("ops", "Net"), hashed.of("ops", "attention")
    step = hashed.of("ops", "step")
    assert hashed.scope(path) == f"jit({step})/transpose(jvp({net}))/rematted_computation/{attention}/dot_general"
    assert hashed.target("__cublas$gemm") == "__cublas$gemm"
    assert hashed.target("my_kernel") == hashed.of("ops", "my_kernel")


@pytest.mark.unit
def test_the_first_rule_that_fits_decides(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef")
    config = RedactionConfig.model_validate(
        {
            "annotations": "hash",
            "key_file": key,
            "rules": [
                {"of": ["annotations"], "pattern": "^layer_[0-9]+$", "mode": "keep"},
                {"of": ["annotations", "sources"], "prefix": "/opt/public/", "mode": "keep"},
                {"of": ["sources"], "prefix": "/", "mode": "drop"},
            ],
        }
    )
    redaction = Redaction(config)
    assert redaction.annotation("layer_12") == "layer_12"
    assert redaction.annotation("layer_12b").startswith("~")
    assert redaction.of("sources", "/opt/public/a.py") == "/opt/public/a.py"
    assert redaction.of("sources", "/home/me/a.py") == DROPPED
    assert redaction.of("sources", "a.py") == "a.py"


@pytest.mark.unit
def test_a_pattern_takes_no_longer_for_a_name_made_to_be_slow() -> None:
    """A backtracking engine takes 2^30 steps for this one; RE2 takes microseconds."""
    rule = {"of": ["annotations"], "pattern": "^(a+)+$", "mode": "drop"}
    redaction = Redaction(RedactionConfig.model_validate({"rules": [rule]}))
    assert redaction.annotation("a" * 30 + "b") == "a" * 30 + "b"
    assert redaction.annotation("a" * 30) == DROPPED


@pytest.mark.unit
@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"ops": "hash"}, "key_file"),
        ({"runs": "drop"}, "runs"),
        ({"rules": [{"of": ["runs"], "prefix": "x", "mode": "drop"}]}, "runs are kept or hashed"),
        ({"rules": [{"of": ["ops"], "mode": "drop"}]}, "either a prefix or a pattern"),
        ({"rules": [{"of": ["ops"], "pattern": "(?=a)", "mode": "drop"}]}, "no RE2 pattern"),
        ({"rules": [{"of": ["op"], "prefix": "a", "mode": "drop"}]}, "redaction"),
    ],
)  # fmt: skip
def test_a_policy_that_is_none_is_refused_at_start(section: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigInvalid, match=says):
        load(None, agent={"redaction": section})


@pytest.mark.unit
def test_a_key_that_is_none_is_refused_at_start(tmp_path: Path) -> None:
    for content in (None, b"short"):
        path = tmp_path / "key"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigInvalid, match="key_file"):
            Redaction(RedactionConfig(ops="hash", key_file=path))


@pytest.mark.unit
def test_what_is_decided_by_a_digest_reaches_the_process_in_its_own_words(hashed: Redaction) -> None:
    """Else windows of several ranks would never open: a process looks for its own attempt and program."""
    said = admitted(hello(run="r", attempt="a-1"), hashed)
    cost = admitted(protocol.Cost(ran=(protocol.Ran("jit_step", 3, 9),)), hashed)
    assert isinstance(said, protocol.Hello)
    assert isinstance(cost, protocol.Cost)
    decided = protocol.Schedule(said.attempt, 4, program=cost.ran[0].program)
    assert (decided.attempt, decided.program) != ("a-1", "jit_step")
    assert answered(decided, hashed) == protocol.Schedule("a-1", 4, program="jit_step")


@pytest.mark.fault
@pytest.mark.parametrize("kind", ["ops", "programs", "runs"])
def test_the_name_of_a_run_outlives_digests_of_topics_and_a_flood_of_names(
    hashed: Redaction, monkeypatch: pytest.MonkeyPatch, kind: Literal["ops", "programs", "runs"]
) -> None:
    monkeypatch.setattr(policy_module, "KNOWN", 100)
    said = admitted(hello(run="r", attempt="a-1"), hashed)
    assert isinstance(said, protocol.Hello)
    controls = Controls(lambda name: hashed.of("runs", name))
    cadence = wire.Cadence(run=said.run, attempt=said.attempt, number=4)
    assert controls.take(Message("t", 0, 0, b"k", wire.Control(cadence=cadence).SerializeToString(), (), 0))
    for number in range(90 if kind == "runs" else 250):  # of runs it is the oldest that goes
        hashed.of(kind, f"name {number}")
    decided = answered(controls.schedule(said), hashed)
    assert decided is not None
    assert decided.attempt == "a-1"


@pytest.mark.unit
def test_the_owner_of_a_chip_is_told_by_the_same_digest(hashed: Redaction) -> None:
    variables = {"FLEETSCOPE_RUN": "secret run", "FLEETSCOPE_ATTEMPT": "7"}
    holders = Holders(lambda pid: None, lambda pid: variables, lambda pid: 1, hashed)
    said = admitted(hello(run="secret run"), hashed)
    assert isinstance(said, protocol.Hello)
    assert holders.of([5], {}) == [Owner(run=said.run, attempt=hashed.of("runs", "7"))]


@pytest.mark.fault
def test_what_was_kept_before_the_policy_is_not_told_after_it(
    tmp_path: Path, make_agent: MakeAgent, spawn: Callable[..., Child]
) -> None:
    """An agent restarts under a policy: hello and decisions of the life before lie in its state folder in clear."""
    agent = make_agent()
    state = agent.config.state_dir
    child = spawn()
    child.do(f"hello = hello._replace(run={secret('run')!r}); connect()")
    (state / "governed.json").write_text(
        json.dumps({"boot_id": agent.host.boot_id, "processes": {secret("region"): 1}})
    )
    assert any(MARK.encode() in path.read_bytes() for path in (state / "processes").iterdir())
    agent.close()
    again = make_agent(redaction=policy(tmp_path, "hash"))
    again.tick()
    page = urllib.request.urlopen(f"http://{again.metrics.address}/metrics").read()
    kept = [
        path for path in state.rglob("*") if path.is_file() and "log" not in path.parts and "spool" not in path.parts
    ]
    assert [path for path in kept if MARK.encode() in path.read_bytes()] == []
    assert MARK.encode() not in page
    assert again.redaction.of("runs", secret("run")).encode() in page


@pytest.mark.unit
def test_a_person_switches_windows_off_by_the_name_of_the_run_or_its_digest(hashed: Redaction) -> None:
    said = admitted(hello(run="r"), hashed)
    assert isinstance(said, protocol.Hello)
    for name in ("r", said.run):
        controls = Controls(lambda run: hashed.of("runs", run))
        switch = wire.WindowSwitch(run=name, off=True, reason="drill", issued_ns=1)
        value = wire.Control(windows=switch).SerializeToString()
        assert controls.take(Message("t", 0, 0, b"k", value, (), 0))
        schedule = controls.schedule(said)
        assert schedule is not None
        assert schedule.off == "drill"
