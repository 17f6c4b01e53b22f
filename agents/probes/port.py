"""The probe port of a host: one UDP socket and one thread that asks peers and answers them."""

import logging
import random
import select
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from fleetscope.agents.clocks import HostReading
from fleetscope.agents.probes.admission import Admission
from fleetscope.agents.probes.packet import SIZE, Kind, Packet, decode, well_formed
from fleetscope.agents.probes.requester import Exchange, Requester
from fleetscope.agents.probes.responder import Me, Responder
from fleetscope.agents.probes.roster import Address, Peer, Roster, plain
from fleetscope.agents.probes.stamps import (
    ANCILLARY_BYTES,
    MSG_ERRQUEUE,
    SO_TIMESTAMPING,
    ask_for_stamps,
    carried_over,
    sent_number,
    stamp_of,
)
from fleetscope.schema.errors import ConfigInvalid

log = logging.getLogger(__name__)

IDLE_S = 0.5
GATHER_S = 0.004
"""What arrives is read together and not by a wake-up each, which costs more than all else. Where the kernel stamps
nothing is lost by it: a request that is held for so long says as much, since the peer's rate is known."""
SPREAD_S = 0.002
"""All hosts ask at the same moments of their wall clocks, so far apart: most of what concerns a host comes at once."""
AT_ONCE = 64
"""Datagrams read before anything else is looked at."""
FLOODED_S = 0.1
"""While more comes than is admitted the port is read so often: what does not fit its buffer meanwhile is the kernel's
to drop."""
FLIGHTS = 512
KEPT = 4096
"""Exchanges that wait for the agent's loop."""

_plain = lru_cache(maxsize=4096)(plain)


