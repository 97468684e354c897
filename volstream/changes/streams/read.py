"""Reads a stream: pins a range, checks it for data, and returns its rows. Reading never moves an offset."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from volstream.base.definitions import SourceKind, Stream, StreamMode
from volstream.base.model.names import Name
from volstream.base.model.work import Plan
from volstream.catalog import Catalog
from volstream.changes.changelog import (
    CHANGE_TYPE,
    NO_TIME,
    OLD_KINDS,
    Changelog,
    Deduplication,
    appended_rows_query,
    changes_query,
    net_changes_query,
    quoted,
    struct_of,
    without_repeated,
)
from volstream.changes.directory import table
from volstream.changes.streams.definitions import check_tracked, identifying
from volstream.changes.streams.sources import ChangeSource, TableSource, VolumeSource, images, source_of, tracked
from volstream.errors import InvalidValueError, NotFoundError, StreamStaleError
from volstream.spark.frames import Views, relation
from volstream.spark.jvm.command import compile_in
from volstream.sql.text import literal
from volstream.tables.delta import places
from volstream.tables.delta.opened import schema_at
from volstream.tables.delta.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession


@dataclass(frozen=True)
class Range:
    """The pinned range of a stream's read: versions ``(from_version, to_version]``. A volume's versions are
    its refreshes.

    Attributes:
        table_id: Delta's id of the source's table.
        from_version: excluded. None means from the beginning.
        to_version: included.
        initial: the range has the rows at ``to_version`` instead of changes; in a replay, only rows that also
            existed at ``from_version``.
    """

    source: ChangeSource
    table_id: str
    from_version: int | None
    to_version: int
    initial: bool
    append_only: bool

    @property
    def first(self) -> int:
        """The first version of the range."""
        return 0 if self.from_version is None else self.from_version + 1

    @property
    def is_snapshot(self) -> bool:
        """True if the range consists of the rows present at its end, all of them new."""
        return self.initial or (self.from_version is None and not self.append_only)

    @property
    def empty(self) -> bool:
        """True if the range has no versions."""
        return not self.initial and self.to_version < self.first

    @property
    def reshaped(self) -> bool:
        """True if the source's columns differ between the ends of the range, or a name refers to another
        column."""
        if self.from_version is None:
            return False
        columns = self.source.columns
        return self.source.redefined(self.from_version, self.to_version) or (
            list(columns(self.from_version)) != list(columns(self.to_version))
        )

    @property
    def outdated(self) -> bool:
        """True if columns were renamed or changed type after the range: its names may refer to other columns
        by now."""
        head = self.source.head()
        later = head is not None and head[1] == self.table_id and head[0] > self.to_version
        return later and head is not None and self.source.redefined(self.to_version, head[0])

    def images(self, *, new: bool) -> str:
        """Returns SQL for the rows added in the range or, unless ``new``, the rows removed, as often as that
        happened.

        Added minus removed rows give the change of the source's content, whatever identifies its rows.

        Raises:
            StreamSchemaChangedError: the source's columns changed in the range.
        """
        columns = ", ".join(map(quoted, self.source.columns(self.to_version)))
        if self.empty or self.is_snapshot:
            has_rows = new and not self.empty
            return f"SELECT {columns} FROM {self.source.rows(self.to_version)}{'' if has_rows else ' LIMIT 0'}"
        changelog = images(self.source, self.first, self.to_version)
        changes = changes_query(changelog, self.first, self.to_version, Deduplication.NONE, compute_updates=False)
        old = ", ".join(map(literal, OLD_KINDS))
        return f"SELECT {columns} FROM ({changes}) WHERE {CHANGE_TYPE} {'NOT ' if new else ''}IN ({old})"

    def changes(self) -> str:
        """Returns SQL with the columns ``old``, ``new``, ``version``, ``time`` (see
        :func:`~volstream.changes.changelog.net_changes_query`).

        Raises:
            StreamSchemaChangedError: the source's columns changed in the range.
        """
        if self.is_snapshot:
            columns = self.source.columns(self.to_version)
            return present(self.source.rows(self.to_version), columns, self.source.row_version, self.source.row_time)
        changelog = self.source.changelog(self.first, self.to_version, append_only=self.append_only)
        # Without row identity, a changelog only reports inserted rows.
        shape = net_changes_query if changelog.row_id and not self.append_only else appended_rows_query
        return shape(changelog, self.first, self.to_version)


class StreamReader:
    """Reads streams."""

    def __init__(self, catalog: Catalog, warehouse: str) -> None:
        self._catalog = catalog
        self._warehouse = warehouse

    def pin(self, stream: Stream) -> Range | None:
        """Returns the range of a read that begins now, or None if the volume was never listed.

        Raises:
            StreamStaleError: the source was dropped or replaced, or part of the range's history was deleted.
        """
        return _pinned(stream, self._source(stream))

    def pin_news(self, stream: Stream) -> Range | None:
        """Returns the range of a read that begins now, or None if :meth:`has_data` is False. Raises like
        :meth:`pin`."""
        source = self._source(stream)
        return _pinned(stream, source) if _has_data(stream, source) else None

    def pin_newest(self, stream: Stream) -> Range | None:
        """Returns the range of :meth:`pin`, but up to the source's newest version even for initial rows."""
        covered = self.pin(stream)
        return covered and dataclasses.replace(covered, to_version=_head(stream, covered.source)[0])

    def delivered(self, stream: Stream) -> Range | None:
        """Returns the range of consumed files that still exist, or None if nothing was consumed. Raises like
        :meth:`pin`."""
        covered = None if stream.offset is None or stream.initial else self.pin(stream)
        return None if covered is None or covered.from_version is None else dataclasses.replace(covered, initial=True)

    def present(self, stream: Stream) -> Range:
        """Returns the range of the current files, as if all were delivered, regardless of the kept history.

        Raises:
            StreamStaleError: the source was dropped.
        """
        source = self._source(stream)
        version, table_id = _head(stream, source)
        return Range(source, table_id, version, version, True, stream.mode is StreamMode.APPEND_ONLY)

    def has_data(self, stream: Stream) -> bool:
        """True if a read may return rows. Checks the log without Spark. Also True for commits without data.

        Raises:
            StreamStaleError: the source was dropped or replaced.
        """
        return _has_data(stream, self._source(stream))

    def stale_after(self, stream: Stream) -> datetime | None:
        """Returns when the first unconsumed changes may be deleted, or None without changes or without
        deletion."""
        return None if stream.offset is None else self._source(stream).stale_after(stream.offset)

    def lag(self, stream: Stream) -> tuple[int, int] | None:
        """Returns unconsumed rows and the bytes of their new files from the catalog, or None for a table."""
        if stream.source_kind is SourceKind.TABLE:
            return None
        since = None if stream.initial else stream.offset  # the initial rows precede the changes
        return self._catalog.refreshes.changed_after(stream.source_id, since)

    def only_upkeep(self, covered: Range) -> bool:
        """True if a range has only commits without data, by the log. The offset may then move past it."""
        if covered.initial or covered.from_version is None:
            return False
        return covered.source.only_upkeep(covered.from_version, covered.to_version)

    def frame(self, session: SparkSession, covered: Range) -> DataFrame:
        """Returns the stream's rows over a range, lazily: the change columns, then the source's columns.

        Do not make the frame a temporary view: Spark 4.2 loses its range of changes. See :meth:`query`.

        Raises:
            StreamSchemaChangedError: the source's columns changed in the range.
        """
        views = Views(session)
        return views.release_with(session.sql(self.query(views, covered)))

    def query(self, views: Views, covered: Range) -> str:
        """Returns the SQL of :meth:`frame`. It reads one of ``views``, in their session."""
        source = covered.source
        columns = source.columns(covered.to_version)
        if covered.empty:
            return nothing(source.rows(covered.to_version), columns)
        if source.is_large:
            compile_in(views.spark)
        times = source.times()
        view = None if times is None else views.show(relation(views.spark, times))
        both = not (covered.initial or covered.append_only)
        changes = covered.changes()
        content = source.content(covered.to_version) if both and not covered.is_snapshot else None
        if content is not None:
            changes = without_repeated(changes, content)
        return stream_rows(changes, columns, view, both_images=both)

    def unlisted(self, session: SparkSession) -> DataFrame:
        """Returns the frame of a stream on a volume that was never listed: the right columns without rows."""
        return relation(session, _UNLISTED.empty_table())

    def range_of(self, plan: Plan, stream: Stream) -> Range:
        """Returns the range of a plan of the stream."""
        append_only = stream.mode is StreamMode.APPEND_ONLY
        source = self._source(stream)
        return Range(source, plan.table_id, plan.from_version, plan.to_version, plan.initial, append_only)

    def _source(self, stream: Stream) -> ChangeSource:
        is_volume = stream.source_kind is SourceKind.VOLUME
        volume = self._catalog.volumes.by_id(stream.source_id) if is_volume else None
        if is_volume and volume is None:
            raise _stale(stream, f"its volume {stream.source_name} was dropped or replaced")
        return source_of(self._catalog, self._warehouse, stream, volume)


