"""What a stream reads: the protocol, and tables. Volumes are in ``streams.volume_source``.

A stream keeps none of this: it is found at each read, from the catalog and the table's log.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import pyarrow as pa

from volstream.catalog import Catalog
from volstream.changelog.base import NO_TIME, Changelog
from volstream.changelog.feed import ChangeFeed
from volstream.changelog.tracked import SnapshotDifference, TrackedChanges
from volstream.delta import folders
from volstream.delta.log import DeltaLog, Schema, retention
from volstream.delta.writer import is_large
from volstream.errors import DependencyError, InvalidValueError, StreamSchemaChangedError
from volstream.model.names import Name
from volstream.model.objects import SourceKind, Stream
from volstream.sqltext import table_at
from volstream.streams.volume_source import VolumeSource

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

_TIMES = pa.schema([("version", pa.int64()), ("time", pa.timestamp("us", tz="UTC"))])


def tracking(value: str) -> dict[str, str]:
    """The properties that ``change_tracking`` stands for. Raises InvalidValueError: neither true nor false."""
    match value.lower():
        case "true":
            return dict(TRACKING)
        case "false":
            return dict.fromkeys(NEEDED, "false")
        case _:
            raise InvalidValueError(f"change_tracking cannot be {value!r}.", "Write 'true' or 'false'.")


class Source(Protocol):
    """What is behind a stream.

    Attributes:
        id: the volume's id, or the table's name.
        noun: for messages: "its directory table", "its table".
        row_version, row_time: SQL of which version wrote a row, and when, where the row tells.
    """

    @property
    def id(self) -> str: ...

    @property
    def noun(self) -> str: ...

    @property
    def row_version(self) -> str: ...

    @property
    def row_time(self) -> str: ...

    @property
    def is_large(self) -> bool:
        """Whether Spark should compile what reads it."""
        ...

    def head(self) -> tuple[int, str] | None:
        """Newest version, and the id that tells it from one that was re-created; None where there is none."""
        ...

    def missing(self, after: int, until: int) -> str | None:
        """Why the changes of versions ``after`` (excluded) to ``until`` cannot be read; None: they can."""
        ...

    def has_newer(self, version: int | None) -> bool:
        """Whether something may have changed after a version; None: at all. Asks no Spark."""
        ...

    def only_upkeep(self, after: int, until: int) -> bool:
        """Whether no version of ``(after, until]`` changes a row, as far as can be told without Spark."""
        ...

    def stale_after(self, offset: int) -> datetime | None:
        """When what follows a version may begin to go; None: nothing follows, or it is kept."""
        ...

    def resolve(self, what: str, version: int | None, timestamp: datetime | None) -> int:
        """The newest version at or before a point in time, of those whose changes are known; one of the two is given.

        Args:
            what: the source, for messages: "table t".

        Raises:
            InvalidValueError: there is no such version: it is in the future, or older than the kept history.
        """
        ...

    def columns(self, version: int) -> Sequence[str]:
        """What the stream shows of a row, in order."""
        ...

    def rows(self, version: int) -> str:
        """SQL: a relation of the rows at a version."""
        ...

    def changelog(self, first: int, last: int, *, append_only: bool = False) -> Changelog:
        """How the changes of versions ``first`` to ``last``, both included, are best read.

        Raises:
            StreamSchemaChangedError: columns were dropped, renamed or retyped among them.
        """
        ...

    def times(self) -> pa.Table | None:
        """When each version was made: ``version``, ``time``; None: rows tell."""
        ...


@dataclass(frozen=True)
class TableSource:
    """A Delta table: rows are identified by Delta's row id, or by a key."""

    name: Name
    location: str
    key: Sequence[str] = ()

    noun = "its table"
    row_version = "_metadata.row_commit_version"
    row_time = NO_TIME

    @property
    def id(self) -> str:
        """The table's name: a table that was re-created is another one, which its Delta id tells."""
        return str(self.name)

    @property
    def is_large(self) -> bool:
        """See :class:`Source`."""
        return is_large(self.location)

    def head(self) -> tuple[int, str] | None:
        """See :class:`Source`."""
        return DeltaLog(self.location).head()

    def missing(self, after: int, until: int) -> str | None:
        """See :class:`Source`."""
        log = DeltaLog(self.location)
        if not log.readable_from(after):
            return f"the changes after version {after} are not kept any more"
        lost = log.lost_file(after, until)
        return f"files that its changes are read from were removed (VACUUM), such as {lost}" if lost else None

    def has_newer(self, version: int | None) -> bool:
        """See :class:`Source`."""
        log = DeltaLog(self.location)
        return log.exists() if version is None else log.has_newer(version)

    def only_upkeep(self, after: int, until: int) -> bool:
        """See :class:`Source`."""
        commits = DeltaLog(self.location).commits_after(after)
        within = [commit for commit in commits if commit.version <= until]
        return len(within) == until - after and all(commit.without_data for commit in within)

    def stale_after(self, offset: int) -> datetime | None:
        """See :class:`Source`."""
        log = DeltaLog(self.location)
        schema, first = log.schema(), log.first_change_after(offset)
        return None if first is None or schema is None else first.timestamp + retention(schema.properties)

    def resolve(self, what: str, version: int | None, timestamp: datetime | None) -> int:
        """See :class:`Source`."""
        commits = DeltaLog(self.location).commits_after(-1)
        if not commits:
            raise InvalidValueError(f"The {what} has no history.")
        first, last = commits[0], commits[-1]
        if version is not None:
            if not first.version <= version <= last.version:
                raise InvalidValueError(
                    f"The {what} has no version {version}.",
                    f"Its history goes from {first.version} to {last.version}.",
                )
            return version
        assert timestamp is not None, "one of the two is given"
        if timestamp > datetime.now(UTC):
            raise InvalidValueError(f"{timestamp.isoformat()} is in the future.")
        if timestamp < first.timestamp:
            raise InvalidValueError(
                f"The {what} has no history before {first.timestamp.isoformat()}.", "Give a later time, or a version."
            )
        return max(commit.version for commit in commits if commit.timestamp <= timestamp)

    def rows(self, version: int) -> str:
        """See :class:`Source`."""
        return f"{table_at(self.location)} VERSION AS OF {version}"

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

    def times(self) -> pa.Table | None:
        """By the table's own history."""
        commits = DeltaLog(self.location).commits_after(-1)
        rows = [{"version": one.version, "time": one.timestamp} for one in commits]
        return pa.Table.from_pylist(rows, schema=_TIMES)

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
