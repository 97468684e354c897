"""A queue without messages: for volumes refreshed only on demand or by the scheduled reconcile, and for those whose events are
posted to the daemon, which notes them in the catalog (:mod:`volstream.files.volumes.posted`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from volstream.files.queues.base import Message, QueueSpec


class SilentQueue:
    """Waits and delivers nothing."""

    def __init__(self, spec: QueueSpec) -> None:
        del spec  # unused
        self._stopped = threading.Event()
        self._stopped.set()

    def start(self) -> None:
        """See :meth:`EventQueue.start`."""
        self._stopped.clear()

    def stop(self) -> None:
        """See :meth:`EventQueue.stop`."""
        self._stopped.set()

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Message]:
        """See :meth:`EventQueue.receive`."""
        del limit  # unused
        self._stopped.wait(wait_seconds)
        return ()

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """See :meth:`EventQueue.acknowledge`."""

    def announce(self, ready: Callable[[float], None]) -> None:
        """See :meth:`Announcing.announce`."""

    def ready_at(self) -> float:
        """See :meth:`Announcing.ready_at`."""
        return float("inf")

    def depth(self) -> int:
        """See :meth:`EventQueue.depth`."""
        return 0
