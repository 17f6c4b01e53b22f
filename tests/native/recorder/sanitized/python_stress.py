"""The module under a sanitizer: Python threads, sites, steps, flips, segments that come and go, forks, a reader.

python_stress.py MODULE.so SECONDS FOLDER: the sanitizer's library is preloaded, nothing of fleetscope is installed.
"""

import importlib.util
import os
import sys
import threading
import time
from types import ModuleType
from typing import Any


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_recorder", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generator(recorder: Any, site: Any) -> Any:
    with site:
        yield
        with recorder.annotate("inner", batch=3):
            yield


def record(recorder: Any, number: int, ending: threading.Event) -> None:
    site, sampled = recorder.site(f"site {number}"), recorder.site("sampled", sample=2)
    verbose = recorder.site("verbose", level=3, category="io")
    passes = 0
    while not ending.is_set():
        passes += 1
        with recorder.step(passes), site, sampled, verbose:
            recorder.counter("passes", passes)
            recorder.instant(site)
        regions = [generator(recorder, site) for _ in range(4)]
        for turn in range(3):
            for region in regions[turn:]:
                next(region, None)
        begun = recorder.begin(site)
        thread = threading.Thread(target=recorder.end, args=(begun,))
        thread.start()
        with recorder.annotate(f"name {passes % 9000}", text="x" * (passes % 40)):
            pass
        thread.join()


def read(recorder: Any, ending: threading.Event) -> None:
    while not ending.is_set():
        descriptor = recorder.descriptor()
        if descriptor < 0:
            continue
        try:
            reader = recorder.Reader("the segment", descriptor)
        except ValueError:
            continue  # closed since
        for _ in range(20):
            reader.drain(1 << 16, (1 << 63) - 1)
            reader.open_now()
            reader.names(0)
            reader.state()
            reader.commit()


def control(recorder: Any, folder: str, ending: threading.Event) -> None:
    turn = 0
    while not ending.is_set():
        turn += 1
        recorder.record(turn % 3 != 0)
        recorder.set_level(1 + turn % 3, ("io",) if turn % 2 else ())
        if turn % 20 == 0 and turn < 800:
            recorder.renew(folder if turn % 40 else None, True)
        recorder.wait(None, 0.002)
        recorder.steps()


def forks(recorder: Any, ending: threading.Event) -> None:
    while not ending.is_set():
        child = os.fork()
        if child == 0:
            with recorder.site("site 0"):
                os._exit(1 if recorder.recording() else 0)
        assert os.waitpid(child, 0)[1] == 0, "a child records nothing"
        time.sleep(0.05)


def main() -> None:
    recorder, seconds, folder = load(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    recorder.on_first_use(None)
    recorder.open(folder)
    recorder.record(True)
    ending = threading.Event()
    work: list[tuple[Any, tuple[Any, ...]]] = [(record, (recorder, number, ending)) for number in range(3)]
    work += [(read, (recorder, ending)), (control, (recorder, folder, ending))]
    if "asan" not in os.environ["LD_PRELOAD"]:  # as stress.cpp says
        work += [(forks, (recorder, ending))]
    failed: list[BaseException] = []

    def run(function: Any, arguments: tuple[Any, ...]) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            failed.append(error)
            ending.set()

    threads = [threading.Thread(target=run, args=entry) for entry in work]
    for thread in threads:
        thread.start()
    ending.wait(seconds)
    ending.set()
    for thread in threads:
        thread.join()
    recorder.close(True)
    if failed:
        raise failed[0]
    sys.stdout.write("python: whole\n")


if __name__ == "__main__":
    main()
