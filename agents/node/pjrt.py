"""What the PJRT shim of one process recorded: launches and completions to `executions`, the rest to host rows, samples
and announcements. Kinds and their arguments: docs/format/recorder.md."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetscope.agents.batches import clean_text
from fleetscope.agents.collectors import Series
from fleetscope.agents.node.collectives import RawOf
from fleetscope.agents.node.executions import LINE_NAMES, ORDINAL_BITS, Completion, DeviceRows, Executions
from fleetscope.agents.node.matching import Ran
from fleetscope.agents.node.pairing import Execution
from fleetscope.agents.redaction import KEEP_ALL, Redaction
from fleetscope.agents.redaction.words import PJRT_SERIES
from fleetscope.native import recorder
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.identity import device_id, key_hash, name_program
from fleetscope.schema.vocabulary import Kind

TRANSFER_LINES = 1 << 20
"""First line of transfers: they end on the plugin's threads and overlap, so they get lines of their own: two a
device."""
WAIT_S = 5.0
"""How long the executions of a fresh program are kept back for its fingerprint, so that they all carry one name."""
LATEST = 1 << 62
"""Tick beyond which nothing ends: what is added to it must fit 64 bits."""
LABELS = 8192
LOADS = 1 << 16
ORDINALS = (1 << ORDINAL_BITS) - 1
"""Mask of the ordinal in the argument of a record."""

_NAMES = {Kind.H2D: "host to device", Kind.D2H: "device to host"}
_PROGRAMS = {kind: name_program(name) for kind, name in _NAMES.items()}
_SERIES = {Kind.H2D: "pjrt_h2d_bytes_total", Kind.D2H: "pjrt_d2h_bytes_total"}


@dataclass(frozen=True, slots=True)
class Seen:
    """A device as the runtime names it."""

    platform: str
    ordinal: int
    sku: str
    name: str
    coords: str


DeviceOf = Callable[[Seen], wire.Device]

HOST_COLUMNS = ("start", "dur", "line", "kind", "program", "flow")


@dataclass(slots=True)
class Host:
    """Rows beside those of the recorder's own threads."""

    columns: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in HOST_COLUMNS})
    samples: list[tuple[int, Series, int, int]] = field(default_factory=list)
    """(tick, series, value, device)"""
    announcements: list[wire.Announcement] = field(default_factory=list)

    @property
    def threads(self) -> frozenset[int]:
        """Lines that are threads of the process."""
        return frozenset(line for line in self.columns["line"] if line < TRANSFER_LINES)

    def add(self, *values: int) -> None:
        for name, value in zip(HOST_COLUMNS, values, strict=True):
            self.columns[name].append(value)


def _load_of(label: str) -> int:
    """Load id of a label `module#load`; 0: none."""
    load = label.rpartition("#")[2]
    return int(load) if load.isascii() and load.isdecimal() and len(load) < 19 else 0


