"""The work on executors: one pass over a partition of a plan, which processes each file and stages its outcome.

The function is called by ``call`` (in this process) and ``child`` (in a child process); the results are in ``outcomes``.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, TypeAlias

import pyarrow as pa

from volstream.base.model.paths import FileInfo
from volstream.base.model.work import FailureKind, groups
from volstream.files.storage.base import ObjectStore
from volstream.functions.bounds import Bounds
from volstream.functions.call import Caller, call_each, call_if_due
from volstream.functions.child import ChildWorker
from volstream.functions.concurrency import Calls, is_blocked
from volstream.functions.gpus import Gpus
from volstream.functions.in_flight import ManyCallsWorker
from volstream.functions.limits import memory_limit
from volstream.functions.outcomes import FileOutcome, FileTask, OutcomeCodec
from volstream.functions.output import OutputTarget
from volstream.functions.pace import Pace
from volstream.functions.prefetch import Fetcher, confirmed
from volstream.functions.printing import Capture, TruncatedLog
from volstream.functions.rows import ArrowRows, RowRequirements
from volstream.functions.source import FunctionSource

#: Outcomes are passed on at this many rows or bytes; larger ones, such as those of a file with large rows, in several pieces,
#: because Spark holds several copies of a piece at once.
_FLUSH_ROWS, _FLUSH_BYTES = 2000, 16 << 20

#: Maximum number of files fetched ahead of the function, however small.
_AHEAD_FILES = 256

#: How often a worker looks whether the process that started the run still exists.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Work:
    """Everything that an executor needs for a job's files; it is pickled with the query.

    Attributes:
        arguments: arguments of the function or, for a class, of its set-up.
        schema: the result's own columns; None: to be inferred from the types in the outcomes of a :class:`ChildWorker`.
        timeout_seconds: for each file; None: unlimited.
        isolate: run the function in a child process that may die or be killed without harm; so does one in an environment.
        memory_bytes: memory limit of the function, in each worker; None: unlimited.
        ahead_bytes: size of contents fetched ahead of the function, in each worker.
        bounds: limits on the results of a file.
        declared: the function declares the columns; its current declaration must match them.
        measures: measure the time and memory of each call, one call at a time.
        sets: the function takes sets of files.
        concurrency: calls in flight in each worker; None: as the function declares. With ``isolate``, one at a time.
        pace: of the calls of all workers; None: unlimited.
        owner: process that started the run (``lifecycle.identity``); None: unknown.
        outputs: where files in the rows go; None: nowhere.
        gpus: GPUs of each worker; None: none of its own.
    """

    source: FunctionSource
    arguments: Mapping[str, str]
    store: ObjectStore
    schema: pa.Schema | None
    timeout_seconds: float | None = None
    isolate: bool = False
    memory_bytes: int | None = None
    ahead_bytes: int = 0
    bounds: Bounds = field(default_factory=Bounds)
    declared: bool = False
    measures: bool = False
    sets: bool = False
    concurrency: int | None = None
    pace: Pace | None = None
    owner: str | None = None
    outputs: OutputTarget | None = None
    gpus: Gpus | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes a partition of a plan; yields outcomes in the format of :meth:`OutcomeCodec.encode`."""
        codec = OutcomeCodec(self.schema)
        printed = TruncatedLog(self.bounds.log_batch_bytes)
        pending = _Pending(codec)
        with ExitStack() as resources:
            if self.gpus is not None:
                resources.enter_context(self.gpus.taken())
            if not self.apart:
                resources.enter_context(memory_limit(self.memory_bytes))
            worker = resources.enter_context(closing(self.worker()))
            for outcome in confirmed(self.store, self._outcomes(worker, tasks_of(batches))):
                for entry in outcome.printed:
                    failed = outcome.kind is not None
                    printed.add(entry.encoded(failed=failed), failed=failed)
                yield from pending.add(outcome)
            yield from pending.flush()
            if entries := printed.encoded():
                yield codec.encode_printed(entries)

    def worker(self) -> Worker:
        """Returns the worker that calls the function, here or in a child process."""
        if not self.apart:
            return InProcessWorker(self)
        if self.source.environment is None or self.measures:
            return ChildWorker(self)
        return ManyCallsWorker(self, self.concurrency)

    @property
    def apart(self) -> bool:
        """True if the function runs in a child process."""
        return self.isolate or self.source.environment is not None

    def with_store(self, store: ObjectStore) -> Work:
        """Returns the same work on files of another store."""
        return replace(self, store=store)

    def caller(self, copy_output_to: int | None = None) -> Caller:
        """Imports the function in this process; returns its caller.

        Args:
            copy_output_to: a file descriptor for a second copy of the function's output.
        """
        prints = Capture(self.bounds.log_file_bytes, copy_output_to)
        expected = RowRequirements(self.schema, self.bounds, self.declared)
        return Caller(
            self.source,
            self.arguments,
            self.timeout_seconds,
            prints,
            expected,
            measures=self.measures,
            outputs=self.outputs,
            sets=self.sets,
        )

    def _outcomes(self, worker: Worker, tasks: Iterator[FileTask]) -> Iterator[FileOutcome]:
        """Calls the function group by group, fetching contents ahead if that helps; yields outcomes as calls end."""
        portions = groups(tasks, worker.batch_size)
        call = partial(call_each, worker.call)
        if self.pace is not None:
            call = partial(call, turn=self.pace.of_worker().wait)
        if self.sets:
            call = partial(call_if_due, call)
        calls = Calls(call, worker.concurrency)
        try:
            with closing(calls):
                for outcome in self._called(worker, self._while_wanted(portions), calls):
                    outcome.files_per_call = worker.batch_size
                    yield outcome
        finally:
            if calls.gave_up:
                retire()

    def _while_wanted(self, groups: Iterator[list[FileTask]]) -> Iterator[list[FileTask]]:
        """Ends the work of a process that was killed: the engine would go on calling the function, which may cost money.

        Raises:
            ProcessLookupError: it was.
        """
        try:
            from volstream.base.processes import is_gone  # late: environments lack the package that it needs
        except ModuleNotFoundError:  # as other hosts may, which do not see the process anyway
            yield from groups
            return
        looked = float("-inf")
        for group in groups:
            if self.owner is not None and time.monotonic() > looked + _LOOK_SECONDS:
                looked = time.monotonic()
                if is_gone(self.owner):
                    raise ProcessLookupError(f"The process that started this run has ended ({self.owner}).")
            yield group

    def _called(self, worker: Worker, groups: Iterator[list[FileTask]], calls: Calls) -> Iterator[FileOutcome]:
        ahead: deque[list[FileTask]] = deque()
        held = files = 0
        upcoming = next(groups, None)
        while True:
            while calls.free and upcoming is not None:
                fits = worker.fetch_ahead and held + _size(upcoming) <= self.ahead_bytes and files < _AHEAD_FILES
                if ahead and not fits:
                    break
                if fits and upcoming[0].held is None:
                    worker.fetch(upcoming)
                ahead.append(upcoming)
                held += _size(upcoming)
                files += len(upcoming)
                upcoming = next(groups, None)
            if ahead and calls.free:
                group = ahead.popleft()
                held -= _size(group)
                files -= len(group)
                calls.start(group)
            elif calls.running:
                yield from calls.next()
            else:
                return


