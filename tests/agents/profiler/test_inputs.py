"""Waits for input, in real JAX programs: found where a loop waits for its iterator, and nowhere else."""

import subprocess
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetscope.native.recorder import DATA_WAIT, Drained

pytestmark = pytest.mark.e2e

START = """
import itertools, sys, threading, time, queue
from fleetscope.agents import profiler
profiler.start(early=True)
import jax, jax.numpy as jnp
ones = jnp.ones((64, 64))

def slow(count, seconds=0.03):
    for number in range(count):
        time.sleep(seconds)
        yield number

def function(name):
    def f(x):
        return jnp.tanh(x @ x)
    f.__name__ = name
    made = jax.jit(f)
    made(ones).block_until_ready()
    time.sleep(0.01)
    return made
"""

# Each phase has a function of its own: what its gaps are spent on is kept by the function called next.
PHASES = (
    START
    + """
def loop():
    step = function("loop")
    for _ in slow(90):
        step(ones).block_until_ready()

def trainer():
    step = function("trainer")
    def train_step(batch):
        with profiler.step(batch):
            return step(ones).block_until_ready()
    def fit(batches):
        iterator = iter(enumerate(batches))
        while True:
            try:
                _, batch = next(iterator)
            except StopIteration:
                return
            train_step(batch)
    fit(itertools.islice(slow(500), 90))

def queued():
    step = function("queued")
    items = queue.Queue(2)
    threading.Thread(target=lambda: [items.put(n) for n in slow(91)]).start()
    for _ in (items.get() for _ in range(90)):
        step(ones).block_until_ready()

def host():
    step = function("host")
    for _ in range(90):
        step(ones).block_until_ready()
        time.sleep(0.03)

def inner():
    step = function("inner")
    for _ in range(90):
        step(ones).block_until_ready()
        for _ in range(2):
            time.sleep(0.015)

def saving():
    step = function("saving")
    for _ in range(90):
        step(ones).block_until_ready()
        with profiler.annotate("checkpoint"):
            for _ in slow(1):
                pass

def said():
    step = function("said")
    for _ in range(90):
        with profiler.annotate("data_wait"):
            time.sleep(0.03)
        step(ones).block_until_ready()
"""
)

CASES = """
import glob, os
from fleetscope.native import _recorder
from fleetscope.native.recorder import Segment
segment = Segment(*glob.glob(os.environ["FLEETSCOPE_AGENT__SHM_DIR"] + "/*.ring"))
_, num, den = _recorder.host_counter()
for phase in sys.argv[1:]:
    globals()[phase]()
    got, names = segment.drain(1 << 20), segment.names()
    for name, kind, ticks in zip(got.name, got.kind, got.dur.tolist()):
        if kind == 9:
            print(phase, names[name], round(ticks * num / den / 1e6, 3), sep="\\t")
"""


def waits_of(
    python: Callable[..., subprocess.CompletedProcess[str]], *phases: str
) -> dict[str, list[tuple[str, float]]]:
    found: dict[str, list[tuple[str, float]]] = {phase: [] for phase in phases}
    for line in python(PHASES + CASES, *phases).stdout.splitlines():
        phase, name, ms = line.split("\t")
        found[phase].append((name, float(ms)))
    return found


