"""A queue of changes in a local directory: watched, settled, delivered until acknowledged.

It lives in memory: a restart loses waiting messages, so a reconcile follows every start. The queue checks the
watch about every second and re-arms it if it was lost (the root was replaced, the kernel dropped events,
watchdog died). Then a hint for the whole volume covers missed changes.
"""

from __future__ import annotations

import errno
import heapq
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from watchdog.observers.inotify_c import (
    CallbackId,
    InotifyConstants,
    InotifyEvent,
    InotifyFD,
    Mask,
    WatchCallback,
    WatchDescriptor,
)

from volstream.base.model.hints import Hint, KeyHint, SubtreeHint
from volstream.base.model.paths import local_path, printable, scheme_of
from volstream.errors import InvalidValueError, QueueError, WatchLimitError
from volstream.files.queues.base import Message, QueueSpec
from volstream.files.queues.in_process import InProcessQueue

# Decides when to report a change of a local file: once it has settled. A state machine over (change, time),
# without clock or disk access.
#
# A write and a rename into place look different to a watcher, and slow writers pause. So a path is reported
# once it was quiet for the debounce time and two stats that far apart agree. A writer's close shortens both.
# A file written without such a pause is not reported until the writing ends; the scheduled reconcile finds
# it. Not thread-safe: callers hold their lock.

#: Delay after a writer closes the file: long enough to notice another write or rename by the same program.
CLOSED_SECONDS = 0.05

#: With more waiting paths, one listing of everything is cheaper than a stat of each.
CAPACITY = 100_000

#: Returns a file's size and mtime in ns, or None if it does not exist.
Look = Callable[[str], tuple[int, int] | None]


class PathChangeKind(Enum):
    """The kind of a change at a path."""

    CHANGED = "changed"  #: a file was created, written, moved, touched or removed
    CLOSED = "closed"  #: a file was closed by a writer
    DIRECTORY_NEW = "directory new"  #: a directory was created or moved here
    DIRECTORY_GONE = "directory gone"  #: a directory was removed or moved away, with everything below it
    #: in this directory, a link now leads to another directory, and other links may reach files through it
    RELINKED = "relinked"


@dataclass(frozen=True, slots=True)
class PathChange:
    """One change seen by a watcher. ``path`` is relative, without a trailing slash."""

    path: str
    kind: PathChangeKind


@dataclass(slots=True)
class _Waiting:
    # the file's state, at least one debounce (after a close: a short one) before `due`
    look: tuple[int, int] | None
    due: float
    scheduled: float  # time of its valid entry in the schedule; never later than `due`


class Debouncer:
    """Holds changes until they settle.

    Args:
        debounce_seconds: how long a path must be quiet.
        look: returns a file's current state.
        capacity: more waiting paths collapse to one hint for everything.
    """

    def __init__(self, debounce_seconds: float, look: Look, capacity: int = CAPACITY) -> None:
        self._debounce_seconds = debounce_seconds
        self._look = look
        self._capacity = capacity
        self._files: dict[str, _Waiting] = {}
        # Times at which to check a path. Entries whose time is not the path's `scheduled` are outdated.
        self._schedule: list[tuple[float, str]] = []
        # Prefix -> (reason, due), in order of due time. A second change does not postpone the listing, which
        # covers both.
        self._subtrees: dict[str, tuple[str, float]] = {}

    def __len__(self) -> int:
        """Returns the number of waiting paths and subtrees."""
        return len(self._files) + len(self._subtrees)

    @property
    def next_due(self) -> float | None:
        """Earliest time at which :meth:`release` may return something, or None if nothing waits."""
        subtree = next((due for _, due in self._subtrees.values()), None)
        file = self._schedule[0][0] if self._schedule else None
        return min((due for due in (subtree, file) if due is not None), default=None)

    def add(self, change: PathChange, now: float) -> None:
        """Adds a change seen at ``now``."""
        if len(self) >= self._capacity:
            self._collapse(now)
        elif change.kind in {PathChangeKind.DIRECTORY_NEW, PathChangeKind.DIRECTORY_GONE}:
            self._add_subtree(change.path + "/", change.kind.value, now)
        elif change.kind is PathChangeKind.RELINKED:
            self._add_subtree(f"{change.path}/" if change.path else "", change.kind.value, now)
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
        """True if ``path`` has settled. If not, schedules its next check."""
        if now < waiting.due:
            self._reschedule(path, waiting)
            return False
        look = self._look(path)
        if look == waiting.look:
            return True
        # The file changed without an event: the event is still under way, or the writer uses a memory map.
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


