"""Inventory reports of S3 and OSS: a manifest, and files that list a bucket's objects as CSV, Parquet or ORC.

What does not belong here: which objects are files of a volume, and what may be concluded from a report
(``directory.inventory``); the formats of its files (``report_rows``).
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, NamedTuple
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.model.units import format_size
from volstream.errors import InvalidValueError, StorageError
from volstream.files.storage.base import ObjectStore
from volstream.files.storage.report_rows import BROKEN, INCOMPLETE, READERS

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
    command = [sys.executable, "-P", "-m", "volstream.files.storage.report_rows", manifest.format, path, *manifest.columns]
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
