"""What a spool folder held when it was last used: which segments are good, which numbers come next."""

import json
import logging
import secrets
from dataclasses import dataclass, field

from fleetscope.agents.spool.record import RecordKind
from fleetscope.agents.spool.scan import End, Walk, head_is_torn, read_head
from fleetscope.agents.spool.state import States, decode_states, join_states
from fleetscope.agents.spool.store import LOST, Position, Segment, Store

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Recovered:
    """Sending goes on at `start`; up to `given` the log may have things already.

    `fresh` says why a new incarnation had to begin, "" if the old one goes on.
    """

    incarnation: int
    states: States
    segments: list[Segment]
    start: Position = (0, 0)
    given: Position = (0, 0)
    next_number: int = 1
    torn_tails: int = 0
    fresh: str = ""
    heads: dict[int, int] = field(default_factory=dict)
    """Segment number -> offset of its first record."""


def new_incarnation() -> int:
    return secrets.randbits(63) | 1


def recover(store: Store) -> Recovered:
    """Open what is there. Only the newest segment decides numbers: its head carries those of all before it."""
    found = Recovered(0, {}, [])
    for segment in store.segments():
        found.next_number = segment.number + 1
        head = read_head(segment)
        if head is None:
            log.warning("spool segment %d of %d bytes has no readable head", segment.number, segment.size_bytes)
            if not head_is_torn(segment):
                found.fresh = f"the head of segment {segment.number} is damaged"
            segment.delete()
            continue
        found.fresh = ""
        found.incarnation, found.states, found.heads[segment.number] = head
        found.segments.append(segment)
    if found.segments and not found.fresh:
        _replay(found, found.segments[-1])
        _join_reserve(store, found)
    sent, given = store.read_sent()
    newest = found.segments[-1] if found.segments else None
    seen = max(sent, given) if given != LOST else sent
    found.next_number = max(found.next_number, seen[0] + 1)
    if newest is not None and not found.fresh and seen > (newest.number, newest.size_bytes):
        found.fresh = f"{seen} was given out, but the spool ends at {newest.number}, {newest.size_bytes}"
    if newest is None and not found.fresh:
        found.fresh = "the spool is empty"
    if found.fresh:
        log.info("new spool incarnation: %s", found.fresh)
        found.incarnation, found.states = new_incarnation(), {}
    _skip_sent(found, sent)
    if newest is not None:
        found.given = min(given, (newest.number, newest.size_bytes))
    return found


def _replay(found: Recovered, segment: Segment) -> None:
    walk = Walk(segment, found.heads[segment.number])
    for record, _ in walk:
        if record.note and not record.more:
            join_states(found.states, decode_states(record.note))
        if record.kind is RecordKind.STATE:
            _forget(found, json.loads(record.value))
    if walk.end is End.TORN:
        log.warning("spool segment %d: torn tail of %d bytes removed", segment.number, segment.size_bytes - walk.whole)
        found.torn_tails += 1
        segment.truncate(walk.whole)
    elif walk.end is End.DAMAGED:
        found.fresh = f"segment {segment.number} is damaged at {walk.whole}"


def _join_reserve(store: Store, found: Recovered) -> None:
    try:
        data = store.read_reserve()
        tag, _, rest = data.partition(b"\n")
        if tag == str(found.incarnation).encode():
            dropped, _, states = rest.partition(b"\n")
            join_states(found.states, decode_states(states))
            _forget(found, json.loads(dropped))
    except ValueError as error:
        log.warning("the spool's reserve is not readable: %s", error)


def _forget(found: Recovered, dropped: list[int]) -> None:
    """These segments were dropped and counted, but their writer was killed before it could delete them."""
    for segment in [segment for segment in found.segments[:-1] if segment.number in dropped]:
        found.segments.remove(segment)
        segment.delete()


def _skip_sent(found: Recovered, sent: tuple[int, int]) -> None:
    """The segments that were sent stay in the list: the numbers in the newest are needed until there is a new one."""
    if found.segments:
        first = found.segments[0]
        found.start = max(sent, (first.number, found.heads[first.number]))
