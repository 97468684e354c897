"""What a stream reads, a volume's directory table or a table: where it lies, its changelog, which versions wrote its rows.

A stream keeps none of this: it is found anew at each read, from the catalog and the table's log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from volstream.catalog import Catalog
from volstream.changelog.base import Changelog
from volstream.changelog.feed import ChangeFeed
from volstream.changelog.tracked import SnapshotDifference, TrackedChanges
from volstream.delta import folders
from volstream.delta.log import DeltaLog, Schema
from volstream.directory import table
from volstream.errors import DependencyError, StreamSchemaChangedError
from volstream.model.names import Name
from volstream.model.objects import SourceKind, Stream

#: Table properties that make a table's changes readable: ids of rows that survive their rewriting, the feed of changes,
#: and times of versions that the log itself tells.
TRACKING = {
    "delta.enableRowTracking": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.enableInCommitTimestamps": "true",
}

#: Those without which no stream can be on a table.
NEEDED = ("delta.enableRowTracking", "delta.enableChangeDataFeed")

#: The property that keeps a table's PRIMARY KEY, a JSON list of columns: Delta has no such thing.
PRIMARY_KEY = "volstream.primary_key"

_VERSIONS = pa.schema([("wrote", pa.int64()), ("version", pa.int64()), ("time", pa.timestamp("us", tz="UTC"))])


class Source(Protocol):
    """The table behind a stream.

    Attributes:
        id: the volume's id, or the table's name.
        noun: for messages: "its directory table", "its table".
        row_version: SQL of what says, in a row of the table, who wrote it.
        version: SQL of an image's version, where ``c`` is the change (``image``, ``version``) and ``r`` a row of
            :meth:`versions`.
    """

    @property
    def id(self) -> str: ...

    @property
    def location(self) -> str: ...

    @property
    def noun(self) -> str: ...

    @property
    def row_version(self) -> str: ...

    @property
    def version(self) -> str: ...

    def columns(self, version: int) -> Sequence[str]:
        """What the stream shows of a row, in order."""
        ...

    def changelog(self, first: int, last: int, *, append_only: bool = False) -> Changelog:
        """How the changes of versions ``first`` to ``last``, both included, are best read.

        Raises:
            StreamSchemaChangedError: columns were dropped, renamed or retyped among them.
        """
        ...

    def versions(self) -> pa.Table:
        """Which version each writer of rows (``wrote``) made, and when: ``wrote``, ``version``, ``time``. One row a
        commit, not a row of the table."""
        ...


@dataclass(frozen=True)
class VolumeSource:
    """The directory table of a volume: rows are identified by their path."""

    catalog: Catalog
    warehouse: str
    id: str

    noun = "its directory table"
    row_version = "refresh_id"
    version = "coalesce(r.version, c.version)"

    @property
    def location(self) -> str:
        """Where the directory table lies."""
        return table.location(self.warehouse, self.id)

    def columns(self, version: int) -> Sequence[str]:  # noqa: ARG002  # they are the same at all versions
        """The directory's columns."""
        return table.COLUMNS

    def changelog(self, first: int, last: int, *, append_only: bool = False) -> Changelog:  # noqa: ARG002  # nor is this
        """The change feed, by path."""
        return ChangeFeed(self.location, table.COLUMNS, table.CONTENT, ("relative_path",), "refresh_id")

    def versions(self) -> pa.Table:
        """By the catalog's record of the volume's refreshes."""
        committed = self.catalog.refreshes.committed(self.id)
        return _versions((one.number, one.version, one.committed_on) for one in committed)


