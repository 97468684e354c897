"""What a listing and a directory table differ in: found here where both are small, in Spark where they are not.

How a listing is made is ``directory.listing``'s, what becomes of the difference ``directory.reconcile``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from volstream.delta import folders, rows
from volstream.delta.writer import MOST_NAMED, literal, one_of, parquet_at, table_at
from volstream.directory import table
from volstream.directory.confirm import Confirm, Since
from volstream.directory.listing import Listing
from volstream.directory.writer import Counts, frame_of
from volstream.spark.compiled import compile_in
from volstream.spark.errors import map_spark_errors
from volstream.storage.base import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.spark.session import SparkGateway

#: Listing and table are compared in this process if neither has more rows: tens of megabytes, and no Spark.
_LOCAL_ROWS = 250_000

#: An event takes seconds; providers say minutes where much is going on.
LATE_SECONDS = 120.0

#: So many rows are sorted into one file without the sampling pass of a sort over partitions.
_ONE_FILE_ROWS = 20_000

_CHANGES = table.SCHEMA.append(pa.field("action", pa.string()))


@dataclass(frozen=True)
class Difference:
    """What a refresh has to commit.

    Attributes:
        late: of the new and changed files, those that are not older than the listing by more than :data:`LATE_SECONDS`:
            their events may be under way.
        changes: makes the frame of changed rows, as :meth:`DirectoryWriter.commit` takes it.
        pruning: SQL on ``t``, as it does.
    """

    counts: Counts
    changes: Callable[[SparkSession], DataFrame]
    pruning: str
    late: int


@dataclass(frozen=True)
class Comparison:
    """A listing, and the table to compare it with.

    Attributes:
        folder: for files that live as long as the refresh; the listing is ``listed`` in it.
        prefix: what was listed, empty or ending in ``/``.
        since: what the writer saw since the listing began.
    """

    store: ObjectStore
    location: str
    version: int
    folder: str
    prefix: str
    listing: Listing
    since: Since = field(default_factory=Since)

    @property
    def listed(self) -> str:
        """The listing's folder of Parquet files, with the columns of a directory table."""
        return f"{self.folder}/listed"

    def difference(self, gateway: SparkGateway) -> Difference:
        """Rows that the table lacks or shows otherwise, and rows that the listing lacks and the store too.

        Raises:
            StorageError: a key that the listing lacks could not be looked at.
        """
        if self.version == 0:  # made empty, and never written to
            return self._everything()
        if self.listing.files <= _LOCAL_ROWS:
            where = _below("relative_path", self.prefix, rows.text)
            known = rows.read(self.location, self.version, table.SCHEMA, where, limit=_LOCAL_ROWS + 1)
            if known.num_rows <= _LOCAL_ROWS:
                return self._of_rows(compare(self._listed_rows(), known, Confirm(self.store, self.since)))
        return self._in_spark(gateway)

    def _everything(self) -> Difference:
        def changes(session: SparkSession) -> DataFrame:
            listed = session.read.schema(table.LISTED_DDL).parquet(self.listed).selectExpr("*", "'insert' AS action")
            if self.listing.files <= _ONE_FILE_ROWS:
                return listed.coalesce(1).sortWithinPartitions("relative_path")
            # By range, so that the files of a large directory cover disjoint paths and can be pruned.
            return listed.sort("relative_path")

        return Difference(Counts(inserted=self.listing.files, bytes=self.listing.bytes), changes, "true", 0)

    def _listed_rows(self) -> pa.Table:
        return folders.dataset(self.listed, table.SCHEMA).to_table()

    def _of_rows(self, changed: pa.Table) -> Difference:
        if changed.num_rows <= MOST_NAMED:
            pruning = one_of("t.relative_path", changed["relative_path"].to_pylist())
        else:
            pruning = _below("t.relative_path", self.prefix, literal)
        return Difference(Counts.of(changed), frame_of(changed), pruning, self._late(changed))

    def _in_spark(self, gateway: SparkGateway) -> Difference:
        """Spilled to files, for a MERGE reads its source twice; memory stays flat."""
        spilled = f"{self.folder}/changes"
        with map_spark_errors():
            session = gateway.session()
            compile_in(session)
            differing = session.sql(_difference(self.location, self.version, self.listed, self.prefix))
            confirmed = differing.mapInArrow(Confirm(self.store, self.since), f"{table.LISTED_DDL}, action STRING")
            confirmed.write.parquet(spilled)
        dataset = folders.dataset(spilled, _CHANGES)
        if dataset.count_rows() <= MOST_NAMED:
            return self._of_rows(dataset.to_table())
        counts, late = Counts(), 0
        for batch in dataset.to_batches(columns=["size", "action", "last_modified_time"]):
            counts, late = counts + Counts.of(batch), late + self._late(batch)

        def changes(session: SparkSession) -> DataFrame:
            return session.read.schema(f"{table.LISTED_DDL}, action STRING").parquet(spilled).sort("relative_path")

        return Difference(counts, changes, _below("t.relative_path", self.prefix, literal), late)

    def _late(self, changed: pa.Table | pa.RecordBatch) -> int:
        since = datetime.fromtimestamp(self.listing.began, UTC) - timedelta(seconds=LATE_SECONDS)
        recent = pc.greater_equal(changed["last_modified_time"], pa.scalar(since, pa.timestamp("us", tz="UTC")))
        return pc.sum(pc.and_(recent, pc.not_equal(changed["action"], "delete"))).as_py() or 0


