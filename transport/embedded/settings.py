"""Settings of the embedded log."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class EmbeddedSettings:
    """`sync`: "group" = an append is on the disk after `sync_s` or `sync_bytes` at the latest (a killed process loses
    nothing, a power cut at most that); "always" = before `append` returns; "never" = when the system likes."""

    append_block_s: float = 0.5
    sync: str = "group"
    sync_s: float = 1.0
    sync_bytes: int = 16 * MIB
    segment_bytes: int = 64 * MIB
    # Small, since only closed segments are compacted: counters of 2 s epochs write ~1 MB in a minute.
    compacted_segment_bytes: int = 4 * MIB
    tombstone_ms: int = 24 * 3_600_000
    tail_poll_s: float = 0.05