def test_a_plain_iterator(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """90 gaps of 30 ms each; the first second passes before anybody looks, then it takes eight looks at each."""
    for phase, waits in waits_of(python, "loop", "trainer", "queued").items():
        assert {name for name, _ in waits} == {"data_wait (inferred)"}, phase
        lengths = sorted(ms for _, ms in waits)
        assert 25 <= len(lengths) <= 92, phase
        assert 15 <= lengths[len(lengths) // 2] <= 60, phase


def test_time_that_is_no_input(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    for phase, waits in waits_of(python, "host", "inner", "saving").items():
        assert sum(ms for _, ms in waits) <= 0.05 * 2700, phase


def test_what_is_said_is_not_said_again(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert Counter(name for name, _ in waits_of(python, "said")["said"]) == {"data_wait": 90}


def test_spans_do_not_cross(
    python: Callable[..., subprocess.CompletedProcess[str]], only_segment: Callable[[], tuple[list[str], Drained]]
) -> None:
    """Steps, annotations of the user in every place of a gap, and inferred waits: nested or apart."""
    code = """
    step = function("crossing")
    batches = slow(90)
    for number in range(90):
        with profiler.annotate("get"):
            with profiler.annotate("deeper"):
                batch = next(batches)
            time.sleep(0.002)
        with profiler.annotate("log"):
            time.sleep(0.001)
        with profiler.step(number):
            step(ones).block_until_ready()
    """
    python(START + "\n".join(line[4:] for line in code.splitlines()) + "\nimport os; os._exit(0)")
    names, got = only_segment()
    assert names.count("data_wait (inferred)") >= 20
    main = got.line[names.index("crossing")] if "crossing" in names else got.line[names.index("log")]
    spans = sorted(
        (start, -dur) for start, dur, line in zip(got.start.tolist(), got.dur.tolist(), got.line, strict=True)
        if line == main
    )  # fmt: skip
    stack: list[int] = []
    for start, negative in spans:
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or start - negative <= stack[-1]
        stack.append(start - negative)


def test_calls_answer_as_before(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Errors, nesting, methods, pickles of what jax.jit returns, threads; and they are watched."""
    code = (
        START
        + """
import functools, inspect, pickle
from fleetscope.native import _recorder
f = jax.jit(lambda x, *, scale=1: x * scale)
assert _recorder.watch_calls(f) is True       # jax.jit's functions are watched as they are made
assert _recorder.watch_calls(print) is False
assert float(f(2.0, scale=3)) == 6
try:
    f()
except TypeError as error:
    assert "missing" in str(error)
else:
    raise AssertionError
@jax.jit
def broken(x):
    raise KeyError("mine")
for _ in range(2):
    try:
        broken(1)
    except KeyError as error:
        assert error.args == ("mine",)
nested = jax.jit(lambda x: f(x) + f(x, scale=2))
assert float(nested(1.0)) == 3
class Model:
    @functools.partial(jax.jit, static_argnums=0)
    def apply(self, x):
        return x + 1
assert float(Model().apply(1.0)) == 2
assert float(jax.grad(f)(1.0)) == 1
assert float(f.lower(2.0).compile()(2.0)) == 2
results = []
threads = [threading.Thread(target=lambda: results.append([float(f(1.0)) for _ in range(300)])) for _ in range(4)]
[t.start() for t in threads]; [float(f(1.0)) for _ in range(300)]; [t.join() for t in threads]
assert results == [[1.0] * 300] * 4
assert f.__name__ == "<lambda>" and inspect.signature(f).parameters.keys() == {"x", "scale"}
"""
    )
    assert python(code).stderr == ""


def test_what_a_signal_handler_raises_while_we_look_reaches_the_program(
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """Found: a Ctrl-C, or an alarm's TimeoutError, that fell into the look at a stack was lost. Mistakes of the look
    itself reach nobody."""
    code = (
        START
        + """
import signal
from fleetscope.native import _recorder
f = jax.jit(lambda x: x + 1)
float(f(1.0))
def in_another_file(body):
    space = {}
    exec(compile(f"def made(*_):\\n    {body}", "program.py", "exec"), space)
    return space["made"]
def look():
    signal.raise_signal(number)
    for _ in range(1000): pass
for number, handler, kind in (
    (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
    (signal.SIGALRM, in_another_file("raise TimeoutError('mine')"), TimeoutError),
    (signal.SIGTERM, in_another_file("raise SystemExit(3)"), SystemExit),
):
    signal.signal(number, handler)
    time.sleep(0.05)
    _recorder.on_watched_call(look)
    _recorder.want_stack()
    try:
        f(1.0)
    except kind:
        pass
    else:
        raise AssertionError(kind)
    assert float(f(1.0)) == 2 and float(f(2.0)) == 3
def mistaken():
    mistakes.append(1)
    raise KeyError("ours")
mistakes = []
_recorder.on_watched_call(mistaken)
_recorder.want_stack()
assert float(f(1.0)) == 2 and mistakes
def endless():
    return endless()
_recorder.on_watched_call(endless)
_recorder.want_stack()
assert float(f(1.0)) == 2
_recorder.on_watched_call(None)
"""
    )
    assert python(code).stderr == ""


def test_jax_that_was_there_first(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Functions made before the profiler came are found in the collector's list."""
    code = """
    import jax
    f = jax.jit(lambda x: x + 1)
    f(1.0)
    from fleetscope.agents import profiler
    from fleetscope.native import _recorder
    profiler.start(early=True)
    before = _recorder.gap()
    for _ in range(7):
        f(1.0)
    print(before, _recorder.gap()[1])
    """
    assert python(code).stdout.split() == ["None", "7"]


def test_nothing_runs_where_jax_comes_after_a_stop_or_a_fork(
    python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """Found: the import of jax started the thread that looks at stacks in a stopped process, and in a forked child."""
    code = """
    import os, warnings
    from fleetscope.agents import profiler
    from fleetscope.agents.profiler.lifecycle import _process
    warnings.filterwarnings("ignore", message=".*fork.*")
    profiler.start(early=True)
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        profiler.stop()
    import jax
    assert not _process.inputs._running
    if child:
        profiler.start(early=True)
        assert _process.inputs._running
        print("ok", flush=True)
    os._exit(0)
    """
    assert python(code).stdout == "ok\n"


@pytest.fixture
def libraries(tmp_path: Path) -> str:
    """Modules with the names and class structure of torch's, grain's and TensorFlow's loaders, of a few lines each."""
    files = {
        "torch/utils/data/dataloader.py": """
            import time
            class DataLoader:
                def __init__(self, data, fail=False): self.data, self.fail = data, fail
                def __len__(self): return len(self.data)
                def __iter__(self): return _SingleProcessDataLoaderIter(self)
            class _BaseDataLoaderIter:
                def __init__(self, loader): self.loader, self.at = loader, 0
                def __iter__(self): return self
                def __len__(self): return len(self.loader)
                def __next__(self):
                    "theirs"
                    return self._next_data()
                next = __next__
            class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
                def _next_data(self):
                    if self.loader.fail: raise OSError("disk")
                    if self.at == len(self.loader.data): raise StopIteration
                    self.at += 1
                    time.sleep(0.002)
                    return self.loader.data[self.at - 1]
            """,
        "grain/_src/python/dataset/dataset.py": """
            import abc
            from typing import Generic, Iterator, TypeVar
            T = TypeVar("T")
            class DatasetIterator(Iterator[T], abc.ABC):
                def __iter__(self): return self
                @abc.abstractmethod
                def __next__(self): ...
            """,
        "grain/_src/python/dataset/map.py": """
            from grain._src.python.dataset.dataset import DatasetIterator
            class Map(DatasetIterator[int]):
                def __init__(self, parent, f): self.parent, self.f = parent, f
                def __next__(self): return self.f(next(self.parent))
                def get_state(self): return {"at": 1}
            """,
        "tensorflow/python/data/ops/iterator_ops.py": """
            class OwnedIterator:
                def __init__(self, items): self.items = iter(items)
                def __iter__(self): return self
                def __next__(self): return next(self.items)
            """,
    }
    for name, text in files.items():
        path = tmp_path / "libraries" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return str(tmp_path / "libraries")


def test_loaders_that_are_known(
    python: Callable[..., subprocess.CompletedProcess[str]],
    only_segment: Callable[[], tuple[list[str], Drained]],
    libraries: str,
) -> None:
    code = """
    import os, pickle, sys, threading
    sys.path.insert(0, sys.argv[1])
    from fleetscope.agents import profiler
    from fleetscope.native import _recorder
    profiler.start(early=True)
    assert not any(name.startswith(("torch", "grain", "tensorflow")) for name in sys.modules)
    from torch.utils.data.dataloader import DataLoader, _BaseDataLoaderIter
    from grain._src.python.dataset.map import Map
    from grain._src.python.dataset.dataset import DatasetIterator
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    loader = DataLoader([1, 2, 3])
    assert list(loader) == [1, 2, 3]                                  # 4 waits: the last one ends the loop
    iterator = iter(loader)
    assert isinstance(iterator, _BaseDataLoaderIter) and len(iterator) == 3
    assert (next(iterator), next(iterator), next(iterator), next(iterator, "end")) == (1, 2, 3, "end")
    assert _BaseDataLoaderIter.__next__.__doc__ == "theirs" and _BaseDataLoaderIter.__next__.__name__ == "__next__"
    again = pickle.loads(pickle.dumps(iter(loader)))
    assert next(again) == 1
    try:
        next(iter(DataLoader([1], fail=True)))
    except OSError as error:
        assert error.args == ("disk",)

    nested = Map(Map(iter(DataLoader([1, 2])), lambda x: x + 1), lambda x: x * 10)
    assert list(nested) == [20, 30] and nested.get_state() == {"at": 1}    # 3 waits, of the outermost alone
    class Mine(DatasetIterator[int]):
        def __next__(self): return 7
    assert next(Mine()) == 7 and not hasattr(Mine.__next__, "__wrapped__")  # may be pickled by value: left alone
    try:
        DatasetIterator()
    except TypeError as error:
        assert "abstract" in str(error)
    assert list(OwnedIterator([4, 5])) == [4, 5]
    _recorder.record(False)
    assert list(loader) == [1, 2, 3]
    os._exit(0)
    """
    python(code, libraries)
    names, got = only_segment()
    assert all(kind == DATA_WAIT for kind in got.kind)
    assert Counter(names) == {"data_wait (torch)": 4 + 4 + 1 + 1, "data_wait (grain)": 3, "data_wait (tf.data)": 3}


def test_a_loader_on_another_thread_is_not_what_the_program_waits_for(
    python: Callable[..., subprocess.CompletedProcess[str]],
    only_segment: Callable[[], tuple[list[str], Drained]],
    libraries: str,
) -> None:
    code = (
        START
        + """
import os
sys.path.insert(0, sys.argv[1])
from torch.utils.data.dataloader import DataLoader
step = function("step")
thread = threading.Thread(target=lambda: list(DataLoader(list(range(20)))))
thread.start(); thread.join()
next(iter(DataLoader([1])))
os._exit(0)
"""
    )
    python(code, libraries)
    assert [name for name in only_segment()[0] if name.startswith("data_wait")] == ["data_wait (torch)"]
