"""Requests that wait for messages in the event loop, and so without a thread of their own.

Needs aiohttp, which the extras of the providers install. What does not belong here: what the requests mean (a provider's
``queue``), and what becomes of the messages (``remote``).
"""

from __future__ import annotations

import atexit
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
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
    """A request for messages, and the authorities that sign the server's certificate: a file, or None for the system's."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    authorities: str | None = None


async def repeat(
    request: SignedRequest, read: Callable[[int, bytes], Sequence[Delivery]]
) -> AsyncGenerator[Sequence[Delivery], None]:
    """Sends a request again and again, and yields what each brings, until its signature gets old.

    Args:
        read: returns the messages in an answer, of which it gets the HTTP status and the content; any error: there are none.

    Raises:
        QueueError: a request failed. It says little, for the caller to ask in a thread, which says why.
    """
    until = time.monotonic() + _SIGNED_SECONDS
    while True:
        try:
            address = URL(request.url, encoded=True)  # as it was signed
            sent = _session().request(
                request.method,
                address,
                data=request.body,
                headers=request.headers,
                ssl=_context(request.authorities),
                proxy=_proxy(address),
            )
            async with sent as answer:
                deliveries = read(answer.status, await answer.read())
        except Exception as exc:  # packages parse what a server says
            raise QueueError(f"A request for messages failed: {type(exc).__name__}: {exc}") from exc
        yield deliveries
        if time.monotonic() >= until:
            return


@cache
def _session() -> aiohttp.ClientSession:
    """Returns the session of the loop, in which it is called first."""
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar(), timeout=_TIMES)
    atexit.register(_close, session)  # else it complains
    return session


def _close(session: aiohttp.ClientSession) -> None:
    with suppress(TimeoutError):
        loop.begin(session.close()).result(1.0)


@cache
def _context(authorities: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authorities)


@cache
def _proxy(address: URL) -> str | None:
    return None if proxy_bypass(address.host or "") else getproxies().get(address.scheme)
