"""The outcome of each file (its rows or its error, never both), converted to Arrow and checked against the declared columns.

Runs on executors. ``jobs.run`` uses the outcomes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from json import dumps  # functions may replace it in its module
from typing import Any

import pyarrow as pa
import pyarrow.compute  # arrays with a mask import it, which fails while a function's memory is limited

from volstream.base.model.paths import FileInfo
from volstream.base.model.work import FailureKind, total_counts
from volstream.functions.output import StagedOutput
from volstream.functions.printing import CapturedOutput
from volstream.functions.rows import ArrowRows, Rows
from volstream.functions.types import convert


@dataclass(frozen=True, slots=True)
class FileTask:
    """One file of a batch, as planned; or a set of files, whose path is the key.

    Attributes:
        members: the files of a set, by path; None: a single file.
        held: seconds after which a set is to be looked at again, infinite if it is not complete; None: it is due.
    """

    info: FileInfo
    commit_version: int
    members: Sequence[FileInfo] | None = None
    held: float | None = None

    @property
    def files(self) -> Sequence[FileInfo]:
        """The files that a call gets; none, if there is no call."""
        if self.held is not None:
            return []
        return [self.info] if self.members is None else self.members


@dataclass(slots=True)
class FileOutcome:
    """The outcome of one file: ``rows``, or ``kind`` with ``message`` and ``traceback``.

    Attributes:
        bytes: size of the rows' values.
        printed: output during the call; for a call on several files, in the first file's outcome.
        new_columns: DDL of columns that the file has and the result lacks, if it failed because of them.
        files_per_call: number of files that the function takes.
        of_group: the call failed for all files of a group, of which this may not be to blame.
        retry_after: seconds after which the function asked to be called again.
        counted: see :meth:`File.count`.
        seconds: duration of the call; for a call on several files, the file's share; None: not measured.
        memory: peak of the memory that the call needed, in bytes; None: not measured.
        types: of the columns of the rows, if they are to be inferred and there are rows.
        outputs: the files that the rows name.
        confirmed: the function has read the planned version, as the store said with the content.
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
        """Returns this outcome with what an earlier call for the same file printed and counted."""
        self.printed = [*earlier.printed, *self.printed]
        self.counted = total_counts(earlier.counted, self.counted)
        return self


def outcome_schema(result: pa.Schema) -> pa.Schema:
    """Returns the columns of staged outcomes for a function with these result columns; see :meth:`OutcomeCodec.encode`."""
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
            pa.field("printed", pa.string()),
            pa.field("new_columns", pa.string()),
            pa.field("retry_after", pa.float64()),
            pa.field("counted", pa.string()),
            pa.field("files_per_call", pa.int64()),
            pa.field("seconds", pa.float64()),
            pa.field("memory", pa.int64()),
            pa.field("outputs", pa.string()),
        ]
    )


