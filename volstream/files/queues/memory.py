"""A queue in this process's memory, for tests and trials: messages are redelivered until acknowledged.

What does not belong here: anything that outlives the process.
"""

from __future__ import annotations

import time
from collections import deque

from volstream.base.model.hints import Hint
from volstream.files.queues.base import Message, QueueSpec
from volstream.files.queues.inflight import InProcessQueue


class MemoryQueue(InProcessQueue):
    """Delivers the hints passed to :meth:`send`, in order, at least once.

    Like a provider's queue, and unlike a watcher, it keeps messages sent before ``start``.
    """

    def __init__(self, spec: QueueSpec) -> None:
        super().__init__(spec.settings.visibility_seconds)
        self._waiting: deque[Hint] = deque()

    def send(self, hint: Hint) -> None:
        """Adds a message."""
        with self._changed:
            self._waiting.append(hint)
            self._changed.notify_all()
        self._ready(time.monotonic())

    def depth(self) -> int:
        """See :meth:`EventQueue.depth`."""
        with self._changed:
            return len(self._waiting)

    @property
    def _next_due(self) -> float | None:
        return float("-inf") if self._waiting and self._in_flight.room else None

    def _new(self, now: float, limit: int) -> list[Message]:
        room = min(limit, self._in_flight.room, len(self._waiting))
        return [self._in_flight.deliver(self._waiting.popleft(), now) for _ in range(room)]