class Pjrt:
    """Not thread-safe; the agent's lock guards it."""

    def __init__(
        self,
        process: int,
        text: Callable[[int], str],
        device_of: DeviceOf,
        redaction: Redaction = KEEP_ALL,
    ) -> None:
        self._process = process
        self._text = text
        self._redaction = redaction
        self._device_of = device_of
        self.executions = Executions()
        self.counts: Counter[str] = self.executions.counts
        self._programs: dict[int, tuple[int, bool]] = {}
        """Label -> what its executions carry, once and for all: steps are told by it."""
        self._fingerprints: dict[int, int] = {}
        self._awaited: dict[int, float] = {}
        """Load id -> until when (monotonic seconds) its executions wait."""
        self._labels: dict[int, str] = {}
        self._modules: dict[int, int] = {}
        """Label -> what its dispatches carry: the name of its module."""
        self._moved: dict[tuple[int, int], int] = {}
        self._said: set[int] = set()
        self.active = False
        self._launches_told = self._newest_launch = 0

    @property
    def whole(self) -> bool:
        """Every launch of the process was told, from the first on: they are numbered from 1."""
        return self._launches_told == self._newest_launch > 0

    # ---- what came

    def take(self, drained: recorder.Drained, now_s: float) -> Host:
        """Absorb the shim's records of a drain."""
        host = Host()
        mine = np.flatnonzero((drained.kind >= recorder.LAUNCH) & (drained.kind < recorder.COUNTER_INT))
        if not len(mine):
            return host
        self.active = True
        numbers = self._numbers(drained)
        # What a record rests on was written before it, but on another thread, and rings are drained by thread.
        mine = mine[np.argsort(_ORDER[drained.kind[mine]], kind="stable")]
        columns = (drained.start, drained.dur, drained.arg, drained.name, drained.line, drained.kind, drained.flags)
        records = zip(mine.tolist(), *(column[mine].tolist() for column in columns), strict=True)
        newest: dict[tuple[int, int], int] = {}
        for row, start, dur, arg, name, line, kind, flags in records:
            if min(dur, start, arg) < 0 or start + dur > LATEST:
                self.counts["impossible"] += 1
            elif kind == recorder.DONE:
                done = Completion(start + dur, start, arg >> ORDINAL_BITS, name, bool(flags & recorder.FAILED))
                self.executions.add_done(arg & ORDINALS, done)
            elif kind == recorder.LAUNCH:
                self._launch(host, start, dur, line, name, arg, flags, numbers.get(row, 0))
            elif kind in (recorder.H2D, recorder.D2H):
                self._transfer(host, newest, Kind.H2D if kind == recorder.H2D else Kind.D2H, start, dur, arg)
            elif kind == recorder.DEVICE:
                self._device(host, start, arg, name)
            elif kind == recorder.LOAD:
                self._load(name, arg >> 1, flags, numbers.get(row, 0), now_s)
            elif kind != recorder.UNLOAD:
                self.counts["unknown_kind"] += 1
        for (kind, ordinal), tick in newest.items():
            series = Series(_SERIES[Kind(kind)], "byte", True)
            host.samples.append((tick, series, self._moved[kind, ordinal], self._device_id(ordinal)))
        return host

    def _numbers(self, drained: recorder.Drained) -> dict[int, int]:
        """Row -> its integer argument `devices`."""
        of = drained.kind[drained.arg_row]
        mine = (drained.arg_kind == recorder.ARG_INT) & (of >= recorder.LAUNCH) & (of < recorder.COUNTER_INT)
        columns = (drained.arg_row, drained.arg_key, drained.arg_value)
        rows = zip(*(column[mine].tolist() for column in columns), strict=True)
        return {row: value for row, key, value in rows if self._text(key) == "devices"}

    def _launch(
        self, host: Host, start: int, dur: int, line: int, name: int, launch: int, flags: int, devices: int
    ) -> None:
        self._launches_told += 1
        self._newest_launch = max(self._newest_launch, launch)
        program = self._modules.get(name)
        if program is None:
            module = self._redaction.of("programs", self._text(name).rpartition("#")[0]) or "program"
            program = name_program(module)
            self._name(host, program, module)
            if len(self._modules) < LABELS:
                self._modules[name] = program
        host.add(start, dur, line, int(Kind.DISPATCH), program, launch)
        if flags & recorder.FAILED:
            self.counts["launch_failed"] += 1
        else:
            self.executions.launches.launch(launch, start, name, devices)

    def _name(self, host: Host, program: int, name: str) -> None:
        if program not in self._said and len(self._said) < LABELS:
            self._said.add(program)
            host.announcements.append(wire.Announcement(name=wire.NameInfo(program=program, name=clean_text(name))))

    def _transfer(
        self, host: Host, newest: dict[tuple[int, int], int], kind: Kind, start: int, dur: int, arg: int
    ) -> None:
        size, ordinal = arg >> ORDINAL_BITS, arg & ORDINALS
        name, program = _NAMES[kind], _PROGRAMS[kind]
        self._name(host, program, name)
        line = TRANSFER_LINES + 2 * ordinal + (kind == Kind.D2H)
        if line not in self._said:
            self._said.add(line)
            told = wire.LineInfo(device=0, line=line, name=f"{name} {ordinal}")
            host.announcements.append(wire.Announcement(line=told))
        host.add(start, dur, line, int(kind), program, 0)
        key = (int(kind), ordinal)
        self._moved[key] = min(self._moved.get(key, 0) + size, 1 << 62)
        newest[key] = max(newest.get(key, 0), start + dur)

    def _device(self, host: Host, start: int, ordinal: int, name: int) -> None:
        seen = read_device(self._text(name), ordinal)
        if seen is None:
            self.counts["device_unreadable"] += 1
            return
        device = self._device_of(seen)
        lanes = self.executions.lanes
        if any(lane.device.key == device.key for place, lane in lanes.items() if place != ordinal):
            # Two clients of one platform call theirs alike. One range of ticks can be told of a device once: the second
            # would be refused whole, on its way or much later.
            named = wire.Device()
            named.CopyFrom(device)
            named.key = f"{device.key}#{ordinal}"
            device = named
            self.counts["device_alike"] += 1
        if not self.executions.add_device(ordinal, device, start):
            return
        host.announcements.append(wire.Announcement(device=wire.DeviceInfo(device=device)))
        for line, text in LINE_NAMES.items():
            told = wire.LineInfo(device=self._device_id(ordinal), line=line, name=text)
            host.announcements.append(wire.Announcement(line=told))

    def _device_id(self, ordinal: int) -> int:
        lane = self.executions.lanes.get(ordinal)
        return device_id(lane.device.key) if lane is not None else 0

    def _load(self, name: int, load: int, flags: int, devices: int, now_s: float) -> None:
        if flags & recorder.FAILED or not load:
            return
        self.executions.launches.program(name, devices)
        if len(self._labels) < LOADS:
            self._labels[load] = self._text(name)
        if load not in self._fingerprints and len(self._awaited) < LOADS:
            self._awaited.setdefault(load, now_s + WAIT_S)

    def known(self, device: wire.Device) -> wire.Device:
        """The device of that key as its runtime describes it, else `device`."""
        told = (lane.device for lane in list(self.executions.lanes.values()))  # others add while the decoder asks
        return next((own for own in told if own.key == device.key and own.sku), device)

    # ---- programs

    def label_of(self, load: int, module: str) -> str:
        """What records call a load. The runtime's name of a program need not be that of its HLO module."""
        return self._labels.get(load, f"{module}#{load}")

    def provisional(self, label: str) -> int:
        """`program` of executions whose fingerprint is not known."""
        module, mark, load = label.rpartition("#")
        return key_hash("provisional", self._process, f"{self._redaction.of('programs', module)}{mark}{load}")

    def learn(self, load: int, fingerprint: int) -> None:
        """The fingerprint of a load; 0 if it could not be had."""
        self._awaited.pop(load, None)
        if fingerprint and len(self._fingerprints) < LOADS:
            self._fingerprints[load] = fingerprint

    def ran(self, key: str, begin: int, end: int) -> list[Ran]:
        """What a TPU completed in [begin, end] ticks, in order; none where not all of it is remembered."""
        found = []
        for _, name, _ in self.executions.ran(key, begin, end):
            label = self._text(name)
            found.append(Ran(label.rpartition("#")[0], self._fingerprints.get(_load_of(label), 0)))
        return found

    def executed(self, key: str, begin: int, end: int, raw_of: RawOf) -> list[Execution]:
        """The same with its times: not later than it was enqueued, and not earlier than it was complete."""
        found = []
        for at, name, enqueue in self.executions.ran(key, begin, end):
            (first, early), (last, late) = raw_of(enqueue), raw_of(at)
            found.append(Execution(self._text(name).rpartition("#")[0], first - early, last + late))
        return found

    def program_of(self, now_s: float) -> Callable[[int], tuple[int, bool] | None]:
        """Label's name id -> (program, provisional), None while it waits for its fingerprint."""

        def find(name: int) -> tuple[int, bool] | None:
            known = self._programs.get(name)
            if known is None:
                label = self._text(name)
                number = _load_of(label)
                fingerprint = self._fingerprints.get(number)
                if fingerprint is None and self._awaited.get(number, 0.0) > now_s:
                    return None
                known = (fingerprint, False) if fingerprint else (self.provisional(label), True)
                if len(self._programs) < LABELS:
                    self._programs[name] = known
            return known

        return find

    # ---- what goes

    def settle(self, now: int, per_ms: int, now_s: float) -> Iterator[DeviceRows]:
        return self.executions.settle(now, per_ms, self.program_of(now_s))

    def finish(self, at: int) -> Iterator[DeviceRows]:
        return self.executions.finish(at, self.program_of(float("inf")))

    def device_sample(self, name: str) -> tuple[str, int] | None:
        """(series, device) of a counter of one device, `<name>/<ordinal>`."""
        series, _, ordinal = name.partition("/")
        if series not in PJRT_SERIES or not (ordinal.isascii() and ordinal.isdecimal()) or len(ordinal) > 4:
            return None
        return series, self._device_id(int(ordinal))

    @property
    def told(self) -> int:
        """Executions told so far."""
        return sum(lane.told for lane in self.executions.lanes.values())

    def carried(self) -> Any:
        known = [[name, *value] for name, value in list(self._programs.items())[-256:]]
        return [self.executions.carried(), known, [[*key, moved] for key, moved in self._moved.items()]]

    def restore(self, value: Any) -> None:
        executions, known, moved = value
        self.executions.restore(executions)
        self._programs = {int(name): (int(program), bool(flag)) for name, program, flag in known}
        self._moved = {(int(kind), int(ordinal)): int(size) for kind, ordinal, size in moved}
        self.active = True


