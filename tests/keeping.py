"""Volumes that are kept as a daemon keeps them, without the rest of a daemon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.waiting import eventually
from volstream.base.config import Settings
from volstream.base.definitions.volume import DEFAULT_VIRTUAL_CLUSTER
from volstream.base.lifecycle.stop import Stop
from volstream.catalog import Catalog
from volstream.files.queues.base import EventQueue
from volstream.files.volumes.access import queue_of
from volstream.server.daemon.keeping import VolumeKeeping


@contextmanager
def keeping(catalog: Catalog, settings: Settings, queue: EventQueue | None = None) -> Iterator[VolumeKeeping]:
    """Keeps the volumes of the default cluster while the block runs.

    Args:
        queue: the queue of all of them; None: each has its own.
    """
    stop = Stop()
    made = VolumeKeeping(
        catalog, settings, DEFAULT_VIRTUAL_CLUSTER, stop, queue_of=queue_of if queue is None else lambda *_: queue
    )
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
