"""What runs on executors: call the function on each file of a partition, and turn what it returns or raises into outcomes.

One pass decides each file: its rows or its error, never both. What the outcomes are used for is ``jobs.run``'s.
"""

from __future__ import annotations

import dataclasses
import io
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import Any

import pyarrow as pa

from volstream.errors import FunctionLoadError, StorageDeniedError, StorageError
from volstream.jobs.file import File
from volstream.jobs.functions import FunctionSource
from volstream.model.files import FileInfo
from volstream.model.units import format_duration
from volstream.model.work import FailureKind
from volstream.storage.base import ObjectStore

#: Outcomes are handed on in batches of at most this many rows; one file's rows are never split.
_FLUSH_ROWS = 2000


@dataclass(frozen=True, slots=True)
class FileTask:
    """One file of a batch, as the plan has it."""

    info: FileInfo
    commit_version: int


@dataclass(slots=True)
class FileOutcome:
    """What became of one file: ``rows``, or ``kind`` with ``message`` and ``traceback``."""

    task: FileTask
    rows: Sequence[Mapping[str, Any]] = ()
    kind: FailureKind | None = None
    message: str = ""
    traceback: str | None = None
    processed_at: datetime = dataclasses.field(default_factory=lambda: datetime.now(UTC))


#: A way of calling the function on one file: here, or in a child process.
Caller = Callable[[FileTask], FileOutcome]


def outcome_schema(result: pa.Schema) -> pa.Schema:
    """The columns of staged outcomes for a function with these result columns; see :meth:`Work.__call__`."""
    return pa.schema(
        [
            pa.field("path", pa.string()),
            pa.field("file_version", pa.string()),
            pa.field("commit_version", pa.int64()),
            pa.field("rows", pa.int64()),
            pa.field("processed_at", pa.timestamp("us", tz="UTC")),
            pa.field("result", pa.struct(list(result))),
            pa.field("error_kind", pa.string()),
            pa.field("error_message", pa.string()),
            pa.field("error_traceback", pa.string()),
        ]
    )


@dataclass(frozen=True)
class Work:
    """All that an executor needs for a job's files; it is pickled with the query.

    Attributes:
        schema: the result's own columns.
        timeout_seconds: for each file; None: none.
        isolate: run each file in a child process that can die or be killed without harm.
    """

    source: FunctionSource
    arguments: Mapping[str, str]
    store: ObjectStore
    schema: pa.Schema
    timeout_seconds: float | None
    isolate: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes a partition of a plan.

        Yields rows of :func:`outcome_schema`: one for each row the function gave; for a file without rows one whose
        ``result`` is NULL; for a failed file one with ``error_kind``. A file's first row has their number in ``rows``, the
        others NULL.
        """
        pending: list[FileOutcome] = []
        rows = 0
        with self._caller() as call:
            for task in _tasks(batches):
                outcome = call(task)
                pending.append(outcome)
                rows += max(1, len(outcome.rows))
                if rows >= _FLUSH_ROWS:
                    yield self._encode(pending)
                    pending, rows = [], 0
            if pending:
                yield self._encode(pending)

    @contextmanager
    def _caller(self) -> Iterator[Caller]:
        if self.isolate:
            from volstream.jobs.isolation import IsolatedCaller

            with IsolatedCaller(self) as isolated:
                yield isolated
        else:
            yield self.in_process()

    def in_process(self) -> Caller:
        """Imports the function once and calls it in this process.

        A function that cannot be imported here fails each file, rather than the whole query.
        """
        try:
            function = self.source.load()
        except FunctionLoadError as error:
            message = str(error)
            return lambda task: FileOutcome(task, kind=FailureKind.RAISED, message=message)
        return lambda task: self._run(function, task)

    def _run(self, function: Callable[..., Any], task: FileTask) -> FileOutcome:
        file = File(self.store, task.info)
        try:
            with self.source.importable(), redirect_stdout(_Discard()), _time_limit(self.timeout_seconds):
                rows = _rows(function(file, **self.arguments))
            outcome = FileOutcome(task, rows=rows)
        except _TimeLimitError:
            limit = format_duration(self.timeout_seconds or 0)
            outcome = FileOutcome(task, kind=FailureKind.TIMED_OUT, message=f"The function ran longer than {limit}.")
        except _NotRowsError as error:
            outcome = FileOutcome(task, kind=FailureKind.WRONG_RESULT, message=str(error))
        except StorageDeniedError as error:
            outcome = FileOutcome(task, kind=FailureKind.DENIED, message=str(error))
        except StorageError as error:
            outcome = FileOutcome(task, kind=FailureKind.UNREADABLE, message=str(error))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  # the function may raise anything: SystemExit, CancelledError
            outcome = FileOutcome(
                task, kind=FailureKind.RAISED, message=_message(error), traceback=_user_traceback(error)
            )
        finally:
            file.close()
        return self._moved(task) or outcome

    def _moved(self, task: FileTask) -> FileOutcome | None:
        """What the function saw counts only if the file is still the version that the plan names."""
        try:
            now = self.store.head(task.info.relative_path)
        except StorageDeniedError as error:
            return FileOutcome(task, kind=FailureKind.DENIED, message=str(error))
        except StorageError as error:
            return FileOutcome(task, kind=FailureKind.UNREADABLE, message=str(error))
        if now is None:
            return FileOutcome(task, kind=FailureKind.VANISHED, message="The file was gone when it was processed.")
        if now.version != task.info.version:
            return FileOutcome(
                task, kind=FailureKind.CHANGED, message="The file changed before or while it was processed."
            )
        return None

    def _encode(self, outcomes: Sequence[FileOutcome]) -> pa.RecordBatch:
        results = self._results(outcomes)
        columns: dict[str, list[Any]] = {name: [] for name in outcome_schema(self.schema).names if name != "result"}
        for outcome in outcomes:
            for number in range(max(1, len(outcome.rows))):
                columns["path"].append(outcome.task.info.relative_path)
                columns["file_version"].append(outcome.task.info.version)
                columns["commit_version"].append(outcome.task.commit_version)
                columns["rows"].append(None if number else len(outcome.rows))
                columns["processed_at"].append(outcome.processed_at)
                columns["error_kind"].append(outcome.kind)
                columns["error_message"].append(_text(outcome.message) if outcome.kind else None)
                columns["error_traceback"].append(outcome.traceback and _text(outcome.traceback))
        schema = outcome_schema(self.schema)
        arrays = [results if field.name == "result" else pa.array(columns[field.name], field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _results(self, outcomes: Sequence[FileOutcome]) -> pa.StructArray:
        """The ``result`` column. Converted all at once; where that fails, file by file, to find whose value is wrong."""
        try:
            return self._struct(_in_order(outcomes))
        except _WRONG_VALUES:
            for outcome in outcomes:
                self.check(outcome)
            return self._struct(_in_order(outcomes))

    def check(self, outcome: FileOutcome) -> None:
        """Makes an outcome whose rows do not fit the declared columns a failure that names the column."""
        try:
            self._struct(outcome.rows)
        except _WRONG_VALUES:
            outcome.message = self._explain(outcome.rows)
            outcome.kind, outcome.rows = FailureKind.WRONG_RESULT, ()

    def plain(self, outcome: FileOutcome) -> None:
        """Turns rows into plain values of the declared columns, which any process can unpickle; else as :meth:`check`.

        A value may be of a class that only the process which imported the function knows.
        """
        self.check(outcome)
        outcome.rows = self._struct(outcome.rows).to_pylist()

    def _struct(self, rows: Sequence[Mapping[str, Any] | None]) -> pa.StructArray:
        names = set(self.schema.names)
        for row in rows:
            if row is not None and not row.keys() <= names:
                raise KeyError(next(iter(row.keys() - names)))
        fields = list(self.schema)
        columns = [
            pa.array([None if row is None else row.get(field.name) for row in rows], field.type) for field in fields
        ]
        missing = pa.array([row is None for row in rows], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=fields, mask=missing)

    def _explain(self, rows: Sequence[Mapping[str, Any]]) -> str:
        for number, row in enumerate(rows):
            unknown = sorted(str(name) for name in row.keys() - set(self.schema.names))
            if unknown:
                known = ", ".join(self.schema.names)
                return f"Row {number} has a column {unknown[0]!r} that the result does not declare (it has {known})."
            for field in self.schema:
                try:
                    pa.array([row.get(field.name)], field.type)
                except _WRONG_VALUES as error:
                    value = repr(row.get(field.name))
                    shown = value if len(value) <= 200 else f"{value[:200]}..."
                    return f"Column {field.name!r} of row {number} cannot be {field.type}: {shown} ({error})."
        return "The rows cannot be converted to the declared columns."


#: What PyArrow raises for a value that does not fit its column, and :meth:`Work._struct` for an unknown column.
_WRONG_VALUES = (pa.ArrowException, TypeError, ValueError, OverflowError, KeyError)


class _NotRowsError(Exception):
    """The function returned something that is no row."""


class _TimeLimitError(BaseException):
    """Raised inside a function that runs too long; not an Exception, so that a broad except does not swallow it."""


class _Discard(io.TextIOBase):
    """Where a function's prints go: a worker's output is Spark's, and megabytes of it would fill a log."""

    def write(self, text: str) -> int:
        return len(text)


