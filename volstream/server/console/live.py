"""Notifies pages of changed facts by server-sent events. Reads the catalog once a second for all open
pages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from volstream.base.log import get
from volstream.base.threads import Backoff, FailureTracker
from volstream.catalog.changes import HOME, Changes
from volstream.catalog.database import Database
from volstream.errors import CatalogError

#: Interval of checks while a page is open.
_CHECK_SECONDS = 1.0

#: Something is sent at least this often, so that a dropped connection is noticed.
_QUIET_SECONDS = 15.0

#: Maximum number of open pages, each with a connection.
MAX_PAGES = 32


class _Page:
    """An open page, with the topics whose changes it has not received yet."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.woken = asyncio.Event()


class LiveEvents:
    """The events of one daemon. All methods except :meth:`stop` are for the server's event loop.

    Args:
        database: for these events only.
        probed: returns the daemon's state.
    """

    def __init__(self, database: Database, probed: Callable[[], Mapping[str, Any]]) -> None:
        self._database = database
        self._changes = Changes(database)
        self._probed = probed
        self._last_probe = ""
        self._trouble = FailureTracker("events of pages", get("console"), Backoff())
        self._pages: set[_Page] = set()
        self._watching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # A separate thread, so that a stop does not wait for a query.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="console-changes")
        self._stopped = False

    @property
    def is_full(self) -> bool:
        """Whether no more pages can be served."""
        return len(self._pages) >= MAX_PAGES

    async def events(self) -> AsyncIterator[str]:
        """Yields the events for one page, until it or the server ends."""
        page = _Page()
        self._pages.add(page)
        self._loop = asyncio.get_running_loop()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        try:
            yield "retry: 2000\n\n"
            while not self._stopped:
                try:
                    await asyncio.wait_for(page.woken.wait(), _QUIET_SECONDS)
                except TimeoutError:
                    yield ": nothing new\n\n"
                    continue
                topics, page.topics = page.topics, set()
                page.woken.clear()
                if topics:
                    yield f"event: change\ndata: {json.dumps(sorted(topics))}\n\n"
        finally:
            self._pages.discard(page)

    def stop(self) -> None:
        """Ends all events. May be called from any thread. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, set[str]())
        self._thread.submit(self._database.close)
        self._thread.shutdown(wait=False)

    async def _watch(self) -> None:
        """Checks every second while there are pages. The first check is the baseline."""
        loop, first = asyncio.get_running_loop(), True
        while self._pages and not self._stopped:
            topics = await loop.run_in_executor(self._thread, self._check)
            if topics and not first:
                self._wake(topics)
            first = False
            await asyncio.sleep(_CHECK_SECONDS)

    def _check(self) -> set[str]:
        try:
            probe = repr(self._probed())
            topics = set[str]() if probe == self._last_probe else {HOME}
            self._last_probe = probe
            topics |= self._changes.since_last()
        except CatalogError:  # pages show it on their next request
            return {HOME}
        except Exception as error:  # noqa: BLE001  # the next check may work, and pages still wait for it
            self._trouble.failed(error)
            return set()
        self._trouble.recovered()
        return topics

    def _wake(self, topics: set[str]) -> None:
        for page in self._pages:
            page.topics |= topics
            page.woken.set()