def compare(listed: pa.Table, known: pa.Table, confirm: Confirm) -> pa.Table:
    """The difference of two tables of :data:`table.SCHEMA`, with ``action``: what to do to ``known``, where that holds."""
    keys = ["relative_path", *(name for name in table.CONTENT if name != "version_id"), "version"]
    differing = _versioned(listed).join(_versioned(known).select(keys), keys, join_type="left anti")
    there = pc.is_in(differing["relative_path"], value_set=known["relative_path"])
    changed = differing.select(table.COLUMNS).append_column("action", pc.if_else(there, "update", "insert"))
    missing = known.filter(pc.invert(pc.is_in(known["relative_path"], value_set=listed["relative_path"])))
    deleted = missing.append_column("action", pa.array(["delete"] * missing.num_rows, pa.string()))
    found = pa.concat_tables([changed.cast(_CHANGES), deleted.cast(_CHANGES)])
    return found.filter(confirm.holds(found))


def _versioned(files: pa.Table) -> pa.Table:
    """With a column ``version`` for ``version_id``: a join takes one NULL for another than the next."""
    return files.append_column("version", pc.fill_null(files["version_id"], ""))


def _difference(location: str, version: int, listed: str, prefix: str) -> str:
    """SQL: rows of the listing that the directory lacks or shows otherwise, and rows that the listing lacks."""
    differs = " OR ".join(f"NOT (l.{name} <=> d.{name})" for name in table.CONTENT)
    columns = ", ".join(f"coalesce(l.{name}, d.{name}) AS {name}" for name in table.COLUMNS)
    action = (
        "CASE WHEN d.relative_path IS NULL THEN 'insert' WHEN l.relative_path IS NULL THEN 'delete' ELSE 'update' END"
    )
    below = _below("d.relative_path", prefix, literal)
    return (
        f"SELECT {columns}, {action} AS action FROM {parquet_at(listed)} l FULL OUTER JOIN "
        f"(SELECT * FROM {table_at(location)} VERSION AS OF {version} d WHERE {below}) d "
        f"ON l.relative_path = d.relative_path WHERE l.relative_path IS NULL OR d.relative_path IS NULL OR {differs}"
    )


def _below(column: str, prefix: str, quoted: Callable[[str], str]) -> str:
    """SQL: paths that begin with ``prefix``, as a range that file statistics can prune by."""
    if not prefix:
        return "true"
    after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return f"{column} >= {quoted(prefix)} AND {column} < {quoted(after)}"