# The operating system's notifications about directory trees: one inotify instance for all trees of the
# process, because Linux allows a user 128. Its thread handles all events: trees have no threads.
#
# Directories are watched one by one. A new directory is watched before it is reported, so that a listing
# misses nothing.

#: Excludes opens and closes without writing: volstream's own reads would flood the queue. IN_ATTRIB is the
#: only event for a changed modification time.
_MASK = Mask(
    InotifyConstants.IN_CREATE
    | InotifyConstants.IN_MODIFY
    | InotifyConstants.IN_ATTRIB
    | InotifyConstants.IN_CLOSE_WRITE
    | InotifyConstants.IN_MOVE
    | InotifyConstants.IN_DELETE
    | InotifyConstants.IN_DELETE_SELF
    | InotifyConstants.IN_ONLYDIR
    | InotifyConstants.IN_DONT_FOLLOW
)

# A directory that is renamed while it is added briefly has one watch under two names. watchdog warns of that.
warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)

#: The kernel's limits. Any other error with a directory below the root, for example a vanished one, only
#: costs that directory's events.
_LIMITS = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class _Instance:
    """The inotify instance of this process, while any tree is watched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader: InotifyFD | None = None
        self._users = 0

    def join(self) -> InotifyFD:
        """Returns the running instance. Raises OSError if the kernel's limit is reached."""
        with self._lock:
            if self._reader is None or not self._reader.is_alive():
                self._reader, self._users = InotifyFD(), 0
                self._reader.name = "inotify"
                self._reader.start()
            self._users += 1
            return self._reader

    def leave(self, reader: InotifyFD) -> None:
        """Ends the instance with its last user."""
        with self._lock:
            if reader is not self._reader:
                return  # it died, and others use a new one
            self._users -= 1
            if self._users:
                return
            self._reader = None
        reader.stop()
        reader.join()


_instance = _Instance()


