"""`fleetscope soak-windows`: the evidence for an entry of `profiler.allow`, made on the machine the entry is for.

Device windows by the hundred thousand on a busy device: failures, crashes, how long stops take, how memory grows. What
was done is kept in a file after every 50 windows, so that a soak of hours goes on where it ended. The last line of
stdout is one JSON object.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from fleetscope.cli import exits
from fleetscope.cli.exits import reported
from fleetscope.cli.roles import stopped_by_signals

ENOUGH = 100_000
"""Windows that make evidence: at one a minute a chip takes 10^5 in 70 days."""
GROWTH_BYTES = 1024
"""A window, by the slope over the second half: 10^5 windows would leave 100 MB."""
CRASHES_BORNE = 3

State = dict[str, Any]


def fresh() -> State:
    return {
        "version": 1, "machine": {}, "windows": 0, "failed": {}, "crashes": [], "seconds": 0.0, "bytes": 0,
        "start_ns": 0, "stop_ns": 0, "stop_max_ns": 0, "stops": {}, "memory": [], "lives": 0, "steps": 0,
    }  # fmt: skip


def buckets(durations_ns: list[int]) -> dict[str, int]:
    """How many lie in each bucket of a rollup's histogram, by its index."""
    import numpy as np

    from fleetscope.pipelines.histogram import bucket_index

    return dict(Counter(map(str, bucket_index(np.array(durations_ns, np.int64)).tolist())))


def quantiles_ms(state: State) -> dict[str, float]:
    """Of all stops: the most each can be; 0 where there was none."""
    from fleetscope.pipelines.histogram import quantile

    stops = sorted((int(index), count) for index, count in state["stops"].items())
    index, count = [index for index, _ in stops], [count for _, count in stops]
    longest = state["stop_max_ns"]
    return {
        name: round(quantile(index, count, share, 0, longest)[1] / 1e6, 2) if stops else 0.0
        for name, share in QUANTILES.items()
    }


