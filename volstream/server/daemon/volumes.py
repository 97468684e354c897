"""Keeps one volume in the daemon: takes turns, each for as long as its lease is held. A turn receives, refreshes and
acknowledges; and lists at its start, on a schedule, and on request. Between its steps a volume has no thread."""

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

#: Maximum number of messages per receive. A tick takes what is there; later messages are left to the next tick.
_RECEIVE = 1000

#: The number of idle volumes that are looked at in a second.
_LOOKS_A_SECOND = 10

#: Interval of looks at requested checks that are not due yet.
_ASK_SECONDS = 0.5

#: How long one more message is waited for, and how long they are gathered at most.
_FOLLOW_SECONDS, _GATHER_SECONDS = 0.05, 1.0

#: Attempts to refresh single folders, before all is listed instead.
_PATIENCE = 5

#: The directory's tables are maintained in idle time after some commits, or at the latest after more of them.
_IDLE_SECONDS, _IDLE_COMMITS, _BUSY_COMMITS = 10.0, 10, 20


class VolumeWorker(Leased):
    """Keeps one volume until it is ended, step by step. Any error with the volume is reported and retried, and does not affect
    other volumes.

    Args:
        changed: called after each commit, with the volume's id.
        share: this daemon's share; without a free place the volume is left to other daemons.
        listings: lists volumes beside their steps.
        receivers: picks the volume that receives, where several share a queue.
        queue_of: makes the volume's queue, for each turn.

    Attributes:
        waits: there was no place, or another process had the lease; :attr:`wake` is called when that may have changed.
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
        self.add_step: Callable[[Step], Stepped]  # of a turn
        self.queue_failure = FailureTracker(f"queue of volume {volume.name}", _log, self.backoff, self.record)
        self.share = share
        self.listings = listings
        self.receivers = receivers
        self._queue_of = queue_of
        self._keeping: _Turn | None = None
        self._resources = ExitStack()  # of the turn

    @property
    def reason(self) -> str | None:
        """The problem with the volume or its queue; None if there is none."""
        return self.trouble.reason or self.queue_failure.reason

    def follow(self, current: Volume) -> None:
        """Ends the turn if the volume's definition has changed: the next turn begins with the new one, and a listing."""
        if current.definition != self.volume.definition:
            self.hand_over()

    def hand_over(self) -> None:
        """See :meth:`Leased.hand_over`."""
        super().hand_over()
        self.wake()

    def ask(self) -> None:
        """Wakes the volume: another process, or a volume that receives for this one, has asked for checks."""
        keeping = self._keeping
        if keeping is not None:
            keeping.asks_at = float("-inf")
            self.wake()

    def is_wanted(self) -> bool:
        """See :meth:`Leased.is_wanted`. Reads the volume's definition."""
        current = self._catalog.volumes.by_id(self.volume.id)
        self.volume = current or self.volume
        return current is not None

    def step(self) -> float | None:
        """Does what is due: see :class:`~volstream.base.threads.Steps`. A volume that another daemon keeps, or for which
        there is no place, waits to be woken."""
        try:
            return self._step()
        except Exception as error:  # noqa: BLE001  # whatever it is, the other volumes must be kept
            if self._is_known():
                return self.trouble.failed(error)
            return LEASE_SECONDS  # it was dropped meanwhile: VolumeKeeping ends this worker

    def _is_known(self) -> bool:
        """Returns whether the volume exists; True if the catalog does not answer."""
        try:
            return self._catalog.volumes.by_id(self.volume.id) is not None
        except CatalogError:
            return True

    def _step(self) -> float | None:
        if self._keeping is None:
            return None if self.stop else self._begin()
        if self._turn or self.stop:  # which may have been set before this turn existed
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
        """Begins a turn if there is a place, and no other process has the lease."""
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
        """Ends the turn, and releases the lease."""
        keeping, self._keeping = self._keeping, None
        self._turn.set()
        with self._resources:
            if keeping is not None:
                keeping.finish()
            self.queue_depth = None
            self.held_removals = 0
            self.queue_failure.recovered()
        _log.info("volume_left", volume=str(self.volume.name))


