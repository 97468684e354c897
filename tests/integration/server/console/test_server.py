"""The HTTP server and hostile clients."""

from __future__ import annotations

import http.client
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.certificates import certificate
from tests.integration.server.console.collectors import Empty
from tests.waiting import eventually
from volstream.base import config
from volstream.base.log import get
from volstream.base.privacy import certificate_of
from volstream.errors import InvalidValueError, PortInUseError
from volstream.server.console import server as module
from volstream.server.console.app import probes
from volstream.server.console.server import HttpServer


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


def test_the_oldest_of_too_many_connections_is_closed(server: HttpServer) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(module._MAX_CONNECTIONS + 5)]
    try:
        assert status(server, "localhost") == 200
        silent[0].settimeout(10)
        with suppress(ConnectionError):
            assert silent[0].recv(1) == b""
    finally:
        for connection in silent:
            connection.close()


#: Opens many connections, says so, and keeps them.
CROWD = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
crowd = [socket.socket() for _ in range(1500)]
for one in crowd:
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", int(sys.argv[1])))
print("here", flush=True)
sys.stdin.read()
"""


@contextmanager
def crowd_before(server: HttpServer, free: int) -> Iterator[None]:
    """Connects 1,500 clients to a server whose process may open so many descriptors more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = [sys.executable, "-c", CROWD, str(server.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as crowd:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + free, limits[1]))
        try:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == b"here\n"
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            crowd.communicate()


def answers(server: HttpServer) -> bool:
    """True if a probe is answered: among a crowd that still comes, it may be the oldest connection and be closed."""
    try:
        return status(server, "localhost") == 200
    except ConnectionError:
        return False


def test_a_crowd_takes_few_descriptors(server: HttpServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 4096  # as with a soft limit of 1,024 at the start
    # asyncio accepts so many in each round, and closes those that have to go three rounds later.
    with crowd_before(server, module._MAX_CONNECTIONS + 4 * (module._BACKLOG + 1)):
        eventually(partial(answers, server), 10)
    assert "http_trouble" not in capfd.readouterr().err


def test_a_server_without_descriptors_says_so_once(server: HttpServer, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    get("test").info("a first line")  # what writes it is imported then, as in a daemon
    capfd.readouterr()

    def complained() -> bool:
        said.extend(line for line in capfd.readouterr().err.splitlines() if line)
        return bool(said)

    with crowd_before(server, 20):
        eventually(complained, 10)
    eventually(partial(answers, server), 10)
    complained()
    assert len(said) == 1
    assert "http_trouble" in said[0]
    assert "Too many open files" in said[0]


def test_a_connection_without_a_whole_request_is_closed() -> None:
    app = probes(lambda: (True, {}), lambda: (True, {}), Empty())  # type: ignore[arg-type]  # as one is used
    server = HttpServer(app, 0, silent_seconds=0.2)
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as slow:
            slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: loc")
            with suppress(ConnectionError):
                assert slow.recv(1) == b""
    finally:
        server.stop()


def test_a_server_that_ends_frees_its_port_at_once(server: HttpServer) -> None:
    assert status(server, "localhost") == 200
    server.stop()
    server.stop()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", server.port))


def test_a_port_in_use_is_named(server: HttpServer) -> None:
    app = probes(lambda: (True, {}), lambda: (True, {}), Empty())  # type: ignore[arg-type]  # as one is used
    with pytest.raises(PortInUseError, match=f"port {server.port} of 127.0.0.1"):
        HttpServer(app, server.port).start()


def test_other_hosts_are_served_by_tls_only(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="no certificate"):
        certificate_of(config.load(tmp_path), "console", "0.0.0.0")
    with pytest.raises(InvalidValueError, match="belong together"):
        certificate_of(config.load(tmp_path, console_certificate=tmp_path / "c.pem"), "console", "127.0.0.1")
    made = config.load(tmp_path, console_certificate="c.pem", console_key="k.pem")
    assert certificate_of(made, "console", "0.0.0.0") == (Path("c.pem"), Path("k.pem"))
    assert certificate_of(config.load(tmp_path), "console", "::1") is None


def test_a_certificate_that_cannot_be_read_is_an_error_at_the_start(tmp_path: Path) -> None:
    app = probes(lambda: (True, {}), lambda: (True, {}), Empty())  # type: ignore[arg-type]  # as one is used
    with pytest.raises(InvalidValueError, match="certificate cannot be used"):
        HttpServer(app, 0, tls=(tmp_path / "c.pem", tmp_path / "k.pem")).start()


def test_a_server_with_a_certificate_speaks_tls(tmp_path: Path) -> None:
    public, private = certificate(tmp_path)
    app = probes(lambda: (True, {"status": "ok"}), lambda: (True, {}), Empty())  # type: ignore[arg-type]  # as one is used
    server = HttpServer(app, 0, tls=(public, private))
    server.start()
    try:
        trusting = ssl.create_default_context(cafile=str(public))
        connection = http.client.HTTPSConnection("localhost", server.port, timeout=10, context=trusting)
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b'{"status": "ok"}\n'
        connection.close()
        with pytest.raises(ssl.SSLError), socket.create_connection(("localhost", server.port), timeout=10) as plain:
            trusting.wrap_socket(plain, server_hostname="other")
        # Those that say nothing are few, and have to make room.
        silent = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(module._MAX_CONNECTIONS + 2)]
        connection = http.client.HTTPSConnection("localhost", server.port, timeout=10, context=trusting)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        with suppress(ConnectionError):
            assert silent[0].recv(1) == b""
        connection.close()
        for one in silent:
            one.close()
    finally:
        server.stop()


def test_requests_that_are_not_sent_to_their_end_make_room_for_others(server: HttpServer) -> None:
    half = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nx"
    crowd = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(module._MAX_CONNECTIONS)]
    for one in crowd:
        one.sendall(half)
    assert status(server, "localhost") == 200
    for one in crowd:
        one.close()
