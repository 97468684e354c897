"""The operating system's notifications about one directory tree, through watchdog: armed, checked, translated.

What does not belong here: when a change may be told (``settle``), delivery (``local``).
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileAttribEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver
from watchdog.utils import BaseThread

from volstream.errors import QueueError
from volstream.model.files import printable
from volstream.queues.debounce import PathChange, PathChangeKind

#: Opened and closed-without-writing are left out: volstream's own reading would flood the queue. FileAttribEvent is
#: in: it is all that a changed modification time gives.
_EVENTS: list[type[FileSystemEvent]] = [
    FileCreatedEvent,
    FileModifiedEvent,
    FileClosedEvent,
    FileMovedEvent,
    FileDeletedEvent,
    FileAttribEvent,
    DirCreatedEvent,
    DirMovedEvent,
    DirDeletedEvent,
]

#: The only place where watchdog says that the kernel dropped events.
_OVERFLOW_LOGGER = logging.getLogger("watchdog.observers.inotify_c")

# Watchdog says this of every directory that it meets both by walking and by its event: nothing is wrong.
warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)

#: Which threads a watch consists of is seen by comparing before and after; one at a time, then.
_arming = threading.Lock()


class DirectoryWatch:
    """Tells what changes below ``root`` while armed.

    Args:
        root: the directory; a link to one is resolved each time the watch is armed.
        recursive: whether sub-directories count.
        on_change: called by watchdog's thread, for each change.
        on_overflow: called by watchdog's thread when changes were lost. Watchdog does not say in which watch of the
            process, so each is told.
    """

    def __init__(
        self, root: str, recursive: bool, on_change: Callable[[PathChange], None], on_overflow: Callable[[], None]
    ) -> None:
        self._root = root
        self._recursive = recursive
        self._on_change = on_change
        self._overflow = _OverflowHandler(on_overflow)
        self._observer: BaseObserver | None = None
        self._threads: list[threading.Thread] = []

    def arm(self) -> None:
        """Begins to watch; every change after it returns is told.

        Raises:
            QueueError: the directory is missing, or may not be watched, or the kernel's limits are reached.
        """
        real_root = os.path.realpath(self._root)
        with _errors_of(self._root), _arming:
            before = set(threading.enumerate())
            # inotify's refusal for want of permission is swallowed by watchdog; this raises it.
            os.scandir(real_root).close()
            self._observer = Observer()
            self._observer.start()
            handler = _Translator(real_root, self._on_change)
            try:
                self._observer.schedule(handler, real_root, recursive=self._recursive, event_filter=_EVENTS)
                self._threads = [
                    thread
                    for thread in threading.enumerate()
                    if isinstance(thread, BaseThread) and thread not in before
                ]
                self.probe()
            except (OSError, QueueError):
                self.disarm()
                raise
        # A logger that is silenced for people must still reach the handler.
        if not _OVERFLOW_LOGGER.isEnabledFor(logging.WARNING):
            _OVERFLOW_LOGGER.setLevel(logging.WARNING)
        _OVERFLOW_LOGGER.addHandler(self._overflow)

    def disarm(self) -> None:
        """Ends watching. Idempotent."""
        _OVERFLOW_LOGGER.removeHandler(self._overflow)
        observer, self._observer, self._threads = self._observer, None, []
        if observer is None:
            return
        try:
            observer.stop()
        except KeyError:
            # watchdog 7.1 loses count when a directory moved out and a new one had the same name; its threads are
            # daemons that wait for nothing, and joining them would hang.
            return
        observer.join()

    @property
    def is_alive(self) -> bool:
        """Whether all threads of an armed watch run: they end when the root is removed, and by a bug of watchdog."""
        return bool(self._threads) and all(thread.is_alive() for thread in self._threads)

    def probe(self) -> None:
        """Checks that the kernel has room for one more watch.

        Watchdog says nothing when a *sub*-directory could not be watched, so a full table must be looked for.

        Raises:
            QueueError: there is none: some directories may be unwatched.
        """
        real_root = os.path.realpath(self._root)
        if self._observer is None or not self._recursive or real_root == "/":
            return
        with _errors_of(self._root):
            # The root directory: the one place that is surely not watched by this observer already.
            self._observer.unschedule(self._observer.schedule(FileSystemEventHandler(), "/", event_filter=_EVENTS))


class _Translator(FileSystemEventHandler):
    """Watchdog's events as changes of relative paths."""

    def __init__(self, real_root: str, on_change: Callable[[PathChange], None]) -> None:
        self._prefix = real_root.rstrip("/") + "/"
        self._on_change = on_change

    def dispatch(self, event: FileSystemEvent) -> None:
        """Called by watchdog for every event."""
        gone, new = PathChangeKind.CHANGED, PathChangeKind.CHANGED
        if event.is_directory:
            gone, new = PathChangeKind.DIRECTORY_GONE, PathChangeKind.DIRECTORY_NEW
        elif isinstance(event, FileClosedEvent):
            new = PathChangeKind.CLOSED
        if isinstance(event, DirDeletedEvent | DirMovedEvent | FileMovedEvent):
            self._tell(event.src_path, gone)
        else:
            self._tell(event.src_path, new)
        if event.dest_path:
            self._tell(event.dest_path, new)

    def _tell(self, full_path: bytes | str, kind: PathChangeKind) -> None:
        path = os.fsdecode(full_path)
        # The root itself is not below the prefix; that it went is seen by the check for live threads.
        if path.startswith(self._prefix):
            self._on_change(PathChange(path.removeprefix(self._prefix), kind))


class _OverflowHandler(logging.Handler):
    def __init__(self, on_overflow: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self._on_overflow = on_overflow

    def emit(self, record: logging.LogRecord) -> None:
        if "overflow" in record.getMessage():
            self._on_overflow()


@contextmanager
def _errors_of(root: str) -> Iterator[None]:
    """Maps what the operating system says when a watch is armed."""
    try:
        yield
    except OSError as exc:
        problem = f"{printable(root)} cannot be watched: {exc.strerror or exc}."
        raise QueueError(problem, _REMEDIES.get(exc.errno or 0, "")) from exc


_REMEDIES = {
    errno.ENOSPC: "Raise the kernel's limit (sysctl fs.inotify.max_user_watches), one watch per directory is needed; "
    "or give the volume `--queue-type poll`.",
    errno.EMFILE: "Raise the kernel's limit (sysctl fs.inotify.max_user_instances), or that of open files; "
    "or give the volume `--queue-type poll`.",
    errno.ENOENT: "Mount or create the directory; watching goes on by itself when it is there.",
    errno.ENOTDIR: "The volume's location must be a directory.",
    errno.EACCES: "Let the user that volstream runs as read the directory.",
}
