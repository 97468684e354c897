"""A provider's queue: requests messages and keeps them invisible to other consumers until they are
acknowledged.

Not here: requests to a provider, and the meaning of its messages (see the provider's folder).
"""

from __future__ import annotations

import asyncio
import atexit
import ssl
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from urllib.request import getproxies, proxy_bypass

from volstream.base.log import get
from volstream.base.model.hints import Hint, ObjectHint, Rejection
from volstream.base.model.work import groups
from volstream.base.threads import Backoff, Stop
from volstream.errors import QueueError, VolstreamError
from volstream.files.queues.base import Message, Parser, QueueSettings, QueueState
from volstream.files.queues.bodies import reject

if TYPE_CHECKING:
    import aiohttp

# Unacknowledged messages that a provider delivered to this process, and how long they stay invisible. Not
# thread-safe: callers hold their lock.


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message by a provider.

    Attributes:
        id: the message's id, the same in all its deliveries.
        handle: identifies this delivery when it is deleted or its visibility is extended.
        body: as delivered.
    """

    id: str
    handle: str
    body: bytes


@dataclass(slots=True)
class _Held:
    handle: str
    due: float


class ReceivedMessages:
    """Messages by id, which serves as receipt: a handle may change while the consumer has the message."""

    def __init__(self, parse: Parser) -> None:
        self._parse = parse
        self._held_messages: dict[str, _Held] = {}
        self._waiting: deque[Message] = deque()

    def __len__(self) -> int:
        return len(self._held_messages)

    @property
    def waiting(self) -> int:
        """Number of messages that the consumer has not taken."""
        return len(self._waiting)

    def add(self, delivery: Delivery, due: float) -> None:
        """Adds a delivery, invisible until ``due``. For a known message, only replaces the handle."""
        if delivery.id not in self._held_messages:
            self._waiting.append(Message.of(delivery.id, _parsed(self._parse, delivery.body)))
        self._held_messages[delivery.id] = _Held(delivery.handle, due)

    def take(self, limit: int) -> list[Message]:
        """Removes and returns up to ``limit`` messages for the consumer, in order of arrival."""
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    def ending(self, before: float) -> list[str]:
        """Returns the receipts of messages that become visible before a time, except those given up."""
        return [receipt for receipt, held in self._held_messages.items() if held.due < before]

    def handles(self, receipts: Iterable[str]) -> Mapping[str, str]:
        """Returns the newest handles of these messages, by receipt. Skips forgotten messages."""
        return {receipt: held.handle for receipt in receipts if (held := self._held_messages.get(receipt))}

    def renew(self, receipt: str, handle: str | None, due: float) -> None:
        """Records that a message stays invisible until ``due``.

        Without a handle, the provider gave the message up and will redeliver it. Until then nothing can be
        done.
        """
        held = self._held_messages.get(receipt)
        if held is not None:
            held.handle, held.due = (held.handle, float("inf")) if handle is None else (handle, due)

    def forget(self, receipts: Iterable[str]) -> None:
        """Drops these messages. Idempotent."""
        for receipt in receipts:
            self._held_messages.pop(receipt, None)


def _parsed(parse: Parser, body: bytes) -> Sequence[Hint | ObjectHint] | Rejection:
    """Parses a body. A parser's bug only rejects this message, which else would block its batch forever."""
    try:
        return parse(body)
    except Exception as error:  # noqa: BLE001  # see above
        return reject(body, f"It cannot be parsed: {type(error).__name__}: {error}")


# The event loop in which queues wait: one thread for all queues, started on demand.

_lock = threading.Lock()  # so that concurrent callers do not each start a loop


def begin(task: Coroutine[Any, Any, None]) -> Future[None]:
    """Starts a coroutine in the loop. It must handle its own errors."""
    return asyncio.run_coroutine_threadsafe(task, _loop())


def later(seconds: float, call: Callable[[], None]) -> None:
    """Calls a function in the loop after a delay. The function must not block."""
    loop = _loop()
    loop.call_soon_threadsafe(loop.call_later, seconds, call)


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        return _started()


@cache
def _started() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="queues", daemon=True).start()
    return loop


# Requests that wait for messages in the event loop, without a thread each. Imports aiohttp late: only the
# extras of the providers install it. Not here: the meaning of the requests (a provider's ``queue``).

#: How long a signed request is repeated. The services accept it for fifteen minutes by their own clocks.
_SIGNED_SECONDS = 300.0

#: Timeouts of a request in seconds. A long poll takes up to 30.
_TOTAL_SECONDS, _CONNECT_SECONDS = 90, 5


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request for messages. ``ca_file`` verifies the server's certificate (default: the system's)."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    ca_file: str | None = None


