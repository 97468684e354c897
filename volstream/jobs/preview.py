"""Previews a job's run without any of its effects."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime

from volstream.base.definitions import FileJob, Stream
from volstream.base.model.work import Load, PlanKind
from volstream.jobs import sizing
from volstream.jobs.services import JobServices
from volstream.tables.delta import places

#: Maximum number of due failures that are counted.
_MAX_RETRIES = 10_000


@dataclass(frozen=True)
class Preview:
    """The expected work of a run.

    Attributes:
        load: total of the open plan's batches and of the batches that the stream's changes would be cut into.
        unfinished: how many of these batches are the open plan's.
        retries: failed files that are due; not in ``load``.
        seconds: expected duration of ``load``, by the job's past rates; None: unknown.
        listed: whether the volume was ever listed; otherwise a run would list it first.
    """

    load: Load
    unfinished: int
    retries: int
    seconds: float | None
    listed: bool


def preview(services: JobServices, job: FileJob) -> Preview:
    """Plans a run and discards the plan. Raises StreamStaleError."""
    catalog, stream = services.catalog, services.stream(job)
    volume = catalog.volumes.by_id(stream.source_id)
    unfinished = catalog.reports.waiting(job.id)
    load = unfinished + _changes(services, job, stream)
    rate = sizing.typical_rate(catalog.reports.largest(job.id))
    return Preview(
        load=load,
        unfinished=unfinished.batches,
        retries=len(catalog.failures.due(job.id, datetime.now(UTC), _MAX_RETRIES)),
        seconds=None if rate is None else rate.seconds(load.files + load.removals, load.bytes),
        listed=volume is not None and volume.last_listing is not None,
    )


def _changes(services: JobServices, job: FileJob, stream: Stream) -> Load:
    """Returns the load of the stream's changes that no plan covers yet."""
    open_plan = services.catalog.consumptions.open_plan(stream.id)
    if open_plan is not None and open_plan.kind is PlanKind.STREAM:
        stream = dataclasses.replace(stream, offset=open_plan.to_version, table_id=open_plan.table_id, initial=False)
    covered = services.reader.pin_news(stream)
    if covered is None or covered.empty:
        return Load()
    plan, batches = services.planner.of_range(services.session, job, covered)
    places.discard(plan.location)
    return Load.of(batches)
