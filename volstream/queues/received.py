"""Messages that a provider delivered to this process and that nobody acknowledged yet, and how long it keeps them for us.

What does not belong here: asking the provider (``remote``). Not safe for threads: callers hold their lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from volstream.queues.base import Message, Parser


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message by a provider.

    Attributes:
        id: of the message, the same in all its deliveries.
        handle: what deletes this delivery, or keeps it.
        body: as delivered.
    """

    id: str
    handle: str
    body: bytes


@dataclass(slots=True)
class _Kept:
    handle: str
    due: float


class Received:
    """Messages by their id, which is their receipt: a handle may change while the consumer has the message."""

    def __init__(self, parse: Parser) -> None:
        self._parse = parse
        self._kept: dict[str, _Kept] = {}
        self._waiting: deque[Message] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def waiting(self) -> int:
        """Messages that the consumer has not taken."""
        return len(self._waiting)

    def add(self, delivery: Delivery, due: float) -> None:
        """Takes a delivery in that is kept until ``due``. One of a message that is here already only has a newer handle."""
        if delivery.id not in self._kept:
            self._waiting.append(Message.of(delivery.id, self._parse(delivery.body)))
        self._kept[delivery.id] = _Kept(delivery.handle, due)

    def take(self, limit: int) -> list[Message]:
        """Up to ``limit`` messages for the consumer, in the order in which they came."""
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    def ending(self, before: float) -> list[str]:
        """The receipts of those that the provider stops keeping before ``before``; not of those that it gave up."""
        return [receipt for receipt, kept in self._kept.items() if kept.due < before]

    def handles(self, receipts: Iterable[str]) -> Mapping[str, str]:
        """The newest handle of each of these that is here."""
        return {receipt: kept.handle for receipt in receipts if (kept := self._kept.get(receipt))}

    def renew(self, receipt: str, handle: str | None, due: float) -> None:
        """Keeps a message until ``due``. Without a handle the provider gave it up: it delivers it again, and until then
        nothing can be done."""
        kept = self._kept.get(receipt)
        if kept is not None:
            kept.handle, kept.due = (kept.handle, float("inf")) if handle is None else (handle, due)

    def forget(self, receipts: Iterable[str]) -> None:
        """Drops these. Idempotent."""
        for receipt in receipts:
            self._kept.pop(receipt, None)
