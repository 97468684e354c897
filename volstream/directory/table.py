"""A directory on disk: a base and a tail, two Delta tables below one folder, and how a file becomes a row of them.

The *base* (``files``) has a row for each file, as of the refresh ``through``. The *tail* (``changes``) has a row for each
file that a refresh changed, with what was there before, from the refresh after ``floor`` on. The directory at any refresh
from the floor on follows from the two, and so does what changed between two of them.

Who writes them is in ``directory.writer``, how they are read in ``directory.snapshot``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

import pyarrow as pa

from volstream.delta.native import TableSpec
from volstream.model.files import FileInfo

#: What users see of a directory table, in this order.
COLUMNS = ("relative_path", "url", "size", "last_modified_time", "etag", "version_id", "content_type")

#: Columns whose difference makes a file another version; the rest follows from these or is a guess.
CONTENT = ("size", "last_modified_time", "etag", "version_id")

#: Which refresh wrote a row, and when: every row of both tables has them.
WROTE = ("refresh_id", "refreshed_on")

#: What the tail keeps of the row before a change. The URL follows from the path.
OLD = ("size", "last_modified_time", "etag", "version_id", "content_type", *WROTE)

#: What a refresh does to a row.
INSERT, UPDATE, DELETE = "insert", "update", "delete"

_TIME = pa.timestamp("us", tz="UTC")

#: A file as a listing shows it. In memory every column may be NULL; on disk only those may that :func:`_stored` leaves so.
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

#: A change that a refresh has found: the new row, or the last known one of a file that is gone; and the old one.
CHANGE = pa.schema(
    [
        pa.field("change", pa.string()),
        *SCHEMA,
        *(FILES.field(name).with_name(f"old_{name}") for name in OLD),
    ]
)

#: A row of the tail.
CHANGES = pa.schema([*_WROTE, *CHANGE])


def location(warehouse: str, volume_id: str) -> str:
    """The folder of a volume's directory."""
    return f"{warehouse}/directories/{volume_id}"


def app_id(volume_id: str) -> str:
    """The application id of a volume's refreshes: its transaction version in the tail is the newest refresh."""
    return f"volstream:dir:{volume_id}"


def through_id(volume_id: str) -> str:
    """The application id whose transaction version in the base is the refresh up to which the base is complete."""
    return f"{app_id(volume_id)}:through"


def floor_id(volume_id: str) -> str:
    """The application id whose transaction version in the tail is the refresh after which the tail is complete."""
    return f"{app_id(volume_id)}:floor"


def base(root: str, volume_id: str) -> TableSpec:
    """The base of the directory in folder ``root``."""
    return TableSpec(f"{root}/files", _stored(FILES), ("relative_path", "refresh_id"), (through_id(volume_id),))


def tail(root: str, volume_id: str) -> TableSpec:
    """The tail of the directory in folder ``root``."""
    ids = (app_id(volume_id), floor_id(volume_id))
    return TableSpec(f"{root}/changes", _stored(CHANGES), ("relative_path", "refresh_id"), ids)


def rows(files: Iterable[FileInfo], url: Callable[[str], str]) -> pa.Table:
    """The files as an Arrow table of :data:`SCHEMA`."""
    listed = list(files)
    if not listed:
        return SCHEMA.empty_table()
    columns = dict(zip(FileInfo._fields, zip(*listed, strict=True), strict=True))
    return pa.table({**columns, "url": list(map(url, columns["relative_path"]))}, schema=SCHEMA)


def wrote(number: int, made_on: datetime, count: int) -> list[pa.Array]:
    """The columns :data:`WROTE` of rows that one refresh writes."""
    values = zip((number, made_on), (field.type for field in _WROTE), strict=True)
    return [pa.repeat(pa.scalar(value, kind), count) for value, kind in values]


def _stored(schema: pa.Schema) -> pa.Schema:
    """A schema as a table has it: not every file has a version id or a content type, and not every change an old image."""
    optional = {"version_id", "content_type", *(f"old_{name}" for name in OLD)}
    return pa.schema([field.with_nullable(field.name in optional) for field in schema])
