"""The application: routes from the tables of pages and actions, probes, metrics, events and files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar, get_type_hints

import anyio
from anyio import CapacityLimiter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from volstream.api.session import Session
from volstream.base.definitions.objects import DEFAULT_VIRTUAL_CLUSTER
from volstream.base.log import get
from volstream.base.model.paths import LOOPBACK
from volstream.base.model.work import AuditEntry
from volstream.base.privacy import known_hosts, token_of
from volstream.catalog.database import Database
from volstream.errors import CatalogError, InvalidValueError, NotFoundError, UserError, VolstreamError
from volstream.files.volumes import routing
from volstream.ops.inspection.doctor import examine
from volstream.ops.inspection.status import problems, status
from volstream.server.console import previews
from volstream.server.console.actions import ACTIONS, Action, ActionResult, Actions
from volstream.server.console.facts import PageRequest, data, jobs, overview
from volstream.server.console.http import (
    STATIC,
    Access,
    ErrorAnswer,
    Query,
    bearer,
    body_of,
    error_answer,
    form_of,
    json_answer,
    page_answer,
    query_of,
    refusal,
    same,
    wants_json,
)
from volstream.server.console.live import LiveEvents
from volstream.server.console.queries import Queries

# The pages and their facts, from which the application and its OpenAPI document are made.


@dataclass(frozen=True)
class Page:
    """A page, as HTML and as JSON.

    Attributes:
        path: with names of objects in braces.
        facts: the page's content, as a dataclass. It describes the JSON, together with its docstring.
        topics: the topics that its facts follow, with names in braces; see :mod:`volstream.catalog.changes`.
        parameters: of the query, with their meaning.
    """

    path: str
    template: str
    facts: Callable[[PageRequest], Any]
    topics: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


_LIMIT = {"limit": "Rows of the answer, up to 500."}

PAGES = (
    Page(
        "/",
        "overview.html",
        overview.overview,
        "*",
        {"span": "Of the timeline: minutes (ten), hour, day or week.", "search": "Only objects whose names contain this."},
    ),
    Page(
        "/volumes/{volume}",
        "volume.html",
        data.volume,
        "volume:{volume} tasks",
        {
            "prefix": "Entries of the directory whose paths begin with this.",
            "search": "Instead: files whose paths contain this.",
            "after": "`directory.next` of an earlier answer.",
            "before": "`refreshes_before` of an earlier answer.",
            **_LIMIT,
        },
    ),
    Page("/volumes/{volume}/files", "file.html", data.file, "volume:{volume}", {"path": "The path of the file."}),
    Page("/jobs/{job}", "job.html", jobs.job, "job:{job} tasks"),
    Page("/jobs/{job}/batches", "batches.html", jobs.batches, "job:{job}", {"before": "`next` of an earlier answer.", **_LIMIT}),
    Page(
        "/jobs/{job}/batches/{batch}", "batch.html", jobs.batch, "job:{job}", {"after": "`next` of an earlier answer.", **_LIMIT}
    ),
    Page(
        "/jobs/{job}/failures",
        "failures.html",
        jobs.failures,
        "job:{job}",
        {"group": "Only those of this group.", "after": "`next` of an earlier answer.", **_LIMIT},
    ),
    Page(
        "/jobs/{job}/logs",
        "logs.html",
        jobs.log,
        "job:{job}",
        {"path": "Only what was printed for this file.", "batch": "Only what was printed in this batch."},
    ),
    Page(
        "/jobs/{job}/code",
        "code.html",
        jobs.code,
        "job:{job}",
        {"old": "Number of the version to compare.", "new": "Number of the other; default: the newest."},
    ),
    Page(
        "/failures",
        "all_failures.html",
        jobs.all_failures,
        "*",
        {"search": "Only failures whose message, path or job contains this."},
    ),
    Page("/tasks", "tasks.html", overview.tasks, "tasks"),
    Page("/tasks/{task}", "task.html", overview.task, "tasks"),
    Page("/tables", "tables.html", data.tables),
    Page("/tables/{table}", "table.html", data.table),
    Page("/graph", "graph.html", data.graph, "*"),
    Page("/sql", "sql.html", data.sql, parameters={"q": "The query to show; it is not run."}),
    Page("/settings", "settings.html", overview.settings),
    Page("/doctor", "doctor.html", overview.doctor),
    Page("/audit", "audit.html", overview.audit, "home", {"before": "`next` of an earlier answer.", **_LIMIT}),
)


# The OpenAPI document of the console's JSON, made from the tables of pages and actions.

#: Further paths: the path, the summary, the type of the response.
_OTHERS = (
    ("/healthz", "Whether the daemon is alive.", "application/json"),
    ("/readyz", "Whether all objects that the daemon keeps make progress; 503 with the reasons if not.", "application/json"),
    ("/metrics", "Metrics for Prometheus.", "text/plain"),
    ("/events", "Server-sent events `change`, with the names of what changed.", "text/event-stream"),
    ("/volumes/{volume}/content", "A file of the volume, if it is a picture.", "image/*"),
)


@dataclass(frozen=True)
class Accepted:
    """The number of files that the events named."""

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


T = TypeVar("T")

_log = get("console")

#: A probe: returns whether all is well, and details.
Probe = Callable[[], tuple[bool, Mapping[str, Any]]]

#: Maximum number of pages made concurrently, less than the number of the catalog's connections.
_MAX_MAKING = 6


def probes(healthy: Probe, ready: Probe, collector: Collector) -> Starlette:
    """Returns an application with ``/healthz``, ``/readyz`` and ``/metrics`` only.

    Args:
        healthy: whether the process should keep running.
        ready: whether it is doing its work now.
    """
    access = Middleware(Access, hosts=frozenset(LOOPBACK), token=None, refuse=refusal)
    return _application(_probe_routes(healthy, ready, collector), access)


class Console:
    """The console of a daemon.

    Args:
        ready: whether everything that the daemon keeps makes progress, and the daemon's state.
        cluster: the virtual cluster whose daemons run the tasks.
        queued: called when there is a task to start or to cancel.

    Attributes:
        app: the application.
    """

    def __init__(
        self,
        session: Session,
        healthy: Probe,
        ready: Probe,
        collector: Collector,
        cluster: str = DEFAULT_VIRTUAL_CLUSTER,
        queued: Callable[[], None] = lambda: None,
    ) -> None:
        settings = session.home.settings
        self._session = session
        self._ready = ready
        self._probed = lambda: ready()[1]
        self._queries = Queries(session)
        self._live = LiveEvents(Database(settings.database_url), self._probed)
        self._actions = Actions(session, cluster, queued)
        self._making = CapacityLimiter(_MAX_MAKING)
        self._posts = routing.PostedEvents(session.home.catalog)
        self._taking = CapacityLimiter(1)
        self._version = version("volstream")
        exposed = settings.console_address not in LOOPBACK
        access = Middleware(Access, hosts=known_hosts(settings), token=token_of(settings), refuse=refusal, exposed=exposed)
        self.app = _application([*_probe_routes(healthy, self._readiness, collector), *self._routes()], access)

    def stop(self) -> None:
        """Ends events and queries. Idempotent."""
        self._live.stop()
        self._queries.stop()

    def _readiness(self) -> tuple[bool, Mapping[str, Any]]:
        """Returns the daemon's state, with all problems in the home, which may concern other daemons."""
        ready, details = self._ready()
        try:
            found = problems(status(self._session.home), details)
        except CatalogError as error:
            return False, {**details, "status": "not ready", "catalog": str(error)}
        jobs = {problem.name: problem.why for problem in found if problem.kind == "job" and problem.severe}
        return ready, {**details, **({"failing_jobs": jobs} if jobs else {}), "problems": found}

    def _routes(self) -> list[BaseRoute]:
        pages = [Route(page.path, partial(self._page, page), methods=["GET"]) for page in PAGES]
        actions = [
            Route(f"/{action.kind}s/{{name}}/{action.verb}", partial(self._action, action), methods=["POST"])
            for action in ACTIONS
        ]
        others = [
            Route("/sql", self._query, methods=["POST"]),
            Route("/doctor", self._examine, methods=["POST"]),
            Route("/tasks/{task}/cancel", self._cancel, methods=["POST"]),
            Route("/events", self._events),
            Route("/openapi.json", self._openapi),
            Route("/volumes/{volume}/content", self._content),
            Route("/volumes/{volume}/events", self._posted, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        return [*pages, *actions, *others]

    async def _page(self, page: Page, request: Request) -> Response:
        def make() -> Response:
            given = self._input(request)
            facts = page.facts(given)
            return self._render(request, page, facts)

        return await self._in_thread(make)

    def _input(self, request: Request) -> PageRequest:
        return PageRequest(self._session, self._probed, request.path_params, query_of(request), self._queries)

    def _render(self, request: Request, page: Page, facts: Any) -> Response:
        if wants_json(request):
            return json_answer(facts)
        topics = page.topics.format(**request.path_params)
        more = {"topics": topics, "done": self._done(request)}
        return page_answer(request, page.template, {**vars(facts), **more})

    def _done(self, request: Request) -> AuditEntry | None:
        """Returns the action after which a page is shown."""
        entry = query_of(request).number("done")
        return None if entry is None else self._session.home.catalog.audit.entry(entry)

    async def _action(self, action: Action, request: Request) -> Response:
        form = await form_of(request)
        name = request.path_params["name"]
        done = await self._in_thread(partial(self._actions.perform, action, name, form, _requester(request)))
        return _action_response(request, done, form)

    async def _cancel(self, request: Request) -> Response:
        form = await form_of(request)
        done = await self._in_thread(partial(self._actions.cancel, request.path_params["task"], _requester(request)))
        return _action_response(request, done, form)

    async def _query(self, request: Request) -> Response:
        form = await form_of(request)
        text, page = form.text("q") or "", next(page for page in PAGES if page.path == "/sql")
        facts = replace(page.facts(self._input(request)), query=text)
        try:
            result = await anyio.to_thread.run_sync(partial(self._queries.run, text, form.limit))
            facts = replace(facts, result=result)
        except VolstreamError as error:
            if wants_json(request):
                raise
            facts = replace(facts, error=error)
        return self._render(request, page, facts)

    async def _examine(self, request: Request) -> Response:
        form = await form_of(request)
        page = next(page for page in PAGES if page.path == "/doctor")

        def make() -> Response:
            name = form.text("volume")
            checks = list(examine(self._session.home, name))
            return self._render(request, page, replace(page.facts(self._input(request)), volume=name, checks=checks))

        return await self._in_thread(make)

    async def _content(self, request: Request) -> Response:
        path = query_of(request).text("path") or ""
        try:
            kind, content = await self._in_thread(
                lambda: previews.content(self._session.home, request.path_params["volume"], path)
            )
        except (InvalidValueError, NotFoundError):
            if request.headers.get("sec-fetch-dest") != "image":
                raise
            return Response(status_code=204)  # on a page with many pictures, its place stays empty
        # A browser's viewer of PDFs, which runs apart from the page, is not allowed in a sandbox.
        policy = "default-src 'none'; object-src 'self'" if kind == previews.PDF else "default-src 'none'; sandbox"
        return Response(content, media_type=kind, headers={"content-security-policy": policy})

    async def _posted(self, request: Request) -> Response:
        """Takes events for a volume.

        The response follows once they are recorded, so that the sender may rely on it.
        """
        token = bearer(request.headers) or query_of(request).text("token") or request.headers.get("authorization", "")
        body = await body_of(request, routing.MAX_BYTES)

        def take() -> Response:
            catalog = self._session.home.catalog
            secret = token_of(self._session.home.settings)
            try:
                volume = routing.posted_to(catalog, request.path_params["volume"])
            except UserError:  # the same response: without the token, nobody learns which volumes exist
                volume = None
            if volume is None or not same(token, routing.token_of(secret, volume)):
                raise HTTPException(401, "The token belongs to no volume that accepts events.")
            return json_answer({"files": self._posts.accept(volume, body)})

        return await anyio.to_thread.run_sync(take, limiter=self._taking)

    async def _events(self, _request: Request) -> Response:
        if self._live.is_full:
            raise HTTPException(503, "Too many pages are open.")
        return StreamingResponse(self._live.events(), media_type="text/event-stream")

    async def _openapi(self, _request: Request) -> Response:
        return json_answer(document(self._version))

    async def _in_thread(self, make: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(make, limiter=self._making)


def _application(routes: list[BaseRoute], access: Middleware) -> Starlette:
    handlers = {HTTPException: _error, VolstreamError: _error}
    return Starlette(routes=routes, middleware=[access, Middleware(_Bugs)], exception_handlers=handlers)


def _probe_routes(healthy: Probe, ready: Probe, collector: Collector) -> list[BaseRoute]:
    registry = CollectorRegistry()
    registry.register(collector)

    def probed(probe: Probe) -> Callable[[Request], Response]:
        def respond(_request: Request) -> Response:
            is_well, details = probe()
            return json_answer(details, 200 if is_well else 503)

        return respond

    def metrics(_request: Request) -> Response:
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return [Route("/healthz", probed(healthy)), Route("/readyz", probed(ready)), Route("/metrics", metrics)]


async def _error(request: Request, error: Exception) -> Response:
    if request.scope["path"] in ("/healthz", "/readyz", "/metrics") and isinstance(error, VolstreamError):
        return PlainTextResponse(f"{error}\n", 503)
    return await anyio.to_thread.run_sync(error_answer, request, error)


class _Bugs:
    """Responds to requests that end with an unexpected error, inside the middleware that adds headers to all
    responses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def tracked_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, tracked_send)
        except Exception as error:  # noqa: BLE001  # a request's outermost handler
            _log.error("request_failed", path=scope.get("path"), exc_info=error)
            if not started:
                request = Request(scope, receive)
                await (await _error(request, error))(scope, receive, send)


def _action_response(request: Request, done: ActionResult, form: Query) -> Response:
    """Responds to an action: a page goes back to its origin, or to the page that follows the action."""
    if not wants_json(request):
        back = form.text("back")
        return RedirectResponse(f"{_back(back)}?done={done.audit}" if back or not done.url else done.url, 303)
    response = json_answer(done, 200 if done.finished else 202)
    if done.url:
        response.headers["location"] = done.url
    return response


def _requester(request: Request) -> str:
    """Returns the requester, for the audit."""
    address = request.client.host if request.client else ""
    return f"{request.scope['state']['who']} {address}".strip()


def _back(back: str | None) -> str:
    """Returns the path of the console's page to go back to after an action."""
    path = (back or "/").partition("?")[0]
    return path if path.startswith("/") and not path.startswith("//") and "\\" not in path else "/"
