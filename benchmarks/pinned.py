"""The pinned generator of DESIGN 10: the one input of every size and speed figure. Same seed, same bytes.

8 hosts x 8 devices, 3 lines a device, 1 500 ops a step over all lines (90 % compute, 7 % collectives, 3 % copies); 8
% of the ops of line 0 are containers of 3-19 following ops, depth <= 3; durations log-normal per op (median 20 us,
sigma 1.2), 2 % noise an occurrence, gaps uniform 0-300 ns; integer ticks of 1.25 ns at +-20 ppm; a batch is whole
steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.agents.batches.pack import encode_rows
from fleetscope.schema import identity
from fleetscope.schema.payloads import WIRE_SPANS
from fleetscope.schema.vocabulary import WIRE_VERSION, Kind
from fleetscope.schema.wire_pb2 import PAYLOAD_SPANS, Batch, ClockEpoch, ClockSnapshot, Source

HOSTS, DEVICES, LINES, OPS_A_STEP = 8, 8, 3, 1500
PERIOD_NUM, PERIOD_DEN = 5, 4
BEGIN_NS = 1_753_000_000_000_000_000
UPTIME_NS = 3 * 86_400_000_000_000
PROGRAM = identity.key_hash("program", "pinned")


@dataclass(frozen=True, slots=True)
class _Line:
    """Tokens of one step on one line in depth-first order: opens and leaves by op, closes with op -1 - op."""

    ops: NDArray[np.int64]
    tokens: NDArray[np.int64]


def _tree(rng: np.random.Generator, first: int, count: int, containers: bool) -> _Line:
    share = 0.08 if containers else 0.0
    tokens: list[int] = []
    open_until: list[tuple[int, int]] = []
    for index in range(count):
        while open_until and open_until[-1][0] < index:
            tokens.append(-1 - open_until.pop()[1])
        op = first + index
        tokens.append(op)
        if len(open_until) < 3 and rng.random() < share:
            last = min(index + int(rng.integers(3, 20)), count - 1, open_until[-1][0] if open_until else count)
            if last > index:
                open_until.append((last, op))
            continue
    while open_until:
        tokens.append(-1 - open_until.pop()[1])
    return _Line(np.arange(first, first + count), np.asarray(tokens, np.int64))


@dataclass(frozen=True, slots=True)
class Program:
    """One step program; the same on every device."""

    lines: tuple[_Line, ...]
    median_ns: NDArray[np.float64]
    kind: NDArray[np.uint8]


def program(seed: int = 1) -> Program:
    rng = np.random.default_rng(seed)
    per_line = OPS_A_STEP // LINES
    lines = tuple(_tree(rng, line * per_line, per_line, line == 0) for line in range(LINES))
    median = 20_000.0 * np.exp(1.2 * rng.standard_normal(OPS_A_STEP))
    draw = rng.random(OPS_A_STEP)
    kind = np.where(draw < 0.90, Kind.COMPUTE, np.where(draw < 0.97, Kind.COLLECTIVE, Kind.COPY)).astype(np.uint8)
    for line in lines:
        kind[-1 - line.tokens[line.tokens < 0]] = Kind.CONTAINER
    return Program(lines, median, kind)


@dataclass(frozen=True, slots=True)
class DeviceClock:
    """Ticks of 1.25 ns, fast by `ppm`: the counter read `base` at `BEGIN_NS`."""

    base: int
    ppm: float

    def ticks(self, ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ticks at true nanoseconds after the begin."""
        whole = ns * PERIOD_DEN // PERIOD_NUM
        return self.base + whole + np.floor(whole * (self.ppm * 1e-6)).astype(np.int64)


def device_steps(
    plan: Program, rng: np.random.Generator, clock: DeviceClock, begin_ns: int, steps: int
) -> tuple[dict[str, NDArray[np.generic]], int]:
    """Columns of `steps` steps that begin at `begin_ns` (true ns after the begin), and the ns at which the last
    ends."""
    parts: list[list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]] = [[] for _ in plan.lines]
    now = begin_ns
    for _ in range(steps):
        after = now
        for index, line in enumerate(plan.lines):
            tokens = line.tokens
            closes = tokens < 0
            op = np.where(closes, -1 - tokens, tokens)
            container = plan.kind[op] == Kind.CONTAINER
            noise = np.maximum(plan.median_ns[op] * (1 + 0.02 * rng.standard_normal(len(op))), 1).astype(np.int64)
            gap = rng.integers(0, 301, len(op))
            end = now + np.cumsum(gap + np.where(container, 0, noise))
            begin = np.where(container, end, end - noise)
            opened = np.flatnonzero(~closes)
            stop = end[opened].copy()
            closed = dict(zip(op[closes].tolist(), end[closes].tolist(), strict=True))
            for position in np.flatnonzero(container[opened]).tolist():
                stop[position] = closed[int(op[opened[position]])]
            parts[index].append((begin[opened], stop, op[opened]))
            after = max(after, int(end[-1]))
        now = after + int(rng.integers(0, 301))
    begin = np.concatenate([part[0] for line in parts for part in line])
    stop = np.concatenate([part[1] for line in parts for part in line])
    op = np.concatenate([part[2] for line in parts for part in line])
    counts = [sum(len(part[0]) for part in line) for line in parts]
    start = clock.ticks(begin)
    rows = len(start)
    executions = np.concatenate([np.full(len(part[0]), step) for line in parts for step, part in enumerate(line)])
    columns: dict[str, NDArray[np.generic]] = {
        "start": start,
        "dur": clock.ticks(stop) - start,
        "line": np.repeat(np.arange(len(parts), dtype=np.int32), counts),
        "kind": plan.kind[op],
        "program": np.full(rows, PROGRAM, np.int64),
        "op": op.astype(np.int32),
        "exec": executions.astype(np.int64),
        "step": executions.astype(np.int64),
        "flow": np.zeros(rows, np.int64),
        "weight": np.ones(rows, np.int32),
        "flags": np.zeros(rows, np.uint32),
    }
    return columns, now


