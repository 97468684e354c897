"""Inventory reports of S3 and OSS: a manifest, and files that list a bucket's objects as CSV, Parquet or ORC.

Not here: which objects are files of a volume, and what a report proves (``directory.inventory``).
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, NamedTuple
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv, orc

from volstream.base.model.units import format_size
from volstream.errors import InvalidValueError, StorageError
from volstream.files.storage.base import ObjectStore

#: The name of a manifest, which is a report's last file.
MANIFEST = "manifest.json"

#: Bytes of a file copied at once.
_COPY_BYTES = 1 << 20

#: As seconds, a time in the year 5138; as milliseconds, in 1973. OSS states times in seconds, S3 in
#: milliseconds.
_SECONDS_BELOW = 100_000_000_000


#: Maximum size of a manifest, for a hundred thousand files. Parsed, it takes ten times as much memory.
MAX_MANIFEST = 16 << 20

_GIVE = f"Give the {MANIFEST} of a report, or the folder of an inventory."


class ReportedObject(NamedTuple):
    """A current object. ``size`` and ``modified`` are None if the report omits them."""

    key: str
    size: int | None
    modified: datetime | None
    etag: str


@dataclass(frozen=True)
class ReportFile:
    """A file of a report: key in the manifest's bucket, size in bytes, and MD5 in lower-case hexadecimal."""

    key: str
    size: int
    md5: str


@dataclass(frozen=True)
class Manifest:
    """The manifest of a report.

    Attributes:
        bucket: the reported bucket.
        taken_on: when the provider began to scan the bucket. Objects written since then may be missing.
        format: ``CSV``, ``Parquet`` or ``ORC``.
        columns: the columns of its CSV files, which have no header.
    """

    bucket: str
    taken_on: datetime
    format: str
    columns: Sequence[str]
    files: Sequence[ReportFile]

    @classmethod
    def parse(cls, text: bytes, name: str) -> Manifest:
        """Parses a manifest.

        Args:
            name: the manifest's name in messages.

        Raises:
            InvalidValueError: the text is not a manifest, or its format is unknown.
        """
        if len(text) > MAX_MANIFEST:
            raise InvalidValueError(f"{name} is larger than {format_size(MAX_MANIFEST)}, too large for a manifest.", _GIVE)
        try:
            data = json.loads(text)
            stamp = int(data["creationTimestamp"])
            manifest = cls(
                data["sourceBucket"],
                datetime.fromtimestamp(stamp if stamp < _SECONDS_BELOW else stamp / 1000, UTC),
                str(data["fileFormat"]),
                [column.strip() for column in data["fileSchema"].split(",")],
                [ReportFile(file["key"], int(file["size"]), file["MD5checksum"].lower()) for file in data["files"]],
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError, RecursionError) as exc:
            raise InvalidValueError(
                f"{name} is not the manifest of an inventory report: {type(exc).__name__}: {exc}.", _GIVE
            ) from exc
        if manifest.format not in READERS:
            raise InvalidValueError(
                f"{name} describes files of the format {manifest.format!r}.",
                f"Configure the inventory to write one of {', '.join(READERS)}.",
            )
        return manifest


def download(reports: ObjectStore, file: ReportFile, target: IO[bytes]) -> None:
    """Copies a file of a report to a local file and compares it with the manifest.

    Args:
        reports: store of the report's whole bucket.

    Raises:
        StorageError: the file is missing, incomplete or damaged, or cannot be read.
    """
    digest, size = hashlib.md5(usedforsecurity=False), 0
    try:
        with reports.open(file.key) as source:
            while chunk := source.read(_COPY_BYTES):
                digest.update(chunk)
                size += len(chunk)
                target.write(chunk)
    except FileNotFoundError as exc:
        raise StorageError(f"The report's file {reports.url(file.key)} is missing.", _ANOTHER) from exc
    target.flush()
    if (size, digest.hexdigest()) != (file.size, file.md5):
        raise StorageError(
            f"{reports.url(file.key)} is damaged: it has {size} bytes with MD5 {digest.hexdigest()}, but its manifest says "
            f"{file.size} bytes with MD5 {file.md5}.",
            _ANOTHER,
        )


_ANOTHER = "Use another report. Nothing was changed."


