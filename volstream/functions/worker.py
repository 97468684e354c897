"""The work on executors: one pass over a partition of a plan, which processes each file.

``call`` calls the function in this process, and ``child`` in a child process. The results are in
``outcomes``.
"""

from __future__ import annotations

import io
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import IO, TypeAlias

import pyarrow as pa

from volstream.base.model.paths import FileInfo
from volstream.base.model.work import FailureKind, groups
from volstream.errors import StorageError
from volstream.files.storage.base import HasLocalPaths, HasParts, ObjectStore
from volstream.functions.call import Work, call_each, call_if_due, failed
from volstream.functions.child import ChildWorker, ManyCallsWorker
from volstream.functions.concurrency import Calls, is_blocked, memory_limit
from volstream.functions.file import Fetched, File, FileSet
from volstream.functions.outcomes import FileOutcome, FileTask

#: Maximum number of files fetched ahead of the function, regardless of their size.
_AHEAD_FILES = 256

#: Interval at which a worker checks whether the process that started the run still exists.
_CHECK_SECONDS = 1.0


def outcomes(work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[FileOutcome]:
    """Yields the outcome of each file in a partition of a plan, as calls end."""
    with ExitStack() as resources:
        if work.gpus is not None:
            resources.enter_context(work.gpus.acquired())
        if not work.apart:
            resources.enter_context(memory_limit(work.memory_bytes))
        worker = resources.enter_context(closing(_worker_of(work)))
        yield from with_confirmation(work.store, _outcomes(work, worker, tasks_of(batches)))


def _worker_of(work: Work) -> Worker:
    """Returns the worker that calls the function, here or in a child process."""
    if not work.apart:
        return InProcessWorker(work)
    if work.source.environment is None or work.measures:
        return ChildWorker(work)
    return ManyCallsWorker(work, work.concurrency)


def _outcomes(work: Work, worker: Worker, tasks: Iterator[FileTask]) -> Iterator[FileOutcome]:
    """Calls the function group by group, and fetches contents ahead if that helps. Yields outcomes as calls
    end."""
    portions = groups(tasks, worker.batch_size)
    call = partial(call_each, worker.call)
    if work.pace is not None:
        call = partial(call, turn=work.pace.of_worker().wait)
    if work.sets:
        call = partial(call_if_due, call)
    calls = Calls(call, worker.concurrency)
    try:
        with closing(calls):
            for outcome in _called(work, worker, _while_owned(work, portions), calls):
                outcome.files_per_call = worker.batch_size
                yield outcome
    finally:
        if calls.has_abandoned:
            retire()


def _while_owned(work: Work, groups: Iterator[list[FileTask]]) -> Iterator[list[FileTask]]:
    """Yields the groups until the process that started the run has died. Otherwise the engine would continue
    to call the function, which may cost money.

    Raises:
        ProcessLookupError: that process has died.
    """
    try:
        from volstream.base.processes import is_gone  # late: environments lack a package that it needs
    except ModuleNotFoundError:  # also on other hosts, which cannot see the process anyway
        yield from groups
        return
    checked = float("-inf")
    for group in groups:
        if work.owner is not None and time.monotonic() > checked + _CHECK_SECONDS:
            checked = time.monotonic()
            if is_gone(work.owner):
                raise ProcessLookupError(f"The process that started this run has ended ({work.owner}).")
        yield group


def _called(work: Work, worker: Worker, groups: Iterator[list[FileTask]], calls: Calls) -> Iterator[FileOutcome]:
    ahead: deque[list[FileTask]] = deque()
    ahead_bytes = files = 0
    upcoming = next(groups, None)
    while True:
        while calls.free and upcoming is not None:
            fits = worker.fetch_ahead and ahead_bytes + _size(upcoming) <= work.ahead_bytes and files < _AHEAD_FILES
            if ahead and not fits:
                break
            if fits and upcoming[0].held is None:
                worker.fetch(upcoming)
            ahead.append(upcoming)
            ahead_bytes += _size(upcoming)
            files += len(upcoming)
            upcoming = next(groups, None)
        if ahead and calls.free:
            group = ahead.popleft()
            ahead_bytes -= _size(group)
            files -= len(group)
            calls.start(group)
        elif calls.running:
            yield from calls.next()
        else:
            return


class InProcessWorker:
    """Calls the function in this process. Calls it again in a fresh child if it runs out of memory, or blocks
    the event loop.

    Otherwise a function that retains a little of each file, or a coroutine that blocks the others, would fail
    files that are not to blame.

    Attributes:
        concurrency: maximum number of concurrent calls.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._fetcher = Fetcher(work.store)
        with ExitStack() as resources:
            resources.enter_context(work.source.folder())
            self._caller = work.caller()
            self._resources = resources.pop_all()
        self._child: ChildWorker | None = None
        self._child_lock = threading.Lock()
        self._many_calls: ManyCallsWorker | None = None
        self.concurrency = 1 if work.measures else work.concurrency or self._caller.concurrency
        if self.concurrency > 1:
            self._resources.enter_context(self._caller.capturing())

    @property
    def batch_size(self) -> int:
        """Number of files per group."""
        return self._caller.batch_size or 1

    @property
    def fetch_ahead(self) -> bool:
        """True if fetching contents ahead is worthwhile."""
        return self._fetcher.useful

    def fetch(self, group: Sequence[FileTask]) -> None:
        """Starts fetching the contents of an upcoming group."""
        self._fetcher.fetch(group)

    def call(self, group: Sequence[FileTask]) -> list[FileOutcome]:
        """Returns the outcome of each file of a group, in order. Several threads call it if ``concurrency``
        exceeds one."""
        if self._many_calls is not None:
            return self._many_calls.call(group)
        files = self._fetcher.files(group)
        outcomes = self._caller(list(zip(group, files, strict=True)))
        self._fetcher.learn(files, outcomes)
        timed_out = any(outcome.kind is FailureKind.TIMED_OUT for outcome in outcomes)
        if timed_out and is_blocked():
            with self._child_lock:
                self._many_calls = self._many_calls or ManyCallsWorker(self._work, self.concurrency)
            return [self._in_child(outcome) for outcome in outcomes]
        return [
            self._in_child(outcome)
            if outcome.kind is FailureKind.OUT_OF_MEMORY and self._work.memory_bytes is not None
            else outcome
            for outcome in outcomes
        ]

    def close(self) -> None:
        """Ends background work."""
        # The function may have left something behind that blocks.
        if self._many_calls is not None or is_blocked():
            retire()
        self._resources.close()
        self._fetcher.close()
        for child in (self._child, self._many_calls):
            if child is not None:
                child.close()

    def _in_child(self, outcome: FileOutcome) -> FileOutcome:
        with self._child_lock:
            if self._child is None:
                self._child = ChildWorker(self._work)
            retried = self._child.call([outcome.task])[0]
            if self.concurrency > 1:
                self._child.close()  # it would die with this thread
        return retried.after(outcome)


#: Calls the function on groups of files.
Worker: TypeAlias = InProcessWorker | ChildWorker

#: Set once this process must end with its task.
_retired = threading.Event()


def is_retired() -> bool:
    """Returns whether this process ends with its task; see :func:`retire`."""
    return _retired.is_set()


def retire() -> None:
    """Makes PySpark end this worker with its task: leftovers of a function must not meet the functions of
    other jobs."""
    _retired.set()
    pyspark = sys.modules.get("pyspark.worker")
    if pyspark is None:  # a child process, which ends anyway
        return
    from pyspark.serializers import SpecialLengths

    write = pyspark.write_int

    def write_int(value: int, stream: IO[bytes]) -> None:
        if value != SpecialLengths.END_OF_STREAM:
            write(value, stream)
            return
        # The way in which PySpark's worker itself tells the engine not to keep it.
        write(SpecialLengths.END_OF_DATA_SECTION, stream)
        sys.exit(-1)

    pyspark.write_int = write_int  # type: ignore[attr-defined]  # for this process


def tasks_of(batches: Iterable[pa.RecordBatch]) -> Iterator[FileTask]:
    """Yields the files, or sets, in the rows of a plan."""
    names = FileInfo._fields
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in names]
        columns += [batch.column(name).to_pylist() for name in ("commit_version", "members", "held", "old_path")]
        for *info, version, members, held, old_path in zip(*columns, strict=True):
            files = [FileInfo(**member) for member in members] if members else None
            yield FileTask(FileInfo(*info), version, files, held, old_path)


def _size(group: Sequence[FileTask]) -> int:
    return sum(task.info.size for task in group)


# Fetches contents before the function requests them, and checks versions afterwards, so that neither waits
# for the network one file at a time. Runs on executors.

#: Concurrent requests of each kind, which wait for the network, not for a processor.
_AT_ONCE = 32

#: Larger contents are fetched in parts of this size, each with a separate request.
_PART_BYTES = 8 << 20


class Fetcher:
    """Reads contents in threads, ahead of the function. Used in one thread.

    Attributes:
        useful: whether the function read the contents of the last files, which are not local.
    """

    def __init__(self, store: ObjectStore) -> None:
        self.useful = False
        self._store = store
        self._is_local = isinstance(store, HasLocalPaths)
        self._in_parts = store if isinstance(store, HasParts) else None
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="fetch")  # starts threads on demand
        self._contents: dict[str, Fetched] = {}

    def fetch(self, tasks: Iterable[FileTask]) -> None:
        """Starts reading the contents of upcoming files."""
        for info in (info for task in tasks for info in task.files):
            path = info.relative_path
            if self._in_parts is not None:
                with suppress(MemoryError):  # the function's memory limit: the call will read it
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
        """Records whether the function requested the contents of its files, and whether they confirm its
        outcomes."""
        self.useful = not self._is_local and any(file.was_read for file in files)
        for file, outcome in zip(files, outcomes, strict=True):
            outcome.confirmed = self._in_parts is not None and file.is_fetched

    def close(self) -> None:
        """Ends the threads without waiting for running requests."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, path: str) -> bytes:
        with self._store.open(path) as content:
            return content.read()


class Parts:
    """The content of a file version, which threads fetch in parts. It is in memory only once."""

    def __init__(self, store: HasParts, info: FileInfo, pool: Executor) -> None:
        self._content = io.BytesIO(bytes(info.size))
        self._store, self._info = store, info
        self._parts = [pool.submit(self._fill, start) for start in range(0, info.size or 1, _PART_BYTES)]

    def result(self) -> bytes:
        """Waits for all parts. Raises the errors of :meth:`HasParts.open_part`."""
        for part in self._parts:
            part.result()
        return self._content.getvalue()

    def _fill(self, start: int) -> None:
        rest = self._content.getbuffer()[start : start + _PART_BYTES]
        with self._store.open_part(self._info, start, start + len(rest)) as part:
            while count := part.readinto(rest):
                rest = rest[count:]


def with_confirmation(store: ObjectStore, outcomes: Iterable[FileOutcome]) -> Iterator[FileOutcome]:
    """Yields the outcomes in order. Outcomes of files that have changed since become failures.

    A result counts only if the function had the planned version: the store confirmed it with the contents, or
    still has it afterwards.
    """
    if isinstance(store, HasLocalPaths):
        for outcome in outcomes:
            changed = [
                _change_of(store, outcome.task, info)
                for info in outcome.task.files
                if not store.has_version(info.relative_path, info.version)
            ]
            yield _with_changes(outcome, changed)
        return
    waiting: deque[tuple[FileOutcome, list[Future[FileOutcome | None]]]] = deque()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="confirm") as pool:
        for outcome in outcomes:
            files = () if outcome.confirmed else outcome.task.files
            checks = [pool.submit(_change_of, store, outcome.task, info) for info in files]
            waiting.append((outcome, checks))
            if len(waiting) > 2 * _AT_ONCE:
                yield _wait_for(*waiting.popleft())
        for oldest, checks in waiting:
            yield _wait_for(oldest, checks)


def _wait_for(outcome: FileOutcome, checks: Iterable[Future[FileOutcome | None]]) -> FileOutcome:
    return _with_changes(outcome, [check.result() for check in checks])


def _with_changes(outcome: FileOutcome, changed: Iterable[FileOutcome | None]) -> FileOutcome:
    """Returns the outcome or, if one of its files has changed, a failure."""
    for failure in filter(None, changed):
        failure.printed, failure.counted = outcome.printed, outcome.counted
        failure.seconds, failure.memory = outcome.seconds, outcome.memory
        return failure
    return outcome


def _change_of(store: ObjectStore, task: FileTask, info: FileInfo) -> FileOutcome | None:
    """Returns a failure if a file of a task no longer has the planned version, or None."""
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
