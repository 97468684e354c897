"""Keeps one volume in the daemon. It takes turns, each for as long as its lease is held.

A turn receives, refreshes and acknowledges. It lists at its start, on a schedule, and on request. Between its
steps a volume has no thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, TypeVar

from volstream.base.config import Settings
from volstream.base.definitions import Volume
from volstream.base.log import get
from volstream.base.model.hints import Hint, HintSet, KeyHint, SubtreeHint
from volstream.base.model.paths import Selection
from volstream.base.threads import FailureTracker, Step, Stepped, Stop, is_transient
from volstream.catalog import Catalog
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.leases import of_volume
from volstream.changes.directory.keeper import DirectoryKeeper
from volstream.changes.directory.listing import Listing
from volstream.changes.directory.reconcile import ReconcileResult
from volstream.errors import CatalogError, FencedError, InterruptedByUserError, QueueError, StorageError, WatchLimitError
from volstream.files.queues.base import AnnouncedQueue, Announcing, EventQueue, Message, Settling
from volstream.files.queues.remote import RemoteQueue
from volstream.files.volumes.access import queue_of
from volstream.server.daemon.leased import LEASE_SECONDS, Leased
from volstream.server.daemon.sharing import Receivers, Share
from volstream.tables.delta.places import reached

_log = get("volume")

T = TypeVar("T")

#: Maximum number of messages per receive. A tick takes the waiting messages, and leaves later ones to the
#: next tick.
_RECEIVE = 1000

#: Number of idle volumes that are checked per second.
_CHECKS_A_SECOND = 10

#: Interval of checks of requests that are not due yet.
_REQUEST_SECONDS = 0.5

#: How long to wait for one more message, and how long to gather messages at most.
_FOLLOW_SECONDS, _GATHER_SECONDS = 0.05, 1.0

#: Number of attempts to refresh single folders before all is listed instead.
_MAX_REFUSALS = 5

#: The directory's tables are maintained in idle time after some commits, or otherwise after more of them.
_IDLE_SECONDS, _IDLE_COMMITS, _BUSY_COMMITS = 10.0, 10, 20


class VolumeWorker(Leased):
    """Keeps one volume until it is ended, step by step.

    Any error with the volume is reported and retried, and does not affect other volumes.

    Args:
        changed: called after each commit, with the volume's id.
        share: this daemon's share. Without a free place the volume is left to other daemons.
        listings: lists volumes beside their steps.
        receivers: picks the volume that receives, if several share a queue.
        queue_of: makes the volume's queue, for each turn.

    Attributes:
        waits: there was no place, or another process had the lease. :attr:`wake` is called when that may have
            changed.
        wake: makes the next step due, at once or at a time (monotonic).
    """

    def __init__(
        self,
        volume: Volume,
        catalog: Catalog,
        settings: Settings,
        changed: Callable[[str], None],
        share: Share,
        listings: Executor,
        receivers: Receivers,
        queue_of: Callable[[Volume, Catalog, Settings], EventQueue] = queue_of,
    ) -> None:
        title, condition = f"writer of volume {volume.name}", (ConditionKind.VOLUME, volume.id)
        super().__init__(title, of_volume(volume.id), catalog, settings, _log, condition)
        self.volume = volume
        self.queue_depth: int | None = None
        self.last_event: datetime | None = None
        self.last_tick_seconds = 0.0
        self.refreshed_rows = 0
        self.repairs = {"added": 0, "changed": 0, "removed": 0, "late": 0}
        self.held_removals = 0
        self.changed = changed
        self.waits = False
        self.wake: Callable[..., None] = lambda *_: None
        self.add_step: Callable[[Step], Stepped]  # adds a turn's steps
        self.queue_failure = FailureTracker(f"queue of volume {volume.name}", _log, self.backoff, self.record)
        self.share = share
        self.listings = listings
        self.receivers = receivers
        self._queue_of = queue_of
        self._keeping: _Turn | None = None
        self._resources = ExitStack()  # the turn's

    @property
    def reason(self) -> str | None:
        """The problem with the volume or its queue, or None."""
        return self.trouble.reason or self.queue_failure.reason

    def follow(self, current: Volume) -> None:
        """Ends the turn if the volume's definition has changed.

        The next turn begins with the new definition, and a listing.
        """
        if current.definition != self.volume.definition:
            self.hand_over()

    def hand_over(self) -> None:
        """See :meth:`Leased.hand_over`."""
        super().hand_over()
        self.wake()

    def ask(self) -> None:
        """Wakes the volume, because another process, or a volume that receives for this one, has requested
        checks."""
        turn = self._keeping
        if turn is not None:
            turn.checks_at = float("-inf")
            self.wake()

    def is_wanted(self) -> bool:
        """See :meth:`Leased.is_wanted`. Reads the volume's definition."""
        current = self._catalog.volumes.by_id(self.volume.id)
        self.volume = current or self.volume
        return current is not None

    def step(self) -> float | None:
        """Does the due work; see :class:`~volstream.base.threads.Steps`.

        A volume that another daemon keeps, or for which there is no place, waits to be woken.
        """
        try:
            return self._step()
        except Exception as error:  # noqa: BLE001  # any error: the other volumes must be kept
            if self._is_known():
                return self.trouble.failed(error)
            return LEASE_SECONDS  # dropped meanwhile: VolumeKeeping ends this worker

    def _is_known(self) -> bool:
        """Returns whether the volume exists. True if the catalog is unavailable."""
        try:
            return self._catalog.volumes.by_id(self.volume.id) is not None
        except CatalogError:
            return True

    def _step(self) -> float | None:
        if self._keeping is None:
            return None if self.stop else self._begin()
        if self._turn or self.stop:  # stop may have been set before this turn existed
            self._finish()
            return None if self.stop else LEASE_SECONDS
        try:
            return self._keeping.tick()
        except InterruptedByUserError:  # during a listing
            is_stopped = bool(self._turn)
            self._finish()
            if not is_stopped:
                raise
            return None if self.stop else LEASE_SECONDS
        except FencedError as error:
            _log.warning("taken_over", work=self._title, error=str(error))
            self._finish()
            return LEASE_SECONDS
        except Exception as error:
            if not _survives(error):
                self._finish()
            raise

    def _begin(self) -> float:
        """Begins a turn if there is a place and no other process has the lease."""
        self._turn, self.waits = Stop(), False
        with ExitStack() as resources:
            has_place = resources.enter_context(self.share.place()) and self.is_wanted()
            if not (has_place and resources.enter_context(self.leased(self.hand_over))):
                self.waits = True
                self.trouble.recovered()
                return float("inf")
            queue = self._queue_of(self.volume, self._catalog, self._settings)
            self._keeping = _Turn(self, self._catalog, self._settings, queue, self._turn)
            self._resources = resources.pop_all()
        _log.info("volume_kept", volume=str(self.volume.name))
        return 0.0

    def _finish(self) -> None:
        """Ends the turn and releases the lease."""
        turn, self._keeping = self._keeping, None
        self._turn.set()
        with self._resources:
            if turn is not None:
                turn.finish()
            self.queue_depth = None
            self.held_removals = 0
            self.queue_failure.recovered()
        _log.info("volume_left", volume=str(self.volume.name))