def objects(manifest: Manifest, path: str, name: str) -> Iterator[Sequence[ReportedObject]]:
    """Yields a downloaded file's current objects, thousands at a time. Skips delete markers and old versions.

    Args:
        manifest: of the report.
        path: local path of the file.
        name: its name in messages.

    Raises:
        InvalidValueError: the report lacks a field that a directory needs.
        StorageError: the file contradicts its manifest.
    """
    encoded = manifest.format == "CSV"
    command = [sys.executable, "-P", "-m", "volstream.files.storage.inventory", manifest.format, path, *manifest.columns]
    # Arrow's default pool immediately reserves a gigabyte.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    with (
        tempfile.TemporaryFile() as stderr,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr) as child,
    ):
        assert child.stdout is not None, "it is a pipe"
        try:
            with suppress(pa.ArrowInvalid, EOFError):  # the child ended early
                for rows in pa.ipc.open_stream(child.stdout):
                    yield _current(pa.Table.from_batches([rows]), encoded=encoded)
        finally:
            child.stdout.close()
            child.wait()
        if child.returncode:
            stderr.seek(0)
            problem, _, remedy = stderr.read().decode("utf-8", "replace").strip().partition("\n")
            if child.returncode == INCOMPLETE:
                raise InvalidValueError(problem, remedy)
            reason = problem if child.returncode == BROKEN else "its reader died"
            raise StorageError(f"{name} cannot be read: {reason}.", _ANOTHER)


def _current(rows: pa.Table, *, encoded: bool) -> Sequence[ReportedObject]:
    columns = rows.column_names
    if "islatest" in columns:
        rows = rows.filter(pc.fill_null(rows["islatest"], True))
    if "isdeletemarker" in columns:
        rows = rows.filter(pc.invert(pc.fill_null(rows["isdeletemarker"], False)))
    keys = rows["key"].to_pylist()
    if encoded:  # both providers encode keys in CSV, and no encoding leaves plus signs unchanged
        keys = [unquote_plus(key, errors="surrogateescape") if "%" in key or "+" in key else key for key in keys]
    # Naive; the zone is added below. Arrow is ten times slower at creating times with a zone.
    times = rows["lastmodifieddate"].cast(pa.timestamp("us")).to_pylist()
    return [
        ReportedObject(key, size, time and time.replace(tzinfo=UTC), etag or "")
        for key, size, time, etag in zip(keys, rows["size"].to_pylist(), times, rows["etag"].to_pylist(), strict=True)
    ]


# The rows of an inventory report's files. Runs in a separate process with limited memory: anyone who can
# write a report could craft a few bytes that expand to gigabytes.
#
# ``python -m volstream.files.storage.inventory FORMAT PATH [COLUMN ...]`` writes them to standard output as
# Arrow, and errors to standard error.

#: Rows of a file in memory, and bytes of CSV parsed at once.
_BATCH_ROWS, _BLOCK_BYTES = 10_000, 4 << 20

#: Additional memory beyond that at the process's start. Some ORC stripes take a quarter of this.
_MEMORY_BYTES = 1 << 30

#: Maximum bytes of a key or an etag. Providers allow a quarter of it.
_MAX_TEXT = 4096

_TIME = pa.timestamp("us", tz="UTC")

#: The columns read, with their types. Parquet and ORC spell them ``last_modified_date``, CSV
#: ``LastModifiedDate``.
_TYPES: Mapping[str, pa.DataType] = {
    "key": pa.string(),
    "size": pa.int64(),
    "lastmodifieddate": _TIME,
    "etag": pa.string(),
    "islatest": pa.bool_(),
    "isdeletemarker": pa.bool_(),
}

#: Columns that identify the version of a file, so that a report needs them, by the providers' names.
_FIELDS = {"key": "Key", "size": "Size", "lastmodifieddate": "LastModifiedDate", "etag": "ETag"}

#: Exit codes: a field is missing; the file is invalid.
INCOMPLETE, BROKEN = 3, 4


