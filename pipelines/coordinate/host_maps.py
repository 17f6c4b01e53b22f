"""Stretches of host maps as they are published and stored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fleetscope.pipelines.align.fleet import HopResult
from fleetscope.pipelines.align.polyline import Pieces
from fleetscope.schema import identity
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import GUARANTEED, HOST_ONLY, STATISTICAL

HOST_ONLY_NS = 100_000
"""A host whose stated time has a sigma beyond this is tied to the fleet by its wall clock at best."""
PIECES_KEPT = 12
"""Stretches in a message: two minutes."""


@dataclass(frozen=True, slots=True)
class HostMap:
    """fleet ns = y0 + floor((x - x0) * n / d) for raw ns x in [x0, x1) of clock epoch `epoch`; true - stated is proved
    to be in [lo_ns, hi_ns] where quality is guaranteed, relative to epoch `reference`. `version`: hop it was solved
    in."""

    node: int
    epoch: int
    x0: int
    y0: int
    n: int
    d: int
    x1: int
    lo_ns: int
    hi_ns: int
    sigma_ns: int
    quality: str
    method: str
    version: int
    final: bool
    reference: int

    @property
    def err_ns(self) -> int:
        """Bound of |true - stated|, -1 where nothing is proved."""
        return max(-self.lo_ns, self.hi_ns) if self.quality == GUARANTEED else -1

    def row(self, host: int, seen_ns: int) -> dict[str, Any]:
        """Of tables.CLOCK_MAPS."""
        line = (self.x0, self.y0, self.n, self.d)
        return {
            "map": identity.key_hash("map", self.epoch, self.version, *line, self.err_ns, self.quality),
            "epoch": self.epoch,
            "host": host,
            "device": 0,
            "clock": "monotonic_raw",
            "version": self.version,
            "x0": self.x0,
            "y0": self.y0,
            "n": self.n,
            "d": self.d,
            "valid_from": self.x0,
            "valid_to": self.x1,
            "err_ns": self.err_ns,
            "quality": self.quality,
            "period_num": 1,
            "period_den": 1,
            "seen_ns": seen_ns,
            "ref": 0,
            "lo_ns": self.lo_ns,
            "hi_ns": self.hi_ns,
            "sigma_ns": self.sigma_ns,
            "method": self.method,
            "final": self.final,
            "reference": self.reference,
        }


def host_maps(pieces: Pieces, epochs: Sequence[int], version: int, *, final: bool) -> Iterator[HostMap]:
    """Of all hosts. A stretch that no rational slope fits (a clock that leapt by hours) is left out."""
    reference = epochs[pieces.reference] if pieces.reference >= 0 else 0
    guaranteed = pieces.guaranteed
    method = "smoother" if final else "filter"
    lo = np.floor(np.where(guaranteed, pieces.lo, 0)).astype(np.int64).tolist()
    hi = np.ceil(np.where(guaranteed, pieces.hi, 0)).astype(np.int64).tolist()
    sigma = np.ceil(np.minimum(pieces.sigma, 1e18)).astype(np.int64).tolist()
    columns = (pieces.node, pieces.x0, pieces.y0, pieces.x1)
    for index, (node, x0, y0, x1) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        try:
            n, d = pieces.slope(index)
        except ValueError:
            continue
        proved = bool(guaranteed[index])
        quality = GUARANTEED if proved else STATISTICAL if sigma[index] <= HOST_ONLY_NS else HOST_ONLY
        yield HostMap(
            node, epochs[node], x0, y0, n, d, x1, lo[index], hi[index], sigma[index], quality,
            method if quality != HOST_ONLY else "wall", version, final, reference,
        )  # fmt: skip


def map_message(
    host: tuple[str, str, str, int], epoch: int, pieces: Sequence[HostMap], result: HopResult, reference: int, why: str
) -> wire.ClockMaps:
    """A value of fleetscope.clock_maps; whoever solved it adds its name and term."""
    cluster, name, boot_id, resets = host
    told = wire.ClockMaps(
        epoch=epoch, cluster=cluster, host=name, boot_id=boot_id, resets=resets, solved=result.number,
        reference=reference, quarantined=why,
    )  # fmt: skip
    for made in pieces:
        told.pieces.add(
            x0=made.x0, y0=made.y0, n=made.n, d=made.d, valid_from=made.x0, valid_to=made.x1, lo_ns=made.lo_ns,
            hi_ns=made.hi_ns, guaranteed=made.quality == GUARANTEED, sigma_ns=made.sigma_ns, version=made.version,
            final=made.final, quality=made.quality, method=made.method,
        )  # fmt: skip
    if result.utc is not None:
        told.utc.lo_ns, told.utc.hi_ns = round(result.utc.lo_ns), round(result.utc.hi_ns)
        told.utc.hosts = len(result.utc.agreeing)
        told.utc.at_ns = told.pieces[-1].y0
    return told
