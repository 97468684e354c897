"""The rows that a function returns for a file: a list, or Arrow batches, which need no Python objects.

Outcomes are converted for staging in ``outcomes``.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import tempfile
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import IO, Any, TypeAlias, TypeGuard

import pyarrow as pa

from volstream.base.model.text import shortened
from volstream.base.model.units import format_size
from volstream.functions.types import convert
from volstream.functions.types.kinds import name_of
from volstream.functions.types.values import NoColumnError, plain

# Limits on a file's results: its rows, and its output during the call. Pure.

#: Assumed size of a value without a length, such as a number or a time.
_VALUE_BYTES = 8


@dataclass(frozen=True)
class Bounds:
    """Limits for one file, and for a batch's stored output.

    Attributes:
        row_bytes: size of a row's values. Each slot of the engine holds several copies of a row at once.
        file_bytes: size of all rows of a file, which stay in the worker's memory until the last row is
            complete.
        log_file_bytes: size of the last lines that are kept of a call's output.
        log_batch_bytes: size of the output that is kept of a batch, per worker and in total.
        row_rule: the origin of ``row_bytes``, for messages.
    """

    row_bytes: int = 64 << 20
    file_bytes: int = 512 << 20
    log_file_bytes: int = 16 << 10
    log_batch_bytes: int = 1 << 20
    row_rule: str = "setting result_row_bytes"


class TooLargeError(Exception):
    """The rows of a file exceed the limits."""


class RowMeter:
    """Measures a file's rows one by one."""

    def __init__(self, bounds: Bounds) -> None:
        self.bytes = 0
        self._bounds = bounds
        self._rows = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Counts a row. Raises TooLargeError."""
        size = sum(map(size_of, row.values()))
        if size > self._bounds.row_bytes:
            raise TooLargeError(
                f"Row {self._rows} has {format_size(size)} of values, but a row may have at most "
                f"{format_size(self._bounds.row_bytes)} ({self._bounds.row_rule})."
            )
        self._rows += 1
        self.bytes += size
        if self.bytes > self._bounds.file_bytes:
            raise TooLargeError(
                f"The first {self._rows} rows have {format_size(self.bytes)} of values, but the rows of a file may have at most "
                f"{format_size(self._bounds.file_bytes)} (setting result_file_bytes)."
            )


def size_of(value: object) -> int:
    """Returns the approximate size of a value in a table. Exact for text and bytes."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if value is None or isinstance(value, int | float):  # first, as the most frequent values
        return _VALUE_BYTES
    if isinstance(value, bytes | bytearray | memoryview):
        return memoryview(value).nbytes
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], int | float):
            return _VALUE_BYTES * len(value)  # a vector: not inspected number by number
        return sum(map(size_of, value))
    if isinstance(value, Mapping):
        return sum(map(size_of, value)) + sum(map(size_of, value.values()))
    size = getattr(value, "nbytes", _VALUE_BYTES)  # arrays have nbytes
    return size if isinstance(size, int) else _VALUE_BYTES


# Classes whose instances are rows: dataclasses, NamedTuples, TypedDicts, and pydantic models.
#
# pydantic is never imported here: a function that returns pydantic models has already imported it.

#: Types of plain values.
LEAVES = frozenset({str, int, float, bool, bytes, type(None), Decimal, datetime, date})


def is_row_class(kind: Any) -> TypeGuard[type]:
    """Returns whether instances of a class are rows, and the class declares their columns."""
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or _is_named_tuple(kind) or typing.is_typeddict(kind) or _is_model(kind)
    )


@functools.lru_cache(maxsize=256)  # changed code is imported as new classes
def fields_of(kind: Any) -> Sequence[str]:
    """Returns the names of a row class's columns, in order, without fields that pydantic excludes."""
    if _is_model(kind):
        names = [*kind.model_fields, *kind.model_computed_fields]
        declared = kind.model_fields
    elif dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        declared = getattr(kind, "__pydantic_fields__", {})
    else:
        return list(kind._fields if _is_named_tuple(kind) else hints_of_fields(kind))
    return [name for name in names if name not in declared or not declared[name].exclude]


def row_of(value: object) -> Mapping[str, Any] | None:
    """Converts an instance of a row class, or a mapping, to a mapping of plain values. Returns None for other
    values.

    Nothing in the result changes when the function reuses its lists, dicts, arrays and buffers for another
    row.

    Raises:
        NoColumnError: it has a value that no column can hold. The message names the column.
    """
    row: Mapping[str, Any]
    if isinstance(value, Mapping):
        row = value
    elif _is_named_tuple(type(value)):
        row = value._asdict()  # type: ignore[attr-defined]  # of a NamedTuple
    elif dataclasses.is_dataclass(type(value)) or _is_model(type(value)):
        kind: Any = type(value)
        row = {name: getattr(value, name) for name in fields_of(kind)} | _extra(value)
    else:
        return None
    # Converting values recursively is ten times slower.
    if {*map(type, row), *map(type, row.values())} <= LEAVES:
        return {**row}
    plain_row = {_to_plain(name, name): _to_plain(item, name) for name, item in row.items()}
    if len(plain_row) < len(row):
        raise NoColumnError(f"Two keys of a dict are stored as the same value: {shortened([*row])}.")
    return plain_row


def _extra(value: Any) -> dict[str, Any]:
    """Returns the fields of a pydantic instance that its class does not declare."""
    if getattr(type(value), "__pydantic_config__", {}).get("extra") == "allow":  # a pydantic dataclass
        declared = {field.name for field in dataclasses.fields(value)}
        return {name: item for name, item in vars(value).items() if name not in declared}
    return getattr(value, "model_extra", None) or {}