def slope(memory: list[list[int]], column: int) -> float:
    """Bytes a window over the second half of each life, least squares; the largest of lives that have enough samples.

    `memory`: [life, window of that life, rss, device bytes].
    """
    from statistics import linear_regression

    found = [0.0]
    for life in sorted({row[0] for row in memory}):
        rows = [row for row in memory if row[0] == life]
        rows = rows[len(rows) // 2 :]
        if len(rows) >= 4 and rows[0][1] < rows[-1][1]:
            found.append(linear_regression([row[1] for row in rows], [row[column] for row in rows]).slope)
    return max(found)


def take(state: State, life: int, at: int, line: State) -> int:
    """One line of the worker into the state; windows of this life so far."""
    state["windows"] += line["windows"]
    for why, count in line["failed"].items():
        state["failed"][why] = state["failed"].get(why, 0) + count
    state["bytes"] += line["bytes"]
    state["start_ns"] += sum(line["starts"])
    state["stop_ns"] += sum(line["stops"])
    state["stop_max_ns"] = max([state["stop_max_ns"], *line["stops"]])
    for index, count in buckets(line["stops"]).items():
        state["stops"][index] = state["stops"].get(index, 0) + count
    at += line["windows"]
    state["memory"].append([life, at, line["rss"], line["device"]])
    # Every second sample goes when there are many: a slope does not need 2 000 of them.
    if len(state["memory"]) > 2000:
        state["memory"] = state["memory"][::2]
    return at


def result(state: State, wanted: int) -> State:
    """What the soak says, and whether it is evidence."""
    from fleetscope.agents.profiler.breaker import SLOW_STOP_NS

    machine = state["machine"]
    first = machine.get("chip") or machine.get("platform", "")
    entry = f"{first}/{machine.get('driver', '') or '*'}/{machine.get('jaxlib', '')}"
    grown = {"rss_bytes_a_window": round(slope(state["memory"], 2), 1)}
    grown["device_bytes_a_window"] = round(slope(state["memory"], 3), 1)
    wrong = [f"{count} windows: {why}" for why, count in state["failed"].items()]
    wrong += [f"the process died: {why}" for why in state["crashes"]]
    if state["stop_max_ns"] > SLOW_STOP_NS and machine.get("platform") != "cpu":
        wrong.append(f"a stop took {state['stop_max_ns'] / 1e9:.2f} s")
    wrong += [f"{what.replace('_', ' ')}: {value}" for what, value in grown.items() if value > GROWTH_BYTES]
    if state["windows"] < wanted:
        wrong.append(f"{state['windows']} windows of {wanted}")
    return {
        "name": "soak_windows",
        "entry": entry,
        "evidence": not wrong and state["windows"] >= ENOUGH,
        "ok": not wrong,
        "wrong": wrong,
        "windows": state["windows"],
        "failures": sum(state["failed"].values()) + len(state["crashes"]),
        "failed": state["failed"],
        "crashes": state["crashes"],
        "stop_ms": {**quantiles_ms(state), "max": round(state["stop_max_ns"] / 1e6, 2)},
        "start_ms_mean": round(state["start_ns"] / max(1, state["windows"]) / 1e6, 3),
        "window_kb_mean": round(state["bytes"] / max(1, state["windows"]) / 1e3, 1),
        **grown,
        "steps": state["steps"],
        "seconds": round(state["seconds"], 1),
        "lives": state["lives"],
        "machine": machine,
    }


QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


def keep(path: Path, state: State) -> None:
    from fleetscope.transport.embedded.catalog import write_durably

    write_durably(path, state)


def load(path: Path) -> State:
    """The soak so far. A file of another sort is an error, not a fresh start: it may be hours of work."""
    if not path.exists():
        return fresh()
    try:
        state = json.loads(path.read_text())
        if state["version"] != 1:
            raise ValueError(f"version {state['version']}")
        return {**fresh(), **state}
    except (ValueError, KeyError, TypeError) as error:
        print(f"fleetscope: {path} is no soak: {error!r}; name another --state", file=sys.stderr)
        raise SystemExit(exits.USAGE) from error


def soak_windows(
    windows: Annotated[int, typer.Option(min=1, help="windows in all, those of earlier runs included")] = ENOUGH,
    length_s: Annotated[float, typer.Option("--length", min=0.001, help="s a window stays open")] = 0.2,
    pause_s: Annotated[float, typer.Option("--pause", min=0.0, help="s between two windows")] = 0.02,
    size: Annotated[int, typer.Option(min=8, help="edge of the matrices the program multiplies")] = 512,
    state: Annotated[
        Path, typer.Option("--state", help="file that keeps what was done; the same file goes on")
    ] = Path("soak-windows.json"),
) -> None:  # fmt: skip
    """Take device windows on this machine until they are evidence for (or against) an entry of `profiler.allow`.

    Exit code 0: nothing went wrong. 1: something did, or it was ended early; the JSON line says what.
    """
    with reported(), stopped_by_signals() as stop:
        done = load(state)
        while done["windows"] < windows and not stop.is_set():
            ended = _live(done, windows, (length_s, pause_s, size), state, stop.is_set)
            if ended and not stop.is_set():
                done["crashes"].append(ended)
                keep(state, done)
                if len(done["crashes"]) >= CRASHES_BORNE:
                    break
        found = result(done, windows)
        word = "evidence" if found["evidence"] else f"NOT evidence ({'; '.join(found['wrong']) or 'too few windows'})"
        print(f"profiler.allow entry: {found['entry']}  # {done['windows']} windows, {word}")
        print(json.dumps(found))
    raise SystemExit(exits.OK if found["ok"] else exits.FINDING)


def _live(done: State, windows: int, how: tuple[float, float, int], state: Path, stopped: Any) -> str:
    """One life of the program; why it ended before its time, "" if it did not."""
    done["lives"] += 1
    life, at, begun_s = done["lives"], 0, time.monotonic()
    before_s, before_steps = done["seconds"], done["steps"]
    arguments = [str(windows - done["windows"]), *map(str, how)]
    command = [sys.executable, "-m", "fleetscope.cli.soak_worker", *arguments]
    # Not under our own injection: the soak's windows are the only ones.
    environment = os.environ | {"FLEETSCOPE_DISABLED": "1"}
    error = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as worker:
        assert worker.stdout is not None
        for line in _objects(worker.stdout):
            if "platform" in line:
                machine = {key: value for key, value in line.items() if key != "pid"}
                if done["machine"] and done["machine"] != machine:
                    worker.kill()
                    print(f"fleetscope: {state} is of another machine: {done['machine']}", file=sys.stderr)
                    raise SystemExit(exits.USAGE)
                done["machine"] = machine
                continue
            at = take(done, life, at, line)
            done["seconds"] = before_s + time.monotonic() - begun_s
            done["steps"] = before_steps + line["steps"]
            error = line["error"]
            keep(state, done)
            print(f"{done['windows']} of {windows} windows, {done['failed'] or 'no'} failures", file=sys.stderr)
            if stopped():
                worker.terminate()
                break
    if worker.returncode in (0, None) or stopped():
        return ""
    return error or (f"signal {-worker.returncode}" if worker.returncode < 0 else f"exit {worker.returncode}")


def _objects(lines: Iterable[str]) -> Iterable[State]:
    for line in lines:
        if line.startswith("{"):
            yield json.loads(line)
