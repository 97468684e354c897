"""The daemon over HTTP, on 127.0.0.1 only: ``/healthz``, ``/readyz``, ``/metrics``."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from volstream.errors import CatalogError, PortInUseError

#: A connection that is silent for this long is closed.
_SILENT_SECONDS = 10.0

#: Enough for a probe, a scrape and a few people at a time.
_MAX_CONNECTIONS = 16

#: Names of this host that other hosts cannot reach.
LOOPBACK = ("127.0.0.1", "localhost", "::1")

#: Host names that a client on this host may use; None: HTTP 1.0 does not require one.
_OUR_NAMES = (None, *LOOPBACK)

#: A probe: returns whether all is well, and details.
Probe = Callable[[], tuple[bool, Mapping[str, Any]]]


class HttpServer:
    """Serves probes and metrics from its own thread.

    Args:
        port: 0: any free one; :attr:`port` holds it after ``start``.
        healthy: whether the process should keep running.
        ready: whether it is doing its work now.

    Raises:
        PortInUseError: by ``start``; the port is in use.
    """

    def __init__(self, port: int, healthy: Probe, ready: Probe, collector: Collector) -> None:
        self.port = port
        registry = CollectorRegistry()
        registry.register(collector)
        self._routes: Mapping[str, Callable[[], tuple[int, str, bytes]]] = {
            "/healthz": lambda: _answer(healthy()),
            "/readyz": lambda: _answer(ready()),
            "/metrics": lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry)),
        }
        self._server: _Bounded | None = None

    def start(self) -> None:
        """Starts listening."""
        try:
            self._server = _Bounded(("127.0.0.1", self.port), self._handler())
        except OSError as error:
            raise PortInUseError(
                f"Cannot listen on port {self.port} of 127.0.0.1: {error.strerror}.",
                "Choose another with --http-port (0: any free one), or the setting http_port.",
            ) from error
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="http", daemon=True).start()

    def stop(self) -> None:
        """Stops listening. Idempotent."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        routes = self._routes

        class Handler(BaseHTTPRequestHandler):
            timeout = _SILENT_SECONDS

            def do_GET(self) -> None:  # http.server's name
                # DNS rebinding: a web page may point its own host name at this address to read the responses.
                if _host(self.headers.get("Host")) not in _OUR_NAMES:
                    self.send_error(421, explain="Use 127.0.0.1 as the host.")
                    return
                route = routes.get(self.path.partition("?")[0])
                try:
                    status, kind, body = route() if route else (404, "text/plain", b"/healthz /readyz /metrics\n")
                except CatalogError as error:
                    status, kind, body = 503, "text/plain; charset=utf-8", f"{error}\n".encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # http.server's name
                """Logs nothing: scrapes every few seconds are of no interest."""

        return Handler


class _Bounded(ThreadingHTTPServer):
    """A server with few connections: a new one closes the oldest, so that silent clients cannot block others."""

    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[socket.socket, None] = {}
        self._changing = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            if len(self._open) >= _MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):  # already closed
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that disconnected or were disconnected; reports other errors like the base class."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _host(header: str | None) -> str | None:
    """Returns the host that a request names, without the port; None if it names none (browsers always do)."""
    try:
        return None if header is None else urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _answer(probed: tuple[bool, Mapping[str, Any]]) -> tuple[int, str, bytes]:
    well, said = probed
    return (200 if well else 503), "application/json", (json.dumps(said, default=str) + "\n").encode()
