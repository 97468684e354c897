"""The protocol of event queues, the source of hints about changed objects.

Implementations are beside this file; :mod:`volstream.files.queues` picks one by type. Not here: what hints
mean for the directory (``model.hints``), an object's current state (``storage``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from volstream.base.model.hints import Hint, ObjectHint, Rejection
from volstream.base.model.paths import Selection
from volstream.base.threads import Stop
from volstream.files.providers.access import Access


@dataclass(frozen=True, slots=True)
class Message:
    """One received message.

    Attributes:
        receipt: identifies the message when it is acknowledged.
        hints: the message's content. Empty if it has nothing of interest.
        rejection: why the message cannot be read. Then it has no hints.
    """

    receipt: str
    hints: Sequence[Hint | ObjectHint] = ()
    rejection: Rejection | None = None

    @classmethod
    def of(cls, receipt: str, parsed: Sequence[Hint | ObjectHint] | Rejection) -> Message:
        """Returns a message with this content."""
        return cls(receipt, (), parsed) if isinstance(parsed, Rejection) else cls(receipt, parsed)


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """A queue's waiting times. Each applies to some types only.

    Attributes:
        debounce_seconds: local: how long a path must be quiet, with size and time unchanged, before it is
            reported.
        check_seconds: local: interval of checks that the watch still works, so the longest time that a
            failure goes unnoticed.
        poll_seconds: poll: interval of listings of the whole volume.
        visibility_seconds: local, poll: an unacknowledged message is redelivered after this time. At a
            provider: this long after this process ends.
        pollers: at a provider: number of concurrent requests for messages.
        wait_seconds: at a provider: how long one request waits for a message. Providers have limits, such as
            20.
    """

    debounce_seconds: float = 0.2
    check_seconds: float = 1.0
    poll_seconds: float = 10.0
    visibility_seconds: float = 60.0
    pollers: int = 1
    wait_seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """The arguments of every queue: its volume, and how to connect to the queue.

    Attributes:
        location: the volume's URI.
        selection: the paths to report.
        settings: waiting times.
        name: at a provider: the queue's name or URL; kafka: the topic.
        access: credentials for requests to the volume's provider, if it has one.
        properties: further settings, such as kafka's brokers and security. Secrets may be references
            (:mod:`volstream.base.privacy`).
        consumer: the volume's id, for queues that distinguish consumers.
    """

    location: str
    selection: Selection = field(default_factory=Selection)
    settings: QueueSettings = field(default_factory=QueueSettings)
    name: str | None = None
    access: Access | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    consumer: str = ""


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue's state as reported by the provider. None means not reported, or unlimited.

    Attributes:
        waiting: approximate number of messages not yet received.
        in_flight: approximate number of messages received, and neither deleted nor returned.
        visibility_seconds: the queue's own setting: a message is redelivered after this time unless its lease
            is extended.
        retention_seconds: older messages are lost.
        dead_letter_queue: queue for messages received too often. Empty if none is configured.
        max_receives: receives after which a message moves to the dead letter queue.
    """

    waiting: int | None
    in_flight: int | None
    visibility_seconds: float | None
    retention_seconds: float | None
    dead_letter_queue: str | None = None
    max_receives: int | None = None


class EventQueue(Protocol):
    """At-least-once delivery of messages about one location.

    ``start`` does the first I/O. Before it and after ``stop``, nothing is received. One thread calls
    ``receive``; any thread calls the other methods. All raise :class:`~volstream.errors.QueueError` for
    transient errors. ``receive`` keeps raising while the error lasts: immediately the first time, then at the
    end of each wait.
    """

    def start(self) -> None:
        """Begins to listen. All changes after its return are reported, earlier ones are not."""

    def stop(self) -> None:
        """Stops listening and wakes a blocked ``receive``. Unacknowledged messages return. Idempotent."""

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Message]:
        """Returns up to ``limit`` messages once there is one. Empty after ``wait_seconds`` or ``stop``."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Ends the delivery of these messages permanently. Idempotent."""

    def depth(self) -> int | None:
        """Returns the approximate number of waiting messages, or None if unknown."""


