"""Sources of streams: the versions of a table, or the refreshes of a volume's directory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeAlias

import pyarrow as pa

from volstream.base.definitions import SourceKind, Stream, Volume
from volstream.base.model.names import Name
from volstream.base.model.text import like
from volstream.base.model.units import local
from volstream.catalog import Catalog
from volstream.changes.changelog import NO_TIME, ChangeFeed, Changelog, Former, SnapshotDifference, TrackedChanges
from volstream.changes.directory import table
from volstream.changes.directory.snapshot import Snapshot
from volstream.errors import DependencyError, InvalidValueError, NotFoundError, StreamSchemaChangedError
from volstream.spark.jvm.command import LARGE_BYTES, LARGE_ROWS
from volstream.sql.text import table_at
from volstream.tables.delta import durable, places
from volstream.tables.delta.commits import PROPERTIES as TRACKING
from volstream.tables.delta.history import RETENTION
from volstream.tables.delta.log import Commit, DeltaLog, is_on, retention
from volstream.tables.delta.opened import OpenTable, has_newer, newest_version, schema_at
from volstream.tables.delta.ownership import INCIDENTAL, OWNER, UPKEEP, WRITERS
from volstream.tables.delta.places import is_table
from volstream.tables.delta.schema import PRIMARY_KEY, Schema
from volstream.tables.delta.writer import is_large

# The source of a stream on a volume: the volume's directory. Its versions are the numbers of its refreshes.


@dataclass(frozen=True)
class VolumeSource:
    """A volume's directory: paths identify rows, and rows carry the refresh that wrote them and its time.

    Has the methods of :class:`~volstream.changes.streams.sources.TableSource`.
    """

    catalog: Catalog
    warehouse: str
    id: str
    #: The volume, if it was just read. Otherwise it is read on demand.
    volume: Volume | None = None

    noun = "its directory table"
    row_version = "refresh_id"
    row_time = "refreshed_on"

    def find(self) -> Snapshot | None:
        """Returns the current directory, or None if none was ever written."""
        return Snapshot.open(table.directory_location(self.warehouse, self.id), self.id)

    def snapshot(self) -> Snapshot:
        """Returns the current directory. Raises NotFoundError if none was ever written."""
        snapshot = self.find()
        if snapshot is None:
            raise NotFoundError("The volume was never listed.", "Run: volstream refresh VOLUME.")
        return snapshot

    def head(self) -> tuple[int, str] | None:
        """Returns the newest refresh and the id of the directory."""
        snapshot = self.find()
        return None if snapshot is None else (snapshot.newest, snapshot.table_id)

    def make_durable(self, table_id: str, version: int) -> None:
        """See :class:`~volstream.changes.streams.sources.TableSource`. Refreshes in the catalog are
        durable."""
        if self.has_newer(version - 1, table_id):
            return
        snapshot = self.snapshot()
        for view in (snapshot.base, snapshot.tail):
            durable.sync(view.spec.location, view.table_id, view.version)

    def content(self, version: int) -> None:  # a new row is another version of a file
        """See :class:`~volstream.changes.streams.sources.TableSource`."""

    def missing(self, after: int, until: int) -> str | None:  # noqa: ARG002  # the tail is complete from its floor on
        """See :class:`~volstream.changes.streams.sources.TableSource`."""
        floor = self.snapshot().floor
        return f"the changes after refresh {after} are no longer kept" if after < floor else None

    def has_newer(self, version: int | None, table_id: str | None) -> bool:  # noqa: ARG002  # a directory lives as long as its volume
        """True if the catalog has a later refresh."""
        volume = self.volume or self.catalog.volumes.by_id(self.id)
        return volume is not None and volume.refresh_count > (version or 0)

    def stale_after(self, offset: int) -> datetime | None:  # noqa: ARG002  # streams' changes are kept
        """Returns None: unconsumed changes are kept for streams."""
        return None

    def redefined(self, after: int, until: int) -> bool:  # noqa: ARG002  # all directories have the same columns
        """Returns False."""
        return False

    def only_upkeep(self, after: int, until: int) -> bool:
        """True if there is no refresh in ``(after, until]``: every refresh changes rows."""
        return after >= until

    def columns(self, version: int) -> Sequence[str]:  # noqa: ARG002  # the same at all refreshes
        """Returns the directory's columns."""
        return table.COLUMNS

    def rows(self, version: int) -> str:
        """Returns SQL for the directory at a refresh."""
        return f"({self.snapshot().at_query(version)})"

    def changelog(self, first: int, last: int, *, append_only: bool = False) -> Changelog:  # noqa: ARG002
        """Returns the tail, by path."""
        return TailChanges(self.snapshot())

    def times(self) -> pa.Table | None:
        """Returns None: each row has its time."""
        return None

    @property
    def is_large(self) -> bool:
        """True if Spark should compile queries on the directory."""
        snapshot = self.find()
        return snapshot is not None and (snapshot.rows > LARGE_ROWS or snapshot.base.bytes + snapshot.tail.bytes > LARGE_BYTES)

    def resolve(self, what: str, version: int | None, timestamp: datetime | None) -> int:
        """See :class:`~volstream.changes.streams.sources.TableSource`."""
        snapshot = self.find()
        if snapshot is None:
            raise InvalidValueError(f"The {what} has no history yet.", "Refresh the volume first.")
        first = 0 if snapshot.floor <= 1 else snapshot.floor  # with a floor up to 1, the history is complete
        if version is not None:
            if not first <= version <= snapshot.newest:
                raise InvalidValueError(
                    f"The {what} has no version {version}.", f"Its history goes from {first} to {snapshot.newest}."
                )
            return version
        assert timestamp is not None, "one of the two is given"
        if timestamp > datetime.now(UTC):
            raise InvalidValueError(f"{local(timestamp)} is in the future.")
        volume = self.catalog.volumes.by_id(self.id)
        refresh = self.catalog.refreshes.at(self.id, timestamp)
        if refresh is None and first == 0 and volume is not None and timestamp >= volume.created_on:
            return 0
        if refresh is None or refresh < first:
            raise InvalidValueError(f"The {what} has no history before that time.", "Give a later time, or a version.")
        return refresh


