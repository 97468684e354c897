"""Requests and responses of the console: access, parameters, and responses as HTML or JSON."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from volstream.base.model.paths import may_be_picture, printable
from volstream.base.model.text import counted, first_line, one_line, to_json, visible
from volstream.base.model.units import about, format_duration, format_size
from volstream.base.model.work import shown_counts
from volstream.base.privacy import host_of
from volstream.errors import (
    DependencyError,
    InvalidStateError,
    InvalidValueError,
    NotFoundError,
    ObjectInUseError,
    StreamBusyError,
    UserError,
    VolstreamError,
)
from volstream.files.volumes.routing import BehindError
from volstream.ops.inspection.tables import OutputFile, Thumbnail

# The parameters of a request: text, checked on use.

#: Number of rows in a page of a table: default and maximum.
_ROWS, _MAX_ROWS = 50, 500

#: A number larger than any number of rows on a page.
_MAX_NUMBER = 1 << 53


@dataclass(frozen=True)
class Query:
    """Parameters by name. Each may be given several times."""

    values: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """Returns a parameter, or None if it is missing or empty."""
        values = self.values.get(name, ())
        return values[-1] if values and values[-1] else None

    def texts(self, name: str) -> Sequence[str]:
        """Returns all values of a parameter that are not empty."""
        return [value for value in self.values.get(name, ()) if value]

    def number(self, name: str) -> int | None:
        """Returns a parameter as a number, or None if it is missing. Raises InvalidValueError."""
        text = self.text(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdecimal() or len(text) > 16 or int(text) > _MAX_NUMBER:
            raise InvalidValueError(f"{name} cannot be {text[:50]!r}.", "Give a whole number.")
        return int(text)

    def flag(self, name: str) -> bool:
        """Returns whether a parameter is 1, and False if it is 0 or missing. Raises InvalidValueError."""
        text = self.text(name)
        if text not in (None, "0", "1"):
            raise InvalidValueError(f"{name} cannot be {text[:50]!r}.", "Give 1, or leave it out.")
        return text == "1"

    @property
    def limit(self) -> int:
        """The number of rows that a table of the response may have. Raises InvalidValueError."""
        number = self.number("limit")
        if number is not None and not 1 <= number <= _MAX_ROWS:
            raise InvalidValueError(f"limit cannot be {number}.", f"Give a number from 1 to {_MAX_ROWS}.")
        return number or _ROWS


# Access control: the token, the cookie that stands for it, the host in a request, and the origin of an
# action.
#
# As in Jupyter, ``?token=`` in a URL becomes a cookie, and programs send ``Authorization: Bearer``. Other
# sites cannot use the cookie: it is strict, and an action must come from a page of the same origin.

#: Paths that need no token: probes, metrics, and files that are the same in every installation.
_OPEN_PATHS = ("/healthz", "/readyz", "/metrics")
_OPEN_BELOW = "/static/"

#: The handler of posted events itself checks the token, which belongs to their volume.
_POSTED = re.compile(r"/volumes/[^/]+/events")

#: Methods that change nothing.
_SAFE = ("GET", "HEAD")

#: A browser stays logged in for this long.
_COOKIE_SECONDS = 30 * 86400

#: Headers of all responses. Styles and scripts come from volstream's own files only, and no page can be put
#: into a frame.
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

#: Responds to a refused request, with the status and the reason in a sentence.
Refusal = Callable[[Request, int, str], Response]


class Access:
    """Passes permitted requests to ``app``.

    Args:
        hosts: permitted host names. Others are DNS rebinding: a page may point its own host name to this
            address.
        token: the required token, if any.
        refuse: makes the response to other requests.
        exposed: this address is reachable from the network, also for probes and Prometheus, which use any
            host name.
    """

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str], token: str | None, refuse: Refusal, exposed: bool = False) -> None:
        self._app = app
        self._hosts = hosts
        self._exposed = exposed
        self._token = token
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Responds to a request, or passes it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        request = Request(scope, receive)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                cached = scope["path"].startswith(_OPEN_BELOW)  # browsers revalidate these
                headers.setdefault("cache-control", "no-cache" if cached else "no-store")
            await send(message)

        refusal_ = self._check(request)
        await (self._app if refusal_ is None else refusal_)(scope, receive, with_headers)

    def _check(self, request: Request) -> Response | None:
        """Returns the response to a request that is not passed on, or None."""
        # Not request.url, which contains the Host header. The router uses the scope, too.
        path = request.scope["path"]
        if self._exposed and path in _OPEN_PATHS:
            return None
        host = request.headers.get("host")
        if host is not None and host_of(host) not in self._hosts:  # HTTP 1.0 does not require one
            return self._refuse(request, 421, "Use 127.0.0.1 as the host, or a name from the setting console_hosts.")
        if self._token is None or path in _OPEN_PATHS or path.startswith(_OPEN_BELOW):
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
        assert self._token is not None, "a token was given"
        parameters = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        # Quoted, so that the path cannot name another host.
        path = f"/{quote(request.scope['path'].lstrip('/'))}"
        response = RedirectResponse(f"{path}?{urlencode(parameters)}" if parameters else path, status_code=303)
        response.set_cookie(
            cookie_name(request),
            cookie_value(self._token),
            max_age=_COOKIE_SECONDS,
            path="/",
            secure=request.scope["scheme"] == "https",
            httponly=True,
            samesite="strict",
        )
        return response


def cookie_name(request: Request) -> str:
    """Returns the name of the cookie.

    Browsers share cookies among the ports of a host, where other homes may listen.
    """
    return f"volstream-{getattr(request.app.state, 'port', 0)}" if "app" in request.scope else "volstream-0"


def cookie_value(token: str) -> str:
    """Returns the cookie's value, which stands for the token. The token cannot be derived from it."""
    return hmac.new(token.encode(), b"volstream console", hashlib.sha256).hexdigest()


