"""Reading a stream: pin a range once, tell whether there is anything in it, and show it. Reading never moves an offset (R-9)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from volstream.catalog import Catalog
from volstream.delta.log import DeltaLog
from volstream.directory import table
from volstream.errors import StreamStaleError
from volstream.model.objects import Mode, Stream
from volstream.model.work import Plan
from volstream.spark.frames import relation
from volstream.streams import few, net

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession


@dataclass(frozen=True)
class Range:
    """What a read of a stream covers: the versions ``(from_version, to_version]``, pinned.

    Attributes:
        location: of the directory table.
        from_version: excluded; None: EMPTY, everything since the table was made.
        to_version: included.
        initial: not changes but the rows present at ``to_version``; in a replay those that were at ``from_version``, too.
    """

    volume_id: str
    location: str
    table_id: str
    from_version: int | None
    to_version: int
    initial: bool
    append_only: bool

    @property
    def empty(self) -> bool:
        """Whether no version is in the range."""
        return not self.initial and self.to_version <= (-1 if self.from_version is None else self.from_version)

    def changes(self) -> str:
        """SQL with the columns ``old``, ``new``, ``version``, ``time`` (see :mod:`volstream.streams.net`)."""
        if self.initial:
            return net.present(self.location, self.to_version)
        first = 0 if self.from_version is None else self.from_version + 1
        shape = net.appended if self.append_only else net.net
        return shape(self.location, first, self.to_version)


class StreamReader:
    """Reads streams of directory tables."""

    def __init__(self, catalog: Catalog, warehouse: str) -> None:
        self._catalog = catalog
        self._warehouse = warehouse

    def pin(self, stream: Stream) -> Range | None:
        """The range that a read begun now covers; None while the volume has never been listed.

        Raises:
            StreamStaleError: the volume was dropped or replaced, or a part of the range's history is gone.
        """
        log = self._log(stream)
        head = log.head()
        if head is None:
            if stream.table_id is not None:
                raise _stale(stream, "its directory table is gone")
            return None
        version, table_id = head
        if stream.table_id not in (None, table_id):
            raise _stale(stream, "its directory table was made anew")
        if stream.offset is not None and not stream.initial and not log.readable_from(stream.offset):
            raise _stale(stream, f"the changes after version {stream.offset} are not kept any more")
        initial = stream.initial and stream.offset is not None
        to = stream.offset if initial and stream.offset is not None else version
        append_only = stream.mode is Mode.APPEND_ONLY
        return Range(stream.source_id, log.location, table_id, stream.offset, to, initial, append_only)

    def delivered(self, stream: Stream) -> Range | None:
        """The files that were consumed and are still there; None where nothing was. Raises as :meth:`pin`."""
        covered = None if stream.offset is None or stream.initial else self.pin(stream)
        return None if covered is None else dataclasses.replace(covered, initial=True)

    def has_data(self, stream: Stream) -> bool:
        """Whether a read may return rows. Asks the log, not Spark; true also for commits without data (R-22).

        Raises:
            StreamStaleError: the volume was dropped or replaced.
        """
        log = self._log(stream)
        if stream.initial and stream.offset is not None:
            return True
        if stream.offset is None:
            version = log.latest_version()
            return version is not None and version > 0
        return log.has_newer(stream.offset)

    def lag(self, stream: Stream) -> tuple[int, int]:
        """Changed rows that are not consumed, and bytes of new files among them, by the catalog."""
        since = None if stream.initial else stream.offset  # before the changes come the rows that were there
        return self._catalog.refreshes.changed_after(stream.source_id, since)

    def only_upkeep(self, covered: Range) -> bool:
        """Whether a range holds nothing but commits without data, by the log alone: its offset may move past it."""
        if covered.initial or covered.from_version is None:
            return False
        commits = DeltaLog(covered.location).commits_after(covered.from_version)
        within = [commit for commit in commits if commit.version <= covered.to_version]
        whole = len(within) == covered.to_version - covered.from_version
        return whole and all(commit.operation == "OPTIMIZE" for commit in within)

    def frame(self, session: SparkSession, covered: Range | None) -> DataFrame:
        """The stream's rows over a range, lazily: the change columns, then the directory's."""
        if covered is None or covered.empty:
            return relation(session, _EMPTY)
        relation(session, self.refresh_versions(covered.volume_id)).createOrReplaceTempView("volstream_refreshes")
        both = not (covered.initial or covered.append_only)
        return session.sql(net.stream_rows(covered.changes(), "volstream_refreshes", both_images=both))

    def few(self, covered: Range) -> pa.Table:
        """The net changes of a range that holds few; see :mod:`volstream.streams.few`."""
        if covered.initial:
            written = {one.number: one.version for one in self._catalog.refreshes.committed(covered.volume_id)}
            return few.present(covered.location, covered.to_version, written)
        first = 0 if covered.from_version is None else covered.from_version + 1
        return few.changed(covered.location, first, covered.to_version, append_only=covered.append_only)

    def latest_version(self, stream: Stream) -> int:
        """The newest version of the stream's directory table. Raises StreamStaleError where there is none any more."""
        version = self._log(stream).latest_version()
        if version is None:
            raise _stale(stream, "its directory table is gone")
        return version

    def range_of(self, plan: Plan, stream: Stream) -> Range:
        """The range that a plan of the stream was made from."""
        location = table.location(self._warehouse, stream.source_id)
        append_only = stream.mode is Mode.APPEND_ONLY
        return Range(
            stream.source_id, location, plan.table_id, plan.from_version, plan.to_version, plan.initial, append_only
        )

    def refresh_versions(self, volume_id: str | None) -> pa.Table:
        """Which Delta version each committed refresh of a volume wrote, and when: one row a refresh, not a file.

        Args:
            volume_id: None: no rows, where the question does not arise.
        """
        committed = self._catalog.refreshes.committed(volume_id) if volume_id else []
        columns = {
            "refresh_id": [refresh.number for refresh in committed],
            "version": [refresh.version for refresh in committed],
            "time": [refresh.committed_on for refresh in committed],
        }
        return pa.table(columns, schema=_REFRESHES)

    def _log(self, stream: Stream) -> DeltaLog:
        if self._catalog.volumes.by_id(stream.source_id) is None:
            raise _stale(stream, f"its volume {stream.source_name} was dropped or replaced")
        return DeltaLog(table.location(self._warehouse, stream.source_id))


_REFRESHES = pa.schema([("refresh_id", pa.int64()), ("version", pa.int64()), ("time", pa.timestamp("us", tz="UTC"))])

_EMPTY = pa.schema(
    [
        ("__change_type", pa.string()),
        ("__commit_version", pa.int64()),
        ("__commit_timestamp", pa.timestamp("us", tz="UTC")),
        *((field.name, field.type) for field in table.SCHEMA),
    ]
).empty_table()


def _stale(stream: Stream, reason: str) -> StreamStaleError:
    return StreamStaleError(
        f"The stream {stream.name} is stale: {reason}.",
        "Replace it (create-stream --or-replace) on a volume that exists.",
    )