@dataclass(frozen=True)
class TailChanges:
    """A directory's changes as a changelog. The tail has every change with both images and their
    refreshes."""

    snapshot: Snapshot

    columns = table.COLUMNS
    compared = table.CONTENT
    contains_carryover_rows = False
    contains_intermediate_changes = True
    represents_update_as_delete_and_insert = False
    stored_id = ()
    row_id = (f"`{table.COLUMNS[0]}`",)
    row_version = "wrote"
    row_time = "wrote_on"

    def scan(self, first: int, last: int) -> str:
        """See :class:`~volstream.changes.changelog.Changelog`."""
        return self.snapshot.changes_query(first - 1, last)


# Sources of streams: tables. Streams do not store any of this: each read gets it from the catalog and the
# table's log.

#: The properties that a stream on a table requires.
NEEDED = ("delta.enableRowTracking", "delta.enableChangeDataFeed")

MAX_DAYS = 36500

#: Delta's name for the commit that gives ids to a table's existing rows when change tracking begins.
_NUMBERED = "ROW TRACKING BACKFILL"

_TIMES = pa.schema([("version", pa.int64()), ("time", pa.timestamp("us", tz="UTC"))])


def tracking(value: str) -> dict[str, str]:
    """Returns Delta's properties for a value of ``change_tracking``. Raises InvalidValueError unless it is
    true or false."""
    match value.lower():
        case "true":
            return dict(TRACKING)
        case "false":
            return dict.fromkeys(NEEDED, "false")
        case _:
            raise InvalidValueError(f"change_tracking cannot be {value!r}.", "Write 'true' or 'false'.")