_UNLISTED = pa.schema(
    [
        ("__change_type", pa.string()),
        ("__commit_version", pa.int64()),
        ("__commit_timestamp", pa.timestamp("us", tz="UTC")),
        *((field.name, field.type) for field in table.SCHEMA),
    ]
)


def _has_data(stream: Stream, source: ChangeSource) -> bool:
    return (stream.initial and stream.offset is not None) or source.has_newer(stream.offset, stream.table_id)


def _head(stream: Stream, source: ChangeSource) -> tuple[int, str]:
    """Returns the newest version of a stream's source and the table's id. Raises StreamStaleError if it was
    dropped."""
    head = source.head()
    if head is None:
        raise _stale(stream, f"{source.noun} no longer exists")
    return head


def _pinned(stream: Stream, source: ChangeSource) -> Range | None:
    head = source.head()
    if head is None:
        if stream.table_id is not None:
            raise _stale(stream, f"{source.noun} no longer exists")
        return None
    version, table_id = head
    if stream.table_id not in (None, table_id):
        raise _stale(stream, f"{source.noun} was re-created")
    start = stream.offset
    if start == 0 and stream.source_kind is SourceKind.VOLUME:
        start = None  # the source was empty at that time
    if start is not None and version < start and stream.source_kind is SourceKind.TABLE:
        raise _stale(stream, f"it has consumed {source.noun} up to version {start}, which now ends at {version}: it was restored")
    if start is not None and not stream.initial:
        missing = source.missing(start, version)
        if missing is not None:
            raise _stale(stream, missing)
    initial = stream.initial and start is not None
    to = start if initial and start is not None else max(version, start or 0)
    return Range(source, table_id, start, to, initial, stream.mode is StreamMode.APPEND_ONLY)


