"""What volumes share: those of a cluster are divided evenly among its daemons, and several may have one queue."""

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
# share, which is the number of volumes divided by that of daemons, rounded up, and hands over any beyond it.
# So a new daemon receives volumes, and the rest take over the volumes of a daemon that stopped or has no engine;
# otherwise no volume moves.
#
# What does not belong here: which daemon keeps a volume, which the volume's lease decides.


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
        """Returns how many daemons can run jobs. Must be called repeatedly: it also renews this daemon's lease.

        Args:
            disabled: why this daemon cannot run jobs, or None if it can.

        Raises:
            CatalogError: the catalog is unavailable.
        """
        now, purpose = time.monotonic(), "a daemon" if disabled is None else f"{DISABLED}{disabled}"
        if now - self._renewed >= self._seconds / 3 or purpose != self._purpose:
            self._leases.acquire(self._name, self._owner, purpose, self._seconds)
            self._renewed, self._purpose = now, purpose
        return sum(not one.purpose.startswith(DISABLED) for one in self._leases.held(self._prefix))

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

    def divide(self, volumes: int, daemons: int, *, disabled: bool = False) -> None:
        """Recomputes the share from the cluster's current numbers of volumes and of daemons that can run jobs.

        Args:
            disabled: this daemon cannot, so it keeps volumes only if no other one can either.
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


# Volumes that share a provider's queue: one of them in this process receives for all, so that a thousand
# prefixes of a bucket cost one queue. All hear by way of the catalog, as they do from other daemons.
#
# What does not belong here: which volume a message concerns (``volumes.routing``).


@dataclass
class Receivers:
    """Picks one turn to receive from each queue that volumes share. Thread-safe. It calls a turn with whether the turn may
    have missed changes.

    Attributes:
        pass_on: tells volumes, by id, that checks were asked of them.
        routing: knows all volumes.
    """

    pass_on: Callable[[Iterable[str]], None]
    routing: Routing

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        #: The turns of each queue with their callbacks: the first one receives, the others wait.
        self._turns: dict[Hashable, dict[object, Callable[[bool], None]]] = {}
        self._failures: dict[Hashable, QueueError] = {}

    def claim(self, queue: Hashable, turn: object, look: Callable[[bool], None]) -> bool:
        """Returns whether a turn is to receive."""
        with self._lock:
            turns = self._turns.setdefault(queue, {})
            is_second = len(turns) == 1 and turn not in turns
            turns.setdefault(turn, look)
            first = next(iter(turns))
            joined = turns[first] if is_second else None
        if joined is not None:
            joined(False)
        return first == turn

    def leave(self, queue: Hashable, turn: object) -> None:
        """Says that a turn has ended."""
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
        """Returns why a queue does not answer the volume that receives."""
        with self._lock:
            return self._failures.get(queue)

    def failed(self, queue: Hashable, failure: QueueError) -> None:
        """Tells the others that a queue does not answer."""
        with self._lock:
            others = [] if queue in self._failures else [*self._turns.get(queue, {}).values()][1:]
            self._failures[queue] = failure
        for look in others:
            look(False)

    def recovered(self, queue: Hashable, *, missed: bool) -> bool:
        """Tells the others that a queue answers, if it did not before; returns whether that is so."""
        with self._lock:
            did_fail = self._failures.pop(queue, None) is not None
            others = [*self._turns.get(queue, {}).values()][1:] if did_fail else []
        for look in others:
            look(missed)
        return did_fail
