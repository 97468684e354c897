"""Fetches contents before the function requests them, and checks versions afterwards, so that neither waits for the network one
file at a time. Runs on executors.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress

from volstream.base.model.paths import FileInfo
from volstream.base.model.work import FailureKind
from volstream.errors import StorageError
from volstream.files.storage.base import HasLocalPaths, HasParts, ObjectStore
from volstream.functions.failed import failed
from volstream.functions.file import Fetched, File, FileSet
from volstream.functions.outcomes import FileOutcome, FileTask

#: Concurrent requests of each kind, which wait for the network, not for a processor.
_AT_ONCE = 32

#: Larger contents are fetched in parts of this size, each by a request of its own.
_PART_BYTES = 8 << 20


class Fetcher:
    """Reads contents in threads, ahead of the function. Used in one thread.

    Attributes:
        useful: whether the function read the contents of the last files, and these are not local.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.useful = False
        self._store = store
        self._near = isinstance(store, HasLocalPaths)
        self._in_parts = store if isinstance(store, HasParts) else None
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fetch")  # starts threads on demand
        self._contents: dict[str, Fetched] = {}

    def fetch(self, tasks: Iterable[FileTask]) -> None:
        """Starts reading the contents of upcoming files."""
        for info in (info for task in tasks for info in task.files):
            path = info.relative_path
            if self._in_parts is not None:
                with suppress(MemoryError):  # of the function's limit: the call reads it
                    self._contents[path] = Parts(self._in_parts, info, self._pool)
            else:
                self._contents[path] = self._pool.submit(self._read, path)

    def files(self, tasks: Sequence[FileTask]) -> list[File | FileSet]:
        """Returns the files or sets for one call of the function, with their fetched contents."""
        return [
            self._file(task.info) if task.members is None else FileSet(task.info.relative_path, map(self._file, task.members))
            for task in tasks
        ]

    def _file(self, info: FileInfo) -> File:
        return File(self._store, info, self._contents.pop(info.relative_path, None))

    def learn(self, files: Sequence[File | FileSet], outcomes: Iterable[FileOutcome]) -> None:
        """Records whether the function requested the contents of its files, and whether these confirm its outcomes."""
        self.useful = not self._near and any(file.was_read for file in files)
        for file, outcome in zip(files, outcomes, strict=True):
            outcome.confirmed = self._in_parts is not None and file.is_fetched

    def close(self) -> None:
        """Ends the threads without waiting for running requests."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, path: str) -> bytes:
        with self._store.open(path) as content:
            return content.read()


class Parts:
    """The content of a version of a file, which threads fetch in parts. It is in memory once."""

    def __init__(self, store: HasParts, info: FileInfo, pool: Executor) -> None:
        self._content = io.BytesIO(bytes(info.size))
        self._store, self._info = store, info
        self._parts = [pool.submit(self._fill, start) for start in range(0, info.size or 1, _PART_BYTES)]

    def result(self) -> bytes:
        """Waits for all parts. Raises what :meth:`HasParts.open_part` does."""
        for part in self._parts:
            part.result()
        return self._content.getvalue()

    def _fill(self, start: int) -> None:
        rest = self._content.getbuffer()[start : start + _PART_BYTES]
        with self._store.open_part(self._info, start, start + len(rest)) as part:
            while count := part.readinto(rest):
                rest = rest[count:]


def confirmed(store: ObjectStore, outcomes: Iterable[FileOutcome]) -> Iterator[FileOutcome]:
    """Yields the outcomes in order; those of files that have changed since become failures.

    A result counts only if the function had the planned version: the store said so with the contents, or still has it afterwards.
    """
    if isinstance(store, HasLocalPaths):
        for outcome in outcomes:
            changed = [
                _moved(store, outcome.task, info)
                for info in outcome.task.files
                if not store.has_version(info.relative_path, info.version)
            ]
            yield _confirmed(outcome, changed)
        return
    waiting: deque[tuple[FileOutcome, list[Future[FileOutcome | None]]]] = deque()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="confirm") as pool:
        for outcome in outcomes:
            files = () if outcome.confirmed else outcome.task.files
            checks = [pool.submit(_moved, store, outcome.task, info) for info in files]
            waiting.append((outcome, checks))
            if len(waiting) > 2 * _AT_ONCE:
                yield _settled(*waiting.popleft())
        for oldest, checks in waiting:
            yield _settled(oldest, checks)


def _settled(outcome: FileOutcome, checks: Iterable[Future[FileOutcome | None]]) -> FileOutcome:
    return _confirmed(outcome, [check.result() for check in checks])


def _confirmed(outcome: FileOutcome, changed: Iterable[FileOutcome | None]) -> FileOutcome:
    """Returns the outcome or, if a file of it has changed, a failure instead."""
    for failure in filter(None, changed):
        failure.printed, failure.counted = outcome.printed, outcome.counted
        failure.seconds, failure.memory = outcome.seconds, outcome.memory
        return failure
    return outcome


def _moved(store: ObjectStore, task: FileTask, info: FileInfo) -> FileOutcome | None:
    """Returns a failure if a file of a task no longer has the planned version, or None if it does."""
    which = "The file" if task.members is None else f"The file {info.relative_path}"
    try:
        now = store.head(info.relative_path)
    except StorageError as error:
        return failed(task, error, None)
    if now is None:
        return FileOutcome(task, kind=FailureKind.VANISHED, message=f"{which} no longer existed when it was processed.")
    if now.version != info.version:
        return FileOutcome(task, kind=FailureKind.CHANGED, message=f"{which} changed before or while it was processed.")
    return None
