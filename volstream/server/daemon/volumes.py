"""One volume's thread in the daemon: takes turns at keeping the volume, each for as long as its lease is held. A turn
receives, refreshes and acknowledges; and lists at its start, on a schedule, and on request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import UTC, datetime

from volstream.base.config import Settings
from volstream.base.definitions import Volume
from volstream.base.lifecycle.backoff import Backoff
from volstream.base.lifecycle.stop import Stop
from volstream.base.lifecycle.supervisor import FailureTracker, is_transient, run_loop
from volstream.base.log import get
from volstream.base.model.hint_set import HintSet
from volstream.base.model.hints import Hint, ObjectHint, Rejection
from volstream.catalog import Catalog
from volstream.catalog.conditions import ConditionKind
from volstream.catalog.leases import of_volume
from volstream.changes.directory.keeper import DirectoryKeeper
from volstream.changes.directory.listing import Listing
from volstream.changes.directory.reconcile import ReconcileResult
from volstream.errors import FencedError, InterruptedByUserError, QueueError, StorageError
from volstream.files.queues.base import EventQueue, Message, Settling
from volstream.files.volumes.access import queue_of
from volstream.files.volumes.route import route
from volstream.server.daemon.leased import LeasedWorker
from volstream.server.daemon.share import Share
from volstream.tables.delta.places import reached

_log = get("volume")

#: Maximum number of messages per receive. A tick takes what is there; later messages are left to the next tick.
_RECEIVE = 1000

#: Longest wait for a message; bounds the delay of other processes' requests and of the schedule.
_WAIT_SECONDS = 0.5

#: How long a tick waits for one more message, and how long it gathers at most.
_FOLLOW_SECONDS, _GATHER_SECONDS = 0.05, 1.0

#: The directory's tables are maintained after this idle time, or at the latest after this many commits.
_IDLE_SECONDS, _BUSY_COMMITS = 2.0, 20


class VolumeWorker(LeasedWorker):
    """Keeps one volume until it is ended. While another process holds the volume's lease it waits, also after its own turn.
    Any error with the volume is reported and retried, and does not affect other volumes.

    Args:
        changed: called after each commit, with the volume's id.
        share: this daemon's share; without a free place the volume is left to other daemons.
        queue_of: makes the volume's queue, for each turn.
    """

    def __init__(
        self,
        volume: Volume,
        catalog: Catalog,
        settings: Settings,
        changed: Callable[[str], None],
        share: Share,
        queue_of: Callable[[Volume, Catalog, Settings], EventQueue] = queue_of,
    ) -> None:
        title, condition = f"writer of volume {volume.name}", (ConditionKind.VOLUME, volume.id)
        super().__init__(title, of_volume(volume.id), catalog, settings, _log, condition)
        self.volume = volume
        self.queue_depth: int | None = None
        self.last_event: datetime | None = None
        self.last_tick_seconds = 0.0
        self.refreshed_rows = 0
        self.held_removals = 0
        self.changed = changed
        self.queue_failure = FailureTracker(f"queue of volume {volume.name}", _log, self.backoff, self.record)
        self._share = share
        self._queue_of = queue_of

    @property
    def reason(self) -> str | None:
        """The problem with the volume or its queue; None if there is none."""
        return self.trouble.reason or self.queue_failure.reason

    def follow(self, current: Volume) -> None:
        """Ends the turn if the volume's definition has changed: the next turn begins with the new one, and a listing."""
        if current.definition != self.volume.definition:
            self.hand_over()

    def is_wanted(self) -> bool:
        """See :meth:`LeasedWorker.is_wanted`. Reads the volume's definition."""
        current = self._catalog.volumes.by_id(self.volume.id)
        self.volume = current or self.volume
        return current is not None

    def take_turn(self) -> None:
        """See :meth:`LeasedWorker.take_turn`. Without a free place it returns at once."""
        with self._share.place() as free:
            if free:
                super().take_turn()

    def work(self, turn: Stop) -> None:
        """See :meth:`LeasedWorker.work`."""
        try:
            queue = self._queue_of(self.volume, self._catalog, self._settings)
            _Turn(self, self._catalog, self._settings, queue, turn).run()
        finally:
            self.queue_depth = None
            self.held_removals = 0
            self.queue_failure.recovered()


