"""Volumes that are kept as a daemon keeps them, without the rest of a daemon."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.waiting import eventually
from volstream.base.config import Settings
from volstream.base.definitions import Volume
from volstream.base.definitions.objects import DEFAULT_VIRTUAL_CLUSTER
from volstream.base.threads import Stop
from volstream.catalog import Catalog
from volstream.files.queues.base import EventQueue
from volstream.files.volumes.access import queue_of
from volstream.server.daemon.keeping import VolumeKeeping


@contextmanager
def keeping(
    catalog: Catalog, settings: Settings, queue: EventQueue | Callable[[Volume], EventQueue] | None = None
) -> Iterator[VolumeKeeping]:
    """Keeps the volumes of the default cluster while the block runs.

    Args:
        queue: the queue of all of them, or what makes each; None: each has its own.
    """

    def made_of(volume: Volume, *others: Any) -> EventQueue:
        return queue_of(volume, *others) if queue is None else queue(volume) if callable(queue) else queue

    stop = Stop()
    made = VolumeKeeping(catalog, settings, DEFAULT_VIRTUAL_CLUSTER, stop, queue_of=made_of)
    threads = [threading.Thread(target=part) for part in (made.run, made.follow)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: made.is_looking)
        yield made
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
