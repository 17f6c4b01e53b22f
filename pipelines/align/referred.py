"""Maps to the host's counter, told beside those to the wall clock: from there readers go on over the fleet's maps.

A device's (or the recorder's) ticks -> monotonic_raw is what its bracket line says, with its proved error. REALTIME ->
monotonic_raw is the wall line turned round; where it was set, a reading of it means two moments, so nothing is proved
of it any more.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fleetscope.pipelines.align.bracket import BracketLine
from fleetscope.pipelines.align.piece import Piece
from fleetscope.schema.identity import key_hash
from fleetscope.schema.vocabulary import GUARANTEED, STATISTICAL

TOLD_AGAIN_NS = 10_000_000_000
"""A piece that grows is told again when it has grown by so much: a hop, before which there is no map to go on with."""


@dataclass(frozen=True, slots=True)
class Referred:
    """Ticks of `epoch` -> ns of the epoch `ref`. `map` names it however far it has come."""

    map: int
    epoch: int
    ref: int
    piece: Piece
    quality: str


def turned(piece: Piece) -> Piece:
    """The map back. Anchored where the first was; the floors of both cost 1 ns each."""
    begin, end = piece.floor_at(piece.begin), piece.floor_at(piece.end)
    return Piece(piece.y0, piece.x0, piece.d, piece.n, begin, end, piece.err + 2, piece.blind)


class Referrals:
    """What was told of pieces so far, and what is to be told. Bounded by what is told in an hour or so."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, int, int, int, int, int, int], int] = {}
        self.fresh: dict[int, Referred] = {}

    def tell(self, epoch: int, ref: int, pieces: Iterable[Piece], quality: str, *, num: int, den: int) -> None:
        """Pieces of a clock of nominal period num / den, ascending; the last may still grow."""
        kept = list(pieces)
        for piece in kept:
            name = (epoch, piece.begin, piece.x0, piece.y0, piece.n, piece.d, piece.err)
            told = self._told.get(name)
            least = TOLD_AGAIN_NS * den // num if piece is kept[-1] else 1
            if piece.end <= piece.begin or (told is not None and piece.end < told + least):
                continue
            self._told[name] = piece.end
            found = Referred(key_hash("map", *name, ref, quality), epoch, ref, piece, quality)
            self.fresh[found.map] = found
        if len(self._told) > 1024:
            for old in list(self._told)[:512]:
                del self._told[old]

    def of_wall(self, epoch: int, ref: int, wall: BracketLine) -> None:
        """The wall clock, read against `ref`, as far as it was read."""
        wall.reach(wall.window[0].x, wall.window[-1].x)
        quality = STATISTICAL if wall.turns else GUARANTEED
        self.tell(epoch, ref, map(turned, wall.pieces), quality, num=1, den=1)