def is_same_origin(headers: Headers, scheme: str) -> bool:
    """Returns whether, according to the browser, a request comes from a page of its host. All browsers tell
    so with a POST."""
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


def same(given: str, expected: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


# Pages as HTML: strictly escaped, with names that cannot mislead, and human-readable numbers, sizes and
# times.

#: Maximum bytes of a file that is fetched for a thumbnail.
_LARGEST_THUMBNAIL = 4 << 20

#: Minimum height of a bar, as a fraction of the chart's.
_LEAST_HEIGHT = 0.06

#: Files that pages refer to.
STATIC = Path(__file__).parent / "static"


def render(template: str, **values: Any) -> str:
    """Returns a page. Text in ``values`` is escaped, with control and direction characters shown."""
    return _environment().get_template(template).render(**values)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("volstream.server.console"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_final,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "block": block,
        "first_line": first_line,
        "bytes": lambda size: "—" if size is None else format_size(size),
        "number": number,
        "seconds": seconds,
        "duration": format_duration,
        "when": when,
        "value": value,
        "json": to_json,
        "counted": counted,
        "counts": lambda sums: shown_counts(sums) or "—",
        "stamp": lambda moment: moment.timestamp(),
    }
    environment.globals |= {
        "url": url,
        "now": lambda: datetime.now(UTC),
        "may_be_thumbnail": may_be_thumbnail,
        "stacked": stacked,
    }
    return environment


def _final(value: Any) -> Any:
    """Converts a value that a template prints. Text that is not HTML cannot carry misleading characters."""
    if value is None:
        return ""
    return value if hasattr(value, "__html__") else one_line(printable(str(value)))


def block(text: str) -> Markup:
    """Returns text of several lines, such as a traceback."""
    return Markup(escape(visible(printable(text))))  # escaped


def number(value: float | None) -> str:
    """Returns a number with thousands separators, or a dash."""
    if value is None:
        return "—"
    if isinstance(value, int) or abs(value) >= 100:
        return Markup(f"{round(value):,}".replace(",", "&#8239;"))  # digits only
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"


def seconds(value: float | None) -> str:
    """Returns a human-readable duration, or a dash."""
    if value is None:
        return "—"
    return f"{value:.1f} s" if value < 10 else about(value)


def when(moment: datetime | None, missing: str = "—") -> Markup:
    """Returns a time in UTC, which a script converts to the reader's zone."""
    if moment is None:
        return Markup(escape(missing))  # escaped
    utc = moment.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        f"{utc:%Y-%m-%dT%H:%M:%S}Z", f"{utc:%Y-%m-%d %H:%M:%S} UTC", f"{utc:%Y-%m-%d %H:%M} UTC"
    )


