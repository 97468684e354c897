"""A reconcile: a full listing of a volume or subtree, compared with the directory table in Spark; one commit at most.

A listing only proposes (events.md, rule 5): a row is removed only after a look at its key found nothing, and what is missing
is computed against the very version that the refresh commits upon. Events that arrive while the listing runs are folded
after it by the same writer, so they have the last word.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyarrow import fs

from volstream.catalog import Catalog
from volstream.delta.log import Commit
from volstream.delta.writer import literal, parquet_at, table_at
from volstream.directory import table
from volstream.directory.confirm import Confirm
from volstream.directory.listing import Listing, list_to
from volstream.directory.writer import Base, Counts, DirectoryWriter
from volstream.model.hints import Rejection
from volstream.spark.errors import map_spark_errors
from volstream.storage.base import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.spark.session import SparkGateway


@dataclass(frozen=True)
class Reconciled:
    """What a reconcile found.

    Attributes:
        counts: rows that were missing, changed, and phantom.
        commit: None where nothing differed.
        unsettled: files that were still being written; they should be looked at again.
    """

    files: int
    bytes: int
    counts: Counts
    commit: Commit | None
    findings: int
    unsettled: Sequence[str]
    seconds: float


def reconcile(
    writer: DirectoryWriter,
    gateway: SparkGateway,
    store: ObjectStore,
    catalog: Catalog,
    staging: str,
    *,
    prefix: str = "",
    cause: str = "reconcile",
    settle_seconds: float,
    wait: Callable[[float], object] = time.sleep,
) -> Reconciled:
    """Lists everything below ``prefix`` and makes the directory table true for it.

    Args:
        staging: folder of the warehouse for files that live only as long as this call.

    Raises:
        StorageError: the listing did not end; nothing was changed.
        FencedError: another writer took over.
    """
    started = time.monotonic()
    base = writer.open()
    folder = f"{staging}/listing-{uuid.uuid4().hex}"
    try:
        listing = list_to(
            f"{folder}/listed.parquet", store, prefix, writer.volume.selection, settle_seconds=settle_seconds, wait=wait
        )
        catalog.refreshes.reject(
            writer.volume.id, [Rejection(finding.path, finding.reason) for finding in listing.findings]
        )
        counts, commit = Counts(), None
        if not _unchanged(writer, base, listing, prefix):
            counts, commit = _apply(writer, gateway, store, base, folder, prefix, cause)
    finally:
        _remove(folder)
    if not prefix and not listing.unsettled:
        writer.volume = catalog.volumes.change(
            writer.volume,
            listing_digest=listing.digest,
            listing_refresh=writer.volume.refresh_count,
            reconciled_on=datetime.now(UTC),
        )
    elif not prefix:
        writer.volume = catalog.volumes.change(writer.volume, reconciled_on=datetime.now(UTC))
    return Reconciled(
        listing.files,
        listing.bytes,
        counts,
        commit,
        listing.finding_count,
        listing.unsettled,
        time.monotonic() - started,
    )


def _unchanged(writer: DirectoryWriter, base: Base, listing: Listing, prefix: str) -> bool:
    """Whether this is the listing of the last reconcile, and nothing was committed since: no need to ask Spark."""
    volume = writer.volume
    same = volume.listing_digest == listing.digest and volume.listing_refresh == base.refresh_count
    return not prefix and not listing.unsettled and same


def _apply(
    writer: DirectoryWriter,
    gateway: SparkGateway,
    store: ObjectStore,
    base: Base,
    folder: str,
    prefix: str,
    cause: str,
) -> tuple[Counts, Commit | None]:
    """Finds what differs, keeps it in files (a MERGE reads its source twice), and commits it."""
    changes_path = f"{folder}/changes"
    with map_spark_errors():
        session = gateway.session()
        differing = session.sql(_difference(writer.location, base.version, f"{folder}/listed.parquet", prefix))
        confirmed = differing.mapInArrow(Confirm(store), differing.schema)
        confirmed.sortWithinPartitions("relative_path").write.parquet(changes_path)
        totals = session.sql(
            f"SELECT action, count(*) AS files, sum(size) AS bytes FROM {parquet_at(changes_path)} GROUP BY action"
        )
        found = {row["action"]: row for row in totals.toArrow().to_pylist()}
        inserted, updated, deleted = (
            found[action]["files"] if action in found else 0 for action in ("insert", "update", "delete")
        )
        size = sum(found[action]["bytes"] for action in found.keys() - {"delete"})
        counts = Counts(inserted, updated, deleted, size)
        if not counts:
            return counts, None

        def changes(marked: SparkSession) -> DataFrame:
            # By range, so that the files of a large directory cover disjoint paths and can be pruned.
            return marked.read.parquet(changes_path).sort("relative_path")

        return counts, writer.commit(
            base, "bootstrap" if base.version == 0 else cause, counts, changes, _below("t", prefix)
        )


def _difference(location: str, version: int, listed: str, prefix: str) -> str:
    """SQL: rows of the listing that the directory lacks or shows otherwise, and rows that the listing lacks."""
    differs = " OR ".join(f"NOT (l.{name} <=> d.{name})" for name in table.CONTENT)
    columns = ", ".join(f"coalesce(l.{name}, d.{name}) AS {name}" for name in table.COLUMNS)
    action = (
        "CASE WHEN d.relative_path IS NULL THEN 'insert' WHEN l.relative_path IS NULL THEN 'delete' ELSE 'update' END"
    )
    return (
        f"SELECT {columns}, {action} AS action FROM {parquet_at(listed)} l FULL OUTER JOIN "
        f"(SELECT * FROM {table_at(location)} VERSION AS OF {version} d WHERE {_below('d', prefix)}) d "
        f"ON l.relative_path = d.relative_path WHERE l.relative_path IS NULL OR d.relative_path IS NULL OR {differs}"
    )


def _below(alias: str, prefix: str) -> str:
    """SQL: paths that begin with ``prefix``, as a range that file statistics can prune by."""
    if not prefix:
        return "true"
    after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return f"{alias}.relative_path >= {literal(prefix)} AND {alias}.relative_path < {literal(after)}"


def _remove(folder: str) -> None:
    filesystem, path = fs.FileSystem.from_uri(folder)
    if filesystem.get_file_info(path).type != fs.FileType.NotFound:
        filesystem.delete_dir(path)
