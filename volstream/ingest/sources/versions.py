"""Versions of immutable tables. Each is a commit that replaces all rows, and can be read forever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volstream.base.definitions import Source
from volstream.base.model.names import Name, quote
from volstream.base.processes import new_owner
from volstream.catalog.leases import lease, of_version
from volstream.errors import AlreadyExistsError, InvalidValueError, ObjectInUseError
from volstream.sql.text import table_at
from volstream.tables.delta import direct, places
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.log import DeltaLog
from volstream.tables.delta.lookup import read_rows
from volstream.tables.delta.opened import columns_at, newest_version
from volstream.tables.delta.ownership import Marker
from volstream.tables.delta.places import is_table
from volstream.tables.tails.lookup import Lookup

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.home import Home

#: Maximum keys that an error names.
_MAX_NAMED_KEYS = 5

#: Versions whose keys a reader caches. Each may have many keys.
_CACHED_LOOKUPS = 4


@contextmanager
def alone(home: Home, name: Name) -> Iterator[None]:
    """Prevents other processes from making a version of the table. Raises ObjectInUseError if one is."""
    purpose = f"making a version of {name}"
    with lease(home.catalog.leases, of_version(str(name)), new_owner(), purpose, home.settings.lease_seconds) as other:
        if other is not None:
            raise ObjectInUseError(f"Another process is making a version of {name}.", "Wait for it to end.")
        _record_missing(home, name)
        yield


def _record_missing(home: Home, name: Name) -> None:
    """Records versions whose processes died between the commit and :func:`note`."""
    source, location = home.catalog.sources.find(name), places.table_location(home.warehouse, name)
    if source is None or not source.immutable or not is_table(location):
        return
    recorded = source.options.get("versions", {})
    for commit in DeltaLog(location).commits_after(max(map(int, recorded.values()), default=0)):
        if "version" in commit.metadata:
            note(home, source, int(commit.metadata["version"]), commit.version)


def number_for(source: Source, version: int | None) -> int:
    """Returns the number of a new or existing version, by default the next. Raises InvalidValueError."""
    next_number = max(numbers(source), default=0) + 1
    if version is None:
        return next_number
    if version < 1:
        raise InvalidValueError(f"{version} is not a version.", "Versions are numbered from 1.")
    if version < next_number and delta_version(source, version) is None:
        raise InvalidValueError(
            f"Version {version} of {source.name} would come after version {next_number - 1}.",
            f"Versions are created in the order of their numbers: create version {next_number} or a later one.",
        )
    return version


def numbers(source: Source) -> Sequence[int]:
    """Returns the numbers of the table's versions, ascending."""
    return sorted(map(int, source.options.get("versions", {})))


def delta_version(source: Source, version: int) -> int | None:
    """Returns the Delta version of a version that the definition lists, else None."""
    delta = source.options.get("versions", {}).get(str(version))
    return None if delta is None else int(delta)


def newest(home: Home, source: Source) -> int | None:
    """Returns the number of a table's newest version, or None before its first."""
    stored = home.catalog.sources.find(source.name)
    return None if stored is None else max(numbers(stored), default=None)


def add(home: Home, source: Source, version: int | None, items: pa.Table) -> None:
    """Makes a version of these rows, unless the table already has it.

    Args:
        version: None for the next one, unless the newest version has the same rows.

    Raises:
        AlreadyExistsError: the table has that version, with other rows.
        InvalidValueError: a key occurs twice.
        VolstreamError: it cannot be written.
    """
    check_keys(items, str(source.primary_key))
    location = places.table_location(home.warehouse, source.name)

    def has(existing: int | None) -> bool:
        by_key = [(str(source.primary_key), "ascending")]
        return existing is not None and (read_rows(location, existing, items.schema).sort_by(by_key) == items.sort_by(by_key))

    def write(number: int) -> None:
        if not direct.commit(location, _marker(number), RowChanges([items], items.schema, "", None, overwrite=True)):
            with places.staged(home.warehouse, "version") as staged:
                with places.written(staged, items.schema) as file:
                    file.write_table(items)
                overwrite(home, location, number, lambda session: session.read.parquet(staged), items.num_rows)

    with alone(home, source.name):
        make(home, source, version, has, write)


