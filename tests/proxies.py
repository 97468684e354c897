"""A server in front of another one, which is slow, refuses, hangs up, or breaks off its answers when a test says so."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from urllib.parse import urlsplit

_BODY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_ANSWER = "HTTP/1.1 {}\r\nContent-Type: application/xml\r\nContent-Length: {}\r\nConnection: close\r\n\r\n"


class Mood(StrEnum):
    """How a proxy treats its clients."""

    GOOD = "good"
    SLOW = "slow"  # each piece of an answer comes late
    REFUSING = "refusing"  # 503 to each request
    FAILING = "failing"  # 500 to each request
    RUDE = "rude"  # hangs up at each request
    # In the middle of a body. Headers stay whole: Python's http.client takes a part of them for all of them.
    TRUNCATING = "truncating"  # ends an answer there, as if that were all
    RESETTING = "resetting"  # resets the connection there


#: What is answered instead of the server behind.
_INSTEAD = {
    mood: _ANSWER.format(status, len(_BODY)).encode() + _BODY
    for mood, status in ((Mood.REFUSING, "503 Slow Down"), (Mood.FAILING, "500 Internal Server Error"))
}


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
                if mood in _INSTEAD:
                    self.request.sendall(_INSTEAD[mood])
                if mood in _INSTEAD or mood is Mood.RUDE:
                    break
                behind.sendall(data)
            with suppress(OSError):
                behind.shutdown(socket.SHUT_RDWR)

    def _back(self, behind: socket.socket) -> None:
        with suppress(OSError):
            while data := behind.recv(65536):
                if self.server.mood is Mood.SLOW:
                    self.server.ended.wait(self.server.delay)
                mood = self.server.mood
                whole = data.find(b"\r\n\r\n") + 4 if data.startswith(b"HTTP/1.1 ") else 0
                broken = mood in (Mood.TRUNCATING, Mood.RESETTING) and whole < len(data)
                self.request.sendall(data[: (whole + len(data)) // 2] if broken else data)
                if broken and mood is Mood.RESETTING:
                    self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.request.close()
                if broken:
                    break
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
