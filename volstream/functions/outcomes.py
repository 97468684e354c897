"""The outcome of each file: its rows or its error. Converts rows to Arrow and checks them against the
declared columns.

Runs on executors. ``jobs.run`` uses the outcomes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute  # taking rows imports it, which fails while a function's memory is limited

from volstream.base.model.paths import FileInfo
from volstream.base.model.work import FailureKind, total_counts
from volstream.functions.output import StagedOutput
from volstream.functions.printing import CapturedOutput
from volstream.functions.rows import ArrowRows, Rows
from volstream.functions.types import convert
from volstream.functions.types.kinds import is_number, name_of


@dataclass(frozen=True, slots=True)
class FileTask:
    """One file of a batch, as planned, or a set of files, whose path is the key.

    Attributes:
        members: the files of a set, by path, or None for a single file.
        held: seconds after which a held set is checked again, infinite if it is incomplete. None if it is
            due.
        old_path: the former path of a moved file.
    """

    info: FileInfo
    commit_version: int
    members: Sequence[FileInfo] | None = None
    held: float | None = None
    old_path: str | None = None

    @property
    def files(self) -> Sequence[FileInfo]:
        """The files of the call, or no files if there is no call."""
        if self.held is not None:
            return []
        return [self.info] if self.members is None else self.members


@dataclass(slots=True)
class FileOutcome:
    """The outcome of one file: ``rows``, or ``kind`` with ``message`` and ``traceback``.

    Attributes:
        bytes: size of the rows' values.
        printed: output during the call. For a call on several files, in the first file's outcome.
        new_columns: DDL of columns that the file has and the result lacks, if it failed because of them.
        files_per_call: number of files that the function takes.
        of_group: the call failed for all files of a group, and this one may not be to blame.
        retry_after: seconds after which the function asked to be called again.
        counted: see :meth:`File.count`.
        seconds: duration of the call, if measured. For a call on several files, the file's share.
        memory: peak memory of the call in bytes, if measured.
        types: of the rows' columns, if they are to be inferred and there are rows.
        outputs: the files that the rows name.
        confirmed: the function has read the planned version, according to the store's response with the
            content.
    """

    task: FileTask
    rows: Rows = ()
    kind: FailureKind | None = None
    message: str = ""
    traceback: str | None = None
    processed_at: datetime = dataclasses.field(default_factory=lambda: datetime.now(UTC))
    bytes: int = 0
    printed: Sequence[CapturedOutput] = ()
    new_columns: str | None = None
    of_group: bool = False
    files_per_call: int = 1
    retry_after: float | None = None
    counted: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seconds: float | None = None
    memory: int | None = None
    types: Mapping[str, pa.DataType] | None = None
    outputs: Sequence[StagedOutput] = ()
    confirmed: bool = False

    def after(self, earlier: FileOutcome) -> FileOutcome:
        """Returns this outcome with the output and counts of an earlier call for the same file."""
        self.printed = [*earlier.printed, *self.printed]
        self.counted = total_counts(earlier.counted, self.counted)
        return self


def converted(outcomes: Sequence[FileOutcome], columns: pa.Schema) -> list[pa.Array]:
    """Converts the rows of outcomes, in order, except Arrow's. A file whose rows do not fit the columns
    becomes a failure."""
    try:
        return _converted(outcomes, columns)
    except _WRONG_VALUES:
        for outcome in outcomes:
            check(outcome, columns)
        return _converted(outcomes, columns)


def check(outcome: FileOutcome, columns: pa.Schema) -> None:
    """Turns an outcome whose rows do not fit the declared columns into a failure that names the column."""
    if isinstance(outcome.rows, ArrowRows):
        return  # checked when they were added
    try:
        _converted([outcome], columns)
    except _WRONG_VALUES:
        outcome.message = _explain(outcome.rows, columns)
        outcome.kind, outcome.rows = FailureKind.WRONG_RESULT, ()


def make_plain(outcome: FileOutcome, columns: pa.Schema) -> None:
    """Converts rows to plain values of the declared columns, which any process can unpickle. Otherwise like
    :func:`check`.

    The class of a value may exist only in the process that imported the function.
    """
    arrays = converted([outcome], columns)
    if not isinstance(outcome.rows, ArrowRows):
        outcome.rows = pa.RecordBatch.from_arrays(arrays, schema=columns).to_pylist()


def _converted(outcomes: Sequence[FileOutcome], columns: pa.Schema) -> list[pa.Array]:
    rows = [row for outcome in outcomes if not isinstance(outcome.rows, ArrowRows) for row in outcome.rows]
    names = frozenset(columns.names)
    for row in rows:
        if not row.keys() <= names:
            raise KeyError(next(iter(row.keys() - names)))
    return [convert.array([row.get(field.name) for row in rows], field.type) for field in columns]


def _explain(rows: Sequence[Mapping[str, Any]], columns: pa.Schema) -> str:
    for number, row in enumerate(rows):
        unknown = sorted(str(name) for name in row.keys() - {*columns.names})
        if unknown:
            declared = ", ".join(columns.names)
            return f"Row {number} has an undeclared column {unknown[0]!r} (the result declares {declared})."
        for field in columns:
            try:
                convert.array([row.get(field.name)], field.type)
            except _WRONG_VALUES as error:
                value = repr(row.get(field.name))
                shown = value if len(value) <= 200 else f"{value[:200]}..."
                why = _reason(error, row.get(field.name), field.type)
                return f"Column {field.name!r} of row {number} cannot be {name_of(field.type)}: {shown} ({why})."
    return "The rows cannot be converted to the declared columns."


def _reason(error: Exception, value: Any, kind: pa.DataType) -> str:
    """Returns the error's text, or the value's class where PyArrow reports only its own types."""
    from_arrow = isinstance(error, pa.ArrowException | TypeError)
    if not from_arrow or pa.types.is_nested(kind) or (is_number(kind) and isinstance(value, int | float | Decimal)):
        return str(error)
    return f"it is of type {type(value).__name__}"


#: The errors for values that do not fit a column, and for an unknown column.
_WRONG_VALUES = (*convert.WRONG_VALUES, KeyError)
