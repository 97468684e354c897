"""Tables opened with deltalake: their newest version and its contents.

A process opens each version once and shares it, with everything read from it, until the log changes.

Not here: reading single commits (``log``) and making them (``commits``).
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from volstream.base.model.names import Name
from volstream.errors import DependencyError, InvalidStateError
from volstream.tables.delta.places import files_of, filesystem_of, is_remote, mapped, open_table, stamp_of
from volstream.tables.delta.schema import Schema, schema_of
from volstream.tables.delta.vectors import deleted_rows

#: The newest version of each table as of its last opening, ordered by that time. Keyed by location and folder
#: of the log: a link may lead to another table by now, and a table may have two names.
_opened: OrderedDict[tuple[str, str], OpenTable] = OrderedDict()
_lock = threading.Lock()
_MAX_OPENED = 256


@dataclass(frozen=True)
class Bounds:
    """Bounds of a column's values from the statistics, which include deleted rows.

    Attributes:
        least, most: inclusive bounds with long texts truncated. None if unknown or if all values are NULL.
        nulls: number of NULLs.
    """

    least: Any
    most: Any
    nulls: int


@dataclass(frozen=True)
class Seen:
    """A version that was a table's newest one.

    Attributes:
        entry: distinguishes the log entry from another table's entry with the same number.
        folder: the stamp of the log's folder, or None in an object store.
    """

    location: str
    version: int
    entry: object
    folder: tuple[int, ...] | None

    @classmethod
    def of(cls, location: str, version: int) -> Seen:
        """Returns a version that has just been written, or is about to be read."""
        folder = stamp_of(_log_of(location))
        [entry] = entries(location, version)
        return cls(location, version, entry, folder)

    def is_newest(self) -> bool:
        """True if this is still the newest version. Checks three files, or takes two requests to a store."""
        if self.folder != stamp_of(_log_of(self.location)):
            return False
        # A folder's time has a resolution of some milliseconds, and the next version may have come within it.
        return self.entry is not None and entries(self.location, self.version, self.version + 1) == [self.entry, None]


class OpenTable:
    """A read-only version of a table. Caches everything that it reads.

    Attributes:
        handle: the deltalake table. Do not update it.
    """

    def __init__(self, location: str, handle: DeltaTable, seen: Seen | None = None) -> None:
        self.location = location
        self.handle = handle
        self.version = int(handle.version())
        self.id = str(handle.metadata().id)
        self.seen = seen
        self._transactions: dict[str, int | None] = {}
        self._deleted: dict[str, np.ndarray | None] = {}

    @classmethod
    def newest(cls, location: str) -> OpenTable | None:
        """Returns the newest version, or None if there is no table.

        Raises:
            DependencyError: the log cannot be read, or a power cut emptied an entry. It would look like an
                empty commit.
        """
        log = _log_of(location)
        key = location, log
        with _lock:
            known = _opened.get(key)
        if known is not None and known.is_newest():
            return known
        with mapped(location):
            # before the log is read, so that the next caller notices a change meanwhile
            folder = stamp_of(log)
            try:
                handle = open_table(location)
            except TableNotFoundError:
                return None
            [entry] = entries(location, handle.version())
        if folder is not None and (emptied := _emptied(log, handle.version())) is not None:
            raise DependencyError(f"The table at {location} is damaged: version {emptied} of its log is empty.")
        opened = cls(location, handle, Seen(location, handle.version(), entry, folder))
        with _lock:
            _opened[key] = opened
            _opened.move_to_end(key)
            if len(_opened) > _MAX_OPENED:
                _opened.popitem(last=False)
        return opened

    @classmethod
    def at(cls, location: str, version: int) -> OpenTable | None:
        """Returns a version, or None if it does not exist. Raises DependencyError."""
        with mapped(location):
            try:
                return cls(location, open_table(location, version))
            except TableNotFoundError:
                return None
            except DeltaError:
                if (newest_version(location) or -1) < version:
                    return None
                raise

    def is_newest(self) -> bool:
        """True if this is still the table's newest version. Only known for a table from :meth:`newest`."""
        return self.seen is not None and self.seen.is_newest()

    @cached_property
    def schema(self) -> Schema:
        """The columns, with the table's properties."""
        with mapped(self.location):
            return schema_of(self.handle)

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.schema.properties

    @cached_property
    def fields(self) -> pa.Schema:
        """The columns with Arrow's types."""
        with mapped(self.location):
            return pa.schema(self.handle.schema().to_arrow())

    @cached_property
    def files(self) -> pa.Table:
        """deltalake's list of the data files, with statistics by column."""
        with mapped(self.location):
            return files_of(self.handle)

    @cached_property
    def paths(self) -> Sequence[str]:
        """The data files' paths, in the order of :attr:`files`."""
        return [str(path) for path in self.files["path"].to_pylist()]

    @cached_property
    def rows(self) -> int | None:
        """Number of rows from the files' statistics, including deleted rows, or None if unknown."""
        counts = self.totals["num_records"]
        return None if counts.null_count else int(pc.sum(counts, min_count=0).as_py())

    @cached_property
    def bytes(self) -> int:
        """Total size of the data files."""
        return int(pc.sum(self.totals["size_bytes"], min_count=0).as_py())

    @cached_property
    def totals(self) -> pa.Table:
        """deltalake's list of the data files, without statistics by column."""
        with mapped(self.location):
            return files_of(self.handle, flatten=False)

    def transaction(self, app_id: str) -> int | None:
        """Returns the version of an application's newest transaction, or None if it has none."""
        if app_id not in self._transactions:  # deltalake takes a millisecond to find one
            with mapped(self.location):
                version = self.handle.transaction_version(app_id)
            self._transactions[app_id] = None if version is None else int(version)
        return self._transactions[app_id]

    def deleted(self, path: str) -> np.ndarray | None:
        """Returns the positions of a data file's deleted rows, or None if no row is deleted."""
        if path not in self._deleted:
            self._deleted[path] = deleted_rows(self.handle, [path]).get(path)
        return self._deleted[path]

    def bounds(self) -> Mapping[str, Bounds]:
        """Returns bounds of the values of each column for which all files have statistics."""
        files, found = self.files, {}
        for name in (column.removeprefix("null_count.") for column in files.column_names if column.startswith("null_count.")):
            nulls = files[f"null_count.{name}"]
            if len(nulls) and not nulls.null_count:
                least, most = (
                    extreme(files[f"{kind}.{name}"]).as_py() if f"{kind}.{name}" in files.column_names else None
                    for kind, extreme in (("min", pc.min), ("max", pc.max))
                )
                found[name] = Bounds(least, most, int(pc.sum(nulls).as_py()))
        return found

    def is_larger(self, size: int, rows: int) -> bool:
        """True if the data files exceed ``size`` bytes, or ``rows`` rows including deleted ones.

        Avoids listing all files where Delta's checksum, which accompanies most commits, has the number of
        bytes.
        """
        recorded = self._checked_bytes()
        if recorded is not None and recorded > size:
            return True
        return self.bytes > size or (pc.sum(self.totals["num_records"]).as_py() or 0) > rows

    def _checked_bytes(self) -> int | None:
        """Returns the files' total bytes by the version's checksum, or None: writers may omit or delay it."""
        filesystem, path = filesystem_of(self.location)
        try:
            with filesystem.open_input_stream(f"{path}/_delta_log/{self.version:020d}.crc") as stream:
                return int(json.loads(stream.read())["tableSizeBytes"])
        except (FileNotFoundError, ValueError, KeyError):
            return None

    def check_plain(self, name: Name) -> None:
        """Checks that a job can fill a table. Tables created by volstream have no expressions.

        Raises:
            InvalidStateError: Spark would evaluate expressions when the job writes.
        """
        if self.schema.expressions:
            raise InvalidStateError(
                f"The table {name} has {', '.join(self.schema.expressions)}, which Spark would evaluate when a job writes to it.",
                "Remove it from the table, or let the job write another one.",
            )


