"""What a plan holds, and how large its batches are: asks catalog and directory, and writes the plan's files."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pyarrow as pa

from volstream.catalog import Catalog
from volstream.config import Settings
from volstream.delta.writer import compile_if_large
from volstream.errors import InvalidStateError
from volstream.jobs import plan, sizing
from volstream.jobs.sizing import Limits
from volstream.lifecycle import faults
from volstream.log import get
from volstream.model.objects import Job, OnMove, Stream
from volstream.model.work import Batch, Failure, Plan, PlanKind
from volstream.streams.few import FEW
from volstream.streams.read import Range, StreamReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

_log = get("jobs")


class Planner:
    """Makes plans, which nothing knows of before they are opened; and finds their files when what was written is gone."""

    def __init__(self, catalog: Catalog, reader: StreamReader, settings: Settings) -> None:
        self._catalog = catalog
        self._reader = reader
        self._settings = settings

    def of_range(self, session: SparkSession, job: Job, covered: Range) -> tuple[Plan, Sequence[Batch]]:
        """A plan of the net changes of a stream's range that pass the job's condition."""
        location = self._new_location()
        self._write_range(session, job, covered, job.where, location)
        return self._cut(job, PlanKind.STREAM, covered, location, job.where)

    def of_retries(
        self, session: SparkSession, job: Job, covered: Range, due: Sequence[Failure]
    ) -> tuple[Plan, Sequence[Batch]]:
        """A plan of failed files as the directory has them at the end of ``covered``."""
        names = ("path", "file_version", "commit_version")
        failed = pa.table({name: [getattr(one, name) for one in due] for name in names})
        location = self._new_location()
        plan.write(plan.retry_files(session, covered.location, covered.to_version, failed), location, len(due))
        return self._cut(job, PlanKind.RETRY, covered, location, None)

    def of_replay(
        self, session: SparkSession, job: Job, covered: Range, where: str | None
    ) -> tuple[Plan, Sequence[Batch]]:
        """A plan of the delivered files that pass the job's condition and ``where``."""
        both = " AND ".join(f"({one})" for one in (job.where, where) if one) or None
        location = self._new_location()
        self._write_replay(session, covered, both, location)
        return self._cut(job, PlanKind.REPLAY, covered, location, both)

    def write_again(self, session: SparkSession, job: Job, made: Plan, stream: Stream) -> bool:
        """Writes the files of a plan as they were; false where what they were is not known any more."""
        covered = self._reader.range_of(made, stream)
        match made.kind:
            case PlanKind.STREAM:
                self._write_range(session, job, covered, made.where, made.location)
            case PlanKind.REPLAY:
                self._write_replay(session, covered, made.where, made.location)
            case _:
                return False
        return True

    def files_of(self, session: SparkSession, job: Job, made: Plan, batch: Batch, stream: Stream) -> DataFrame:
        """The files of a batch, lazily: the directory's columns, ``commit_version``, ``action`` and ``old_path``.

        Raises:
            InvalidStateError: the batch is one of retries, and its plan has ended; or the history that tells its files is
                not kept any more.
        """
        if plan.exists(made.location):
            return plan.slice_of(session, made, batch)
        covered = self._reader.range_again(made, stream)
        match made.kind:
            case PlanKind.STREAM:
                return plan.within(self._changes(session, job, covered, made.where, self._changed_rows(covered)), batch)
            case PlanKind.REPLAY:
                return plan.within(self._delivered(session, covered, made.where), batch)
            case _:
                raise InvalidStateError(
                    f"Which files batch {batch.id} tried again is not kept after its end.",
                    f"Its rows have _batch_id = '{batch.id}', its failures: volstream describe batch {batch.id}.",
                )

    def resize(self, job: Job, made: Plan, cut_by: Limits | None) -> Limits | None:
        """Cuts what waits of an open plan anew, where its batches would take much longer or shorter than they should.

        Args:
            cut_by: the limits that this returned last for the plan; limits like these would give the same batches, where
                files are so large that each is alone.

        Returns:
            The limits by which the plan is cut now, where that is known.
        """
        target = self._settings.batch_seconds
        rate = sizing.latest(self._catalog.consumptions.measured(job.id, plan_id=made.id), target / 2)
        waiting = None if rate is None else self._catalog.consumptions.unbegun(made)
        if rate is None or waiting is None:
            return cut_by
        limits = rate.limits(target, self._most(job))
        if (cut_by is not None and not sizing.differ(limits, cut_by)) or not sizing.misses(
            waiting, rate, limits, target
        ):
            return cut_by
        batches = plan.recut(made, waiting.first, limits)
        self._catalog.consumptions.recut(made, batches)
        faults.point("plan.recut")
        _log.info(
            "batches_recut", job=str(job.name), plan=made.id, after=waiting.first.number - 1, batches=len(batches),
            before=waiting.count, files=limits.files, bytes=limits.bytes,
        )  # fmt: skip
        return limits

    def _cut(
        self, job: Job, kind: PlanKind, covered: Range, location: str, where: str | None
    ) -> tuple[Plan, Sequence[Batch]]:
        """Cuts a plan by how fast the job was before; where that is not known, the first batch is to measure it."""
        most = self._most(job)
        rate = sizing.usual(self._catalog.consumptions.measured(job.id))
        limits = most if rate is None else rate.limits(self._settings.batch_seconds, most)
        first = most.first() if rate is None else limits
        identity = location.rpartition("/")[2]
        return plan.cut(identity, job, kind, covered, location, limits, first=first, where=where)

    def _most(self, job: Job) -> Limits:
        settings = self._settings
        return Limits(job.max_files or settings.batch_max_files, job.max_bytes or settings.batch_max_bytes)

    def _new_location(self) -> str:
        return f"{self._settings.warehouse_path}/_plans/{uuid.uuid4().hex}"

    def _write_range(self, session: SparkSession, job: Job, covered: Range, where: str | None, location: str) -> None:
        at_most = self._changed_rows(covered)
        plan.write(self._changes(session, job, covered, where, at_most), location, at_most)

    def _write_replay(self, session: SparkSession, covered: Range, where: str | None, location: str) -> None:
        at_most, _ = self._catalog.refreshes.changed_after(covered.source.id, None)
        plan.write(self._delivered(session, covered, where), location, at_most)

    def _changes(self, session: SparkSession, job: Job, covered: Range, where: str | None, at_most: int) -> DataFrame:
        possible = not (covered.initial or covered.append_only) and self._catalog.refreshes.may_have_moved(
            covered.source.id, covered.from_version
        )
        moves = plan.Moves(possible, rekey=job.on_move is OnMove.REKEY)
        if at_most <= FEW:
            return plan.few_files(session, self._reader.few(covered), where, moves)
        compile_if_large(session, covered.location)
        return plan.stream_files(session, covered, where, moves)

    def _changed_rows(self, covered: Range) -> int:
        """No fewer than the net changes of a range: the rows that its refreshes changed."""
        # All that were ever written, for an initial range; what changed since, for any other.
        since = None if covered.initial else covered.from_version
        return self._catalog.refreshes.changed_after(covered.source.id, since)[0]

    def _delivered(self, session: SparkSession, covered: Range, where: str | None) -> DataFrame:
        compile_if_large(session, covered.location)
        return plan.replay_files(session, covered, where)