class DirectoryWatch(WatchCallback):
    """Reports changes below ``root`` while armed.

    Args:
        root: the directory. A link is resolved each time the watch is armed.
        recursive: whether sub-directories count.
        on_change: called for each change by the thread of the inotify instance. Must return immediately.
        on_overflow: called by that thread when the kernel dropped events of any tree.
    """

    def __init__(
        self, root: str, recursive: bool, on_change: Callable[[PathChange], None], on_overflow: Callable[[], None]
    ) -> None:
        self._root = root
        self._recursive = recursive
        self._on_change = on_change
        self._on_overflow = on_overflow
        self._id = CallbackId(id(self))
        self._reader: InotifyFD | None = None
        self._real_root = root
        self._lock = threading.Lock()  # guards the attributes below
        self._paths: dict[WatchDescriptor, set[str]] = {}  # a directory that is mounted twice has several
        self._watches: dict[str, WatchDescriptor] = {}
        self._refused: OSError | None = None  # why a directory could not be watched
        self._lost = False

    def arm(self) -> None:
        """Begins to watch. All changes after its return are reported.

        Raises:
            QueueError: the directory is missing, access is denied, or the kernel's limits are reached.
        """
        self._real_root = os.path.realpath(self._root)
        with _errors_of(self._root):
            os.scandir(self._real_root).close()
            self._reader = _instance.join()
            self._refused, self._lost = None, False
            try:
                self._add("", is_root=True)
                self.probe()
            except (OSError, QueueError):
                self.disarm()
                raise

    def disarm(self) -> None:
        """Stops watching. Idempotent."""
        with self._lock:
            reader, self._reader = self._reader, None
            if reader is None:
                return
            watched = [(watch, self._id) for watch in self._paths]
            self._paths, self._watches = {}, {}
        if reader.is_alive():
            reader.remove_callbacks(watched)
        _instance.leave(reader)

    @property
    def is_alive(self) -> bool:
        """True if the armed watch still reports changes. It ends when the root is removed."""
        reader = self._reader
        return reader is not None and reader.is_alive() and not self._lost

    def probe(self) -> None:
        """Checks that all directories are watched.

        Raises:
            QueueError: the kernel's limit was reached.
        """
        with self._lock:
            refused = self._refused
        if refused is not None:
            with _errors_of(self._root):
                raise refused

    def on_event(self, event: InotifyEvent) -> None:
        """Handles an event of a directory. Called by the thread of the inotify instance."""
        with self._lock:
            directories = [*self._paths.get(event.wd, ())]
        if not event.name:  # about the directory itself; its parent reports it, too
            self._lost |= event.is_delete_self and "" in directories
            return
        for directory in directories:
            self._on_event_in(directory, event)

    def _on_event_in(self, directory: str, event: InotifyEvent) -> None:
        name = os.fsdecode(event.name)
        path = f"{directory}/{name}" if directory else name
        if not event.is_directory:
            self._on_change(PathChange(path, PathChangeKind.CLOSED if event.is_close_write else PathChangeKind.CHANGED))
            if event.is_create or event.is_moved_to:  # Kubernetes swaps a ConfigMap's files like this
                link = os.path.join(self._real_root, path)
                if os.path.islink(link) and os.path.isdir(link):
                    self._on_change(PathChange(directory, PathChangeKind.RELINKED))
        elif event.is_create or event.is_moved_to or (event.is_attrib and self._recursive and path not in self._watches):
            if self._recursive:
                self._add(path)
            self._on_change(PathChange(path, PathChangeKind.DIRECTORY_NEW))
        elif event.is_delete or event.is_moved_from:
            if event.is_moved_from:  # a deleted directory is empty, and the kernel ends its watch
                self._drop(path)
                if self._recursive:  # it may have been exchanged with another directory
                    self._add(path)
            self._on_change(PathChange(path, PathChangeKind.DIRECTORY_GONE))

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        """Forgets the watch of a directory that no longer exists."""
        with self._lock:
            paths = self._paths.pop(wd, set())
            for path in paths:
                if self._watches.get(path) == wd:
                    del self._watches[path]
            self._lost |= "" in paths

    def on_queue_overflow(self) -> None:
        """The kernel dropped events."""
        self._on_overflow()

    def _add(self, top: str, *, is_root: bool = False) -> None:
        """Watches a directory, and with ``recursive`` everything below it. Raises OSError for the root."""
        pending = [top]
        while pending:
            directory = pending.pop()
            full = os.path.join(self._real_root, directory) if directory else self._real_root
            try:
                self._watch(directory, full)
                if self._recursive:
                    with os.scandir(full) as entries:
                        inside = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
                    pending += [f"{directory}/{name}" if directory else name for name in inside]
            except OSError as error:
                if is_root and not directory:
                    raise
                if error.errno in _LIMITS:
                    with self._lock:
                        self._refused = error
                    return

    def _watch(self, directory: str, full: str) -> None:
        reader = self._reader
        if reader is None:
            return
        with self._lock:
            former = self._forget([directory])
        if former:
            reader.remove_callbacks(former)
        watch = reader.add_callback(os.fsencode(full), _MASK, self, self._id)
        if watch == -1:  # watchdog's result for an unreadable directory
            reader.remove_callbacks([(watch, self._id)])
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with self._lock:
            if self._reader is reader:
                self._paths.setdefault(watch, set()).add(directory)
                self._watches[directory] = watch
                return
        reader.remove_callbacks([(watch, self._id)])  # disarmed meanwhile

    def _drop(self, top: str) -> None:
        """Stops watching a directory that was moved away, and everything below it."""
        with self._lock:
            watched = self._forget([path for path in self._watches if path == top or path.startswith(f"{top}/")])
        reader = self._reader
        if reader is not None and watched:
            reader.remove_callbacks(watched)

    def _forget(self, paths: Sequence[str]) -> list[tuple[WatchDescriptor, CallbackId]]:
        """Drops directories. Returns the watches to remove, which no other path shares."""
        unused = []
        for path in paths:
            watch = self._watches.pop(path, None)
            if watch is None:
                continue
            others = self._paths.get(watch, set()) - {path}
            if others:
                self._paths[watch] = others
            else:
                self._paths.pop(watch, None)
                unused.append((watch, self._id))
        return unused