async def repeat(
    request: SignedRequest, read: Callable[[int, bytes], Sequence[Delivery]]
) -> AsyncGenerator[Sequence[Delivery], None]:
    """Sends a request repeatedly and yields the deliveries of each, until its signature gets old.

    Args:
        read: parses a response, given its HTTP status and content. May raise any exception for an invalid
            response.

    Raises:
        QueueError: a request failed. It has no details: the caller should repeat the request with the SDK,
            which reports the cause.
    """
    from yarl import URL

    until = time.monotonic() + _SIGNED_SECONDS
    with _errors():
        address = URL(request.url, encoded=True)  # as it was signed
        proxy = None if proxy_bypass(address.host or "") else getproxies().get(address.scheme)
        options: dict[str, Any] = {
            "data": request.body or None,
            "skip_auto_headers": ["Content-Type"],  # it would not be signed
            "headers": request.headers,
            "ssl": _context(request.ca_file),
            "proxy": proxy,
        }
    while True:
        with _errors():
            async with _session().request(request.method, address, **options) as answer:
                deliveries = read(answer.status, await answer.read())
        yield deliveries
        if time.monotonic() >= until:
            return


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except Exception as exc:  # parsers may raise anything
        raise QueueError(f"A request for messages failed: {type(exc).__name__}: {exc}") from exc


@cache
def _session() -> aiohttp.ClientSession:
    """Returns the loop's session. The first call must be in the loop."""
    import aiohttp

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=_TOTAL_SECONDS, sock_connect=_CONNECT_SECONDS),
    )
    atexit.register(_close, session)  # aiohttp reports an error for a session that is still open at exit
    return session


def _close(session: aiohttp.ClientSession) -> None:
    with suppress(TimeoutError):
        begin(session.close()).result(1.0)


@cache
def _context(ca_file: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)


_log = get("queue")

#: No more messages are requested while this many are not taken, or not acknowledged: other consumers may
#: process them, and each costs renewals.
_MAX_WAITING, _MAX_RECEIVED = 1_000, 10_000

#: Attempts to delete messages, and the pause between them. Messages that remain are redelivered.
_DELETIONS, _PAUSE = 3, Backoff(first_seconds=0.2)

#: Maximum age of the provider's count, which the daemon reads twice a second.
_COUNT_SECONDS = 10.0

#: Maximum time that a stop spends on returning messages. The rest become visible when their time ends.
_HAND_BACK_SECONDS = 5.0


class Service(Protocol):
    """One queue of a provider. Thread-safe. Each method makes one attempt and raises :class:`QueueError`.

    Attributes:
        batch: maximum number of handles, or messages, per request.
    """

    batch: int

    def open(self) -> float:
        """Finds the queue. Returns the seconds for which delivered messages stay invisible to others."""

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        """Returns up to ``limit`` messages once there is one."""

    def delete(self, handles: Sequence[str]) -> Sequence[str]:
        """Deletes messages. Returns the handles to retry. Unknown messages are not failures."""

    def keep(self, handles: Sequence[str], seconds: float) -> Mapping[str, str | None]:
        """Keeps messages invisible for ``seconds`` from now (0: returns them to the queue).

        Returns the new handle of each, or None if the provider gave the message up. Leaves out handles to
        retry.
        """

    def describe(self) -> QueueState:
        """Returns the state that the provider reports."""


@runtime_checkable
class Unattended(Protocol):
    """A service whose requests can wait for messages without a thread."""

    def unattended(self, wait_seconds: float) -> AsyncGenerator[Sequence[Delivery], None]:
        """Prepares requests, and may request credentials. Yields the deliveries of each request, up to
        :attr:`Service.batch`.

        Ends when it must be called again. Raises :class:`QueueError` for any problem; :meth:`Service.receive`
        reports the cause.
        """


