"""Event queues by type: the one table of backends, imported late so that a missing extra costs nothing.

What does not belong here: the protocol (``base``), and its implementations (one file each, beside this one).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from volstream.base import plugins
from volstream.base.plugins import Group
from volstream.errors import DependencyError, InvalidValueError

if TYPE_CHECKING:
    from volstream.files.queues.base import EventQueue, QueueSpec

__all__ = ["QUEUE_TYPES", "open_queue"]

#: Type of queue -> class or function that creates one from a QueueSpec.
_BACKENDS = {
    "local": "volstream.files.queues.local:LocalQueue",
    "poll": "volstream.files.queues.poll:PollQueue",
    "memory": "volstream.files.queues.memory:MemoryQueue",
    "sqs": "volstream.files.queues.sqs:sqs_queue",
    "mns": "volstream.files.queues.mns:mns_queue",
    "kafka": "volstream.files.queues.kafka:KafkaQueue",
    "webhook": "volstream.files.queues.silent:SilentQueue",
    "none": "volstream.files.queues.silent:SilentQueue",
}

#: Extra that installs the packages of a type of queue.
_EXTRAS = {"sqs": "s3", "mns": "oss"}

#: The types that users may specify, besides those of plug-ins.
QUEUE_TYPES = tuple(sorted(_BACKENDS))


def open_queue(queue_type: str, spec: QueueSpec) -> EventQueue:
    """Returns a volume's queue, which does no I/O before ``start``.

    Args:
        queue_type: one of :data:`QUEUE_TYPES`, or the name of a plug-in's.
        spec: the queue's volume, and how to connect to the queue.

    Raises:
        InvalidValueError: this version does not have the queue type, or the type cannot serve the location.
        DependencyError: a package that the queue needs is not installed, or a plug-in is broken.
    """
    if queue_type not in _BACKENDS:
        if plugins.has(Group.QUEUES, queue_type):
            return cast("EventQueue", plugins.call(Group.QUEUES, queue_type, spec))
        raise InvalidValueError(
            f"Queues of the type {queue_type!r} are not available in this version.",
            f"Available: {', '.join(QUEUE_TYPES)}, and those of installed plug-ins.",
        )
    module, _, name = _BACKENDS[queue_type].partition(":")
    try:
        make = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as exc:
        if queue_type not in _EXTRAS:
            raise
        raise DependencyError(
            f"Queues of the type {queue_type!r} need the Python package {exc.name!r}, which is not installed.",
            f"Install it: pip install 'volstream[{_EXTRAS[queue_type]}]'.",
        ) from exc
    return cast("EventQueue", make(spec))
