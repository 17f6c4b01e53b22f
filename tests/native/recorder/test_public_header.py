"""fleetscope/recorder.h as others use it: the example, built by its CMake package, in processes with and without us."""

import ctypes
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from fleetscope.native import _recorder as recorder
from fleetscope.native import cmake_dir, include_dir
from fleetscope.native.recorder import COUNTER_FLOAT, COUNTER_INT, HOST, Segment

pytestmark = pytest.mark.unit

CXX = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "c++"
CC = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "cc"


@pytest.fixture(scope="module")
def example(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("example")
    source = repository / "examples" / "recorder"
    for words in (["-S", source, "-B", build, f"-Dfleetscope_DIR={cmake_dir()}"], ["--build", build]):
        done = subprocess.run(["cmake", *map(str, words)], capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "libexample.so"


def test_the_example_records_what_it_did(example: Path, segment: Segment) -> None:
    library = ctypes.CDLL(str(example))
    library.wait_begins()
    assert [segment.names()[region.name] for region in segment.open_now()] == ["data_wait (queue)"]
    with recorder.site("python"):
        assert library.load_shard(6, 3) == 6 + 7 + 8
    library.wait_ends(6)
    assert library.consume(5) == 6
    library.load_shard(7, 0)
    got, names = segment.drain(), segment.names()
    found = [(names[n], k, f) for n, k, f in zip(got.name, got.kind.tolist(), got.flow.tolist(), strict=True)]
    assert found == [
        ("loader/rows", COUNTER_INT, 0), ("loader/fill", COUNTER_FLOAT, 0), ("decode", HOST, 0),
        ("load shard", HOST, 7), ("python", HOST, 0), ("data_wait (queue)", HOST, 7),
        ("consumer/value", COUNTER_INT, 0), ("consumer/half", COUNTER_FLOAT, 0), ("consume", HOST, 0),
        ("loader/rows", COUNTER_INT, 0), ("loader/fill", COUNTER_FLOAT, 0), ("empty shard", HOST, 0),
        ("decode", HOST, 0), ("load shard", HOST, 8),
    ]  # fmt: skip
    assert got.arg[0] == 3
    assert got.value_float[1] == 3 / 1024
    assert (got.arg[6], got.value_float[7]) == (5, 2.5)
    decode, load, python, wait = 2, 3, 4, 5
    assert got.start[wait] <= got.start[python] <= got.start[load] <= got.start[decode]
    assert got.start[load] + got.dur[load] <= got.start[python] + got.dur[python]
    assert segment.open_now() == []


def test_threads_of_a_pool_record_and_those_without_a_ring_do_too(example: Path, segment: Segment) -> None:
    library = ctypes.CDLL(str(example))
    together = threading.Barrier(60)

    def work(number: int) -> None:
        together.wait()
        library.load_shard(number, 1)
        together.wait()

    pool = [threading.Thread(target=work, args=(number,)) for number in range(60)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    got, names = segment.drain(), segment.names()
    flows = [flow for n, flow in zip(got.name, got.flow.tolist(), strict=True) if names[n] == "load shard"]
    assert sorted(flows) == list(range(1, 61))
    assert (got.lost, segment.state().no_ring) == (0, 0)


def test_off_is_off_and_on_again_is_on(example: Path, segment: Segment) -> None:
    library = ctypes.CDLL(str(example))
    library.wait_begins()
    recorder.record(False)
    assert segment.open_now() == []
    library.consume(1)
    recorder.record(True)
    library.wait_ends(0)  # given up: it was open while recording was off
    library.consume(1)
    recorder.set_level(0, ())
    library.consume(1)
    recorder.set_level(1, ())
    got, names = segment.drain(), segment.names()
    assert [names[n] for n in got.name] == ["consumer/value", "consumer/half", "consume"]
    assert segment.open_now() == []
    child = os.fork()
    if child == 0:
        os._exit(library.consume(41))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert len(segment.drain()) == 0


def test_a_library_loaded_before_the_recorder_finds_it_later(example: Path, tmp_path: Path) -> None:
    code = """
        import ctypes, sys
        library = ctypes.CDLL(sys.argv[1])
        library.load_shard(1, 1)
        assert "fleetscope.native._recorder" not in sys.modules
        from fleetscope.native import _recorder as r
        from fleetscope.native.recorder import Segment
        r.on_first_use(None); path = r.open(sys.argv[2]); r.record(True)
        for number in range(200):
            library.load_shard(number, 1)
        got, names = Segment(path).drain(), Segment(path).names()
        kept = [names[n] for n in got.name].count("load shard")
        assert 64 <= kept <= 200, kept
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(example), str(tmp_path)], timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize("words", [[CXX, "-std=c++17"], [CC, "-std=c11"]], ids=["c++17", "c11"])
def test_a_program_without_python_does_nothing(tmp_path: Path, words: list[str]) -> None:
    source = tmp_path / ("p.cpp" if "++" in words[1] else "p.c")
    source.write_text(
        "#include <fleetscope/recorder.h>\n"
        'int main(void) { for (int i = 0; i < 100000; ++i) { FLEETSCOPE_SCOPE("x"); FLEETSCOPE_INSTANT("y");\n'
        '  FLEETSCOPE_COUNTER("n", i); } return fleetscope_connect(); }\n'
    )
    out = tmp_path / "program"
    strict = ["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", include_dir()]
    built = subprocess.run([*words, *strict, str(source), "-o", str(out), "-ldl"], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert subprocess.run([str(out)], timeout=60).returncode == 0
