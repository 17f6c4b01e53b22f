"""One training process as the agent knows it: who it is, its ring, its programs, what it has to announce."""

import base64
import json
import logging
import os
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fleetscope.agents.batches import Announcer, Draft, clean_text
from fleetscope.agents.clocks import MONOTONIC_RAW
from fleetscope.agents.node.account import WindowAccount
from fleetscope.agents.node.collectives import Collectives
from fleetscope.agents.node.devices import Devices
from fleetscope.agents.node.executions import DeviceRows
from fleetscope.agents.node.facts import Host, pid_namespace
from fleetscope.agents.node.harvest import remove_folder
from fleetscope.agents.node.life import Life
from fleetscope.agents.node.matching import Unmatched
from fleetscope.agents.node.meter import Meter
from fleetscope.agents.node.pairing import Unplaced
from fleetscope.agents.node.pjrt import Pjrt
from fleetscope.agents.node.rows import NAME_LIMIT, Names, rows_of
from fleetscope.agents.node.stacks import age_ns, with_open
from fleetscope.agents.node.stepped import without_stepped
from fleetscope.agents.profiler.protocol import NAMELESS, Cost, Hello
from fleetscope.agents.profiler.segment import SUFFIX, owner
from fleetscope.agents.redaction import KEEP_ALL, Redaction
from fleetscope.agents.spool import Spool
from fleetscope.agents.xspace import OpTables
from fleetscope.native.recorder import Drained, Open, Segment, State
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.errors import SegmentRefused
from fleetscope.schema.identity import name_program, process_id
from fleetscope.schema.vocabulary import BatchFlag

log = logging.getLogger(__name__)

FOREVER = (1 << 63) - 1
HOLD_NS = 1_000_000_000
"""How long events nested in a region that is still open wait for it in the ring. Longer ones (a whole run in one
annotation) are cut and flagged."""
YOUNG_NS = 10_000_000_000
"""A process that is met so soon after its start has sent its windows to nobody else: its first has number 1."""
FIRST_RING, OTHER_RING = 32_768, 8_192
"""Records a ring holds: the first thread that records, the training loop, has the larger (docs/format/recorder.md)."""


def _share_of_ring(drained: Drained) -> float:
    if not len(drained):
        return 0.0
    lines = np.concatenate([drained.line, drained.line[drained.arg_row]])
    records = np.bincount(lines >> 8)
    return float(max(records[0] / FIRST_RING, records[1:].max(initial=0) / OTHER_RING) + (drained.lost > 0))


Key = tuple[int, int]
"""(pid, start ticks)"""


