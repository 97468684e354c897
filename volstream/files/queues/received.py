"""Messages that a provider delivered to this process and that are unacknowledged, and how long they stay invisible.

What does not belong here: requests to the provider (``remote``). Not thread-safe: callers hold their lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from volstream.base.model.hints import Hint, ObjectHint, Rejection
from volstream.files.queues.base import Message, Parser
from volstream.files.queues.bodies import reject


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message by a provider.

    Attributes:
        id: the message's id, the same in all its deliveries.
        handle: identifies this delivery when it is deleted or its visibility is extended.
        body: as delivered.
    """

    id: str
    handle: str
    body: bytes


@dataclass(slots=True)
class _Kept:
    handle: str
    due: float


class ReceivedMessages:
    """Messages by id, which is their receipt: a handle may change while the consumer has the message."""

    def __init__(self, parse: Parser) -> None:
        self._parse = parse
        self._kept: dict[str, _Kept] = {}
        self._waiting: deque[Message] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def waiting(self) -> int:
        """Number of messages that the consumer has not taken."""
        return len(self._waiting)

    def add(self, delivery: Delivery, due: float) -> None:
        """Adds a delivery that stays invisible until ``due``. For a message already held, replaces only the handle."""
        if delivery.id not in self._kept:
            self._waiting.append(Message.of(delivery.id, _parsed(self._parse, delivery.body)))
        self._kept[delivery.id] = _Kept(delivery.handle, due)

    def take(self, limit: int) -> list[Message]:
        """Removes and returns up to ``limit`` messages for the consumer, in order of arrival."""
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    def ending(self, before: float) -> list[str]:
        """Returns the receipts of messages that become visible before ``before``, except those the provider has given up."""
        return [receipt for receipt, kept in self._kept.items() if kept.due < before]

    def handles(self, receipts: Iterable[str]) -> Mapping[str, str]:
        """Returns the newest handle of each of these messages that are held."""
        return {receipt: kept.handle for receipt in receipts if (kept := self._kept.get(receipt))}

    def renew(self, receipt: str, handle: str | None, due: float) -> None:
        """Records that a message stays invisible until ``due``. Without a handle, the provider has given it up and will
        redeliver it; until then nothing can be done."""
        kept = self._kept.get(receipt)
        if kept is not None:
            kept.handle, kept.due = (kept.handle, float("inf")) if handle is None else (handle, due)

    def forget(self, receipts: Iterable[str]) -> None:
        """Drops these messages. Idempotent."""
        for receipt in receipts:
            self._kept.pop(receipt, None)


def _parsed(parse: Parser, body: bytes) -> Sequence[Hint | ObjectHint] | Rejection:
    """Parses a body. A parser's fault costs its message, which would otherwise come again and again, with those beside it."""
    try:
        return parse(body)
    except Exception as error:  # noqa: BLE001  # see above
        return reject(body, f"It cannot be parsed: {type(error).__name__}: {error}")
