"""The HTTP server and hostile clients."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest
from volstream.console import server as module
from volstream.console.app import probes
from volstream.console.server import HttpServer, Tls, tls_of

from tests.waiting import eventually


class Empty:
    """A collector of nothing."""

    def collect(self) -> Iterator[object]:
        return iter(())


@pytest.fixture
def server() -> Iterator[HttpServer]:
    app = probes(lambda: (True, {}), lambda: (True, {}), Empty())  # type: ignore[arg-type]  # as one is used
    server = HttpServer(app, 0)
    server.start()
    yield server
    server.stop()


def status(server: HttpServer, host: str | None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.putrequest("GET", "/healthz", skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    try:
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8642", 200),
        ("localhost", 200),
        ("[::1]:8642", 200),
        (None, 400),  # HTTP 1.1 requires one
        ("evil.example", 421),
        ("evil.example:8642", 421),
        ("127.0.0.1.evil.example", 421),
        ("[", 421),
        ("", 421),
    ],
)
def test_only_requests_for_this_host_are_answered(server: HttpServer, host: str | None, expected: int) -> None:
    assert status(server, host) == expected


def test_silent_clients_neither_pile_up_nor_shut_others_out(server: HttpServer) -> None:
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
    try:
        assert status(server, "localhost") == 200
        eventually(lambda: threading.active_count() - before <= 20)
    finally:
        for connection in silent:
            connection.close()