class ListingSchedule:
    """When a volume is listed. It knows no clock and does no I/O: times are seconds of one clock, and are given.

    | state | next listing | becomes |
    |---|---|---|
    | behind: changes may have been missed | at once | listing: :meth:`begins` |
    | listing, of what was missed before it began | after this one | current or behind: :meth:`ended`; failed: :meth:`failed` |
    | failed | at once; it may go on with the one before, and covers no more than that | listing |
    | current: the last listing covers all that was missed | ``seconds`` after the last one | behind: :meth:`missed` |

    Args:
        listing_seconds, poll_seconds: between two listings; the latter while :attr:`polls`.

    Attributes:
        polls: no events arrive, because the kernel has no watches left.
        has_failed: the last listing failed.
        request: why all is to be listed next, even if there are reports.
        awaited: requests of listings of all, which are complete once the schedule is current.
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
        """True if the last listing covers whatever may have been missed."""
        return self._covered == self._missed

    @property
    def is_well(self) -> bool:
        """True if the last listing succeeded. Not before the first one: an earlier keeper may have left a failure."""
        return not self.has_failed and self._listed > float("-inf")

    @property
    def due(self) -> float:
        """When the next listing is due."""
        return self._listed + self._seconds[self.polls] if self.is_current else float("-inf")

    def missed(self, request: str | None = None) -> None:
        """Changes may have been missed; or a listing of all is requested."""
        self._missed += 1
        self.request = request or self.request

    def begins(self) -> None:
        """A listing begins."""
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
    """Whether a volume receives from its queue. It knows no clock and does no I/O.

    | state | :attr:`begins_at` | becomes |
    |---|---|---|
    | to begin | at once | receiving: :meth:`begun`; refused: :meth:`refused`; left: :meth:`left` |
    | refused: the queue could not be started | after a pause | as above |
    | left to another volume, which receives for all that share the queue | never | to begin: :meth:`again` |
    | receiving | | stays, until the turn ends; after a failure it receives again at :attr:`receives_at` |
    """

    def __init__(self) -> None:
        self.is_on = False
        self.begins_at = float("-inf")
        self.receives_at = float("inf")

    @property
    def is_left(self) -> bool:
        """True if another volume receives for this one."""
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
    """Messages from their receipt until their effect is committed. It knows no clock and does no I/O.

    A queue that keeps messages for a live consumer does not redeliver them to it: they stay here, whatever fails in between.

    | state | becomes |
    |---|---|
    | received, while others follow closely: files that are copied together are one refresh | taken: :meth:`take` |
    | taken: their hints are in :attr:`hints` | applied: :meth:`applied`; refused: :meth:`refused`, and tried again |
    | applied | acknowledged: :meth:`acknowledged` |

    Attributes:
        hints: to be applied to the directory, also those of requests.
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
        """Adds received messages; returns whether others are to be waited for.

        Args:
            settled: the queue has no more that belong to these.
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
        """Takes the hints of what was received; returns whether there were messages. If ``hints_of`` raises, they stay."""
        if not self._received:
            return False
        self.hints.add(hints_of(self._received))
        self.unacknowledged += self._received
        self._received = []
        return True

    def applied(self) -> None:
        """The hints' effect is committed."""
        self._refusals = 0
        self.hints = HintSet(self._selection)

    def refused(self) -> bool:
        """The store refused the hints. Returns whether the folders among them were refused so often that all is to be listed
        instead: the store may refuse one of them for ever; they are forgotten then."""
        self._refusals += 1
        gives_up = self._refusals >= _PATIENCE and bool(self.hints.subtrees)
        if gives_up:
            self.hints.subtrees.clear()
        return gives_up

    def acknowledged(self) -> None:
        """The queue has deleted the messages."""
        self.unacknowledged = []


