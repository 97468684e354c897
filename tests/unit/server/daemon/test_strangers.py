from __future__ import annotations

import os
import resource
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.waiting import eventually
from volstream.server.daemon.ingest import UnauthenticatedConnections


def connect(server: socket.socket, held: ExitStack, family: int = socket.AF_INET) -> socket.socket:
    client = held.enter_context(socket.socket(family))
    client.connect(server.getsockname()[:2])
    held.enter_context(server.accept()[0])
    return client


def is_closed(client: socket.socket) -> bool:
    return bool(select.select([client], [], [], 0)[0]) and client.recv(1) == b""


@contextmanager
def looked_at(server: socket.socket, patience: float, **options: int) -> Iterator[UnauthenticatedConnections]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    watch = UnauthenticatedConnections(server.getsockname()[1], patience, look_seconds=0.02, **options)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_that_shows_no_token_is_closed_and_others_stay(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with ExitStack() as held:
        server = held.enter_context(socket.create_server((host, 0), family=family))
        other = held.enter_context(socket.create_server((host, 0), family=family))
        watch = held.enter_context(looked_at(server, 0.2))
        friend, stranger, elsewhere = (connect(server, held, family), connect(server, held, family), connect(other, held, family))
        name = f"ipv6:%5B::1%5D:{friend.getsockname()[1]}" if ":" in host else f"ipv4:{host}:{friend.getsockname()[1]}"
        watch.authenticated(name)
        eventually(lambda: is_closed(stranger), 10)
        later = connect(server, held, family)
        eventually(lambda: is_closed(later), 10)
        assert not is_closed(friend)
        assert not is_closed(elsewhere)


def test_the_oldest_of_many_go_at_once_even_if_no_descriptor_is_left() -> None:
    with ExitStack() as held:
        server = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        clients = [connect(server, held) for _ in range(5)]
        watch = held.enter_context(looked_at(server, 60.0, maximum=3))
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, before[1]))
        with ExitStack() as taken:
            with suppress(OSError):
                while True:
                    taken.enter_context(open(os.devnull))
            eventually(lambda: sum(map(is_closed, clients)) == 2, 10)
        assert [is_closed(client) for client in clients].count(False) == 3
        watch.stop()
