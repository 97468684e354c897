"""A queue for locations without change notifications (network mounts, containers): it requests a full listing periodically.

What does not belong here: the listing itself (``directory``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from volstream.base.model.hints import SubtreeHint
from volstream.files.queues.base import Message, QueueSpec
from volstream.files.queues.inflight import InFlight


class PollQueue:
    """Delivers one hint for the whole volume every ``poll_seconds``, the first after one period, because a start lists anyway.

    Creates no other hint while one is unacknowledged, so that listings longer than the period do not queue up.
    """

    def __init__(self, spec: QueueSpec) -> None:
        self._period = spec.settings.poll_seconds
        self._changed = threading.Condition()
        self._in_flight = InFlight(spec.settings.visibility_seconds)
        self._listening = False
        self._due = 0.0

    def start(self) -> None:
        """See :meth:`EventQueue.start`."""
        with self._changed:
            self._in_flight.expire_all()
            self._due = time.monotonic() + self._period
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
                if not self._in_flight and now >= self._due and limit > 0:
                    self._due = now + self._period
                    messages = [self._in_flight.deliver(SubtreeHint("", "poll"), now)]
                if messages or now >= deadline:
                    return messages
                due = self._in_flight.next_due
                self._changed.wait(min(deadline, self._due if due is None else due) - now)
        return ()

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """See :meth:`EventQueue.acknowledge`."""
        with self._changed:
            self._in_flight.acknowledge(messages)
            self._changed.notify_all()

    def depth(self) -> int:
        """See :meth:`EventQueue.depth`."""
        with self._changed:
            return int(self._listening and not self._in_flight and time.monotonic() >= self._due)