class ListingSchedule:
    """Decides when a volume is listed. It has no clock and does no I/O: times are given, in seconds of one
    clock.

    | state | next listing | becomes | |---|---|---| | behind: changes may have been missed | at once |
    listing: :meth:`begins` | | listing the changes missed before it began | after this one | current or
    behind: :meth:`ended`; failed: :meth:`failed` | | failed | at once; may continue the previous listing, and
    then covers no more | listing | | current: the last listing covers all missed changes | ``seconds`` after
    the last one | behind: :meth:`missed` |

    Args:
        listing_seconds, poll_seconds: time between two listings. The latter applies while :attr:`polls`.

    Attributes:
        polls: no events arrive, because the kernel has no watches left.
        has_failed: the last listing failed.
        request: why the next listing must be a full one, even if there are reports.
        awaited: requests for full listings, which are complete once the schedule is current.
    """

    def __init__(self, listing_seconds: float, poll_seconds: float) -> None:
        self.polls = self.has_failed = False
        self.request: str | None = None
        self.awaited: dict[Hint, datetime] = {}
        self._seconds = (listing_seconds, poll_seconds)
        self._listed = float("-inf")
        self._missed = self._covered = self._covering = 0

    @property
    def is_current(self) -> bool:
        """Whether the last listing covers everything that may have been missed."""
        return self._covered == self._missed

    @property
    def is_well(self) -> bool:
        """Whether the last listing succeeded.

        False before the first one: an earlier keeper may have left a failure.
        """
        return not self.has_failed and self._listed > float("-inf")

    @property
    def due(self) -> float:
        """The time of the next listing."""
        return self._listed + self._seconds[self.polls] if self.is_current else float("-inf")

    def missed(self, request: str | None = None) -> None:
        """Changes may have been missed, or a full listing is requested."""
        self._missed += 1
        self.request = request or self.request

    def begins(self) -> None:
        """A listing starts."""
        if not self.has_failed:
            self._covering = self._missed

    def failed(self) -> None:
        """The listing failed."""
        self.has_failed = True

    def ended(self, now: float) -> None:
        """The listing ended, and its changes are committed."""
        self.has_failed = False
        self._listed, self._covered = now, self._covering
        if self.is_current:
            self.request = None


