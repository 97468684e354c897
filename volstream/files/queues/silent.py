"""A queue without messages: for volumes refreshed only on demand or by the scheduled reconcile, and for those whose events are
posted to the daemon, which notes them in the catalog (:mod:`volstream.files.volumes.posted`)."""

from __future__ import annotations

from volstream.files.queues.base import Message, QueueSpec
from volstream.files.queues.inflight import InProcessQueue


class SilentQueue(InProcessQueue):
    """Waits and delivers nothing."""

    def __init__(self, spec: QueueSpec) -> None:
        super().__init__(spec.settings.visibility_seconds)

    def depth(self) -> int:
        """See :meth:`EventQueue.depth`."""
        return 0

    def _new(self, now: float, limit: int) -> list[Message]:  # noqa: ARG002
        return []