def value(cell: Any) -> Any:
    """Returns the display of a table's value of any type."""
    if cell is None:
        return Markup('<span class="none">null</span>')
    if isinstance(cell, OutputFile):
        return output_file(cell)
    if isinstance(cell, list) and cell and isinstance(cell[0], OutputFile):
        return Markup(" ").join(output_file(file) for file in cell)
    if isinstance(cell, Thumbnail):
        return Markup('<img class="picture" alt="" src="{}">').format(cell)
    if isinstance(cell, datetime):
        return when(cell) if cell.tzinfo is not None else cell.isoformat(" ", "seconds")
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float):
        return f"{cell:g}"
    if isinstance(cell, timedelta):
        return f"{cell.total_seconds():g} s"
    if isinstance(cell, str) and "\n" in cell:
        return Markup('<span class="lines">{}</span>').format(block(cell))
    return to_json(cell) if isinstance(cell, Mapping | list | tuple) else cell


class StackedBar(NamedTuple):
    """A bar of a chart of height 1, stacked on the bars of the preceding kinds."""

    kind: str
    at: int
    top: float
    height: float
    number: float


def stacked(series: Mapping[str, Sequence[float]]) -> list[StackedBar]:
    """Returns the bars of a chart.

    At each place, all kinds are stacked; the highest stack has height 1, and no bar is invisible.
    """
    places = list(zip(*series.values(), strict=True))
    maximum = max(map(sum, places), default=0) or 1
    bars = []
    for at, numbers in enumerate(places):
        heights = [max(number / maximum, _LEAST_HEIGHT) if number else 0 for number in numbers]
        room = max(1.0, sum(heights))
        bars += [
            StackedBar(kind, at, 1 - sum(heights[: of + 1]) / room, heights[of] / room, numbers[of])
            for of, kind in enumerate(series)
            if numbers[of]
        ]
    return bars


def output_file(file: Mapping[str, Any]) -> Markup:
    """Returns a link to a file that a function wrote, with its size, and a thumbnail if it may be a
    picture."""
    volume, path, size = file["volume"], file["relative_path"], file["size"]
    picture = Markup('<img class="thumb" loading="lazy" alt="" src="{}">').format(url("volumes", volume, "content", path=path))
    shown = picture if may_be_thumbnail(path, size) else ""
    page, text = url("volumes", volume, "files", path=path), one_line(printable(path))
    return Markup('<a href="{}">{}{}</a> <span class="dim">{}</span>').format(page, shown, text, format_size(size))


def may_be_thumbnail(path: str, size: int | None = None) -> bool:
    """Returns whether a file is a picture by its name, and not known to be too large for a page with many."""
    return may_be_picture(path) and (size or 0) <= _LARGEST_THUMBNAIL


def url(*parts: str, **query: Any) -> str:
    """Returns the path of a page from its parts, which may be any text, with a query of the non-empty
    values."""
    path = "".join(f"/{quote(part.encode('utf-8', 'surrogateescape'), safe='')}" for part in parts) or "/"
    present = {
        name: str(item).encode("utf-8", "surrogateescape") for name, item in query.items() if item is not None and item != ""
    }
    return f"{path}?{urlencode(present)}" if present else path


# Responses: facts as HTML for browsers or as JSON for programs, and errors in both forms.

#: Maximum bytes of a form, seconds for a body to arrive, and number of fields in a form.
_MAX_FORM, _FORM_SECONDS, _MAX_FIELDS = 1 << 20, 10.0, 10_000

