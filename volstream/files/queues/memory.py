"""A queue in this process's memory, for tests and trials: messages are redelivered until acknowledged.

What does not belong here: anything that outlives the process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from volstream.base.model.hints import Hint
from volstream.files.queues.base import Message, QueueSpec
from volstream.files.queues.inflight import InFlight


class MemoryQueue:
    """Delivers the hints passed to :meth:`send`, in order, at least once.

    Like a provider's queue, and unlike a watcher, it keeps messages sent before ``start``.
    """

    def __init__(self, spec: QueueSpec) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Hint] = deque()
        self._in_flight = InFlight(spec.settings.visibility_seconds)
        self._listening = False

    def send(self, hint: Hint) -> None:
        """Adds a message."""
        with self._changed:
            self._waiting.append(hint)
            self._changed.notify_all()

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
                room = min(limit - len(messages), self._in_flight.room, len(self._waiting))
                messages += [self._in_flight.deliver(self._waiting.popleft(), now) for _ in range(room)]
                if messages or now >= deadline:
                    return messages
                due = self._in_flight.next_due
                self._changed.wait((deadline if due is None else min(deadline, due)) - now)
        return ()

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """See :meth:`EventQueue.acknowledge`."""
        with self._changed:
            self._in_flight.acknowledge(messages)

    def depth(self) -> int:
        """See :meth:`EventQueue.depth`."""
        with self._changed:
            return len(self._waiting)
