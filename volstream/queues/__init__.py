"""Event queues by type: the one table of backends and their parsers, imported late so that a missing extra costs nothing.

What does not belong here: what a queue does (``base``), how one does it (the file beside this one named for it).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

from volstream.errors import DependencyError, InvalidValueError

if TYPE_CHECKING:
    from volstream.queues.base import EventQueue, Parser, QueueSpec

__all__ = ["QUEUE_TYPES", "open_queue", "parser_for"]

_HINTS = "volstream.queues.hint_codec:parse"

#: Type of queue -> what makes it of a QueueSpec, and the parser of its messages.
_BACKENDS = {
    "local": ("volstream.queues.local:LocalQueue", _HINTS),
    "poll": ("volstream.queues.poll:PollQueue", _HINTS),
    "memory": ("volstream.queues.memory:MemoryQueue", _HINTS),
    "sqs": ("volstream.queues.sqs:sqs_queue", "volstream.queues.s3_events:parse"),
    "mns": ("volstream.queues.mns:mns_queue", "volstream.queues.oss_events:parse"),
    "none": ("volstream.queues.silent:SilentQueue", _HINTS),
}

#: The extra that brings what a type of queue needs.
_EXTRAS = {"sqs": "s3", "mns": "oss"}

#: What a user may name.
QUEUE_TYPES = tuple(sorted(_BACKENDS))


def open_queue(queue_type: str, spec: QueueSpec) -> EventQueue:
    """The queue of a volume. Does no I/O before its ``start``.

    Args:
        queue_type: one of :data:`QUEUE_TYPES`.
        spec: whose queue it is and how it is reached.

    Raises:
        InvalidValueError: this version has no such queue, or it cannot serve the location.
        DependencyError: a package that the queue needs is not installed.
    """
    target, _ = _entry(queue_type)
    try:
        make = _load(target)
    except ModuleNotFoundError as exc:
        if queue_type not in _EXTRAS:
            raise
        raise DependencyError(
            f"Queues of the type {queue_type!r} need the Python package {exc.name!r}, which is not installed.",
            f"Install it: pip install 'volstream[{_EXTRAS[queue_type]}]'.",
        ) from exc
    return cast("EventQueue", make(spec))


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
