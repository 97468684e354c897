"""How many of a cluster's volumes a daemon keeps, where several daemons share a catalog: as many as the others.

Each daemon holds a lease of its own, by which all know how many they are. A daemon takes free volumes up to its share, which
is their number divided by that of the daemons and rounded up, and hands over what it keeps beyond it. So a daemon that comes
gets volumes, and those of one that goes are taken by the rest; while neither happens, no volume moves.

Who keeps a volume is decided by the volume's lease, not here.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from volstream.catalog.leases import Leases
from volstream.lifecycle.identity import new_owner


class Members:
    """The daemons of a cluster, and this one among them. To be used by one thread.

    Args:
        seconds: a daemon that was not heard of for so long is gone.
    """

    def __init__(self, leases: Leases, virtual_cluster: str, seconds: float) -> None:
        self._leases = leases
        self._prefix = f"daemon:{virtual_cluster.upper()}:"
        self._name = f"{self._prefix}{uuid.uuid4().hex}"
        self._owner = new_owner()
        self._seconds = seconds
        self._renewed = -math.inf

    def count(self) -> int:
        """How many they are. To be called again and again: it is also how the others know of this one.

        Raises:
            CatalogError: nobody knows.
        """
        now = time.monotonic()
        if now - self._renewed >= self._seconds / 3:
            self._leases.acquire(self._name, self._owner, "a daemon", self._seconds)
            self._renewed = now
        return sum(lease.name.startswith(self._prefix) for lease in self._leases.held())

    def leave(self) -> None:
        """Lets the others know that this one ends. Raises CatalogError."""
        self._leases.release(self._name, self._owner)


class Share:
    """The share of one daemon. Safe for threads.

    Attributes:
        most: volumes that it may keep; none before that is known.
    """

    def __init__(self, most: int = 0) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._taken = 0

    def divide(self, volumes: int, daemons: int) -> None:
        """The cluster has so many volumes now, and so many daemons, of which this is one."""
        self.most = math.ceil(volumes / max(1, daemons))

    @contextmanager
    def place(self) -> Iterator[bool]:
        """A place for one more volume while the block runs. Yields whether there is one."""
        with self._lock:
            free = self._taken < self.most
            self._taken += free
        try:
            yield free
        finally:
            with self._lock:
                self._taken -= free
