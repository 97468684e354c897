"""The operating system's notifications about directory trees: one inotify instance for all trees of the process, because Linux
gives a user 128. Its thread handles each event where it arrives: no tree has a thread of its own.

Directories are watched one by one. A new one is watched before it is reported, so that a listing misses nothing. What
does not belong here: when a change is reported (``debounce``), delivery (``local``).
"""

from __future__ import annotations

import errno
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from watchdog.observers.inotify_c import (
    CallbackId,
    InotifyConstants,
    InotifyEvent,
    InotifyFD,
    Mask,
    WatchCallback,
    WatchDescriptor,
)

from volstream.base.model.paths import printable
from volstream.errors import QueueError, WatchLimitError
from volstream.files.queues.debounce import PathChange, PathChangeKind

#: Not opens, nor closes without writing: volstream's own reads would flood the queue. A changed modification time causes no
#: other event than IN_ATTRIB.
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

# A directory that is renamed while it is added has one watch under two names for a moment, of which watchdog warns.
warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)

#: The kernel's limits. Any other error with a directory below the root, such as one that vanished, costs its own events alone.
_LIMITS = frozenset({errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class _Instance:
    """The inotify instance of this process, while some tree is watched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reader: InotifyFD | None = None
        self._users = 0

    def join(self) -> InotifyFD:
        """Returns the running instance. Raises OSError if the kernel has none to give."""
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
                return  # it died, and others have another one
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
        root: the directory; a link to one is resolved each time the watch is armed.
        recursive: whether sub-directories count.
        on_change: called by the thread of the inotify instance, for each change; it must return at once.
        on_overflow: called by it when the kernel dropped events, in whichever tree.
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
        self._lock = threading.Lock()  # guards all that follows
        self._paths: dict[WatchDescriptor, set[str]] = {}  # several of a directory that is mounted twice
        self._watches: dict[str, WatchDescriptor] = {}
        self._refused: OSError | None = None  # why a directory could not be watched
        self._lost = False

    def arm(self) -> None:
        """Begins to watch; every change after it returns is reported.

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
        """True if an armed watch reports what happens. It ends when the root is removed."""
        reader = self._reader
        return reader is not None and reader.is_alive() and not self._lost

    def probe(self) -> None:
        """Checks that all directories are watched.

        Raises:
            QueueError: the kernel had no room for some.
        """
        with self._lock:
            refused = self._refused
        if refused is not None:
            with _errors_of(self._root):
                raise refused

    def on_event(self, event: InotifyEvent) -> None:
        """Handles an event of a directory; called by the thread of the inotify instance."""
        with self._lock:
            directories = [*self._paths.get(event.wd, ())]
        if not event.name:  # of the directory itself, whose parent reports it, too
            self._lost |= event.is_delete_self and "" in directories
            return
        for directory in directories:
            self._on_event_in(directory, event)

    def _on_event_in(self, directory: str, event: InotifyEvent) -> None:
        name = os.fsdecode(event.name)
        path = f"{directory}/{name}" if directory else name
        if not event.is_directory:
            self._on_change(PathChange(path, PathChangeKind.CLOSED if event.is_close_write else PathChangeKind.CHANGED))
        elif event.is_create or event.is_moved_to or (event.is_attrib and self._recursive and path not in self._watches):
            if self._recursive:
                self._add(path)
            self._on_change(PathChange(path, PathChangeKind.DIRECTORY_NEW))
        elif event.is_delete or event.is_moved_from:
            if event.is_moved_from:  # one that is deleted is empty, and its watch ends by itself
                self._drop(path)
                if self._recursive:  # another may be there, which was exchanged with it
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
        """Watches a directory and, if they count, all below it. Raises OSError for the root."""
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
        if watch == -1:  # watchdog's word for a directory that may not be read
            reader.remove_callbacks([(watch, self._id)])
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with self._lock:
            if self._reader is reader:
                self._paths.setdefault(watch, set()).add(directory)
                self._watches[directory] = watch
                return
        reader.remove_callbacks([(watch, self._id)])  # it was disarmed meanwhile

    def _drop(self, top: str) -> None:
        """Stops watching a directory that was moved away, and all below it."""
        with self._lock:
            watched = self._forget([path for path in self._watches if path == top or path.startswith(f"{top}/")])
        reader = self._reader
        if reader is not None and watched:
            reader.remove_callbacks(watched)

    def _forget(self, paths: Sequence[str]) -> list[tuple[WatchDescriptor, CallbackId]]:
        """Drops directories, skipping unknown ones; returns the watches to remove because no other path shares them."""
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
