"""The description of the console's JSON, as OpenAPI: made from the tables of pages and actions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from volstream.server.console.actions import ACTIONS
from volstream.server.console.routes import PAGES

_JSON = {"application/json": {"schema": {"type": "object"}}}

_REFUSED = {"description": "The token is missing or wrong."}

#: What is served beside the pages: the path, the summary, the type of the answer.
_OTHERS = (
    ("/healthz", "Whether the daemon is alive.", "application/json"),
    (
        "/readyz",
        "Whether all objects that the daemon keeps make progress; 503 with the reasons if not.",
        "application/json",
    ),
    ("/metrics", "Metrics for Prometheus.", "text/plain"),
    ("/events", "Server-sent events `change`, with the names of what changed.", "text/event-stream"),
    ("/volumes/{volume}/content", "A file of the volume, if it is a picture.", "image/*"),
)


def document(version: str) -> dict[str, Any]:
    """Returns the OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for page in PAGES:
        paths[page.path] = {"get": _operation(page.path, _summary(page.facts), page.parameters)}
    for path, summary, kind in _OTHERS:
        described = _operation(path, summary, {"path": "The path of the file."} if "content" in path else {})
        described["responses"]["200"]["content"] = {kind: {}}
        paths[path] = {"get": described}
    for action in ACTIONS:
        path = f"/{action.kind}s/{{{action.kind}}}/{action.verb}"
        paths.setdefault(path, {})["post"] = _posted(path, _summary(action.work), action.parameters, waits=action.waits)
    cancel = "/tasks/{task}/cancel"
    paths[cancel] = {"post": _posted(cancel, "Cancels a queued or running task.", {})}
    events = "/volumes/{volume}/events"
    paths[events] = {"post": _posted(events, "Takes events for a volume with the queue type webhook, as JSON.", {})}
    paths["/sql"]["post"] = _posted("/sql", "Runs a query.", {"q": "The query.", "limit": "Rows, up to 500."})
    paths["/doctor"]["post"] = _posted("/doctor", "Checks the home.", {"volume": "Also check this volume."})
    return {
        "openapi": "3.1.0",
        "info": {"title": "volstream", "version": version, "description": "Pages of the console as JSON."},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
        "paths": paths,
    }


def _operation(path: str, summary: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    names = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]
    queried = [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in parameters.items()
    ]
    responses = {"200": {"description": summary, "content": _JSON}, "401": _REFUSED}
    if names:
        responses["404"] = {"description": "There is no such object."}
    return {"summary": summary, "parameters": [*names, *queried], "responses": responses}


def _posted(path: str, summary: str, parameters: Mapping[str, str], *, waits: bool = False) -> dict[str, Any]:
    described = _operation(path, summary, {})
    properties = {name: {"type": "string", "description": text} for name, text in parameters.items()}
    described["requestBody"] = {
        "content": {"application/x-www-form-urlencoded": {"schema": {"type": "object", "properties": properties}}}
    }
    if waits:
        described["responses"]["202"] = {
            "description": "Queued; `url` shows its progress.",
            "content": _JSON,
        }
        del described["responses"]["200"]
    return described


def _summary(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().partition("\n")[0]
