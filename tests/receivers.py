"""An HTTP server that stands for a webhook, or a collector: it keeps what it gets, and is down, slow or failing on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Points of a daemon that alerts get to (``volstream.base.faults``).
POINTS = ("alert.recorded", "alert.sent")


@dataclass
class Post:
    """A request. ``headers`` have lower-case names."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """What a server got, and how it answers.

    Attributes:
        status: of its answers.
        hangs: it answers only once this is set.
    """

    posts: list[Post] = field(default_factory=list)
    status: int = 200
    hangs: threading.Event | None = None
    location: str = ""
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def payloads(self) -> list[Any]:
        return [post.json for post in self.posts]


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """Serves on a port of this machine; 0: any free one."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.posts.append(Post(self.path, headers, body))
            if found.hangs is not None:
                found.hangs.wait(60)
            self.send_response(found.status)
            if found.location:
                self.send_header("location", found.location)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

        def handle_error(self, *_: object) -> None:
            """Says nothing of clients that gave up."""

    server = Server(("127.0.0.1", port), Handler)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        if found.hangs is not None:
            found.hangs.set()
        server.shutdown()
        server.server_close()
        thread.join()
