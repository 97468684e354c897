"""Decides when to report a change of a local file: once it has settled. A state machine over (change, time), without clock or
disk.

A write and a rename into place look different to a watcher, and slow writers pause; so a path is reported once it was quiet for
the debounce time and two stats that far apart agree. A writer's close shortens both. A file written without such a pause is not
reported until the writing ends; the scheduled reconcile finds it. What does not belong here: watching (``watch``), delivery
(``local``). Not thread-safe: callers hold their lock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from volstream.base.model.hints import Hint, KeyHint, SubtreeHint

#: Delay after a writer closed the file: long enough to notice another write or rename by the same program.
CLOSED_SECONDS = 0.05

#: With more than this many waiting paths, one listing of everything is cheaper than a stat of each.
CAPACITY = 100_000

#: Returns size and mtime in ns of the file at a path; None if there is none.
Look = Callable[[str], tuple[int, int] | None]


class PathChangeKind(Enum):
    """The kind of a change at a path."""

    CHANGED = "changed"  #: a file was created, written, moved, touched or removed
    CLOSED = "closed"  #: a file was closed by a writer
    DIRECTORY_NEW = "directory new"  #: a directory was created or moved here
    DIRECTORY_GONE = "directory gone"  #: a directory was removed or moved away, with all below it


@dataclass(frozen=True, slots=True)
class PathChange:
    """One change that a watcher saw; ``path`` is relative, without a trailing slash."""

    path: str
    kind: PathChangeKind


@dataclass(slots=True)
class _Waiting:
    look: tuple[int, int] | None  # as the file was at least one debounce (after a close: one short one) before `due`
    due: float
    scheduled: float  # time of its valid entry in the schedule; never later than `due`


class Debouncer:
    """Holds changes until they settle.

    Args:
        debounce_seconds: how long a path must be quiet.
        look: returns a file's current state.
        capacity: with more waiting paths, they collapse to one hint for everything.
    """

    def __init__(self, debounce_seconds: float, look: Look, capacity: int = CAPACITY) -> None:
        self._debounce_seconds = debounce_seconds
        self._look = look
        self._capacity = capacity
        self._files: dict[str, _Waiting] = {}
        # Times at which to check a path; entries whose time is not the path's `scheduled` are outdated.
        self._schedule: list[tuple[float, str]] = []
        # Prefix -> (reason, due), in order of due time. A second change does not postpone the first: the listing follows both.
        self._subtrees: dict[str, tuple[str, float]] = {}

    def __len__(self) -> int:
        """Returns the number of waiting paths and subtrees."""
        return len(self._files) + len(self._subtrees)

    @property
    def next_due(self) -> float | None:
        """Earliest time at which :meth:`release` may return something; None if nothing waits."""
        subtree = next((due for _, due in self._subtrees.values()), None)
        file = self._schedule[0][0] if self._schedule else None
        return min((due for due in (subtree, file) if due is not None), default=None)

    def add(self, change: PathChange, now: float) -> None:
        """Adds a change seen at ``now``."""
        if len(self) >= self._capacity:
            self._collapse(now)
        elif change.kind in {PathChangeKind.DIRECTORY_NEW, PathChangeKind.DIRECTORY_GONE}:
            self._add_subtree(change.path + "/", change.kind.value, now)
        else:
            self._add_file(change, now)

    def rescan(self, reason: str, now: float) -> None:
        """Adds a hint for everything, because changes were missed."""
        self._add_subtree("", reason, now)

    def release(self, now: float, limit: int) -> list[Hint]:
        """Removes and returns up to ``limit`` hints for changes that have settled."""
        hints: list[Hint] = []
        for prefix, (reason, due) in list(self._subtrees.items())[:limit]:
            if due > now:
                break
            del self._subtrees[prefix]
            hints.append(SubtreeHint(prefix, reason))
        while self._schedule and self._schedule[0][0] <= now and len(hints) < limit:
            time, path = heapq.heappop(self._schedule)
            waiting = self._files.get(path)
            if waiting is not None and waiting.scheduled == time and self._is_settled(path, waiting, now):
                del self._files[path]
                hints.append(KeyHint(path))
        return hints

    def _add_subtree(self, prefix: str, reason: str, now: float) -> None:
        due = self._subtrees[prefix][1] if prefix in self._subtrees else now + self._debounce_seconds
        self._subtrees[prefix] = (reason, due)

    def _add_file(self, change: PathChange, now: float) -> None:
        closed = change.kind is PathChangeKind.CLOSED
        gap = min(CLOSED_SECONDS, self._debounce_seconds) if closed else self._debounce_seconds
        waiting = self._files.get(change.path)
        if waiting is None:
            waiting = _Waiting(look=self._look(change.path), due=now + gap, scheduled=float("inf"))
            self._files[change.path] = waiting
        elif closed:
            waiting.look = self._look(change.path)
        waiting.due = now + gap
        # A later time needs no new entry: the existing one is rescheduled when its time comes.
        if waiting.due < waiting.scheduled:
            self._reschedule(change.path, waiting)

    def _is_settled(self, path: str, waiting: _Waiting, now: float) -> bool:
        """Returns whether ``path`` has settled; if not, schedules its next check."""
        if now < waiting.due:
            self._reschedule(path, waiting)
            return False
        look = self._look(path)
        if look == waiting.look:
            return True
        # The file changed without an event (the event is still under way, or the writer uses a memory map).
        waiting.look, waiting.due = look, now + self._debounce_seconds
        self._reschedule(path, waiting)
        return False

    def _reschedule(self, path: str, waiting: _Waiting) -> None:
        waiting.scheduled = waiting.due
        heapq.heappush(self._schedule, (waiting.due, path))

    def _collapse(self, now: float) -> None:
        self._files.clear()
        self._schedule.clear()
        self._subtrees = {prefix: entry for prefix, entry in self._subtrees.items() if not prefix}
        self._add_subtree("", "too many pending", now)
