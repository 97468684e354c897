"""What runs on executors: one pass over a partition of a plan, which decides each file and stages the outcome.

How the function is called is ``calling``'s (here) and ``isolation``'s (in a child process), what comes of it ``outcomes``'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from volstream.jobs.calling import Caller, explain_memory, memory_limit
from volstream.jobs.contents import Fetcher, confirmed
from volstream.jobs.functions import FunctionSource
from volstream.jobs.isolation import ChildWorker
from volstream.jobs.outcomes import FileOutcome, FileTask, OutcomeCodec
from volstream.model.files import FileInfo
from volstream.model.work import FailureKind
from volstream.storage.base import ObjectStore

#: Outcomes are handed on in batches of at most this many rows; one file's rows are never split.
_FLUSH_ROWS = 2000

#: At most so many files are fetched ahead of the function, however small they are.
_AHEAD_FILES = 256


@dataclass(frozen=True)
class Work:
    """All that an executor needs for a job's files; it is pickled with the query.

    Attributes:
        arguments: of the function; of a class, of its set-up.
        schema: the result's own columns.
        timeout_seconds: for each file; None: none.
        isolate: run each file in a child process that can die or be killed without harm.
        memory_bytes: what the function may take, in each worker; None: no limit.
        ahead_bytes: contents fetched ahead of the function, in each worker.
    """

    source: FunctionSource
    arguments: Mapping[str, str]
    store: ObjectStore
    schema: pa.Schema
    timeout_seconds: float | None
    isolate: bool
    memory_bytes: int | None
    ahead_bytes: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes a partition of a plan; yields outcomes as :meth:`OutcomeCodec.encode` has them."""
        codec = OutcomeCodec(self.schema)
        pending: list[FileOutcome] = []
        rows = 0
        with ExitStack() as resources:
            if not self.isolate:
                resources.enter_context(memory_limit(self.memory_bytes))
            worker = resources.enter_context(closing(self.worker()))
            for outcome in confirmed(self.store, self._outcomes(worker, _tasks(batches))):
                pending.append(outcome)
                rows += max(1, len(outcome.rows))
                if rows >= _FLUSH_ROWS:
                    yield codec.encode(pending)
                    pending, rows = [], 0
            if pending:
                yield codec.encode(pending)

    def worker(self) -> Worker:
        """What calls the function, as this work says."""
        return ChildWorker(self) if self.isolate else HereWorker(self)

    def caller(self) -> Caller:
        """The function, imported in this process."""
        return Caller(self.source, self.arguments, self.timeout_seconds)

    def _outcomes(self, worker: Worker, tasks: Iterator[FileTask]) -> Iterator[FileOutcome]:
        """Calls the function on group after group, with contents fetched ahead where that helps."""
        groups = _groups(tasks, worker.batch_size)
        ahead: deque[list[FileTask]] = deque()
        held = files = 0
        while True:
            while not ahead or (worker.fetch_ahead and held < self.ahead_bytes and files < _AHEAD_FILES):
                group = next(groups, None)
                if group is None:
                    break
                ahead.append(group)
                held += _size(group)
                files += len(group)
                if worker.fetch_ahead and held <= self.ahead_bytes:
                    worker.fetch(group)
            if not ahead:
                return
            group = ahead.popleft()
            held -= _size(group)
            files -= len(group)
            yield from worker.call(group)


class Worker(Protocol):
    """Calls the function on groups of files."""

    @property
    def batch_size(self) -> int:
        """Files of a group."""

    @property
    def fetch_ahead(self) -> bool:
        """Whether fetching the contents of coming files is worth it."""

    def fetch(self, group: Sequence[FileTask]) -> None:
        """Begins to fetch the contents of a coming group."""

    def call(self, group: Sequence[FileTask]) -> list[FileOutcome]:
        """What became of each file of a group, in order."""

    def close(self) -> None:
        """Ends what runs in the background."""


class HereWorker:
    """Calls the function in this process; what ends for want of memory is called again in a child, which starts empty.

    A function that keeps a little of each file would otherwise fail files that are not to blame.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._fetcher = Fetcher(work.store)
        self._caller = work.caller()
        self._child: ChildWorker | None = None

    @property
    def batch_size(self) -> int:
        """See :class:`Worker`."""
        return self._caller.batch_size or 1

    @property
    def fetch_ahead(self) -> bool:
        """See :class:`Worker`."""
        return self._fetcher.useful

    def fetch(self, group: Sequence[FileTask]) -> None:
        """See :class:`Worker`."""
        self._fetcher.fetch(group)

    def call(self, group: Sequence[FileTask]) -> list[FileOutcome]:
        """See :class:`Worker`."""
        files = self._fetcher.files(group)
        outcomes = self._caller(list(zip(group, files, strict=True)))
        self._fetcher.learn(files)
        return [
            self._in_child(outcome) if outcome.kind is FailureKind.OUT_OF_MEMORY else outcome for outcome in outcomes
        ]

    def close(self) -> None:
        """See :class:`Worker`."""
        self._fetcher.close()
        if self._child is not None:
            self._child.close()

    def _in_child(self, outcome: FileOutcome) -> FileOutcome:
        if self._work.memory_bytes is None:
            return outcome
        if self._child is None:
            self._child = ChildWorker(self._work)
        return self._child.call([outcome.task])[0]


def serve(work: Work, receive: Iterator[tuple[str, Sequence[FileTask]]]) -> Iterator[object]:
    """The child's side of :class:`ChildWorker`: answers the set-up, and then each call.

    Yields:
        The batch size; then for each call the outcomes, and whether fetching ahead is worth it.
    """
    codec = OutcomeCodec(work.schema)
    with memory_limit(work.memory_bytes), closing(Fetcher(work.store)) as fetcher:
        caller = work.caller()
        yield caller.batch_size or 1
        for what, group in receive:
            if what == "fetch":
                fetcher.fetch(group)
                continue
            files = fetcher.files(group)
            outcomes = caller(list(zip(group, files, strict=True)))
            fetcher.learn(files)
            for outcome in outcomes:
                explain_memory(outcome, work.memory_bytes)
                codec.plain(outcome)
            yield outcomes, fetcher.useful


def _tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[FileTask]:
    names = FileInfo._fields
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in names]
        for *info, version in zip(*columns, batch.column("commit_version").to_pylist(), strict=True):
            yield FileTask(FileInfo(*info), version)


def _groups(tasks: Iterator[FileTask], size: int) -> Iterator[list[FileTask]]:
    group: list[FileTask] = []
    for task in tasks:
        group.append(task)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _size(group: Sequence[FileTask]) -> int:
    return sum(task.info.size for task in group)