class Reception:
    """Tracks whether a volume receives from its queue. It has no clock and does no I/O.

    | state | :attr:`begins_at` | becomes |
    |---|---|---|
    | to begin | at once | receiving: :meth:`begun`; refused: :meth:`refused`; left: :meth:`left` |
    | refused: the queue could not be started | after a pause | as above |
    | left to another volume, which receives for all that share the queue | never | to begin: :meth:`again` |
    | receiving | | stays until the turn ends; after a failure it receives again at :attr:`receives_at` |
    """

    def __init__(self) -> None:
        self.is_on = False
        self.begins_at = float("-inf")
        self.receives_at = float("inf")

    @property
    def is_left(self) -> bool:
        """Whether another volume receives for this one."""
        return not self.is_on and self.begins_at == float("inf")

    def left(self) -> None:
        """Another volume receives."""
        self.begins_at = float("inf")

    def again(self) -> None:
        """It may be this volume's turn to receive."""
        self.begins_at = float("-inf")

    def refused(self, until: float) -> None:
        """The queue could not be started."""
        self.begins_at = until

    def begun(self) -> None:
        """The queue was started."""
        self.is_on = True


class Inbox:
    """Messages from their receipt until their effect is committed. It has no clock and does no I/O.

    A queue that keeps messages for a live consumer does not redeliver them to it, so they stay here despite
    failures in between.

    | state | becomes | |---|---| | received, while others follow closely: files copied together are one
    refresh | taken: :meth:`take` | | taken: their hints are in :attr:`hints` | applied: :meth:`applied`;
    refused: :meth:`refused`, and retried | | applied | acknowledged: :meth:`acknowledged` |

    Attributes:
        hints: hints to be applied to the directory, including those of requests.
        unacknowledged: messages that were taken.
    """

    def __init__(self, selection: Selection) -> None:
        self.hints = HintSet(selection)
        self.unacknowledged: list[Message] = []
        self._selection = selection
        self._received: list[Message] = []
        self._gathers_until: float | None = None
        self._refusals = 0

    def gathers(self, more: Sequence[Message], now: float, *, settled: bool) -> bool:
        """Adds received messages. Returns whether to wait for more.

        Args:
            settled: the queue has no more messages that belong to these.
        """
        self._received += more
        if not self._received:
            return False
        if self._gathers_until is None:
            self._gathers_until = now + _GATHER_SECONDS
        if more and not settled and now < self._gathers_until:
            return True
        self._gathers_until = None
        return False

    def take(self, hints_of: Callable[[Sequence[Message]], Iterable[Hint]]) -> bool:
        """Takes the hints of received messages.

        Returns whether there were messages. If ``hints_of`` raises, they stay.
        """
        if not self._received:
            return False
        self.hints.add(hints_of(self._received))
        self.unacknowledged += self._received
        self._received = []
        return True

    def applied(self) -> None:
        """The effect of the hints is committed."""
        self._refusals = 0
        self.hints = HintSet(self._selection)

    def refused(self) -> bool:
        """The store refused the hints. Returns whether to list everything instead of refreshing single
        folders.

        That is the case once folders were refused too often, because the store may refuse one of them
        forever. The folders' hints are then dropped.
        """
        self._refusals += 1
        lists_all = self._refusals >= _MAX_REFUSALS and bool(self.hints.subtrees)
        if lists_all:
            self.hints.subtrees.clear()
        return lists_all

    def acknowledged(self) -> None:
        """The queue has deleted the messages."""
        self.unacknowledged = []


