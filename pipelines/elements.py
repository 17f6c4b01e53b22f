"""What flows between stages, and how it becomes bytes: never one event, always many (beam-kafka.md 5).

Elements have a frame of their own (JSON head, then Arrow or raw bytes) and a registered coder: Beam's fallback
pickles, and on fused edges it would encode whole elements only to learn their size.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
from apache_beam.coders.coder_impl import SimpleCoderImpl
from apache_beam.coders.coders import FastCoder
from apache_beam.coders.typecoders import registry

from fleetscope.pipelines.align.segment import Placement, Segment
from fleetscope.pipelines.block import BatchInfo

_LENGTHS = struct.Struct("<II")
_BLOB = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class BatchMeta:
    """What a stage after `read` must know of one batch: `info` for the kernels, the rest for keys, ledger and counters.

    `epoch` is the clock epoch's id; `late`: its end lies in a window that was reported before; `dropped`: events its
    source newly reports as dropped; `peak_flops` per second of
    its device, 0 unknown.
    """

    info: BatchInfo
    placement: Placement
    partition: int
    offset: int
    source: int
    run: int
    attempt: int
    rank: int
    samples: bool
    epoch: int
    first_event: int
    rows: int
    flags: int
    late: bool
    dropped: int
    sku: str
    peak_flops: int


class Item:
    """Element of every edge: a stage works on what it knows and passes the rest on, so the graph is one line."""

    __slots__ = ()


CHUNK_ROWS = 256 << 10
CHUNK_BYTES = 4 << 20
"""Rows worked on together: enough to forget the cost of a numpy call, few enough for the cache and memory."""


@dataclass(frozen=True, slots=True)
class Chunk(Item):
    """Batches of one kind whose rows are worked on together; `payloads[i]` belongs to `batches[i]`.

    `plan` is the epoch's plan without its partitions: the stages after `read` keep nothing between epochs.
    """

    plan: bytes
    batches: tuple[BatchMeta, ...]
    payloads: tuple[bytes, ...]

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.payloads))


@dataclass(frozen=True, slots=True)
class Part(Item):
    """A share of the epoch's result: rows of tables not yet written, and facts (small JSON objects) by kind."""

    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    facts: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def frame(head: Any, blobs: Sequence[bytes | pa.Buffer]) -> bytes:
    """A JSON head and byte strings as one."""
    text = json.dumps(head, separators=(",", ":")).encode()
    pieces: list[bytes] = [_LENGTHS.pack(len(text), len(blobs)), text]
    for blob in blobs:
        pieces += [_BLOB.pack(len(blob)), bytes(blob)]
    return b"".join(pieces)


def unframe(data: bytes) -> tuple[Any, list[bytes]]:
    length, count = _LENGTHS.unpack_from(data)
    position = _LENGTHS.size + length
    head = json.loads(data[_LENGTHS.size : position])
    blobs = []
    for _ in range(count):
        (size,) = _BLOB.unpack_from(data, position)
        position += _BLOB.size
        blobs.append(data[position : position + size])
        position += size
    return head, blobs


def _table_bytes(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def encode_item(item: Item) -> bytes:
    if isinstance(item, Part):
        blobs = [_table_bytes(table) for table in item.tables.values()]
        return frame({"tables": list(item.tables), "facts": dict(item.facts)}, blobs)
    assert isinstance(item, Chunk)
    return frame({"batches": [asdict(batch) for batch in item.batches]}, [item.plan, *item.payloads])


def decode_item(data: bytes) -> Item:
    head, blobs = unframe(data)
    if "facts" in head:
        tables = {name: pa.ipc.open_stream(blob).read_all() for name, blob in zip(head["tables"], blobs, strict=True)}
        return Part(tables, head["facts"])
    batches = []
    for batch in head["batches"]:
        batch["info"] = BatchInfo(**batch["info"])
        batch["placement"] = tuple(Segment(**segment) for segment in batch["placement"])
        batches.append(BatchMeta(**batch))
    return Chunk(blobs[0], tuple(batches), tuple(blobs[1:]))


class _ItemImpl(SimpleCoderImpl):
    def encode(self, value: Item) -> bytes:
        return encode_item(value)

    def decode(self, encoded: bytes) -> Item:
        return decode_item(encoded)

    def estimate_size(self, value: Item, nested: bool = False) -> int:
        # Beam asks only for its metrics, and would encode the element to know.
        return value.size_bytes if isinstance(value, Chunk) else 1024


class ItemCoder(FastCoder):
    """Coder of `Chunk` and `Part`."""

    def to_type_hint(self) -> type[Item]:
        return Item

    def _create_impl(self) -> _ItemImpl:
        return _ItemImpl()

    def is_deterministic(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


for kind in (Item, Chunk, Part):
    registry.register_coder(kind, ItemCoder)
