"""/metrics under connections that say nothing, say it slowly, or come in thousands."""

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app

from fleetscope.transport import scrape
from fleetscope.transport.scrape import ScrapeServer

pytestmark = pytest.mark.fault


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScrapeServer]:
    monkeypatch.setattr(scrape, "SETTLED_S", 0.1)
    registry = CollectorRegistry()
    Gauge("answer", "of everything", registry=registry).set(42)
    made = ScrapeServer("127.0.0.1", 0, make_wsgi_app(registry))
    yield made
    made.stop()


def _page(server: ScrapeServer) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as answer:
        return bytes(answer.read())


def _connect(server: ScrapeServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def test_a_thousand_silent_connections_take_a_bounded_number_of_threads(server: ScrapeServer) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as held:
        for _ in range(1000):
            held.enter_context(_connect(server))
        assert threading.active_count() - before <= scrape.CONNECTIONS + 1
        assert server.refused > 0
        time.sleep(0.2)
        assert b"answer 42.0" in _page(server), "a scraper is let in before those that say nothing"
    assert b"answer 42.0" in _page(server)


def test_a_request_that_trickles_in_has_an_end(monkeypatch: pytest.MonkeyPatch, server: ScrapeServer) -> None:
    monkeypatch.setattr(scrape, "PATIENCE_S", 1.0)
    with _connect(server) as slow:
        began = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 10:
                slow.sendall(b"G")
                time.sleep(0.1)
        assert time.monotonic() - began < 5
    assert b"answer 42.0" in _page(server)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff" * 4096,
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
        b"GET /metrics HTTP/9.9\r\nHost: " + b"x" * 70_000 + b"\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.0\r\n\r\n",
        b"GET /metrics?name[]=\xff\xfe%00%ff HTTP/1.0\r\nAccept: \xff, application/openmetrics-text\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS where none is spoken
    ],
    ids=["binary", "long path", "many headers", "long header", "a body", "another file", "odd query", "chunks", "tls"],
)
def test_what_is_no_scrape_gets_nothing_but_the_page_and_harms_nobody(
    sent: bytes, server: ScrapeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RT-43: a port takes what anybody sends."""
    monkeypatch.setattr(scrape, "PATIENCE_S", 1.0)
    answer = b""
    with _connect(server) as peer, contextlib.suppress(OSError):
        peer.sendall(sent)
        peer.shutdown(socket.SHUT_WR)
        while part := peer.recv(65536):
            answer += part
    assert b"root:" not in answer
    assert len(answer) < 20_000 + 8 * len(sent), "an error repeats what was sent, escaped"
    assert b"answer 42.0" in _page(server)
