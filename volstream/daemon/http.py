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

#: A connection on which nothing comes for so long is closed.
_SILENT_SECONDS = 10.0

#: A probe, a scrape and a person or two at a time.
_MAX_CONNECTIONS = 16

#: What a client on this host calls it; None: HTTP 1.0 need not say.
_OUR_NAMES = (None, "127.0.0.1", "localhost", "::1")

#: What a probe answers: whether all is well, and what there is to say.
Probe = Callable[[], tuple[bool, Mapping[str, Any]]]


class HttpServer:
    """Serves probes and metrics from a thread of its own.

    Args:
        port: 0: any free one; then :attr:`port` tells which after ``start``.
        healthy: whether the process should go on living.
        ready: whether it does its work now.

    Raises:
        PortInUseError: by ``start``; somebody else listens there.
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
        """Listens."""
        try:
            self._server = _Bounded(("127.0.0.1", self.port), self._handler())
        except OSError as error:
            raise PortInUseError(
                f"Port {self.port} of 127.0.0.1 cannot be listened on: {error.strerror}.",
                "Choose another with --http-port (0: any free one), or the setting http_port.",
            ) from error
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="http", daemon=True).start()

    def stop(self) -> None:
        """Ends listening. Idempotent."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        routes = self._routes

        class Handler(BaseHTTPRequestHandler):
            timeout = _SILENT_SECONDS

            def do_GET(self) -> None:  # http.server's name
                # A page in a browser may have given its own name our address, to read what we answer.
                if _host(self.headers.get("Host")) not in _OUR_NAMES:
                    self.send_error(421, explain="This is asked for at 127.0.0.1.")
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
                """Requests are not logged: a scrape every few seconds says nothing."""

        return Handler


class _Bounded(ThreadingHTTPServer):
    """A server that keeps a few connections: a new one ends the oldest, so that those who say nothing shut nobody out."""

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
                with suppress(OSError):  # it has gone by itself
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of clients that went away or were sent away; of all else what the base class says."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _host(header: str | None) -> str | None:
    """The host that a request names, without the port; None where it names none, as no browser does."""
    try:
        return None if header is None else urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _answer(probed: tuple[bool, Mapping[str, Any]]) -> tuple[int, str, bytes]:
    well, said = probed
    return (200 if well else 503), "application/json", (json.dumps(said, default=str) + "\n").encode()