@dataclass(frozen=True)
class TableSource:
    """A Delta table: rows are identified by Delta's row id, or by a key."""

    name: Name
    location: str
    key: Sequence[str] = ()

    noun = "its table"
    row_version = "_metadata.row_commit_version"
    version = "c.image.wrote"

    @property
    def id(self) -> str:
        """The table's name: a table that is made anew is another one, which its Delta id tells."""
        return str(self.name)

    def columns(self, version: int) -> Sequence[str]:
        """The table's columns at a version."""
        return self._schema(version).columns

    def changelog(self, first: int, last: int, *, append_only: bool = False) -> Changelog:
        """The change feed where it has all that is asked for, since its cost follows the changes; else row tracking."""
        after = self._schema(last)
        before = self._schema(max(first - 1, 0))
        if not after.bears(before):
            raise self._changed(before, first, last)
        commits = [one for one in DeltaLog(self.location).commits_after(first - 1) if one.version <= last]
        fed = all(one.properties.get("delta.enableChangeDataFeed") == "true" for one in (before, after))
        restored = any(one.operation == "RESTORE" for one in commits)
        columns, compared = after.columns, after.comparable
        if fed and not restored and all(one.adds_only or one.without_data for one in commits):
            return ChangeFeed(self.location, columns, compared)
        if fed and not restored and (append_only or self.key):
            return ChangeFeed(self.location, columns, compared, self.key)
        if append_only and fed and not spark_reads(after):  # between two snapshots, a row may come and go
            return ChangeFeed(self.location, columns, compared, self.key)
        return self._tracked(before, after)

    def every_change(self, first: int, last: int) -> Changelog:
        """The changelog of all changes by row id, whatever a stream would do without."""
        before, after = self._schema(max(first - 1, 0)), self._schema(last)
        if not after.bears(before):
            raise self._changed(before, first, last)
        return self._tracked(before, after)

    def _tracked(self, before: Schema, after: Schema) -> Changelog:
        if spark_reads(after):
            return TrackedChanges(self.location, after.columns, after.comparable, self.key)
        added = {name: after.sql_type(name) for name in after.columns if name not in before.types}
        return SnapshotDifference(self.location, after.columns, after.comparable, added, self.key)

    def versions(self) -> pa.Table:
        """By the table's own history."""
        commits = DeltaLog(self.location).commits_after(-1)
        return _versions((one.version, one.version, one.timestamp) for one in commits)

    def _schema(self, version: int) -> Schema:
        schema = DeltaLog(self.location).schema(version)
        if schema is None:
            raise DependencyError(f"The table {self.name} cannot be read at version {version}.")
        return schema

    def _changed(self, before: Schema, first: int, last: int) -> StreamSchemaChangedError:
        """Which version changed the columns, found by halves: what is changed once stays so."""
        low, high = max(first - 1, 0), last
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._schema(middle).bears(before) else (low, middle)
        return StreamSchemaChangedError(
            f"Columns of the table {self.name} were dropped, renamed or retyped in version {high}.",
            f"Consume the changes up to version {high - 1}, or replace the stream.",
        )


def spark_reads(schema: Schema) -> bool:
    """Whether Spark's ``CHANGES`` works: it fails on mapped columns, and loses partition columns that no file has."""
    mapped = schema.properties.get("delta.columnMapping.mode", "none") != "none"
    return not (
        mapped or (schema.partitions and schema.properties.get("delta.writePartitionColumnsToParquet") == "false")
    )


def primary_key(schema: Schema) -> Sequence[str]:
    """The columns of a table's primary key; empty where it has none."""
    return [str(column) for column in json.loads(schema.properties.get(PRIMARY_KEY, "[]"))]


def source_of(catalog: Catalog, warehouse: str, stream: Stream) -> Source:
    """What a stream reads."""
    if stream.source_kind is SourceKind.VOLUME:
        return VolumeSource(catalog, warehouse, stream.source_id)
    location = folders.table_location(warehouse, stream.source_name)
    return TableSource(stream.source_name, location, tuple(stream.identity))


def _versions(rows: Iterable[tuple[int, int | None, datetime | None]]) -> pa.Table:
    wrote, versions, times = zip(*rows, strict=True) if (rows := list(rows)) else ((), (), ())
    return pa.table({"wrote": wrote, "version": versions, "time": times}, schema=_VERSIONS)
