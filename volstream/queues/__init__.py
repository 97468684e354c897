"""Event queues by type: the one table of backends and their parsers, imported late so that a missing extra costs nothing.

What does not belong here: what a queue does (``base``), how one does it (the file beside this one named for it).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

from volstream.errors import InvalidValueError

if TYPE_CHECKING:
    from volstream.model.selection import Selection
    from volstream.queues.base import EventQueue, Parser, QueueSettings

__all__ = ["QUEUE_TYPES", "open_queue", "parser_for"]

_HINTS = "volstream.queues.hint_codec:parse"

#: Type of queue -> its class, and the parser of its messages.
_BACKENDS = {
    "local": ("volstream.queues.local:LocalQueue", _HINTS),
    "poll": ("volstream.queues.poll:PollQueue", _HINTS),
    "memory": ("volstream.queues.memory:MemoryQueue", _HINTS),
    "none": ("volstream.queues.silent:SilentQueue", _HINTS),
}

#: What a user may name.
QUEUE_TYPES = tuple(sorted(_BACKENDS))


def open_queue(queue_type: str, *, location: str, selection: Selection, settings: QueueSettings) -> EventQueue:
    """The queue of a volume. Does no I/O before its ``start``.

    Args:
        queue_type: one of :data:`QUEUE_TYPES`.
        location: the volume's URI.
        selection: which paths are worth a message.
        settings: waiting times.

    Raises:
        InvalidValueError: this version has no such queue, or it cannot serve the location.
    """
    return cast("EventQueue", _load(_entry(queue_type)[0])(location, selection, settings))


def parser_for(queue_type: str) -> Parser:
    """What reads the messages of such a queue.

    Raises:
        InvalidValueError: this version has no such queue.
    """
    return cast("Parser", _load(_entry(queue_type)[1]))


def _entry(queue_type: str) -> tuple[str, str]:
    if queue_type not in _BACKENDS:
        raise InvalidValueError(
            f"Queues of the type {queue_type!r} are not available in this version.",
            f"Available: {', '.join(QUEUE_TYPES)}.",
        )
    return _BACKENDS[queue_type]


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