class RemoteQueue:
    """Delivers a provider's messages. Keeps them invisible to others until they are acknowledged or the queue
    stops.

    While started, the queue delivers a message once, however long its consumer takes. ``receive`` raises the
    provider's errors, immediately and then at the end of each wait until the provider recovers. Requests
    continue with growing delays. Locks: ``_handles`` reserves handles for the thread that uses them and is
    taken first. ``_changed`` guards the rest and is never held during a request.

    Threads request messages. With an :class:`Unattended` service, they only prepare requests, restart after
    errors, and wait for room.

    Attributes:
        identity: queues with the same identity read the same messages with the same credentials. None if the
            queue is not shared.
    """

    def __init__(self, service: Service, settings: QueueSettings, parse: Parser, identity: Hashable = None) -> None:
        self.identity = identity
        self._service = service
        self._parse = parse
        self._pollers = settings.pollers
        self._wait_seconds = settings.wait_seconds
        self._visibility = settings.visibility_seconds
        self._handles = threading.Lock()
        self._changed = threading.Condition()
        self._received = ReceivedMessages(parse)
        self._stopping: Stop | None = None  # of the current run; each start creates another
        self._failure: VolstreamError | None = None
        self._unanswered: VolstreamError | None = None  # why the most recent request failed
        self._broken: BaseException | None = None
        self._ready: Callable[[float], None] = lambda _: None
        self._held_seconds = self._visibility  # how long the provider hides a message that it delivers
        self._is_keeping = False
        self._arrived = 0
        # number of consecutive requests that brought messages; -1 before the first response
        self._streak = -1
        self._waiting = 0
        self._counted = float("-inf")

    def start(self) -> None:
        """See :meth:`EventQueue.start`."""
        if self._stopping is not None:
            return
        self._held_seconds = self._service.open()
        stopping = Stop()
        with self._changed:
            self._received = ReceivedMessages(self._parse)
            self._failure = self._unanswered = self._broken = None
            self._streak = -1
            self._stopping = stopping
            self._is_keeping = False
        for _ in range(self._pollers):
            self._spawn(stopping, self._poll)

    def stop(self) -> None:
        """See :meth:`EventQueue.stop`. Returns unacknowledged messages to the provider."""
        with self._changed:
            stopping, self._stopping = self._stopping, None
            if stopping is None:
                return
            stopping.set()
            self._changed.notify_all()
        # The thread with this lock may be waiting for an unresponsive provider. A stop must not wait for it.
        if self._handles.acquire(timeout=_HAND_BACK_SECONDS):
            try:
                self._hand_back(list(self._received.handles(self._received.ending(float("inf"))).values()))
            finally:
                self._handles.release()

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Message]:
        """See :meth:`EventQueue.receive`."""
        deadline = time.monotonic() + wait_seconds
        with self._changed:
            while self._stopping is not None:
                if self._broken is not None:
                    raise self._broken
                if messages := self._received.take(limit):
                    self._changed.notify_all()  # there is room
                    return messages
                failure, self._failure = self._failure, None
                if failure is not None:
                    raise failure
                now = time.monotonic()
                if now >= deadline:
                    if self._unanswered is not None:
                        raise self._unanswered
                    break
                self._changed.wait(deadline - now)
        return ()

    def announce(self, ready: Callable[[float], None]) -> None:
        """See :meth:`Announcing.announce`."""
        self._ready = ready

    def ready_at(self) -> float:
        """See :meth:`Announcing.ready_at`."""
        with self._changed:
            has_something = self._received.waiting or self._failure is not None or self._broken is not None
            return float("-inf") if has_something else float("inf")

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """See :meth:`EventQueue.acknowledge`. Messages that the provider fails to delete are redelivered."""
        for receipts in groups(list(dict.fromkeys(message.receipt for message in messages)), self._service.batch):
            with self._handles:
                with self._changed:
                    handles = self._received.handles(receipts)
                if handles:
                    self._delete(list(handles.values()))
                with self._changed:
                    self._received.forget(receipts)
                    self._changed.notify_all()  # there is room

    def depth(self) -> int | None:
        """See :meth:`EventQueue.depth`. None before the first response.

        Asks the provider at most every ten seconds, and only while consecutive requests bring messages: after
        a request without messages, none are waiting.
        """
        if self._stopping is None or self._streak < 0 or self._unanswered is not None:
            return None
        if self._streak > 1 and time.monotonic() - self._counted >= _COUNT_SECONDS:
            arrived = self._arrived
            try:
                waiting = self._service.describe().waiting
            except QueueError:
                waiting = None  # ``receive`` reports the error
            if waiting is None:
                return None
            with self._changed:
                self._waiting = waiting
                if self._arrived == arrived:  # otherwise some may count twice: ask again next time
                    self._counted = time.monotonic()
        with self._changed:
            return self._waiting + self._received.waiting

    def describe(self) -> QueueState:
        """See :meth:`SelfDescribing.describe`."""
        return self._service.describe()

    def _spawn(self, stopping: Stop, part: Callable[[Stop], None]) -> None:
        def run() -> None:
            with self._guarded(stopping):
                part(stopping)

        # Daemon threads, never joined: a request that waits for messages cannot be interrupted.
        threading.Thread(target=run, name="queue", daemon=True).start()

    def _poll(self, stopping: Stop, *, attended: bool = False) -> None:
        """Runs one thread: requests messages while there is room, until the event loop can wait for them.

        Args:
            attended: make the first request in this thread.
        """
        backoff, failures = Backoff(cap_seconds=30.0), 0
        while (room := self._await_room(stopping)) > 0:
            try:
                if isinstance(self._service, Unattended) and not attended:
                    begin(self._wait(stopping, self._service.unattended(self._wait_seconds)))
                    return
                deliveries = self._service.receive(min(room, self._service.batch), self._wait_seconds)
            except VolstreamError as error:
                failures, attended = failures + 1, True
                self._fail(error)
                self._unanswered = error
                stopping.wait(backoff.delay(failures))
                continue
            failures, attended = 0, False
            self._take(stopping, deliveries)

    async def _wait(self, stopping: Stop, answers: AsyncGenerator[Sequence[Delivery], None]) -> None:
        """Takes the deliveries of requests until a thread is needed."""
        attended = False
        with self._guarded(stopping):
            try:
                async with aclosing(answers):
                    async for deliveries in answers:
                        if not self._take(stopping, deliveries):
                            break
            except QueueError:
                attended = True
            self._spawn(stopping, partial(self._poll, attended=attended))

    def _await_room(self, stopping: Stop) -> int:
        """Waits for room. Returns how many more messages to request, or 0 when stopping."""
        with self._changed:
            while not stopping:
                room = self._room()
                if room > 0:
                    return room
                self._changed.wait()
        return 0

    def _room(self) -> int:
        return min(_MAX_WAITING - self._received.waiting, _MAX_RECEIVED - len(self._received))

    def _take(self, stopping: Stop, deliveries: Sequence[Delivery]) -> bool:
        """Stores deliveries, or hands them back after a stop. Returns True to request more. Never blocks."""
        now = time.monotonic()
        with self._changed:
            if stopping:
                if deliveries:
                    self._spawn(stopping, lambda _: self._hand_back([delivery.handle for delivery in deliveries]))
                return False
            self._unanswered = None
            self._streak = max(0, self._streak) + 1 if deliveries else 0
            for delivery in deliveries:
                self._received.add(delivery, now + self._held_seconds)
            self._arrived += len(deliveries)
            self._waiting = max(0, self._waiting - len(deliveries)) if deliveries else 0
            self._changed.notify_all()
            if deliveries and not self._is_keeping:
                self._is_keeping = True
                later(self._keep_seconds, lambda: self._begin_keeping(stopping))
            has_room = self._room() > 0
        if deliveries:
            self._ready(now)
        return has_room

    def _begin_keeping(self, stopping: Stop) -> None:
        with self._guarded(stopping):
            with self._changed:
                if stopping:
                    return
                self._is_keeping = len(self._received) > 0  # most are acknowledged by now
                if not self._is_keeping:
                    return
            self._spawn(stopping, self._keep)

    def _keep(self, stopping: Stop) -> None:
        """Runs one thread while messages are held: extends the visibility of each after half of its time."""
        while not stopping:
            with self._changed:
                if not len(self._received):
                    self._is_keeping = False
                    return
                ending = self._received.ending(time.monotonic() + self._visibility / 2)
            try:
                for receipts in groups(ending, self._service.batch):
                    self._keep_some(stopping, receipts)
            except VolstreamError as error:
                self._fail(error)
            stopping.wait(self._keep_seconds)

    @property
    def _keep_seconds(self) -> float:
        return min(self._held_seconds, self._visibility) / 4

    def _keep_some(self, stopping: Stop, receipts: Sequence[str]) -> None:
        with self._handles:
            with self._changed:
                held = {} if stopping else self._received.handles(receipts)
            due = time.monotonic() + self._visibility
            renewed = self._service.keep(list(held.values()), self._visibility) if held else {}
            with self._changed:
                for receipt, handle in held.items():
                    if handle in renewed:
                        self._received.renew(receipt, renewed[handle], due)

    def _delete(self, handles: Sequence[str]) -> None:
        for attempt in range(1, _DELETIONS + 1):
            handles = self._service.delete(handles)
            if not handles:
                return
            stopping = self._stopping
            if stopping is None or stopping.wait(_PAUSE.delay(attempt)):
                break
        _log.warning("messages_not_deleted", count=len(handles), consequence="they are delivered again")

    def _hand_back(self, handles: Sequence[str]) -> None:
        deadline = time.monotonic() + _HAND_BACK_SECONDS
        for batch in groups(handles, self._service.batch):
            if time.monotonic() >= deadline:
                return
            try:
                self._service.keep(batch, 0)
            except VolstreamError as error:  # they become visible later, when their time ends
                _log.warning("messages_not_handed_back", count=len(handles), error=str(error))
                return

    def _fail(self, error: VolstreamError) -> None:
        if not error.transient:
            raise error
        with self._changed:
            self._failure = error
            self._changed.notify_all()
        self._ready(time.monotonic())

    @contextmanager
    def _guarded(self, stopping: Stop) -> Iterator[None]:
        """Keeps an exception of a thread or the event loop for the consumer, so that it is not lost."""
        try:
            yield
        except BaseException as exc:  # noqa: BLE001 - see above
            with self._changed:
                if stopping:
                    return
                self._broken = exc
                self._changed.notify_all()
            self._ready(time.monotonic())
