"""The function of a load job: one file's rows, fitted to the table's columns, and rescued data that does not
fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.definitions import FileFormat, NewColumns
from volstream.base.model.names import folded
from volstream.base.model.paths import FileInfo, printable
from volstream.errors import InvalidValueError
from volstream.files.storage.base import ObjectStore
from volstream.functions.file import File
from volstream.functions.loading import avro_files, csv_files, json_files, typed_files
from volstream.functions.loading.columns import (
    ArrowColumn,
    Chunk,
    FileColumn,
    FolderColumn,
    Placement,
    TextColumn,
    kind_of,
    place,
    present,
)
from volstream.functions.loading.content import Part, parts
from volstream.functions.loading.options import (
    ENTRY,
    EXTENSIONS,
    RESCUED,
    LoadOptions,
    RecognizedFormat,
    is_marker,
    partitions,
    recognize,
)
from volstream.functions.rejection import FileRejectedError
from volstream.functions.schema import PROVENANCE, from_ddl, to_ddl
from volstream.functions.types.values import as_json
from volstream.functions.types.widen import of_values_only, widen, without_null

#: Maximum characters of a bad row in an error.
_SHOWN = 200


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
            FileRejectedError: it is not in its format, it has columns that the table lacks and that are not
                to be rescued, or too many of its rows have rescued data.
        """
        missing: dict[str, pa.Field] = {}
        bad = BadRows(self._options.max_bad_rows)
        for chunk in map(self._name_by_position, chunks(file, self._options)):
            placement = self._place(tuple(column.name for column in chunk.columns))
            self._check_header(chunk, placement)
            if not chunk.rows:
                continue
            if self._options.new_columns is not NewColumns.RESCUE:
                # From the first new column on, the rows do not matter, but the types in all of them do.
                self._collect_new(chunk, placement, missing)
            if not missing:
                rows = self._fit(chunk, placement)
                if rescued := rows.num_rows - rows.column(RESCUED).null_count:
                    file.count("rows with rescued data", rescued)
                bad.add(rows)
                yield rows
        if missing:
            ddl = to_ddl(pa.schema([*missing.values()]))
            raise FileRejectedError(f"The file has columns that the table lacks: {ddl}.", ddl)
        bad.end()

    def _name_by_position(self, chunk: Chunk) -> Chunk:
        """Names the columns of a csv file without a header after the table's columns, by position, unless the
        table was made from such files."""
        if self._options.header or "_c0" in self._columns.names:
            return chunk
        others = {folded(RESCUED), *(folded(column.name) for column in chunk.columns if type(column) is not TextColumn)}
        own = iter([name for name in self._columns.names if folded(name) not in others])
        named = [
            replace(column, name=next(own, column.name)) if type(column) is TextColumn else column for column in chunk.columns
        ]
        return replace(chunk, columns=named)

    def _check_header(self, chunk: Chunk, placement: Placement) -> None:
        """Raises FileRejectedError if the first row of a csv file has none of the table's columns, so it is
        not a header."""
        of_file = [at for at, column in enumerate(chunk.columns) if type(column) is TextColumn]
        folders = {folded(placement.names[at]) for at in range(len(chunk.columns)) if at not in of_file}
        cols = [name for name in self._columns.names if name != RESCUED and folded(name) not in folders]
        if self._options.header and of_file and cols and not {*placement.by_name.values()} & {*of_file}:
            raise FileRejectedError(
                f"The first row of the file has none of the columns {', '.join(cols[:5])}. Has the file no header (header=false)"
                ", or another delimiter?"
            )

    def _collect_new(self, chunk: Chunk, placement: Placement, missing: dict[str, pa.Field]) -> None:
        """Adds the columns, and fields of columns, that the table lacks, with types that hold the values so
        far."""
        for at, name in placement.new.items():
            kind = of_values_only(kind_of(chunk.columns[at], self._options))
            if not pa.types.is_null(kind):  # a column without values does not exist yet
                add(missing, pa.field(name, kind))
        for name, at in placement.by_name.items():
            kind = self._columns.field(name).type
            if pa.types.is_nested(kind):
                extended = chunk.columns[at].grown(kind)
                if extended != kind:
                    add(missing, pa.field(name, extended))

    def _place(self, names: tuple[str, ...]) -> Placement:
        if names not in self._placements:
            if len(self._placements) > 1000:  # objects whose keys are data
                self._placements.clear()
            self._placements[names] = place(names, self._columns)
        return self._placements[names]

    def _fit(self, chunk: Chunk, placement: Placement) -> pa.RecordBatch:
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


