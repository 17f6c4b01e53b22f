"""The clock of the fleet, run by the coordinator: reads fleetscope.clocks, solves hop after hop, publishes maps.

Several coordinators may run one. Each takes a term (put-if-absent in the lake's store) when it begins; one that finds a
newer term stops publishing, and readers keep the higher (term, hop). One that begins takes up the published maps a few
hops before they end and reads the log from there: the axis does not jump, hops that nobody solved are solved now, and
stretches that were not final become so.
"""

import logging
import time
from collections import deque

from fleetscope.pipelines.align.fleet import FleetClock, HopResult, Settings
from fleetscope.pipelines.align.polyline import Pieces
from fleetscope.pipelines.align.steps import Verdict
from fleetscope.pipelines.coordinate.clock_records import HostKey, Records, epoch_of, published_maps
from fleetscope.pipelines.coordinate.host_maps import PIECES_KEPT, HostMap, host_maps, map_message
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import FleetClockConfig
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.transport.log import Log, Tail

_log = logging.getLogger(__name__)

FOLDER = "clocks"
WAIT_S = 4.0
"""The others are waited for so long once half of the hosts have told of the end of a hop: agents tell every second."""
FIRST = -2
"""Stands for the hop that is the first, before it is known which."""
MOST_HOPS = 6
"""Solved in one poll."""
CATCH_UP_HOPS = 60
"""Hops that nobody solved are solved later, if no more than so many are missing: else the newest alone."""
LOOKED_AT = 64
"""Records that are looked at to tell what time it was somewhere in the log: one of a host that is known."""
FORGET_HOPS = 360
"""A host that told nothing for so many hops (an hour) has no map in the topic any more."""
DEAD_NODES = 1_000
"""With more clock epochs that are over than this, and than live ones, the solver begins anew: each costs as much as a
live one. A host that boots again has a new one."""
ADOPTED_NS = 60_000_000_000
"""A stretch that begins so long before the hop wanted is it: no hop is longer."""
RENEW_S = 3_600.0
"""At most so often: the newest hops are read once more, and with them those that ended since."""
SILENT_S = 30.0
"""A host that told nothing for so long is over, or cut off, and holds up no hop. Each boot leaves one behind."""
RETAKE_S = 60.0
"""A solver that was fenced looks so often whether the other one still publishes."""


