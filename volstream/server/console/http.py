"""Requests and answers of the console: access, parameters, and answers as HTML or JSON."""

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

# The parameters of a request: text, checked where it is read.

#: Rows of a page of a table: by default, and at most.
_ROWS, _MAX_ROWS = 50, 500

#: Sorts after any number of rows that a page can have.
_MAX_NUMBER = 1 << 53


@dataclass(frozen=True)
class Query:
    """Parameters by name; each may be given several times."""

    values: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """Returns a parameter; None if it is missing or empty."""
        values = self.values.get(name, ())
        return values[-1] if values and values[-1] else None

    def texts(self, name: str) -> Sequence[str]:
        """Returns all values of a parameter that are not empty."""
        return [value for value in self.values.get(name, ()) if value]

    def number(self, name: str) -> int | None:
        """Returns a parameter as a number; None if it is missing. Raises InvalidValueError."""
        text = self.text(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdecimal() or len(text) > 16 or int(text) > _MAX_NUMBER:
            raise InvalidValueError(f"{name} cannot be {text[:50]!r}.", "Give a whole number.")
        return int(text)

    def flag(self, name: str) -> bool:
        """True if a parameter is 1; False if it is 0 or missing. Raises InvalidValueError."""
        text = self.text(name)
        if text not in (None, "0", "1"):
            raise InvalidValueError(f"{name} cannot be {text[:50]!r}.", "Give 1, or leave it out.")
        return text == "1"

    @property
    def limit(self) -> int:
        """Returns how many rows a table of the answer may have. Raises InvalidValueError."""
        number = self.number("limit")
        if number is not None and not 1 <= number <= _MAX_ROWS:
            raise InvalidValueError(f"limit cannot be {number}.", f"Give a number from 1 to {_MAX_ROWS}.")
        return number or _ROWS


# Who may ask what: the token, the cookie that stands for it, the host that a request names, and where an
# action comes from.
#
# As in Jupyter: ``?token=`` in a URL becomes a cookie, programs send ``Authorization: Bearer``. A cookie
# cannot be used by other sites: it is strict, and an action must come from a page of the same origin. What
# does not belong here: what is answered.

#: Paths that need no token: probes, metrics, and files that are the same in every installation.
_OPEN_PATHS = ("/healthz", "/readyz", "/metrics")
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
        exposed: the network reaches this address, as probes and Prometheus do, which name it as they like.
    """

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str], token: str | None, refuse: Refusal, exposed: bool = False) -> None:
        self._app = app
        self._hosts = hosts
        self._exposed = exposed
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
        # Not request.url, of which the Host header is a part: the router, too, goes by the scope.
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


# Pages as HTML: escaped strictly, with names that cannot mislead, and numbers, sizes and times as people read
# them.

#: Larger files are not fetched for a thumbnail, bytes.
_LARGEST_THUMBNAIL = 4 << 20

#: The least height of a bar, as a part of the chart's.
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
    """Converts what a template prints: text that is not HTML cannot carry characters that mislead."""
    if value is None:
        return ""
    return value if hasattr(value, "__html__") else one_line(printable(str(value)))


def block(text: str) -> Markup:
    """Returns text of several lines, such as a traceback."""
    return Markup(escape(visible(printable(text))))  # it is escaped


def number(value: float | None) -> str:
    """Returns a number with its thousands apart, or a dash."""
    if value is None:
        return "—"
    if isinstance(value, int) or abs(value) >= 100:
        return Markup(f"{round(value):,}".replace(",", "&#8239;"))  # digits only
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"


def seconds(value: float | None) -> str:
    """Returns a duration for people, or a dash."""
    if value is None:
        return "—"
    return f"{value:.1f} s" if value < 10 else about(value)


def when(moment: datetime | None, missing: str = "—") -> Markup:
    """Returns a time: in UTC, for a script to convert to the reader's zone."""
    if moment is None:
        return Markup(escape(missing))  # it is escaped
    utc = moment.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        f"{utc:%Y-%m-%dT%H:%M:%S}Z", f"{utc:%Y-%m-%d %H:%M:%S} UTC", f"{utc:%Y-%m-%d %H:%M} UTC"
    )


def value(cell: Any) -> Any:
    """Returns a value of a table's row, whatever its type is."""
    if cell is None:
        return Markup('<span class="none">null</span>')
    if isinstance(cell, OutputFile):
        return output_file(cell)
    if isinstance(cell, list) and cell and isinstance(cell[0], OutputFile):
        return Markup(" ").join(output_file(one) for one in cell)
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
    """A bar of a chart of height 1: of the kind, upwards from those of the kinds before."""

    kind: str
    at: int
    top: float
    height: float
    number: float