class InProcessWorker:
    """Calls the function in this process; if it runs out of memory, or blocks the event loop, calls it again in a fresh child.

    Otherwise a function that retains a little of each file, or a coroutine that blocks the others, would fail files that are not
    to blame.

    Attributes:
        concurrency: number of calls at once.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._fetcher = Fetcher(work.store)
        with ExitStack() as resources:
            resources.enter_context(work.source.folder())
            self._caller = work.caller()
            self._resources = resources.pop_all()
        self._child: ChildWorker | None = None
        self._one_child = threading.Lock()
        self._instead: ManyCallsWorker | None = None
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
        """Returns the outcome of each file of a group, in order. Several threads call it if ``concurrency`` exceeds one."""
        if self._instead is not None:
            return self._instead.call(group)
        files = self._fetcher.files(group)
        outcomes = self._caller(list(zip(group, files, strict=True)))
        self._fetcher.learn(files, outcomes)
        timed_out = any(outcome.kind is FailureKind.TIMED_OUT for outcome in outcomes)
        if timed_out and is_blocked():
            with self._one_child:
                self._instead = self._instead or ManyCallsWorker(self._work, self.concurrency)
            return [self._in_child(outcome) for outcome in outcomes]
        return [
            self._in_child(outcome)
            if outcome.kind is FailureKind.OUT_OF_MEMORY and self._work.memory_bytes is not None
            else outcome
            for outcome in outcomes
        ]

    def close(self) -> None:
        """Ends background work."""
        if self._instead is not None or is_blocked():  # perhaps by what the function left behind
            retire()
        self._resources.close()
        self._fetcher.close()
        for child in (self._child, self._instead):
            if child is not None:
                child.close()

    def _in_child(self, outcome: FileOutcome) -> FileOutcome:
        with self._one_child:
            if self._child is None:
                self._child = ChildWorker(self._work)
            again = self._child.call([outcome.task])[0]
            if self.concurrency > 1:
                self._child.close()  # it would die with this thread
        return again.after(outcome)


#: What calls the function on groups of files.
Worker: TypeAlias = InProcessWorker | ChildWorker

#: Set once this process is to end with its task.
_retired = threading.Event()


def is_retired() -> bool:
    """Returns whether this process ends with its task; see :func:`retire`."""
    return _retired.is_set()


def retire() -> None:
    """Makes PySpark end this worker with its task: what a function left running must not meet the functions of other jobs."""
    _retired.set()
    pyspark = sys.modules.get("pyspark.worker")
    if pyspark is None:  # a child of ours, which ends anyway
        return
    from pyspark.serializers import SpecialLengths

    write = pyspark.write_int

    def write_int(value: int, stream: IO[bytes]) -> None:
        if value != SpecialLengths.END_OF_STREAM:
            write(value, stream)
            return
        # As PySpark's worker itself tells the engine not to keep it.
        write(SpecialLengths.END_OF_DATA_SECTION, stream)
        sys.exit(-1)

    pyspark.write_int = write_int  # type: ignore[attr-defined]  # for this process


class _Pending:
    """Outcomes that wait until there are enough for Spark."""

    def __init__(self, codec: OutcomeCodec) -> None:
        self._codec = codec
        self._outcomes: list[FileOutcome] = []
        self._encoded: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, outcome: FileOutcome) -> Iterator[pa.RecordBatch]:
        """Adds an outcome; yields batches once there is enough for one."""
        if isinstance(outcome.rows, ArrowRows):
            self._encode()
            for batch in self._codec.encode_arrow(outcome, outcome.rows):
                self._encoded.append(batch)
                yield from self._counted(batch.num_rows, batch.nbytes)
        else:
            self._outcomes.append(outcome)
            yield from self._counted(max(1, len(outcome.rows)), outcome.bytes)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yields everything that waits."""
        self._encode()
        if self._encoded:
            yield from _pieces(pa.concat_batches(self._encoded))
        self._encoded, self._rows, self._bytes = [], 0, 0

    def _counted(self, rows: int, size: int) -> Iterator[pa.RecordBatch]:
        self._rows += rows
        self._bytes += size
        if self._rows >= _FLUSH_ROWS or self._bytes >= _FLUSH_BYTES:
            yield from self.flush()

    def _encode(self) -> None:
        if self._outcomes:
            self._encoded.append(self._codec.encode(self._outcomes))
            self._outcomes = []


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields a batch in pieces within the size limit, except single rows that exceed it."""
    if batch.nbytes <= _FLUSH_BYTES or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))


def tasks_of(batches: Iterable[pa.RecordBatch]) -> Iterator[FileTask]:
    """Yields the files, or sets, in rows of a plan."""
    names = FileInfo._fields
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in names]
        columns += [batch.column(name).to_pylist() for name in ("commit_version", "members", "held")]
        for *info, version, members, held in zip(*columns, strict=True):
            files = [FileInfo(**member) for member in members] if members else None
            yield FileTask(FileInfo(*info), version, files, held)


def _size(group: Sequence[FileTask]) -> int:
    return sum(task.info.size for task in group)