def _stale(stream: Stream, reason: str) -> StreamStaleError:
    return StreamStaleError(
        f"The stream {stream.name} is stale: {reason}.",
        f"For a job of files: volstream heal JOB, which processes what it lacks. Otherwise, if there is a {stream.source_kind} "
        f"{stream.source_name} now, skip what has changed: volstream advance-stream {stream.name}; or go back to a version "
        "(reset-stream --to-version). A stream that no job consumes can be replaced (create-stream --or-replace).",
    )


_NO_VERSION = "CAST(NULL AS BIGINT)"


def present(rows: str, columns: Sequence[str], row_version: str, row_time: str = NO_TIME) -> str:
    """Returns SQL for existing rows, each as ``new``, in the format of
    :func:`volstream.changes.changelog.net_changes_query`.

    Args:
        rows: a relation.
        row_version, row_time: SQL for the version that wrote a row, and for that version's time.
    """
    image = f"struct({struct_of(columns)} AS data, {row_version} AS wrote, {row_time} AS wrote_on)"
    return (
        f"SELECT CASE WHEN false THEN {image} END AS old, {image} AS new, {_NO_VERSION} AS version, {NO_TIME} AS time FROM {rows}"
    )


def nothing(rows: str, columns: Sequence[str]) -> str:
    """Returns SQL for the columns of a stream on a relation, without rows. Reads no data."""
    selected = ", ".join(map(quoted, columns))
    return (
        f"SELECT CAST(NULL AS STRING) AS __change_type, {_NO_VERSION} AS __commit_version, "
        f"{NO_TIME} AS __commit_timestamp, {selected} FROM {rows} LIMIT 0"
    )


def stream_rows(changes: str, columns: Sequence[str], times: str | None, *, both_images: bool) -> str:
    """Returns SQL for a stream's rows: change type, version and time of each image, and the source's columns.

    Args:
        changes: SQL with the columns ``old``, ``new``, ``version``, ``time``.
        times: name of a view (``version``, ``time``) with the times of versions, NULL for a version that
            wrote no row. None if each image has its time.
        both_images: include ``old`` images. Otherwise every row is an INSERT.
    """
    inserted = _entry("INSERT", "new", "version", "time")
    if both_images:
        deleted = _entry("DELETE", "old", _NO_VERSION, NO_TIME)
        before = _entry("UPDATE_BEFORE", "old", _NO_VERSION, NO_TIME)
        after = _entry("UPDATE_AFTER", "new", "version", "time")
        entries = (
            f"CASE WHEN old IS NULL THEN array({inserted}) WHEN new IS NULL THEN array({deleted}) "
            f"ELSE array({before}, {after}) END"
        )
    else:
        entries = f"array({inserted})"
    selected = ", ".join(f"c.image.data.{quoted(name)} AS {quoted(name)}" for name in columns)
    stamp = "c.image.wrote_on, CASE WHEN c.version = c.image.wrote THEN c.time END"
    time, joined = (stamp, "") if times is None else (f"r.time, {stamp}", f" LEFT JOIN {times} r ON r.version = c.image.wrote")
    wrote = "c.image.wrote"
    if times is not None:
        wrote = f"CASE WHEN r.version IS NULL OR r.time IS NOT NULL THEN {wrote} END"
    return (
        f"SELECT c.change_type AS __change_type, {wrote} AS __commit_version, coalesce({time}) AS __commit_timestamp, "
        f"{selected} FROM (SELECT inline({entries}) FROM ({changes})) c{joined}"
    )


