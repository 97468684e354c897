"""Divides a cluster's volumes evenly among the daemons that share a catalog.

Each daemon holds its own lease, by which all can count the daemons. A daemon takes free volumes up to its share, which is
the number of volumes divided by that of daemons, rounded up, and hands over any beyond it. So a new daemon receives volumes,
and those of a stopped one are taken over by the rest; otherwise no volume moves.

What does not belong here: which daemon keeps a volume, which the volume's lease decides.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from volstream.base.processes import new_owner
from volstream.catalog.leases import Leases, of_daemons


class ClusterMembers:
    """The daemons of a cluster, including this one. For use by one thread.

    Args:
        seconds: a daemon that has not renewed its lease for this long is considered dead.
    """

    def __init__(self, leases: Leases, virtual_cluster: str, seconds: float) -> None:
        self._leases = leases
        self._prefix = of_daemons(virtual_cluster)
        self._name = f"{self._prefix}{uuid.uuid4().hex}"
        self._owner = new_owner()
        self._seconds = seconds
        self._renewed = -math.inf

    def count(self) -> int:
        """Returns their number. Must be called repeatedly: it also renews this daemon's lease.

        Raises:
            CatalogError: the catalog is unavailable.
        """
        now = time.monotonic()
        if now - self._renewed >= self._seconds / 3:
            self._leases.acquire(self._name, self._owner, "a daemon", self._seconds)
            self._renewed = now
        return len(self._leases.held(self._prefix))

    def leave(self) -> None:
        """Releases this daemon's lease, because it ends. Raises CatalogError."""
        self._leases.release(self._name, self._owner)


class Share:
    """The share of one daemon. Thread-safe.

    Attributes:
        maximum: maximum number of volumes; 0 until it is known.
        taken: number of volumes that have a place.
    """

    def __init__(self, maximum: int = 0) -> None:
        self.maximum = maximum
        self._lock = threading.Lock()
        self.taken = 0

    def divide(self, volumes: int, daemons: int) -> None:
        """Recomputes the share from the cluster's current numbers of volumes and daemons, including this one."""
        self.maximum = math.ceil(volumes / max(1, daemons))

    @contextmanager
    def place(self) -> Iterator[bool]:
        """Reserves a place for one more volume while the block runs. Yields whether there is one."""
        with self._lock:
            free = self.taken < self.maximum
            self.taken += free
        try:
            yield free
        finally:
            with self._lock:
                self.taken -= free