def kept_days(value: str) -> dict[str, str]:
    """Returns Delta's properties for a value of ``data_retention_days``: how long old versions and changes
    stay readable.

    Raises:
        InvalidValueError: the value is not a number of days.
    """
    if not value.isdecimal() or not 1 <= int(value) <= MAX_DAYS:
        raise InvalidValueError(f"data_retention_days cannot be {value!r}.", f"Give 1 to {MAX_DAYS} days.")
    return {key: f"interval {int(value)} days" for key in RETENTION}


#: volstream's properties that expand to several of Delta's, in lower case.
SHORTHANDS: Mapping[str, Callable[[str], dict[str, str]]] = {"change_tracking": tracking, "data_retention_days": kept_days}


def check_property(name: str, value: str | None = None) -> None:
    """Raises InvalidValueError for a misspelt or missing property of volstream or a wrong value. Delta
    accepts anything."""
    if name.lower() == "data_lifecycle":
        raise InvalidValueError(
            "volstream deletes no rows of tables by their age, so they have no property 'data_lifecycle'.",
            "Run DELETE FROM t WHERE ... on a schedule of yours; 'data_retention_days' is for changes and old versions.",
        )
    ours = (*SHORTHANDS, WRITERS, UPKEEP)
    foreign = name.lower().startswith("delta.") or name == PRIMARY_KEY
    if name.lower() not in ours and not foreign and (near := like(name, ours)):
        raise InvalidValueError(f"There is no property {name!r} of tables.", near.rstrip())
    if name.lower() == UPKEEP and value is not None and value.lower() not in ("on", "off"):
        raise InvalidValueError(f"{UPKEEP} cannot be {value!r}.", "Write 'on' or 'off'.")