def _entry(change_type: str, image: str, version: str, time: str) -> str:
    return f"named_struct('change_type', '{change_type}', 'image', {image}, 'version', {version}, 'time', {time})"


# ``session.changes`` and ``CHANGES FROM``: changes of tables and directories, in the format of Spark's
# ``read.changes``.


def query(
    catalog: Catalog,
    warehouse: str,
    of: Name,
    first: int | datetime,
    last: int | datetime | None,
    mode: str,
    *,
    compute_updates: bool,
    identity: Sequence[str] = (),
    directory: bool = False,
) -> str:
    """Returns SQL for the changes between two versions or times, both included. Raises like
    :meth:`volstream.Session.changes`.

    Args:
        identity: columns that identify a row. By default, Delta's row ids do.
        directory: True if ``of`` is the name of a volume, to use its directory table.
    """
    deduplication = next((option for option in Deduplication if option.lower() == mode.lower()), None)
    if deduplication is None:
        allowed = ", ".join(option.value for option in Deduplication)
        raise InvalidValueError(f"deduplicationMode cannot be {mode!r}.", f"Choose one of {allowed}.")
    source: VolumeSource | TableSource
    if directory:
        if identity:
            raise InvalidValueError("The rows of a directory are files, identified by path: no other identity is possible.")
        source, what = VolumeSource(catalog, warehouse, catalog.volumes.get(of).id), f"directory of volume {of}"
    else:
        source, what = TableSource(of, places.table_location(warehouse, of), warehouse), f"table {of}"
    head = source.head()
    if head is None:
        raise NotFoundError(f"There is no {what}.")
    if isinstance(first, datetime):
        first = _from(source, what, first)
    elif first != head[0] + 1:  # after the newest version, the range is empty
        first = source.resolve(what, first, None)
    if isinstance(last, datetime):
        last = source.resolve(what, None, last)
    else:
        last = head[0] if last is None else source.resolve(what, last, None)
    empty = last == head[0] < first
    if empty:
        first = last
    if last < first:
        raise InvalidValueError(f"The range ends at version {last}, before it begins at version {first}.")
    changelog: Changelog
    if isinstance(source, VolumeSource):
        changelog = source.changelog(first, last)
    else:
        schema = _tracked(source, first, last)
        keyed = replace(source, key=tuple(schema.ids_of(identifying(of, schema, identity))))
        changelog = keyed.every_change(first, last, net=deduplication is Deduplication.NET_CHANGES)
    text = changes_query(changelog, first, last, deduplication, compute_updates=compute_updates)
    return f"SELECT * FROM ({text}) LIMIT 0" if empty else text


def _tracked(source: TableSource, first: int, last: int) -> Schema:
    """Returns the columns at the last version.

    Raises:
        InvalidStateError: the table's changes are not tracked.
        InvalidValueError: changes are tracked now, but were not at the first or last version.
    """
    after, now = schema_at(source.location, last), schema_at(source.location)
    assert after is not None, "the version is in the log"
    check_tracked(source.name, now or after)
    if not all(schema is not None and tracked(schema) for schema in (schema_at(source.location, first), after)):
        since = source.tracked_since(min(first, last))
        raise InvalidValueError(
            f"The changes of table {source.name} have been tracked since version {since}.",
            f"Give FROM VERSION {since}, or a later one.",
        )
    return after


def _from(source: VolumeSource | TableSource, what: str, moment: datetime) -> int:
    """Returns the first version at or after a time. Raises InvalidValueError if that is in the future or
    before the history."""
    at = source.resolve(what, None, moment)
    try:
        return source.resolve(what, None, moment - timedelta(microseconds=1)) + 1
    except InvalidValueError:  # the history begins at this time
        return at