def _tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[FileTask]:
    names = [field.name for field in dataclasses.fields(FileInfo)]
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in [*names, "commit_version"]}
        for index, version in enumerate(columns["commit_version"]):
            yield FileTask(FileInfo(**{name: columns[name][index] for name in names}), version)


def _in_order(outcomes: Sequence[FileOutcome]) -> list[Mapping[str, Any] | None]:
    """The rows of all outcomes; None for one without rows."""
    rows: list[Mapping[str, Any] | None] = []
    for outcome in outcomes:
        rows += [*outcome.rows] or [None]
    return rows


def _rows(returned: object) -> list[Mapping[str, Any]]:
    """The rows in what a function returned: None, one row, or an iterable of rows."""
    if returned is None:
        return []
    if (row := _row(returned)) is not None:
        return [row]
    if isinstance(returned, Iterable) and not isinstance(returned, str | bytes):
        rows = []
        for item in returned:
            row = _row(item)
            if row is None:
                raise _NotRowsError(
                    f"The function gave a {type(item).__name__} where a row (dict or dataclass) belongs."
                )
            rows.append(row)
        return rows
    raise _NotRowsError(
        f"The function returned a {type(returned).__name__}; give a dict, a dataclass, several of them, or None."
    )


def _row(value: object) -> Mapping[str, Any] | None:
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return None


def _message(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # its __str__ is the user's, too
        return f"{type(error).__name__} (its message cannot be shown)"


def _text(text: str) -> str:
    """``text`` without what UTF-8 cannot hold, such as the halves of characters in undecodable file names."""
    return text.encode("utf-8", "backslashreplace").decode()


def _user_traceback(error: BaseException) -> str:
    """The traceback from the first frame of the user's code on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__ and frames.tb_next is not None:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


@contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    """Interrupts Python code in the block after ``seconds``: with a signal, which only a main thread receives.

    Code that never returns to the interpreter is not interrupted: that is what isolation is for.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise _TimeLimitError

    previous = signal.signal(signal.SIGALRM, interrupt)
    # Again and again: a function that catches the first one in a finally or a bare except meets the next.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