def open_port(address: Address) -> socket.socket:
    """Bound; a wildcard of IPv6 takes both families. Raises ConfigInvalid."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    port = socket.socket(family, socket.SOCK_DGRAM)
    try:
        if family == socket.AF_INET6:
            port.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        port.setblocking(False)
        port.bind(address)
    except (OSError, OverflowError) as error:
        port.close()
        raise ConfigInvalid(f"agent.probes.address {address[0]} port {address[1]}: {error}") from error
    return port


class ProbePort:
    """`choose` names the peers to ask at this time of a roster; `read` brackets REALTIME by MONOTONIC_RAW; `keys` are
    those valid now, the first signs. Replies go to known peers alone and are as long as the request."""

    def __init__(
        self,
        address: Address,
        keys: Callable[[], Sequence[bytes]],
        me: Callable[[], Me],
        read: Callable[[], HostReading],
        choose: Callable[[Roster], Sequence[Peer]],
        period_s: float,
        admission: Admission | None = None,
    ) -> None:
        self._socket = open_port(address)
        self.address: Address = (plain(self._socket.getsockname()[0]), self._socket.getsockname()[1])
        self.kernel_stamps = ask_for_stamps(self._socket)
        self._keys, self._me, self._read, self._choose = keys, me, read, choose
        self._period_s = period_s
        self._admission = admission or Admission()
        self._requester = Requester(int(period_s * 1e9))
        self._responder = Responder()
        self._roster = Roster()
        self._news: Roster | None = None
        self._lock = threading.Lock()
        self._done: list[Exchange] = []
        self._asked: Counter[str] = Counter()
        self._flights: OrderedDict[int, tuple[Packet, HostReading]] = OrderedDict()
        self._number = 0
        """Of the next datagram, as the kernel counts them."""
        self._before = read()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._next_s = self._following_s()
        self.counts: Counter[str] = Counter()
        """sent, answered, exchanges"""
        self.refused: Counter[str] = Counter()
        """What was dropped, by reason; send_failed, overflow (exchanges nobody took in time) and failed too."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleetscope-probes", daemon=True)

    # ---- of other threads

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(IDLE_S + 4)
        if not self._thread.is_alive():
            self._socket.close()

    def know(self, roster: Roster) -> None:
        """From now on these are the known peers."""
        self._news = roster

    @property
    def lost(self) -> int:
        """Requests that were never answered."""
        return self._requester.lost

    @property
    def peers(self) -> int:
        """Known."""
        return len(self._roster.by_id)

    def take(self) -> tuple[list[Exchange], Counter[str]]:
        """Exchanges and requests sent, by peer, since the last call."""
        with self._lock:
            done, self._done = self._done, []
            asked, self._asked = self._asked, Counter()
        return done, asked

    # ---- of its own thread

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                wait_s = max(0.0, min(IDLE_S, self._next_s - time.monotonic()))
                if self._poll.poll(1000 * wait_s) and self.kernel_stamps:
                    time.sleep(GATHER_S)
                self.turn()
                if self._admission.exhausted:
                    self._stop.wait(FLOODED_S)
            except Exception:  # a defect in one datagram's handling must not end the thread
                log.exception("probes")
                self.refused["failed"] += 1
                self._stop.wait(IDLE_S)

    def turn(self) -> None:
        """Everything there is to do now."""
        if self._news is not None:
            self._roster, self._news = self._news, None
            ids = frozenset(self._roster.by_id)
            self._admission.known(frozenset(self._roster.by_address))
            self._responder.keep(ids)
            self._requester.keep(ids)
        if self._erring():
            self._departures(all_of_it=True)
        self._receive()
        if time.monotonic() >= self._next_s - GATHER_S:
            self._next_s = self._following_s()
            self._keep(self._requester.overdue(self._read().raw_before_ns))
            for peer in self._choose(self._roster):
                if self._requester.due(peer):
                    self._ask(peer)
            self._departures()
            if self.kernel_stamps:
                time.sleep(GATHER_S)
                self._receive()
        self._before = self._read()

    def _following_s(self) -> float:
        """When to ask next: a multiple of the period by the wall clock, in monotonic seconds."""
        left_s = self._period_s - time.time() % self._period_s
        if left_s < self._period_s / 2:  # this turn was a little early
            left_s += self._period_s
        return time.monotonic() + left_s + random.uniform(0, SPREAD_S)

    def _keep(self, exchanges: Iterable[Exchange]) -> None:
        with self._lock:
            for exchange in exchanges:
                self.counts["exchanges"] += 1
                if len(self._done) < KEPT:
                    self._done.append(exchange)
                else:
                    self.refused["overflow"] += 1

    def _ask(self, peer: Peer) -> None:
        before = self._read()
        packet = self._requester.ask(peer, self._me(), before.raw_after_ns)
        data = packet.encode(self._keys()[0])
        if not self.kernel_stamps:
            before = self._read()
            self._requester.departed(packet.sequence, before.raw_after_ns, False)
        if self._send(data, peer.address, packet, before):
            self.counts["sent"] += 1
            with self._lock:
                self._asked[peer.host] += 1

    def _send(self, data: bytes, address: Address, packet: Packet, before: HostReading) -> bool:
        ip = address[0]
        if self._socket.family == socket.AF_INET6 and ":" not in ip:
            ip = f"::ffff:{ip}"
        try:
            self._socket.sendto(data, (ip, address[1]))
        except OSError:
            self.refused["send_failed"] += 1
            if self.kernel_stamps:  # whether the kernel counted it depends on where it failed
                self._flights.clear()
                self._number = 0
                with suppress(OSError):
                    self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, 0)
                self.kernel_stamps = ask_for_stamps(self._socket)
            return False
        if self.kernel_stamps:
            self._flights[self._number] = (packet, before)
            self._number = (self._number + 1) & 0xFFFFFFFF
            if len(self._flights) > FLIGHTS:
                self._flights.popitem(last=False)
        return True

    def _erring(self) -> bool:
        """Something is in the error queue, and the poll would not wait until it is read."""
        return any(events & select.POLLERR for _, events in self._poll.poll(0))

    def _departures(self, all_of_it: bool = False) -> None:
        """What the kernel says of when datagrams were sent."""
        while self._flights or all_of_it:
            try:
                _, ancillary, _, _ = self._socket.recvmsg(1, ANCILLARY_BYTES, MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            except OSError:
                return
            number, stamp = sent_number(ancillary), stamp_of(ancillary)
            flight = self._flights.pop(number, None) if number is not None else None
            if flight is None or not stamp:
                continue
            packet, before = flight
            at = carried_over(stamp, before, self._read())
            if at is None:
                continue
            departed = max(at.low, before.raw_after_ns)
            if packet.kind is Kind.REQUEST:
                self._requester.departed(packet.sequence, departed, True)
            elif packet.kind is Kind.REPLY:
                self._responder.sent(packet.receiver, packet.sequence, departed)

    def _receive(self) -> None:
        for _ in range(AT_ONCE):
            # Asking first costs a third of being told by an exception that there is nothing.
            if self._admission.exhausted or not self._poll.poll(0):
                return
            try:
                data, ancillary, _, source = self._socket.recvmsg(SIZE + 1, ANCILLARY_BYTES, socket.MSG_DONTWAIT)
            except OSError:
                return
            after = self._read()
            try:
                address = (_plain(source[0]), source[1])
                why = self._admission.admit(address) or self._take(data, ancillary, address, after)
            except ValueError:
                why = "malformed"
            if why:
                self.refused[why] += 1

    def _take(self, data: bytes, ancillary: Any, address: Address, after: HostReading) -> str:
        """Why a datagram is of no use; "" when it was."""
        peer = self._roster.by_address.get(address)
        if peer is None:
            return "unknown_source"
        if not well_formed(data):
            return "malformed"
        packet = decode(data, self._keys())
        if packet is None:
            return "unauthenticated"
        stamp = stamp_of(ancillary)
        carried = carried_over(stamp, self._before, after) if stamp else None
        arrived = min(carried.high, after.raw_before_ns) if carried else after.raw_before_ns
        if packet.kind is not Kind.REQUEST:
            # The kernel's stamp of a request waits in the error queue by the time its reply is here.
            self._departures()
            found = self._requester.take(packet, peer, self._me(), arrived, carried is not None)
            if isinstance(found, str):
                return found
            self._keep(found)
            return ""
        answer = self._responder.answer(packet, peer, self._me(), arrived, carried is not None)
        if isinstance(answer, str):
            return answer
        self._reply(answer, peer)
        return ""

    def _reply(self, answer: Packet, peer: Peer) -> None:
        before = self._read()
        if answer.kind is Kind.REPLY:
            answer.sent = before.raw_after_ns
        if self._send(answer.encode(self._keys()[0]), peer.address, answer, before):
            self.counts["answered"] += 1
