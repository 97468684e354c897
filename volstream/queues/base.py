"""Where hints about changed objects come from. Implementations sit beside this file; :mod:`volstream.queues` picks one by type.

What does not belong here: what hints mean for the directory (``directory.fold``), what an object is now (``storage``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from volstream.model.hints import Hint, Rejection


@dataclass(frozen=True, slots=True)
class Message:
    """One received message.

    Attributes:
        receipt: what acknowledges this delivery of it.
        body: as delivered.
    """

    receipt: str
    body: bytes


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How long a queue waits for what; which of these matter depends on its type.

    Attributes:
        debounce_seconds: local: how long a path must be quiet, and its size and time unchanged, before it is told.
        check_seconds: local: how often to check that the watch still hears, and so how long it may be deaf unnoticed.
        poll_seconds: poll: from one look at the whole volume to the next.
        visibility_seconds: local, poll, memory: after this a message that nobody acknowledged is delivered again.
    """

    debounce_seconds: float = 0.2
    check_seconds: float = 1.0
    poll_seconds: float = 10.0
    visibility_seconds: float = 60.0


class EventQueue(Protocol):
    """At-least-once delivery of messages about one location.

    ``start`` does the first I/O; before it and after ``stop`` nothing is received. ``receive`` is called by one thread;
    the other methods by any. All raise :class:`~volstream.errors.QueueError` for what may pass.
    """

    def start(self) -> None:
        """Begins to listen. Everything that changes after it returns is heard; what changed before is not."""

    def stop(self) -> None:
        """Ends listening and wakes a blocked ``receive``. Idempotent. Unacknowledged messages are delivered again."""

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Message]:
        """Up to ``limit`` messages as soon as there is one, or none after ``wait_seconds``. None after ``stop``."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Never delivers these again. Idempotent."""

    def depth(self) -> int | None:
        """Messages that wait, roughly; None where the queue cannot tell."""


class Parser(Protocol):
    """Reads a message's body; pure, and never raises."""

    def __call__(self, body: bytes) -> Sequence[Hint] | Rejection:
        """The hints in ``body`` (none: nothing of interest), or why it cannot be read."""