_TITLES = {
    400: "Invalid request",
    401: "The console is locked",
    403: "Refused",
    404: "Not found",
    405: "Method not allowed",
    409: "Not now",
    421: "Unknown host",
    429: "Later",
    500: "A bug in volstream",
    503: "Service unavailable",
}


@dataclass(frozen=True)
class ErrorDetails:
    """The details of an error. ``type``: its class."""

    type: str
    message: str
    remedy: str


@dataclass(frozen=True)
class ErrorAnswer:
    """The response to a request that failed."""

    error: ErrorDetails


def wants_json(request: Request) -> bool:
    """Returns whether a program makes the request: browsers prefer HTML."""
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def query_of(request: Request) -> Query:
    """Returns the parameters in the URL."""
    names = request.query_params.keys()
    return Query({name: request.query_params.getlist(name) for name in names})


async def body_of(request: Request, max_bytes: int = _MAX_FORM) -> bytes:
    """Returns the body. Raises HTTPException if it is larger than ``max_bytes``, or arrives too slowly."""
    body = b""
    try:
        async with asyncio.timeout(_FORM_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    raise HTTPException(413, "The body is too large.")
    except (TimeoutError, ClientDisconnect):
        raise HTTPException(408, "The body did not arrive.") from None
    return body


async def form_of(request: Request) -> Query:
    """Returns the parameters in the body, which is a form. Raises HTTPException as :func:`body_of`."""
    body = await body_of(request)
    try:
        fields = parse_qs(body.decode("ascii"), errors="surrogateescape", max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise HTTPException(400, "The body is not a form.") from None
    return Query(fields)


def json_answer(value: Any, status: int = 200) -> Response:
    """Returns a document."""
    return Response(f"{to_json(value)}\n", status, media_type="application/json")


def page_answer(request: Request, template: str, facts: dict[str, Any], status: int = 200) -> Response:
    """Returns a page of the console."""
    text = render(template, **{**facts, "topics": facts.get("topics", ""), "path": request.scope["path"]})
    return HTMLResponse(text, status)


def refusal(request: Request, status: int, why: str) -> Response:
    """Returns the response to a refused request."""
    if wants_json(request) or request.method not in ("GET", "HEAD"):
        return json_answer(ErrorAnswer(ErrorDetails("Refused", why, _HOW_TO_OPEN)), status)
    title = _TITLES.get(status, "Refused")
    return HTMLResponse(render("locked.html", title=title, why=why, locked=status == 401), status)


#: How to get access.
_HOW_TO_OPEN = "Run: volstream console. Programs send the content of console.token as Authorization: Bearer."


def error_answer(request: Request, error: Exception) -> Response:
    """Returns the response for an error."""
    status = status_of(error)
    if isinstance(error, VolstreamError):
        kind, message, remedy = type(error).__name__, error.message, error.remedy
    elif isinstance(error, HTTPException):
        kind, message, remedy = "Refused", str(error.detail), ""
    else:
        kind, message, remedy = "Bug", f"{type(error).__name__}: {error}", "Please report it with the daemon's log."
    # Not by a form of the console.
    posted = request.method == "POST" and "text/html" not in request.headers.get("accept", "")
    if posted or wants_json(request):
        response = json_answer(ErrorAnswer(ErrorDetails(kind, message, remedy)), status)
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            response.headers["retry-after"] = "10"
        return response
    title = _TITLES.get(status, _TITLES[400])
    return page_answer(request, "error.html", {"title": title, "message": message, "remedy": remedy}, status)


def status_of(error: Exception) -> int:
    """Returns the HTTP status of an error."""
    match error:
        case HTTPException():
            return error.status_code
        case NotFoundError():
            return 404
        case BehindError():
            return 429
        case InvalidStateError() | ObjectInUseError() | StreamBusyError():
            return 409
        case UserError():
            return 400
        case DependencyError():
            return 503
        case _:
            return 500
