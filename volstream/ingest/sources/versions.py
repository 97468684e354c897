"""Versions of immutable tables: each is one commit that replaces all rows, and can be read for ever."""

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

#: Keys that an error names.
_SHOWN = 5

#: Versions whose keys a reader keeps, which may be many for each.
_KEPT_LOOKUPS = 4


@contextmanager
def alone(home: Home, name: Name) -> Iterator[None]:
    """Keeps other processes from making a version of the table. Raises ObjectInUseError if one is doing so."""
    purpose = f"making a version of {name}"
    with lease(home.catalog.leases, of_version(str(name)), new_owner(), purpose, home.settings.lease_seconds) as other:
        if other is not None:
            raise ObjectInUseError(f"Another process is making a version of {name}.", "Wait for it to end.")
        _note_lost(home, name)
        yield


def _note_lost(home: Home, name: Name) -> None:
    """Records versions whose makers died between the commit and :func:`note`."""
    source, location = home.catalog.sources.find(name), places.table_location(home.warehouse, name)
    if source is None or not source.immutable or not is_table(location):
        return
    noted = source.options.get("versions", {})
    for commit in DeltaLog(location).commits_after(max(map(int, noted.values()), default=0)):
        if "version" in commit.metadata:
            note(home, source, int(commit.metadata["version"]), commit.version)


def number_for(source: Source, version: int | None) -> int:
    """Returns the number of a version to make, or of an existing one; the next one by default. Raises InvalidValueError."""
    following = max(numbers(source), default=0) + 1
    if version is None:
        return following
    if version < 1:
        raise InvalidValueError(f"{version} is not a version.", "Versions are numbered from 1.")
    if version < following and delta_version(source, version) is None:
        raise InvalidValueError(
            f"Version {version} of {source.name} would come after version {following - 1}.",
            f"Versions are created in the order of their numbers: create version {following} or a later one.",
        )
    return version


def numbers(source: Source) -> Sequence[int]:
    """Returns the numbers of the versions that the table has, ascending."""
    return sorted(map(int, source.options.get("versions", {})))


def delta_version(source: Source, version: int) -> int | None:
    """Returns the Delta version of one of the table's own versions; None if it does not have it."""
    delta = source.options.get("versions", {}).get(str(version))
    return None if delta is None else int(delta)


def newest(home: Home, source: Source) -> int | None:
    """Returns the number of a table's newest version; None: it has none yet."""
    stored = home.catalog.sources.find(source.name)
    return None if stored is None else max(numbers(stored), default=None)


def add(home: Home, source: Source, version: int | None, items: pa.Table) -> None:
    """Makes a version of these rows, unless the table has it already; None: the next one, unless its newest has these rows.

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
    """Makes a version while no other process does, and records it, unless the table has it already.

    Args:
        version: None: the next one, unless the newest has the same rows.
        has: returns whether a Delta version has the rows.
        write: commits them as a version.

    Raises:
        AlreadyExistsError: the table has that version, with other rows.
        InvalidValueError: there can be no such version.
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
    """Returns the Delta version of a version of the table; None: there is none."""
    stored = home.catalog.sources.find(source.name)
    return None if stored is None else delta_version(stored, version)


def overwrite(home: Home, location: str, version: int, rows_in: Callable[[SparkSession], DataFrame], count: int = 0) -> None:
    """Replaces a table's rows by those of a frame, by name, as a version. Columns that it lacks are NULL.

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
    """Finds rows of an immutable table by key, in any of its versions. Keeps what the latest ones need. Thread-safe."""

    def __init__(self, home: Home, name: Name) -> None:
        self._home = home
        self._name = name
        self._lookup = lru_cache(_KEPT_LOOKUPS)(self._looked_up)

    def get(self, key: object, version: int | None = None) -> Mapping[str, Any] | None:
        """Returns a row, by column, or None.

        Args:
            version: default: the newest.

        Raises:
            InvalidValueError: there is no such version, or the key is no value of its column.
        """
        source = self._home.catalog.sources.get(self._name)
        existing = numbers(source)
        wanted = max(existing, default=0) if version is None else version
        delta = delta_version(source, wanted)
        if delta is None:
            raise InvalidValueError(
                f"The table {self._name} has no version {wanted}.", f"Its versions: {', '.join(map(str, existing))}."
            )
        lookup = self._lookup(source.id, str(source.primary_key), delta)
        try:
            return lookup.get(key)
        except (TypeError, OverflowError, pa.ArrowException):
            raise InvalidValueError(f"{source.primary_key} cannot be {key!r:.60}.", "Give a value of its type.") from None

    def _looked_up(self, source_id: str, key: str, delta: int) -> Lookup:
        """Returns the rows of a Delta version, by key; of a table of the same name there is one per ``source_id``."""
        del source_id
        return Lookup(places.table_location(self._home.warehouse, self._name), (key,), delta)


def note(home: Home, source: Source, version: int, delta: int | None = None) -> None:
    """Records that a Delta version, by default the newest one, is a version of the table, unless that is known."""
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
        shown = ", ".join(repr(key) for key in keys[:_SHOWN]) + (", ..." if len(keys) > _SHOWN else "")
        raise InvalidValueError(f"{primary_key} is not unique: {shown}.", "Each item needs a unique key; nothing was stored.")
