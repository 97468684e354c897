"""One volume's thread in the daemon: hear, fold, refresh, acknowledge; list at the start, on a schedule, and when asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from volstream.catalog import Catalog
from volstream.catalog.leases import held
from volstream.config import Settings
from volstream.directory.fold import Fold
from volstream.directory.keeper import DirectoryKeeper, lease_name
from volstream.lifecycle.backoff import Backoff
from volstream.lifecycle.identity import new_owner
from volstream.lifecycle.stop import Stop
from volstream.lifecycle.supervisor import run_loop
from volstream.log import get
from volstream.model.hints import Hint, Rejection, SubtreeHint
from volstream.model.objects import Volume
from volstream.queues import open_queue, parser_for
from volstream.queues.base import Message, QueueSettings
from volstream.spark.session import SparkGateway

_log = get("volume")

#: Messages of one receive. A tick takes what is there; what comes meanwhile is the next tick's.
_RECEIVE = 1000

#: Longest wait for a message: how soon requests of other processes and the schedule are seen.
_WAIT_SECONDS = 0.5

#: A tick waits so long for one more message, and gathers for so long at most.
_HEELS_SECONDS, _GATHER_SECONDS = 0.05, 1.0

#: After so many commits the table's files are looked at: when nothing happened for a while, or after many more anyway.
_IDLE_COMMITS, _IDLE_SECONDS, _BUSY_COMMITS = 10, 5.0, 100

#: How often the lease of another writer is tried.
_LEASE_SECONDS = 1.0


class VolumeWorker:
    """Keeps one volume until it is stopped. While another process holds the volume's lease it waits.

    Args:
        changed: called after each commit, with the volume's id.
    """

    def __init__(
        self,
        volume: Volume,
        catalog: Catalog,
        gateway: SparkGateway,
        settings: Settings,
        changed: Callable[[str], None],
    ) -> None:
        self.volume = volume
        self.stop = Stop()
        self.queue_depth: int | None = None
        self.last_event: datetime | None = None
        self.last_tick_seconds = 0.0
        self.refreshed_rows = 0
        self._catalog = catalog
        self._settings = settings
        self._changed = changed
        self._keeper = DirectoryKeeper(volume, catalog, gateway, settings, self.stop.wait)
        self._queue = open_queue(
            volume.queue_type,
            location=volume.location,
            selection=volume.selection,
            settings=QueueSettings(
                debounce_seconds=settings.debounce_seconds,
                poll_seconds=settings.poll_seconds,
                visibility_seconds=max(60.0, settings.engine_stall_seconds * 2),
            ),
        )
        self._parse = parser_for(volume.queue_type)
        self._fold = Fold(volume.selection)
        self._unacknowledged: list[Message] = []
        self._asked: list[Hint] = []
        self._listed = float("-inf")
        self._armed = False
        self._commits = _IDLE_COMMITS  # what was before is not known
        self._committed = float("-inf")

    def run(self) -> None:
        """The thread: returns when it is stopped; raises what a restart of the daemon may mend."""
        owner = new_owner()
        purpose = f"daemon's writer of volume {self.volume.name}"
        while not self.stop:
            with held(
                self._catalog.leases, lease_name(self.volume), owner, purpose, self._settings.lease_seconds
            ) as other:
                if other is None:
                    self._serve()
            self.stop.wait(_LEASE_SECONDS)

    def _serve(self) -> None:
        try:
            run_loop(f"volume {self.volume.name}", self._tick, self.stop, _log, Backoff(cap_seconds=30.0))
        finally:
            self._queue.stop()

    def _tick(self) -> None:
        """Hears for a moment, and brings the directory up to what was heard. What fails stays in the fold."""
        if not self._armed:  # first the watch, then the listing: nothing falls between them
            self._queue.start()
            self._armed = True
        if time.monotonic() - self._listed >= self._settings.reconcile_seconds:
            self._fold.add([SubtreeHint("", "reconcile" if self.volume.reconciled_on else "bootstrap")])
        else:
            self._hear()
        asked = self._keeper.asked()
        self._fold.add(asked)
        self.queue_depth = self._queue.depth()
        if self._fold:
            self._refresh(asked)
        self._acknowledge()
        idle = time.monotonic() - self._committed >= _IDLE_SECONDS
        if self._commits >= (_IDLE_COMMITS if idle else _BUSY_COMMITS):
            self._keeper.compact()
            self._commits = 0

    def _hear(self) -> None:
        """Takes what is there, and what follows on its heels: files that are copied together are one refresh."""
        messages = [*self._queue.receive(_RECEIVE, _WAIT_SECONDS)]
        deadline = time.monotonic() + _GATHER_SECONDS
        while messages and time.monotonic() < deadline:
            more = self._queue.receive(_RECEIVE, _HEELS_SECONDS)
            if not more:
                break
            messages += more
        for message in messages:
            self._unacknowledged.append(message)
            parsed = self._parse(message.body)
            if isinstance(parsed, Rejection):
                self._catalog.refreshes.reject(self.volume.id, [parsed])
            else:
                self._fold.add(parsed)
                self.last_event = datetime.now(UTC)

    def _refresh(self, asked: list[Hint]) -> None:
        started = time.monotonic()
        whole = any(prefix == "" for prefix, _ in self._fold.listings())
        tick = self._keeper.take(self._fold)
        if whole:
            self._listed = time.monotonic()
        self._fold = Fold(self.volume.selection)
        self._keeper.answered(asked)
        self.last_tick_seconds = time.monotonic() - started
        self.refreshed_rows += tick.counts.inserted + tick.counts.updated + tick.counts.deleted
        if tick.commits:
            self._commits += tick.commits
            self._committed = time.monotonic()
            self._changed(self.volume.id)

    def _acknowledge(self) -> None:
        """Only now: the commit that holds the messages' effect is durable."""
        if self._unacknowledged:
            self._queue.acknowledge(self._unacknowledged)
            self._unacknowledged = []
