"""A server in front of another one, which is slow, refuses, or hangs up when a test says so."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from urllib.parse import urlsplit

_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Mood(StrEnum):
    """How a proxy treats its clients."""

    GOOD = "good"
    SLOW = "slow"  # each piece of an answer comes late
    REFUSING = "refusing"  # 503 to each request
    RUDE = "rude"  # hangs up at each request


class Proxy(socketserver.ThreadingTCPServer):
    """Passes on bytes in both directions.

    Args:
        behind: the server's URL.
        delay: seconds by which each piece of an answer is late when it is slow.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, behind: str, delay: float = 1.0) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        found = urlsplit(behind)
        self.behind = (found.hostname or "", found.port or 80)
        self.delay = delay
        self.mood = Mood.GOOD
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores it: killed clients hang up."""


class _Passing(socketserver.BaseRequestHandler):
    server: Proxy
    request: socket.socket

    def handle(self) -> None:
        with socket.create_connection(self.server.behind) as behind:
            threading.Thread(target=self._back, args=(behind,), daemon=True).start()
            while data := self.request.recv(65536):
                mood = self.server.mood
                if mood is Mood.REFUSING:
                    self.request.sendall(_REFUSAL)
                if mood in (Mood.REFUSING, Mood.RUDE):
                    break
                behind.sendall(data)
            with suppress(OSError):
                behind.shutdown(socket.SHUT_RDWR)

    def _back(self, behind: socket.socket) -> None:
        with suppress(OSError):
            while data := behind.recv(65536):
                if self.server.mood is Mood.SLOW:
                    self.server.ended.wait(self.server.delay)
                self.request.sendall(data)
            self.request.shutdown(socket.SHUT_RDWR)


@contextmanager
def before(url: str, delay: float = 1.0) -> Iterator[Proxy]:
    """A proxy before the server at a URL."""
    with Proxy(url, delay) as proxy:
        threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.ended.set()
            proxy.shutdown()