@dataclass(frozen=True)
class TableSource:
    """A Delta table. Delta's row id or a key identifies rows. :class:`VolumeSource` has the same methods.

    Attributes:
        key: ids of the columns that identify rows (:meth:`Schema.ids_of`). By default, Delta's row ids
            identify rows.
        noun: name for messages.
        row_version, row_time: SQL for the version that wrote a row and the time of that version, if the rows
            have them.
    """

    name: Name
    location: str
    warehouse: str
    key: Sequence[str] = ()

    noun = "its table"
    row_version = "_metadata.row_commit_version"
    row_time = NO_TIME

    @property
    def id(self) -> str:
        """The table's name, or the volume's id. A recreated table has another Delta id."""
        return str(self.name)

    @property
    def is_large(self) -> bool:
        """True if Spark should compile queries on the source."""
        return is_large(self.location)

    def head(self) -> tuple[int, str] | None:
        """Returns the newest version and an id that changes when the source is recreated, or None if it does
        not exist."""
        table = OpenTable.newest(self.location)
        return None if table is None else (table.version, table.id)

    def make_durable(self, table_id: str, version: int) -> None:
        """Syncs the versions up to one to disk, before the catalog records that they were consumed."""
        durable.sync(self.location, table_id, version)

    def missing(self, after: int, until: int) -> str | None:
        """Returns why the changes of versions ``after`` (excluded) to ``until`` cannot be read, or None if
        they can."""
        log = DeltaLog(self.location)
        # Old images need the columns before the range.
        if not log.readable_from(after) or schema_at(self.location, after) is None:
            return f"the changes after version {after} are no longer kept"
        untracked = next((version for version, schema in self._schemas(after, until).items() if not tracked(schema)), None)
        if untracked is not None:
            return f"the changes of its table were not tracked from version {untracked} on"
        lost = log.lost_file(after, until)
        return f"files needed for its changes were removed (VACUUM) or damaged, such as {lost}" if lost else None

    def has_newer(self, version: int | None, table_id: str | None) -> bool:
        """True if anything may have changed after a version of the table with this id (None: ever). Needs no
        Spark."""
        return is_table(self.location) if version is None else has_newer(self.location, version, table_id)

    def redefined(self, after: int, until: int) -> bool:
        """True if a query may yield another value for an unchanged row: see :meth:`Schema.redefines`."""
        old, new = self._schema(after), self._schema(until)
        if new.is_mapped and not old.is_mapped:  # else the ends suffice, without the commits in between
            old = self._schemas(after, until)[after]
        return new.redefines(old)

    def only_upkeep(self, after: int, until: int) -> bool:
        """True if no version in ``(after, until]`` changes a row, as far as can be determined without
        Spark."""
        commits = DeltaLog(self.location).commits_after(after)
        within = [commit for commit in commits if commit.version <= until]
        return len(within) == until - after and all(commit.without_data for commit in within)

    def stale_after(self, offset: int) -> datetime | None:
        """Returns when changes after a version may be deleted, or None without changes or without
        deletion."""
        schema, first = schema_at(self.location), DeltaLog(self.location).first_change_after(offset)
        return None if first is None or schema is None else first.timestamp + retention(schema.properties)

    def resolve(self, what: str, version: int | None, timestamp: datetime | None) -> int:
        """Returns the newest version with known changes at or before a version or a time. Pass exactly one of
        the two.

        Args:
            what: name of the source for messages: "table t".

        Raises:
            InvalidValueError: the version is in the future, or older than the history.
        """
        commits = DeltaLog(self.location).commits_after(-1)
        if not commits:
            raise InvalidValueError(f"The {what} has no history.")
        first, last = commits[0], commits[-1]
        if version is not None:
            if not first.version <= version <= last.version:
                raise InvalidValueError(
                    f"The {what} has no version {version}.", f"Its history goes from {first.version} to {last.version}."
                )
            return version
        assert timestamp is not None, "one of the two is given"
        if timestamp > datetime.now(UTC):
            raise InvalidValueError(f"{local(timestamp)} is in the future.")
        if timestamp < first.timestamp:
            raise InvalidValueError(
                f"The {what} has no history before {local(first.timestamp)}.", "Give a later time, or a version."
            )
        return max(commit.version for commit in commits if commit.timestamp <= timestamp)

    def rows(self, version: int) -> str:
        """Returns SQL for a relation of the rows at a version."""
        return f"{table_at(self.location)} VERSION AS OF {version}"

    def columns(self, version: int) -> Sequence[str]:
        """Returns the source's columns, in the stream's order."""
        return self._schema(version).columns

    def content(self, version: int) -> Sequence[str] | None:
        """Returns the columns by which a stream recognizes rows that were rewritten unchanged, or None if it
        shows all rows written.

        For a file job's result these are its columns, including the file's path, if their values can be
        compared.
        """
        schema = self._schema(version)
        content = [name for name in schema.columns if name not in INCIDENTAL]
        is_result = OWNER in schema.properties and set(schema.columns) >= INCIDENTAL
        return content if is_result and set(content) <= set(schema.comparable) else None

    def changelog(self, first: int, last: int, *, append_only: bool = False) -> Changelog:
        """Returns the best changelog for versions ``first`` to ``last``, both included.

        Prefers the change feed, because its cost only depends on the changes, to row tracking.

        Raises:
            StreamSchemaChangedError: columns were dropped or changed type in the range.
        """
        parts, before = self._parts(first, last)
        moved = not parts[0].schema.has_layout_of(before)
        commits = self._commits(first, last)
        restored = [commit.version for commit in commits if commit.operation == "RESTORE"]
        added = all(commit.adds_only or commit.without_data for commit in commits)
        has_feed, key = _has_feed(parts), self._key(parts)
        if has_feed and not restored and added and (append_only or not key):  # added rows may share a key
            return _feed(parts, before, self, ())
        if has_feed and not restored and (append_only or (key and not moved)):
            return _feed(parts, before, self, key)
        if append_only and has_feed and (moved or len(parts) > 1):  # as above; restored rows are not new
            return _feed(parts, before, self, key, restored)
        if append_only and len(parts) > 1:  # two snapshots miss a row that was added and removed in between
            raise StreamSchemaChangedError(
                f"Columns of the table {self.name} changed type, were removed by RESTORE, or became partitions, in version "
                f"{parts[1].first}.",
                f"Consume an append-only stream up to version {parts[1].first - 1} first.",
            )
        return self._tracked(parts, before)

    def every_change(self, first: int, last: int, *, net: bool) -> Changelog:
        """Returns the changelog of all changes, including those that a stream would skip.

        Args:
            net: only the difference between both ends counts.

        Raises:
            InvalidValueError: only net changes are available for the range.
            StreamSchemaChangedError: see :meth:`changelog`.
        """
        parts, before = self._parts(first, last)
        moved = not parts[0].schema.has_layout_of(before)
        if (len(parts) == 1 and not moved) or (net and not self.key):
            return self._tracked(parts, before)
        why = f"its columns changed in version {parts[-1].first}"
        if _has_feed(parts) and not moved:
            commits = self._commits(first, last)
            restored = next((commit.version for commit in commits if commit.operation == "RESTORE"), None)
            if restored is None:
                return _feed(parts, before, self, self._key(parts))
            why = f"its columns are mapped, and it was restored in version {restored}"
        if net:
            return self._tracked(parts, before)
        raise InvalidValueError(
            f"Only the net changes of table {self.name} are known for these versions: {why}.",
            "Ask for deduplicationMode = 'netChanges', or for a smaller range of versions.",
        )

    def _commits(self, first: int, last: int) -> Sequence[Commit]:
        return [commit for commit in DeltaLog(self.location).commits_after(first - 1) if commit.version <= last]

    def _tracked(self, parts: Sequence[_Part], before: Schema) -> Changelog:
        after, key = parts[-1].schema, self._key(parts)
        if len(parts) == 1 and after.has_layout_of(before):
            return TrackedChanges(self.location, after.columns, after.comparable, self.warehouse, key)
        return SnapshotDifference(self.location, after.columns, after.comparable, after.values_of(before), key)

    def _key(self, parts: Sequence[_Part]) -> Sequence[str]:
        """Returns the names of the identifying columns. Raises StreamSchemaChangedError if one was
        dropped."""
        schema = parts[-1].schema
        key = schema.named(self.key)
        if not set(key) <= set(schema.columns):
            raise StreamSchemaChangedError(
                f"A column of the table {self.name} that identifies its rows for the stream was dropped.", "Replace the stream."
            )
        return key

    def times(self) -> pa.Table | None:
        """Returns the time of each version (``version``, ``time``), NULL if it wrote no rows, or None if the
        rows have the times.

        The times come from the table's history. A commit that only numbered older rows did not write them,
        although Delta gives the rows its version.
        """
        commits = DeltaLog(self.location).commits_after(-1)
        rows = [
            {"version": commit.version, "time": None if commit.operation == _NUMBERED else commit.timestamp} for commit in commits
        ]
        return pa.Table.from_pylist(rows, schema=_TIMES)

    def tracked_since(self, version: int) -> int:
        """Returns the first version after a given one since which the table's changes are tracked without
        interruption."""
        newest = [*self._schemas(version, newest_version(self.location) or version).items()][::-1]
        return min(at for at, _ in itertools.takewhile(lambda pair: tracked(pair[1]), newest))

    def _schema(self, version: int) -> Schema:
        schema = schema_at(self.location, version)
        if schema is None:
            raise DependencyError(f"The table {self.name} cannot be read at version {version}.")
        return schema

    def _schemas(self, after: int, until: int) -> Mapping[int, Schema]:
        """Returns the columns and properties at both versions and at each version in between that set any, in
        order.

        If column mapping is enabled in the range, the columns already have their numbers before.
        """
        between = DeltaLog(self.location).redefinitions(after, until)
        schemas = {version: self._schema(version) for version in sorted({after, *between, until})}
        later = schemas[until]
        for version in reversed(schemas):
            later = schemas[version] = schemas[version].numbered_as(later)
        return schemas

    def _parts(self, first: int, last: int) -> tuple[Sequence[_Part], Schema]:
        """Splits a range of versions where Delta cannot read earlier rows with a later schema. Also returns
        the schema before it.

        Each part is read with its last schema. If the schema before the range has another layout, the first
        part cannot read the files that its first commit removed.

        Raises:
            StreamSchemaChangedError: earlier rows do not fit the last schema.
        """
        schemas = self._schemas(max(first - 1, 0), last)
        before = schemas[max(first - 1, 0)]
        if not schemas[last].accepts_rows_of(before):
            raise self._changed(first, last)
        parts, begin = [], first
        for (_, old), (version, new) in itertools.pairwise(schemas.items()):
            if version > first and not new.reads_rows_of(old):
                parts.append(_Part(begin, version - 1, old))
                begin = version
        parts.append(_Part(begin, last, schemas[last]))
        return parts, before

    def _changed(self, first: int, last: int) -> StreamSchemaChangedError:
        """Returns the error, with the first version whose columns cannot hold earlier rows."""
        schemas = self._schemas(max(first - 1, 0), last)
        version = next(
            (version for (_, old), (version, new) in itertools.pairwise(schemas.items()) if not new.accepts_rows_of(old)), last
        )
        return StreamSchemaChangedError(
            f"Columns of the table {self.name} were dropped or changed type in version {version}.",
            f"Consume the changes up to version {version - 1}, or replace the stream.",
        )


