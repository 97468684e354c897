"""The function of a job that loads: one file's rows, fitted to the table's columns, and what does not fit as rescued data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from volstream.base.definitions import NewColumns
from volstream.base.model.names import folded
from volstream.errors import InvalidValueError
from volstream.functions.file import File
from volstream.functions.loading.columns import Chunk, TextColumn, kind_of, present
from volstream.functions.loading.names import Placement, place
from volstream.functions.loading.options import RESCUED, LoadOptions
from volstream.functions.loading.read import chunks
from volstream.functions.loading.sample import add
from volstream.functions.rejection import FileRejectedError
from volstream.functions.schema import from_ddl, to_ddl
from volstream.functions.types.text import as_json
from volstream.functions.types.widen import of_values_only


class Loader:
    """Loads files.

    Args:
        columns: the table's own columns as DDL, with ``_rescued_data``.
        inferred: see :data:`INFERRED`.
        options: see :meth:`LoadOptions.of`.
    """

    def __init__(self, columns: str = f"{RESCUED} STRING", inferred: str = "", **options: str) -> None:
        self._inferred = {*inferred.split(",")}
        self._options = LoadOptions.of(options)
        self._columns = from_ddl(columns)
        if RESCUED not in self._columns.names or self._columns.field(RESCUED).type != pa.string():
            raise InvalidValueError(f"The columns of a job that loads files need {RESCUED} STRING.")
        self._placements: dict[tuple[str, ...], Placement] = {}

    def __call__(self, file: File) -> Iterator[pa.RecordBatch]:
        """Yields a file's rows.

        Raises:
            FileRejectedError: it is not of its format; or it has columns that the table lacks, and they are not to be
                rescued.
        """
        missing: dict[str, pa.Field] = {}
        for chunk in map(self._named, chunks(file, self._options)):
            placement = self._place(tuple(column.name for column in chunk.columns))
            self._check_header(chunk, placement)
            if not chunk.rows:
                continue
            if self._options.new_columns is not NewColumns.RESCUE:
                # From the first one on the rows do not matter, but the types of all of them do.
                self._note_new(chunk, placement, missing)
            if not missing:
                rows = self._fitted(chunk, placement)
                if rescued := rows.num_rows - rows.column(RESCUED).null_count:
                    file.count("rows with rescued data", rescued)
                yield rows
        if missing:
            ddl = to_ddl(pa.schema([*missing.values()]))
            raise FileRejectedError(f"The file has columns that the table lacks: {ddl}.", ddl)

    def _named(self, chunk: Chunk) -> Chunk:
        """Returns rows of a csv file without a header with the names of the table's columns, by position, unless the table was
        made from such files."""
        if self._options.header or "_c0" in self._columns.names:
            return chunk
        others = {folded(RESCUED), *(folded(column.name) for column in chunk.columns if type(column) is not TextColumn)}
        own = iter([name for name in self._columns.names if folded(name) not in others])
        named = [
            replace(column, name=next(own, column.name)) if type(column) is TextColumn else column for column in chunk.columns
        ]
        return replace(chunk, columns=named)

    def _check_header(self, chunk: Chunk, placement: Placement) -> None:
        """Raises FileRejectedError if the first row of a csv file has none of the table's columns: then it is no header."""
        of_file = [at for at, column in enumerate(chunk.columns) if type(column) is TextColumn]
        folders = {folded(placement.names[at]) for at in range(len(chunk.columns)) if at not in of_file}
        own = [name for name in self._columns.names if name != RESCUED and folded(name) not in folders]
        if self._options.header and of_file and own and not {*placement.by_name.values()} & {*of_file}:
            raise FileRejectedError(
                f"The first row of the file has none of the columns {', '.join(own[:5])}. Has the file no header (header=false), "
                "or another delimiter?"
            )

    def _note_new(self, chunk: Chunk, placement: Placement, missing: dict[str, pa.Field]) -> None:
        """Adds the columns that the table lacks, and those of which it lacks fields, with types that hold the values so far."""
        for at, name in placement.new.items():
            kind = of_values_only(kind_of(chunk.columns[at], self._options))
            if not pa.types.is_null(kind):  # a column without values is none yet
                add(missing, pa.field(name, kind))
        for name, at in placement.by_name.items():
            kind = self._columns.field(name).type
            if pa.types.is_nested(kind):
                more = chunk.columns[at].grown(kind)
                if more != kind:
                    add(missing, pa.field(name, more))

    def _place(self, names: tuple[str, ...]) -> Placement:
        if names not in self._placements:
            if len(self._placements) > 1000:  # objects whose keys are data
                self._placements.clear()
            self._placements[names] = place(names, self._columns)
        return self._placements[names]

    def _fitted(self, chunk: Chunk, placement: Placement) -> pa.RecordBatch:
        rescued: dict[int, dict[str, Any]] = {at: dict(values) for at, values in chunk.rescued.items()}
        arrays: list[pa.Array] = []
        for field in self._columns:
            at = placement.by_name.get(field.name)
            if field.name == RESCUED or at is None:
                arrays.append(pa.nulls(chunk.rows, field.type))
                continue
            fitted = chunk.columns[at].fit(field.type, inferred=field.name in self._inferred)
            arrays.append(fitted.values)
            _rescue(placement.names[at], fitted.misfits, rescued)
        for at in (*placement.stray, *placement.new):
            _rescue(placement.names[at], present(chunk.columns[at].values), rescued)
        if rescued:
            arrays[self._columns.names.index(RESCUED)] = _as_column(rescued, chunk.rows)
        return pa.RecordBatch.from_arrays(arrays, schema=self._columns)


def _rescue(name: str, values: Mapping[int, Any], rescued: dict[int, dict[str, Any]]) -> None:
    for at, value in values.items():
        rescued.setdefault(at, {})[name] = value


def _as_column(rescued: Mapping[int, Mapping[str, Any]], rows: int) -> pa.Array:
    texts: Sequence[str | None] = [as_json(rescued[at]) if at in rescued else None for at in range(rows)]
    return pa.array(texts, pa.string())
