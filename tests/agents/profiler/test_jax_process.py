"""A real jax process under the profiler: annotations, compiles, programs and windows reach the agent."""

import collections
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetscope.agents.profiler import inject, placement
from fleetscope.agents.profiler.protocol import Cost, End, Hello, Program, Window

pytestmark = pytest.mark.e2e


def test_the_example_from_its_process_to_the_agent(
    agent: Callable[..., Any],
    environment: dict[str, str],
    repository: Path,
    only_segment: Callable[..., Any],
) -> None:
    """The example imports only jax. Oracles: what it prints, jax's own reader of XSpace bytes, the rule of DESIGN 5."""
    from jax.profiler import ProfileData

    toy = agent(window_s=1.0)
    argv = [sys.executable, "examples/train_transformer.py", "--steps", "120", "--step-ms", "20"]
    done = subprocess.run(
        argv, env=inject.environment(argv, environment), cwd=repository, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1].startswith("120 steps in ")

    (end,) = (message for message, _ in toy.wait_for(End))
    assert end.steps == 120
    hello = toy.of(Hello)[-1][0]
    assert (hello.run, hello.rank, hello.world_size, hello.platform) == ("train_transformer", 0, 1, "cpu")
    assert hello.jaxlib == "0.10.2"
    assert "--steps 120" in hello.command

    names, events = only_segment()
    steps = events.arg[events.kind == 1]
    assert steps.tolist() == list(range(120))
    assert events.lost == 0
    count = collections.Counter(names)
    assert count["train"] == count["data_wait"] == 120
    assert set(events.kind[[name == "data_wait" for name in names]].tolist()) == {9}
    waits = [int(arg) - 1 for name, arg in zip(names, events.arg, strict=True) if name == "data_wait"]
    assert waits == list(range(120))  # a region knows its step
    compiles = [name for name, kind in zip(names, events.kind, strict=True) if kind == 10]
    assert "compile jit(train_step)" in compiles

    programs = {message.program_id: message for message, _ in toy.of(Program)}
    assert len(programs) == len(toy.of(Program))
    assert {"jit_train_step", "jit_make_batch"} <= {message.module for message in programs.values()}

    windows = toy.of(Window)
    assert windows
    placed = 0
    for window, xspace in windows:
        device_ops: collections.Counter[int] = collections.Counter()
        planes = list(ProfileData.from_serialized_xspace(xspace).planes)
        (began,) = (dict(plane.stats)["profile_start_time"] for plane in planes if plane.name == "Task Environment")
        assert window.opened.realtime_ns - window.start_ns - 1e6 <= began <= window.opened.realtime_ns
        for plane in planes:
            for line in plane.lines:
                for event in line.events:
                    stats = dict(event.stats)
                    if "hlo_op" in stats:
                        device_ops[stats["program_id"]] += 1
                        assert event.start_ns >= 0
                        assert began + event.end_ns <= window.closed.realtime_ns + 1e6
        assert window.length_ns == window.closed.raw_before_ns - window.opened.raw_after_ns
        if window.step < 0:
            continue
        placed += 1
        block = window.step // window.every
        assert placement.opening("train_transformer", window.every, block)[0] == window.step
        assert set(device_ops) <= set(programs)
        train_step = [key for key, message in programs.items() if message.module == "jit_train_step"]
        assert sum(device_ops[key] for key in train_step) > 50
    assert placed

    cost = toy.of(Cost)[-1][0]
    # The end of the program may come in the middle of one: its stop was taken too.
    assert set(cost.dropped) <= {"stopped"}
    assert cost.windows == len(windows) + cost.dropped.get("stopped", 0)
    assert cost.window_bytes == sum(len(body) for _, body in windows)
    stops_ns = sum(window.stop_ns for window, _ in windows)
    assert cost.stop_ns > stops_ns if cost.dropped else cost.stop_ns == stops_ns
    assert cost.harvests >= len(programs)
    assert not cost.broken


