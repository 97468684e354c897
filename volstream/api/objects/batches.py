"""Batches: files that were or will be consumed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from volstream.api.objects.jobs import Jobs
from volstream.base.definitions import FileJob
from volstream.base.model.arguments import checked
from volstream.base.model.work import Batch, Failure, PlanKind
from volstream.errors import InvalidStateError, NotFoundError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from volstream.home import Home


@checked
class Batches:
    """Slices of streams' ranges that jobs processed or will process together, identified by id."""

    def __init__(self, home: Home, jobs: Jobs) -> None:
        self._home = home
        self._jobs = jobs

    def list(self, job: str | None = None, *, limit: int = 1000) -> Sequence[Batch]:
        """Returns the newest batches, of one job or of all."""
        job_id = self._jobs.get(job).id if job else None
        return self._home.catalog.reports.batches_of(job_id, limit=limit)

    def get(self, identity: str) -> Batch:
        """Returns the batch with that id. Raises NotFoundError."""
        batch = self._home.catalog.reports.batch(identity)
        if batch is None:
            raise NotFoundError(f"There is no batch {identity!r}.", "See: volstream list batches.")
        return batch

    def failures(self, identity: str) -> Sequence[Failure]:
        """Returns the failures of a batch's files that have neither changed nor been processed since."""
        batch = self.get(identity)
        return self._home.catalog.failures.active(batch.job_id, after=batch.after_path, until=batch.until_path, batch_id=batch.id)

    def read(self, identity: str) -> DataFrame:
        """Returns the files of a batch, the same at each call: the directory's columns, ``commit_version``, the file's
        ``action``, and for a moved one its ``old_path``. For a batch of a statement: the stream's rows.

        Raises:
            NotFoundError: no such batch.
            InvalidStateError: a batch of retries has ended; its stream was dropped; the history that it needs is no longer kept.
        """
        batch = self.get(identity)
        plan = self._home.catalog.reports.plan(batch.plan_id)
        stream = self._home.catalog.streams.by_id(batch.stream_id)
        assert plan is not None, "a batch refers to its plan"
        if stream is None:
            raise InvalidStateError(f"The stream of batch {identity} was dropped.")
        if plan.kind is PlanKind.STATEMENT:
            reader = self._home.reader
            return reader.frame(self._home.spark, reader.range_of(plan, stream))
        job = self._home.catalog.jobs.by_id(batch.job_id) if batch.job_id else None
        assert isinstance(job, FileJob), "except for those of statements, batches belong to a job, and are removed with it"
        services = self._jobs.services
        with services.session(self._home.spark) as session:  # whose frames can be joined with others
            return services.planner.files_of(session, job, plan, batch, stream)
