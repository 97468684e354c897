"""The socket and the thread of an HTTP server: few connections, none of them silent for long.

Responses are in ``console.app``, and access control in ``console.http``.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from volstream.base.log import get
from volstream.base.model.paths import LOOPBACK
from volstream.base.processes import raise_descriptor_limit
from volstream.errors import InvalidValueError, PortInUseError

_log = get("console")

#: See :class:`HttpServer`.
_SILENT_SECONDS = 10.0

#: Enough for probes, scrapes, and the pages of a few people. Each page keeps up to six connections.
_MAX_CONNECTIONS = 64

#: A response that takes longer than this when the server stops is cut off.
_END_SECONDS = 2.0

#: Number of connections that the system accepts for the server, and that asyncio takes before the server can
#: close others.
_BACKLOG = 64

#: A complaint of the event loop is logged once in this time.
_QUIET_SECONDS = 60.0


class HttpServer:
    """Serves an application from its own thread.

    Args:
        app: an ASGI application.
        tls: the files of its certificate and key. Without them, it serves HTTP.
        port: 0 for any free port. After ``start``, :attr:`port` is the actual one.
        silent_seconds: a connection without a complete request for this long is closed.

    Raises:
        PortInUseError: by ``start``, if the port is in use.
        InvalidValueError: by ``start``, if the address or the certificate is invalid.
    """

    def __init__(
        self,
        app: Any,
        port: int,
        address: str = LOOPBACK[0],
        tls: tuple[Path, Path] | None = None,
        *,
        silent_seconds: float = _SILENT_SECONDS,
    ) -> None:
        self.port = port
        self._app = app
        self._address = address
        self._tls = tls
        self._silent_seconds = silent_seconds
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts listening."""
        raise_descriptor_limit()
        config = self._config()
        listening = self._listen()
        self.port = listening.getsockname()[1]
        self._app.state.port = self.port
        self._server = server = uvicorn.Server(config)

        async def serve() -> None:
            asyncio.get_running_loop().set_exception_handler(_ErrorLog())
            await server.serve(sockets=[listening])

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops listening. Idempotent."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(2 * _END_SECONDS)
            self._server = self._thread = None

    def _listen(self) -> socket.socket:
        listening: socket.socket | None = None
        try:
            family = socket.getaddrinfo(self._address, self.port, type=socket.SOCK_STREAM)[0][0]
            listening = socket.socket(family, socket.SOCK_STREAM)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self._address, self.port))
            listening.listen(_BACKLOG)
        except OSError as error:
            if listening is not None:
                listening.close()
            raise PortInUseError(
                f"Cannot listen on port {self.port} of {self._address}: {error.strerror}.",
                "Choose another with --http-port (0: any free one), or the setting http_port.",
            ) from error
        return listening

    def _config(self) -> uvicorn.Config:
        tls: ssl.SSLContext | None = None
        if self._tls is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            try:
                tls.load_cert_chain(*self._tls)
            except (OSError, ssl.SSLError) as error:
                raise InvalidValueError(
                    f"The console's certificate cannot be used: {error}.", "See console_certificate and console_key."
                ) from None
        config = uvicorn.Config(
            self._app,
            http=_bounded(self._silent_seconds, tls),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=int(_SILENT_SECONDS),
            timeout_graceful_shutdown=int(_END_SECONDS),
        )
        config.load()
        return config


class _ErrorLog:
    """Logs errors of the event loop on one line, and not again for a while: asyncio repeats them for each
    connection that it cannot accept."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = str(context["message"])
        if loop.time() >= self._next.get(message, 0.0):
            self._next[message] = loop.time() + _QUIET_SECONDS
            _log.warning("http_trouble", problem=message, error=str(context.get("exception", "")))


def _bounded(silent_seconds: float, tls: ssl.SSLContext | None) -> type[asyncio.Protocol]:
    """Returns a protocol with a limited number of connections. A new one closes the oldest idle one, or else
    the oldest.

    Connections count from their acceptance. asyncio's own TLS would report them only after the handshake.
    """
    connections: dict[H11Protocol, None] = {}

    class Connection(H11Protocol):
        _silence: asyncio.TimerHandle | None = None
        _handshake: asyncio.Task[None] | None = None

        # uvicorn's type.
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            if len(connections) >= _MAX_CONNECTIONS:
                _close(next((connection for connection in connections if _waits(connection)), next(iter(connections))))
            connections[self] = None
            self.transport = transport
            self._early: list[bytes] = []
            if tls is None:
                self._begin(transport)
            else:
                self._handshake = self.loop.create_task(self._secure(transport, tls))

        async def _secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
            try:
                secured = await self.loop.start_tls(transport, self, tls, server_side=True, ssl_handshake_timeout=silent_seconds)
            except OSError:  # the base class of all possible errors
                connections.pop(self, None)
                transport.abort()
                return
            if secured is not None:  # None: it was closed meanwhile
                self._begin(secured)

        def _begin(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._await_request()
            for data in self._early:
                self.data_received(data)

        def data_received(self, data: bytes) -> None:
            if self.scheme is None:  # a request that arrived with the end of the handshake
                self._early.append(data)
            else:
                super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.pop(self, None)
            self._stop_waiting()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            if not _waits(self):
                self._stop_waiting()
            elif self._silence is None:
                self._await_request()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self._silence is None and not self.transport.is_closing():
                self._await_request()

        def _await_request(self) -> None:
            self._silence = self.loop.call_later(silent_seconds, self.transport.abort)

        def _stop_waiting(self) -> None:
            if self._silence is not None:
                self._silence.cancel()
                self._silence = None

    def _waits(connection: H11Protocol) -> bool:
        return connection.cycle is None or connection.cycle.response_complete or connection.conn.their_state is h11.SEND_BODY

    def _close(connection: H11Protocol) -> None:
        connections.pop(connection, None)
        connection.transport.abort()

    return Connection
