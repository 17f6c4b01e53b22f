"""Serves one /metrics page to whoever asks, with a bound on how many ask at once and for how long.

prometheus_client's own server makes a thread a connection and waits for each for ever: some thousand that say nothing
take its memory and descriptors, and out of descriptors it spins.
"""

import contextlib
import logging
import socket
import threading
import time
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

log = logging.getLogger(__name__)

CONNECTIONS = 32
"""At once. A scrape takes milliseconds; Prometheus makes one connection a scrape of ours."""
PATIENCE_S = 10.0
"""From accept to the end of the answer: Prometheus' own default for a scrape."""
SETTLED_S = 0.5
"""When all are taken, one that has been there so long is closed for a new one."""


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE_S

    def log_message(self, *_: Any) -> None:
        """Scrapes are no news."""


class _Server(WSGIServer):
    request_queue_size = 128
    daemon_threads = True

    def __init__(self, *args: Any, **more: Any) -> None:
        self.lock = threading.Lock()
        self.since_s: dict[socket.socket, float] = {}
        self.refused = 0
        super().__init__(*args, **more)

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:
            # Out of descriptors the listener stays readable: without a pause this would be a busy loop.
            time.sleep(0.05)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._admit(request):
            self.refused += 1
            self.shutdown_request(request)
            return
        threading.Thread(target=self._serve, args=(request, client_address), daemon=True).start()

    def _admit(self, request: socket.socket) -> bool:
        now_s = time.monotonic()
        with self.lock:
            if len(self.since_s) >= CONNECTIONS:
                oldest = min(self.since_s, key=self.since_s.__getitem__)
                if now_s - self.since_s[oldest] < SETTLED_S:
                    return False
                self._end(oldest)
            self.since_s[request] = now_s
        return True

    def _end(self, connection: socket.socket) -> None:
        """Its thread wakes from whatever it waits for; the place is free at once."""
        self.since_s.pop(connection, None)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception as error:  # a peer that goes away, or too slow, is no event
            log.debug("scrape by %s: %s", client_address, error)
        finally:
            with self.lock:
                self.since_s.pop(request, None)
            self.shutdown_request(request)

    def service_actions(self) -> None:
        """Called twice a second: whoever sends a byte now and then has had his time too."""
        limit_s = time.monotonic() - PATIENCE_S
        with self.lock:
            for connection in [one for one, since_s in self.since_s.items() if since_s < limit_s]:
                self._end(connection)


class ScrapeServer:
    """Serves the WSGI application `page` at host:port until `stop`; port 0 takes a free one. Raises OSError,
    OverflowError."""

    def __init__(self, host: str, port: int, page: Any) -> None:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        kind = type("_Server6", (_Server,), {"address_family": family})
        self._server: Any = make_server(host, port, page, kind, _Handler)
        self.port = int(self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="fleetscope-metrics", daemon=True)
        self._thread.start()

    @property
    def refused(self) -> int:
        """Connections closed at once because all places were taken."""
        return int(self._server.refused)

    def stop(self) -> None:
        """Close the port; requests in progress are given 5 s."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