class Process:
    """Not thread-safe; the agent's lock guards it."""

    def __init__(
        self,
        host: Host,
        hello: Hello,
        spool: Spool,
        labels: dict[str, str],
        devices: Devices | None = None,
        redaction: Redaction = KEEP_ALL,
    ) -> None:
        """`hello`: as `redaction` has left it."""
        self.hello = hello
        self._redaction = redaction
        self.key: Key = (hello.pid, hello.start_ticks)
        self.source = wire.Source(
            cluster=host.cluster,
            host=host.name,
            boot_id=hello.boot_id or host.boot_id,
            pid=hello.pid,
            start_ticks=hello.start_ticks,
            run=clean_text(hello.run, 256),
            attempt=clean_text(hello.attempt, 256),
            rank=hello.rank,
            tenant=clean_text(hello.tenant, 256),
        )
        self.id = process_id(self.source)
        self.tables = OpTables(f"{self.id}", told=lambda kernel: redaction.of("ops", kernel))
        self.announcer = Announcer()
        self.cost = Cost()
        self.devices: dict[str, wire.Device] = {}
        """Devices seen in its windows, by natural key."""
        self.connected = False
        self.life = Life(hello.start_ticks)
        self.pending = 0
        """Windows and programs of it that wait to be decoded."""
        self.harvesting: set[int] = set()
        """Load ids whose HLO waits so."""
        self.unmatched: list[Unmatched] = []
        self.unplaced: list[Unplaced] = []
        """Windows that wait for the shim to tell what ran meanwhile."""
        self.ended_at_ns = 0
        self.final = False
        """Its last event was taken."""
        self.windows: Counter[str] = Counter()
        self.account = WindowAccount()
        self.meter = Meter()
        self.segment: Segment | None = None
        self._attached_to = ""
        """What the process calls that segment."""
        self._next: Segment | None = None
        """Where it goes on; the round before that takes what the present one holds."""
        self.resets: int | None = None
        """Of the clock in whose ticks the segment is; None: not known yet."""
        self.outdated = False
        """That clock has had a later epoch since: the process will go on in another segment."""
        self._names: Names | None = None
        self._announced: set[int] = set()
        self._lines: set[int] = set()
        self._labels = labels
        self._lost: Counter[str] = Counter()
        self._no_ring = 0
        self._kept: dict[str, Any] = {}
        """The newest mark but for the account."""
        self._recalled = False
        self._last_to: int | None = None
        self._alive_to = 0
        """Where the newest round in which it lived had drained to."""
        self._lived_at = 0
        """Tick of that round."""
        self.pjrt: Pjrt | None = None
        self.collectives = Collectives(hello.world_size)
        self._find = devices or Devices(host, list)
        self._spool = spool
        self._say(wire.Announcement(run_event=wire.RunEvent(event="start", at_ns=hello.started_ns)))
        self._introduce()

    def _say(self, announcement: wire.Announcement) -> None:
        self.announcer.add(announcement)

    def announce(self, announcement: wire.Announcement) -> None:
        """A dimension row of this process: a program load, a device, a name."""
        self._say(announcement)

    def _introduce(self) -> None:
        hello = self.hello
        labels = {clean_text(key, 256): clean_text(value, 256) for key, value in [*hello.labels.items()][:60]}
        self._info = wire.Announcement(
            process=wire.ProcessInfo(
                pid=hello.pid,
                start_ticks=hello.start_ticks,
                run=self.source.run,
                attempt=self.source.attempt,
                rank=hello.rank,
                command=clean_text(hello.command),
                python=clean_text(hello.python, 256),
                jax=clean_text(hello.jax, 256),
                jaxlib=clean_text(hello.jaxlib, 256),
                world_size=hello.world_size,
                start_ns=hello.started_ns,
                tenant=self.source.tenant,
                labels={**labels, **self._labels},
                declared_flops_per_step=hello.flops_per_step if 0 < hello.flops_per_step < 1e30 else 0.0,
            )
        )
        self._say(self._info)

    def greet(self, hello: Hello, labels: dict[str, str]) -> None:
        """A repeated hello (jax became known, a reconnect): the newest wins. The identity cannot change."""
        if hello == self.hello and labels == self._labels:
            return
        self.hello, self._labels = hello, labels
        old = self._info
        self._introduce()
        if self._info != old:
            self.announcer.withdraw(old)

    def attach(self, descriptor: int = -1) -> bool:
        """Open the recorder segment, to go on where the spool says, else where the segment itself says. `descriptor`:
        of it, as the process sent it. False: what it offered was refused."""
        if self.final or (self.segment is not None and self._attached_to == self.hello.segment):
            return True
        cursor, shim = self._recall()
        try:
            segment = self._open(cursor, descriptor) if self.hello.segment else None
        except (OSError, ValueError) as error:
            log.warning("%s", SegmentRefused(f"process {self.hello.pid}: {error}"))
            return False
        if segment is not None and self.segment is not None:
            self._next = segment
        elif segment is not None:
            self._begin(segment, shim)
        return True

    def _open(self, cursor: bytes | None, descriptor: int) -> Segment | None:
        """By the descriptor, which leads to it from any namespace; else by its name. None: it has no name, and whoever
        had its descriptor is gone: it comes with the next hello."""
        path = self.hello.segment
        named = not path.startswith(NAMELESS)
        if named and self.os_pid and not os.path.exists(path):
            # A container's own /dev/shm: seen through its process, as what lies beside the segment is.
            path = f"/proc/{self.os_pid}/root{path}"
        if descriptor >= 0:
            try:
                return self._checked(Segment(path, cursor, descriptor))
            except (OSError, ValueError) as error:
                if not named:
                    raise
                log.info("descriptor of process %d: %s", self.hello.pid, error)
        return self._checked(Segment(path, cursor)) if named else None

    def _checked(self, segment: Segment) -> Segment:
        if (segment.info.pid, segment.info.start_ticks) != self.key:
            raise ValueError(f"{self.hello.segment} belongs to process {segment.info.pid}")
        return segment

    def _begin(self, segment: Segment, shim: Any) -> None:
        self.segment, self._attached_to = segment, self.hello.segment
        self.resets, self.outdated = None, False
        self._announced.clear()
        self._lines.clear()
        names = self._names = Names(segment.names, self._redaction)
        self.pjrt = Pjrt(self.id, names.text, lambda seen: self._find.seen(self, seen), self._redaction)
        if shim is not None:
            try:
                self.pjrt.restore(shim)
            except (ValueError, TypeError, DecodeError) as error:
                log.warning("executions of process %d begin anew: %s", self.hello.pid, error)

    def _recall(self) -> tuple[bytes | None, Any]:
        """Where an earlier life of the agent stopped: the ring's cursor, what the shim's part carried. The account of
        windows is taken over the first time."""
        mark = self._spool.mark(self.source)
        first, self._recalled = not self._recalled, True
        if not mark:
            if first and time.time_ns() - self.hello.started_ns < YOUNG_NS:
                self.account.following = 1
            return None, None
        try:
            kept = json.loads(mark)
            account = kept.pop("windows", None)
            if first:
                self.account = WindowAccount.from_json(account)
            self._kept = kept
            if "cursor" not in kept or kept.get("segment", self.hello.segment) != self.hello.segment:
                return None, None
            cursor = zlib.decompress(base64.b64decode(kept["cursor"]))
            self._no_ring, self._last_to = int(kept["no_ring"]), int(kept["to"])
            return cursor, kept.get("pjrt")
        except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
            log.warning("mark of process %d is not readable: %s", self.hello.pid, error)
            self._kept = {}
            return None, None

    @property
    def clock(self) -> wire.ClockEpoch:
        assert self.segment is not None
        info = self.segment.info
        return wire.ClockEpoch(
            clock=info.clock,
            resets=self.resets or 0,
            period_num=info.period_num,
            period_den=info.period_den,
            width_bits=64,
        )

    def tick(self, ticks: Mapping[str, int]) -> int:
        """Of `ticks` by clock that of its clock; any where there is nothing to compare it with."""
        return ticks[self.segment.info.clock if self.segment is not None else MONOTONIC_RAW.clock]

    @property
    def os_pid(self) -> int:
        """Its pid in the agent's own pid namespace; 0: not visible there."""
        return self.life.pid

    def lives(self) -> bool | None:
        """None: it cannot be told from here."""
        told, segment = self.life.lives(), self.segment
        if told is None and segment is not None and segment.info.pid_namespace not in (0, pid_namespace()):
            # One that closed it may go on in another.
            return segment.held or None
        return told

    def open_regions(self) -> list[Open]:
        """What its threads are in now; nothing when that cannot be read."""
        try:
            return self.segment.open_now() if self.segment is not None else []
        except ValueError:
            return []  # the next round finds it out, and says so

    def open_ns(self, now_tick: int) -> int:
        """Age of the oldest region that is open; 0 where none is."""
        return max((self.age_ns(region.start, now_tick) for region in self.open_regions()), default=0)

    def state(self) -> State | None:
        try:
            return self.segment.state() if self.segment is not None else None
        except ValueError:
            return None

    def name_text(self, name: int) -> str:
        """As the process calls it: for nobody but the process."""
        return self._names.text(name) if self._names is not None else ""

    def name_told(self, name: int) -> str:
        """As anybody may know it."""
        return self._names.told(name) if self._names is not None else ""

    def age_ns(self, start: int, now_tick: int) -> int:
        assert self.segment is not None
        return age_ns(start, now_tick, self.segment.info)

    def lose(self, reason: str, events: int = 1) -> None:
        """Count a loss to go with the next batch."""
        if events:
            self._lost[reason] += events

    def collect(self, ticks: Mapping[str, int], now_s: float, last: bool = False) -> float:
        """Drain the rings into the spool up to now, by clock. `last`: the process is gone, take everything.

        How full the fullest ring was, above 1 if records were overwritten.
        """
        fullest = 0.0
        if self._next is not None:
            self._succeed(self._next, now_s)
        elif self.outdated and not last:
            return fullest
        now_tick = self.tick(ticks)
        if not last and self.lives():
            # Its connection may outlive it for a round.
            self._lived_at = now_tick
        try:
            until = FOREVER if last else self._until(now_tick)
            for _ in range(64):
                more, share = self._once(until, now_tick, now_s, last)
                fullest = max(fullest, share)
                if not more:
                    break
        except (OSError, ValueError) as error:
            # The segment was truncated or removed under us; what it held cannot be told any more.
            log.warning("segment of process %d: %s", self.hello.pid, error)
            self.segment = None
        return fullest

    def _succeed(self, fresh: Segment, now_s: float) -> None:
        """Its clock became another, and it goes on in a segment for that one: take all that the old one holds."""
        last_to = self._last_to or 0
        old = self._attached_to
        try:
            while self._once(FOREVER, last_to, now_s, last=True)[0]:
                pass
        except (OSError, ValueError) as error:
            log.warning("segment of process %d: %s", self.hello.pid, error)
        self._next, self._last_to, self._no_ring = None, None, 0
        self._alive_to = self._lived_at = 0
        self._begin(fresh, None)
        self._remove(old)

    def _remove(self, segment: str) -> None:
        """It came through the socket: only a file that is named as a segment of this process is ours to remove."""
        path = Path(segment)
        if owner(path.name, SUFFIX) == self.key:
            path.unlink(missing_ok=True)
            remove_folder(path)

    def _until(self, now_tick: int) -> int:
        """Not later than the begin of a region that is open and young: what is nested in it must go with it."""
        if self.segment is None:
            return now_tick
        starts = (start for _, start, _ in self.segment.open_since())
        return min([now_tick, *(start for start in starts if 0 <= now_tick - start < self._hold)])

    @property
    def _hold(self) -> int:
        assert self.segment is not None
        return HOLD_NS * self.segment.info.period_den // self.segment.info.period_num

    def _once(self, until: int, now_tick: int, now_s: float, last: bool) -> tuple[bool, float]:
        if self.segment is None or self._names is None:
            self._speak(now_s)
            return False, 0.0
        drained = self.segment.drain(until=until)
        state = self.segment.state()
        self.meter.drained(drained, state.events, NAME_LIMIT)
        self._lost["ring_overwritten"] += drained.lost
        self._lost["no_ring"] += max(0, state.no_ring - self._no_ring)
        self._no_ring = max(self._no_ring, state.no_ring)
        if self.outdated and self._last_to is not None:
            drained, odd = without_stepped(drained, self._last_to - self._hold)
            self.lose("invalid_row", odd)
        if last and not drained.more:
            drained = self._with_open(drained, now_tick)
        ends = drained.start + drained.dur
        to = max(now_tick, int(ends.max(initial=now_tick - 1)) + 1) if last else until
        if self._last_to is None:
            self._last_to = since = int(ends.min(initial=to))
            cut_before = -(1 << 62)
        else:
            since = cut_before = self._last_to
        to = max(to, since)
        rows = rows_of(drained, self._names, cut_before, self.pjrt, now_s)
        for reason, count in rows.lost.items():
            self.lose(reason, count)
        for name in rows.names - self._announced:
            text = self._names.told(name)
            self._announced.add(name)
            self._say(wire.Announcement(name=wire.NameInfo(program=name_program(text), name=text)))
        for series in rows.series:
            self._say(wire.Announcement(series=series.info()))
        for announcement in rows.announcements:
            self._say(announcement)
        if rows.lines - self._lines:
            self._name_lines(rows.lines)
        self._last_to = to
        executions = [] if drained.more else self._executions(to, now_tick, now_s, last)
        if executions and self.pjrt is not None:
            second = 1_000_000_000 * self.clock.period_den // self.clock.period_num
            lanes = len(self.pjrt.executions.lanes)
            self.collectives.note(executions, self.tables.programs(), lanes, self.pjrt.whole, second)
        drafts = self._drafts(rows.spans, rows.samples, since, to, now_s, executions)
        if drafts:
            self._spool.put(*drafts)
            self.segment.commit()
        return drained.more, _share_of_ring(drained)

    def _with_open(self, drained: Drained, now_tick: int) -> Drained:
        """And what it was in when it died, up to where it is known to have lived."""
        assert self.segment is not None
        regions = self.segment.open_now()
        if not regions:
            return drained
        ends = drained.start + drained.dur
        newest = int(ends[ends <= now_tick].max(initial=0))
        begun = max((region.start for region in regions if region.start <= now_tick), default=0)
        lived_to = max(self._lived_at, newest, begun, self._last_to or 0)
        info, state = self.segment.info, self.segment.state()
        drained, odd = with_open(drained, regions, info.anchor[1], min(lived_to, now_tick), state.step)
        self.lose("invalid_row", odd)
        return drained

    def _executions(self, to: int, now_tick: int, now_s: float, last: bool) -> list[DeviceRows]:
        """Device batches of the shim's records. Those of a process that died end where it was last alive."""
        if self.pjrt is None or not self.pjrt.active:
            return []
        if last:
            return list(self.pjrt.finish(min(to, max(self._alive_to, 1))))
        if self._lived_at == now_tick:
            self._alive_to = to
        info = self.clock
        return list(self.pjrt.settle(to, 1_000_000 * info.period_den // info.period_num, now_s))

    def _name_lines(self, lines: frozenset[int]) -> None:
        assert self.segment is not None
        assert self._names is not None
        for thread in self.segment.threads():
            if thread.line in lines and thread.line not in self._lines:
                name = self._names.told(thread.name) if thread.name else f"thread {thread.tid}"
                self._say(wire.Announcement(line=wire.LineInfo(device=0, line=thread.line, name=name)))
                self._lines.add(thread.line)

    def _drafts(
        self, spans: object, samples: object, since: int, to: int, now_s: float, executions: Sequence[DeviceRows]
    ) -> list[Draft]:
        announcements = self.announcer.due(now_s)
        lost = {reason: count for reason, count in self._lost.items() if count}
        self._lost.clear()
        assert self.segment is not None
        drafts = [Draft(self.source, since, to, self.clock, rows=rows) for rows in (spans, samples) if rows is not None]
        drafts += [
            Draft(
                self.source,
                told.tick_from,
                told.tick_to,
                self.clock,
                told.device,
                told.rows,
                flags=int(BatchFlag.EXECUTIONS),
            )
            for told in executions
        ]
        if not drafts and (announcements or lost):
            drafts = [Draft(self.source)]
        if drafts:
            drafts[0] = replace(drafts[0], announcements=announcements, lost=lost)
            drafts[-1] = replace(drafts[-1], mark=self._mark())
        return drafts

    def _mark(self) -> str:
        if self.segment is not None:
            self._kept = {
                "cursor": base64.b64encode(zlib.compress(self.segment.cursor)).decode(),
                "segment": self._attached_to,
                "no_ring": self._no_ring,
                "to": self._last_to,
            }
            if self.pjrt is not None and self.pjrt.active:
                self._kept["pjrt"] = self.pjrt.carried()
        return self._mark_again()

    def _mark_again(self) -> str:
        """With the ring's place as it was last kept: it may have been read further for rows that are not there yet."""
        return json.dumps({**self._kept, "windows": self.account.to_json()}, separators=(",", ":"))

    def settle(self, window: int, drafts: list[Draft], lost: dict[str, int] | None = None) -> int:
        """Keep what a window became, the losses before it and that it is settled, in one write: a killed agent has all
        of it or none. Rows kept."""
        before = self.account.settle(window)
        if before:
            self.windows["abandoned"] += sum(before.values())
        lost = {**before, **(lost or {})}
        drafts = drafts or [Draft(self.source)]
        drafts[0] = replace(drafts[0], lost={**drafts[0].lost, **lost})
        drafts[-1] = replace(drafts[-1], mark=self._mark_again())
        return self._spool.put(*drafts)

    def read_clocks(self, snapshots: Sequence[wire.ClockSnapshot]) -> None:
        """Tell what is known of a clock apart from any rows."""
        self._spool.put(Draft(self.source, snapshots=snapshots, mark=self._mark_again()))

    def _speak(self, now_s: float) -> None:
        """Without a ring there are still announcements and losses to tell."""
        announcements = self.announcer.due(now_s)
        lost = {reason: count for reason, count in self._lost.items() if count}
        self._lost.clear()
        if announcements or lost:
            self._spool.put(Draft(self.source, announcements=announcements, lost=lost, mark=self._mark_again()))

    def finish(self, ticks: Mapping[str, int], now_s: float, now_ns: int) -> None:
        """The process is gone: take what is left, say that it ended, remove its segment."""
        self.collect(ticks, now_s, last=True)
        abandoned = self.account.close()
        for reason, count in abandoned.items():
            self.lose(reason, count)
            self.windows["abandoned"] += count
        self.ended_at_ns = self.ended_at_ns or now_ns
        # What was added last is said first: the row of a process that is announced after its end holds it.
        self.announcer.again(self._info)
        self._say(wire.Announcement(run_event=wire.RunEvent(event="end", at_ns=self.ended_at_ns)))
        self.final = True
        self.segment = None
        self.life.close()
        self._remove(self.hello.segment)
        self._speak(now_s)

    def say_goodbye(self) -> None:
        """The end once more, in case the batch with the first was lost."""
        event = wire.RunEvent(event="end", at_ns=self.ended_at_ns)
        self._spool.put(Draft(self.source, announcements=[wire.Announcement(run_event=event), self._info]))