class _Turn:
    """One turn of keeping a volume. It starts from the catalog alone: another daemon may have kept the volume in between.

    | thread | calls | while |
    |---|---|---|
    | a step of the volume | :meth:`tick` | no other step of it runs |
    | a step of the queue, if volumes share it | :meth:`relay` | anything; it leaves hints to the catalog |
    | the pool of listings | a listing of the keeper | anything; :meth:`tick` takes its result |
    | steps of other turns, the queue | what they announce | anything; they mark what is due, and wake a step |

    Args:
        of: the worker whose figures this turn updates.
        stop: set when the lease is lost or to be released.

    Attributes:
        asks_at: when to look next for refreshes that users requested (monotonic).
    """

    def __init__(self, of: VolumeWorker, catalog: Catalog, settings: Settings, queue: EventQueue, stop: Stop) -> None:
        volume = self.volume = of.volume
        self.stop = stop
        self.asks_at = float("-inf")
        self._of = of
        self._catalog = catalog
        self._settings = settings
        self._keeper = DirectoryKeeper(volume, catalog, settings, stop.wait, stop.__bool__)
        self._queue = queue if isinstance(queue, Announcing) else AnnouncedQueue(queue)
        self._queue_id = queue.identity if isinstance(queue, RemoteQueue) else None
        self._relayed: Sequence[Message] = ()  # received for others, too, and not yet acknowledged
        self._error: Exception | None = None  # of the relay, which ends the turn
        self._queue.announce(self._announced)
        self._inbox = Inbox(volume.selection)
        self._reception = Reception()
        self._schedule = ListingSchedule(settings.listing_seconds, settings.poll_seconds)
        self._bootstrap: Future[ReconcileResult] | None = None
        self._listing: Future[Listing | None] | None = None
        self._commits = _IDLE_COMMITS  # the number before this turn is unknown
        self._committed = float("-inf")
        self._relay = None if self._queue_id is None else of.add_step(self.relay)

    def finish(self) -> None:
        """Ends the turn. The next keeper lists into the same folder, so this one's listing ends first."""
        try:
            self._queue.stop()
        finally:
            self._of.receivers.leave(self._queue_id, self)
            if self._relay is not None:
                self._relay.wake()  # for its last step
        beside: list[Future[Any] | None] = [self._bootstrap, self._listing]
        wait([one for one in beside if one is not None and not one.cancel()])  # one that waits for a thread never begins

    def relay(self) -> float | None:
        """Receives for all volumes that share the queue, while there are others: in a step of its own, so that they do not wait
        for what this one is doing. Leaves the hints to the catalog. Any error is reported; what was received is tried again."""
        if self.stop:
            return None
        if not (self._relayed or self._relays):
            return float("inf")
        try:
            self._relayed = self._relayed or self._queue.receive(_RECEIVE, 0.0)
            if self._relayed:
                self._of.last_event = datetime.now(UTC)
                self._pass_on(self._relayed, own_too=True)
                self._queue.acknowledge(self._relayed)
                self._relayed = ()
        except Exception as error:  # noqa: BLE001  # see above
            if _survives(error):
                return self._failed(error)
            self._error = error
            self._of.wake()
            return float("inf")
        self._answered()
        return max(0.0, self._queue.ready_at() - time.monotonic())

    @property
    def _relays(self) -> bool:
        if not self._reception.is_on or self._queue_id is None:
            return False
        receivers = self._of.receivers
        waits = self._bootstrap is not None  # and others, which other daemons may keep, would wait as long
        return receivers.has_others(self._queue_id) or (waits and receivers.routing.has_neighbours(self.volume))

    def _announced(self, at: float) -> None:
        if self._relay is not None and self._relays:
            self._relay.wake(at)
        else:
            self._of.wake(at)

    def _look(self, missed: bool) -> None:
        """Claims the queue again. With ``missed``, also schedules a listing."""
        self._reception.again()
        if missed:
            self._schedule.missed()
        self._of.wake()
        if self._relay is not None:
            self._relay.wake()

    def tick(self) -> float:
        """Receives what is there, and applies the hints to the directory. Hints whose refresh fails are kept. Returns the seconds
        until there is something to do. Raises FencedError if another writer takes over."""
        with reached(self._settings.warehouse_path):
            if self._error is not None:
                raise self._error
            self._arm()
            self._reconcile()
            if self._schedule.awaited and self._schedule.is_current:
                self._keeper.complete_checks(self._schedule.awaited)
                self._schedule.awaited = {}
            if self._bootstrap is not None:  # there is nothing to keep yet
                return float("inf") if self._reception.is_on else max(0.0, self._reception.begins_at - time.monotonic())
            if not self._receive():
                return _FOLLOW_SECONDS
            asked = self._requested()
            self._inbox.hints.add(asked)
            asked = self._left_to_listing(asked)
            self._of.queue_depth = self._queue.depth()
            self._of.held_removals = self._keeper.held_removals
            if self._inbox.hints:
                self._refresh(asked)
            self._keeper.complete_checks(asked)  # including paths outside the volume, which need no work
            self._acknowledge()
            idle = time.monotonic() - self._committed >= _IDLE_SECONDS
            if self._commits >= (_IDLE_COMMITS if idle else _BUSY_COMMITS):
                self._keeper.maintain(idle=idle)
                self._commits = 0
            self._keeper.check_store()
        if self._schedule.is_well:
            self._of.trouble.recovered()
        return self._pause()

    def _pause(self) -> float:
        now = time.monotonic()
        dues = [
            self._receives_next,
            self.asks_at,
            # Many volumes are looked at less often, so that it costs the same.
            now + max(self._keeper.check_seconds, self._of.share.taken / _LOOKS_A_SECOND),
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
        if time.monotonic() < self.asks_at:
            return {}
        self.asks_at = float("inf")
        asked = self._keeper.requested_checks()
        if self._keeper.is_asked:  # some may not be due yet
            self.asks_at = time.monotonic() + _ASK_SECONDS
        return {hint: at for hint, at in asked.items() if self._schedule.awaited.get(hint) != at}

    def _left_to_listing(self, asked: Mapping[Hint, datetime]) -> Mapping[Hint, datetime]:
        """Leaves it to a listing beside the steps to list the whole volume, and returns what else was asked for."""
        request = self._inbox.hints.subtrees.pop("", None)
        if request is None:
            return asked
        self._schedule.missed(request)
        other = {hint: at for hint, at in asked.items() if isinstance(hint, KeyHint) or hint.prefix}
        self._schedule.awaited |= {hint: at for hint, at in asked.items() if hint not in other}
        return other

    def _arm(self) -> None:
        """Starts the queue, unless another volume receives from it; the listing comes after, so that no change falls between
        them. While the queue cannot be started, the volume is kept by listings."""
        if self._reception.is_on or time.monotonic() < self._reception.begins_at:
            return
        receivers = self._of.receivers
        if self._queue_id is not None:
            self._reception.left()  # before the claim: the turn that receives may end just now, and say so
            if not receivers.claim(self._queue_id, self, self._look):
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
        """Lists the volume, or reads a report about it, when due: beside the steps, which go on except the first time, when
        there is nothing to keep yet."""
        if self._bootstrap is not None and self._bootstrap.done():
            bootstrap, self._bootstrap = self._bootstrap, None
            done = bootstrap.result()
            self._note(done)
            if done.resumed:  # it does not show what changed before this turn
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
                self._note(found)
                counts = found.counts
                for change, rows in zip(
                    self._of.repairs, (counts.inserted, counts.updated, counts.deleted, found.late), strict=True
                ):
                    self._of.repairs[change] += rows
            self._schedule.ended(time.monotonic())
        if self._bootstrap is not None or self._listing is not None or time.monotonic() < self._schedule.due:
            return
        self._schedule.begins()
        if self._keeper.last_listing is None:
            self._bootstrap = self._beside(self._keeper.bootstrap)
            if self._relay is not None:
                self._relay.wake()
        else:
            self._listing = self._beside(self._keeper.begin_listing(self._schedule.request))

    def _beside(self, task: Callable[[], T]) -> Future[T]:
        def run() -> T:
            with reached(self._settings.warehouse_path):
                return task()

        future = self._of.listings.submit(run)
        future.add_done_callback(lambda _: self._of.wake())
        return future

    def _note(self, done: ReconcileResult) -> None:
        self._of.refreshed_rows += done.counts.rows
        if done.commit is not None:
            self._commits += 1
            self._committed = time.monotonic()
            self._of.changed(self.volume.id)

    def _receive(self) -> bool:
        """Receives waiting messages. Returns False while others follow closely."""
        if not self._reception.is_on:
            self._hear_of_failure()
            return True
        more: Sequence[Message] = ()
        if not self._relays:
            self._reception.receives_at = float("inf")
            try:
                more = self._queue.receive(_RECEIVE, 0.0)
            except QueueError as error:  # requests by others, and the schedule, do not wait for the queue
                self._reception.receives_at = time.monotonic() + self._failed(error)
            else:
                self._answered()
        settled = isinstance(self._queue, Settling) and self._queue.is_settled()
        if self._inbox.gathers(more, time.monotonic(), settled=settled):
            return False
        if self._inbox.take(self._pass_on):
            self._of.last_event = datetime.now(UTC)
        return True

    def _failed(self, error: Exception) -> float:
        """Reports that the queue cannot be received from. Returns the seconds until it is to be tried again."""
        self._schedule.polls = isinstance(error, WatchLimitError)
        if self._queue_id is not None and isinstance(error, QueueError):
            self._of.receivers.failed(self._queue_id, error)
        return self._of.queue_failure.failed(error)

    def _answered(self) -> None:
        self._schedule.polls = False
        self._of.receivers.recovered(self._queue_id, missed=False)
        self._of.queue_failure.recovered()

    def _hear_of_failure(self) -> None:
        """Reports the failure of the shared queue as this volume's own."""
        if not self._reception.is_left:
            return
        failure = self._of.receivers.failure(self._queue_id)
        if failure is None:
            self._of.queue_failure.recovered()
        else:
            self._of.queue_failure.failed(failure)

    def _pass_on(self, messages: Sequence[Message], *, own_too: bool = False) -> Sequence[Hint]:
        """Passes hints for other volumes that share the queue on through the catalog. Returns this volume's.

        Args:
            own_too: pass these on as well.
        """
        routed = self._of.receivers.routing.route(self.volume, [hint for message in messages for hint in message.hints])
        if own_too:
            own = HintSet(self.volume.selection)
            own.add(routed.own)
            routed.others[self.volume.id] = {*own.keys, *own.subtrees}
        refreshes, rejected = self._catalog.refreshes, [one.rejection for one in messages if one.rejection is not None]
        refreshes.reject(self.volume.id, [*rejected, *refreshes.ask_checks(routed.others), *routed.strays.values()])
        self._of.receivers.pass_on(routed.others)
        return routed.own

    def _refresh(self, asked: Mapping[Hint, datetime]) -> None:
        started = time.monotonic()
        try:
            done = self._keeper.apply(self._inbox.hints)
        except StorageError:
            if self._inbox.refused():
                self._schedule.missed("listing")
                self._keeper.complete_checks({hint: at for hint, at in asked.items() if isinstance(hint, SubtreeHint)})
            raise
        self._inbox.applied()
        self._of.last_tick_seconds = time.monotonic() - started
        self._note(done)

    def _acknowledge(self) -> None:
        """Acknowledges messages only now that the commit with their effect is durable."""
        if self._inbox.unacknowledged:
            self._queue.acknowledge(self._inbox.unacknowledged)
            self._inbox.acknowledged()


def _survives(error: Exception) -> bool:
    """Returns whether a turn continues after an error: not once another writer has taken over."""
    return isinstance(error, StorageError) or (is_transient(error) and not isinstance(error, FencedError))