def main(file_format: str, path: str, *columns: str) -> int:
    """Writes a file's rows."""
    used, hard = _data_bytes(), resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = used + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    writer: pa.RecordBatchStreamWriter | None = None
    try:
        for rows in READERS[file_format](path, columns):
            if writer is None:
                writer = pa.ipc.new_stream(sys.stdout.buffer, rows.schema)
            for part in (rows.slice(at, _BATCH_ROWS) for at in range(0, max(1, rows.num_rows), _BATCH_ROWS)):
                _check_texts(part)
                writer.write_table(part)
    except InvalidValueError as error:
        sys.stderr.write(f"{error.message}\n{error.remedy}")
        return INCOMPLETE
    except MemoryError:
        sys.stderr.write("it expands to more than a report needs")
        return BROKEN
    except (pa.ArrowException, OSError) as error:
        sys.stderr.write(str(error))
        return BROKEN
    if writer is not None:
        writer.close()
    return 0


def _data_bytes() -> int:
    """Returns the bytes that the kernel counts against RLIMIT_DATA."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def _check_texts(rows: pa.Table) -> None:
    for name in ("key", "etag"):
        if (pc.max(pc.binary_length(rows[name])).as_py() or 0) > _MAX_TEXT:
            raise pa.ArrowInvalid(f"a value of {name} has more than {_MAX_TEXT} bytes")


def _csv(path: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    wanted = _wanted(columns)
    time = wanted["lastmodifieddate"]
    read = csv.ReadOptions(column_names=list(columns), block_size=_BLOCK_BYTES)
    convert = csv.ConvertOptions(
        include_columns=list(wanted.values()),
        column_types={column: _TYPES[field] for field, column in wanted.items()} | {time: pa.string()},
        null_values=["", "null"],
        strings_can_be_null=False,  # a key may be `null`
    )
    with pa.OSFile(path) as file, pa.CompressedInputStream(file, "gzip") as text:
        try:
            reader = csv.open_csv(text, read, csv.ParseOptions(), convert)
        except pa.ArrowInvalid as exc:
            if "Empty CSV" in str(exc):  # this part of the scan has no objects
                return
            raise
        for batch in reader:
            rows = pa.Table.from_batches([batch])
            at = rows.column_names.index(time)
            yield _named(rows.set_column(at, time, _times(rows[time])), wanted)


def _times(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Parses UTC times like ``2026-01-31T12:00:00.000Z``, with any separators. Empty strings become NULL."""
    trimmed = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), pc.utf8_slice_codeunits(texts, 0, 19))
    return pc.replace_substring_regex(trimmed, r"^(.{10}).(..).(..).(..)$", r"\1 \2:\3:\4").cast(pa.timestamp("us"))


def _parquet(path: str, _: Sequence[str]) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        wanted = _wanted(file.schema_arrow.names)
        for batch in file.iter_batches(_BATCH_ROWS, columns=list(wanted.values())):
            yield _named(pa.Table.from_batches([batch]), wanted)


def _orc(path: str, _: Sequence[str]) -> Iterator[pa.Table]:
    file = orc.ORCFile(path)
    wanted = _wanted(file.schema.names)
    for stripe in range(file.nstripes):
        rows = pa.Table.from_batches([file.read_stripe(stripe, columns=list(wanted.values()))])
        for start in range(0, rows.num_rows, _BATCH_ROWS):
            yield _named(rows.slice(start, _BATCH_ROWS), wanted)


#: Readers by the format in a manifest.
READERS = {"CSV": _csv, "Parquet": _parquet, "ORC": _orc}


def _wanted(columns: Sequence[str]) -> Mapping[str, str]:
    """Returns the columns to read, by key of :data:`_TYPES`. Raises InvalidValueError if one is missing."""
    present = {column.replace("_", "").lower(): column for column in columns}
    missing = [name for field, name in _FIELDS.items() if field not in present]
    if missing:
        raise InvalidValueError(
            f"The report does not state {' and '.join(missing)} of the objects.",
            f"Add {' and '.join(missing)} to the optional fields of the inventory, and use a report written after that.",
        )
    return {field: present[field] for field in _TYPES if field in present}


def _named(rows: pa.Table, wanted: Mapping[str, str]) -> pa.Table:
    """Converts rows to the names and types of :data:`_TYPES`. Times without a zone are UTC."""
    columns = {field: rows[column].cast(_TYPES[field], safe=False) for field, column in wanted.items()}
    return pa.table(columns)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
