"""Answers to requests: facts as HTML for browsers or as JSON for programs, and errors as both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response

from volstream.base.model.text import to_json
from volstream.errors import (
    DependencyError,
    InvalidStateError,
    NotFoundError,
    ObjectInUseError,
    StreamBusyError,
    UserError,
    VolstreamError,
)
from volstream.files.volumes.routing import BehindError
from volstream.server.console.query import Query
from volstream.server.console.rendering import render

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
        return json_answer(ErrorAnswer(ErrorDetails("Refused", why, _OPEN)), status)
    title = _TITLES.get(status, "Refused")
    return HTMLResponse(render("locked.html", title=title, why=why, locked=status == 401), status)


#: How to get in.
_OPEN = "Run: volstream console. Programs send the content of console.token as Authorization: Bearer."


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
