"""Inventory reports of S3 and OSS: a manifest, and files that list a bucket's objects as CSV, Parquet or ORC.

What does not belong here: which objects are files of a volume, and what may be concluded from a report
(``directory.inventory``); the formats of its files (``report_rows``).
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

#: The name of a manifest, the last file of a report to be written.
MANIFEST = "manifest.json"

#: Bytes of a file copied at once.
_COPY_BYTES = 1 << 20

#: Seconds until the year 5138, milliseconds since 1973: OSS states the time in seconds, S3 in milliseconds.
_SECONDS_BELOW = 100_000_000_000


#: Largest manifest: of a hundred thousand files. As JSON it takes ten times as much.
MAX_MANIFEST = 16 << 20

_GIVE = f"Give the {MANIFEST} of a report, or the folder of an inventory."


class ReportedObject(NamedTuple):
    """A current object. ``size`` and ``modified`` are None where the report leaves them out."""

    key: str
    size: int | None
    modified: datetime | None
    etag: str


@dataclass(frozen=True)
class ReportFile:
    """A file of a report: its key in the manifest's bucket, its size in bytes, and its MD5 as lower-case hexadecimals."""

    key: str
    size: int
    md5: str


@dataclass(frozen=True)
class Manifest:
    """What a report says of itself.

    Attributes:
        bucket: the bucket that it is about.
        taken_on: when the provider began to scan the bucket. Objects written since then may be missing.
        format: ``CSV``, ``Parquet`` or ``ORC``.
        columns: of its CSV files, which have no header.
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
            name: its name in messages.

        Raises:
            InvalidValueError: it is not a manifest, or its format is unknown.
        """
        if len(text) > MAX_MANIFEST:
            raise InvalidValueError(f"{name} is larger than {format_size(MAX_MANIFEST)}, too large for a manifest.", _GIVE)
        try:
            said = json.loads(text)
            stamp = int(said["creationTimestamp"])
            manifest = cls(
                said["sourceBucket"],
                datetime.fromtimestamp(stamp if stamp < _SECONDS_BELOW else stamp / 1000, UTC),
                str(said["fileFormat"]),
                [column.strip() for column in said["fileSchema"].split(",")],
                [ReportFile(file["key"], int(file["size"]), file["MD5checksum"].lower()) for file in said["files"]],
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
    """Copies a file of a report to a local one and compares it with the manifest.

    Args:
        reports: store of the whole bucket that has the report.

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
    """Yields the current objects in a downloaded file, some thousands at a time; leaves out delete markers and old versions.

    Args:
        manifest: of the report.
        path: local path of the file.
        name: its name in messages.

    Raises:
        InvalidValueError: the report lacks a field that a directory needs.
        StorageError: the file is not what its manifest says.
    """
    encoded = manifest.format == "CSV"
    command = [sys.executable, "-P", "-m", "volstream.files.storage.inventory", manifest.format, path, *manifest.columns]
    # Arrow's usual pool reserves a gigabyte at once.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=said) as child,
    ):
        assert child.stdout is not None, "it is a pipe"
        try:
            with suppress(pa.ArrowInvalid, EOFError):  # of a child that ended early
                for rows in pa.ipc.open_stream(child.stdout):
                    yield _current(pa.Table.from_batches([rows]), encoded=encoded)
        finally:
            child.stdout.close()
            child.wait()
        if child.returncode:
            said.seek(0)
            problem, _, remedy = said.read().decode("utf-8", "replace").strip().partition("\n")
            if child.returncode == INCOMPLETE:
                raise InvalidValueError(problem, remedy)
            why = problem if child.returncode == BROKEN else "its reader died"
            raise StorageError(f"{name} cannot be read: {why}.", _ANOTHER)


def _current(rows: pa.Table, *, encoded: bool) -> Sequence[ReportedObject]:
    columns = rows.column_names
    if "islatest" in columns:
        rows = rows.filter(pc.fill_null(rows["islatest"], True))
    if "isdeletemarker" in columns:
        rows = rows.filter(pc.invert(pc.fill_null(rows["isdeletemarker"], False)))
    keys = rows["key"].to_pylist()
    if encoded:  # both providers encode keys in CSV; no encoding leaves a plus sign as it is
        keys = [unquote_plus(key, errors="surrogateescape") if "%" in key or "+" in key else key for key in keys]
    # Naive, and given their zone below: Arrow makes times with a zone ten times as slowly.
    times = rows["lastmodifieddate"].cast(pa.timestamp("us")).to_pylist()
    return [
        ReportedObject(key, size, time and time.replace(tzinfo=UTC), etag or "")
        for key, size, time, etag in zip(keys, rows["size"].to_pylist(), times, rows["etag"].to_pylist(), strict=True)
    ]


# The rows of an inventory report's files. Runs in a process of its own with little memory: whoever may write
# a report could give it a few bytes that stand for gigabytes.
#
# ``python -m volstream.files.storage.inventory FORMAT PATH [COLUMN ...]`` writes them to standard output as
# Arrow, and what is wrong with the file to standard error.

#: Rows of a file in memory, and bytes of CSV parsed at once.
_BATCH_ROWS, _BLOCK_BYTES = 10_000, 4 << 20

#: Memory besides what the process has at its start: some stripes of ORC have a quarter of this.
_MEMORY_BYTES = 1 << 30

#: Bytes of a key or an etag; providers allow a quarter of it.
_MAX_TEXT = 4096

_TIME = pa.timestamp("us", tz="UTC")

#: The columns read, with their types. Parquet and ORC spell them ``last_modified_date``, CSV ``LastModifiedDate``.
_TYPES: Mapping[str, pa.DataType] = {
    "key": pa.string(),
    "size": pa.int64(),
    "lastmodifieddate": _TIME,
    "etag": pa.string(),
    "islatest": pa.bool_(),
    "isdeletemarker": pa.bool_(),
}

#: Columns without which a report does not say which version of a file there is, by the providers' names.
_FIELDS = {"key": "Key", "size": "Size", "lastmodifieddate": "LastModifiedDate", "etag": "ETag"}

#: Exit codes: a field is missing; the file is not what it should be.
INCOMPLETE, BROKEN = 3, 4


def main(file_format: str, path: str, *columns: str) -> int:
    """Writes the rows of a file."""
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
            if "Empty CSV" in str(exc):  # a part of the scan without objects
                return
            raise
        for batch in reader:
            rows = pa.Table.from_batches([batch])
            at = rows.column_names.index(time)
            yield _named(rows.set_column(at, time, _times(rows[time])), wanted)


def _times(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Parses times in UTC such as ``2026-01-31T12:00:00.000Z``, whatever is between the numbers; empty: NULL."""
    said = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), pc.utf8_slice_codeunits(texts, 0, 19))
    return pc.replace_substring_regex(said, r"^(.{10}).(..).(..).(..)$", r"\1 \2:\3:\4").cast(pa.timestamp("us"))


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


#: By the format that a manifest names.
READERS = {"CSV": _csv, "Parquet": _parquet, "ORC": _orc}


def _wanted(columns: Sequence[str]) -> Mapping[str, str]:
    """Returns the columns to read, by the keys of :data:`_TYPES`. Raises InvalidValueError if one of those needed is missing."""
    there = {column.replace("_", "").lower(): column for column in columns}
    missing = [name for field, name in _FIELDS.items() if field not in there]
    if missing:
        raise InvalidValueError(
            f"The report does not state {' and '.join(missing)} of the objects.",
            f"Add {' and '.join(missing)} to the optional fields of the inventory, and use a report written after that.",
        )
    return {field: there[field] for field in _TYPES if field in there}


def _named(rows: pa.Table, wanted: Mapping[str, str]) -> pa.Table:
    """Returns rows with the names and types of :data:`_TYPES`; times without a zone are UTC."""
    columns = {field: rows[column].cast(_TYPES[field], safe=False) for field, column in wanted.items()}
    return pa.table(columns)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
