"""Keeps what recording costs within its budgets: docs/design/0019-governor.md. Decides for all processes of the host.

It lowers how many records a site of a process may leave a second (one pass in 2^k is recorded, with its weight), then
which levels of sites record at all; and how many of its device windows are taken. It raises them when there is room.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleetscope.agents.node.governed import REGIONS, WINDOWS, Decision, Governed, Kept
from fleetscope.agents.node.ladder import Rung, Shares, Thinning, ladder, predicted, records, thinning
from fleetscope.agents.node.meter import Rates
from fleetscope.agents.node.process import Key, Process
from fleetscope.schema.config import GovernorConfig, ProfilerConfig

log = logging.getLogger(__name__)

PERIOD_S = 10.0
"""Between two looks, and so between two decisions about the regions of a process."""
WINDOWS_S, LEAST_WINDOWS = 60.0, 4
"""Decisions about windows are at least so far apart, and by so many windows: one may be anything."""
FORGET_S = 600.0
"""The mean cost of windows is over so long."""
LOWER_TO, RAISE_TO = 0.85, 0.7
"""Of a budget. A rung has twice the records of the next: between the two lies room that no steady load leaves."""
WORTH = 0.2
"""Of a budget: who can give less is left alone, because its cost is something else. An eighth of a host's annotations
would be thrown away for nothing otherwise where launches alone are over the budget."""
STRIDE = 3
"""Rungs in one decision at most: a factor of 8."""
REGRET = 6
"""Periods within which a lowering takes a raise back: the next is tried after twice the time."""
BACKOFF_MAX_S = 640.0
MOST_WINDOW_SHIFT = 6


def fair_share(costs: Iterable[float], budget: float) -> float:
    """F with sum(min(cost, F)) = budget: who costs more is why the host is over it. Infinite while it is not."""
    left, ordered = budget, sorted(costs)
    for index, cost in enumerate(ordered):
        share = left / (len(ordered) - index)
        if cost > share:
            return share
        left -= cost
    return math.inf


@dataclass(frozen=True, slots=True)
class _Look:
    """A process in one look. `others`: share of a core the agent spends on all others."""

    process: Process
    state: Governed
    rates: Rates
    now_s: float
    others: float
    fair: float


class Governor:
    """Guarded by the agent's lock. `period_s`: of the looks."""

    def __init__(
        self, budgets: GovernorConfig, profiler: ProfilerConfig, kept: Kept | None = None, period_s: float = PERIOD_S
    ) -> None:
        self.budgets = budgets
        self.period_s = period_s
        self.rungs: Sequence[Rung] = ladder(profiler.level)
        self.decisions: deque[Decision] = deque(maxlen=64)
        self._total = max(budgets.step_budget, profiler.window_budget)
        self._kept = kept or {}
        self._processes: dict[Key, Governed] = {}
        self._looked_s: float | None = None

    def of(self, key: Key) -> Governed:
        """Of a process that was not heard of before: what an earlier life of the agent had decided, else nothing."""
        state = self._processes.get(key)
        if state is None:
            state = self._processes[key] = Governed(wait_s=self.period_s)
            kept = self._kept.pop(f"{key[0]}-{key[1]}", None)
            if kept is not None and self.budgets.enabled:
                try:
                    state.restore(kept, len(self.rungs), time.monotonic())
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    log.warning("what was decided for process %d is not readable: %s", key[0], error)
        return state

    def rung(self, key: Key) -> Rung:
        return self.rungs[self.of(key).rung]

    def carried(self) -> Kept:
        return {f"{pid}-{ticks}": state.carried() for (pid, ticks), state in self._processes.items()}

    def look(self, now_s: float, processes: Iterable[Process], record_ns: float) -> frozenset[Key]:
        """Judges all processes, once a period; those about which something was decided. `now_s`: monotonic.
        `record_ns`: what a record costs the agent."""
        seconds = now_s - self._looked_s if self._looked_s is not None else 0.0
        if self._looked_s is not None and seconds < self.period_s:
            return frozenset()
        first, self._looked_s = self._looked_s is None, now_s
        living = {process.key: process for process in processes if not process.final}
        self._processes = {key: self.of(key) for key in living}
        rates = {
            key: process.meter.take(seconds or 1.0, process.name_text, record_ns) for key, process in living.items()
        }
        for key, process in living.items():
            self.of(key).shares = Shares(rates[key].recorder, rates[key].drain)
            self._weigh_windows(self.of(key), process, now_s)
        if first or not self.budgets.enabled:
            return frozenset()  # what the first look finds was counted over nobody knows how long
        costs = {key: state.shares.drain + state.decode for key, state in self._processes.items()}
        fair, total = fair_share(costs.values(), self.budgets.core_budget), sum(costs.values())
        looks = [
            _Look(process, self.of(key), rates[key], now_s, total - costs[key], fair) for key, process in living.items()
        ]
        return frozenset(look.process.key for look in looks if self._judge(look) | self._judge_windows(look))

    # ---- regions

    def _fits(self, look: _Look, shares: Shares, bare: Shares, part: float) -> bool:
        """Whether it would cost at most `part` of both budgets, or what is left to give would not be worth it."""
        step, core = self.budgets.step_budget, self.budgets.core_budget
        room = max(core - look.others, min(look.fair, core)) - look.state.decode
        step_fits = shares.recorder <= part * step and shares.recorder + look.state.windows <= part * self._total
        return (step_fits or shares.recorder - bare.recorder <= part * WORTH * step) and (
            shares.drain <= part * room or shares.drain - bare.drain <= part * WORTH * core
        )

    def _over(self, look: _Look, bare: Shares) -> str:
        """Why regions of this process are to be lowered; "" when they are not, or would not help."""
        state, (recorder, drain) = look.state, look.state.shares
        larger = recorder + state.windows > self._total and recorder >= state.windows
        if (recorder > self.budgets.step_budget or larger) and recorder - bare.recorder > (
            WORTH * self.budgets.step_budget
        ):
            return "recorder"
        over = drain + state.decode > look.fair and drain >= state.decode
        return "agent" if over and drain - bare.drain > WORTH * self.budgets.core_budget else ""

    def _judge(self, look: _Look) -> bool:
        state = look.state
        bare = predicted(look.rates, state.thin, state.thin, level=0)
        reason = self._over(look, bare)
        if reason:
            return self._lower(look, bare, reason)
        if state.rung and look.now_s - state.changed_s >= state.wait_s:
            return self._raise(look, bare)
        if not state.rung and look.now_s - state.changed_s >= 10 * state.wait_s:
            state.wait_s = self.period_s
        return False

    def _lower(self, look: _Look, bare: Shares, reason: str) -> bool:
        state, rates = look.state, look.rates
        kept, level = sum(rates.kept.values()), self.rungs[state.rung].level
        chosen, strides = state.rung, 0
        while chosen + 1 < len(self.rungs) and strides < STRIDE:
            chosen += 1
            then, below = thinning(rates.passes, self.rungs[chosen].cap), self.rungs[chosen].level
            if below == level and records(rates, state.thin, then) > 0.99 * kept:
                continue  # it would change nothing, and is no step
            strides += 1
            if self._fits(look, predicted(rates, state.thin, then, below), bare, LOWER_TO):
                break
        if not strides:
            return False
        if look.now_s - state.raised_s <= REGRET * self.period_s:
            state.wait_s = min(2 * state.wait_s, BACKOFF_MAX_S)
        self._move(look, chosen, thinning(rates.passes, self.rungs[chosen].cap), reason)
        return True

    def _raise(self, look: _Look, bare: Shares) -> bool:
        state, rates, level = look.state, look.rates, self.rungs[look.state.rung].level
        chosen, thin, reason = state.rung, state.thin, "under_budget"
        if self.rungs[chosen - 1].level > level:
            # What sites cost that do not record is not known. They are as thin as when they were switched off.
            chosen, reason = chosen - 1, "trial"
        while reason != "trial" and chosen:
            then = thinning(rates.passes, self.rungs[chosen - 1].cap)
            if not self._fits(look, predicted(rates, state.thin, then, level), bare, RAISE_TO):
                break
            chosen, thin = chosen - 1, then
        if reason != "trial" and chosen and thin == state.thin:
            return False  # a rung that changes nothing is no decision
        state.raised_s = look.now_s
        self._move(look, chosen, thin, reason)
        return True

    def _move(self, look: _Look, rung: int, thin: Thinning, reason: str) -> None:
        was, look.state.rung = look.state.rung, rung
        look.state.thin, look.state.changed_s = thin, look.now_s
        self._note(look, REGIONS, was, rung, reason, about(self.rungs[rung], thin))

    # ---- windows

    def _weigh_windows(self, state: Governed, process: Process, now_s: float) -> None:
        meter = process.meter
        now_ns = (meter.ns["windows"], meter.ns["decode"])
        if state.windows_since_s is not None:
            seconds = max(now_s - state.windows_since_s, WINDOWS_S)
            state.windows, state.decode = (
                (now - before) / 1e9 / seconds for now, before in zip(now_ns, state.windows_ns, strict=True)
            )
        if state.windows_since_s is None or now_s - state.windows_since_s >= FORGET_S:
            state.windows_since_s, state.windows_seen, state.windows_ns = now_s, meter.windows, now_ns

    def _judge_windows(self, look: _Look) -> bool:
        state, meter = look.state, look.process.meter
        since_s = state.windows_since_s if state.windows_since_s is not None else look.now_s
        if look.now_s - since_s < WINDOWS_S:
            return False
        enough = meter.windows - state.windows_seen >= LEAST_WINDOWS
        (recorder, drain), shift, reason = state.shares, state.window_shift, ""
        if recorder + state.windows > self._total and state.windows > recorder:
            reason = "windows"
        elif drain + state.decode > look.fair and state.decode > drain:
            reason = "decode"
        if reason:
            shift += enough and shift < MOST_WINDOW_SHIFT
        elif shift and meter.windows > state.windows_seen:
            fits = 2 * state.windows + recorder <= RAISE_TO * self._total
            if fits and 2 * state.decode + drain + look.others <= RAISE_TO * self.budgets.core_budget:
                shift, reason = shift - 1, "under_budget"
        if shift == state.window_shift:
            return False
        was, state.window_shift = state.window_shift, shift
        state.windows_since_s, state.windows_seen = look.now_s, meter.windows
        state.windows_ns = (meter.ns["windows"], meter.ns["decode"])
        self._note(look, WINDOWS, was, shift, reason, f"one window in {1 << shift}")
        return True

    def _note(self, look: _Look, lever: str, was: int, now: int, reason: str, text: str) -> None:
        state, source = look.state, look.process.source
        state.decisions[lever, reason] += 1
        cost = (state.shares.recorder, state.windows, state.shares.drain + state.decode)
        self.decisions.append(
            Decision(time.time_ns(), source.pid, source.run, source.rank, lever, was, now, reason, *cost, text)
        )
        log.info("process %d, %s %d -> %d (%s): %s", source.pid, lever, was, now, reason, text)


def about(rung: Rung, thin: Thinning) -> str:
    """What a rung means for a process, in words."""
    if not rung.level:
        return "no site records; steps do"
    if not rung.cap:
        return "every region"
    rest = f", one in {1 << thin.rest} of the others" if thin.rest else ""
    sites = sum(shift > 0 for shift in thin.names.values())
    return f"at most {rung.cap} records/s of a site ({sites} thinned{rest})"
