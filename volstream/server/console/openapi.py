"""The description of the console's JSON, as OpenAPI: made from the tables of pages and actions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from volstream.server.console.actions import ACTIONS, ActionResult
from volstream.server.console.answers import ErrorAnswer
from volstream.server.console.routes import PAGES

#: What is served beside the pages: the path, the summary, the type of the answer.
_OTHERS = (
    ("/healthz", "Whether the daemon is alive.", "application/json"),
    ("/readyz", "Whether all objects that the daemon keeps make progress; 503 with the reasons if not.", "application/json"),
    ("/metrics", "Metrics for Prometheus.", "text/plain"),
    ("/events", "Server-sent events `change`, with the names of what changed.", "text/event-stream"),
    ("/volumes/{volume}/content", "A file of the volume, if it is a picture.", "image/*"),
)


@dataclass(frozen=True)
class Accepted:
    """How many files the events named."""

    files: int


def document(version: str) -> dict[str, Any]:
    """Returns the OpenAPI document."""
    answers: dict[Any, Any] = {page.path: get_type_hints(page.facts)["return"] for page in PAGES}
    answers |= {kind: kind for kind in (ActionResult, Accepted, ErrorAnswer)}
    schemas, shared = TypeAdapter.json_schemas(
        [(key, "serialization", TypeAdapter(kind)) for key, kind in answers.items()], ref_template="#/components/schemas/{model}"
    )

    def content(key: Any) -> dict[str, Any]:
        return {"application/json": {"schema": schemas[key, "serialization"]}}

    def operation(
        path: str, summary: str, parameters: Mapping[str, str], answer: dict[str, Any], status: int = 200
    ) -> dict[str, Any]:
        names = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in re.findall(r"{(\w+)}", path)
        ]
        queried = [
            {"name": name, "in": "query", "description": text, "schema": {"type": "string"}} for name, text in parameters.items()
        ]
        responses = {
            str(status): {"description": summary, "content": answer},
            "default": {"description": "It failed.", "content": content(ErrorAnswer)},
        }
        return {"summary": summary, "parameters": [*names, *queried], "responses": responses}

    def posted(path: str, summary: str, parameters: Mapping[str, str], answer: Any = ActionResult, status: int = 200) -> None:
        properties = {name: {"type": "string", "description": text} for name, text in parameters.items()}
        form = {"schema": {"type": "object", "properties": properties}}
        paths.setdefault(path, {})["post"] = {
            **operation(path, summary, {}, content(answer), status),
            "requestBody": {"content": {"application/x-www-form-urlencoded": form}},
        }

    paths: dict[str, dict[str, Any]] = {}
    for page in PAGES:
        paths[page.path] = {"get": operation(page.path, _summary(page.facts), page.parameters, content(page.path))}
    for path, summary, kind in _OTHERS:
        parameters = {"path": "The path of the file."} if "content" in path else {}
        paths[path] = {"get": operation(path, summary, parameters, {kind: {}})}
    for action in ACTIONS:
        path = f"/{action.kind}s/{{{action.kind}}}/{action.verb}"
        summary = f"{_summary(action.work)}{' `url` shows its progress.' if action.waits else ''}"
        posted(path, summary, action.parameters, status=202 if action.waits else 200)
    posted("/tasks/{task}/cancel", "Cancels a queued or running task.", {})
    events = "/volumes/{volume}/events"
    posted(events, "Takes events for a volume with the queue type webhook, as JSON.", {}, Accepted)
    posted("/sql", "Runs a query.", {"q": "The query.", "limit": "Rows, up to 500."}, "/sql")
    posted("/doctor", "Checks the home.", {"volume": "Also check this volume."}, "/doctor")
    return {
        "openapi": "3.1.0",
        "info": {"title": "volstream", "version": version, "description": "Pages of the console as JSON."},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}, "schemas": shared.get("$defs", {})},
        "security": [{"token": []}],
        "paths": paths,
    }


def _summary(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().partition("\n")[0]