_ORDER = np.full(256, 4)
_ORDER[[recorder.DEVICE, recorder.LOAD, recorder.LAUNCH, recorder.DONE]] = range(4)
"""Of each kind of record: which are taken first."""

_PLATFORMS = {"cuda": "gpu", "rocm": "gpu", "sycl": "gpu", "oneapi": "gpu"}
"""PJRT's word -> that of the planes of captures."""


def read_device(text: str, ordinal: int) -> Seen | None:
    """A DEVICE record's JSON; None for anything else. The ordinal is that of captures where the runtime tells it."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    platform, kind = said.get("platform"), said.get("kind")
    if not isinstance(platform, str) or not platform:
        return None
    local = said.get("local_hardware_id")
    if not isinstance(local, int) or isinstance(local, bool) or not 0 <= local <= ORDINALS:
        local = ordinal
    platform = clean_text(platform.lower(), 64)
    coords = said.get("coords")
    return Seen(
        platform=_PLATFORMS.get(platform, platform),
        ordinal=local,
        sku=clean_text(kind, 128) if isinstance(kind, str) else "",
        name=f"{platform}:{ordinal}",
        coords=clean_text(json.dumps(coords), 128) if isinstance(coords, list) and coords else "",
    )


def concatenated(own: dict[str, Any], host: Host) -> dict[str, NDArray[Any]]:
    """Columns of the recorder's own spans with those of the shim behind them: of no step, each once."""
    absent = {"step": -1, "weight": 1}
    rows = len(host.columns["start"])
    joined = {}
    for name, head in own.items():
        tail = np.full(rows, absent[name]) if name in absent else np.array(host.columns[name], np.int64)
        joined[name] = np.concatenate((np.asarray(head, np.int64), tail))
    return joined
