"""The one writer of a volume's directory table: numbered refreshes, each at most one commit, settled after a crash.

Refresh n is an INTENT in the catalog, one Delta commit with ``txnVersion = n`` whose rows carry ``refresh_id = n``, and the
catalog's record of which version that was. What is compared with what, and why, is in ``directory.refresh`` (single keys) and
``directory.reconcile`` (listings).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from volstream.catalog import Catalog
from volstream.delta.log import Commit, DeltaLog
from volstream.delta.writer import DeltaWriter, Marker, table_at
from volstream.directory import table
from volstream.errors import FencedError, NotFoundError
from volstream.lifecycle import faults
from volstream.model.objects import Volume

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

_COLUMNS = ", ".join(table.COLUMNS)
_SET = ", ".join(f"t.{name} = s.{name}" for name in (*table.COLUMNS, "refresh_id"))
_VALUES = ", ".join(f"s.{name}" for name in (*table.COLUMNS, "refresh_id"))


@dataclass(frozen=True)
class Counts:
    """Rows that a refresh inserts, updates and deletes, and the bytes of the new and changed files."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, changed: pa.Table | pa.RecordBatch) -> Counts:
        """Those of changed rows, by their columns ``action`` and ``size``."""
        numbers = {one["values"]: one["counts"] for one in pc.value_counts(changed["action"]).to_pylist()}
        size = pc.sum(pc.if_else(pc.equal(changed["action"], "delete"), 0, changed["size"])).as_py() or 0
        inserted, updated, deleted = (numbers.get(action, 0) for action in ("insert", "update", "delete"))
        return cls(inserted, updated, deleted, size)

    @property
    def rows(self) -> int:
        """All of them."""
        return self.inserted + self.updated + self.deleted

    def __bool__(self) -> bool:
        return self.rows > 0

    def __add__(self, other: Counts) -> Counts:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Counts(*(first + second for first, second in pairs))

    @property
    def inserts_only(self) -> bool:
        """Whether no row of the table has to go."""
        return not (self.updated or self.deleted)


@dataclass(frozen=True)
class Base:
    """What a refresh is computed against.

    Attributes:
        version: the directory table's newest version.
        refresh_count: number of the newest refresh; another one since then fences this one.
    """

    version: int
    refresh_count: int


def frame_of(changes: pa.Table) -> Callable[[SparkSession], DataFrame]:
    """What :meth:`DirectoryWriter.commit` takes, for changes that are in memory.

    Sorted and in one partition, so that the one file of the commit can be pruned by path later.
    """
    ordered = changes.sort_by("relative_path")
    return lambda session: session.createDataFrame(ordered).coalesce(1)


class DirectoryWriter:
    """Commits refreshes of one volume. To be used by the holder of the volume's lease, in one thread."""

    def __init__(self, volume: Volume, catalog: Catalog, delta: DeltaWriter, warehouse: str) -> None:
        self.volume = volume
        self.location = table.location(warehouse, volume.id)
        self._catalog = catalog
        self._delta = delta
        self._log = DeltaLog(self.location)

    def open(self) -> Base:
        """Makes the table where there is none, settles a refresh that a crash left open, and says where things stand.

        Raises:
            NotFoundError: the volume was dropped.
        """
        if not self._log.exists():
            self._delta.create(self.location, table.DDL, table.PROPERTIES)
        current = self._catalog.volumes.by_id(self.volume.id)
        if current is None:
            raise NotFoundError(f"The volume {self.volume.name} was dropped.")
        self._settle_open()
        # The version is read after the number: whoever begins a refresh in between fences this one.
        head = self._log.head()
        assert head is not None, "the table was there before"
        self.volume = self._catalog.volumes.change(current, table_id=head[1])
        return Base(head[0], current.refresh_count)

    def commit(
        self,
        base: Base,
        cause: str,
        counts: Counts,
        changes: Callable[[SparkSession], DataFrame],
        pruning: str,
    ) -> Commit:
        """Commits one refresh.

        Args:
            base: as :meth:`open` returned it before the changes were computed.
            changes: makes, in a given session, the frame of changed rows: the directory's columns, and ``action``:
                ``insert``, ``update`` or ``delete``. Paths are unique.
            pruning: SQL on the target ``t`` that holds for every row the changes touch, so that files can be skipped.

        Raises:
            FencedError: another writer took over since ``base``.
        """
        number = self._catalog.refreshes.begin(self.volume, cause, base.version, base.refresh_count)
        faults.point("refresh.intent")
        metadata = {
            "refresh": number, "volume": str(self.volume.name), "cause": cause,
            "inserted": counts.inserted, "updated": counts.updated, "deleted": counts.deleted,
            "bytes": counts.bytes,
        }  # fmt: skip
        marker = self._marker(number, metadata)
        with self._delta.marked(marker, self.location, rows=counts.rows) as session:
            numbered = changes(session).selectExpr(*table.COLUMNS, "action", f"CAST({number} AS BIGINT) AS refresh_id")
            if counts.inserts_only:
                # Blind: this volume's one writer has just seen, in the version it commits upon, that the rows are new.
                self._delta.append(session, numbered.drop("action"), self.location)
            else:
                numbered.createOrReplaceTempView("changes")
                self._delta.merge(
                    session,
                    f"MERGE INTO {table_at(self.location)} t USING changes s "
                    f"ON t.relative_path = s.relative_path AND {pruning} "
                    "WHEN MATCHED AND s.action = 'delete' THEN DELETE "
                    f"WHEN MATCHED THEN UPDATE SET {_SET} "
                    f"WHEN NOT MATCHED AND s.action <> 'delete' THEN INSERT ({_COLUMNS}, refresh_id) VALUES ({_VALUES})",
                )
        faults.point("refresh.committed")
        commit = self._find(number, base.version)
        if commit is None:
            raise FencedError(f"Refresh {number} of volume {self.volume.name} was fenced off by another writer.")
        self._settle(number, commit)
        self.volume = replace(self.volume, refresh_count=number)
        return commit

    def _settle_open(self) -> None:
        """Settles the refresh that was begun and not ended: committed if its marker is in the log, else fenced off."""
        found = self._catalog.refreshes.open(self.volume)
        if found is None:
            return
        number, base_version = found
        commit = self._find(number, base_version)
        if commit is None:
            self._delta.fence(self.location, self._marker(number, {"fence": number, "volume": str(self.volume.name)}))
            commit = self._find(number, base_version)
        self._settle(number, commit)

    def _settle(self, number: int, commit: Commit | None) -> None:
        metadata = commit.metadata if commit else {}
        self._catalog.refreshes.settle(
            self.volume,
            number,
            commit.version if commit else None,
            tuple(int(metadata.get(name, 0)) for name in ("inserted", "updated", "deleted", "bytes")),
            commit.timestamp if commit else None,
        )

    def _find(self, number: int, base_version: int) -> Commit | None:
        """The commit of refresh ``number``; None where there is none, or a fence in its place."""
        commits = self._log.commits_after(base_version)
        return next((commit for commit in commits if commit.metadata.get("refresh") == number), None)

    def _marker(self, number: int, metadata: dict[str, object]) -> Marker:
        return Marker(table.app_id(self.volume), number, metadata)