def stacked(series: Mapping[str, Sequence[float]]) -> list[StackedBar]:
    """Returns the bars of a chart: those of all kinds at one place upon each other, the highest of height 1, none invisible."""
    places = list(zip(*series.values(), strict=True))
    most = max(map(sum, places), default=0) or 1
    bars = []
    for at, numbers in enumerate(places):
        heights = [max(number / most, _LEAST_HEIGHT) if number else 0 for number in numbers]
        room = max(1.0, sum(heights))
        bars += [
            StackedBar(kind, at, 1 - sum(heights[: of + 1]) / room, heights[of] / room, numbers[of])
            for of, kind in enumerate(series)
            if numbers[of]
        ]
    return bars


def output_file(file: Mapping[str, Any]) -> Markup:
    """Returns a link to a file that a function wrote, with its size, and the picture if it may be one."""
    volume, path, size = file["volume"], file["relative_path"], file["size"]
    picture = Markup('<img class="thumb" loading="lazy" alt="" src="{}">').format(url("volumes", volume, "content", path=path))
    shown = picture if may_be_thumbnail(path, size) else ""
    page, text = url("volumes", volume, "files", path=path), one_line(printable(path))
    return Markup('<a href="{}">{}{}</a> <span class="dim">{}</span>').format(page, shown, text, format_size(size))


def may_be_thumbnail(path: str, size: int | None = None) -> bool:
    """True if a file is by its name a picture, and not known to be too large to be fetched for a page with many."""
    return may_be_picture(path) and (size or 0) <= _LARGEST_THUMBNAIL


def url(*parts: str, **query: Any) -> str:
    """Returns the path of a page from its parts, which may be any text, with a query of those values that are there."""
    path = "".join(f"/{quote(part.encode('utf-8', 'surrogateescape'), safe='')}" for part in parts) or "/"
    present = {
        name: str(item).encode("utf-8", "surrogateescape") for name, item in query.items() if item is not None and item != ""
    }
    return f"{path}?{urlencode(present)}" if present else path


# Answers to requests: facts as HTML for browsers or as JSON for programs, and errors as both.

#: Bytes of a form, seconds for a body to arrive, and fields of a form.
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
    """What went wrong. ``type``: the class of the error."""

    type: str
    message: str
    remedy: str


@dataclass(frozen=True)
class ErrorAnswer:
    """The answer to a request that failed."""

    error: ErrorDetails


def wants_json(request: Request) -> bool:
    """True if a program asks: browsers accept HTML before anything else."""
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def query_of(request: Request) -> Query:
    """Returns the parameters in the URL."""
    names = request.query_params.keys()
    return Query({name: request.query_params.getlist(name) for name in names})


async def body_of(request: Request, most: int = _MAX_FORM) -> bytes:
    """Returns the body. Raises HTTPException if it is larger than ``most`` bytes, or arrives too slowly."""
    body = b""
    try:
        async with asyncio.timeout(_FORM_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > most:
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
    """Returns the answer to a request that is not let through."""
    if wants_json(request) or request.method not in ("GET", "HEAD"):
        return json_answer(ErrorAnswer(ErrorDetails("Refused", why, _HOW_TO_OPEN)), status)
    title = _TITLES.get(status, "Refused")
    return HTMLResponse(render("locked.html", title=title, why=why, locked=status == 401), status)


#: How to get in.
_HOW_TO_OPEN = "Run: volstream console. Programs send the content of console.token as Authorization: Bearer."


def error_answer(request: Request, error: Exception) -> Response:
    """Returns the answer for an error."""
    status = status_of(error)
    if isinstance(error, VolstreamError):
        kind, message, remedy = type(error).__name__, error.message, error.remedy
    elif isinstance(error, HTTPException):
        kind, message, remedy = "Refused", str(error.detail), ""
    else:
        kind, message, remedy = "Bug", f"{type(error).__name__}: {error}", "Please report it with the daemon's log."
    posted = request.method == "POST" and "text/html" not in request.headers.get("accept", "")  # not by a form of ours
    if posted or wants_json(request):
        answer = json_answer(ErrorAnswer(ErrorDetails(kind, message, remedy)), status)
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            answer.headers["retry-after"] = "10"
        return answer
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