class _Turn:
    """One turn of keeping a volume. It starts from the catalog alone: another daemon may have kept the volume
    in between.

    | thread | calls | while |
    |---|---|---|
    | a step of the volume | :meth:`tick` | no other step of it runs |
    | a step of the queue, if volumes share it | :meth:`relay` | anything; it leaves hints to the catalog |
    | the pool of listings | a listing of the keeper | anything; :meth:`tick` takes its result |
    | steps of other turns, the queue | their announcements | anything; they mark due work, and wake a step |

    Args:
        worker: the worker whose figures this turn updates.
        stop: set when the lease is lost or to be released.

    Attributes:
        checks_at: time of the next check for refreshes that users requested (monotonic).
    """

    def __init__(self, worker: VolumeWorker, catalog: Catalog, settings: Settings, queue: EventQueue, stop: Stop) -> None:
        volume = self.volume = worker.volume
        self.stop = stop
        self.checks_at = float("-inf")
        self._worker = worker
        self._catalog = catalog
        self._settings = settings
        self._keeper = DirectoryKeeper(volume, catalog, settings, stop.wait, stop.__bool__)
        self._queue = queue if isinstance(queue, Announcing) else AnnouncedQueue(queue)
        self._queue_id = queue.identity if isinstance(queue, RemoteQueue) else None
        self._relayed: Sequence[Message] = ()  # received for other volumes, too, and not acknowledged yet
        self._error: Exception | None = None  # the relay's error, which ends the turn
        self._queue.announce(self._announced)
        self._inbox = Inbox(volume.selection)
        self._reception = Reception()
        self._schedule = ListingSchedule(settings.listing_seconds, settings.poll_seconds)
        self._bootstrap: Future[ReconcileResult] | None = None
        self._listing: Future[Listing | None] | None = None
        self._commits = _IDLE_COMMITS  # the number before this turn is unknown
        self._committed = float("-inf")
        self._relay = None if self._queue_id is None else worker.add_step(self.relay)

    def finish(self) -> None:
        """Ends the turn. Its listing ends first, because the next keeper lists into the same folder."""
        try:
            self._queue.stop()
        finally:
            self._worker.receivers.leave(self._queue_id, self)
            if self._relay is not None:
                self._relay.wake()  # for the relay's last step
        futures: list[Future[Any] | None] = [self._bootstrap, self._listing]
        # A waiting one is cancelled.
        wait([future for future in futures if future is not None and not future.cancel()])

    def relay(self) -> float | None:
        """Receives for all volumes that share the queue, while there are others, and leaves the hints to the
        catalog.

        It is a separate step, so that the others do not wait for this volume's work. Any error is reported,
        and received messages are retried.
        """
        if self.stop:
            return None
        if not (self._relayed or self._relays):
            return float("inf")
        try:
            self._relayed = self._relayed or self._queue.receive(_RECEIVE, 0.0)
            if self._relayed:
                self._worker.last_event = datetime.now(UTC)
                self._pass_on(self._relayed, own_too=True)
                self._queue.acknowledge(self._relayed)
                self._relayed = ()
        except Exception as error:  # noqa: BLE001  # reported, and retried
            if _survives(error):
                return self._failed(error)
            self._error = error
            self._worker.wake()
            return float("inf")
        self._queue_recovered()
        return max(0.0, self._queue.ready_at() - time.monotonic())

    @property
    def _relays(self) -> bool:
        if not self._reception.is_on or self._queue_id is None:
            return False
        receivers = self._worker.receivers
        waits = self._bootstrap is not None  # and other volumes, even of other daemons, would wait as long
        return receivers.has_others(self._queue_id) or (waits and receivers.routing.has_neighbours(self.volume))

    def _announced(self, at: float) -> None:
        if self._relay is not None and self._relays:
            self._relay.wake(at)
        else:
            self._worker.wake(at)

    def _reclaim(self, missed: bool) -> None:
        """Claims the queue again. If ``missed``, also schedules a listing."""
        self._reception.again()
        if missed:
            self._schedule.missed()
        self._worker.wake()
        if self._relay is not None:
            self._relay.wake()

    def tick(self) -> float:
        """Receives waiting messages, and applies their hints to the directory. Hints whose refresh fails are
        kept.

        Returns the seconds until there is work. Raises FencedError if another writer takes over.
        """
        with reached(self._settings.warehouse_path):
            if self._error is not None:
                raise self._error
            self._arm()
            self._reconcile()
            if self._schedule.awaited and self._schedule.is_current:
                self._keeper.complete_checks(self._schedule.awaited)
                self._schedule.awaited = {}
            if self._bootstrap is not None:  # the directory does not exist yet
                return float("inf") if self._reception.is_on else max(0.0, self._reception.begins_at - time.monotonic())
            if not self._receive():
                return _FOLLOW_SECONDS
            requested = self._requested()
            self._inbox.hints.add(requested)
            requested = self._left_to_listing(requested)
            self._worker.queue_depth = self._queue.depth()
            self._worker.held_removals = self._keeper.held_removals
            if self._inbox.hints:
                self._refresh(requested)
            self._keeper.complete_checks(requested)  # including paths outside the volume, which need no work
            self._acknowledge()
            idle = time.monotonic() - self._committed >= _IDLE_SECONDS
            if self._commits >= (_IDLE_COMMITS if idle else _BUSY_COMMITS):
                self._keeper.maintain(idle=idle)
                self._commits = 0
            self._keeper.check_store()
        if self._schedule.is_well:
            self._worker.trouble.recovered()
        return self._pause()

    def _pause(self) -> float:
        now = time.monotonic()
        dues = [
            self._receives_next,
            self.checks_at,
            # With many volumes each is checked less often, so that the total cost is constant.
            now + max(self._keeper.check_seconds, self._worker.share.taken / _CHECKS_A_SECOND),
        ]
        if self._listing is None:
            dues.append(self._schedule.due)
        if self._commits >= _IDLE_COMMITS:
            dues.append(self._committed + _IDLE_SECONDS)
        return max(0.0, min(dues) - now)

    @property
    def _receives_next(self) -> float:
        if not self._reception.is_on:
            return self._reception.begins_at
        return float("inf") if self._relays else min(self._queue.ready_at(), self._reception.receives_at)

    def _requested(self) -> Mapping[Hint, datetime]:
        if time.monotonic() < self.checks_at:
            return {}
        self.checks_at = float("inf")
        requested = self._keeper.requested_checks()
        if self._keeper.is_asked:  # some requests may not be due yet
            self.checks_at = time.monotonic() + _REQUEST_SECONDS
        return {hint: at for hint, at in requested.items() if self._schedule.awaited.get(hint) != at}

    def _left_to_listing(self, requested: Mapping[Hint, datetime]) -> Mapping[Hint, datetime]:
        """Leaves a requested listing of the whole volume to the pool of listings. Returns the other
        requests."""
        request = self._inbox.hints.subtrees.pop("", None)
        if request is None:
            return requested
        self._schedule.missed(request)
        other = {hint: at for hint, at in requested.items() if isinstance(hint, KeyHint) or hint.prefix}
        self._schedule.awaited |= {hint: at for hint, at in requested.items() if hint not in other}
        return other

    def _arm(self) -> None:
        """Starts the queue, unless another volume receives from it.

        The listing comes after the start, so that no change falls between them. While the queue cannot be
        started, the volume is kept by listings.
        """
        if self._reception.is_on or time.monotonic() < self._reception.begins_at:
            return
        receivers = self._worker.receivers
        if self._queue_id is not None:
            self._reception.left()  # before the claim: the receiving turn may end just now, and announce it
            if not receivers.claim(self._queue_id, self, self._reclaim):
                return
        try:
            self._queue.start()
        except QueueError as error:
            self._reception.refused(time.monotonic() + self._failed(error))
            return
        except BaseException:
            self._reception.again()
            raise
        self._reception.begun()
        self._schedule.polls = False
        if self._queue_id is None or receivers.recovered(self._queue_id, missed=True):
            self._schedule.missed()
        if self._relay is not None:
            self._relay.wake()

    def _reconcile(self) -> None:
        """Lists the volume, or reads a report about it, when due.

        This runs in the pool of listings. The steps continue meanwhile, except the first time, when the
        directory does not exist yet.
        """
        if self._bootstrap is not None and self._bootstrap.done():
            bootstrap, self._bootstrap = self._bootstrap, None
            done = bootstrap.result()
            self._record(done)
            if done.resumed:  # it does not show changes before this turn
                self._schedule.missed()
            self._schedule.ended(time.monotonic())
        if self._listing is not None and self._listing.done():
            listing, self._listing = self._listing, None
            failed = listing.exception()
            self._schedule.failed()  # until its changes are committed
            found = self._keeper.end_listing(None if failed else listing.result())
            if failed is not None:
                raise failed
            if found is not None:
                self._record(found)
                counts = found.counts
                for change, rows in zip(
                    self._worker.repairs, (counts.inserted, counts.updated, counts.deleted, found.late), strict=True
                ):
                    self._worker.repairs[change] += rows
            self._schedule.ended(time.monotonic())
        if self._bootstrap is not None or self._listing is not None or time.monotonic() < self._schedule.due:
            return
        self._schedule.begins()
        if self._keeper.last_listing is None:
            self._bootstrap = self._submit(self._keeper.bootstrap)
            if self._relay is not None:
                self._relay.wake()
        else:
            self._listing = self._submit(self._keeper.begin_listing(self._schedule.request))

    def _submit(self, task: Callable[[], T]) -> Future[T]:
        def run() -> T:
            with reached(self._settings.warehouse_path):
                return task()

        future = self._worker.listings.submit(run)
        future.add_done_callback(lambda _: self._worker.wake())
        return future

    def _record(self, done: ReconcileResult) -> None:
        self._worker.refreshed_rows += done.counts.rows
        if done.commit is not None:
            self._commits += 1
            self._committed = time.monotonic()
            self._worker.changed(self.volume.id)

    def _receive(self) -> bool:
        """Receives waiting messages. Returns False while others follow closely."""
        if not self._reception.is_on:
            self._adopt_failure()
            return True
        more: Sequence[Message] = ()
        if not self._relays:
            self._reception.receives_at = float("inf")
            try:
                more = self._queue.receive(_RECEIVE, 0.0)
            except QueueError as error:  # requests and the schedule do not wait for the queue
                self._reception.receives_at = time.monotonic() + self._failed(error)
            else:
                self._queue_recovered()
        settled = isinstance(self._queue, Settling) and self._queue.is_settled()
        if self._inbox.gathers(more, time.monotonic(), settled=settled):
            return False
        if self._inbox.take(self._pass_on):
            self._worker.last_event = datetime.now(UTC)
        return True

    def _failed(self, error: Exception) -> float:
        """Reports that receiving from the queue failed. Returns the seconds until the next attempt."""
        self._schedule.polls = isinstance(error, WatchLimitError)
        if self._queue_id is not None and isinstance(error, QueueError):
            self._worker.receivers.failed(self._queue_id, error)
        return self._worker.queue_failure.failed(error)

    def _queue_recovered(self) -> None:
        self._schedule.polls = False
        self._worker.receivers.recovered(self._queue_id, missed=False)
        self._worker.queue_failure.recovered()

    def _adopt_failure(self) -> None:
        """Reports the failure of the shared queue as this volume's own."""
        if not self._reception.is_left:
            return
        failure = self._worker.receivers.failure(self._queue_id)
        if failure is None:
            self._worker.queue_failure.recovered()
        else:
            self._worker.queue_failure.failed(failure)

    def _pass_on(self, messages: Sequence[Message], *, own_too: bool = False) -> Sequence[Hint]:
        """Passes hints for other volumes that share the queue on through the catalog. Returns this volume's
        hints.

        Args:
            own_too: also pass on this volume's hints.
        """
        routed = self._worker.receivers.routing.route(self.volume, [hint for message in messages for hint in message.hints])
        if own_too:
            own = HintSet(self.volume.selection)
            own.add(routed.own)
            routed.others[self.volume.id] = {*own.keys, *own.subtrees}
        refreshes, rejected = self._catalog.refreshes, [each.rejection for each in messages if each.rejection is not None]
        refreshes.reject(self.volume.id, [*rejected, *refreshes.ask_checks(routed.others), *routed.strays.values()])
        self._worker.receivers.pass_on(routed.others)
        return routed.own

    def _refresh(self, requested: Mapping[Hint, datetime]) -> None:
        started = time.monotonic()
        try:
            done = self._keeper.apply(self._inbox.hints)
        except StorageError:
            if self._inbox.refused():
                self._schedule.missed("listing")
                self._keeper.complete_checks({hint: at for hint, at in requested.items() if isinstance(hint, SubtreeHint)})
            raise
        self._inbox.applied()
        self._worker.last_tick_seconds = time.monotonic() - started
        self._record(done)

    def _acknowledge(self) -> None:
        """Acknowledges messages, only now that the commit with their effect is durable."""
        if self._inbox.unacknowledged:
            self._queue.acknowledge(self._inbox.unacknowledged)
            self._inbox.acknowledged()


def _survives(error: Exception) -> bool:
    """Returns whether a turn continues after an error. It does not if another writer has taken over."""
    return isinstance(error, StorageError) or (is_transient(error) and not isinstance(error, FencedError))
