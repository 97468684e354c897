"""A queue of changes in a local directory: watched, settled, delivered until acknowledged.

It lives in memory: a restart loses waiting messages, so a reconcile follows every start. The queue checks the watch about every
second and re-arms it if it was lost (the root was replaced, the kernel dropped events, watchdog died); a hint for the whole
volume then covers missed changes. What does not belong here: when a path has settled (``debounce``), the operating system's
notifications (``watch``).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from volstream.base.model.paths import local_path, scheme_of
from volstream.errors import InvalidValueError, QueueError
from volstream.files.queues.base import Message, QueueSpec
from volstream.files.queues.debounce import Debouncer, PathChange, PathChangeKind
from volstream.files.queues.inflight import InProcessQueue
from volstream.files.queues.watch import DirectoryWatch

#: After the kernel dropped events, more of them are waited for this long, in seconds: one listing covers all.
_SOON = 0.5


class LocalQueue(InProcessQueue):
    """Delivers hints about the files of a directory.

    While the directory is missing, ``receive`` raises :class:`~volstream.errors.QueueError` at each check and at the end of
    each wait, and recovers when the directory exists again. Two locks: ``_arming`` guards the watch and is taken first;
    ``_changed`` guards the rest, and is never held while the watch is armed or disarmed, because watchdog's threads need it
    to end.
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
        self._deaf = ""  # why the watch must be re-armed; empty while it works
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
            self._deaf, self._refused = "", None
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
            self._keep_hearing()
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

    def _keep_hearing(self) -> None:
        """Re-arms the watch if it was lost; raises QueueError if that fails."""
        if time.monotonic() < self._check_due:
            return
        with self._arming:
            if not self._listening:
                return
            self._check_due = time.monotonic() + self._check_seconds
            try:
                self._check()
                if not self._deaf:
                    return
                self._watch.disarm()
                self._arm()
            except QueueError as error:
                self._refused = error
                raise
            reason, self._deaf, self._refused = self._deaf, "", None
            with self._changed:
                self._settler.rescan(reason, time.monotonic())

    def _check(self) -> None:
        with self._changed:
            overflowed, self._overflowed = self._overflowed, False
            directories_added, self._directories_added = self._directories_added, False
        if self._deaf:
            return
        if self._stat_root() != self._identity:
            self._deaf = "root replaced"
        elif not self._watch.is_alive:
            self._deaf = "watch lost"
        elif overflowed:
            self._deaf = "overflow"
        elif directories_added:
            try:
                self._watch.probe()
            except QueueError:
                self._deaf = "watch limit"
                raise

    def _arm(self) -> None:
        # Before arming, so that a root replaced in between differs at the next check.
        self._identity = self._stat_root()
        self._watch.arm()
        self._check_due = time.monotonic() + self._check_seconds

    def _on_change(self, change: PathChange) -> None:
        is_directory = change.kind in {PathChangeKind.DIRECTORY_NEW, PathChangeKind.DIRECTORY_GONE}
        if not (self._selection.may_contain(change.path) if is_directory else self._selection.accepts(change.path)):
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
            self._check_due = min(self._check_due, time.monotonic() + _SOON)
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