def make(
    home: Home, source: Source, version: int | None, has: Callable[[int | None], bool], write: Callable[[int], None]
) -> None:
    """Makes a version and records it, unless the table already has it. Requires :func:`alone`.

    Args:
        version: None for the next one, unless the newest version has the same rows.
        has: returns whether a Delta version has the rows.
        write: commits the rows as a version.

    Raises:
        AlreadyExistsError: the table has that version, with other rows.
        InvalidValueError: the table cannot have such a version.
    """
    last = newest(home, source)
    if version is None and last is not None and has(present(home, source, last)):
        return
    version = number_for(home.catalog.sources.find(source.name) or source, version)
    existing = present(home, source, version)
    if existing is None:
        write(version)
    elif not has(existing):
        raise AlreadyExistsError(
            f"Version {version} of {source.name} exists with other data.",
            f"Create version {number_for(source, None)}, or give another name.",
        )
    note(home, source, version)


def present(home: Home, source: Source, version: int) -> int | None:
    """Returns the Delta version of a version that the catalog lists, else None."""
    stored = home.catalog.sources.find(source.name)
    return None if stored is None else delta_version(stored, version)


def overwrite(home: Home, location: str, version: int, rows_in: Callable[[SparkSession], DataFrame], count: int = 0) -> None:
    """Replaces a table's rows with a frame's, by column name, as a version. Missing columns are NULL.

    Raises:
        VolstreamError: reading or writing failed.
    """
    from volstream.spark.frames import Views

    writer = home.delta
    with writer.marked(_marker(version), location, rows=count) as session:
        frame = rows_in(session)
        names = {name.lower() for name in frame.columns}
        columns = [quote(name) if name.lower() in names else f"NULL AS {quote(name)}" for name in columns_at(location)]
        views = Views(session)
        query = f"SELECT {', '.join(columns)} FROM {views.show(frame)}"
        writer.merge(session, f"INSERT OVERWRITE {table_at(location)} {query}")
        views.forget()


class VersionReader:
    """Finds rows of an immutable table by key, in any version. Caches the latest lookups. Thread-safe."""

    def __init__(self, home: Home, name: Name) -> None:
        self._home = home
        self._name = name
        self._lookup = lru_cache(_CACHED_LOOKUPS)(self._open_lookup)

    def get(self, key: object, version: int | None = None) -> Mapping[str, Any] | None:
        """Returns a row by column, or None.

        Args:
            version: the newest by default.

        Raises:
            InvalidValueError: there is no such version, or the key column cannot have such a value.
        """
        source = self._home.catalog.sources.get(self._name)
        existing = numbers(source)
        number = max(existing, default=0) if version is None else version
        delta = delta_version(source, number)
        if delta is None:
            raise InvalidValueError(
                f"The table {self._name} has no version {number}.", f"Its versions: {', '.join(map(str, existing))}."
            )
        lookup = self._lookup(source.id, str(source.primary_key), delta)
        try:
            return lookup.get(key)
        except (TypeError, OverflowError, pa.ArrowException):
            raise InvalidValueError(f"{source.primary_key} cannot be {key!r:.60}.", "Give a value of its type.") from None

    def _open_lookup(self, source_id: str, key: str, delta: int) -> Lookup:
        """Returns a Delta version's lookup. In the cache, ``source_id`` distinguishes a re-created table."""
        del source_id
        return Lookup(places.table_location(self._home.warehouse, self._name), (key,), delta)


def note(home: Home, source: Source, version: int, delta: int | None = None) -> None:
    """Records a Delta version, by default the newest, as a version of the table, unless it is recorded."""
    source = home.catalog.sources.get(source.name)
    versions = source.options.get("versions", {})
    if str(version) not in versions:
        if delta is None:
            delta = newest_version(places.table_location(home.warehouse, source.name))
        options = {**source.options, "versions": {**versions, str(version): delta}}
        home.catalog.sources.change(source, options=options, immutable=True)


def _marker(version: int) -> Marker:
    """Returns the marker of a version's commit."""
    return Marker(f"volstream:version:{version}", 1, {"version": version})


def check_keys(items: pa.Table, primary_key: str) -> None:
    """Raises InvalidValueError if a key occurs twice."""
    counts = Counter(items[primary_key].to_pylist())
    raise_if_any(sorted(key for key, count in counts.items() if count > 1), primary_key)


def raise_if_any(keys: Sequence[object], primary_key: str) -> None:
    """Raises InvalidValueError for keys that occur more than once."""
    if keys:
        listed = ", ".join(repr(key) for key in keys[:_MAX_NAMED_KEYS]) + (", ..." if len(keys) > _MAX_NAMED_KEYS else "")
        raise InvalidValueError(f"{primary_key} is not unique: {listed}.", "Each item needs a unique key; nothing was stored.")
