"""Bytes of the log -> typed header. What cannot be believed is refused here with a numbered error that names the field.

A header that does not parse tells nothing about its source, so its events stay a gap; one that parses but
contradicts the contract of the wire is refused the same way, because its numbers cannot be believed either.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from google.protobuf.message import DecodeError

from fleetscope.schema import identity
from fleetscope.schema.errors import HeaderInvalid, HeaderUnreadable, VersionUnknown
from fleetscope.schema.rational import TERM_LIMIT
from fleetscope.schema.vocabulary import WIRE_VERSION
from fleetscope.schema.wire_pb2 import PAYLOAD_NONE, PAYLOAD_SAMPLES, PAYLOAD_SPANS, Batch, ClockEpoch, Source

ACCEPTED_VERSIONS = frozenset({WIRE_VERSION, WIRE_VERSION - 1} - {0})

TICK_LIMIT = 1 << 62
"""Ticks beyond cannot be subtracted in int64 without a check at each step."""

ROWS_LIMIT = 1 << 20
"""Agents cut batches there. Work on a row takes ~400 B at its peak; rows of zeros compress to nothing, so 8 MiB of
payload bound nothing: 16 Mi of them took 16 GB."""


TEXT_LIMIT_BYTES = 4096
"""Agents cut names at 1 KiB; four times that is no name any more. What a header names lives on: in carried state, in
metrics' labels, where one run name of 1 MiB made every record of its run too large to be sent."""

RANGE_LIMIT_NS = 31 * 86_400_000_000_000
"""Nobody observes for a month before saying so; a range until the year 2116 would claim all that is to come."""

REASONS_LIMIT = 64
COUNT_LIMIT = 1 << 62
"""Counts are added up in int64."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Identities of a source. `source` numbers batches; the rest are the ids of DESIGN 3.2."""

    source: int
    cluster: str
    host_name: str
    host: int
    process: int
    run_name: str
    run: int
    attempt: int
    rank: int


@lru_cache(maxsize=16384)
def _origin(serialized: bytes) -> Origin:
    source = Source.FromString(serialized)
    return Origin(
        source=identity.source_id(source),
        cluster=source.cluster,
        host_name=source.host,
        host=identity.host_id(source.cluster, source.host),
        process=identity.process_id(source),
        run_name=source.run,
        run=identity.run_id(source.cluster, source.run) if source.run else 0,
        attempt=identity.attempt_id(source.cluster, source.run, source.attempt) if source.run else 0,
        rank=source.rank,
    )


def origin_of(source: Source) -> Origin:
    """Identities of a source, computed once per source: hashing seven keys costs ~20 us, a batch's budget is ~1 ms."""
    return _origin(source.SerializeToString(deterministic=True))


def parse(value: bytes) -> Batch:
    """The message, checked against the wire's contract. HeaderUnreadable, VersionUnknown or HeaderInvalid."""
    try:
        batch = Batch.FromString(value)
    except DecodeError as error:
        raise HeaderUnreadable(f"no Batch in these {len(value)} bytes: {error}") from error
    if batch.version not in ACCEPTED_VERSIONS:
        raise VersionUnknown(f"version {batch.version}; this reader knows {sorted(ACCEPTED_VERSIONS)}")
    _check(batch)
    return batch


def _check(batch: Batch) -> None:
    if not batch.HasField("source") or not batch.source.host:
        raise HeaderInvalid("source.host is empty")
    _check_texts(batch)
    if batch.source_id != origin_of(batch.source).source:
        raise HeaderInvalid(f"source_id {batch.source_id} is not the hash of source, {origin_of(batch.source).source}")
    if batch.payload_kind not in (PAYLOAD_NONE, PAYLOAD_SPANS, PAYLOAD_SAMPLES):
        raise HeaderInvalid(f"payload_kind {batch.payload_kind} is unknown")
    if batch.rows > ROWS_LIMIT or (batch.rows and batch.payload_kind == PAYLOAD_NONE):
        raise HeaderInvalid(f"rows {batch.rows} with payload_kind {batch.payload_kind}")
    if batch.HasField("device") and not batch.device.key:
        raise HeaderInvalid("device.key is empty")
    if batch.tick_to < batch.tick_from or batch.tick_from < -TICK_LIMIT or batch.tick_to > TICK_LIMIT:
        raise HeaderInvalid(f"tick range [{batch.tick_from}, {batch.tick_to})")
    if batch.rows or batch.tick_to > batch.tick_from:
        _check_clock(batch.clock, "clock")
        if (batch.tick_to - batch.tick_from) * batch.clock.period_num > RANGE_LIMIT_NS * batch.clock.period_den:
            raise HeaderInvalid(f"tick range [{batch.tick_from}, {batch.tick_to}) is longer than 31 days")
    if len(batch.dropped) > REASONS_LIMIT:
        raise HeaderInvalid(f"dropped has {len(batch.dropped)} reasons, at most {REASONS_LIMIT}")
    if max(batch.produced, sum(item.events for item in batch.dropped)) > COUNT_LIMIT:
        raise HeaderInvalid("produced or dropped reaches beyond 2^62")
    if batch.first_event + batch.rows > batch.produced:
        raise HeaderInvalid(
            f"events end at {batch.first_event + batch.rows}, but the source says it produced {batch.produced}"
        )
    if batch.HasField("window") and not batch.window.complete and batch.window.length_ticks <= 0:
        raise HeaderInvalid(f"window.length_ticks {batch.window.length_ticks}")


def _check_texts(batch: Batch) -> None:
    # A text cannot be longer than its message, and serialized sizes are known: most batches end here.
    if batch.ByteSize() - len(batch.payload) <= TEXT_LIMIT_BYTES:
        return
    for part, message in (("source", batch.source), ("device", batch.device), ("clock", batch.clock)):
        for field, value in message.ListFields():
            if isinstance(value, str) and len(value.encode()) > TEXT_LIMIT_BYTES:
                raise HeaderInvalid(f"{part}.{field.name} has {len(value.encode())} bytes, at most {TEXT_LIMIT_BYTES}")
    for item in batch.dropped:
        if len(item.reason.encode()) > TEXT_LIMIT_BYTES:
            raise HeaderInvalid(f"dropped.reason has {len(item.reason.encode())} bytes, at most {TEXT_LIMIT_BYTES}")


def _check_clock(clock: ClockEpoch, field: str) -> None:
    num, den = clock.period_num, clock.period_den
    if not clock.clock or not num or not den:
        raise HeaderInvalid(f"{field} {clock.clock!r} has period {num}/{den} ns")
    common = gcd(num, den)
    if num // common >= TERM_LIMIT or den // common >= TERM_LIMIT:
        raise HeaderInvalid(f"{field} {clock.clock!r} has period {num}/{den} ns: a term of 2^31 or more")
