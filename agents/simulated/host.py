"""One simulated host: its clocks, chips, process, spool and sender, and the batches they make each second."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fleetscope.agents.batches import Announcer, Draft, sample_rows
from fleetscope.agents.clocks.unwrap import Register, Unwrapper, near
from fleetscope.agents.simulated.clocks import REGISTERS, Counter, WallClock, drifting, register_of
from fleetscope.agents.simulated.delivery import FaultyLog
from fleetscope.agents.simulated.program import LINES
from fleetscope.agents.spool import Sender, Spool
from fleetscope.agents.spool.store import DiskStore
from fleetscope.schema import identity
from fleetscope.schema import wire_pb2 as wire

UPTIME_NS = 3 * 86_400_000_000_000
SKU = "TPU v6e"
SPOOL_BYTES = 256 << 20
READ_NS = 1_000_000
"""From reading the counters to reading the clocks."""
CLOCK_HZ = 1.75e9
RAW = wire.ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1, width_bits=64)
WALL = wire.ClockEpoch(clock="realtime", period_num=1, period_den=1, width_bits=64)
SERIES = {
    "fleetscope_chip_power_watts": "W",
    "fleetscope_chip_temperature_celsius": "Cel",
    "fleetscope_chip_clock_hertz": "Hz",
    "fleetscope_chip_throttled": "",
    "fleetscope_chip_memory_used_bytes": "By",
}


@dataclass(slots=True)
class Chip:
    """One chip: identity, counter, and a heat model of one time constant."""

    number: int
    device: wire.Device
    device_id: int
    shape: str
    register: Register
    counter: Counter
    ppm: float
    unwrapper: Unwrapper
    tick_to: int = 0
    true_to: int = 0
    temperature: float = 55.0
    slowdown: float = 1.0

    @property
    def epoch(self) -> wire.ClockEpoch:
        return wire.ClockEpoch(
            clock="gtc", device=self.device.key, period_num=self.register.period_num,
            period_den=self.register.period_den, width_bits=self.register.width_bits,
            fraction_bits=self.register.fraction_bits,
        )  # fmt: skip

    def ticks(self, true_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """What a collector makes of the raw stamps of events: register bits, unwrapped around the last snapshot."""
        raw = self.counter.at(true_ns) & np.int64(min(self.register.modulus, 1 << 63) - 1)
        assert self.unwrapper.last is not None
        return near(raw, self.unwrapper.last, self.register.modulus)

    def warm(self, busy: float, throttle: float) -> None:
        """One second at `busy` share; `throttle` > 1 heats the chip until it slows down to that factor."""
        target = 45.0 + 30.0 * busy if throttle <= 1 else 100.0
        self.temperature += (target - self.temperature) * 0.2
        over = min(max((self.temperature - 80.0) / 10.0, 0.0), 1.0)
        self.slowdown = 1.0 + (throttle - 1.0) * over if throttle > 1 else 1.0

    def readings(self, busy: float) -> dict[str, int | float]:
        return {
            "fleetscope_chip_power_watts": round(60.0 + 140.0 * busy / self.slowdown, 1),
            "fleetscope_chip_temperature_celsius": round(self.temperature, 1),
            "fleetscope_chip_clock_hertz": int(CLOCK_HZ / self.slowdown),
            "fleetscope_chip_throttled": int(self.slowdown > 1.02),
            "fleetscope_chip_memory_used_bytes": 24 << 30,
        }


@dataclass(slots=True)
class Host:
    """One host. `process` is its training process (rank = number), `agent` the agent's own source."""

    number: int
    name: str
    agent: wire.Source
    process: wire.Source
    raw: Counter
    wall: WallClock
    chips: list[Chip]
    rng: np.random.Generator
    folder: Path
    log: FaultyLog
    make_sender: Callable[[Spool, FaultyLog], Sender]
    spool: Spool = field(init=False)
    sender: Sender = field(init=False)
    voices: dict[int, Announcer] = field(default_factory=dict)
    next_event: dict[int, int] = field(default_factory=dict)
    now_ns: int = 0
    raw_to: int = 0
    thread_to: int = 0
    source_id: int = 0
    raw_epoch: wire.ClockEpoch = field(default_factory=lambda: RAW)
    """Of its raw counter now: another one after a VM was restored."""

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Start the agent: at first, and again after a restart, where the spool's numbers go on."""
        self.spool = Spool(DiskStore(self.folder), SPOOL_BYTES, lambda: self.wall.one(self.now_ns))
        self.sender = self.make_sender(self.spool, self.log)
        stamped = wire.Source()
        stamped.CopyFrom(self.process)
        stamped.incarnation = self.spool.incarnation
        self.source_id = identity.source_id(stamped)

    def restart(self) -> None:
        """The agent is gone and comes back: what was not sent is still in the spool."""
        self.spool.close()
        self.voices = {}
        self.open()

    def say(self, source: wire.Source, announcement: wire.Announcement) -> None:
        self.voices.setdefault(source.pid, Announcer()).add(announcement)

    def put(self, draft: Draft, now_s: float) -> int:
        """Number and keep a draft; the first event number its rows got."""
        voice = self.voices.get(draft.source.pid)
        due = voice.due(now_s) if voice else []
        if due:
            draft = replace(draft, announcements=due)
        first = self.next_event.get(draft.source.pid, 0)
        kept = self.spool.put(draft)
        assert kept == draft.row_count, "the simulated spool is large enough"
        self.next_event[draft.source.pid] = first + kept
        return first

    def snapshots(self, true_ns: int) -> list[wire.ClockSnapshot]:
        """The wall clock and every chip, each inside a bracket of 1 to 2 us; one in fifty took 200 us longer."""
        out = []
        for chip in (None, *self.chips):
            wait = int(1_000 + self.rng.exponential(800) + (200_000 if self.rng.random() < 0.02 else 0))
            inside = int(self.rng.integers(0, wait + 1))
            before, after = self.raw.one(true_ns - inside), self.raw.one(true_ns - inside + wait)
            if chip is None:
                value = self.wall.one(true_ns)
                out.append(wire.ClockSnapshot(clock=WALL, ref=self.raw_epoch, value=value, ref_before=before,
                                              ref_after=after))  # fmt: skip
                continue
            modulus = chip.register.modulus
            reading = chip.unwrapper.observe(chip.counter.one(true_ns) % modulus, (before + after) // 2)
            out.append(
                wire.ClockSnapshot(
                    clock=chip.epoch, ref=self.raw_epoch, value=reading.ticks, ref_before=before, ref_after=after
                )
            )
        return out

    def samples(self, true_ns: int, busy: list[float]) -> Draft:
        """Counters of all chips, with the clock snapshots and the heartbeat of the second.

        Clocks are read last, so that their brackets cover what else was read and nothing waits for the next ones.
        """
        tick = self.raw.one(true_ns - READ_NS)
        names = list(SERIES)
        values = [chip.readings(share)[name] for chip, share in zip(self.chips, busy, strict=True) for name in names]
        rows = sample_rows(
            tick=[tick] * len(values), values=values,
            series=[identity.series_id(name, {}) for _ in self.chips for name in names],
            device=[chip.device_id for chip in self.chips for _ in names],
        )  # fmt: skip
        return Draft(
            source=self.agent, tick_from=self.raw_to, tick_to=tick + 1, clock=self.raw_epoch, rows=rows,
            snapshots=self.snapshots(true_ns),
        )  # fmt: skip


def make_host(
    number: int,
    chips: int,
    seconds: int,
    seed: int,
    *,
    cluster: str,
    run: str,
    attempt: str,
    begin_ns: int,
    folder: Path,
    log: FaultyLog,
    sender: Callable[[Spool, FaultyLog], Sender],
) -> Host:
    """Host `number` of the fleet of `seed`. `folder`: for its spool."""
    rng = np.random.default_rng([seed, 100 + number])
    name, boot = f"sim-{number:03d}", f"boot-{number}-{attempt}"
    agent = wire.Source(cluster=cluster, host=name, boot_id=boot, start_ticks=1)
    process = wire.Source(
        cluster=cluster, host=name, boot_id=boot, pid=4000 + number, start_ticks=77, run=run, attempt=attempt,
        rank=number,
    )  # fmt: skip
    raw = drifting(rng, seconds, 1.0, UPTIME_NS + int(rng.integers(0, 10**12)), float(rng.uniform(-50, 50)), 0.2)
    slew = drifting(rng, seconds, 1.0, int(rng.normal(0, 3e6)), float(rng.uniform(-5, 5)), 0.05)
    made = [_chip(rng, name, chip, seconds) for chip in range(chips)]
    return Host(number, name, agent, process, raw, WallClock(begin_ns, slew), made, rng, folder, log, sender)


def _chip(rng: np.random.Generator, host: str, number: int, seconds: int) -> Chip:
    shape = register_of(number)
    register = REGISTERS[shape]
    key = f"{host}/tpu-0000:{number:02x}:00.0"
    ppm = float(rng.uniform(-20, 20))
    ticks_a_ns = register.period_den / register.period_num
    base = register.ticks_of(int(rng.integers(0, 10**12)))
    if shape == "gtc16":
        base = register.modulus - register.ticks_of(int(rng.integers(5, 25)) * 10**9)  # wraps soon after the begin
    counter = drifting(rng, seconds, ticks_a_ns, base, ppm, 0.2)
    device = wire.Device(
        key=key, platform="tpu", sku=SKU, local_name=f"/device:TPU:{number}", local_ordinal=number,
        coords=f"{number},0,0",
    )  # fmt: skip
    return Chip(
        number, device, identity.device_id(key), shape, register, counter, ppm, Unwrapper(register), counter.one(0), 0
    )  # fmt: skip


def process_of(host: Host, begin_ns: int, world: int) -> wire.Announcement:
    """What a host says of its training process."""
    source = host.process
    info = wire.ProcessInfo(
        pid=source.pid, start_ticks=source.start_ticks, run=source.run, attempt=source.attempt, rank=source.rank,
        command="python train.py", python="3.11", jax="0.10.2", jaxlib="0.10.2", world_size=world, start_ns=begin_ns,
    )  # fmt: skip
    return wire.Announcement(process=info)


def announce(host: Host, program: int, module: str, begin_ns: int, world: int) -> None:
    """Everything dimension tables know of a host, its process, chips, lines, names and series."""
    raw = wire.HostInfo(
        cluster=host.agent.cluster, host=host.name, boot_id=host.agent.boot_id, os="simulated", cpus=96,
        memory_bytes=1 << 40, agent_version="simulated",
    )  # fmt: skip
    host.say(host.agent, wire.Announcement(host=raw))
    for name, unit in SERIES.items():
        info = wire.SeriesInfo(id=identity.series_id(name, {}), name=name, unit=unit)
        host.say(host.agent, wire.Announcement(series=info))
    source = host.process
    host.say(source, process_of(host, begin_ns, world))
    host.say(source, wire.Announcement(run_event=wire.RunEvent(event="start", at_ns=begin_ns)))
    load = wire.ProgramLoad(program_id=1, program=program, module=module, at_ns=begin_ns)
    host.say(source, wire.Announcement(program_load=load))
    for text in ("train", "data_wait", "dispatch"):
        host.say(source, wire.Announcement(name=wire.NameInfo(program=identity.name_program(text), name=text)))
    host.say(source, wire.Announcement(line=wire.LineInfo(device=0, line=0, name="MainThread")))
    for chip in host.chips:
        host.say(source, wire.Announcement(device=wire.DeviceInfo(device=chip.device)))
        for line, text in enumerate([*(f"XLA Ops {line}" for line in range(LINES)), "XLA Modules"]):
            row = wire.LineInfo(device=chip.device_id, line=line, name=text)
            host.say(source, wire.Announcement(line=row))
