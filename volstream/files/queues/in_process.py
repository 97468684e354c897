"""Queues that live in this process: polled and silent ones, and messages in flight."""

from __future__ import annotations

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from volstream.base.model.hints import Hint, SubtreeHint
from volstream.files.queues.base import Message, QueueSpec

# Queues that live in this process, and their delivered but unacknowledged messages. Not here: messages
# waiting for their first delivery (``local``).

#: Maximum number of unacknowledged messages: a consumer that never acknowledges must not fill memory.
CAPACITY = 100_000


@dataclass(slots=True)
class _Delivery:
    message: Message
    due: float


class InFlight:
    """Redelivers messages that are not acknowledged within ``visibility_seconds``.

    A message keeps its receipt across deliveries, so a late acknowledgement still counts. Callers pass the
    times and hold their lock.
    """

    def __init__(self, visibility_seconds: float) -> None:
        self._visibility_seconds = visibility_seconds
        self._receipts = itertools.count(1)
        # In order of due time: each delivery, first or repeated, goes to the end with the same visibility.
        self._deliveries: dict[str, _Delivery] = {}

    def __len__(self) -> int:
        return len(self._deliveries)

    @property
    def room(self) -> int:
        """Number of messages that may still be delivered for the first time."""
        return max(0, CAPACITY - len(self._deliveries))

    @property
    def next_due(self) -> float | None:
        """Time of the next redelivery, or None if no message is in flight."""
        return next((delivery.due for delivery in self._deliveries.values()), None)

    def deliver(self, hint: Hint, now: float) -> Message:
        """Returns a new message with this hint."""
        message = Message(str(next(self._receipts)), (hint,))
        self._deliveries[message.receipt] = _Delivery(message, now + self._visibility_seconds)
        return message

    def redeliver(self, now: float, limit: int) -> list[Message]:
        """Returns up to ``limit`` messages whose visibility has expired, and restarts it."""
        expired: list[Message] = []
        for delivery in self._deliveries.values():
            if delivery.due > now or len(expired) == limit:
                break
            expired.append(delivery.message)
        for message in expired:
            delivery = self._deliveries.pop(message.receipt)
            delivery.due = now + self._visibility_seconds
            self._deliveries[message.receipt] = delivery
        return expired

    def acknowledge(self, messages: Iterable[Message]) -> None:
        """Removes these messages. Idempotent."""
        for message in messages:
            self._deliveries.pop(message.receipt, None)

    def expire_all(self) -> None:
        """Makes all messages due now, because their consumer ended."""
        for delivery in self._deliveries.values():
            delivery.due = float("-inf")


class InProcessQueue(ABC):
    """An :class:`~.base.EventQueue`. Subclasses supply new messages. ``_changed`` guards the state."""

    def __init__(self, visibility_seconds: float) -> None:
        self._changed = threading.Condition()
        self._in_flight = InFlight(visibility_seconds)
        self._listening = False
        self._ready: Callable[[float], None] = lambda _: None

    def start(self) -> None:
        """See :meth:`EventQueue.start`."""
        with self._changed:
            self._in_flight.expire_all()
            self._listening = True

    def stop(self) -> None:
        """See :meth:`EventQueue.stop`."""
        with self._changed:
            self._listening = False
            self._changed.notify_all()

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Message]:
        """See :meth:`EventQueue.receive`."""
        deadline = time.monotonic() + wait_seconds
        with self._changed:
            while self._listening:
                now = time.monotonic()
                messages = self._in_flight.redeliver(now, limit)
                messages += self._new(now, limit - len(messages))
                if messages or now >= deadline:
                    return messages
                dues = (self._in_flight.next_due, self._next_due, deadline)
                self._changed.wait(min(due for due in dues if due is not None) - now)
        return ()

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """See :meth:`EventQueue.acknowledge`."""
        with self._changed:
            self._in_flight.acknowledge(messages)
            self._changed.notify_all()

    def announce(self, ready: Callable[[float], None]) -> None:
        """See :meth:`Announcing.announce`."""
        self._ready = ready

    def ready_at(self) -> float:
        """See :meth:`Announcing.ready_at`."""
        with self._changed:
            dues = [due for due in (self._in_flight.next_due, self._next_due) if due is not None]
            return min(dues, default=float("inf"))

    @property
    def _next_due(self) -> float | None:
        """When there may be new messages. None: not before :attr:`_changed` is notified."""
        return None

    @abstractmethod
    def _new(self, now: float, limit: int) -> list[Message]:
        """Returns messages for their first delivery."""


# A queue for locations without change notifications (network mounts, containers): it periodically requests a
# full listing. Not here: the listing itself (``directory``).


class PollQueue(InProcessQueue):
    """Delivers a hint for the whole volume every ``poll_seconds``.

    The first comes after one period, because a start lists anyway. While a hint is unacknowledged, no other
    is created, so that listings longer than the period do not queue up.
    """

    def __init__(self, spec: QueueSpec) -> None:
        super().__init__(spec.settings.visibility_seconds)
        self._period = spec.settings.poll_seconds
        self._due = 0.0

    def start(self) -> None:
        """See :meth:`EventQueue.start`."""
        self._due = time.monotonic() + self._period
        super().start()

    def depth(self) -> int:
        """See :meth:`EventQueue.depth`."""
        with self._changed:
            return int(self._listening and not self._in_flight and time.monotonic() >= self._due)

    @property
    def _next_due(self) -> float | None:
        return None if self._in_flight else self._due

    def _new(self, now: float, limit: int) -> list[Message]:
        if self._in_flight or now < self._due or limit <= 0:
            return []
        self._due = now + self._period
        return [self._in_flight.deliver(SubtreeHint("", "poll"), now)]


# A queue without messages: for volumes refreshed only on demand or by the scheduled reconcile, and for
# volumes whose events are posted to the daemon, which records them in the catalog
# (:mod:`volstream.files.volumes.routing`).


class SilentQueue(InProcessQueue):
    """Waits, and delivers nothing."""

    def __init__(self, spec: QueueSpec) -> None:
        super().__init__(spec.settings.visibility_seconds)

    def depth(self) -> int:
        """See :meth:`EventQueue.depth`."""
        return 0

    def _new(self, now: float, limit: int) -> list[Message]:  # noqa: ARG002
        return []
