"""Inventory reports as the providers document them: files as CSV, Parquet or ORC, and their manifest."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

#: Field, and its column in Parquet and ORC.
COLUMNS = {
    "Bucket": "bucket",
    "Key": "key",
    "VersionId": "version_id",
    "IsLatest": "is_latest",
    "IsDeleteMarker": "is_delete_marker",
    "Size": "size",
    "LastModifiedDate": "last_modified_date",
    "ETag": "e_tag",
    "StorageClass": "storage_class",
}


@dataclass(frozen=True)
class Reported:
    """An object in a report."""

    key: str
    size: int | None = 1
    modified: datetime | None = datetime(2026, 1, 1, tzinfo=UTC)
    etag: str | None = "e"
    is_latest: bool = True
    is_delete_marker: bool = False

    def fields(self, bucket: str) -> Mapping[str, object]:
        """Its values by field."""
        values = (bucket, self.key, "v1", self.is_latest, self.is_delete_marker, self.size, self.modified, self.etag, "STANDARD")
        return dict(zip(COLUMNS, values, strict=True))


def csv_file(bucket: str, objects: Sequence[Reported], fields: Sequence[str]) -> bytes:
    """A compressed CSV without a header, with every value in quotation marks and the keys encoded."""
    lines = []
    for one in objects:
        values = one.fields(bucket)
        lines.append(",".join(f'"{_text(field, values[field])}"' for field in fields))
    return gzip.compress("".join(f"{line}\n" for line in lines).encode())


def parquet_file(bucket: str, objects: Sequence[Reported], fields: Sequence[str]) -> bytes:
    """A Parquet file; its times have milliseconds and no zone."""
    sink = io.BytesIO()
    pq.write_table(_table(bucket, objects, fields), sink, coerce_timestamps="ms")
    return sink.getvalue()


def orc_file(bucket: str, objects: Sequence[Reported], fields: Sequence[str]) -> bytes:
    """An ORC file."""
    sink = io.BytesIO()
    orc.write_table(_table(bucket, objects, fields), sink, compression="zlib")
    return sink.getvalue()


WRITERS: Mapping[str, Callable[[str, Sequence[Reported], Sequence[str]], bytes]] = {
    "CSV": csv_file,
    "Parquet": parquet_file,
    "ORC": orc_file,
}


def report(
    bucket: str,
    taken_on: datetime,
    parts: Sequence[Sequence[Reported]],
    format_: str = "CSV",
    *,
    fields: Sequence[str] = tuple(COLUMNS),
    provider: str = "s3",
    folder: str = "reports",
) -> dict[str, bytes]:
    """A report's files by key in its bucket: the last one is the manifest.

    Args:
        parts: the objects of each file.
    """
    files, listed = {}, []
    for number, objects in enumerate(parts):
        content = WRITERS[format_](bucket, objects, fields)
        key = f"{folder}/data/{number}.{format_.lower()}"
        files[key] = content
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        listed.append({"key": key, "size": len(content), "MD5checksum": md5 if provider == "s3" else md5.upper()})
    seconds = taken_on.timestamp()
    manifest = {
        "sourceBucket": bucket,
        "destinationBucket": "arn:aws:s3:::reports",
        "version": "2016-11-30" if provider == "s3" else "2019-09-01",
        "creationTimestamp": str(round(seconds * 1000 if provider == "s3" else seconds)),
        "fileFormat": format_,
        "fileSchema": ", ".join(fields) if format_ == "CSV" else "of the files themselves",
        "files": listed,
    }
    key = f"{folder}/{taken_on:%Y-%m-%dT%H-%MZ}/manifest.json"
    return {**files, key: json.dumps(manifest).encode()}


def _text(field: str, value: object) -> str:
    match field, value:
        case "Key", str(key):
            return quote(key, safe="/").replace("%20", "+")
        case _, bool(flag):
            return str(flag).lower()
        case _, datetime() as moment:
            return f"{moment:%Y-%m-%dT%H:%M:%S}.000Z"
        case _:
            return "" if value is None else str(value)


def _table(bucket: str, objects: Sequence[Reported], fields: Sequence[str]) -> pa.Table:
    rows = [one.fields(bucket) for one in objects]
    types = {"IsLatest": pa.bool_(), "IsDeleteMarker": pa.bool_(), "Size": pa.int64(), "LastModifiedDate": pa.timestamp("ms")}
    columns = {}
    for field in fields:
        values = [row[field] for row in rows]
        if field == "LastModifiedDate":
            values = [value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in values]
        columns[COLUMNS[field]] = pa.array(values, types.get(field, pa.string()))
    return pa.table(columns)