#: The source of a stream.
ChangeSource: TypeAlias = TableSource | VolumeSource


@dataclass(frozen=True)
class _Part:
    """Versions whose rows Delta can read with one schema."""

    first: int
    last: int
    schema: Schema


def images(source: ChangeSource, first: int, last: int) -> Changelog:
    """Returns a changelog of every image in versions ``first`` to ``last``. Works without row identity.

    Raises:
        StreamSchemaChangedError: columns were dropped or changed type in the range.
    """
    if isinstance(source, TableSource):
        source = replace(source, key=())
    changelog = source.changelog(first, last, append_only=True)
    return replace(changelog, left_out=()) if isinstance(changelog, ChangeFeed) else changelog


def _feed(
    parts: Sequence[_Part], before: Schema, source: TableSource, key: Sequence[str], left_out: Sequence[int] = ()
) -> ChangeFeed:
    """Returns the change feed of all parts. ``before`` is the schema before the first part."""
    *former, newest = parts
    after = newest.schema
    earlier = []
    for part in former:
        schema = part.schema
        names = after.names_of(key, schema)
        feed = ChangeFeed(source.location, schema.columns, schema.comparable, names, schema.values_of(before), left_out)
        earlier.append(Former(feed, part.last, after.values_of(schema)))
        before = schema
    return ChangeFeed(source.location, after.columns, after.comparable, key, after.values_of(before), left_out, earlier)


