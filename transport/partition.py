"""Which partition a key belongs to: the same on both back ends."""

from __future__ import annotations

from zlib import crc32


def partition_of(key: bytes, partitions: int) -> int:
    """CRC-32 (IEEE 802.3) of the key modulo the number of partitions.

    This is what librdkafka's `consistent` partitioner does (its CONFIGURATION.md), so a producer in another language
    agrees with ours; Java's default (murmur2) does not. Kafka is always told the partition.
    """
    return crc32(key) % partitions
