"""A directory table: where it lies, what its columns are, how a file becomes a row.

Who writes it is in ``directory.writer``; what streams make of it in ``streams``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from volstream.model.files import FileInfo
from volstream.model.objects import Volume

#: What users see of a directory table, in this order (interfaces.md).
COLUMNS = ("relative_path", "url", "size", "last_modified_time", "etag", "version_id", "content_type")

#: Columns whose difference makes a file another version; the rest follows from these or is a guess.
CONTENT = ("size", "last_modified_time", "etag", "version_id")

#: :data:`SCHEMA` for Spark.
LISTED_DDL = (
    "relative_path STRING NOT NULL, url STRING NOT NULL, size BIGINT NOT NULL, last_modified_time TIMESTAMP NOT NULL, "
    "etag STRING NOT NULL, version_id STRING, content_type STRING"
)

#: ``refresh_id`` says which refresh wrote the row, and so which Delta version (R-13).
DDL = f"{LISTED_DDL}, refresh_id BIGINT NOT NULL"

#: No row tracking: rows are known by their path, and with it each append runs three jobs to find the next free row id, five
#: times the work of the append. The log is never cleaned by Delta itself: what an unconsumed offset needs must stay (R-25).
#: In-commit timestamps: a version's time is part of the log, the same for the change feed, the history and the catalog.
PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.enableDeletionVectors": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.enableExpiredLogCleanup": "false",
    "delta.deletedFileRetentionDuration": "interval 14 days",
}

SCHEMA = pa.schema(
    [
        pa.field("relative_path", pa.string(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("last_modified_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("etag", pa.string(), nullable=False),
        pa.field("version_id", pa.string()),
        pa.field("content_type", pa.string()),
    ]
)


def location(warehouse: str, volume_id: str) -> str:
    """Where the directory table of a volume lies."""
    return f"{warehouse}/directories/{volume_id}"


def app_id(volume: Volume) -> str:
    """The ``txnAppId`` of a volume's refreshes."""
    return f"volstream:dir:{volume.id}"


def rows(files: Iterable[FileInfo], url: Callable[[str], str]) -> pa.Table:
    """The files as an Arrow table of :data:`SCHEMA`."""
    listed = list(files)
    columns = {name: [getattr(file, name) for file in listed] for name in COLUMNS if name != "url"}
    return pa.table({**columns, "url": [url(file.relative_path) for file in listed]}, schema=SCHEMA)
