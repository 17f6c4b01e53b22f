"""The host's counter on the host's clocks, by real reads of this machine: guaranteed error, and distance from reads
that were not used.

    .venv/bin/python benchmarks/clock_host.py [--seconds 60] [--hz 1]

Every snapshot is one of the agent's (the tightest of five brackets MONOTONIC_RAW, counter, REALTIME, MONOTONIC_RAW, by
the recorder's native code). Half a period after each, the tightest of eight more is kept aside: it must overlap what
the map promises, and its middle is what the map is compared with. The counter's map has the guaranteed bound of its
brackets alone, because the kernel computes MONOTONIC_RAW from it by a constant factor; REALTIME may be slewed, so its
bound has 6 ppm of the time between reads as well and is only shown.
"""

import argparse
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from report import report

from fleetscope.native import recorder
from fleetscope.pipelines.align.bracket import BracketLine
from fleetscope.pipelines.align.clocks import COUNTER, DEVICE
from fleetscope.pipelines.align.line import LongestLine
from fleetscope.pipelines.align.piece import Behaviour, Bracket, Piece


@dataclass(slots=True)
class Followed:
    """One clock against MONOTONIC_RAW: its maps, and the brackets kept aside."""

    num: int
    den: int
    behaviour: Behaviour
    reads: list[Bracket] = field(default_factory=list)
    aside: list[Bracket] = field(default_factory=list)
    final: list[Piece] = field(default_factory=list)
    live: list[tuple[int, int]] = field(default_factory=list)
    """(stated - middle of the bracket kept aside, error promised)."""
    outside: int = 0

    def run(self) -> None:
        line = BracketLine(self.num, self.den, self.behaviour)
        longest = LongestLine(self.num, self.den, self.behaviour)
        for number, read in enumerate(self.reads):
            line.add(read)
            self.final += longest.add(read, line.slope())
            if number >= 3:
                # The reads on both sides of it are known when a row is placed: look back half a period.
                aside = self.aside[number - 1]
                self._compare(line.reach(aside.x, aside.x + 1)[0], aside, self.live)
        self.final += longest.cut()

    def _compare(self, piece: Piece, aside: Bracket, into: list[tuple[int, int]]) -> None:
        stated = piece.floor_at(aside.x)
        into.append((stated - (aside.lo + aside.hi) // 2, piece.err))
        self.outside += not (aside.lo - piece.err <= stated <= aside.hi + piece.err)

    def figures(self) -> dict[str, Any]:
        found: list[tuple[int, int]] = []
        for aside in self.aside:
            piece = next((p for p in self.final if p.begin <= aside.x < p.end), None)
            if piece is not None:
                self._compare(piece, aside, found)
        off, err = (np.array(values) for values in zip(*found, strict=True))
        live_off, live_err = (np.array(values) for values in zip(*self.live, strict=True))
        widths = np.array([read.hi - read.lo for read in self.reads])
        return {
            "bracket_p50_ns": int(np.percentile(widths, 50)),
            "bracket_p99_ns": int(np.percentile(widths, 99)),
            "guaranteed_ns": int(err.max()),
            "p99_ns": round(float(np.percentile(np.abs(off), 99)), 1),
            "live_guaranteed_p50_ns": int(np.percentile(live_err, 50)),
            "live_guaranteed_max_ns": int(live_err.max()),
            "live_p99_ns": round(float(np.percentile(np.abs(live_off), 99)), 1),
            "pieces": len(self.final),
            "outside": self.outside,
        }


def tightest(name: str, tries: int) -> tuple[int, int, int, int]:
    return min((recorder.read_clocks(name) for _ in range(tries)), key=lambda read: read[3] - read[0])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--hz", type=float, default=1.0)
    options = parser.parse_args()
    name, num, den = recorder.host_counter()
    counter, wall = Followed(num, den, COUNTER), Followed(1, 1, DEVICE)
    due = time.monotonic()
    for _ in range(int(options.seconds * options.hz)):
        for tries, half in ((1, "reads"), (8, "aside")):
            before, ticks, realtime, after = tightest(name, tries)
            # The counter holds a value for one period at most, which is less than 1 ns.
            getattr(counter, half).append(Bracket(ticks, before - 1, after))
            getattr(wall, half).append(Bracket(realtime, before - 1, after))
            due += 0.5 / options.hz
            time.sleep(max(0.0, due - time.monotonic()))
    counter.run()
    wall.run()
    of_counter, of_wall = counter.figures(), wall.figures()
    failed = []
    if name == "monotonic_raw":
        failed.append("the counter of this machine is MONOTONIC_RAW itself")
    for what, value, limit in (
        ("guaranteed", of_counter["guaranteed_ns"], 50),
        ("p99", of_counter["p99_ns"], 10),
        ("outside", of_counter["outside"] + of_wall["outside"], 0),
    ):
        if value > limit:
            failed.append(f"{what}: {value} over {limit}")
    return report(
        "clock_host", of_counter["guaranteed_ns"], "ns", 50, failed=failed, counter=name, of_counter=of_counter,
        of_realtime=of_wall,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