class BadRows:
    """Counts the rows of a file, and its rows with rescued data.

    Args:
        maximum: how many rows may be bad, as a number or a share such as 5%. None for any number.
    """

    def __init__(self, maximum: str | None) -> None:
        self._maximum = maximum
        self._max_rows = None if maximum is None or maximum.endswith("%") else int(maximum)
        self._rows = self._bad = 0
        self._first = ""

    def add(self, rows: pa.RecordBatch) -> None:
        """Counts rows. Raises FileRejectedError as soon as too many are bad."""
        if self._maximum is None:
            return
        rescued = rows.column(RESCUED)
        if not self._bad and (at := pc.index(rescued.is_valid(), True).as_py()) >= 0:
            self._first = f"row {self._rows + at + 1:,}, {rescued[at].as_py()[:_SHOWN]}"
        self._rows += rows.num_rows
        self._bad += rows.num_rows - rescued.null_count
        if self._max_rows is not None and self._bad > self._max_rows:
            raise self._rejection("or more ")

    def end(self) -> None:
        """Raises FileRejectedError if too many of all rows were bad."""
        if self._maximum is not None and self._max_rows is None and self._bad * 100 > Decimal(self._maximum[:-1]) * self._rows:
            raise self._rejection(f"of {self._rows:,} ")

    def _rejection(self, of_total: str) -> FileRejectedError:
        excess = f"more than {self._maximum} (max_bad_rows)"
        return FileRejectedError(f"{self._bad:,} {of_total}rows have values that do not fit, {excess}. The first: {self._first}")


def _rescue(name: str, values: Mapping[int, Any], rescued: dict[int, dict[str, Any]]) -> None:
    for at, value in values.items():
        rescued.setdefault(at, {})[name] = value


def _as_column(rescued: Mapping[int, Mapping[str, Any]], rows: int) -> pa.Array:
    texts: Sequence[str | None] = [as_json(rescued[at]) if at in rescued else None for at in range(rows)]
    return pa.array(texts, pa.string())


# Rows of many files, for a statement. Runs on executors.

#: The column with a row's file.
PATH = PROVENANCE.field("_file_path")


@dataclass(frozen=True)
class FilesAsRows:
    """The function that reads files, given by batches of :class:`FileInfo`.

    Attributes:
        columns: as DDL, with the one for rescued data.
        arguments: see :meth:`LoadOptions.of`.
    """

    store: ObjectStore
    columns: str
    arguments: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows with their file. Raises InvalidValueError for a file that cannot be read."""
        load = Loader(self.columns, **self.arguments)
        for info in (FileInfo(*row.values()) for batch in batches for row in batch.to_pylist()):
            file = File(self.store, info)
            try:
                for rows in load(file):
                    yield rows.append_column(PATH, pa.array([info.relative_path] * rows.num_rows, PATH.type))
            except FileRejectedError as error:
                raise InvalidValueError(f"The file {printable(info.relative_path)} cannot be read: {error}") from None
            finally:
                file.close()


# The columns of a sample of files.


def columns_of(files: Iterable[File], options: LoadOptions, *, whole: bool = False) -> pa.Schema:
    """Returns the columns of files, according to the first rows of each. Without columns if no file has rows.

    A column of csv files without values is text. A key of json files without values is not a column yet.

    Args:
        whole: examine all rows.

    Raises:
        FileRejectedError: none of the files can be read.
    """
    schemas: list[pa.Schema] = []
    rejected: FileRejectedError | None = None
    for file in files:
        try:
            schemas.append(columns_in(file, options, whole=whole))
        except FileRejectedError as error:
            rejected = error
        finally:
            file.close()
    if rejected is not None and not schemas:
        raise rejected
    return merged(schemas)


def columns_in(file: File, options: LoadOptions, *, whole: bool = False) -> pa.Schema:
    """Returns the columns that a file shows.

    The type of text without values is null. Raises FileRejectedError.
    """
    columns: dict[str, pa.Field] = {}
    for chunk in chunks(file, options):
        if not chunk.rows:
            continue
        for at, name in place([column.name for column in chunk.columns], pa.schema([])).new.items():
            column = chunk.columns[at]
            kind = kind_of(column, options)
            if isinstance(column, TextColumn) or not pa.types.is_null(kind):
                add(columns, pa.field(name, kind))
        if not (whole or chunk.is_part):
            break
    return pa.schema([*columns.values()])


def merged(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Merges the columns of several files."""
    columns: dict[str, pa.Field] = {}
    for field in (field for schema in schemas for field in schema):
        add(columns, field)
    return pa.schema([field.with_type(without_null(field.type)) for field in columns.values()])


