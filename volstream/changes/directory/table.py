"""A directory's format on disk: a base and a tail, two Delta tables in one folder, and their rows.

The *base* (``files``) has a row for each file as of the refresh ``through``. The *tail* (``changes``) has a
row for each file that a refresh changed, with its previous state, for all refreshes after ``floor``. These
tables give the directory at any refresh since the floor, and the changes between any two.

Writing is in ``directory.writer``, reading in ``directory.snapshot``.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.model.paths import FileInfo
from volstream.tables.delta.native import TableSpec

#: The columns of a directory table as shown to users, in this order.
COLUMNS = ("relative_path", "url", "size", "last_modified_time", "etag", "version_id", "content_type")

#: Columns that distinguish versions of a file. The other columns are derived or guessed.
CONTENT = ("size", "last_modified_time", "etag", "version_id")

#: The refresh that wrote a row, and its time. In every row of both tables.
WROTE = ("refresh_id", "refreshed_on")

#: Columns of the previous row that the tail stores. The URL follows from the path.
OLD = ("size", "last_modified_time", "etag", "version_id", "content_type", *WROTE)

#: The kinds of change that a refresh makes to a row.
INSERT, UPDATE, DELETE = "insert", "update", "delete"

_TIME = pa.timestamp("us", tz="UTC")

#: A file in a listing. In memory every column may be NULL, on disk only those in :func:`_stored`.
SCHEMA = pa.schema(
    [
        pa.field("relative_path", pa.string()),
        pa.field("url", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("last_modified_time", _TIME),
        pa.field("etag", pa.string()),
        pa.field("version_id", pa.string()),
        pa.field("content_type", pa.string()),
    ]
)

_WROTE = [pa.field("refresh_id", pa.int64()), pa.field("refreshed_on", _TIME)]

#: A row of the base.
FILES = pa.schema([*SCHEMA, *_WROTE])

#: A change found by a refresh: the new row (for a deleted file, the last known one) and the old row.
CHANGE = pa.schema([pa.field("change", pa.string()), *SCHEMA, *(FILES.field(name).with_name(f"old_{name}") for name in OLD)])

#: A row of the tail.
CHANGES = pa.schema([*_WROTE, *CHANGE])


def directory_location(warehouse: str, volume_id: str) -> str:
    """Returns the folder of a volume's directory."""
    return f"{warehouse}/directories/{volume_id}"


def app_id(volume_id: str) -> str:
    """Returns the application id of a volume's refreshes. In the tail, its version is the newest refresh."""
    return f"volstream:dir:{volume_id}"


def through_id(volume_id: str) -> str:
    """Returns the application id whose version in the base is the refresh that the base represents."""
    return f"{app_id(volume_id)}:through"


def floor_id(volume_id: str) -> str:
    """Returns the application id whose version in the tail is the refresh after which the tail is
    complete."""
    return f"{app_id(volume_id)}:floor"


def base_spec(root: str, volume_id: str) -> TableSpec:
    """Returns the base of the directory in folder ``root``."""
    return TableSpec(f"{root}/files", _stored(FILES), ("relative_path", "refresh_id"), (through_id(volume_id),), _remedy(root))


def tail_spec(root: str, volume_id: str) -> TableSpec:
    """Returns the tail of the directory in folder ``root``."""
    ids = (app_id(volume_id), floor_id(volume_id))
    return TableSpec(f"{root}/changes", _stored(CHANGES), ("relative_path", "refresh_id"), ids, _remedy(root))


def _remedy(root: str) -> str:
    return f"If it is damaged, delete {root}, then: volstream refresh VOLUME, and volstream heal JOB for its jobs."


def rows_of_files(files: Iterable[FileInfo], url: Callable[[str], str]) -> pa.Table:
    """Converts files to an Arrow table of :data:`SCHEMA`."""
    listed = list(files)
    if not listed:
        return SCHEMA.empty_table()
    columns = dict(zip(FileInfo._fields, zip(*listed, strict=True), strict=True))
    return pa.table({**columns, "url": list(map(url, columns["relative_path"]))}, schema=SCHEMA)


def written_columns(number: int, made_on: datetime, count: int) -> list[pa.Array]:
    """Returns the columns :data:`WROTE` for the rows of a refresh."""
    values = zip((number, made_on), (field.type for field in _WROTE), strict=True)
    return [pa.repeat(pa.scalar(value, kind), count) for value, kind in values]


def _stored(schema: pa.Schema) -> pa.Schema:
    """Returns the schema on disk: only version ids, content types and old images may be NULL."""
    optional = {"version_id", "content_type", *(f"old_{name}" for name in OLD)}
    return pa.schema([field.with_nullable(field.name in optional) for field in schema])


# Streams of rows in path order: merged, aligned, and compared, in constant memory.
#
# Paths are sorted by their UTF-8 bytes: the order of text in Arrow and Spark, and of Python's ``str``.

PATH = "relative_path"


