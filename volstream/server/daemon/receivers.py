"""Volumes that share a provider's queue: one of them in this process receives for all, so that a thousand prefixes of a bucket
cost one queue. All hear by way of the catalog, as they do from other daemons.

What does not belong here: which volume a message concerns (``volumes.route``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from volstream.errors import QueueError
from volstream.files.volumes.routing import Routing


@dataclass
class Receivers:
    """Picks one turn to receive from each queue that volumes share. Thread-safe. It wakes a turn by calling it, and says whether
    the turn may have missed changes.

    Attributes:
        pass_on: tells volumes, by id, that checks were asked of them.
        routing: knows all volumes.
    """

    pass_on: Callable[[Iterable[str]], None]
    routing: Routing

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        #: By queue: the turn that receives, and behind it those that would, each with what tells it to look again.
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
