"""Who may ask what: the token, the cookie that stands for it, the host that a request names, and where an action comes from.

As in Jupyter: ``?token=`` in a URL becomes a cookie, programs send ``Authorization: Bearer``. A cookie cannot be used by other
sites: it is strict, and an action must come from a page of the same origin. What does not belong here: what is answered.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from urllib.parse import quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from volstream.base.privacy import host_of

#: Paths that need no token: probes, metrics, and files that are the same in every installation.
_OPEN = ("/healthz", "/readyz", "/metrics")
_OPEN_BELOW = "/static/"

#: The handler of posted events itself checks the token, which is that of their volume.
_POSTED = re.compile(r"/volumes/[^/]+/events")

#: Methods that change nothing.
_SAFE = ("GET", "HEAD")

#: A browser stays logged in for this long.
_COOKIE_SECONDS = 30 * 86400

#: Headers of all answers. Styles and scripts come from our own files only, and no page can be put into a frame.
_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

#: Answers a request that is refused: the status, and why, in a sentence.
Refusal = Callable[[Request, int, str], Response]


class Access:
    """Lets requests through to ``app`` if they may be answered.

    Args:
        hosts: host names that a request may name; others are DNS rebinding: a page may point its own host name at this address.
        token: None: none is needed.
        refuse: makes the answer to the others.
    """

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str], token: str | None, refuse: Refusal) -> None:
        self._app = app
        self._hosts = hosts
        self._token = token
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers or passes on one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        request = Request(scope, receive)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                kept = scope["path"].startswith(_OPEN_BELOW)  # by browsers, who ask whether it has changed
                headers.setdefault("cache-control", "no-cache" if kept else "no-store")
            await send(message)

        answer = self._check(request)
        await (self._app if answer is None else answer)(scope, receive, with_headers)

    def _check(self, request: Request) -> Response | None:
        """Returns the answer to a request that is not passed on."""
        host = request.headers.get("host")
        if host is not None and host_of(host) not in self._hosts:  # HTTP 1.0 does not require one
            return self._refuse(request, 421, "Use 127.0.0.1 as the host, or a name from the setting console_hosts.")
        # Not request.url, of which the Host header is a part: the router, too, goes by the scope.
        path = request.scope["path"]
        if self._token is None or path in _OPEN or path.startswith(_OPEN_BELOW):
            return None
        if request.method == "POST" and _POSTED.fullmatch(path):
            return None
        token = request.query_params.get("token")
        if token is not None and request.method in _SAFE:
            if not same(token, self._token):
                return self._refuse(request, 401, "The token is wrong: it belongs to another home, or was replaced.")
            return self._accept_token(request)
        token = bearer(request.headers)
        if token is not None:
            if not same(token, self._token):
                return self._refuse(request, 401, "The token is wrong.")
            request.scope.setdefault("state", {})["who"] = "api"
            return None
        if not same(request.cookies.get(cookie_name(request), ""), cookie_value(self._token)):
            return self._refuse(request, 401, "The token is missing.")
        if request.method not in _SAFE and not is_same_origin(request.headers, request.scope["scheme"]):
            return self._refuse(request, 403, "Actions must come from a page of this console.")
        request.scope.setdefault("state", {})["who"] = "console"
        return None

    def _accept_token(self, request: Request) -> Response:
        """Redirects to the same URL without the token, which the browser keeps as a cookie."""
        assert self._token is not None, "it was given"
        parameters = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        # Of the path only what cannot name another host.
        path = f"/{quote(request.scope['path'].lstrip('/'))}"
        answer = RedirectResponse(f"{path}?{urlencode(parameters)}" if parameters else path, status_code=303)
        answer.set_cookie(
            cookie_name(request),
            cookie_value(self._token),
            max_age=_COOKIE_SECONDS,
            path="/",
            secure=request.scope["scheme"] == "https",
            httponly=True,
            samesite="strict",
        )
        return answer


def cookie_name(request: Request) -> str:
    """Returns the name of the cookie: browsers share cookies among the ports of a host, on which other homes may listen."""
    return f"volstream-{getattr(request.app.state, 'port', 0)}" if "app" in request.scope else "volstream-0"


def cookie_value(token: str) -> str:
    """Returns what a browser keeps: it stands for the token, which cannot be derived from it."""
    return hmac.new(token.encode(), b"volstream console", hashlib.sha256).hexdigest()


def is_same_origin(headers: Headers, scheme: str) -> bool:
    """True if a browser says that a request comes from a page of the host that it names. Every browser says so with a POST."""
    site = headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = headers.get("origin")
    if origin is None:
        return site == "same-origin"
    parts = urlsplit(origin)
    return (parts.scheme, parts.netloc.lower()) == (scheme, headers.get("host", "").lower())


def bearer(headers: Headers) -> str | None:
    """Returns the token of an ``Authorization: Bearer`` header."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def same(sent: str, wanted: str) -> bool:
    """Compares in a time that does not depend on the content."""
    return hmac.compare_digest(sent.encode("utf-8", "surrogatepass"), wanted.encode())
