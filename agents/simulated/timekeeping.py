"""Clock records of simulated hosts: probes over a network that is made up, collectives, and clocks that go wrong.

Counters and the wall clock of each host are exact functions of true time, so every record has its truth beside it
(`host_clocks` of the truth). Faults change those functions before the simulation begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fleetscope.agents.probes import peers
from fleetscope.agents.simulated.clocks import KNOT_NS
from fleetscope.agents.simulated.faults import Fault
from fleetscope.agents.simulated.host import Host
from fleetscope.agents.simulated.steps import FleetStep
from fleetscope.schema import identity
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import CollectiveFlag, ProbeFlag

PEERS, RATE_HZ = 5, 2
BASE_US, LEAN_US, QUEUE_US, TAIL, TAIL_US = (15.0, 60.0), 5.0, 10.0, 0.02, 100.0
"""One way: a base of the pair and a lean that is opposite in the two directions, a queue, and now and then a tail
(Pareto 1.2) of up to 5 ms (native-clock.md B4)."""
TURN_US = 20.0
"""A host holds a request for so long."""
LEAP_SOON_S = 10.0
"""So long before a leap second the kernel announces it (a day in the world)."""
TIME_OK, TIME_INS, TIME_WAIT, TIME_ERROR = 0, 1, 4, 5
STA_UNSYNC = 0x40
TAI_S = 37

Done = Sequence[tuple[int, FleetStep, NDArray[np.int64]]]


@dataclass(slots=True)
class Clockwork:
    """What is odd about one host's clocks, by true seconds."""

    sequence: int = 0
    pauses: list[tuple[float, float, bool]] = field(default_factory=list)
    """(from, how long, whether a VM was restored): the counter stands still meanwhile."""
    leap_s: float = float("inf")
    tai_unknown: bool = False
    lie_ns: int = 0
    lie_from_s: float = float("inf")
    wrong: tuple[float, float] = (float("inf"), 0.0)
    """From when until when its collectives have the number of the one before."""
    told: set[str] = field(default_factory=set)


