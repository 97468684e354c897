"""Event queues by type: the table of backends, imported late. A provider's queue is in the provider's folder.

Not here: the protocol (``base``) and its implementations (one file each, beside this one).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from volstream.base import plugins
from volstream.base.definitions import QueueType
from volstream.base.plugins import Group
from volstream.errors import InvalidValueError
from volstream.files.providers.base import provider_by

if TYPE_CHECKING:
    from volstream.files.queues.base import EventQueue, QueueSpec

__all__ = ["open_queue"]

#: Type of queue -> class or function that creates one from a QueueSpec.
_BACKENDS = {
    "local": "volstream.files.queues.local:LocalQueue",
    "poll": "volstream.files.queues.in_process:PollQueue",
    "kafka": "volstream.files.queues.kafka:KafkaQueue",
    "webhook": "volstream.files.queues.in_process:SilentQueue",
    "none": "volstream.files.queues.in_process:SilentQueue",
}


def open_queue(queue_type: str, spec: QueueSpec) -> EventQueue:
    """Returns a volume's queue. It does no I/O before ``start``.

    Args:
        queue_type: one of :class:`QueueType`, or the name of a plug-in's.
        spec: the queue's volume, and how to connect to the queue.

    Raises:
        InvalidValueError: this version lacks the queue type, the type cannot serve the location, or a
            provider's queue has no name or access.
        DependencyError: a package that the queue needs is not installed, or a plug-in is broken.
    """
    if queue_type in _BACKENDS:
        module, _, name = _BACKENDS[queue_type].partition(":")
        return cast("EventQueue", getattr(importlib.import_module(module), name)(spec))
    if plugins.has(Group.QUEUES, queue_type):
        return cast("EventQueue", plugins.call(Group.QUEUES, queue_type, spec))
    provider = provider_by(spec.access.provider) if spec.access is not None else None
    if provider is not None and provider.queue_type == queue_type and spec.name:
        return provider.open_queue(spec)
    if queue_type in list(QueueType):
        raise InvalidValueError(
            f"The volume at {spec.location!r} has a queue of the type {queue_type!r} and no name or connection for it.",
            "Give the volume a connection and the name or URL of a queue.",
        )
    raise InvalidValueError(
        f"Queues of the type {queue_type!r} are not available in this version.",
        f"Available: {', '.join(QueueType)}, and those of installed plug-ins.",
    )
