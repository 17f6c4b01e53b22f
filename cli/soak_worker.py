"""The training process of a soak: a program that keeps its devices busy, and device windows one after the other.

Windows are opened and closed by the profiler's own arbiter, as in production; only their pace is not. Speaks JSON lines
on stdout. A crash of this process is what the soak is there to see: the parent counts it and starts another.
"""

import importlib
import json
import os
import resource
import sys
import tempfile
import threading
import time
from typing import Any

REPORT_EVERY = 50
KEPT_PROGRAMS = 20


def rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def device_bytes(devices: list[Any]) -> int:
    """Memory in use on all devices; 0 where the platform does not tell."""
    stats = [device.memory_stats() or {} for device in devices]
    return sum(int(each.get("bytes_in_use", 0)) for each in stats)


class Training:
    """Steps on every device in a thread: products, a reduction over devices, copies; now and then a new program, and
    the oldest dropped."""

    def __init__(self, jax: Any, size: int) -> None:
        self._jax = jax
        self._size = size
        self.steps = 0
        self.error = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        try:
            self._train()
        except Exception as error:
            self.error = repr(error)

    def _train(self) -> None:
        jax = self._jax
        jnp, devices = jax.numpy, jax.local_devices()
        step = jax.pmap(lambda x: jax.lax.pmean(jnp.tanh(x @ x), "d"), axis_name="d", devices=devices)
        state = step(jnp.ones((len(devices), self._size, self._size)))
        kept: list[Any] = []
        while not self._stop.is_set():
            for _ in range(20):
                state = step(state)
            state.block_until_ready()
            jax.device_put(jax.device_get(state[0, 0]), devices[0]).block_until_ready()
            self.steps += 20
            if self.steps % 2000 == 0:
                number = self.steps
                kept.append(jax.jit(lambda x, number=number: x * number))
                kept[-1](jnp.ones(8)).block_until_ready()
                del kept[:-KEPT_PROGRAMS]


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main(argv: list[str]) -> int:
    count, length_s, pause_s, size = int(argv[0]), float(argv[1]), float(argv[2]), int(argv[3])
    from fleetscope.native import _recorder

    # As in production: the shim around whatever plugin is loaded, and recording.
    with tempfile.TemporaryDirectory(prefix="fleetscope-soak-") as folder:
        _recorder.on_first_use(None)
        _recorder.open(folder)
        _recorder.record(True)
        return soak(count, length_s, pause_s, size)


def soak(count: int, length_s: float, pause_s: float, size: int) -> int:
    from fleetscope.agents.profiler import identity, pjrt
    from fleetscope.agents.profiler.arbiter import Arbiter, Taken

    jax = importlib.import_module("jax")
    arbiter = Arbiter()
    arbiter.install(importlib.import_module("jaxlib._profiler"))
    pjrt.install(importlib.import_module("jaxlib.xla_client"))
    devices = jax.local_devices()
    training = Training(jax, size)
    training.start()
    say(
        platform=identity.platform(),
        chip=identity.chip(),
        driver=identity.driver(),
        jaxlib=str(getattr(importlib.import_module("jaxlib"), "__version__", "")),
        jax=jax.__version__,
        devices=len(devices),
        shim=sorted(pjrt.wrapped),
        pid=os.getpid(),
    )
    while training.steps < 40 and not training.error:
        time.sleep(0.01)
    starts: list[int] = []
    stops: list[int] = []
    sizes: list[int] = []
    failed: dict[str, int] = {}
    for number in range(1, count + 1):
        steps = training.steps
        start_ns = arbiter.open()
        if start_ns < 0:
            failed["start_failed"] = failed.get("start_failed", 0) + 1
        else:
            time.sleep(length_s)
            taken = arbiter.close()
            if isinstance(taken, Taken):
                starts.append(start_ns)
                stops.append(taken.stop_ns)
                sizes.append(len(taken.data))
                # A window in which steps ended and nothing was recorded is a failure like another.
                if training.steps - steps >= 20 and len(taken.data) < 2048:
                    failed["empty"] = failed.get("empty", 0) + 1
            else:
                failed[taken] = failed.get(taken, 0) + 1
        if training.error:
            failed["program"] = failed.get("program", 0) + 1
        if number % REPORT_EVERY == 0 or number == count or training.error:
            say(
                windows=len(stops), starts=starts, stops=stops, bytes=sum(sizes), failed=failed, error=training.error,
                rss=rss_bytes(), device=device_bytes(devices), steps=training.steps,
            )  # fmt: skip
            starts, stops, sizes, failed = [], [], [], {}
        if training.error:
            return 1
        time.sleep(pause_s)
    training.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
