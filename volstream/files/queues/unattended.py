"""Requests that wait for messages in the event loop, and so without a thread of their own.

Needs aiohttp, which the extras of the providers install. What does not belong here: what the requests mean (a provider's
``queue``), and what becomes of the messages (``remote``).
"""

from __future__ import annotations

import atexit
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from volstream.errors import QueueError
from volstream.files.queues import loop
from volstream.files.queues.received import Delivery

#: How long a signed request is repeated; the services accept one for fifteen minutes, by their own clocks.
_SIGNED_SECONDS = 300.0

_TIMES = aiohttp.ClientTimeout(total=90, sock_connect=5)  # a long poll takes up to 30


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request for messages. ``ca_file`` verifies the server's certificate; None: the system's."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    ca_file: str | None = None


async def repeat(
    request: SignedRequest, read: Callable[[int, bytes], Sequence[Delivery]]
) -> AsyncGenerator[Sequence[Delivery], None]:
    """Sends a request again and again, and yields what each brings, until its signature gets old.

    Args:
        read: parses an answer, given its HTTP status and content. It may raise anything if the answer holds no messages.

    Raises:
        QueueError: a request failed. It says little: the caller should repeat the request with the SDK, which reports the cause.
    """
    until = time.monotonic() + _SIGNED_SECONDS
    with _errors():
        address = URL(request.url, encoded=True)  # as it was signed
        proxy = None if proxy_bypass(address.host or "") else getproxies().get(address.scheme)
        options: dict[str, Any] = {
            "data": request.body or None,
            "skip_auto_headers": ["Content-Type"],  # it would not be signed
            "headers": request.headers,
            "ssl": _context(request.ca_file),
            "proxy": proxy,
        }
    while True:
        with _errors():
            async with _session().request(request.method, address, **options) as answer:
                deliveries = read(answer.status, await answer.read())
        yield deliveries
        if time.monotonic() >= until:
            return


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except Exception as exc:  # packages parse what a server says
        raise QueueError(f"A request for messages failed: {type(exc).__name__}: {exc}") from exc


@cache
def _session() -> aiohttp.ClientSession:
    """Returns the session of the loop, in which it is called first."""
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar(), timeout=_TIMES)
    atexit.register(_close, session)  # aiohttp reports an error for a session that is still open at exit
    return session


def _close(session: aiohttp.ClientSession) -> None:
    with suppress(TimeoutError):
        loop.begin(session.close()).result(1.0)


@cache
def _context(ca_file: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)