@contextmanager
def _errors_of(root: str) -> Iterator[None]:
    """Maps the operating system's errors when arming a watch."""
    try:
        yield
    except OSError as exc:
        problem = f"{printable(root)} cannot be watched: {exc.strerror or exc}."
        if exc.errno in (errno.ENOSPC, errno.EMFILE):
            raise WatchLimitError(f"{problem} It is listed every few seconds instead.", _REMEDIES[exc.errno]) from exc
        raise QueueError(problem, _REMEDIES.get(exc.errno or 0, "")) from exc


_REMEDIES = {
    errno.ENOSPC: "Raise the kernel's limit (sysctl fs.inotify.max_user_watches); one watch per directory is needed; "
    "or give the volume `--queue-type poll`.",
    errno.EMFILE: "Raise the kernel's limit (sysctl fs.inotify.max_user_instances), or that of open files; "
    "or give the volume `--queue-type poll`.",
    errno.ENOENT: "Mount or create the directory; watching then resumes.",
    errno.ENOTDIR: "The volume's location must be a directory.",
    errno.EACCES: "Give the user that volstream runs as read access to the directory.",
}


#: Seconds to wait for more events after the kernel dropped some, so that one listing covers all.
_OVERFLOW_SECONDS = 0.5


class LocalQueue(InProcessQueue):
    """Delivers hints about the files of a directory.

    While the directory is missing, ``receive`` raises :class:`~volstream.errors.QueueError` at each check and
    at the end of each wait. It recovers when the directory exists again. Two locks: ``_arming`` guards the
    watch and is taken first. ``_changed`` guards the rest and is never held while the watch is armed or
    disarmed, because watchdog's threads need it to end.
    """

    def __init__(self, spec: QueueSpec) -> None:
        if scheme_of(spec.location) != "file":
            raise InvalidValueError(
                f"A queue of the type 'local' cannot watch {spec.location!r}.", "Use it for a directory, or another type."
            )
        super().__init__(spec.settings.visibility_seconds)
        self._root = local_path(spec.location)
        self._selection = spec.selection
        self._arming = threading.Lock()
        self._watch = DirectoryWatch(self._root, spec.selection.recursive, self._on_change, self._on_overflow)
        self._identity: tuple[int, int] | None = None
        self._refused: QueueError | None = None  # why re-arming failed
        self._rearm_reason = ""  # empty while the watch works
        self._check_seconds = spec.settings.check_seconds
        self._check_due = 0.0
        self._wakes_at = 0.0
        self._overflowed = False
        self._directories_added = False
        self._settler = Debouncer(spec.settings.debounce_seconds, self._look)

    def start(self) -> None:
        """See :meth:`EventQueue.start`."""
        with self._arming:
            if self._listening:
                return
            self._arm()
            self._rearm_reason, self._refused = "", None
            with self._changed:
                self._overflowed = self._directories_added = False
            super().start()

    def stop(self) -> None:
        """See :meth:`EventQueue.stop`."""
        super().stop()
        with self._arming:
            self._watch.disarm()

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Message]:
        """See :meth:`EventQueue.receive`."""
        deadline = time.monotonic() + wait_seconds
        while self._listening:
            self._rearm_if_lost()
            with self._changed:
                now = time.monotonic()
                messages = self._in_flight.redeliver(now, limit)
                messages += self._new(now, limit - len(messages))
                if messages:
                    return messages
                if now >= deadline:
                    if self._refused is not None:
                        raise self._refused
                    return ()
                dues = (self._in_flight.next_due, self._settler.next_due, self._check_due, deadline)
                self._wakes_at = min(due for due in dues if due is not None)
                if self._listening:
                    self._changed.wait(max(0.0, self._wakes_at - now))
        return ()

    def ready_at(self) -> float:
        """See :meth:`Announcing.ready_at`."""
        with self._changed:
            self._wakes_at = super().ready_at()
            return self._wakes_at

    def depth(self) -> int:
        """See :meth:`EventQueue.depth`."""
        with self._changed:
            return len(self._settler)

    def is_settled(self) -> bool:
        """See :meth:`Settling.is_settled`."""
        return self.depth() == 0

    @property
    def _next_due(self) -> float | None:
        return self._settler.next_due

    def _new(self, now: float, limit: int) -> list[Message]:
        released = self._settler.release(now, min(limit, self._in_flight.room))
        return [self._in_flight.deliver(hint, now) for hint in released]

    def _rearm_if_lost(self) -> None:
        """Re-arms the watch if it was lost. Raises QueueError if that fails."""
        if time.monotonic() < self._check_due:
            return
        with self._arming:
            if not self._listening:
                return
            self._check_due = time.monotonic() + self._check_seconds
            try:
                self._check()
                if not self._rearm_reason:
                    return
                self._watch.disarm()
                self._arm()
            except QueueError as error:
                self._refused = error
                raise
            reason, self._rearm_reason, self._refused = self._rearm_reason, "", None
            with self._changed:
                self._settler.rescan(reason, time.monotonic())

    def _check(self) -> None:
        with self._changed:
            overflowed, self._overflowed = self._overflowed, False
            directories_added, self._directories_added = self._directories_added, False
        if self._rearm_reason:
            return
        if self._stat_root() != self._identity:
            self._rearm_reason = "root replaced"
        elif not self._watch.is_alive:
            self._rearm_reason = "watch lost"
        elif overflowed:
            self._rearm_reason = "overflow"
        elif directories_added:
            try:
                self._watch.probe()
            except QueueError:
                self._rearm_reason = "watch limit"
                raise

    def _arm(self) -> None:
        # Before arming, so that the next check notices a root replaced in between.
        self._identity = self._stat_root()
        self._watch.arm()
        self._check_due = time.monotonic() + self._check_seconds

    def _on_change(self, change: PathChange) -> None:
        is_file = change.kind in {PathChangeKind.CHANGED, PathChangeKind.CLOSED}
        is_relevant = self._selection.accepts if is_file else self._selection.may_contain
        if change.path and not is_relevant(change.path):
            return
        with self._changed:
            self._settler.add(change, time.monotonic())
            self._directories_added |= change.kind is PathChangeKind.DIRECTORY_NEW
            due = self._settler.next_due
            if due is None or due >= self._wakes_at:
                return
            self._wakes_at = due
            self._changed.notify_all()
        self._ready(due)

    def _on_overflow(self) -> None:
        with self._changed:
            self._overflowed = True
            self._check_due = min(self._check_due, time.monotonic() + _OVERFLOW_SECONDS)
            due = self._check_due
        self._ready(due)

    def _look(self, path: str) -> tuple[int, int] | None:
        try:
            status = os.stat(os.path.join(self._root, path))
        except OSError:
            return None
        return status.st_size, status.st_mtime_ns

    def _stat_root(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._root)
        except OSError:
            return None
        return status.st_dev, status.st_ino
