"""Calls the function on a file, or on a group of files, in this process. Reads its results and errors.

Runs on executors, and in child processes (``child``).
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from volstream.base.model.paths import MAX_OF_SET
from volstream.base.model.units import format_duration
from volstream.base.model.work import FailureKind, total_counts
from volstream.errors import FunctionLoadError, StorageDeniedError, StorageError, StorageThrottledError
from volstream.files.storage.base import ObjectStore
from volstream.functions.concurrency import Gpus, Pace, TimeLimitError, awaited, time_limit
from volstream.functions.file import File, FileSet
from volstream.functions.outcomes import FileOutcome, FileTask
from volstream.functions.output import OutputTarget, OutputWriter
from volstream.functions.printing import Capture, CapturedOutput, ImmediateOutput
from volstream.functions.rejection import FileRejectedError, RetryLater
from volstream.functions.returned import copy_rows, rows_of, rows_of_each
from volstream.functions.rows import Bounds, NotRowsError, RowRequirements, Rows, TooLargeError
from volstream.functions.schema import check_declared, declaration_of, of_declaration
from volstream.functions.signature import batch_size_of, concurrency_of, typed
from volstream.functions.source import FunctionSource
from volstream.functions.steps import Memo, StepTarget, known_code_of

T = TypeVar("T")

#: Instances of function classes, with their origin: a worker loads a model once, then serves batch after
#: batch.
_set_up: dict[str, tuple[object, Callable[..., Any]]] = {}


class Caller:
    """Calls a function on files in this process. The constructor imports it and sets it up once.

    If that fails, every file gets the error as its outcome, because no file is to blame.

    Args:
        arguments: arguments of the function or, for a class, of its constructor.
        timeout_seconds: for each file. Unlimited by default.
        prints: destination of the function's output. A user who watches it may interrupt the function.
        expected: the columns and limits that the rows must meet.
        sets: the function takes sets of files, one per call.
        measures: whether to measure the time and memory of each call.
        outputs: where files in the rows go, if anywhere.
        steps: where the values of steps are kept, or None for a function without steps.

    Attributes:
        batch_size: files per call, or None if the function takes one file, not a list.
        concurrency: number of calls in flight that the function wants. Several run in threads, inside
            :meth:`capturing`.
        returns: DDL that the function declares, to be checked where it can be parsed, which is not in an
            environment.
    """

    def __init__(
        self,
        source: FunctionSource,
        arguments: Mapping[str, str],
        timeout_seconds: float | None,
        prints: Capture | ImmediateOutput,
        expected: RowRequirements,
        *,
        measures: bool = False,
        outputs: OutputTarget | None = None,
        steps: StepTarget | None = None,
        sets: bool = False,
    ) -> None:
        self.batch_size: int | None = None
        self.concurrency = 1
        self.returns: str | None = None
        self._measures = measures
        self._sets = sets
        self._steps = steps
        self._set_up_with: Mapping[str, Any] = {}
        self._prints = prints
        self._watched = isinstance(prints, ImmediateOutput)
        self._expected = expected
        self._writer = OutputWriter(expected.columns, outputs)
        self._source = source
        self._arguments: Mapping[str, Any] = arguments
        self._timeout = timeout_seconds
        self._broken: tuple[str, str | None] | None = None
        try:
            with prints.during():
                self._function = self._prepare()
        except FunctionLoadError as error:
            self._broken = (str(error), None)
        except BaseException as error:  # the user's set-up may raise anything
            if isinstance(error, KeyboardInterrupt) and self._watched:
                raise
            self._broken = (message_of(error), traceback_of(error))
        self._printed = prints.take(())
        if self._broken is not None and self._printed:
            message, trace = self._broken
            self._broken = (message, with_tail(trace, self._printed))

    def __call__(self, group: Sequence[tuple[FileTask, File | FileSet]]) -> list[FileOutcome]:
        """Returns the outcome of each file, in order. :func:`call_each` repeats a failed call on several
        files."""
        outcomes = self._outcomes(group)
        if self._printed:
            outcomes[0].printed = [*self._printed, *outcomes[0].printed]
            self._printed = ()
        return outcomes

    def capturing(self) -> AbstractContextManager[None]:
        """Captures output while the block makes calls in threads."""
        return self._prints.during()

    def _outcomes(self, group: Sequence[tuple[FileTask, File | FileSet]]) -> list[FileOutcome]:
        if self._broken is not None:
            message, trace = self._broken
            return [FileOutcome(task, kind=FailureKind.SET_UP, message=message, traceback=trace) for task, _ in group]
        return self._call(group)

    def _prepare(self) -> Callable[..., Any]:
        function = self._source.load()
        if self._expected.declared and self._expected.columns is not None:
            declared = declaration_of(function)
            if isinstance(declared, str) and self._source.environment is not None:
                self.returns = declared
            else:
                check_declared(of_declaration(declared), self._expected.columns)
        self.batch_size = None if self._sets else batch_size_of(function)
        self.concurrency = concurrency_of(function)
        self._arguments = typed(function, self._arguments)
        if not isinstance(function, type):
            return function
        made_from = (self._source.fingerprint, dict(self._arguments))
        place = f"{self._source.root}:{self._source.module}:{self._source.attribute}"
        if place not in _set_up or _set_up[place][0] != made_from:
            _close(place)  # first, because there may not be enough memory for two
            with self._source.importable():
                instance: Any = function(**self._arguments)
                if inspect.iscoroutinefunction(getattr(instance, "setup", None)):  # __init__ cannot await it
                    awaited(instance.setup())
                _set_up[place] = (made_from, instance)
        self._set_up_with, self._arguments = self._arguments, {}
        return _set_up[place][1]

    def _call(self, group: Sequence[tuple[FileTask, File | FileSet]]) -> list[FileOutcome]:
        tasks, process = [task for task, _ in group], os.getpid()
        memo = self._memo(tasks)
        with measured(memory=True) if self._measures else nullcontext() as cost, memo.active() if memo else nullcontext():
            outcomes = self._called(tasks, [file for _, file in group])
        if os.getpid() != process:
            os._exit(0)  # a forked child that returned: its parent replies
        for outcome, (_, file) in zip(outcomes, group, strict=True):
            outcome.counted = file.counted
        if memo is not None:
            memo.finish(succeeded=outcomes[0].kind is None)
            outcomes[0].counted = total_counts(outcomes[0].counted, memo.counted)
        if cost is not None:
            for outcome in outcomes:
                outcome.seconds = (cost.seconds or 0.0) / len(group)
                outcome.memory = cost.memory
        printed = self._prints.take([task.info.relative_path for task in tasks])
        if printed:
            outcomes[0].printed = printed
            for outcome in outcomes:
                if outcome.kind is not None:
                    outcome.traceback = with_tail(outcome.traceback, printed)
        return outcomes

    def _memo(self, tasks: Sequence[FileTask]) -> Memo | None:
        """Returns the memo of a call, or None for a function without steps. A call on several files only
        counts."""
        if self._steps is None:
            return None
        [task, *others] = tasks
        alone = not others and task.members is None
        paths = [task.info.relative_path, *([task.old_path] if task.old_path else [])]
        return Memo(
            partial(known_code_of, self._source),
            self._steps.store if alone else None,
            paths,
            self._steps.most_bytes,
            self._function,
            self._set_up_with,
        )

    def _called(self, tasks: Sequence[FileTask], files: Sequence[File | FileSet]) -> list[FileOutcome]:
        limit = None if self._timeout is None else self._timeout * len(files)
        each: list[FileOutcome | BaseException]
        try:
            with self._source.importable(), self._prints.during(), time_limit(limit):
                outputs = [self._writer.begin() for _ in files]
                if self.batch_size is None:
                    returned = awaited(self._function(files[0], **self._arguments), copy_rows)
                    entries: list[tuple[Rows, int] | BaseException] = [rows_of(returned, self._expected, outputs[0].stored)]
                else:
                    returned = awaited(self._function(files, **self._arguments), copy_rows)
                    entries = rows_of_each(returned, self._expected, [each.stored for each in outputs])
                each = [
                    entry
                    if isinstance(entry, BaseException)
                    else FileOutcome(task, entry[0], bytes=entry[1], outputs=written.staged)
                    for task, entry, written in zip(tasks, entries, outputs, strict=True)
                ]
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and self._watched:
                raise
            outcomes = [failed(task, error, limit) for task in tasks]
            for outcome in outcomes:
                outcome.of_group = len(tasks) > 1 and outcome.kind not in (FailureKind.RETRY_LATER, FailureKind.STORE)
            return outcomes
        finally:
            for file in files:
                file.close()
        return [
            failed(task, entry, limit) if isinstance(entry, BaseException) else entry
            for task, entry in zip(tasks, each, strict=True)
        ]


@dataclass(frozen=True)
class Work:
    """Everything that an executor needs for a job's files; it is pickled with the query.

    Attributes:
        arguments: arguments of the function or, for a class, of its constructor.
        schema: the result's own columns. If None, they are inferred from the types in the outcomes of a
            :class:`ChildWorker`.
        timeout_seconds: for each file. Unlimited by default.
        isolate: run the function in a child process that may die or be killed without harm. A function in an
            environment always does.
        memory_bytes: memory limit of the function in each worker, or None.
        ahead_bytes: size of contents fetched ahead of the function, in each worker.
        bounds: limits on the results of a file.
        declared: the function declares the columns. Its current declaration must match them.
        measures: measure the time and memory of each call, one call at a time.
        sets: the function takes sets of files.
        concurrency: calls in flight in each worker. By default the function decides. With ``isolate`` it is
            one.
        pace: pace of the calls of all workers, or None.
        owner: process that started the run, or None if unknown.
        outputs: where files in the rows go, if anywhere.
        steps: where the values of steps are kept. Without it, each step is a plain call.
        gpus: GPUs of each worker, or None.
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
    steps: StepTarget | None = None
    gpus: Gpus | None = None

    @property
    def apart(self) -> bool:
        """True if the function runs in a child process."""
        return self.isolate or self.source.environment is not None

    def caller(self, copy_output_to: int | None = None) -> Caller:
        """Imports the function in this process. Returns its caller.

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
            steps=self.steps,
            sets=self.sets,
        )


def call_each(
    call: Callable[[Sequence[T]], list[FileOutcome]], group: Sequence[T], turn: Callable[[], None] = lambda: None
) -> list[FileOutcome]:
    """Calls the function on a group of files. If that call fails as a whole, calls it on each file
    separately.

    Args:
        turn: waits until a call may be made.
    """
    turn()
    outcomes = call(group)
    if not outcomes[0].of_group:
        return outcomes
    retried: list[FileOutcome] = []
    for member, first in zip(group, outcomes, strict=True):
        turn()
        [outcome] = call([member])
        retried.append(outcome.after(first))
    return retried


def call_if_due(call: Callable[[Sequence[FileTask]], list[FileOutcome]], group: Sequence[FileTask]) -> list[FileOutcome]:
    """Calls the function on a set of files, unless it is held back or too large."""
    [task] = group
    if task.held is not None:
        complete = task.held < float("inf")
        why = "The set has just changed (group_quiet)." if complete else "The set is not complete (group_complete)."
        return [FileOutcome(task, kind=FailureKind.HELD, message=why, retry_after=task.held if complete else None)]
    if len(task.files) > MAX_OF_SET:
        why = f"The set has more than {MAX_OF_SET:,} files, which no function can take at once."
        return [FileOutcome(task, kind=FailureKind.TOO_LARGE, message=why)]
    return call(group)


@atexit.register
def close_all() -> None:
    """Closes all instances that were set up. Runs at the end of a process that is not killed."""
    for place in list(_set_up):
        _close(place)


def _close(place: str) -> None:
    """Calls the ``close`` method, if any, of an instance that is no longer needed. Ignores its errors."""
    _, instance = _set_up.pop(place, (None, None))
    close = getattr(instance, "close", None)
    if callable(close):
        with suppress(Exception):
            awaited(close())


def with_tail(trace: str | None, printed: Sequence[CapturedOutput]) -> str:
    """Returns a traceback followed by the last printed lines."""
    return "\n".join([*([trace.rstrip("\n")] if trace else []), printed[-1].tail()])


@dataclass
class CallCost:
    """The cost of a call.

    Attributes:
        seconds: duration, if measured.
        memory: bytes by which the process's resident memory grew at its peak, if measured. Unknown on some
            systems.
    """

    seconds: float | None = None
    memory: int | None = None


@contextmanager
def measured(*, memory: bool) -> Iterator[CallCost]:
    """Measures the block, even if it raises.

    Args:
        memory: also measure memory. This takes some tenths of a millisecond, or more after a call that freed
            much, which does not count towards the block. Linux only, where a process can reset its own peak.
    """
    cost = CallCost()
    before = _reset_peak() if memory else None
    began = time.perf_counter()
    try:
        yield cost
    finally:
        cost.seconds = time.perf_counter() - began
        if before is not None:
            cost.memory = max(0, _status("VmHWM") - before)


def _reset_peak() -> int | None:
    """Makes the current resident memory the peak, and returns it, or None if the system does not support
    that."""
    # Memory freed by earlier calls would serve the next one, which would seem to need none. musl keeps no
    # freed memory, and lacks this function.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except OSError:  # not permitted in some containers
        return None


def _status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


# Determines the effect of a call's error on its file. Runs on executors.

#: A file that a store refused to serve for now is retried after this time, as if its function had asked for
#: it.
_THROTTLED_SECONDS = 30.0

#: Modules between a call and the user's code in a traceback.
_BETWEEN = {
    "volstream.functions.call",
    "volstream.functions.concurrency",
    "volstream.functions.output",
    "volstream.functions.rows",
    "concurrent.futures._base",
}


def failed(task: FileTask, error: BaseException, seconds: float | None) -> FileOutcome:
    """Returns the outcome of a file whose function raised an error, or returned one in place of the file's
    rows.

    Args:
        seconds: the time limit of the call.
    """
    outcome = FileOutcome(task)
    match error:
        case TimeLimitError():
            outcome.kind = FailureKind.TIMED_OUT
            outcome.message = f"The function ran longer than {format_duration(seconds or 0)}."
        case NotRowsError():
            outcome.kind, outcome.message = FailureKind.WRONG_RESULT, str(error)
        case TooLargeError():
            outcome.kind, outcome.message = FailureKind.TOO_LARGE, str(error)
        case RetryLater() if (after := _delay_of(error)) is not None:
            outcome.kind, outcome.message, outcome.retry_after = FailureKind.RETRY_LATER, _text_of(error), after
        case FileRejectedError():
            outcome.kind, outcome.message, outcome.new_columns = error.kind, str(error), error.new_columns
        case StorageThrottledError():
            outcome.kind, outcome.message, outcome.retry_after = FailureKind.STORE, str(error), _THROTTLED_SECONDS
        case StorageDeniedError():
            outcome.kind, outcome.message = FailureKind.DENIED, str(error)
        case StorageError():
            outcome.kind, outcome.message = FailureKind.UNREADABLE, str(error)
        case _ if (cause := _store_error(error)) is not None:  # wrapped by the function
            outcome = failed(task, cause, seconds)
            outcome.traceback = traceback_of(error)
        case _:  # the function may raise anything: SystemExit, CancelledError
            outcome.kind = _kind(error)
            outcome.message, outcome.traceback = message_of(error), traceback_of(error)
    return outcome


def _store_error(error: BaseException) -> StorageError | None:
    """Returns the store's error that led to this error, or None."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, StorageError):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return None


def message_of(error: BaseException) -> str:
    """Returns an error's class and message."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # __str__ is user code, too
        return f"{type(error).__name__} (its message cannot be shown)"


def traceback_of(error: BaseException) -> str:
    """Returns the traceback starting at the first frame of the user's code."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in _BETWEEN and frames.tb_next is not None:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, MemoryError):
        return FailureKind.OUT_OF_MEMORY
    return FailureKind.CODE if _is_code_error(error) else FailureKind.RAISED


def _is_code_error(error: BaseException) -> bool:
    """Returns whether a module cannot be found or compiled, which affects all files permanently."""
    if isinstance(error, SyntaxError):  # in text read from the file, the file is to blame
        return error.filename is not None and error.filename.endswith(".py") and os.path.isfile(error.filename)
    return isinstance(error, ImportError)


def _delay_of(error: RetryLater) -> float | None:
    """Returns the seconds after which a function asks to be called again, or None if ``after`` is invalid."""
    try:
        after = float(error.after)
    except Exception:  # noqa: BLE001  # a subclass is user code
        return None
    return after if 0 < after < float("inf") else None


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # see message_of
        return message_of(error)