@dataclass(frozen=True, slots=True)
class PinnedBatch:
    host: int
    device: int
    number: int
    first_event: int
    tick_from: int
    tick_to: int
    true_from: int
    true_to: int
    clock: DeviceClock
    columns: dict[str, NDArray[np.generic]]

    @property
    def rows(self) -> int:
        return len(self.columns["start"])


def batches(
    steps_a_batch: int, batches_a_device: int, *, hosts: int = HOSTS, devices: int = DEVICES, seed: int = 1
) -> Iterator[PinnedBatch]:
    """In the order a log would hold them: the n-th batch of every device, then the next of each."""
    plan = program(seed)
    rng = np.random.default_rng([seed, steps_a_batch])
    clocks = {
        (host, device): DeviceClock(
            (UPTIME_NS + int(rng.integers(0, 10**9))) * PERIOD_DEN // PERIOD_NUM, float(rng.uniform(-20, 20))
        )
        for host in range(hosts)
        for device in range(devices)
    }
    now = dict.fromkeys(clocks, 0)
    seen = dict.fromkeys(clocks, 0)
    for number in range(batches_a_device):
        for host, device in clocks:
            clock = clocks[host, device]
            begin = now[host, device]
            columns, end = device_steps(plan, rng, clock, begin, steps_a_batch)
            columns["exec"] = columns["step"] = columns["step"] + number * steps_a_batch
            ticks = clock.ticks(np.asarray([begin, end], np.int64))
            yield PinnedBatch(
                host, device, number, seen[host, device], int(ticks[0]), int(ticks[1]), begin, end, clock, columns
            )
            now[host, device] = end
            seen[host, device] += len(columns["start"])


def source(host: int, device: int) -> Source:
    """One process a device, as a source must number one batch after the other."""
    return Source(
        cluster="pinned",
        host=f"host-{host}",
        boot_id=f"boot-{host}",
        pid=1000 + device,
        start_ticks=100,
        run="train",
        attempt="1",
        rank=host * DEVICES + device,
        incarnation=1,
    )


def encode(batch: PinnedBatch) -> bytes:
    """The wire message, its payload as agents encode it, with a snapshot of the device and of the wall clock at its
    end.

    The first batch of a device brings one of its begin too, so that no row lies before all brackets (1 us wide).
    """
    origin = source(batch.host, batch.device)
    key = f"host-{batch.host}/chip-{batch.device}"
    raw = ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1, width_bits=64)
    wall = ClockEpoch(clock="realtime", period_num=1, period_den=1, width_bits=64)
    ticks = ClockEpoch(clock="gtc", device=key, period_num=PERIOD_NUM, period_den=PERIOD_DEN, width_bits=64)
    message = Batch(
        version=WIRE_VERSION,
        source=origin,
        source_id=identity.source_id(origin),
        payload_kind=PAYLOAD_SPANS,
        clock=ticks,
        tick_from=batch.tick_from,
        tick_to=batch.tick_to,
        batch_number=batch.number,
        first_event=batch.first_event,
        rows=batch.rows,
        sent_ns=BEGIN_NS + batch.true_to,
        produced=batch.first_event + batch.rows,
        payload=payload(batch.columns),
    )
    message.device.key = key
    message.device.platform = "tpu"
    ends = [(batch.true_from, batch.tick_from), (batch.true_to, batch.tick_to)]
    for true_ns, value in ends if batch.number == 0 else ends[1:]:
        at = UPTIME_NS + true_ns
        for clock, read in ((ticks, value), (wall, BEGIN_NS + true_ns)):
            message.snapshots.append(
                ClockSnapshot(clock=clock, ref=raw, value=read, ref_before=at - 500, ref_after=at + 500)
            )
    return message.SerializeToString()


def payload(columns: dict[str, NDArray[np.generic]]) -> bytes:
    rows = len(columns["start"])
    arrays = [
        pa.array(columns[field.name], field.type) if field.name != "args" else pa.nulls(rows, pa.string())
        for field in WIRE_SPANS
    ]
    return encode_rows(pa.record_batch(arrays, schema=WIRE_SPANS))
