"""A directory kept by inventory reports, without an engine: filled by one, compared with the next, and a refresh of one file.

The report has 10^6 objects (``--rows``), in files whose keys interleave, so that all of them are merged at once. There is no
bucket: a store makes up the answer when an object is looked at. ``python -m benchmarks --part inventory --rows 10000000``.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from benchmarks import directories
from benchmarks.directories import with_memory, with_processor
from benchmarks.report import Figures
from benchmarks.scenarios import WrongRowsError
from volstream.api.session import Session
from volstream.base.definitions import QueueType
from volstream.base.model.hints import HintSet, KeyHint
from volstream.base.model.paths import FileInfo, Finding, Selection
from volstream.changes.directory.inventory import Inventory
from volstream.changes.directory.keeper import DirectoryKeeper
from volstream.files.providers.base import BucketPlace
from volstream.files.storage import open_store
from volstream.files.storage.inventory import MANIFEST, Manifest

FORMATS = ("Parquet", "CSV")

#: Objects in a file of a report.
_PER_FILE = 1_000_000

#: Objects that the second report lacks, has in another version, and has in addition.
DIFFERENT = 1_000

#: Refreshes of one file.
_REFRESHES = 10

_LOCATION = "s3://benchmark/in"

_COLUMNS = ("bucket", "key", "size", "last_modified_date", "e_tag")
_FIELDS = "Bucket, Key, Size, LastModifiedDate, ETag"


class Bucket:
    """A store of made-up objects, as the second report has them."""

    def __init__(self) -> None:
        self._place = BucketPlace.of(_LOCATION)
        self.overwritten: set[str] = set()

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        """Yields nothing; never called."""
        del prefix, selection
        return iter(())

    def head(self, path: str) -> FileInfo | None:
        """Returns the object that the second report has, or another one that has overwritten it."""
        number = _number_of(path)
        changed = number < 2 * DIFFERENT or path in self.overwritten
        return None if number < DIFFERENT else directories.info_of(path, int(changed))

    def open(self, path: str) -> BinaryIO:
        """Raises FileNotFoundError: the objects have no content."""
        raise FileNotFoundError(path)

    def url(self, path: str) -> str:
        """Returns a URL."""
        return self._place.url(path)


def measure(session: Session, scratch: Path, rows: int, figures: Figures, formats: Sequence[str] = FORMATS) -> None:
    """Measures reports of ``rows`` objects in some formats. Raises WrongRowsError."""
    for format_ in formats:
        folder = scratch / f"inventory-{format_}"
        store, name = Bucket(), f"inventory_{format_.lower()}"
        volume = session.volumes.create(name, _LOCATION, queue_type=QueueType.NONE, check=False)
        taken_on = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=2)
        for scenario, second in (("from nothing", False), (f"{3 * DIFFERENT:,} differ", True)):
            manifest = write_report(folder, rows, format_, taken_on + timedelta(hours=second), second=second)
            inventory = Inventory(manifest, open_store(str(folder)))
            keeper = DirectoryKeeper(session.volumes.get(name), session.home.catalog, session.home.settings, store=store)
            with_processor(
                figures,
                f"{format_} report, {scenario}",
                rows,
                partial(_reconcile, keeper, inventory, 3 * DIFFERENT if second else rows),
                memory=f"reconcile by a {format_} report",
            )
        for number in range(_REFRESHES):
            path = directories.path_of(rows - 1 - number * rows // (2 * _REFRESHES))
            store.overwritten.add(path)
            with_memory(figures, "refresh of one file", rows, partial(_refresh, keeper, path), memory="refresh")
        shutil.rmtree(folder)
        session.volumes.drop(str(volume.name))


def write_report(folder: Path, rows: int, format_: str, taken_on: datetime, *, second: bool) -> Manifest:
    """Writes a report, or the one after it, and returns its manifest. File *n* has every object whose number leaves *n*."""
    folder.mkdir(exist_ok=True)
    count, listed = -(-rows // _PER_FILE), []
    for number in range(count):
        path = folder / f"{number}.{format_.lower()}"
        numbers: Sequence[int] = range(number, rows, count)
        if second:
            numbers = [one for one in range(number, rows + DIFFERENT, count) if one >= DIFFERENT]
        _write(path, _objects(numbers, second=second), format_)
        content = path.read_bytes()
        listed.append(
            {"key": path.name, "size": len(content), "MD5checksum": hashlib.md5(content, usedforsecurity=False).hexdigest()}
        )
    said = {
        "sourceBucket": BucketPlace.of(_LOCATION).bucket,
        "creationTimestamp": str(round(1000 * taken_on.timestamp())),
        "fileFormat": format_,
        "fileSchema": _FIELDS,
        "files": listed,
    }
    return Manifest.parse(json.dumps(said).encode(), MANIFEST)


def _objects(numbers: Sequence[int], *, second: bool) -> pa.Table:
    """Returns rows of a report; made as columns, because there are millions."""
    place = BucketPlace.of(_LOCATION)
    given = pa.array(numbers, pa.int64())
    paths = directories.paths_of(given)
    first, other = directories.info_of("", 0), directories.info_of("", 1)
    changed = pc.less(given, 2 * DIFFERENT) if second else pa.repeat(pa.scalar(False), len(given))
    columns = [
        pa.repeat(pa.scalar(place.bucket), len(given)),
        pc.binary_join_element_wise(place.root, paths, ""),
        *(
            pc.if_else(changed, pa.scalar(getattr(other, name), type_), pa.scalar(getattr(first, name), type_))
            for name, type_ in (("size", pa.int64()), ("last_modified_time", pa.timestamp("ms")), ("etag", pa.string()))
        ),
    ]
    return pa.table(dict(zip(_COLUMNS, columns, strict=True)))


def _write(path: Path, rows: pa.Table, format_: str) -> None:
    if format_ == "Parquet":
        pq.write_table(rows, path)
        return
    times = pc.strftime(rows["last_modified_date"], "%Y-%m-%dT%H:%M:%SZ")
    options = csv.WriteOptions(include_header=False)
    with gzip.open(path, "wb", compresslevel=1) as sink:
        csv.write_csv(rows.set_column(3, "last_modified_date", times), sink, options)


def _reconcile(keeper: DirectoryKeeper, inventory: Inventory, rows: int) -> float:
    started = time.perf_counter()
    done = keeper.reconcile(inventory=inventory)
    seconds = time.perf_counter() - started
    if done.counts.rows != rows:
        raise WrongRowsError(f"{rows} rows should have changed, and {done.counts} have.")
    return seconds


def _refresh(keeper: DirectoryKeeper, path: str) -> float:
    hints = HintSet(keeper.volume.selection)
    hints.add([KeyHint(path)])
    started = time.perf_counter()
    done = keeper.apply(hints)
    seconds = time.perf_counter() - started
    if done.counts.updated != 1:
        raise WrongRowsError(f"One file was overwritten, and a refresh came to {done}.")
    return seconds


def _number_of(path: str) -> int:
    """Inverts :func:`directories.path_of`."""
    day, _, name = path.removeprefix("day-").partition("/file-")
    return int(day) * 1000 + int(name)
