"""A queue for locations without change notifications (network mounts, containers): it requests a full listing periodically.

What does not belong here: the listing itself (``directory``).
"""

from __future__ import annotations

import time

from volstream.base.model.hints import SubtreeHint
from volstream.files.queues.base import Message, QueueSpec
from volstream.files.queues.inflight import InProcessQueue


class PollQueue(InProcessQueue):
    """Delivers one hint for the whole volume every ``poll_seconds``, the first after one period, because a start lists anyway.

    Creates no other hint while one is unacknowledged, so that listings longer than the period do not queue up.
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
