"""A directory's format on disk: a base and a tail, two Delta tables in one folder, and the rows of a file in them.

The *base* (``files``) has a row for each file as of the refresh ``through``. The *tail* (``changes``) has a row for each
file that a refresh changed, including its previous state, starting after the refresh ``floor``. The directory at any
refresh since the floor, and the changes between two of them, can be computed from these tables.

Writing is in ``directory.writer``, reading in ``directory.snapshot``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

import pyarrow as pa

from volstream.base.model.paths import FileInfo
from volstream.tables.delta.native import TableSpec

#: The columns of a directory table as shown to users, in this order.
COLUMNS = ("relative_path", "url", "size", "last_modified_time", "etag", "version_id", "content_type")

#: Columns that distinguish versions of a file; the other columns are derived or guessed.
CONTENT = ("size", "last_modified_time", "etag", "version_id")

#: The refresh that wrote a row, and its time; in every row of both tables.
WROTE = ("refresh_id", "refreshed_on")

#: Columns of the previous row that the tail stores. The URL follows from the path.
OLD = ("size", "last_modified_time", "etag", "version_id", "content_type", *WROTE)

#: The kinds of change that a refresh makes to a row.
INSERT, UPDATE, DELETE = "insert", "update", "delete"

_TIME = pa.timestamp("us", tz="UTC")

#: A file in a listing. In memory every column may be NULL; on disk only those that :func:`_stored` allows.
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


def location(warehouse: str, volume_id: str) -> str:
    """Returns the folder of a volume's directory."""
    return f"{warehouse}/directories/{volume_id}"


def app_id(volume_id: str) -> str:
    """Returns the application id of a volume's refreshes; its transaction version in the tail is the newest refresh."""
    return f"volstream:dir:{volume_id}"


def through_id(volume_id: str) -> str:
    """Returns the application id whose transaction version in the base is the refresh that the base represents."""
    return f"{app_id(volume_id)}:through"


def floor_id(volume_id: str) -> str:
    """Returns the application id whose transaction version in the tail is the refresh after which the tail is complete."""
    return f"{app_id(volume_id)}:floor"


def base(root: str, volume_id: str) -> TableSpec:
    """Returns the base of the directory in folder ``root``."""
    return TableSpec(f"{root}/files", _stored(FILES), ("relative_path", "refresh_id"), (through_id(volume_id),), _remedy(root))


def tail(root: str, volume_id: str) -> TableSpec:
    """Returns the tail of the directory in folder ``root``."""
    ids = (app_id(volume_id), floor_id(volume_id))
    return TableSpec(f"{root}/changes", _stored(CHANGES), ("relative_path", "refresh_id"), ids, _remedy(root))


def _remedy(root: str) -> str:
    return f"If it is damaged, delete {root}, then: volstream refresh VOLUME, and volstream heal JOB for its jobs."


def rows(files: Iterable[FileInfo], url: Callable[[str], str]) -> pa.Table:
    """Converts files to an Arrow table of :data:`SCHEMA`."""
    listed = list(files)
    if not listed:
        return SCHEMA.empty_table()
    columns = dict(zip(FileInfo._fields, zip(*listed, strict=True), strict=True))
    return pa.table({**columns, "url": list(map(url, columns["relative_path"]))}, schema=SCHEMA)


def wrote(number: int, made_on: datetime, count: int) -> list[pa.Array]:
    """Returns the columns :data:`WROTE` for the rows of a refresh."""
    values = zip((number, made_on), (field.type for field in _WROTE), strict=True)
    return [pa.repeat(pa.scalar(value, kind), count) for value, kind in values]


def _stored(schema: pa.Schema) -> pa.Schema:
    """Returns the stored schema: version ids, content types and old images may be NULL."""
    optional = {"version_id", "content_type", *(f"old_{name}" for name in OLD)}
    return pa.schema([field.with_nullable(field.name in optional) for field in schema])
