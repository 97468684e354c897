"""Waits, in a thread of its own, for a queue that cannot say when to ask it: Kafka's, and those of plug-ins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from volstream.base.threads import Stop
from volstream.files.queues.base import EventQueue, Message, Settling

#: Maximum number of messages received before they are asked for.
_AHEAD = 1000

#: How long one call waits for a message, and so how long the thread outlives a stop.
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
                found = self._queue.receive(_AHEAD, _WAIT_SECONDS)
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
