"""Batches of a job: page by page, and one with its files, its attempts and its failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from volstream.base.definitions import Job, SourceKind
from volstream.base.model.work import Batch, Plan, PlanKind
from volstream.base.processes import host_of
from volstream.catalog.failures import ANY
from volstream.catalog.reports import Attempt
from volstream.changes.directory import browse
from volstream.changes.directory.snapshot import first_of_each, last_of_each
from volstream.changes.directory.table import DELETE, INSERT, PATH
from volstream.errors import NotFoundError, VolstreamError
from volstream.home import Home
from volstream.ops.inspection import details
from volstream.ops.inspection.details import explained
from volstream.server.console.facts import PageRequest
from volstream.server.console.facts.volumes import snapshot_of
from volstream.server.console.query import Query

#: Failed files that are shown with a batch.
_FAILURES = 50


@dataclass(frozen=True)
class BatchesFacts:
    """Batches of a job, and where the next page begins."""

    job: str
    batches: Sequence[Batch]
    next: str | None


@dataclass(frozen=True)
class AttemptFacts:
    """An attempt at a batch, and the host of its process."""

    attempt: str
    sequence: int
    host: str
    state: str
    started_on: datetime
    ended_on: datetime | None


@dataclass(frozen=True)
class BatchFile:
    """A file of a batch. ``action``: new, changed or removed."""

    path: str
    action: str
    size: int | None


@dataclass(frozen=True)
class BatchFiles:
    """The files of a batch, page by page. ``files_note``: why there are none, or which the job takes."""

    files: Sequence[BatchFile]
    next: str | None
    files_note: str | None
    volume: str | None


@dataclass(frozen=True)
class BatchFacts(BatchFiles):
    """A batch, as ``volstream describe`` shows it, with its attempts, failed files, and files."""

    job: str
    batch: Mapping[str, Any]
    attempts: Sequence[AttemptFacts]
    failures: Sequence[Mapping[str, Any]]


def batches(asked: PageRequest) -> BatchesFacts:
    """The batches of a job, newest first. Raises NotFoundError."""
    job, before, limit = asked.job, asked.query.text("before"), asked.query.limit
    last = None if before is None else _batch(asked.home, job, before)
    found = asked.home.catalog.reports.batches_of(job.id, before=last, limit=limit)
    return BatchesFacts(str(job.name), found, found[-1].id if len(found) == limit else None)


def batch(asked: PageRequest) -> BatchFacts:
    """A batch: its attempts, its files, its failed files. Raises NotFoundError."""
    home, job = asked.home, asked.job
    record = _batch(home, job, asked.names["batch"])
    failures = home.catalog.failures.active(
        job.id, wanted=ANY, after=record.after_path, until=record.until_path, batch_id=record.id, limit=_FAILURES
    )
    plan = home.catalog.reports.plan(record.plan_id)
    return BatchFacts(
        job=str(job.name),
        batch=details.described_batch(home, record, failures),
        attempts=[_attempt(attempt) for attempt in home.catalog.reports.attempts_at(record.id)],
        failures=explained(home, failures),
        **vars(_files(home, record, plan, asked.query)),
    )


def _batch(home: Home, job: Job, identity: str) -> Batch:
    record = home.catalog.reports.batch(identity)
    if record is None or record.job_id != job.id:
        raise NotFoundError(f"The job {job.name} has no batch {identity}.", "The history is kept for history_seconds.")
    return record


def _attempt(attempt: Attempt) -> AttemptFacts:
    values = dict(vars(attempt))
    return AttemptFacts(host=host_of(values.pop("owner")), **values)


def _files(home: Home, record: Batch, plan: Plan | None, query: Query) -> BatchFiles:
    """Returns a page of the batch's files from the directory's history, or the reason why there are none to show."""
    nothing = BatchFiles([], None, None, None)
    stream = home.catalog.streams.by_id(record.stream_id)
    if stream is None or stream.source_kind is not SourceKind.VOLUME or plan is None:
        return replace(nothing, files_note="This batch processed rows, not files.")
    volume = home.catalog.volumes.by_id(stream.source_id)
    snapshot = None if volume is None else snapshot_of(home, volume)
    if volume is None or snapshot is None or snapshot.table_id != plan.table_id:
        return replace(nothing, files_note="The volume was dropped or replaced.")
    nothing = replace(nothing, volume=str(volume.name))
    if plan.kind is PlanKind.RETRY:
        return replace(nothing, files_note="The batch retried failed files; those that failed again are below.")
    if plan.kind is PlanKind.REPAIR:
        return replace(nothing, files_note="The batch repaired files for which the table was wrong (volstream verify).")
    if plan.kind is PlanKind.STRAYS:
        return replace(nothing, files_note="The batch removed rows of files that are no longer in the volume.")
    note = None if plan.where is None else f"The job processes only files with: {plan.where}"
    after = query.text("after") or record.after_path
    try:
        if plan.initial or plan.from_version is None or plan.kind is PlanKind.REPLAY:
            part = browse.between(snapshot, after, record.until_path, query.limit, plan.to_version)
            rows = [BatchFile(entry.path, "new", entry.size) for entry in part.entries]
            return replace(nothing, files=rows, next=part.next, files_note=note)
        changed = snapshot.changed(plan.from_version, plan.to_version)
        inside = pc.less_equal(changed[PATH], record.until_path or "")
        if after is not None:
            inside = pc.and_(inside, pc.greater(changed[PATH], after))
        changed = changed.filter(inside)
        lasts = last_of_each(changed).slice(0, query.limit).to_pylist()
        firsts = first_of_each(changed).slice(0, query.limit).to_pylist()
    except VolstreamError as error:
        return replace(nothing, files_note=error.message)
    rows = [BatchFile(last[PATH], _action(first, last), last["size"]) for first, last in zip(firsts, lasts, strict=True)]
    full = len(rows) == query.limit
    return replace(nothing, files=rows, next=rows[-1].path if full else None, files_note=note)


def _action(first: dict[str, Any], last: dict[str, Any]) -> str:
    """Returns what the net change of a file is."""
    if last["change"] == DELETE:
        return "removed"
    return "new" if first["change"] == INSERT else "changed"
