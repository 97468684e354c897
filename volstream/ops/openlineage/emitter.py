"""Sends events in a separate thread: a slow or broken transport stops no job, and delays the end of no
process for long."""

from __future__ import annotations

import os
import queue
import threading
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from volstream.base.config import environment
from volstream.base.log import get
from volstream.base.model.work import Intent
from volstream.base.threads import Backoff, FailureTracker
from volstream.catalog.consumptions import BatchOutcome
from volstream.home import Home

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

_log = get("openlineage")

#: Maximum number of waiting events. Beyond it, new events are lost.
_MAX_WAITING = 1000

#: Maximum time that the end of a session waits for its last events.
_END_SECONDS = 5.0


class Emitter:
    """Reports a home's attempts to OpenLineage; a :class:`~volstream.catalog.consumptions.AttemptListener`.

    An attempt is a run, with its id. A process that settles the attempt of a dead one sends the event of its
    end.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._waiting: queue.Queue[tuple[datetime, Intent, BatchOutcome | str | None] | None] = queue.Queue(_MAX_WAITING)
        self._trouble = FailureTracker("openlineage", _log, Backoff())
        self._lost = 0
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._client: OpenLineageClient | None = None

    def began(self, intent: Intent) -> None:
        """See :class:`~volstream.catalog.consumptions.AttemptListener`."""
        self._put(intent, None)

    def ended(self, intent: Intent, outcome: BatchOutcome | None, why: str) -> None:
        """See :class:`~volstream.catalog.consumptions.AttemptListener`."""
        self._put(intent, why if outcome is None else outcome)

    def close(self) -> None:
        """Sends waiting events, for at most a few seconds."""
        self._home.catalog.consumptions.listeners.remove(self)
        if self._thread is None:
            return
        try:
            self._waiting.put_nowait(None)
        except queue.Full:  # the transport is broken
            return
        self._thread.join(_END_SECONDS)

    def _put(self, intent: Intent, end: BatchOutcome | str | None) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="openlineage", daemon=True)
                self._thread.start()
        try:
            self._waiting.put_nowait((datetime.now(UTC), intent, end))
        except queue.Full:
            self._lost += 1
            if self._lost == 1:
                _log.warning("openlineage_events_lost", why=self._trouble.reason or "the transport is too slow")

    def _run(self) -> None:
        if not is_installed():
            _log.warning("openlineage_unavailable", do="run: pip install 'volstream[openlineage]'")
            return
        while (event := self._waiting.get()) is not None:
            try:
                self._emit(*event)
            except Exception as error:  # noqa: BLE001  # a transport may raise anything, and the next event may succeed
                self._trouble.failed(error)
            else:
                self._trouble.recovered()
        if self._client is not None:
            self._client.close(_END_SECONDS)

    def _emit(self, when: datetime, intent: Intent, end: BatchOutcome | str | None) -> None:
        from volstream.ops.openlineage.events import Events

        settings: dict[str, Any] = dict(self._home.settings.openlineage)
        namespace = settings.pop("namespace", None)
        event = Events(self._home, namespace).of(when, intent, end)
        if event is None:
            return
        if self._client is None:
            from openlineage.client import OpenLineageClient

            self._client = OpenLineageClient(config=settings or None)
        self._client.emit(event)


#: Environment variables that configure OpenLineage's client.
_VARIABLES = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT", "OPENLINEAGE__TRANSPORT__TYPE")


def start(home: Home) -> Emitter | None:
    """Sends the attempts of this process to OpenLineage, if configured by the setting ``openlineage`` or in
    its client's usual ways.

    Otherwise returns None, which takes microseconds.
    """
    if not home.settings.openlineage and not _configured_elsewhere():
        return None
    if (environment("OPENLINEAGE_DISABLED") or "").lower() == "true":
        return None
    emitter = Emitter(home)
    home.catalog.consumptions.listeners.append(emitter)
    return emitter


def _configured_elsewhere() -> bool:
    files = ("openlineage.yml", os.path.expanduser("~/.openlineage/openlineage.yml"))
    configured = environment(*_VARIABLES) is not None or any(map(os.path.isfile, files))
    return configured and is_installed()


def is_installed() -> bool:
    """Returns whether OpenLineage's client is installed."""
    try:
        return find_spec("openlineage.client") is not None
    except ModuleNotFoundError:
        return False
