"""Harvest of compiled programs: HloModuleProto bytes, once each, where jax compiles them.

Inside jax's own compile listener: the executable is already among live_executables(), newest first, and the thread that
waits for the compiler pays (~20 ms of GIL a MB), not a training step later.
"""

import sys
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from fleetscope.agents.profiler import pjrt
from fleetscope.agents.profiler.protocol import Program
from fleetscope.native import _recorder

MAX_WAITING_BYTES = 64 << 20
_COMPILE = 10
_HOST = 8
_EVENTS = {
    "/jax/core/compile/backend_compile_duration": ("compile", _COMPILE),
    "/jax/core/compile/jaxpr_to_mlir_module_duration": ("lower", _HOST),
    "/jax/core/compile/jaxpr_trace_duration": ("trace", _HOST),
}
"""jax's own duration events. Only the compiler's time is COMPILE: traces nest in each other and would count twice."""


def module_id(proto: bytes) -> int:
    """HloModuleProto.id (field 5, varint): the program_id of profiler events; -1 when the bytes are none."""
    at, end = 0, len(proto)

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = proto[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    try:
        while at < end:
            tag = varint()
            wire = tag & 7
            if wire == 0:
                value = varint()
                if tag >> 3 == 5:
                    return value - (1 << 64) if value >= 1 << 63 else value
            elif wire == 2:
                skip = varint()
                at += skip
            elif wire in (1, 5):
                at += 8 if wire == 1 else 4
            else:
                return -1
    except IndexError:
        return -1
    return 0  # proto3 leaves out a zero, and the first module of a process has id 0


def clients() -> list[Any]:
    """The backends jax has made so far whose programs the PJRT shim does not hand over itself, without the GIL.

    Never makes one: that would take the user's devices.
    """
    bridge = sys.modules.get("jax._src.xla_bridge")
    backends = dict(getattr(bridge, "_backends", None) or {})
    return [client for name, client in backends.items() if name not in pjrt.wrapped]


class Harvest:
    """Programs waiting to be sent. `wanted` False: nobody will read them, so compiling costs nothing extra."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._waiting: deque[tuple[Program, bytes]] = deque()
        self._waiting_bytes = 0
        self._ids: set[int] = set()
        self.wanted = False
        self.count = 0
        self.ns = 0
        self.left_out = 0
        self.last_compile_ns = 0
        """MONOTONIC time of the newest compile, 0 none."""
        self.on_program: Callable[[], None] = lambda: None

    def listen(self, monitoring: ModuleType) -> None:
        """Subscribes to jax._src.monitoring."""
        monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, event: str, duration: float, **about: Any) -> None:
        try:
            known = _EVENTS.get(event)
            if known is None:
                return
            verb, kind = known
            if kind == _COMPILE:
                self.last_compile_ns = time.monotonic_ns()
                _recorder.compiled()
            name = about.get("fun_name")
            _recorder.span(f"{verb} {name}" if name else verb, kind, duration)
            if kind == _COMPILE and self.wanted:
                for client in clients():
                    for executable in client.live_executables()[:1]:
                        self._take(executable, client.platform)
        except Exception:
            self.left_out += 1

    def _take(self, executable: Any, platform: str) -> None:
        begin = time.perf_counter_ns()
        for module in executable.hlo_modules():
            proto = module.as_serialized_hlo_module_proto()
            took = time.perf_counter_ns() - begin
            program_id = module_id(proto)
            with self._lock:
                self.count += 1
                self.ns += took
                if program_id in self._ids:
                    continue
                if self._waiting_bytes + len(proto) > MAX_WAITING_BYTES:
                    self.left_out += 1
                    continue
                self._ids.add(program_id)
                self._waiting_bytes += len(proto)
                program = Program(program_id, module.name, platform, time.time_ns(), took)
                self._waiting.append((program, proto))
            begin = time.perf_counter_ns()
        self.on_program()

    def take_live(self) -> Iterator[None]:
        """What was compiled before anybody wanted it; one program a step, so that the caller can pause between."""
        for client in clients():
            for executable in client.live_executables():
                try:
                    self._take(executable, client.platform)
                except Exception:
                    self.left_out += 1
                yield

    def after_fork_in_child(self) -> None:
        self._lock = allocate_lock()
        self._waiting.clear()
        self._waiting_bytes = 0
        self.wanted = False
        self.on_program = lambda: None

    def next(self) -> tuple[Program, bytes] | None:
        """The oldest program not yet sent; it stays until sent() says so."""
        with self._lock:
            return self._waiting[0] if self._waiting else None

    def sent(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting_bytes -= len(self._waiting.popleft()[1])

    def forget_sent(self) -> None:
        """A new agent knows nothing of what the one before was told: everything still live is taken again."""
        with self._lock:
            self._ids = {program.program_id for program, _ in self._waiting}