def _to_plain(value: Any, name: object) -> Any:
    """Replaces instances of row classes in a value by mappings, and other values by plain values."""
    if type(value) in LEAVES:
        return value
    if type(value) in (list, tuple):
        return [*value] if {*map(type, value)} <= LEAVES else [_to_plain(item, name) for item in value]
    row = row_of(value)
    if row is not None:
        return row
    try:
        converted = plain(value)
    except NoColumnError as error:
        raise NoColumnError(f"The column {name!r} has a {error}.") from None
    return converted if type(converted) is type(value) else _to_plain(converted, name)


def hints_of_fields(kind: type) -> Mapping[str, Any]:
    """Returns the annotations of a row class's columns. Raises the errors of their resolution."""
    if not _is_model(kind):
        return typing.get_type_hints(kind)
    model: Any = kind
    model.model_rebuild()
    # From pydantic, which resolves the type variables of generic models.
    declared = {name: field.annotation for name, field in model.model_fields.items()}
    computed = {name: field.return_type for name, field in model.model_computed_fields.items()}
    return typing.get_type_hints(types.SimpleNamespace(__annotations__=declared | computed))


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _is_model(kind: type) -> bool:
    """Returns whether it is a pydantic model, version 2."""
    return isinstance(getattr(kind, "model_fields", None), Mapping) and hasattr(kind, "model_validate")


#: A file's Arrow batches stay in memory up to this size. A worker may hold the batches of some 60 unconfirmed
#: files.
_IN_MEMORY_BYTES = 4 << 20


class NotRowsError(Exception):
    """A function returned something other than rows of the declared columns."""


@dataclass(frozen=True)
class RowRequirements:
    """The requirements on a function's rows.

    Attributes:
        columns: the result's own columns, or None for any columns, which are inferred.
        bounds: limits on the rows of a file.
        declared: the function itself declares the columns. Its current declaration must match them.
    """

    columns: pa.Schema | None
    bounds: Bounds
    declared: bool = False


class ArrowRows:
    """The rows of one file as Arrow batches, in memory or, if there are many, in a temporary file.

    Rows count only once the function has returned and its file is unchanged. Until then they wait here. Can
    be pickled once, for another process on this machine.

    Attributes:
        columns: of the batches.
    """

    def __init__(self, columns: pa.Schema, row_bytes: int, row_rule: str) -> None:
        self.nbytes = 0
        self.columns = columns
        self._row_bytes, self._row_rule = row_bytes, row_rule
        self._rows = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def __len__(self) -> int:
        return self._rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds rows. Raises NotRowsError, TooLargeError."""
        fitted = convert.copied(self._fit(batch))
        if fitted.nbytes > self._row_bytes:
            self._check_rows(fitted)
        self._rows += fitted.num_rows
        self.nbytes += fitted.nbytes
        self._pending.append(fitted)
        self._pending_bytes += fitted.nbytes
        if self._pending_bytes > _IN_MEMORY_BYTES:
            self._spill()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows once, and frees them."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._file is not None:
            with self._file as file:
                file.seek(0)
                yield from pa.ipc.open_stream(file)
            self._file = None
        while self._pending:
            yield self._pending.pop(0)

    def to_pylist(self) -> list[Mapping[str, Any]]:
        """Returns the rows as dicts, and frees them."""
        return [row for batch in self.batches() for row in batch.to_pylist()]

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_file": None, "_writer": None}
        if self._writer is not None:
            self._writer.close()
        if self._file is not None:
            # The reader unlinks the file at once, so that nothing is left if its process dies.
            with tempfile.NamedTemporaryFile(prefix="volstream-rows-", delete=False) as named:
                self._file.seek(0)
                shutil.copyfileobj(self._file, named, 1 << 20)
            self._file.close()
            state["_file"] = named.name
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(name := state["_file"], str):
            self._file = open(name, "rb")  # noqa: SIM115  # closed by `batches`, or with this object
            os.unlink(name)

    def _fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(self.columns):
            return batch
        names = batch.schema.names
        unknown = next((name for name in names if name not in self.columns.names), None)
        if unknown is not None or len(set(names)) < len(names):
            what = f"an undeclared column {unknown!r}" if unknown is not None else "two columns of one name"
            raise NotRowsError(f"A batch of rows has {what} (the result declares {', '.join(self.columns.names)}).")
        arrays = []
        for field in self.columns:
            if field.name not in names:
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            try:
                arrays.append(convert.from_arrow(batch.column(field.name), field.type))
            except convert.WRONG_VALUES as error:
                raise NotRowsError(f"Column {field.name!r} of a batch cannot be {name_of(field.type)}: {error}.") from None
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns)

    def _check_rows(self, batch: pa.RecordBatch) -> None:
        """Raises TooLargeError if a single row exceeds the limit."""
        if batch.nbytes <= self._row_bytes:
            return
        if batch.num_rows == 1:
            raise TooLargeError(
                f"A row has {format_size(batch.nbytes)} of values, but a row may have at most "
                f"{format_size(self._row_bytes)} ({self._row_rule})."
            )
        half = batch.num_rows // 2
        self._check_rows(batch.slice(0, half))
        self._check_rows(batch.slice(half))

    def _spill(self) -> None:
        if self._writer is None:
            # Closed by `batches`.
            self._file = tempfile.TemporaryFile(prefix="volstream-rows-")  # noqa: SIM115
            self._writer = pa.ipc.new_stream(self._file, self.columns)
        for batch in self._pending:
            self._writer.write_batch(batch)
        self._pending, self._pending_bytes = [], 0


#: The rows of one file.
Rows: TypeAlias = Sequence[Mapping[str, Any]] | ArrowRows


#: Converts a row when the function returns or yields it.
Stored: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]
