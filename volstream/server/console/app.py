"""The application: routes from the tables of pages and actions, probes, metrics, events and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import anyio
from anyio import CapacityLimiter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
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
from volstream.server.console.access import Access, bearer, same
from volstream.server.console.actions import ACTIONS, Action, ActionResult, Actions
from volstream.server.console.answers import (
    body_of,
    error_answer,
    form_of,
    json_answer,
    page_answer,
    query_of,
    refusal,
    wants_json,
)
from volstream.server.console.facts import PageRequest
from volstream.server.console.live import LiveEvents
from volstream.server.console.openapi import document
from volstream.server.console.queries import Queries
from volstream.server.console.query import Query
from volstream.server.console.rendering import STATIC
from volstream.server.console.routes import PAGES, Page

T = TypeVar("T")

_log = get("console")

#: A probe: returns whether all is well, and details.
Probe = Callable[[], tuple[bool, Mapping[str, Any]]]

#: Pages that are made at once: fewer than the catalog has connections.
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
        ready: whether all moves on that the daemon keeps, and what it knows of itself.
        cluster: the virtual cluster whose daemons do what takes long.
        queued: called when there is a task to begin or to cancel.

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
        access = Middleware(Access, hosts=known_hosts(settings), token=token_of(settings), refuse=refusal)
        self.app = _application([*_probe_routes(healthy, self._readiness, collector), *self._routes()], access)

    def stop(self) -> None:
        """Ends events and queries. Idempotent."""
        self._live.stop()
        self._queries.stop()

    def _readiness(self) -> tuple[bool, Mapping[str, Any]]:
        """Returns what the daemon knows of itself, with all that is wrong in the home, which other daemons may keep."""
        ready, details = self._ready()
        try:
            wrong = problems(status(self._session.home), details)
        except CatalogError as error:
            return False, {**details, "status": "not ready", "catalog": str(error)}
        jobs = {problem.name: problem.why for problem in wrong if problem.kind == "job" and problem.severe}
        return ready, {**details, **({"failing_jobs": jobs} if jobs else {}), "problems": wrong}

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
            asked = self._asked(request)
            facts = page.facts(asked)
            return self._shown(request, page, facts)

        return await self._in_thread(make)

    def _asked(self, request: Request) -> PageRequest:
        return PageRequest(self._session, self._probed, request.path_params, query_of(request), self._queries)

    def _shown(self, request: Request, page: Page, facts: Any) -> Response:
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
        return _answer(request, done, form)

    async def _cancel(self, request: Request) -> Response:
        form = await form_of(request)
        done = await self._in_thread(partial(self._actions.cancel, request.path_params["task"], _requester(request)))
        return _answer(request, done, form)

    async def _query(self, request: Request) -> Response:
        form = await form_of(request)
        text, page = form.text("q") or "", next(page for page in PAGES if page.path == "/sql")
        facts = replace(page.facts(self._asked(request)), query=text)
        try:
            result = await anyio.to_thread.run_sync(partial(self._queries.run, text, form.limit))
            facts = replace(facts, result=result)
        except VolstreamError as error:
            if wants_json(request):
                raise
            facts = replace(facts, error=error)
        return self._shown(request, page, facts)

    async def _examine(self, request: Request) -> Response:
        form = await form_of(request)
        page = next(page for page in PAGES if page.path == "/doctor")

        def make() -> Response:
            name = form.text("volume")
            checks = list(examine(self._session.home, name))
            return self._shown(request, page, replace(page.facts(self._asked(request)), volume=name, checks=checks))

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
            return Response(status_code=204)  # of a page with many pictures one is none: its place stays empty
        # A browser's viewer of PDFs, which runs apart from the page, is not allowed in a sandbox.
        policy = "default-src 'none'; object-src 'self'" if kind == previews.PDF else "default-src 'none'; sandbox"
        return Response(content, media_type=kind, headers={"content-security-policy": policy})

    async def _posted(self, request: Request) -> Response:
        """Takes events for a volume. The answer follows once they are noted, so that a sender may rely on it."""
        given = bearer(request.headers) or query_of(request).text("token") or request.headers.get("authorization", "")
        body = await body_of(request, routing.MAX_BYTES)

        def take() -> Response:
            catalog = self._session.home.catalog
            secret = token_of(self._session.home.settings)
            try:
                volume = routing.posted_to(catalog, request.path_params["volume"])
            except UserError:  # the same answer: without the token, nobody learns which volumes exist
                volume = None
            if volume is None or not same(given, routing.token_of(secret, volume)):
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
        def answer(_request: Request) -> Response:
            well, said = probe()
            return json_answer(said, 200 if well else 503)

        return answer

    def metrics(_request: Request) -> Response:
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return [Route("/healthz", probed(healthy)), Route("/readyz", probed(ready)), Route("/metrics", metrics)]


async def _error(request: Request, error: Exception) -> Response:
    if request.scope["path"] in ("/healthz", "/readyz", "/metrics") and isinstance(error, VolstreamError):
        return PlainTextResponse(f"{error}\n", 503)
    return await anyio.to_thread.run_sync(error_answer, request, error)


class _Bugs:
    """Answers requests that end with an unexpected error, inside the middleware that adds headers to all answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:  # noqa: BLE001  # the outermost handler of a request: anything else is a bug
            _log.error("request_failed", path=scope.get("path"), exc_info=error)
            if not begun:
                request = Request(scope, receive)
                await (await _error(request, error))(scope, receive, send)


def _answer(request: Request, done: ActionResult, form: Query) -> Response:
    """Answers what was done: a page goes back to where it was asked for, or to what follows it."""
    if not wants_json(request):
        back = form.text("back")
        return RedirectResponse(f"{_back(back)}?done={done.audit}" if back or not done.url else done.url, 303)
    answer = json_answer(done, 200 if done.finished else 202)
    if done.url:
        answer.headers["location"] = done.url
    return answer


def _requester(request: Request) -> str:
    """Returns who asks, for the audit."""
    address = request.client.host if request.client else ""
    return f"{request.scope['state']['who']} {address}".strip()


def _back(back: str | None) -> str:
    """Returns the path of one of our pages to go back to after an action."""
    path = (back or "/").partition("?")[0]
    return path if path.startswith("/") and not path.startswith("//") and "\\" not in path else "/"