ANNOTATIONS = """
import os, sys
import jax, jax.numpy as jnp
from jax.profiler import TraceAnnotation, StepTraceAnnotation, annotate_function  # before the profiler

class Before(TraceAnnotation):
    pass

@annotate_function
def decorated_before():
    pass

from fleetscope.agents import profiler
profiler.start(early=True)

class After(TraceAnnotation):
    def __init__(self, name):
        super().__init__(name.upper())

@jax.profiler.annotate_function
def decorated_after():
    pass

def everything(number):
    with StepTraceAnnotation("train", step_num=number, _ct=5, _c=number):
        with TraceAnnotation("plain", _pt=10, _p=7), TraceAnnotation("arguments", batch=3, text="x"):
            pass
        with Before("before"), After("after"):
            decorated_before()
            decorated_after()
        first, second = TraceAnnotation("first"), TraceAnnotation("second")
        with first:
            with second:
                pass
        with first:
            pass
        never = TraceAnnotation("never")

everything(0)
from jax._src.lib import _profiler
options = _profiler.ProfileOptions()
options.python_tracer_level = 0
session = _profiler.ProfilerSession(options)
everything(1)
xspace = session.stop()
try:
    TraceAnnotation()
except TypeError:
    print("TypeError")
try:
    with TraceAnnotation("fails"):
        raise KeyError("theirs")
except KeyError:
    print("KeyError")
import contextlib
with contextlib.ExitStack() as stack:  # which looks the methods up in the class
    stack.enter_context(TraceAnnotation("stacked"))
many = [TraceAnnotation("many") for _ in range(40)]
for one, begin in zip(many, [one.__enter__ for one in many]):  # more bound methods than are kept for the next
    assert begin() is one
    one.__exit__(None, None, None)
refused = 0
for call in (TraceAnnotation.__enter__, lambda: TraceAnnotation.__enter__(3), lambda: many[0].__enter__(1),
             lambda: many[0].__exit__(1, 2, 3, 4), lambda: many[0].__exit__(x=1)):
    try:
        call()
    except TypeError:
        refused += 1
assert refused == 5, refused
from jax.profiler import ProfileData
seen = [e.name for p in ProfileData.from_serialized_xspace(xspace).planes for l in p.lines for e in l.events]
print(*sorted(name for name in seen if not name.startswith("$")))
os.environ["FLEETSCOPE_DISABLED"] = "1"
"""


def test_jaxs_own_annotations(
    python: Callable[..., subprocess.CompletedProcess[str]], only_segment: Callable[..., Any], tmp_path: Path
) -> None:
    """Imported before or after, subclassed, decorating, reused: recorded by us, and XLA sees what it saw before."""
    read = "from fleetscope.native.recorder import Segment; import glob\n"
    read += "segment = Segment(glob.glob(os.environ['FLEETSCOPE_AGENT__SHM_DIR'] + '/*.ring')[0])\n"
    read += "got = segment.drain(); names = segment.names(); print(*[names[i] for i in got.name], sep='|')\n"
    read += "print(*got.arg[got.kind == 1].tolist(), len(got.arg_row), segment.state().abandoned)\n"
    read += "links = zip(got.name[got.link_row], got.link_kind, got.link_type, got.link_id)\n"
    read += "print(*(f'{names[n]}:{k}:{t}:{i}' for n, k, t, i in links))\n"
    first, second, xla, ours, numbers, links = python(ANNOTATIONS + read).stdout.splitlines()
    assert (first, second) == ("TypeError", "KeyError")
    once = [
        "arguments",
        "plain",
        "decorated_before",
        "decorated_after",
        "AFTER",
        "before",
        "second",
        "first",
        "first",
        "train",
    ]
    known = [name for name in ours.split("|") if name in {*once, "fails", "never", "stacked", "many"}]
    assert known == [*once, *once, "fails", "stacked", *["many"] * 40]
    assert {*once, "train"} <= set(xla.split())
    assert numbers == "0 1 4 0"
    # what XLA's TraceMeProducer and TraceMeConsumer write as metadata is the same link here
    assert links == "plain:46:10:7 train:47:5:0 plain:46:10:7 train:47:5:1"