def _has_feed(parts: Sequence[_Part]) -> bool:
    """True if Delta's change feed can be read. Without column mapping, the newest schema reads all of it."""
    schemas = [part.schema for part in parts]
    on = all(is_on(schema.properties, "delta.enableChangeDataFeed") for schema in schemas)
    return on and (len(parts) == 1 or all(schema.is_mapped and schemas[-1].has_values_of(schema) for schema in schemas))


def tracked(schema: Schema) -> bool:
    """True if a table's changes are tracked."""
    return all(is_on(schema.properties, key) for key in NEEDED)


def source_of(catalog: Catalog, warehouse: str, stream: Stream, volume: Volume | None = None) -> ChangeSource:
    """Returns the source of a stream. Pass ``volume`` if it was just read."""
    if stream.source_kind is SourceKind.VOLUME:
        return VolumeSource(catalog, warehouse, stream.source_id, volume)
    location = places.table_location(warehouse, stream.source_name)
    return TableSource(stream.source_name, location, warehouse, tuple(stream.identity_ids or stream.identity))


def behind(streams: Iterable[Stream], location: str, horizon: datetime) -> tuple[Stream, datetime] | None:
    """Returns a stream on a table with unconsumed changes from before ``horizon``, and the time of the first,
    or None."""
    log = DeltaLog(location)
    for stream in streams:
        if stream.source_kind is SourceKind.TABLE and stream.offset is not None:
            # Upkeep counts, too: reading from the offset needs the files that it replaced.
            first = next(iter(log.commits_after(stream.offset)), None)
            if first is not None and first.timestamp <= horizon:
                return stream, first.timestamp
    return None
