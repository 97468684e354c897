"""Whose files a plan has: asks catalog and directory, and writes the plan's files. How batches are cut is ``jobs.plan``'s."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from volstream.catalog import Catalog
from volstream.errors import InvalidStateError
from volstream.jobs import plan
from volstream.model.objects import Stream
from volstream.model.work import Batch, Failure, Plan, PlanKind
from volstream.streams.read import Range, StreamReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession


class Planner:
    """Writes plans, and finds their files again when what was written is gone."""

    def __init__(self, catalog: Catalog, reader: StreamReader) -> None:
        self._catalog = catalog
        self._reader = reader

    def write_range(self, session: SparkSession, covered: Range, where: str | None, location: str) -> None:
        """Plans the net changes of a stream's range that pass ``where``."""
        # All rows there are, for an initial range; what changed since, for any other.
        since = None if covered.initial else covered.from_version
        changed, _ = self._catalog.refreshes.changed_after(covered.volume_id, since)
        plan.write(self._changes(session, covered, where), location, changed)

    def write_retry(
        self, session: SparkSession, covered: Range, version: int, due: Sequence[Failure], location: str
    ) -> None:
        """Plans failed files as the directory has them at ``version``."""
        names = ("path", "file_version", "commit_version")
        failed = pa.table({name: [getattr(one, name) for one in due] for name in names})
        plan.write(plan.retry_files(session, covered.location, version, failed), location, len(due))

    def write_again(self, session: SparkSession, made: Plan, stream: Stream) -> bool:
        """Writes the files of a plan as they were; false where what they were is not known any more."""
        if made.kind is PlanKind.RETRY:
            return False
        self.write_range(session, self._reader.range_of(made, stream), made.where, made.location)
        return True

    def files_of(self, session: SparkSession, made: Plan, batch: Batch, stream: Stream) -> DataFrame:
        """The files of a batch, lazily: the directory's columns, ``commit_version`` and ``action``.

        Raises:
            InvalidStateError: the batch is one of retries, and its plan has ended.
        """
        if plan.exists(made.location):
            return plan.slice_of(session, made, batch)
        if made.kind is PlanKind.RETRY:
            raise InvalidStateError(
                f"Which files batch {batch.id} tried again is not kept after its end.",
                f"Its rows have _batch_id = '{batch.id}', its failures: volstream describe batch {batch.id}.",
            )
        return plan.within(self._changes(session, self._reader.range_of(made, stream), made.where), batch)

    def _changes(self, session: SparkSession, covered: Range, where: str | None) -> DataFrame:
        versions = self._reader.refresh_versions(covered.volume_id if covered.initial else None)
        return plan.stream_files(session, covered, versions, where)
