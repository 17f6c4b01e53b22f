"""Faults on schedule: KIND:key=value,... Times in seconds of fleet time; defaults follow the simulation's length."""

from dataclasses import dataclass, field

from fleetscope.schema.errors import FaultUnknown


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `at` and `lasting` in seconds from the begin; other parameters by name."""

    kind: str
    host: int
    at: float
    lasting: float
    chip: int = 0
    amount: float = 0.0
    count: int = 0

    @property
    def until(self) -> float:
        return self.at + self.lasting

    def active(self, second: float) -> bool:
        return self.at <= second < self.until


@dataclass(frozen=True, slots=True)
class _Shape:
    """Defaults of a kind: `at` and `lasting` as shares of the length; `amount` is called `word` on the command line."""

    host: int
    at: float
    lasting: float
    word: str = ""
    amount: float = 0.0
    chip: int = 0
    count: int = 0
    keys: frozenset[str] = field(default_factory=frozenset)


SHAPES = {
    "throttle": _Shape(3, 0.2, 1.0, "slowdown", 1.6, chip=1),
    "straggler": _Shape(1, 0.3, 0.2, "wait", 0.2),
    "silent": _Shape(2, 0.4, 0.1),
    "clock_step": _Shape(4, 0.5, 0.0, "by_ms", 250.0),
    "lost": _Shape(5, 0.3, 1.0, count=3),
    "late": _Shape(6, 0.3, 1.0, "by", 12.0, count=3),
    "duplicate": _Shape(7, 0.3, 1.0, count=3),
    "restart": _Shape(0, 0.6, 0.0),
}
"""throttle: a chip overheats and slows. straggler: a host waits for data. silent: a host is mute, then tells all.
clock_step: a host's wall clock steps. lost, late, duplicate: batches between spool and log. restart: of an agent."""

CLOCK_SHAPES = {
    "raw_step": _Shape(1, 0.5, 0.0, "by_us", 200.0),
    "rate_step": _Shape(2, 0.5, 0.0, "ppm", 5.0),
    "suspend": _Shape(3, 0.4, 0.1),
    "vm_restore": _Shape(4, 0.6, 0.1),
    "leap": _Shape(5, 0.5, 0.0),
    "smear": _Shape(6, 0.3, 0.5, "ppm", 11.6),
    "year_1970": _Shape(7, 0.0, 0.0),
    "tai_zero": _Shape(7, 0.0, 0.0),
    "asymmetry": _Shape(2, 0.0, 1.0, "by_us", 100.0),
    "probe_loss": _Shape(5, 0.0, 1.0, "share", 0.3),
    "liar": _Shape(6, 0.5, 0.5, "by_us", 500.0),
    "wrong_collective": _Shape(3, 0.7, 0.1),
}
"""Of clocks and their records. raw_step, rate_step: a host's counter. suspend, vm_restore: it stands still. leap: a
second is inserted, stepwise. smear: the wall clock runs slow. year_1970, tai_zero: a host that nobody disciplines.
asymmetry: packets to a host take longer. liar: a host answers probes with other times. wrong_collective: its
collectives have the number of the one before. An NTP step is clock_step:by_ms=64000."""


def parse_faults(texts: list[str], seconds: float, hosts: int, chips: int) -> list[Fault]:
    """Faults of the command line; "all" is one of each kind of SHAPES, "all-but-lost" leaves lost out, "all-clocks" is
    one of each of CLOCK_SHAPES. Raises FaultUnknown."""
    out: list[Fault] = []
    for text in texts:
        if text in ("all", "all-but-lost"):
            out += [_fault(kind, {}, seconds, hosts, chips) for kind in SHAPES if text == "all" or kind != "lost"]
            continue
        if text == "all-clocks":
            out += [_fault(kind, {}, seconds, hosts, chips) for kind in CLOCK_SHAPES]
            continue
        kind, _, rest = text.partition(":")
        if kind not in SHAPES | CLOCK_SHAPES:
            raise FaultUnknown(f"no fault {kind!r}; there are {', '.join(SHAPES | CLOCK_SHAPES)}")
        given: dict[str, float] = {}
        for part in filter(None, rest.split(",")):
            key, equals, value = part.partition("=")
            try:
                given[key] = float(value)
            except ValueError:
                raise FaultUnknown(f"fault {text!r}: {part!r} is no key=number") from None
            if not equals:
                raise FaultUnknown(f"fault {text!r}: {part!r} is no key=number")
        out.append(_fault(kind, given, seconds, hosts, chips))
    return out


def _fault(kind: str, given: dict[str, float], seconds: float, hosts: int, chips: int) -> Fault:
    shape = (SHAPES | CLOCK_SHAPES)[kind]
    known = {"host", "at", "for", "chip", "count", shape.word} - {""}
    if set(given) - known:
        raise FaultUnknown(f"fault {kind}: unknown {sorted(set(given) - known)}; known {sorted(known)}")
    host, chip = int(given.get("host", shape.host % hosts)), int(given.get("chip", shape.chip % chips))
    if not (0 <= host < hosts and 0 <= chip < chips):
        raise FaultUnknown(f"fault {kind}: no chip {chip} on host {host} in {hosts} x {chips}")
    return Fault(
        kind=kind,
        host=host,
        chip=chip,
        at=given.get("at", shape.at * seconds),
        lasting=given.get("for", shape.lasting * seconds),
        amount=given.get(shape.word, shape.amount),
        count=int(given.get("count", shape.count)),
    )
