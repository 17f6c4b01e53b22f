"""The toy plugin (toy.h) and its caller, for programs of the tests and the benchmark; without jax."""

import ctypes as c
import glob
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fleetscope.native import _recorder
from fleetscope.native.recorder import Drained, Segment

INLINE, THREAD, NEVER, HELD, TWICE, DEVICE_FAILS, EXECUTE_FAILS, ON_READY_FAILS, ON_READY_LIES = range(9)
EXECUTE_ARGS = 80
_COLUMNS = ("start", "dur", "arg", "seq", "name", "line", "kind", "flags")


def build(folder: Path, repository: Path) -> Path:
    """Compiles the plugin into `folder`; its path."""
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler, "building fleetscope needs a C++ compiler, so there is one"
    library, native = folder / "toy.so", repository / "native"
    sources = (repository / "tests" / "native" / "pjrt_shim").glob("toy_*.cpp")
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", f"-I{native / 'pjrt_shim'}"]
    subprocess.run([compiler, *flags, *sources, "-o", library], check=True, timeout=120)
    return library


def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


class Toy:
    """A library of the toy plugin, with the table the caller uses: the shim's, or the plugin's own."""

    def __init__(self, library: str, options: str = "") -> None:
        os.environ["TOY_PLUGIN"] = options
        self.path = library
        self.lib = c.CDLL(library)
        self.lib.GetPjrtApi.restype = c.c_void_p
        for name in ("toy_client", "toy_compile", "toy_device"):
            getattr(self.lib, name).restype = c.c_void_p
        for name in ("toy_id", "toy_read_log"):
            getattr(self.lib, name).restype = c.c_uint64
        for name in ("toy_live", "toy_execute", "toy_execute_threads", "toy_transfer", "toy_waiting", "toy_release"):
            getattr(self.lib, name).restype = c.c_int64
        self.table = c.c_void_p(None)

    def wrap(self, name: str = "toy") -> str:
        """Uses the shim's table from now on; why not, or ""."""
        from fleetscope.native import _pjrt_shim

        capsule = _pjrt_shim.wrap(name, self.path)
        if isinstance(capsule, str):
            return capsule
        self.table = c.c_void_p(pointer(capsule))
        return ""

    def unwrapped(self) -> "Toy":
        self.table = c.c_void_p(self.lib.GetPjrtApi())
        return self

    def set(self, **options: int) -> None:
        for name, value in options.items():
            self.lib.toy_set(name.encode(), c.c_int64(value))

    def client(self) -> c.c_void_p:
        return c.c_void_p(self.lib.toy_client(self.table))

    def compile(self, client: c.c_void_p, name: str, cached: bool = False) -> c.c_void_p:
        return c.c_void_p(self.lib.toy_compile(self.table, client, name.encode(), c.c_int64(cached)))

    def unload(self, executable: c.c_void_p) -> None:
        self.lib.toy_unload(self.table, executable)

    def execute(
        self,
        executable: c.c_void_p,
        count: int = 1,
        devices: int = 4,
        want: bool = True,
        one: int | None = None,
        size: int = EXECUTE_ARGS,
        cost: "np.ndarray | None" = None,
    ) -> int:
        """Calls Execute; how many calls failed."""
        into = cost.ctypes.data_as(c.c_void_p) if cost is not None else None
        return int(
            self.lib.toy_execute(
                self.table, executable, c.c_int64(count), c.c_int64(devices), c.c_int64(want), c.c_void_p(one),
                c.c_int64(size), into,
            )
        )  # fmt: skip

    def execute_threads(self, executables: list[c.c_void_p], count: int, devices: int = 1, want: bool = True) -> int:
        array = (c.c_void_p * len(executables))(*[e.value for e in executables])
        n = c.c_int64
        return int(self.lib.toy_execute_threads(self.table, array, n(len(executables)), n(count), n(devices), n(want)))

    def settle(self) -> None:
        until(lambda: self.lib.toy_waiting() == 0)

    def log(self) -> np.ndarray:
        """Columns executable, number, device, enqueued, before and after its callbacks (0: not completed), began."""
        total = int(self.lib.toy_read_log(c.c_uint64(0), c.c_uint64(0), None))
        rows = np.zeros((total, 7), np.uint64)
        self.lib.toy_read_log(c.c_uint64(0), c.c_uint64(total), rows.ctypes.data_as(c.c_void_p))
        return rows.astype(np.int64)

    def live(self, what: str) -> int:
        return int(self.lib.toy_live(what.encode()))


def pointer(capsule: object) -> int:
    get = c.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = c.c_void_p, (c.py_object, c.c_char_p)
    return int(get(capsule, b"pjrt_c_api"))


class Records:
    """All that was drained of this process's segment."""

    def __init__(self, folder: str) -> None:
        _recorder.on_first_use(None)
        self.path = _recorder.open(folder)
        _recorder.record(True)
        self.segment = Segment(self.path)
        self.lost = 0
        self._parts: list[Drained] = []

    @property
    def clock_is_tsc(self) -> bool:
        return self.segment.info.clock == "tsc"

    def read_on(self) -> None:
        more = True
        while more:
            got = self.segment.drain(1 << 20)
            if len(got):
                self._parts.append(got)
            self.lost += got.lost
            more = got.more

    def read(self) -> dict[str, np.ndarray]:
        self.read_on()
        if not self._parts:
            self._parts.append(self.segment.drain(0))
        return {name: np.concatenate([getattr(part, name) for part in self._parts]) for name in _COLUMNS}

    def of(self, kind: int) -> list[dict[str, Any]]:
        columns, names = self.read(), self.segment.names()
        return [
            {name: int(column[i]) for name, column in columns.items()} | {"name": names[columns["name"][i]]}
            for i in np.flatnonzero(columns["kind"] == kind)
        ]

    def counter(self, name: str) -> int | None:
        """Newest value."""
        values = [row["arg"] for row in self.of(32) if row["name"] == name]
        return values[-1] if values else None

    def programs(self) -> list[str]:
        return sorted(os.path.basename(name) for name in glob.glob(self.path + ".hlo/*.pb"))
