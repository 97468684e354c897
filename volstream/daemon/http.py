"""The daemon over HTTP, on 127.0.0.1 only: ``/healthz``, ``/readyz``, ``/metrics``."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from volstream.errors import CatalogError, PortInUseError

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
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        """Listens."""
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
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
            def do_GET(self) -> None:  # http.server's name
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


def _answer(probed: tuple[bool, Mapping[str, Any]]) -> tuple[int, str, bytes]:
    well, said = probed
    return (200 if well else 503), "application/json", (json.dumps(said, default=str) + "\n").encode()