class RowCursor:
    """A position in a stream of consecutive tables in path order."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = iter(tables)
        self._paths: Sequence[str] = ()
        self._rows: pa.Table | None = None
        self._at = 0
        self._advance()

    @property
    def last(self) -> str | None:
        """The last path in memory, or None at the end."""
        return self._paths[-1] if self._rows is not None else None

    def until(self, path: str) -> list[pa.Table]:
        """Returns the rows up to and including ``path``, and moves past them."""
        parts: list[pa.Table] = []
        while self._rows is not None:
            end = bisect_right(self._paths, path, lo=self._at)
            if end > self._at:
                parts.append(self._rows.slice(self._at, end - self._at))
            self._at = end
            if end < len(self._paths):
                break
            self._advance()
        return parts

    def _advance(self) -> None:
        self._rows, self._at = next((rows for rows in self._tables if rows.num_rows), None), 0
        self._paths = () if self._rows is None else self._rows[PATH].to_pylist()


def merge_sorted(runs: Iterable[tuple[str, Iterable[pa.Table]]]) -> Iterator[pa.Table]:
    """Merges several sorted streams into one, with each path once.

    Args:
        runs: first path and tables of each stream. A stream is only read once its first path is reached.
    """
    pending = sorted(runs, key=lambda run: run[0], reverse=True)
    open_runs: list[RowCursor] = []
    while pending or open_runs:
        if not open_runs:
            open_runs.append(RowCursor(pending.pop()[1]))
        cut = min((run.last for run in open_runs if run.last is not None), default=None)
        while pending and (cut is None or pending[-1][0] <= cut):
            open_runs.append(RowCursor(pending.pop()[1]))
            cut = min((run.last for run in open_runs if run.last is not None), default=None)
        if cut is not None:
            tables = [rows for run in open_runs for rows in run.until(cut)]
            yield _deduplicated(tables[0] if len(tables) == 1 else pa.concat_tables(tables).sort_by(PATH))
        open_runs = [run for run in open_runs if run.last is not None]


def align_sorted(left: Iterable[pa.Table], right: Iterable[pa.Table]) -> Iterator[tuple[Sequence[pa.Table], Sequence[pa.Table]]]:
    """Yields two sorted streams, cut at the same paths: the tables of both sides, empty if a side has
    none."""
    first, second = RowCursor(left), RowCursor(right)
    while first.last is not None or second.last is not None:
        cut = min(last for last in (first.last, second.last) if last is not None)
        yield first.until(cut), second.until(cut)


def concatenate(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Concatenates tables of a schema. Without tables, returns an empty one."""
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _deduplicated(rows: pa.Table) -> pa.Table:
    """Keeps only the last of consecutive rows with the same path, because a file was listed twice."""
    paths = rows[PATH]
    if len(paths) < 2:
        return rows
    following = pc.not_equal(paths.slice(0, len(paths) - 1), paths.slice(1))
    if pc.all(following).as_py():
        return rows
    return rows.filter(pa.chunked_array([*following.chunks, [True]]))


# Differences between current files and their rows in the directory. Pure.


def differences(listed: Iterable[pa.Table], known: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields the changes that bring a directory in line with a listing, in order.

    Args:
        listed: files in order, with the columns :data:`table.SCHEMA`.
        known: rows in order, with the columns :data:`table.FILES`.

    Returns:
        Tables of :data:`table.CHANGE`.
    """
    for files, rows in align_sorted(listed, known):
        yield compare_files(concatenate(files, SCHEMA), concatenate(rows, FILES))


def compare_files(files: pa.Table, rows: pa.Table) -> pa.Table:
    """Returns the changes that turn the known ``rows`` into ``files``, which must be complete for these
    paths."""
    at = pc.index_in(files[PATH], value_set=rows[PATH])
    old = rows.take(at)
    changed = pc.invert(same_content(files, old))
    new = files.filter(changed)
    kinds = pc.if_else(pc.is_null(at.filter(changed)), INSERT, UPDATE)
    missing = rows.filter(pc.invert(pc.is_in(rows[PATH], value_set=files[PATH])))
    deleted = pa.array([DELETE] * missing.num_rows, pa.string())
    return pa.concat_tables([_changes(kinds, new, old.filter(changed)), _changes(deleted, missing, missing)])


def _changes(what: pa.Array | pa.ChunkedArray, new: pa.Table, old: pa.Table) -> pa.Table:
    columns = [what, *(new[name] for name in COLUMNS), *(old[name] for name in OLD)]
    return pa.table(columns, schema=CHANGE)


def same_content(one: pa.Table, other: pa.Table) -> pa.ChunkedArray:
    """Returns for each row of two aligned tables whether both describe the same version of a file."""
    return functools.reduce(pc.and_, (_same(one[name], other[name]) for name in CONTENT))


def _same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns for each row whether the values are equal or both NULL."""
    return pc.or_(pc.fill_null(pc.equal(one, other), False), pc.and_(pc.is_null(one), pc.is_null(other)))
