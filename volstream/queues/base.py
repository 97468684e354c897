"""Where hints about changed objects come from. Implementations sit beside this file; :mod:`volstream.queues` picks one by type.

What does not belong here: what hints mean for the directory (``directory.fold``), what an object is now (``storage``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from volstream.cloud.access import Access
from volstream.model.hints import Hint, ObjectHint, Rejection
from volstream.model.selection import Selection


@dataclass(frozen=True, slots=True)
class Message:
    """One received message.

    Attributes:
        receipt: identifies the message when it is acknowledged.
        hints: what the message says; empty: nothing of interest.
        rejection: why the message cannot be read; it has no hints then.
    """

    receipt: str
    hints: Sequence[Hint | ObjectHint] = ()
    rejection: Rejection | None = None

    @classmethod
    def of(cls, receipt: str, parsed: Sequence[Hint | ObjectHint] | Rejection) -> Message:
        """A message with this content."""
        return cls(receipt, (), parsed) if isinstance(parsed, Rejection) else cls(receipt, parsed)


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How long a queue waits for what; which of these matter depends on its type.

    Attributes:
        debounce_seconds: local: how long a path must be quiet, and its size and time unchanged, before it is told.
        check_seconds: local: how often to check that the watch still hears, and so how long it may be deaf unnoticed.
        poll_seconds: poll: from one look at the whole volume to the next.
        visibility_seconds: local, poll, memory: after this a message that nobody acknowledged is delivered again; sqs,
            mns: so long after the end of this process.
        pollers: sqs, mns: threads that ask for messages.
        wait_seconds: sqs, mns: how long one request waits for a message; the providers allow 20 and 30 at most.
    """

    debounce_seconds: float = 0.2
    check_seconds: float = 1.0
    poll_seconds: float = 10.0
    visibility_seconds: float = 60.0
    pollers: int = 1
    wait_seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """Whose queue it is and how it is reached: what every queue is made from.

    Attributes:
        location: the volume's URI.
        selection: which paths are worth a message.
        settings: waiting times.
        name: sqs, mns: the queue's name or URL.
        access: sqs, mns: by whom the provider is asked.
    """

    location: str
    selection: Selection = field(default_factory=Selection)
    settings: QueueSettings = field(default_factory=QueueSettings)
    name: str | None = None
    access: Access | None = None


@dataclass(frozen=True, slots=True)
class QueueState:
    """What a provider tells of a queue. None: it does not tell.

    Attributes:
        waiting: messages that nobody has received, roughly.
        in_flight: messages that were received and neither deleted nor handed back, roughly.
        visibility_seconds: the queue's own: after this a message that nobody keeps is delivered again.
        retention_seconds: messages that are older are lost.
        dead_letter_queue: where messages go that were received too often; empty: there is none.
        max_receives: how often is too often.
    """

    waiting: int | None
    in_flight: int | None
    visibility_seconds: float
    retention_seconds: float
    dead_letter_queue: str | None = None
    max_receives: int | None = None


class EventQueue(Protocol):
    """At-least-once delivery of messages about one location.

    ``start`` does the first I/O; before it and after ``stop`` nothing is received. ``receive`` is called by one thread;
    the other methods by any. All raise :class:`~volstream.errors.QueueError` for what may pass; ``receive`` goes on doing
    so while it lasts, not before the end of its wait where it has said it.
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


@runtime_checkable
class Described(Protocol):
    """A queue whose provider tells more of it. Needs no ``start``."""

    def describe(self) -> QueueState:
        """Asks the provider. Raises :class:`~volstream.errors.QueueError`."""


class Parser(Protocol):
    """Reads the body of a provider's message; pure, and never raises."""

    def __call__(self, body: bytes) -> Sequence[Hint | ObjectHint] | Rejection:
        """The hints in ``body`` (none: nothing of interest), or why it cannot be read."""