def newest_version(location: str) -> int | None:
    """Returns a table's newest version, or None. Raises DependencyError, like the functions below."""
    table = OpenTable.newest(location)
    return None if table is None else table.version


def schema_at(location: str, version: int | None = None) -> Schema | None:
    """Returns columns and properties at a version (default: the newest), or None if it does not exist."""
    table = OpenTable.newest(location) if version is None else OpenTable.at(location, version)
    return None if table is None else table.schema


def columns_at(location: str) -> Mapping[str, str]:
    """Returns column names with their Delta types as JSON; empty if there is no table."""
    schema = schema_at(location)
    return {} if schema is None else schema.types


def properties_at(location: str) -> Mapping[str, str]:
    """Returns a table's properties; empty if there is no table."""
    schema = schema_at(location)
    return {} if schema is None else schema.properties


def has_newer(location: str, version: int, table_id: str | None) -> bool:
    """True if a commit follows ``version``, if the log ends before it (as after a restore), or if the table
    with this id no longer exists.

    May be true for a commit without data. The first call in a process opens the table. Later calls take two
    requests as long as the log entry does not change.
    """
    with _lock:
        known = _opened.get((location, _log_of(location)))
    if known is not None and (known.version, known.id) == (version, table_id) and known.is_newest():
        return False
    if entries(location, version + 1) != [None]:
        return True
    known = OpenTable.newest(location)
    return known is None or (known.version, known.id) != (version, table_id)


def entries(location: str, *versions: int) -> Sequence[object]:
    """Returns a stamp of each version's log entry, or None without an entry.

    Stamps differ between tables. Takes one request per version.
    """
    filesystem, path = filesystem_of(location)
    names = [f"{path}/_delta_log/{version:020d}.json" for version in versions]
    with mapped(location):
        if isinstance(filesystem, fs.LocalFileSystem):
            return [*map(stamp_of, names)]
        found = filesystem.get_file_info(names)
    return [(entry.mtime_ns, entry.size) if entry.type == fs.FileType.File else None for entry in found]


def _log_of(location: str) -> str:
    """Returns the folder of a table's log. deltalake resolves links when it opens a table."""
    if is_remote(location):
        return f"{location}/_delta_log"
    return f"{os.path.realpath(filesystem_of(location)[1])}/_delta_log"


def _emptied(log: str, version: int) -> int | None:
    """Returns the newest version since the last checkpoint whose log entry is empty, or None."""
    while (entry := stamp_of(f"{log}/{version:020d}.json")) is not None and not os.path.exists(
        f"{log}/{version:020d}.checkpoint.parquet"
    ):
        if not entry[-1]:
            return version
        version -= 1
    return None
