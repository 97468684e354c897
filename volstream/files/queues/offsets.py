"""Up to where the messages of a topic may be committed, while they are acknowledged in any order. Pure.

What does not belong here: requests to the brokers (``kafka``). Not thread-safe: callers hold their lock.
"""

from __future__ import annotations

from collections import deque


class PartitionOffsets:
    """The offsets of one partition.

    Args:
        start: the offset of the first message to be delivered.

    Attributes:
        next: the offset after the last one that was delivered, or passed because there is nothing at it.
    """

    def __init__(self, start: int) -> None:
        self.next = start
        self._order: deque[int] = deque()
        self._unacknowledged: set[int] = set()

    def deliver(self, offset: int) -> bool:
        """Notes that a message is delivered. False: it was before."""
        if offset < self.next:
            return False
        self._order.append(offset)
        self._unacknowledged.add(offset)
        self.next = offset + 1
        return True

    def reach(self, offset: int) -> None:
        """Notes that no message comes before ``offset``."""
        self.next = max(self.next, offset)

    def acknowledge(self, offset: int) -> None:
        """Ends the delivery of a message. Idempotent; others are ignored."""
        self._unacknowledged.discard(offset)
        while self._order and self._order[0] not in self._unacknowledged:
            self._order.popleft()

    @property
    def safe(self) -> int:
        """The offset from which on a reader that starts anew misses nothing: that of the first unacknowledged message."""
        return self._order[0] if self._order else self.next