class Solver:
    """Follows the topic and tells the fleet its maps. Not for several threads; any number of processes."""

    def __init__(
        self, log: Log, clocks: str, maps: str, store: ObjectStore, config: FleetClockConfig, name: str
    ) -> None:
        self._log, self._clocks, self._maps = log, clocks, maps
        self._store, self.name = store, name
        self.settings = Settings(
            hop_ns=config.hop_s * 1_000_000_000,
            final_hops=config.final_hops,
            slew_ppb=config.slew_ppb,
            step_ns=config.step_us * 1e3,
            utc_slew_ppb=config.utc_slew_ppb,
        )
        self.clock = FleetClock(self.settings)
        self.records = Records(self.clock)
        self.term = 0
        self.maps: dict[int, deque[HostMap]] = {}
        """Node -> its newest stretches, provisional ones replaced by final ones; not those beyond the newest hop."""
        self.live: list[HostMap] = []
        """On from the newest hop that was told, one a host."""
        self.result: HopResult | None = None
        """Of that hop."""
        self.latency_s = 0.0
        """Of the newest maps: how long after the end of their hop they were published."""
        self._rows: list[HostMap] = []
        self._verdicts: list[tuple[int, Verdict]] = []
        self._tail: Tail | None = None
        self._told: dict[int, int] = {}
        """Clock epoch -> the newest hop that the topic has a map of it from, whoever told it."""
        self._heard_s: dict[int, float] = {}
        """Node -> when its newest record was read."""
        self._known = 0
        """Hop up to which another solver, or this one before it began anew, has told."""
        self._ripe: tuple[int, float] = (-1, 0.0)
        """Hop that is waited for, and since when."""
        self._fenced_s: float | None = None
        self._renewed_s = float("-inf")
        self._seen = -1
        """Hop that another one had published when it was looked at last."""

    # -- a poll ----------------------------------------------------------------------------------------------------

    def poll(self, now_s: float | None = None) -> int:
        """Take what is new, solve what is due; how many hops were."""
        now_s = time.monotonic() if now_s is None else now_s
        if self._fenced(now_s):
            return 0
        crowded = bool(self.live) and len(self.clock.epochs) > 2 * len(self._told) + DEAD_NODES
        if crowded and now_s - self._renewed_s >= RENEW_S:
            self._renewed_s = now_s
            self._anew()
        if self._tail is None:
            self._begin()
        assert self._tail is not None
        for message in self._tail.poll():
            if message.unreadable is None and not message.tombstone:
                self.records.take(message.value)
        self._leave_silent(now_s)
        solved = 0
        while solved < MOST_HOPS and (number := self._due(now_s)) is not None:
            if self._newest_term() > self.term:
                _log.warning("%s: another coordinator solves the clocks of the fleet", self.name)
                self._anew()
                self.term, self._fenced_s = 0, now_s
                break
            self._solve(number)
            solved += 1
        return solved

    def _anew(self) -> None:
        """To begin along the same axis, without hosts that are over; what was counted stays counted. What waits
        for the table names hosts by their old numbers and goes."""
        self._log.flush()
        self.close()
        before = self.records
        self.clock = FleetClock(self.settings)
        self.records = Records(self.clock)
        self.records.refused = before.refused
        self.records.duplicates, self.records.late = before.duplicates, before.late
        self.maps, self._told, self._heard_s, self.live, self.result = {}, {}, {}, [], None
        self._rows, self._verdicts = [], []

    def table_rows(self) -> list[HostMap]:
        """Stretches for the table since the last call: provisional ones of each hop, final ones of before."""
        rows, self._rows = self._rows, []
        return rows

    def take_verdicts(self) -> list[tuple[int, Verdict]]:
        """(hop, verdict) since the last call."""
        verdicts, self._verdicts = self._verdicts, []
        return verdicts

    def leave(self) -> None:
        """Close, and let one that was fenced go on at once, from the maps told last."""
        self._log.flush()
        if self.term:
            self._store.put_if_absent(self._left(self.term), self.name.encode())
        self.close()

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    # -- terms -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self.term:
            self._take_term()
        self._adopt()
        self._tail = self._log.tail(self._clocks, {0: self._first_offset()})

    def _first_offset(self) -> int:
        """Of the first record that the hop after the adopted ones needs; the end of the log where nothing was."""
        low, end = (
            found.get(0, 0) for found in (self._log.start_offsets(self._clocks), self._log.end_offsets(self._clocks))
        )
        if self.clock.number is None:
            return end
        wanted, high = self.clock.middle(self.clock.number), end
        while low < high:
            middle = (low + high) // 2
            told = self._told_at(middle, end)
            if told is not None and told < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def _told_at(self, offset: int, end: int) -> int | None:
        """Fleet time at which the first record from an offset on was made whose host is known."""
        looked = Records(FleetClock(self.settings))
        for message in self._log.read(self._clocks, 0, offset, min(end, offset + LOOKED_AT)):
            if message.unreadable is None and not message.tombstone:
                looked.take(message.value)
            for node, raw in looked.newest.items():
                known = self.records.known(looked.hosts[node])
                if known is not None and (at := self.clock.stated(known, raw)) is not None:
                    return at
            looked.newest.clear()
        return None

    def _take_term(self) -> None:
        while True:
            self.term = self._newest_term() + 1
            if self._store.put_if_absent(f"{FOLDER}/{self.term:012d}.term", self.name.encode()):
                break
        for key in self._store.keys(FOLDER):
            if key < f"{FOLDER}/{self.term - 1:012d}.term":
                self._store.delete(key)

    @staticmethod
    def _left(term: int) -> str:
        return f"{FOLDER}/{term:012d}.left"

    def _newest_term(self) -> int:
        keys = self._store.keys(FOLDER)
        return int(keys[-1].rpartition("/")[2].partition(".")[0]) if keys else 0

    def _fenced(self, now_s: float) -> bool:
        """Whether another one solves: until it has left, or published nothing between two looks."""
        if self._fenced_s is None:
            return False
        if self._store.size(self._left(self._newest_term())) is not None:
            self._fenced_s = None
            return False
        if now_s - self._fenced_s >= RETAKE_S:
            newest = max((told.solved for told in self._published()), default=0)
            if newest == self._seen:
                self._fenced_s = None
                return False
            self._seen, self._fenced_s = newest, now_s
        return True

    def _published(self) -> list[wire.ClockMaps]:
        told = (published_maps(value) for value in self._log.read_compacted(self._maps).values())
        return [item for item in told if item is not None]

    def _adopt(self) -> None:
        """The axis of whoever solved before."""
        told = [item for item in self._published() if item.term <= self.term]
        if not told or self.clock.number is not None:
            return
        hop_ns, term = self.settings.hop_ns, max(item.term for item in told)
        solved = max(item.solved for item in told if item.term == term)
        newest = [item for item in told if (item.term, item.solved) == (term, solved)]
        # By their times: hops may have been of another length then.
        self._known = sorted(item.pieces[-1].y0 // hop_ns for item in newest)[len(newest) // 2]
        self._told = {item.epoch: item.pieces[-1].y0 // hop_ns for item in told}
        # As far back as the stretches that are not final yet.
        number = self._known - self.settings.final_hops - 2
        middle = self.clock.middle(number)
        for item in told:
            piece = next((p for p in reversed(item.pieces) if -hop_ns // 2 <= middle - p.y0 < ADOPTED_NS), None)
            if piece is None and (item.term, item.solved) == (term, solved):
                piece = item.pieces[0]  # a host, or a fleet, that is new; or hops were shorter
            if piece is not None:
                key: HostKey = (item.cluster, item.host, item.boot_id, item.resets)
                self.records.node(key)
                self.clock.adopt(epoch_of(key), number, piece.x0, piece.y0, (piece.n - piece.d) / piece.d * 1e9)

    # -- hops ------------------------------------------------------------------------------------------------------

    def _leave_silent(self, now_s: float) -> None:
        self._heard_s |= dict.fromkeys(self.records.heard, now_s)
        self.records.heard.clear()
        for node in [node for node, at_s in self._heard_s.items() if now_s - at_s > SILENT_S]:
            del self._heard_s[node]
            self.records.newest.pop(node, None)

    def _reached(self) -> list[int]:
        """Fleet time of the newest record of each host that is not silent."""
        return self.clock.stated_all(self.records.newest)

    def _newest_number(self) -> int | None:
        """The hop that half of the hosts have reached."""
        if self.clock.number is None:
            return self.clock.first_number()
        reached = sorted(self._reached())
        # Of two the one that is behind: one host alone, however absurd its counter, takes nobody along.
        return reached[(len(reached) - 1) // 2] // self.settings.hop_ns if reached else None

    def _due(self, now_s: float) -> int | None:
        newest = self._newest_number()
        if newest is None:
            return None
        number = newest - 1
        if self.clock.number is not None:
            number = self.clock.number + 1
            if number < newest - CATCH_UP_HOPS:
                number = newest - MOST_HOPS
            if number >= newest:
                return None
            end = (number + 1) * self.settings.hop_ns
            living = [at for at in self._reached() if at > end - 3 * self.settings.hop_ns]
            told = sum(at >= end + 1_000_000_000 for at in living)
        else:
            told, living = 0, [0]
        # The first is whichever it is by then: a hop may be shorter than the wait.
        waited = number if self.clock.number is not None else FIRST
        if self._ripe[0] != waited:
            self._ripe = (waited, now_s)
        if told < len(living) and now_s - self._ripe[1] < WAIT_S:
            return None
        return number

    def _solve(self, number: int) -> None:
        result = self.clock.solve(number)
        if number <= self._known:
            return  # told by whoever solved it first; what it says of later ones is what is wanted
        self.result = result
        end = (number + 1) * self.settings.hop_ns
        self._verdicts += [(number, verdict) for verdict in result.verdicts]
        for verdict in result.verdicts:
            names = [self.records.hosts[node][1] for node in (verdict.node, *verdict.proof) if node >= 0]
            _log.warning("clock %s: %s, %.1f us", verdict.kind.value, ", ".join(names), verdict.size_ns / 1e3)
        self._keep(result.provisional, number, final=False)
        self._keep(result.proved, number, final=False)
        self._keep(result.final, number, final=True)
        self._tell(result)
        reached = self._reached()
        self.latency_s = max(0.0, (max(reached) - end) / 1e9) if reached else 0.0

    def _keep(self, pieces: Pieces, number: int, *, final: bool) -> None:
        for made in host_maps(pieces, self.clock.epochs, number, final=final):
            kept = self.maps.setdefault(made.node, deque(maxlen=PIECES_KEPT))
            at = next((i for i, old in enumerate(kept) if old.x0 == made.x0), None)
            if at is None:
                kept.append(made)
            else:
                kept[at] = made
            self._rows.append(made)

    def _tell(self, result: HopResult) -> None:
        self.live = list(host_maps(result.live, self.clock.epochs, result.number, final=False))
        reference = self.clock.epochs[result.reference] if result.reference >= 0 else 0
        reasons = {verdict.node: verdict.kind.value for verdict in result.verdicts if verdict.node >= 0}
        for made in self.live:
            pieces = [*self.maps.get(made.node, ()), made]
            why = reasons.get(made.node, "")
            told = map_message(self.records.hosts[made.node], made.epoch, pieces, result, reference, why)
            told.coordinator, told.term = self.name, self.term
            self._log.append(self._maps, _key(made.epoch), told.SerializeToString())
            self._told[made.epoch] = result.number
        for epoch, number in list(self._told.items()):
            if result.number - number > FORGET_HOPS:
                self._log.append(self._maps, _key(epoch), None)
                del self._told[epoch]


def _key(epoch: int) -> bytes:
    return f"{epoch & (1 << 64) - 1:016x}".encode()
