"""When a change of a local file may be told: after it settled. A state machine over (change, time), without clock or disk.

A write and a rename into place look different to a watcher, and a slow writer pauses; so the rule is: a path is told
when it was quiet for the debounce time and two looks at it that far apart agree. A writer's close shortens both. A file
that is written without such a pause is not told until it ends; the scheduled reconcile shows it. What does not belong
here: watching (``watch``), delivery (``local``). Not safe for threads: callers hold their lock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from volstream.model.hints import Hint, KeyHint, SubtreeHint

#: After a writer closed the file: long enough for a second write or rename by the same program to show.
CLOSED_SECONDS = 0.05

#: With more than this many paths waiting, one look at everything is cheaper than a look at each.
CAPACITY = 100_000

#: Size and mtime in ns of the file at a path; None where there is none.
Look = Callable[[str], tuple[int, int] | None]


class PathChangeKind(Enum):
    """What happened at a path."""

    CHANGED = "changed"  #: a file was created, written, moved, touched or removed
    CLOSED = "closed"  #: a file was closed by a writer
    DIRECTORY_NEW = "directory new"  #: a directory was made or moved here
    DIRECTORY_GONE = "directory gone"  #: a directory was removed or moved away, with all below it


@dataclass(frozen=True, slots=True)
class PathChange:
    """One thing that a watcher saw; ``path`` is relative, without a trailing slash."""

    path: str
    kind: PathChangeKind


@dataclass(slots=True)
class _Waiting:
    look: tuple[int, int] | None  # as the file was at least one debounce (after a close: one short one) before `due`
    due: float
    scheduled: float  # its valid entry in the schedule; never later than `due`


class Debouncer:
    """Changes that wait to settle.

    Args:
        debounce_seconds: how long a path must be quiet.
        look: how a file is now.
        capacity: with more paths waiting, they collapse to one hint for everything.
    """

    def __init__(self, debounce_seconds: float, look: Look, capacity: int = CAPACITY) -> None:
        self._debounce_seconds = debounce_seconds
        self._look = look
        self._capacity = capacity
        self._files: dict[str, _Waiting] = {}
        # Times at which to consider a path; entries whose time is not the path's `scheduled` are outdated.
        self._schedule: list[tuple[float, str]] = []
        # Prefix -> (reason, due), in order of due time: a second change does not postpone the first, because the
        # listing that follows comes after both.
        self._subtrees: dict[str, tuple[str, float]] = {}

    def __len__(self) -> int:
        """Paths and subtrees that wait."""
        return len(self._files) + len(self._subtrees)

    @property
    def next_due(self) -> float | None:
        """When :meth:`release` may have something to do; None where nothing waits."""
        subtree = next((due for _, due in self._subtrees.values()), None)
        file = self._schedule[0][0] if self._schedule else None
        return min((due for due in (subtree, file) if due is not None), default=None)

    def add(self, change: PathChange, now: float) -> None:
        """Takes a change that was seen at ``now``."""
        if len(self) >= self._capacity:
            self._collapse(now)
        elif change.kind in {PathChangeKind.DIRECTORY_NEW, PathChangeKind.DIRECTORY_GONE}:
            self._add_subtree(change.path + "/", change.kind.value, now)
        else:
            self._add_file(change, now)

    def rescan(self, reason: str, now: float) -> None:
        """Asks for a look at everything: changes were missed."""
        self._add_subtree("", reason, now)

    def release(self, now: float, limit: int) -> list[Hint]:
        """Up to ``limit`` hints for what has settled; they wait no more."""
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
        # A later time needs no new entry: the one that is there finds out and moves itself.
        if waiting.due < waiting.scheduled:
            self._reschedule(change.path, waiting)

    def _is_settled(self, path: str, waiting: _Waiting, now: float) -> bool:
        """Whether ``path`` may be told; if not, it is scheduled for its next look."""
        if now < waiting.due:
            self._reschedule(path, waiting)
            return False
        look = self._look(path)
        if look == waiting.look:
            return True
        # It changed without an event (the event is still on its way, or the writer uses a memory map).
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