class _Turn:
    """Keeps a volume without state from earlier turns, because others may have kept it since.

    Args:
        of: receives the numbers.
        stop: set when the lease is lost or to be released.
    """

    def __init__(self, of: VolumeWorker, catalog: Catalog, settings: Settings, queue: EventQueue, stop: Stop) -> None:
        volume = self.volume = of.volume
        self.stop = stop
        self._of = of
        self._catalog = catalog
        self._settings = settings
        self._keeper = DirectoryKeeper(volume, catalog, settings, stop.wait, stop.__bool__)
        self._queue = queue
        self._hints = HintSet(volume.selection)
        self._received: list[Message] = []  # received, their hints not yet collected
        self._unacknowledged: list[Message] = []
        self._listing: Future[Listing | None] | None = None
        self._listed = float("-inf")
        self._armed = False
        self._arms_at = float("-inf")
        self._commits = 1  # the number before this turn is unknown
        self._committed = float("-inf")

    def run(self) -> None:
        """Runs until it is stopped. Raises FencedError if another writer takes over."""
        _log.info("volume_kept", volume=str(self.volume.name))
        try:
            run_loop("volume", self._tick, self.stop, _log, Backoff(), survives=_survives, trouble=self._of.trouble)
        except InterruptedByUserError:  # during a listing
            if not self.stop:
                raise
        finally:
            self._queue.stop()
            if self._listing is not None:  # the next keeper lists into the same folder
                self.stop.set()
                wait([self._listing])
            _log.info("volume_left", volume=str(self.volume.name))

    def _tick(self) -> None:
        """Receives for a moment, and applies the hints to the directory. Hints whose refresh fails are kept."""
        with reached(self._settings.warehouse_path):
            self._arm()
            self._reconcile()
            self._receive()
            asked = self._keeper.requested_checks()
            self._hints.add(asked)
            self._of.queue_depth = self._queue.depth()
            self._of.held_removals = self._keeper.held_removals
            if self._hints:
                self._refresh()
            self._keeper.complete_checks(asked)  # including paths outside the volume, which need no work
            self._acknowledge()
            idle = time.monotonic() - self._committed >= _IDLE_SECONDS
            if self._commits >= (1 if idle else _BUSY_COMMITS):
                self._keeper.maintain(idle=idle)
                self._commits = 0
            self._keeper.check_store()

    def _arm(self) -> None:
        """Starts the queue; the listing comes after, so that no change falls between them. While the queue cannot be started,
        the volume is kept by listings."""
        if self._armed or time.monotonic() < self._arms_at:
            return
        try:
            self._queue.start()
        except QueueError as error:
            self._arms_at = time.monotonic() + self._of.queue_failure.failed(error)
            return
        self._armed, self._listed = True, float("-inf")

    def _reconcile(self) -> None:
        """Lists the volume, or reads a report about it, when due: in the background, except the first time, when there is nothing
        to keep yet."""
        if self._listing is None and time.monotonic() - self._listed >= self._settings.listing_seconds:
            if self._keeper.last_listing is None:
                self._note(self._keeper.bootstrap())
                self._listed = time.monotonic()
                return
            self._listing = self._in_background(self._keeper.begin_listing())
        if self._listing is not None and self._listing.done():
            listing, self._listing = self._listing, None
            failed = listing.exception()
            done = self._keeper.end_listing(None if failed else listing.result())
            if failed is not None:
                raise failed
            self._listed = time.monotonic()
            if done is not None:
                self._note(done)

    def _in_background(self, task: Callable[[], Listing | None]) -> Future[Listing | None]:
        future: Future[Listing | None] = Future()

        def run() -> None:
            try:
                future.set_result(task())
            except BaseException as error:  # noqa: BLE001  # the worker's thread raises it
                future.set_exception(error)

        threading.Thread(target=run, name=f"listing of {self.volume.name}", daemon=True).start()
        return future

    def _note(self, done: ReconcileResult) -> None:
        self._of.refreshed_rows += done.counts.rows
        if done.commit is not None:
            self._count_commits(1)

    def _receive(self) -> None:
        """Receives waiting messages, and those that follow closely: files that are copied together are one refresh.

        Received messages are kept until their hints are collected, whatever fails in between: a queue that keeps messages for
        a live consumer does not redeliver them to it.
        """
        wait_seconds = _FOLLOW_SECONDS if self._listing is not None else _WAIT_SECONDS
        if not self._armed:
            self.stop.wait(wait_seconds)
            return
        try:
            self._received += self._queue.receive(_RECEIVE, wait_seconds)
            self._gather()
        except QueueError as error:  # requests by others, and the schedule, do not wait for the queue
            self._of.queue_failure.failed(error)
        else:
            self._of.queue_failure.recovered()
        if not self._received:
            return
        self._of.last_event = datetime.now(UTC)
        self._take(
            [hint for message in self._received for hint in message.hints],
            [message.rejection for message in self._received if message.rejection is not None],
        )
        self._unacknowledged += self._received
        self._received = []

    def _gather(self) -> None:
        deadline = time.monotonic() + _GATHER_SECONDS
        while self._received and time.monotonic() < deadline:
            if isinstance(self._queue, Settling) and self._queue.is_settled():
                break  # nothing follows closely
            more = self._queue.receive(_RECEIVE, _FOLLOW_SECONDS)
            if not more:
                break
            self._received += more

    def _take(self, hints: list[Hint | ObjectHint], rejected: list[Rejection]) -> None:
        """Collects this volume's hints, and passes on, through the catalog, those for other volumes that share the queue."""
        of_objects = any(isinstance(hint, ObjectHint) for hint in hints)
        routed = route(self.volume, self._catalog.volumes.list() if of_objects else (), hints)
        refreshes = self._catalog.refreshes
        refreshes.reject(self.volume.id, [*rejected, *refreshes.ask_checks(routed.others), *routed.strays.values()])
        self._hints.add(routed.own)

    def _refresh(self) -> None:
        started = time.monotonic()
        whole = any(prefix == "" for prefix, _ in self._hints.listings())
        tick = self._keeper.apply(self._hints)
        if whole:
            self._listed = time.monotonic()
        self._hints = HintSet(self.volume.selection)
        self._of.last_tick_seconds = time.monotonic() - started
        self._of.refreshed_rows += tick.counts.rows
        if tick.commits:
            self._count_commits(tick.commits)

    def _count_commits(self, commits: int) -> None:
        self._commits += commits
        self._committed = time.monotonic()
        self._of.changed(self.volume.id)

    def _acknowledge(self) -> None:
        """Acknowledges messages only now that the commit with their effect is durable."""
        if self._unacknowledged:
            self._queue.acknowledge(self._unacknowledged)
            self._unacknowledged = []


def _survives(error: Exception) -> bool:
    """Returns whether a turn continues after an error: not once another writer has taken over."""
    return isinstance(error, StorageError) or (is_transient(error) and not isinstance(error, FencedError))