class OutcomeCodec:
    """Converts outcomes to Arrow. A file whose rows do not fit the declared columns becomes a failure with an explanation.

    Args:
        result: the function's own columns.
    """

    def __init__(self, result: pa.Schema) -> None:
        self._result = result
        self._names = frozenset(result.names)
        self._schema = outcome_schema(result)

    def encode(self, outcomes: Sequence[FileOutcome]) -> pa.RecordBatch:
        """Returns rows of :func:`outcome_schema`: one per result row; for a failed file or one without rows, a single row with
        NULL as ``result``. A file's first row has the file's number of rows in ``rows``, its counts and outputs as JSON, and
        its cost; these are NULL in the others.

        For outcomes with Arrow rows, use :meth:`encode_arrow`.
        """
        results = self._results(outcomes)
        columns: dict[str, list[Any]] = {name: [] for name in self._schema.names if name != "result"}
        for outcome in outcomes:
            info, more = outcome.task.info, max(1, len(outcome.rows)) - 1
            failed = outcome.kind is not None
            for name, value in (
                ("path", info.relative_path),
                ("file_version", info.version),
                ("commit_version", outcome.task.commit_version),
                ("processed_at", outcome.processed_at),
                ("error_kind", outcome.kind),
                ("error_message", _text(outcome.message) if failed else None),
                ("error_traceback", outcome.traceback and _text(outcome.traceback)),
                ("new_columns", outcome.new_columns),
                ("retry_after", outcome.retry_after),
            ):
                columns[name] += [value] * (more + 1)
            columns["rows"] += [len(outcome.rows), *[None] * more]
            columns["printed"] += [None] * (more + 1)
            columns["files_per_call"] += [outcome.files_per_call, *[None] * more]
            columns["counted"] += [_counted(outcome), *[None] * more]
            columns["seconds"] += [outcome.seconds, *[None] * more]
            columns["memory"] += [outcome.memory, *[None] * more]
            listed = dumps(outcome.outputs) if outcome.outputs and not failed else None
            columns["outputs"] += [listed, *[None] * more]
        arrays = [results if field.name == "result" else pa.array(columns[field.name], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def encode_arrow(self, outcome: FileOutcome, rows: ArrowRows) -> Iterator[pa.RecordBatch]:
        """Yields the result of :meth:`encode` for one outcome with Arrow rows, batch by batch."""
        info = outcome.task.info
        once: dict[str, Any] = {
            "rows": len(rows),
            "counted": _counted(outcome),
            "files_per_call": outcome.files_per_call,
            "seconds": outcome.seconds,
            "memory": outcome.memory,
        }
        same = {
            "path": info.relative_path,
            "file_version": info.version,
            "commit_version": outcome.task.commit_version,
            "processed_at": outcome.processed_at,
        }
        for batch in rows.batches():
            count = batch.num_rows
            arrays = {name: pa.repeat(pa.scalar(value, self._schema.field(name).type), count) for name, value in same.items()}
            arrays["result"] = pa.StructArray.from_arrays(batch.columns, fields=list(self._result))
            for name, value in once.items():
                arrays[name] = pa.array([value, *[None] * (count - 1)], self._schema.field(name).type)
            once = dict.fromkeys(once)
            columns = [arrays[field.name] if field.name in arrays else pa.nulls(count, field.type) for field in self._schema]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def encode_printed(self, entries: Sequence[str]) -> pa.RecordBatch:
        """Returns rows of :func:`outcome_schema` that belong to no file and contain only printed output."""
        arrays = [pa.array(entries if field.name == "printed" else [None] * len(entries), field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def check(self, outcome: FileOutcome) -> None:
        """Turns an outcome whose rows do not fit the declared columns into a failure that names the column."""
        if isinstance(outcome.rows, ArrowRows):
            return  # checked when they were added
        try:
            self._struct(outcome.rows)
        except _WRONG_VALUES:
            outcome.message = self._explain(outcome.rows)
            outcome.kind, outcome.rows = FailureKind.WRONG_RESULT, ()

    def plain(self, outcome: FileOutcome) -> None:
        """Converts rows to plain values of the declared columns, which any process can unpickle; otherwise like :meth:`check`.

        The class of a value may exist only in the process that imported the function.
        """
        self.check(outcome)
        if not isinstance(outcome.rows, ArrowRows):
            outcome.rows = self._struct(outcome.rows).to_pylist()

    def _results(self, outcomes: Sequence[FileOutcome]) -> pa.StructArray:
        """Returns the ``result`` column. Converts everything at once; if that fails, file by file to find the wrong value."""
        try:
            return self._struct(_in_order(outcomes))
        except _WRONG_VALUES:
            for outcome in outcomes:
                self.check(outcome)
            return self._struct(_in_order(outcomes))

    def _struct(self, rows: Sequence[Mapping[str, Any] | None]) -> pa.StructArray:
        for row in rows:
            if row is not None and not row.keys() <= self._names:
                raise KeyError(next(iter(row.keys() - self._names)))
        fields = list(self._result)
        columns = [convert.array([None if row is None else row.get(field.name) for row in rows], field.type) for field in fields]
        missing = pa.array([row is None for row in rows], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=fields, mask=missing)

    def _explain(self, rows: Sequence[Mapping[str, Any]]) -> str:
        for number, row in enumerate(rows):
            unknown = sorted(str(name) for name in row.keys() - self._names)
            if unknown:
                declared = ", ".join(self._result.names)
                return f"Row {number} has an undeclared column {unknown[0]!r} (the result declares {declared})."
            for field in self._result:
                try:
                    convert.array([row.get(field.name)], field.type)
                except _WRONG_VALUES as error:
                    value = repr(row.get(field.name))
                    shown = value if len(value) <= 200 else f"{value[:200]}..."
                    return f"Column {field.name!r} of row {number} cannot be {field.type}: {shown} ({error})."
        return "The rows cannot be converted to the declared columns."


#: The errors of values that do not fit a column, and :class:`OutcomeCodec`'s for an unknown column.
_WRONG_VALUES = (*convert.WRONG_VALUES, KeyError)


def _in_order(outcomes: Sequence[FileOutcome]) -> list[Mapping[str, Any] | None]:
    """Returns the rows of all outcomes; None for an outcome without rows."""
    rows: list[Mapping[str, Any] | None] = []
    for outcome in outcomes:
        assert not isinstance(outcome.rows, ArrowRows), "these are encoded batch by batch"
        rows += [*outcome.rows] or [None]
    return rows


def _counted(outcome: FileOutcome) -> str | None:
    return dumps(outcome.counted) if outcome.counted else None


def _text(text: str) -> str:
    """Escapes characters that UTF-8 cannot encode, such as the surrogates of undecodable file names."""
    return text.encode("utf-8", "backslashreplace").decode()
