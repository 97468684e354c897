"""The source of a stream on a volume: the volume's directory, whose versions are the numbers of its refreshes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from volstream.base.definitions import Volume
from volstream.base.model.units import local
from volstream.catalog import Catalog
from volstream.changes.changelog.base import Changelog
from volstream.changes.directory import table
from volstream.changes.directory.snapshot import Snapshot
from volstream.errors import InvalidValueError, NotFoundError
from volstream.spark.jvm.command import LARGE_BYTES, LARGE_ROWS
from volstream.tables.delta import durable


@dataclass(frozen=True)
class VolumeSource:
    """A volume's directory: paths identify rows, and rows carry the refresh that wrote them and its time.

    See :class:`~volstream.changes.streams.source.TableSource`, whose methods it has.
    """

    catalog: Catalog
    warehouse: str
    id: str
    #: The volume as it was just read; None: it is read where it is needed.
    volume: Volume | None = None

    noun = "its directory table"
    row_version = "refresh_id"
    row_time = "refreshed_on"

    def find(self) -> Snapshot | None:
        """Returns the current directory, or None if none was ever written."""
        return Snapshot.open(table.location(self.warehouse, self.id), self.id)

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
        """See :class:`~volstream.changes.streams.source.TableSource`. Refreshes in the catalog are durable."""
        if self.has_newer(version - 1, table_id):
            return
        snapshot = self.snapshot()
        for view in (snapshot.base, snapshot.tail):
            durable.sync(view.spec.location, view.table_id, view.version)

    def content(self, version: int) -> None:  # a new row is another version of a file
        """See :class:`~volstream.changes.streams.source.TableSource`."""

    def missing(self, after: int, until: int) -> str | None:  # noqa: ARG002  # the tail has all from its floor on
        """See :class:`~volstream.changes.streams.source.TableSource`."""
        floor = self.snapshot().floor
        return f"the changes after refresh {after} are no longer kept" if after < floor else None

    def has_newer(self, version: int | None, table_id: str | None) -> bool:  # noqa: ARG002  # a directory lives as its volume
        """True if the catalog has a later refresh."""
        volume = self.volume or self.catalog.volumes.by_id(self.id)
        return volume is not None and volume.refresh_count > (version or 0)

    def stale_after(self, offset: int) -> datetime | None:  # noqa: ARG002  # what streams need is kept
        """Returns None: unconsumed changes are kept for streams."""
        return None

    def redefined(self, after: int, until: int) -> bool:  # noqa: ARG002  # all directories have the same columns
        """Returns False."""
        return False

    def only_upkeep(self, after: int, until: int) -> bool:
        """True if there is no refresh in ``(after, until]``: every refresh changes rows."""
        return after >= until

    def columns(self, version: int) -> Sequence[str]:  # noqa: ARG002  # they are the same at all refreshes
        """Returns the directory's columns."""
        return table.COLUMNS

    def rows(self, version: int) -> str:
        """Returns SQL for the directory at a refresh."""
        return f"({self.snapshot().at_query(version)})"

    def changelog(self, first: int, last: int, *, append_only: bool = False) -> Changelog:  # noqa: ARG002  # nor is this
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
        """See :class:`~volstream.changes.streams.source.TableSource`."""
        snapshot = self.find()
        if snapshot is None:
            raise InvalidValueError(f"The {what} has no history yet.", "Refresh the volume first.")
        first = 0 if snapshot.floor <= 1 else snapshot.floor  # everything since the first refresh is known
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
    """A directory's changes as a changelog. The tail has every change with both images, and the refresh that wrote each."""

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
        """See :class:`~volstream.changes.changelog.base.Changelog`."""
        return self.snapshot.changes_query(first - 1, last)