def add(columns: dict[str, pa.Field], field: pa.Field) -> None:
    """Adds a column, or merges its type into that of the column with its name. The keys are names in lower
    case."""
    before = columns.get(folded(field.name), field)
    columns[folded(field.name)] = before.with_type(widen(before.type, field.type))


class SampleColumns:
    """The function that returns a file's columns as ``columns``, a serialized schema. See :func:`columns_in`.

    Args:
        options: see :meth:`LoadOptions.of`.
    """

    def __init__(self, **options: str) -> None:
        self._options = LoadOptions.of(options)

    def __call__(self, file: File) -> dict[str, bytes]:
        """Returns the row. Raises FileRejectedError."""
        return {"columns": columns_in(file, self._options).serialize().to_pybytes()}


# Reads a file in its format, chunk by chunk.


def chunks(file: File, options: LoadOptions) -> Iterator[Chunk]:
    """Yields the rows of a file, with the values in the names of its folders and, for an archive, the path of
    their entry.

    An empty file has no rows, nor has a file whose name marks it as no data.

    Raises:
        FileRejectedError: its format is unknown, or it is not in its format.
    """
    if not file.size or is_marker(file.relative_path):
        return
    format_ = recognize(file.relative_path, options)
    for part in parts(file, options, unpack=format_ is None or not format_.format.is_plugin):
        try:
            yield from _rows(part, file, options)
        except FileRejectedError as error:
            if part.entry is None:
                raise
            raise FileRejectedError(f"The entry {part.entry!r} of the file: {error}", error.new_columns) from None


def _rows(part: Part, file: File, options: LoadOptions) -> Iterator[Chunk]:
    format_ = recognize(part.path, options)
    if format_ is None:
        others = " Or name the entries to load (entries)." if part.entry is not None else ""
        raise FileRejectedError(
            "Unknown file format. Set the job's format, or exclude the file by a condition. "
            f"Known extensions: {EXTENSIONS}, and those of plug-ins.{others}"
        )
    folder_values = {**partitions(file.relative_path), **partitions(part.entry or "")}
    entry_columns: Sequence[FileColumn] = []
    for chunk in _chunks(part, format_, options):
        if part.entry is not None:
            entry_columns = [ArrowColumn(ENTRY, pa.array([part.entry] * chunk.rows, pa.string()))]
        yield _with(folder_values, entry_columns, chunk) if folder_values or entry_columns else chunk


def _chunks(part: Part, format_: RecognizedFormat, options: LoadOptions) -> Iterator[Chunk]:
    match format_.format:
        case FileFormat.CSV:
            return csv_files.chunks(part, format_, options)
        case FileFormat.JSON:
            return json_files.chunks(part, options)
        case FileFormat.PARQUET:
            return typed_files.parquet_chunks(part)
        case FileFormat.AVRO:
            return avro_files.chunks(part)
        case FileFormat.ORC:
            return typed_files.orc_chunks(part)
        case _:
            return typed_files.plugin_chunks(part, format_.format, options)


def _with(folder_values: Mapping[str, str | None], others: Sequence[FileColumn], chunk: Chunk) -> Chunk:
    """Adds columns, and the values in the names of folders, which replace columns of the same name, as in
    Spark."""
    values = [
        *others,
        *(FolderColumn(name, pa.array([value] * chunk.rows, pa.string()), value=value) for name, value in folder_values.items()),
    ]
    names = {folded(column.name) for column in values}
    return replace(chunk, columns=[*(column for column in chunk.columns if folded(column.name) not in names), *values])
