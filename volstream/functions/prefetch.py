"""Fetches contents before the function requests them, and checks versions afterwards, so that neither waits for the network one
file at a time. Runs on executors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from volstream.errors import StorageDeniedError, StorageError
from volstream.functions.file import File
from volstream.functions.outcomes import FileOutcome, FileTask
from volstream.model.work import FailureKind
from volstream.storage.base import HasLocalPaths, ObjectStore

#: Concurrent requests of each kind, which wait for the network, not for a processor.
_AT_ONCE = 32


class Fetcher:
    """Reads contents in threads, ahead of the function. Used in one thread.

    Attributes:
        useful: whether the function read the contents of the last files, and these are not local.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.useful = False
        self._store = store
        self._near = isinstance(store, HasLocalPaths)
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fetch")  # starts threads on demand
        self._contents: dict[str, Future[bytes]] = {}

    def fetch(self, tasks: Iterable[FileTask]) -> None:
        """Starts reading the contents of upcoming files."""
        for task in tasks:
            path = task.info.relative_path
            self._contents[path] = self._pool.submit(self._read, path)

    def files(self, tasks: Sequence[FileTask]) -> list[File]:
        """Returns the files for one call of the function, with their fetched contents."""
        return [File(self._store, task.info, self._contents.pop(task.info.relative_path, None)) for task in tasks]

    def learn(self, files: Iterable[File]) -> None:
        """Records whether the function requested the contents of its files."""
        self.useful = not self._near and any(file.was_read for file in files)

    def close(self) -> None:
        """Ends the threads without waiting for running requests."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, path: str) -> bytes:
        with self._store.open(path) as content:
            return content.read()


def confirmed(store: ObjectStore, outcomes: Iterable[FileOutcome]) -> Iterator[FileOutcome]:
    """Yields the outcomes in order; those of files that have changed since become failures.

    A result counts only if the file still has the planned version after the function has read it.
    """
    if isinstance(store, HasLocalPaths):
        for outcome in outcomes:
            info = outcome.task.info
            still = store.has_version(info.relative_path, info.version)
            yield outcome if still else _confirmed(outcome, _moved(store, outcome.task))
        return
    waiting: deque[tuple[FileOutcome, Future[FileOutcome | None]]] = deque()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="confirm") as pool:
        for outcome in outcomes:
            waiting.append((outcome, pool.submit(_moved, store, outcome.task)))
            if len(waiting) > 2 * _AT_ONCE:
                oldest, moved = waiting.popleft()
                yield _confirmed(oldest, moved.result())
        for oldest, moved in waiting:
            yield _confirmed(oldest, moved.result())


def _confirmed(outcome: FileOutcome, moved: FileOutcome | None) -> FileOutcome:
    if moved is None:
        return outcome
    moved.printed = outcome.printed
    return moved


def _moved(store: ObjectStore, task: FileTask) -> FileOutcome | None:
    """Returns a failure for a file that no longer has the planned version, or None if it does."""
    try:
        now = store.head(task.info.relative_path)
    except StorageDeniedError as error:
        return FileOutcome(task, kind=FailureKind.DENIED, message=str(error))
    except StorageError as error:
        return FileOutcome(task, kind=FailureKind.UNREADABLE, message=str(error))
    if now is None:
        return FileOutcome(task, kind=FailureKind.VANISHED, message="The file no longer existed when it was processed.")
    if now.version != task.info.version:
        return FileOutcome(task, kind=FailureKind.CHANGED, message="The file changed before or while it was processed.")
    return None
