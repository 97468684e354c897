"""The operating system's notifications about one directory tree, through watchdog: armed, checked, translated.

What does not belong here: when a change is reported (``debounce``), delivery (``local``).
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

from volstream.base.model.files import printable
from volstream.errors import QueueError
from volstream.files.queues.debounce import PathChange, PathChangeKind

#: Opened and closed-without-writing are omitted: volstream's own reads would flood the queue. FileAttribEvent is included: a
#: changed modification time causes no other event.
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

#: Only this logger reveals that the kernel dropped events.
_OVERFLOW_LOGGER = logging.getLogger("watchdog.observers.inotify_c")

# Watchdog harmlessly warns about every directory that it finds both by walking and through its event.
warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)

#: A watch's threads are those started while arming, so watches are armed one at a time.
_arming = threading.Lock()


class DirectoryWatch:
    """Reports changes below ``root`` while armed.

    Args:
        root: the directory; a link to one is resolved each time the watch is armed.
        recursive: whether sub-directories count.
        on_change: called by watchdog's thread, for each change.
        on_overflow: called by watchdog's thread when changes were lost. Watchdog does not say in which of the process's
            watches, so all are notified.
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
        """Begins to watch; every change after it returns is reported.

        Raises:
            QueueError: the directory is missing, access is denied, or the kernel's limits are reached.
        """
        real_root = os.path.realpath(self._root)
        with _errors_of(self._root), _arming:
            before = set(threading.enumerate())
            # Watchdog swallows inotify's permission errors; this raises them.
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
        # The handler needs the records even if the user has silenced the logger.
        if not _OVERFLOW_LOGGER.isEnabledFor(logging.WARNING):
            _OVERFLOW_LOGGER.setLevel(logging.WARNING)
        _OVERFLOW_LOGGER.addHandler(self._overflow)

    def disarm(self) -> None:
        """Stops watching. Idempotent."""
        _OVERFLOW_LOGGER.removeHandler(self._overflow)
        observer, self._observer, self._threads = self._observer, None, []
        if observer is None:
            return
        try:
            observer.stop()
        except KeyError:
            # watchdog 7.1 loses count when a directory is moved out and a new one gets the same name; its threads are daemon
            # threads, and joining them would hang.
            return
        observer.join()

    @property
    def is_alive(self) -> bool:
        """True if all threads of an armed watch run. They end when the root is removed, or through a bug in watchdog."""
        return bool(self._threads) and all(thread.is_alive() for thread in self._threads)

    def probe(self) -> None:
        """Checks that the kernel has room for one more watch.

        Watchdog does not report that it could not watch a *sub*-directory, so an exhausted limit must be probed for.

        Raises:
            QueueError: there is no room; some directories may be unwatched.
        """
        real_root = os.path.realpath(self._root)
        if self._observer is None or not self._recursive or real_root == "/":
            return
        with _errors_of(self._root):
            # The file system's root, the one directory that this observer is certainly not watching yet.
            self._observer.unschedule(self._observer.schedule(FileSystemEventHandler(), "/", event_filter=_EVENTS))


class _Translator(FileSystemEventHandler):
    """Translates watchdog's events into changes of relative paths."""

    def __init__(self, real_root: str, on_change: Callable[[PathChange], None]) -> None:
        self._prefix = real_root.rstrip("/") + "/"
        self._on_change = on_change

    def dispatch(self, event: FileSystemEvent) -> None:
        """Handles one event; called by watchdog."""
        gone, new = PathChangeKind.CHANGED, PathChangeKind.CHANGED
        if event.is_directory:
            gone, new = PathChangeKind.DIRECTORY_GONE, PathChangeKind.DIRECTORY_NEW
        elif isinstance(event, FileClosedEvent):
            new = PathChangeKind.CLOSED
        if isinstance(event, DirDeletedEvent | DirMovedEvent | FileMovedEvent):
            self._report(event.src_path, gone)
        else:
            self._report(event.src_path, new)
        if event.dest_path:
            self._report(event.dest_path, new)

    def _report(self, full_path: bytes | str, kind: PathChangeKind) -> None:
        path = os.fsdecode(full_path)
        # The root itself is not below the prefix; the check for live threads detects its removal.
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
    """Maps the operating system's errors when arming a watch."""
    try:
        yield
    except OSError as exc:
        problem = f"{printable(root)} cannot be watched: {exc.strerror or exc}."
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
