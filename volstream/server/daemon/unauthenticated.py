"""Closes connections that show no token: each takes a descriptor of the daemon, which its volumes need, and gRPC reads what
they send into memory before it asks for the token.

Flight's server keeps every connection for ever, and none of gRPC's limits can be set from Python. So they are found among the
process's own descriptors, and shut down, upon which gRPC closes them.
"""

from __future__ import annotations

import os
import resource
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from volstream.base.log import get
from volstream.base.processes import raise_limit
from volstream.base.threads import Stop

_log = get("ingest")

#: Time from connecting to the first call with the token.
_PATIENCE_SECONDS = 10.0

#: Connections that have not made it yet.
_MAX_STRANGERS = 64

#: Bytes that a stranger may send: a first call with its token, and rows behind it.
_MAX_BYTES = 16 << 20

#: Time between two looks, without and with such connections.
_LOOK_SECONDS, _SHORT_SECONDS = 0.5, 0.02

#: Where Linux has the number of received bytes in ``struct tcp_info``.
_RECEIVED = slice(128, 136)

#: Lists the process's own descriptors.
_OPEN = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"

#: Address and port of a client.
Peer = tuple[str, int]


class UnauthenticatedConnections:
    """The connections to a port of this process whose clients have not shown a token. Thread-safe.

    Args:
        patience_seconds: a connection is closed after this time without a call.
        maximum: connections without a call; the oldest of more are closed at once.
        look_seconds: time between two looks while there are none.
    """

    def __init__(
        self,
        port: int,
        patience_seconds: float = _PATIENCE_SECONDS,
        *,
        maximum: int = _MAX_STRANGERS,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._port = port
        self._patience_seconds = patience_seconds
        self._maximum = maximum
        self._look_seconds = look_seconds
        self._since: dict[Peer, float] = {}
        self._known: set[Peer] = set()
        self._stop = Stop()

    def start(self) -> None:
        """Starts looking, in its own thread."""
        raise_limit()
        # A descriptor that is there when there are no others, to look at those of gRPC's sockets without taking them from it.
        spare, nothing = os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_RDONLY)
        threading.Thread(target=self._run, args=(spare, nothing), name="unauthenticated", daemon=True).start()

    def stop(self) -> None:
        """Stops looking. Idempotent."""
        self._stop.set()

    def authenticated(self, peer: str) -> None:
        """Notes a client that has shown the token, as gRPC names it: ``ipv4:127.0.0.1:40000``."""
        host, _, port = unquote(peer).partition(":")[2].rpartition(":")
        self._known.add((host.strip("[]"), int(port)))

    def _run(self, spare: int, nothing: int) -> None:
        try:
            while not self._stop.wait(_SHORT_SECONDS if self._since else self._look_seconds):
                self._look(spare)
                os.dup2(nothing, spare)
        finally:
            os.close(spare)
            os.close(nothing)

    def _look(self, spare: int) -> None:
        """Closes connections that have been unauthenticated for too long, and the oldest of too many."""
        now, before = time.monotonic(), set(self._known)
        sent: dict[Peer, int] = {}
        here: dict[Peer, int] = {}
        for descriptor, peer, size in self._connections(spare):
            here[peer], sent[peer] = descriptor, size
        self._known -= before - here.keys()
        self._since = {peer: self._since.get(peer, now) for peer in here.keys() - self._known}
        waiting = sorted(self._since, key=self._since.__getitem__)
        crowd = len(waiting) - self._maximum
        closed = [
            peer
            for place, peer in enumerate(waiting)
            if place < crowd or now - self._since[peer] >= self._patience_seconds or sent[peer] > _MAX_BYTES
        ]
        for peer in closed:
            with self._socket(here[peer], spare) as connection:
                if connection is not None and _peer(connection) == peer and peer not in self._known:
                    connection.shutdown(socket.SHUT_RDWR)
        if closed:
            _log.warning("strangers_closed", connections=len(closed), waiting=len(waiting) - len(closed))

    def _connections(self, spare: int) -> Iterator[tuple[int, Peer, int]]:
        """Yields the port's connections, each with its descriptor and the number of bytes that it has sent."""
        try:
            descriptors: Iterable[int] = map(int, os.listdir(_OPEN))
        except OSError:  # there are none left
            descriptors = range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        for descriptor in descriptors:
            with self._socket(descriptor, spare) as connection:
                peer = None if connection is None else _peer(connection)
                size = 0 if connection is None else _received(connection)
            if peer is not None:
                yield descriptor, peer, size

    @contextmanager
    def _socket(self, descriptor: int, spare: int) -> Iterator[socket.socket | None]:
        """Opens a connection of the port by a second descriptor; None if the descriptor is something else by now."""
        connection: socket.socket | None = None
        try:
            if descriptor != spare and stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.dup2(descriptor, spare)
                connection = socket.socket(fileno=spare)
                if connection.getsockname()[1] != self._port:
                    connection.detach()
                    connection = None
        except (OSError, IndexError, TypeError):  # closed meanwhile; not connected; a Unix socket
            pass
        try:
            yield connection
        finally:
            if connection is not None:
                connection.detach()


def _received(connection: socket.socket) -> int:
    """Returns the number of bytes that a connection has sent; 0 where the system does not tell."""
    if sys.platform != "linux":
        return 0
    try:
        return int.from_bytes(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)[_RECEIVED], sys.byteorder)
    except OSError:  # not connected
        return 0


def _peer(connection: socket.socket) -> Peer | None:
    """Returns the client of a connection; None for the socket that listens, and for a connection that is closed."""
    try:
        host, port = connection.getpeername()[:2]
    except (OSError, ValueError):
        return None
    return host.removeprefix("::ffff:"), port  # gRPC names a client of IPv4 as such, and uses a socket of IPv6
