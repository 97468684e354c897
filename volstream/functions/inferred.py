"""The columns of a function that declares none, inferred from the rows that it returned for some files. Pure."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from volstream.base.model.names import folded
from volstream.base.model.paths import printable
from volstream.base.model.text import counted
from volstream.errors import InvalidValueError
from volstream.functions.classes import row_of
from volstream.functions.output import FILE, OutputFile
from volstream.functions.rows import ArrowRows
from volstream.functions.schema import as_declared, checked
from volstream.functions.types.kinds import name_of, of_arrow, of_scalar
from volstream.functions.types.widen import DifferentTypesError, widen, without_null


@dataclass
class _Seen:
    """The observations of a column: its type, and the first file that showed it."""

    type: pa.DataType = field(default_factory=pa.null)
    path: str = ""


@dataclass(frozen=True)
class InferredColumns:
    """Inferred columns.

    Attributes:
        columns: all columns; one that was always empty is STRING.
        files: number of files that gave rows.
        empty: names of columns that were always empty.
    """

    columns: pa.Schema
    files: int
    empty: Sequence[str] = ()

    @property
    def ddl(self) -> str:
        """The columns as DDL for ``returns``."""
        return as_declared(self.columns)

    def excluding(self, known: Collection[str]) -> InferredColumns | None:
        """Returns only the columns not among ``known`` (names in lower case); None: there are none."""
        new = [column for column in self.columns if folded(column.name) not in known]
        empty = [name for name in self.empty if folded(name) not in known]
        return InferredColumns(pa.schema(new), self.files, empty) if new else None

    def __str__(self) -> str:
        """Returns a description for users."""
        return f"Inferred columns from {counted(self.files, 'file')}: {self.ddl}.{self.caveat}"

    @property
    def caveat(self) -> str:
        """What may be wrong with the columns, as the continuation of a line; empty: nothing."""
        if not self.empty:
            return ""
        were, are = ("was", "it is") if len(self.empty) == 1 else ("were", "they are")
        return f" {', '.join(self.empty)} {were} always empty, so {are} STRING; to say otherwise, give returns."


#: Of a column whose values are all NaN, which pandas has for what is missing: any other value decides. No value has this type.
_ONLY_NAN = pa.float16()


class Inference:
    """Collects the rows of files and infers their columns.

    Attributes:
        files: number of files that gave rows.
    """

    def __init__(self) -> None:
        self.files = 0
        self._seen: dict[str, _Seen] = {}

    @property
    def complete(self) -> bool:
        """True if every column seen had a value."""
        return bool(self._seen) and not any(pa.types.is_null(column.type) for column in self._seen.values())

    def add(self, path: str, rows: Sequence[Mapping[str, Any]] | ArrowRows) -> None:
        """Adds the rows that a function returned for a file.

        Raises:
            InvalidValueError: a value has a type that no column can have, or that does not fit an earlier row.
        """
        self.add_types(path, types_of(path, rows) if len(rows) else None)

    def add_types(self, path: str, types: Mapping[str, pa.DataType] | None) -> None:
        """Adds the column types of a file's rows, as returned by :func:`types_of`; None: it has none. Raises as :meth:`add`."""
        if types is None:
            return
        self.files += 1
        for name, kind in types.items():
            seen = self._seen.setdefault(name, _Seen())
            merged = _merged_in(name, seen.type, kind, seen.path, path)
            if merged != seen.type:
                seen.type, seen.path = merged, path

    def result(self) -> InferredColumns:
        """Returns the columns. Raises InvalidValueError if there are none, or their names cannot be columns."""
        if not self._seen:
            raise InvalidValueError(
                "The columns cannot be inferred: the function returned no rows.",
                "Name the columns: returns='label STRING, score DOUBLE', or a dataclass as the annotation.",
            )
        empty = [name for name, column in self._seen.items() if pa.types.is_null(column.type)]
        types = {name: pa.float64() if column.type == _ONLY_NAN else column.type for name, column in self._seen.items()}
        columns = [pa.field(name, without_null(kind)) for name, kind in types.items()]
        return InferredColumns(checked(pa.schema(columns)), self.files, empty)


def types_of(path: str, rows: Sequence[Mapping[str, Any]] | ArrowRows) -> Mapping[str, pa.DataType]:
    """Returns the column types of a file's rows; null for a column that is always empty. Raises InvalidValueError."""
    if isinstance(rows, ArrowRows):
        return {column.name: of_arrow(column.type, utc=True) for column in rows.columns}
    types: dict[str, pa.DataType] = {}
    for row in rows:
        for name, value in row.items():
            if not isinstance(name, str):
                raise InvalidValueError(f"{printable(path)}: the function returned a column {name!r} whose name is not a string.")
            kind = _ONLY_NAN if isinstance(value, float) and value != value else _type_of(path, name, value)
            types[name] = _merged_in(name, types.get(name, pa.null()), kind, path, path)
    return types


def _merged_in(name: str, one: pa.DataType, other: pa.DataType, first: str, second: str) -> pa.DataType:
    """Returns the type of a column that has values of one type in one file, and of another type in a second file."""
    if _ONLY_NAN in (one, other):
        one, other = (pa.null() if kind == _ONLY_NAN else kind for kind in (one, other))
        if pa.types.is_null(one) and pa.types.is_null(other):
            return _ONLY_NAN
    try:
        return widen(one, other, python=True)
    except DifferentTypesError:
        was, now = (name_of(without_null(kind)) for kind in (one, other))
        where = "" if first == second else f" in {printable(first)}"
        raise InvalidValueError(
            f"The column {name!r} is {was}{where}, but {now} in {printable(second)}.",
            f"Return values of one type, or declare the columns: give returns, '{name} {was}, ...'.",
        ) from None


def with_known(known: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Returns a table's columns, which keep their types, followed by the other columns found."""
    names = {folded(name) for name in known.names}
    return checked(pa.schema([*known, *(column for column in new if folded(column.name) not in names)]))


def _type_of(path: str, name: str, value: Any) -> pa.DataType:
    if (kind := FILE if isinstance(value, OutputFile) else of_scalar(value)) is not None:
        return kind
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        items = (_type_of(path, name, element) for element in value)
        try:
            return pa.list_(functools.reduce(functools.partial(widen, python=True), items, pa.null()))
        except DifferentTypesError:
            raise InvalidValueError(
                f"{printable(path)}: a list in the column {name!r} has values of different types.",
                "Return lists of values of one type.",
            ) from None
    row = row_of(value)
    if row is not None and all(isinstance(key, str) for key in row):
        return pa.struct([pa.field(key, _type_of(path, name, element)) for key, element in row.items()])
    raise InvalidValueError(
        f"{printable(path)}: the column {name!r} has a {type(value).__name__}, which no column can hold.",
        f"Return a number, text, bytes, a time, a list or a dict, for example str({name}).",
    )
