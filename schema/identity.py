"""64-bit identities: hashes of stable natural keys, as signed integers (Arrow int64).

A collision among n keys has probability n^2 / 2^65: 1e-8 at 500 000 keys.
"""

from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from fleetscope.schema.wire_pb2 import ClockEpoch, Source

_SEPARATOR = b"\x1f"


def key_hash(*parts: str | int) -> int:
    """Signed XXH3-64 of the parts joined by the ASCII unit separator. Never 0, which means "none" in tables."""
    data = _SEPARATOR.join(str(part).encode("utf-8", "surrogateescape") for part in parts)
    value = xxhash.xxh3_64_intdigest(data)
    value = value - (1 << 64) if value >= 1 << 63 else value
    return value or 1


def name_program(name: str) -> int:
    """`program` of a host annotation: the hash of its name. Its `op` is 0."""
    return key_hash("name", name)


def host_id(cluster: str, host: str) -> int:
    """Of a host by its name in its cluster."""
    return key_hash("host", cluster, host)


def process_id(source: "Source") -> int:
    """One operating-system process. pid 0 is the agent itself."""
    return key_hash("process", source.cluster, source.host, source.boot_id, source.pid, source.start_ticks)


def life_id(boot_id: str, pid: int, start_ticks: int, rank: int) -> int:
    """Unsigned: one life of a rank, by what it says of itself. A rank that starts again has another."""
    return key_hash("life", boot_id, pid, start_ticks, rank) & ((1 << 64) - 1)


def source_id(source: "Source") -> int:
    """The numbering domain of batches and events: a process under one spool incarnation."""
    return key_hash(
        "source", source.cluster, source.host, source.boot_id, source.pid, source.start_ticks, source.incarnation
    )


def device_id(key: str) -> int:
    """`key` is the device's natural key: UUID, PCI address or topology coordinates, with its partition."""
    return key_hash("device", key)


def run_id(cluster: str, run: str) -> int:
    """Of a run by its name."""
    return key_hash("run", cluster, run)


def attempt_id(cluster: str, run: str, attempt: str) -> int:
    """Of one attempt of a run: the same name run twice is two."""
    return key_hash("attempt", cluster, run, attempt)


def series_id(name: str, labels: dict[str, str]) -> int:
    """Of a series of samples by name and labels, whatever their order."""
    return key_hash("series", name, *(f"{key}={labels[key]}" for key in sorted(labels)))


def epoch_id(source: "Source", clock: "ClockEpoch") -> int:
    """Clock epoch (host, boot id, device, clock, reset count): values of two epochs are never compared."""
    return key_hash("epoch", source.cluster, source.host, source.boot_id, clock.device, clock.clock, clock.resets)
