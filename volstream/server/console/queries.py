"""Queries from the console's SQL page: one at a time, read-only, with few rows, short values and a time
limit."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volstream.api.objects.sql import run_statement
from volstream.api.session import Session
from volstream.base.model.units import format_duration, format_size
from volstream.base.model.work import ActionState, AuditEntry
from volstream.base.threads import Stop
from volstream.catalog.audit import Audit
from volstream.errors import CatalogError, InvalidStateError
from volstream.functions.types.values import document_values
from volstream.ops.inspection.tables import cut, sized
from volstream.spark.errors import as_sql_errors
from volstream.spark.frames import batches
from volstream.sql.statement import one_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_MAX_SECONDS = 60.0

#: Maximum characters of a shown value. Longer values stay in Spark, and binary values are replaced by their
#: sizes.
_MAX_VALUE = 1000

#: Number of queries that are remembered.
_RECENT = 20

#: Maximum bytes of fetched rows.
_MAX_BYTES = 32 << 20


@dataclass(frozen=True)
class QueryResult:
    """The first rows of a query. ``more``: there are more; ``cut``: other parts that are not shown."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    more: bool
    cut: str | None
    seconds: float


class Queries:
    """Runs the queries of all pages, in a thread whose session Spark keeps warm.

    Args:
        max_seconds: a longer query is cancelled.
        max_bytes: of rows, after which no more are fetched.
    """

    def __init__(self, session: Session, max_seconds: float = _MAX_SECONDS, max_bytes: int = _MAX_BYTES) -> None:
        self._session = session
        self._max_seconds, self._max_bytes = max_seconds, max_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="console-sql")
        self._busy = threading.Lock()
        self._spark: Any = None
        #: The newest queries of all pages since the daemon started, newest first.
        self.recent: deque[str] = deque(maxlen=_RECENT)

    def run(self, text: str, limit: int) -> QueryResult:
        """Returns columns and the first rows of a query.

        Raises:
            SqlError: it is not a query, or is invalid.
            InvalidStateError: another query is running, this one took too long, or the console is stopping.
            EngineError: Spark is not available.
        """
        statement = one_query(text)
        if not self._busy.acquire(blocking=False):
            raise InvalidStateError("Another query is running.", "Try again when it has finished.")
        if text in self.recent:
            self.recent.remove(text)
        self.recent.appendleft(text)
        try:
            working: Future[QueryResult] = self._thread.submit(self._run, statement, limit)
        except RuntimeError:  # the thread has ended
            self._busy.release()
            raise InvalidStateError("The console is stopping.") from None
        working.add_done_callback(lambda _: self._busy.release())
        try:
            return working.result(self._max_seconds)
        except FutureTimeoutError:
            threading.Thread(target=self._interrupt, daemon=True).start()  # the engine may not answer
            raise InvalidStateError(
                f"The query took longer than {format_duration(self._max_seconds)} and was cancelled.", "Use volstream sql."
            ) from None

    @property
    def is_busy(self) -> bool:
        """Whether a query is running."""
        return self._busy.locked()

    def stop(self) -> None:
        """Accepts no more queries, and ends a running one. Idempotent."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self.is_busy:
            self._interrupt()

    def _interrupt(self) -> None:
        if self._spark is not None:
            with suppress(Exception):  # the engine may have ended
                self._spark.interruptAll()

    def _run(self, statement: str, limit: int) -> QueryResult:
        began = time.monotonic()
        with self._session.home.gateway.explaining(), as_sql_errors():
            self._spark = self._session.spark
            frame = run_statement(self._session, statement, read_only=True)
            parts, is_full = _take_bytes(batches(_bounded(frame.limit(limit + 1))), self._max_bytes)
            names = frame.columns
        cells = [row for part in parts for row in zip(*map(document_values, part.columns), strict=True)]
        rows = [[_value(cell) for cell in row] for row in cells[:limit]]
        notes = []
        if any(isinstance(cell, dict) and cell["beginning"] is not None for row in cells[:limit] for cell in row):
            notes.append(f"Values longer than {_MAX_VALUE} characters are truncated.")
        if is_full:
            notes.append(f"Only the first {format_size(self._max_bytes)} of rows are shown.")
        seconds = round(time.monotonic() - began, 3)
        return QueryResult(names, rows, len(cells) > limit or is_full, " ".join(notes) or None, seconds)


def _take_bytes(parts: Iterator[pa.Table], max_bytes: int) -> tuple[Sequence[pa.Table], bool]:
    """Returns the first parts up to a number of bytes, and whether there are more bytes."""
    taken_parts: list[pa.Table] = []
    for part in parts:
        taken_parts.append(part)
        if sum(table.nbytes for table in taken_parts) > max_bytes:
            return taken_parts, True
    return taken_parts, False


def _bounded(frame: DataFrame) -> DataFrame:
    """Returns a frame with small values: values of types without a limit become structs that :func:`_value`
    reads."""
    named = frame.toDF(*(f"c{at}" for at in range(len(frame.columns))))
    return named.selectExpr(*(_expression(column.name, column.dataType) for column in named.schema))


def _expression(name: str, kind: DataType) -> str:
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType, VariantType

    if isinstance(kind, BinaryType):
        return f"named_struct('value', NULL, 'beginning', NULL, 'size', octet_length({name})) AS {name}"
    if not isinstance(kind, StringType | ArrayType | MapType | StructType | VariantType):
        return name
    text = f"CAST({name} AS STRING)"
    is_long = f"length({text}) > {_MAX_VALUE}"
    return (
        f"named_struct('value', IF({is_long}, NULL, {name}), 'beginning', IF({is_long}, left({text}, {_MAX_VALUE}), NULL), "
        f"'size', length({text})) AS {name}"
    )


def _value(cell: Any) -> Any:
    """Returns a value for the page."""
    if not isinstance(cell, dict):
        return cell
    if cell["beginning"] is not None:
        return cut(cell["beginning"], cell["size"])
    return cell["value"] if cell["value"] is not None or cell["size"] is None else sized(cell["size"])


# A running task, for the function that performs it: it reports progress here, and is told here to end.
#
# ``daemon.tasks`` starts tasks and records their results.

#: Interval at which progress is written to the catalog.
_PROGRESS_SECONDS = 1.0

#: Time between two interruptions of a task that must end.
_INTERRUPT_SECONDS = 0.5

CANCELLED = "It was cancelled."


class Work:
    """A running task. Thread-safe.

    Attributes:
        stop: set when it must end.
        cancelled: a user cancelled it. Otherwise the daemon stops.
        why: the reason for its end.
        plan_id: see :class:`AuditEntry`.
        outcome: its findings, for its page: any value with a document.
        ended: its result, as columns of its entry, or None while it runs.
    """

    def __init__(self, task: AuditEntry, audit: Audit) -> None:
        self.task = task
        self.stop = Stop()
        self.cancelled = False
        self.why: str | None = None
        self.plan_id = task.plan_id
        self.outcome: Any = None
        self.ended: dict[str, Any] | None = None
        self._audit = audit
        self._reported: tuple[ActionState, str] | None = None
        self._reported_at = 0.0

    def waits(self, why: str) -> None:
        """Reports that it waits for other tasks."""
        self._report(ActionState.QUEUED, why)

    def observe(self, done: int | None, files: int | None, step: str = "") -> None:
        """Reports progress."""
        self._report(ActionState.RUNNING, step, done=done, files=files)

    def planned(self, plan_id: str) -> None:
        """Records the plan of a replay, with which another daemon can continue."""
        if self.plan_id != plan_id:
            self._audit.note(self.task.id, plan_id=plan_id)
            self.plan_id = plan_id

    def _report(self, state: ActionState, step: str, **progress: int | None) -> None:
        now = time.monotonic()
        if self._reported != (state, step) or now - self._reported_at > _PROGRESS_SECONDS:
            self._reported, self._reported_at = (state, step), now
            with suppress(CatalogError):  # the next report contains as much
                self._audit.note(self.task.id, state=state, step=step, **progress)

    def cancel(self) -> None:
        """Ends it on a user's request. Idempotent."""
        self.cancelled = True
        self.end(CANCELLED)

    def end(self, why: str) -> None:
        """Ends it. Idempotent: the first reason stays."""
        if self.why is None:
            self.why = why
        self.stop.set()


#: Performs a task and returns the result in a sentence.
TaskBody = Callable[[Work], str]
