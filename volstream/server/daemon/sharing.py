"""What volumes share: a cluster's volumes are divided evenly among its daemons, and several may have one
queue."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from volstream.base.processes import new_owner
from volstream.catalog.leases import DISABLED, Leases, of_daemons
from volstream.errors import QueueError
from volstream.files.volumes.routing import Routing

# Divides a cluster's volumes evenly among the daemons that share a catalog.
#
# Each daemon holds its own lease, by which all can count the daemons. A daemon takes free volumes up to its
# share (the number of volumes divided by the number of daemons, rounded up), and hands over any beyond it. So
# a new daemon receives volumes, and the others take over the volumes of a daemon that stopped or has no
# engine. Otherwise no volume moves.
#
# The volume's lease decides which daemon keeps it.


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
        self._purpose = ""

    def count(self, disabled: str | None = None) -> int:
        """Returns how many daemons can run jobs. Must be called repeatedly: it also renews this daemon's
        lease.

        Args:
            disabled: why this daemon cannot run jobs, or None if it can.

        Raises:
            CatalogError: the catalog is unavailable.
        """
        now, purpose = time.monotonic(), "a daemon" if disabled is None else f"{DISABLED}{disabled}"
        if now - self._renewed >= self._seconds / 3 or purpose != self._purpose:
            self._leases.acquire(self._name, self._owner, purpose, self._seconds)
            self._renewed, self._purpose = now, purpose
        return sum(not lease.purpose.startswith(DISABLED) for lease in self._leases.held(self._prefix))

    def leave(self) -> None:
        """Releases this daemon's lease, because it ends. Raises CatalogError."""
        self._leases.release(self._name, self._owner)


class Share:
    """The share of one daemon. Thread-safe.

    Attributes:
        maximum: maximum number of volumes. 0 until it is known.
        taken: number of volumes that have a place.
    """

    def __init__(self, maximum: int = 0) -> None:
        self.maximum = maximum
        self._lock = threading.Lock()
        self.taken = 0

    def divide(self, volumes: int, daemons: int, *, disabled: bool = False) -> None:
        """Recomputes the share from the cluster's current numbers of volumes and of daemons that can run
        jobs.

        Args:
            disabled: this daemon cannot run jobs, so it keeps volumes only if no other daemon can.
        """
        self.maximum = 0 if disabled and daemons else math.ceil(volumes / max(1, daemons))

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


# Volumes that share a provider's queue. One of them in this process receives for all, so that a thousand
# prefixes of a bucket cost one queue. All are notified through the catalog, as other daemons' volumes are.
#
# ``volumes.routing`` finds the volume that a message concerns.


@dataclass
class Receivers:
    """Picks one turn to receive from each queue that volumes share. Thread-safe.

    It calls a turn with whether the turn may have missed changes.

    Attributes:
        pass_on: notifies volumes, by id, that checks were requested of them.
        routing: knows all volumes.
    """

    pass_on: Callable[[Iterable[str]], None]
    routing: Routing

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        #: The turns of each queue with their callbacks. The first turn receives, the others wait.
        self._turns: dict[Hashable, dict[object, Callable[[bool], None]]] = {}
        self._failures: dict[Hashable, QueueError] = {}

    def claim(self, queue: Hashable, turn: object, reclaim: Callable[[bool], None]) -> bool:
        """Returns whether a turn is to receive."""
        with self._lock:
            turns = self._turns.setdefault(queue, {})
            is_second = len(turns) == 1 and turn not in turns
            turns.setdefault(turn, reclaim)
            first = next(iter(turns))
            joined = turns[first] if is_second else None
        if joined is not None:
            joined(False)
        return first == turn

    def leave(self, queue: Hashable, turn: object) -> None:
        """Ends a turn."""
        with self._lock:
            turns = self._turns.get(queue, {})
            received = next(iter(turns), None) == turn
            turns.pop(turn, None)
            if not turns:
                self._turns.pop(queue, None)
                self._failures.pop(queue, None)
            following = next(iter(turns.values()), None) if received or len(turns) == 1 else None
        if following is not None:
            following(False)

    def has_others(self, queue: Hashable) -> bool:
        """Returns whether several turns share a queue."""
        with self._lock:
            return len(self._turns.get(queue, ())) > 1

    def failure(self, queue: Hashable) -> QueueError | None:
        """Returns the error of the volume that receives from a queue, or None."""
        with self._lock:
            return self._failures.get(queue)

    def failed(self, queue: Hashable, failure: QueueError) -> None:
        """Notifies the others of a queue's failure."""
        with self._lock:
            others = [] if queue in self._failures else [*self._turns.get(queue, {}).values()][1:]
            self._failures[queue] = failure
        for reclaim in others:
            reclaim(False)

    def recovered(self, queue: Hashable, *, missed: bool) -> bool:
        """Notifies the others that a queue has recovered, if it had failed. Returns whether that is so."""
        with self._lock:
            did_fail = self._failures.pop(queue, None) is not None
            others = [*self._turns.get(queue, {}).values()][1:] if did_fail else []
        for reclaim in others:
            reclaim(missed)
        return did_fail
