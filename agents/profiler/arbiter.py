"""One profiler session may run in a process, and the user's comes first: ours is stopped before theirs starts.

XLA allows a single session; a second one does not fail when it starts but when it is stopped. So the classes users
reach are replaced where jax looks them up, in the module jaxlib._profiler: a subclass of ProfilerSession that asks here
first (an `__init__` set on the nanobind class itself is never called), and start_server, which gets a relay in front.
"""

import os
import time
from _thread import RLock
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple


class Taken(NamedTuple):
    """A finished window: what stop() returned and how long it took."""

    data: bytes
    stop_ns: int


class ProfilerServer:
    """Holds jaxlib's server and tells when it is dropped: the object itself cannot be referenced weakly."""

    __slots__ = ("_arbiter", "_relay", "server")

    def __init__(self, arbiter: "Arbiter", server: Any, relay: Any) -> None:
        self._arbiter = arbiter
        self._relay = relay
        self.server = server

    @property
    def relayed(self) -> bool:
        """A capture of its clients stops our window first; without that there are no windows while it lives."""
        return self._relay is not None

    def __del__(self) -> None:
        self._arbiter.server_ends(self._relay)


class Arbiter:
    """Our session, the users' sessions and servers of this process. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._real: Any = None
        self._options: Any = None
        self._ours: Any = None
        self._users: set[int] = set()
        self._calls: set[int] = set()
        self._servers = 0
        self._relays: list[Any] = []
        self._lost = ""
        self.delay_max_ns = 0
        """Longest a user's start waited for our stop."""
        self.stop_max_ns = 0
        """Longest stop of a session of ours, kept or given up."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called, in the user's thread, after a window of ours was given up."""

    def install(self, module: ModuleType) -> None:
        """Puts the proxies into jaxlib._profiler."""
        real, arbiter = module.ProfilerSession, self
        if self._real is not None:
            return
        self._real = real
        options = module.ProfileOptions()
        options.python_tracer_level = 0
        options.host_tracer_level = 1
        # Serialises every live executable at each stop: 233-332 ms for 8.7 MB (measured).
        options.enable_hlo_proto = False
        self._options = options

        class ProfilerSession(real):  # type: ignore[misc,valid-type]
            """jaxlib's ProfilerSession; a device window of fleetscope's gives way to it."""

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                arbiter.user_begins(id(self))
                try:
                    super().__init__(*args, **kwargs)
                except BaseException:
                    arbiter.user_ends(id(self))
                    raise

            def stop(self, *args: Any, **kwargs: Any) -> Any:
                try:
                    return super().stop(*args, **kwargs)
                finally:
                    arbiter.user_ends(id(self))

            def stop_and_export(self, *args: Any, **kwargs: Any) -> Any:
                try:
                    return super().stop_and_export(*args, **kwargs)
                finally:
                    arbiter.user_ends(id(self))

            def stop_and_get_profile_data(self, *args: Any, **kwargs: Any) -> Any:
                try:
                    return super().stop_and_get_profile_data(*args, **kwargs)
                finally:
                    arbiter.user_ends(id(self))

            def __del__(self) -> None:
                arbiter.user_ends(id(self))

        ProfilerSession.__module__, ProfilerSession.__qualname__ = real.__module__, real.__qualname__
        start_server = module.start_server

        def start(*args: Any, **kwargs: Any) -> ProfilerServer:
            return arbiter.serve(start_server, *args, **kwargs)

        module.ProfilerSession = ProfilerSession  # type: ignore[attr-defined]
        module.start_server = start  # type: ignore[attr-defined]

    @property
    def installed(self) -> bool:
        return self._real is not None

    def occupied(self) -> str:
        """Why no window may open now: "user_session", "capture" (through a server), "server", or ""."""
        if self._users:
            return "capture" if self._users <= self._calls else "user_session"
        return "server" if self._servers else ""

    @property
    def lost(self) -> bool:
        """The session last opened is ours no more."""
        return self._ours is None

    def open(self) -> int:
        """Starts a session; ns it took, or -1 when a user's is there (or it failed)."""
        with self._lock:
            if self._real is None or self._ours is not None or self.occupied():
                return -1
            self._lost = ""
            begin = time.perf_counter_ns()
            try:
                self._ours = self._real(self._options)
            except Exception:
                return -1
            return time.perf_counter_ns() - begin

    def close(self) -> Taken | str:
        """Ends our session: its bytes, or why there are none ("user_session", "stop_failed", "fork")."""
        with self._lock:
            session, self._ours = self._ours, None
            if session is None:
                return self._lost or "stop_failed"
            begin = time.perf_counter_ns()
            try:
                data = session.stop()
            except Exception:
                return "stop_failed"
            taken = Taken(bytes(data), time.perf_counter_ns() - begin)
            self.stop_max_ns = max(self.stop_max_ns, taken.stop_ns)
            return taken

    def abandon(self, reason: str) -> int:
        """Stops our session, if one is open, and drops what it has; ns it took."""
        begin = time.perf_counter_ns()
        with self._lock:
            session, self._ours = self._ours, None
            if session is None:
                return 0
            self._lost = reason
            stopping = time.perf_counter_ns()
            try:
                session.stop()
            except Exception:
                self._lost = "stop_failed"
            self.stop_max_ns = max(self.stop_max_ns, time.perf_counter_ns() - stopping)
        self.on_lost()
        return time.perf_counter_ns() - begin

    def user_begins(self, key: int) -> None:
        begin = time.perf_counter_ns()
        with self._lock:
            self._users.add(key)
            held = self._ours is not None
            self.abandon("user_session")
        if held:
            self.delay_max_ns = max(self.delay_max_ns, time.perf_counter_ns() - begin)

    def user_ends(self, key: int) -> None:
        self._users.discard(key)

    def serve(self, start_server: Callable[..., Any], *args: Any, **kwargs: Any) -> ProfilerServer:
        """jaxlib's start_server(port): behind a relay, or, where none can be made, with no windows while it lives."""
        port = kwargs.get("port", args[0] if args else None)
        if type(port) is int:
            from fleetscope.agents.profiler.relay import open_relay

            opened = open_relay(port, start_server, self.call_begins, self.call_ends)
            if opened is not None:
                server, relay = opened
                self._relays.append(relay)
                return ProfilerServer(self, server, relay)
        with self._lock:
            self._servers += 1
            self.abandon("user_session")
        try:
            return ProfilerServer(self, start_server(*args, **kwargs), None)
        except BaseException:
            self._servers -= 1
            raise

    def server_ends(self, relay: Any) -> None:
        if relay is None:
            self._servers -= 1
            return
        relay.close()
        if relay in self._relays:
            self._relays.remove(relay)

    def call_begins(self, key: int) -> None:
        """A client calls the profiler server; it may begin a session there at once when this returns."""
        with self._lock:
            self._calls.add(key)
        self.user_begins(key)

    def call_ends(self, key: int) -> None:
        self.user_ends(key)
        self._calls.discard(key)

    def before_fork(self) -> None:
        """No fork while a session starts or stops: the child would inherit it half done."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Stops the inherited session: left alone it records for ever, 16.6 MB per 200 000 spans (0.4 ms, measured)."""
        session, self._ours = self._ours, None
        self._lock = RLock()
        self._users.clear()
        self._calls.clear()
        relays, self._relays = self._relays, []
        for relay in relays:
            relay.after_fork_in_child()
        self._lost = "fork"
        self.on_lost = lambda: None
        if session is not None:
            try:
                session.stop()
            except Exception:
                self._lost = "stop_failed"


def register_fork(arbiter: Arbiter, after_in_child: Callable[[], None]) -> None:
    """Once a process. `after_in_child` runs after the arbiter's own cleaning."""

    def child() -> None:
        arbiter.after_fork_in_child()
        after_in_child()

    os.register_at_fork(before=arbiter.before_fork, after_in_parent=arbiter.after_fork_in_parent, after_in_child=child)
