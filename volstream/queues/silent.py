"""A queue that never has a message: for volumes that are refreshed on demand or by the scheduled reconcile only."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from volstream.model.selection import Selection
from volstream.queues.base import Message, QueueSettings


class SilentQueue:
    """Waits and delivers nothing."""

    def __init__(self, location: str, selection: Selection, settings: QueueSettings) -> None:
        del location, selection, settings  # the signature is that of every queue
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
        del limit  # of nothing
        self._stopped.wait(wait_seconds)
        return ()

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """See :meth:`EventQueue.acknowledge`."""

    def depth(self) -> int:
        """See :meth:`EventQueue.depth`."""
        return 0