@runtime_checkable
class Announcing(Protocol):
    """A queue that announces messages, so that no thread waits for it.

    Every other queue needs a polling thread (:class:`AnnouncedQueue`).
    """

    def announce(self, ready: Callable[[float], None]) -> None:
        """Registers ``ready``, called from any thread with the (monotonic) time at which ``receive`` may have
        a result or an error."""

    def ready_at(self) -> float:
        """Returns the (monotonic) time at which ``receive`` may have a result or error unannounced."""


@runtime_checkable
class SelfDescribing(Protocol):
    """A queue whose provider reports its state. Needs no ``start``."""

    def describe(self) -> QueueState:
        """Asks the provider. Raises :class:`~volstream.errors.QueueError`."""


@runtime_checkable
class Settling(Protocol):
    """A queue that holds back changes until they settle, and so delivers simultaneous changes together."""

    def is_settled(self) -> bool:
        """Returns True if no change is held back."""


class Parser(Protocol):
    """Parses the body of a provider's message. Pure; never raises."""

    def __call__(self, body: bytes) -> Sequence[Hint | ObjectHint] | Rejection:
        """Returns the hints in ``body`` (empty if nothing is of interest), or why it cannot be parsed."""


# Waits in a separate thread for queues that do not announce messages: Kafka's, and plug-ins' queues.

#: Maximum number of prefetched messages.
_PREFETCHED = 1000

#: How long one call waits for a message, and so the longest time that the thread outlives a stop.
_WAIT_SECONDS = 0.5


class AnnouncedQueue:
    """Wraps a blocking queue: a thread prefetches its messages."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self._changed = threading.Condition()
        self._found: Sequence[Message] = ()
        self._failure: BaseException | None = None
        self._stopping: Stop | None = None
        self._ready: Callable[[float], None] = lambda _: None

    def start(self) -> None:
        """See :meth:`EventQueue.start`."""
        if self._stopping is not None:
            return
        self._queue.start()
        with self._changed:
            self._stopping, self._found, self._failure = Stop(), (), None
        threading.Thread(target=self._run, args=(self._stopping,), name="queue", daemon=True).start()

    def stop(self) -> None:
        """See :meth:`EventQueue.stop`."""
        with self._changed:
            stopping, self._stopping = self._stopping, None
            if stopping is not None:
                stopping.set()
            self._changed.notify_all()
        self._queue.stop()

    def announce(self, ready: Callable[[float], None]) -> None:
        """See :meth:`Announcing.announce`."""
        self._ready = ready

    def ready_at(self) -> float:
        """See :meth:`Announcing.ready_at`."""
        with self._changed:
            return float("-inf") if self._found or self._failure is not None else float("inf")

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Message]:
        """See :meth:`EventQueue.receive`."""
        with self._changed:
            self._changed.wait_for(lambda: self._found or self._failure is not None or self._stopping is None, wait_seconds)
            failure, self._failure = self._failure, None
            found, self._found = self._found[:limit], self._found[limit:]
            self._changed.notify_all()
        if failure is not None and not found:
            raise failure
        return found

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """See :meth:`EventQueue.acknowledge`."""
        self._queue.acknowledge(messages)

    def depth(self) -> int | None:
        """See :meth:`EventQueue.depth`."""
        waiting = self._queue.depth()
        with self._changed:
            return None if waiting is None else waiting + len(self._found)

    def is_settled(self) -> bool:
        """See :meth:`Settling.is_settled`."""
        return isinstance(self._queue, Settling) and self._queue.is_settled()

    def _run(self, stopping: Stop) -> None:
        while not stopping:
            found: Sequence[Message] = ()
            failure: BaseException | None = None
            try:
                found = self._queue.receive(_PREFETCHED, _WAIT_SECONDS)
            except BaseException as error:  # noqa: BLE001  # receive() raises it
                failure = error
            if not found and failure is None:
                continue
            with self._changed:
                if stopping:
                    return
                self._found, self._failure = found, failure
                self._changed.notify_all()
            self._ready(time.monotonic())
            with self._changed:
                self._changed.wait_for(lambda: not (self._found or self._failure) or bool(stopping))
