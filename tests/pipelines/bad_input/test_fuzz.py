"""Whatever bytes lie between two good batches, both are stored and the ledger holds."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import Message

from fleetscope.agents.batches import span_rows
from fleetscope.agents.batches.pack import encode_rows
from fleetscope.pipelines.decode import read_rows
from fleetscope.pipelines.dimensions import PEAK_LABEL
from fleetscope.schema import identity
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.errors import FleetscopeError
from fleetscope.schema.payloads import WIRE_SPANS
from fleetscope.schema.vocabulary import Kind

MS = 1_000_000
START = 1_000 * MS
NUMBERS = (0, 1, -1, 2, 7, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, -(1 << 63), -(1 << 40), 10**18)


def mutated(rng: random.Random, message: Message, depth: int = 0) -> None:
    """Change one field somewhere in the message to a value a correct producer would never send."""
    fields = [f for f in message.DESCRIPTOR.fields if f.name not in ("version", "payload") or rng.random() < 0.05]
    field = rng.choice(fields)
    repeated = field.is_repeated
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, field.name)["k" * rng.randrange(1, 9)] = "v"
        return
    if field.type == Field.TYPE_MESSAGE:
        if repeated:
            items = getattr(message, field.name)
            target = rng.choice(items) if items and rng.random() < 0.8 else items.add()
        else:
            target = getattr(message, field.name)
        if rng.random() < 0.1 and not repeated:
            message.ClearField(field.name)
        else:
            mutated(rng, target, depth + 1)
        return
    if repeated:
        return
    if field.type == Field.TYPE_STRING:
        value: Any = rng.choice(["", "x", "\0", "é" * 300, "realtime", "monotonic_raw"])
    elif field.type == Field.TYPE_BYTES:
        value = rng.randbytes(rng.randrange(0, 60))
    elif field.type in (Field.TYPE_DOUBLE, Field.TYPE_FLOAT):
        value = rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e300])
    elif field.type == Field.TYPE_BOOL:
        value = rng.random() < 0.5
    else:
        value = rng.choice(NUMBERS)
    try:
        setattr(message, field.name, value)
    except ValueError:
        setattr(message, field.name, abs(value) % (1 << 31))


def victim(rng: random.Random, value: bytes) -> bytes:
    how = rng.random()
    if how < 0.15:
        data = bytearray(value)
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data)
    batch = wire.Batch.FromString(value)
    for _ in range(rng.randrange(1, 4)):
        mutated(rng, batch)
    # Most of the time the identity stays believable, so that what lies behind the first check is reached.
    if rng.random() < 0.8:
        batch.source_id = identity.source_id(batch.source)
    return batch.SerializeToString()


@pytest.mark.property
@pytest.mark.parametrize("seed", range(4))
def test_no_bytes_stop_the_chain(bench: Any, seed: int) -> None:
    rng = random.Random(seed)
    host, sound = bench.host("h1"), bench.host("h2")
    said = [
        wire.Announcement(process=wire.ProcessInfo(pid=4242, start_ticks=77, run="train", labels={PEAK_LABEL: "5e10"})),
        wire.Announcement(line=wire.LineInfo(device=1, line=2, name="XLA Ops")),
        wire.Announcement(run_event=wire.RunEvent(event="start", at_ns=5)),
    ]
    rows = {"line": 0, "kind": [Kind.MODULE, Kind.COMPUTE], "program": 5, "op": [0, 1], "step": 3, "weight": 0}
    window = wire.Window(id=9, length_ticks=800_000, executions=1, step=3)
    expected = []
    for index in range(40):
        at = START + index * MS
        columns = {**rows, "start": [at, at + 100], "dur": [900_000, 700_000]}
        (batch,) = host.spans(0, at, at + MS, columns, announcements=said, window=window)
        bench.send_bytes(victim(rng, batch.value))
        (good,) = sound.spans(0, at, at + MS, {**columns, "weight": 1})
        expected += range(good.first_event, good.first_event + 2)
        bench.send(good)
        if index % 10 == 9:
            bench.drain()
    stored = [row["seq"] for row in bench.rows("spans") if row["host"] == identity.host_id("test", sound.name)]
    assert sorted(stored) == expected
    defects = [row["message"] for row in bench.rows("dead_letter") if row["error"] == 4013]
    assert defects == [], "a stage met input that the checks should have refused"


@pytest.mark.property
@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_payload_is_refused_or_can_be_worked_on(seed: int) -> None:
    """What passes can be copied, concatenated and read to the last byte; found: buffers shorter than their columns."""
    rng, rows = random.Random(seed), 64
    made = span_rows(
        start=np.arange(rows) * 1000, dur=500, line=0, kind=3, program=5, op=np.arange(rows), args={3: "a", 9: "bcd"}
    )
    plain = pa.BufferOutputStream()
    with pa.ipc.new_stream(plain, made.schema) as stream:
        stream.write_batch(made)
    sound = [encode_rows(made), encode_rows(made.slice(10, rows - 10)), plain.getvalue().to_pybytes()]
    passed = 0
    for _ in range(800):
        data = bytearray(rng.choice(sound))
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(data) - 8)
            if rng.random() < 0.7:
                data[place] ^= 1 << rng.randrange(8)
            else:
                place &= ~7
                data[place : place + 8] = rng.choice([0, -1, 8, rows, 1 << 31, -(1 << 40)]).to_bytes(
                    8, "little", signed=True
                )
        try:
            table = read_rows(bytes(data), WIRE_SPANS, rows)
        except FleetscopeError:
            continue
        passed += 1
        twice = pa.concat_tables([table, table]).combine_chunks()
        assert twice.num_rows == 2 * rows
        twice.to_pylist()
    assert passed > 50