class Timekeeping:
    """Of a whole fleet. Its records follow from the seed."""

    def __init__(self, hosts: Sequence[Host], faults: Sequence[Fault], seed: int, begin_ns: int, group: int) -> None:
        """`group`: of the collective that ends each step."""
        self._hosts, self._begin_ns, self._group = hosts, begin_ns, group
        self._rng = np.random.default_rng([seed, 21])
        count = len(hosts)
        base = self._rng.uniform(*BASE_US, (count, count))
        lean = self._rng.uniform(-LEAN_US / 2, LEAN_US / 2, (count, count))
        self._delay_us = (base + base.T) / 2 + lean - lean.T
        """[from, to] without queues."""
        self._loss: NDArray[np.float64] = np.zeros(count)
        self.works = [Clockwork() for _ in hosts]
        for fault in faults:
            self._apply(fault)
        self._ids = [identity.host_id(host.agent.cluster, host.name) & (1 << 64) - 1 for host in hosts]

    def _apply(self, fault: Fault) -> None:
        host, work = self._hosts[fault.host], self.works[fault.host]
        knot = int(fault.at)
        if fault.kind == "raw_step":
            host.raw.values[knot:] += int(fault.amount * 1000)
        elif fault.kind == "rate_step":
            slower = host.raw.rates[knot:] * (1 + fault.amount / 1e6)
            _rerate(host.raw.values, host.raw.rates, knot, slower)
        elif fault.kind in ("suspend", "vm_restore"):
            pause = max(1, int(fault.lasting))
            rates = host.raw.rates[knot:].copy()
            rates[:pause] = 0.0
            _rerate(host.raw.values, host.raw.rates, knot, rates)
            work.pauses.append((float(knot), float(pause), fault.kind == "vm_restore"))
        elif fault.kind == "leap":
            host.wall.steps.append((int(fault.at * 1e9), -KNOT_NS))
            work.leap_s = fault.at
        elif fault.kind == "smear":
            host.wall.slews.append((int(fault.at * 1e9), int(fault.until * 1e9), -fault.amount))
        elif fault.kind == "year_1970":
            host.wall.steps.append((0, -self._begin_ns))
        elif fault.kind == "tai_zero":
            work.tai_unknown = True
        elif fault.kind == "asymmetry":
            self._delay_us[:, fault.host] += fault.amount
        elif fault.kind == "probe_loss":
            self._loss[fault.host] = fault.amount
        elif fault.kind == "liar":
            work.lie_ns, work.lie_from_s = int(fault.amount * 1000), fault.at
        elif fault.kind == "wrong_collective":
            work.wrong = (fault.at, fault.until)

    # ---- a second

    def paused(self, number: int, second: float) -> bool:
        """The host stands still then: it sends nothing."""
        return any(begin <= second < begin + length for begin, length, _ in self.works[number].pauses)

    def resets(self, number: int, second: float) -> int:
        """Of its raw counter's epoch."""
        return sum(second >= begin + length for begin, length, restored in self.works[number].pauses if restored)

    def epoch(self, number: int, second: float) -> wire.ClockEpoch:
        """Of its raw counter."""
        resets = self.resets(number, second)
        return wire.ClockEpoch(clock="monotonic_raw", resets=resets, period_num=1, period_den=1, width_bits=64)

    def record(self, number: int, second: int, snapshots: Sequence[wire.ClockSnapshot], done: Done) -> wire.ClockRecord:
        """What host `number` tells at the end of a second."""
        host, work, true_ns = self._hosts[number], self.works[number], second * KNOT_NS
        record = wire.ClockRecord(
            source=host.agent,
            snapshots=[*snapshots, *self._others(number, true_ns)],
            sequence=work.sequence,
            resets=self.resets(number, second),
            at_ns=host.raw.one(true_ns),
            state=self._state(number, second),
            probes=self._probes(number, second),
            collectives=self._collectives(number, second, done),
            reason=self._reason(number, second),
        )
        work.sequence += 1
        return record

    def _reason(self, number: int, second: int) -> str:
        """As the agent gives it: once, when it is seen."""
        work, host = self.works[number], self._hosts[number]
        odd = {f"{begin}": "vm_restore" if restored else "suspend"
               for begin, length, restored in work.pauses if second >= begin + length}  # fmt: skip
        odd |= {f"w{when}": "step" for when, _ in host.wall.steps if second * KNOT_NS >= when > 0}
        odd |= {"leap": "leap"} if second >= work.leap_s - LEAP_SOON_S else {}
        new = [key for key in odd if key not in work.told]
        work.told |= set(new)
        return odd[new[0]] if new else "start" if work.sequence == 0 else ""

    def _others(self, number: int, true_ns: int) -> list[wire.ClockSnapshot]:
        """TAI and BOOTTIME, each inside a bracket of 60 ns."""
        host, work, second = self._hosts[number], self.works[number], true_ns / KNOT_NS
        raw = host.raw.one(true_ns)
        slept = sum(min(length, second - begin) for begin, length, restored in work.pauses
                    if not restored and second >= begin)  # fmt: skip
        tai = host.wall.one(true_ns) + self._tai_s(number, second) * KNOT_NS
        made = []
        for name, value in (("tai", tai), ("boottime", raw + int(slept * 1e9))):
            epoch = wire.ClockEpoch(clock=name, period_num=1, period_den=1, width_bits=64)
            ref = self.epoch(number, second)
            made.append(wire.ClockSnapshot(clock=epoch, ref=ref, value=value, ref_before=raw - 30, ref_after=raw + 30))
        return made

    def _tai_s(self, number: int, second: float) -> int:
        work = self.works[number]
        return 0 if work.tai_unknown else TAI_S + (second >= work.leap_s)

    def _state(self, number: int, second: float) -> wire.ClockState:
        work, host = self.works[number], self._hosts[number]
        synchronized = not work.tai_unknown and not any(step < -KNOT_NS * 10_000 for _, step in host.wall.steps)
        leaping = TIME_INS if work.leap_s - LEAP_SOON_S <= second < work.leap_s else TIME_OK
        leaping = TIME_WAIT if second >= work.leap_s else leaping
        pauses = [(begin, length, restored) for begin, length, restored in work.pauses if second >= begin + length]
        # The wall clock's own error is a normal of 3 ms (host.make_host); what NTP would say of it holds.
        return wire.ClockState(
            clocksource="tsc",
            synchronized=synchronized,
            adjtimex_status=0 if synchronized else STA_UNSYNC,
            adjtimex_state=leaping if synchronized else TIME_ERROR,
            max_error_ns=20_000_000 if synchronized else 16_000_000_000,
            est_error_ns=3_000_000,
            tai_s=self._tai_s(number, second),
            sync_source="ntp" if synchronized else "",
            suspended_ns=int(sum(length for _, length, restored in pauses if not restored) * 1e9),
            vm_disruption=1 + sum(restored for _, _, restored in pauses),
            vm_sequence=2 + 2 * sum(restored for _, _, restored in pauses),
        )

    def _probes(self, number: int, second: int) -> list[wire.PeerProbes]:
        """Exchanges of the second before `second` with each peer that stood still in none of it."""
        if len(self._hosts) < 2 or self.paused(number, second - 1):
            return []
        chosen = peers(self._ids, [""] * len(self._ids), self._ids[number], "", PEERS, self._begin_ns / 1e9 + second)
        made = []
        for peer in chosen:
            if self.paused(peer, second - 1):
                continue
            stamps = self._exchanges(number, peer, second)
            made.append(
                wire.PeerProbes(
                    peer=self._hosts[peer].name, boot_id=self._hosts[peer].agent.boot_id,
                    resets=self.resets(peer, second), stamps=stamps, flags=int(ProbeFlag.KERNEL), sent=RATE_HZ,
                )
            )  # fmt: skip
        return made

    def _exchanges(self, a: int, b: int, second: int) -> list[int]:
        rng, own, other, work = self._rng, self._hosts[a].raw, self._hosts[b].raw, self.works[b]
        sent = (second - 1 + (np.arange(RATE_HZ) + rng.uniform(0, 0.5, RATE_HZ)) / RATE_HZ) * KNOT_NS
        true = sent.astype(np.int64)
        received = true + self._one_way_ns(a, b)
        answered = received + int(TURN_US * 1000)
        returned = answered + self._one_way_ns(b, a)
        lie = work.lie_ns if second > work.lie_from_s else 0
        # Stamps are rounded outward, as those of a real port are.
        four = np.stack([own.at(true), other.at(received) + 1 + lie, other.at(answered) + lie, own.at(returned) + 1], 1)
        lost = 1 - (1 - self._loss[a]) * (1 - self._loss[b])
        return [int(stamp) for stamp in four[rng.random(RATE_HZ) >= lost].ravel()]

    def _one_way_ns(self, a: int, b: int) -> NDArray[np.int64]:
        rng = self._rng
        tail = np.minimum(TAIL_US * rng.pareto(1.2, RATE_HZ), 5_000.0) * (rng.random(RATE_HZ) < TAIL)
        delay = self._delay_us[a, b] + rng.exponential(QUEUE_US, RATE_HZ) + tail
        ns: NDArray[np.int64] = (np.maximum(delay, 0.5) * 1000).astype(np.int64)
        return ns

    def _collectives(self, number: int, second: int, done: Done) -> list[wire.CollectiveObservation]:
        """The all-reduce that ends each step: no chip leaves it before all have entered."""
        host, work = self._hosts[number], self.works[number]
        chips = slice(number * len(host.chips), (number + 1) * len(host.chips))
        wrong = work.wrong[0] <= second < work.wrong[1]
        flags = int(CollectiveFlag.BARRIER_LIKE | CollectiveFlag.FROM_WINDOW)
        return [
            wire.CollectiveObservation(
                group=self._group,
                sequence=step_number - wrong,
                rank=number,
                size=len(self._hosts),
                start_ns=host.raw.one(int(step.begin[chips, step.barrier].max())),
                end_ns=host.raw.one(int(step.end[chips, step.barrier].min())) + 1,
                err_ns=1,
                flags=flags,
            )
            for step_number, step, _ in done
            if len(self._hosts) > 1
        ]

    def truth(self, number: int, second: int) -> dict[str, int]:
        """A row of `host_clocks`."""
        host, true_ns = self._hosts[number], second * KNOT_NS
        return {
            "host": number, "true_ns": true_ns + self._begin_ns, "raw_ns": host.raw.one(true_ns),
            "realtime_ns": host.wall.one(true_ns), "resets": self.resets(number, second),
        }  # fmt: skip


def _rerate(values: NDArray[np.int64], rates: NDArray[np.float64], knot: int, later: NDArray[np.float64]) -> None:
    """From a knot on other rates; the counter goes on without a gap."""
    rates[knot:] = later
    steps = np.floor(KNOT_NS * later).astype(np.int64)
    values[knot + 1 :] = values[knot] + np.cumsum(steps[:-1])
