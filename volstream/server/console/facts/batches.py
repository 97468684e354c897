"""Batches of a job: page by page, and one with its files, its attempts and its failures."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pyarrow.compute as pc

from volstream.base.definitions import Job, SourceKind
from volstream.base.lifecycle.identity import host_of
from volstream.base.model.names import Name
from volstream.base.model.work import Batch, Plan, PlanKind
from volstream.catalog.failures import ANY
from volstream.catalog.reports import Attempt
from volstream.changes.directory import browse
from volstream.changes.directory.ordered import PATH
from volstream.changes.directory.snapshot import first_of_each, last_of_each
from volstream.changes.directory.table import DELETE, INSERT
from volstream.errors import NotFoundError, VolstreamError
from volstream.jobs.home import Home
from volstream.ops.inspection import details
from volstream.ops.inspection.failures import explained
from volstream.server.console.facts.volumes import snapshot_of
from volstream.server.console.query import Query

#: Failed files that are shown with a batch.
_FAILURES = 50


def newest(home: Home, job: Job, query: Query) -> dict[str, Any]:
    """Returns a page of a job's batches, newest first. Raises NotFoundError."""
    before, limit = query.text("before"), query.limit
    last = None if before is None else _batch(home, job, before)
    batches = home.catalog.reports.batches_of(job.id, before=last, limit=limit)
    return {"batches": batches, "next": batches[-1].id if len(batches) == limit else None}


def batch(home: Home, name: str, identity: str, query: Query) -> dict[str, Any]:
    """Returns a batch with its plan, its files page by page, and its failed files.

    Raises:
        NotFoundError: the job has no such batch, or no longer.
    """
    job = home.catalog.jobs.get(Name.parse(name))
    record = _batch(home, job, identity)
    failures = home.catalog.failures.active(
        job.id, wanted=ANY, after=record.after_path, until=record.until_path, batch_id=record.id, limit=_FAILURES
    )
    plan = home.catalog.reports.plan(record.plan_id)
    return {
        "job": str(job.name),
        "batch": details.described_batch(home, record, failures),
        "attempts": [_attempt(attempt) for attempt in home.catalog.reports.attempts_at(record.id)],
        "failures": explained(home, failures),
        **_files(home, record, plan, query),
    }


def _batch(home: Home, job: Job, identity: str) -> Batch:
    record = home.catalog.reports.batch(identity)
    if record is None or record.job_id != job.id:
        raise NotFoundError(f"The job {job.name} has no batch {identity}.", "The history is kept for history_seconds.")
    return record


def _attempt(attempt: Attempt) -> dict[str, Any]:
    """Returns an attempt with the host of its process."""
    values = asdict(attempt)
    owner = values.pop("owner")
    return {**values, "host": host_of(owner)}


def _files(home: Home, record: Batch, plan: Plan | None, query: Query) -> dict[str, Any]:
    """Returns a page of the batch's files from the directory's history, or the reason why there are none to show."""
    nothing: dict[str, Any] = {"volume": None, "files": [], "next": None}
    stream = home.catalog.streams.by_id(record.stream_id)
    if stream is None or stream.source_kind is not SourceKind.VOLUME or plan is None:
        return {**nothing, "files_note": "The batch is one of rows, not of files."}
    volume = home.catalog.volumes.by_id(stream.source_id)
    snapshot = None if volume is None else snapshot_of(home, volume)
    if volume is None or snapshot is None or snapshot.table_id != plan.table_id:
        return {**nothing, "files_note": "The volume was dropped or replaced."}
    nothing["volume"] = str(volume.name)
    if plan.kind is PlanKind.RETRY:
        return {**nothing, "files_note": "The batch retried failed files; those that failed again are below."}
    if plan.kind is PlanKind.REPAIR:
        return {**nothing, "files_note": "The batch put right files of which the table was wrong (volstream verify)."}
    if plan.kind is PlanKind.STRAYS:
        return {**nothing, "files_note": "The batch removed rows of files that are no longer in the volume."}
    note = None if plan.where is None else f"Of these, the job takes only files with: {plan.where}"
    after = query.text("after") or record.after_path
    try:
        if plan.initial or plan.from_version is None or plan.kind is PlanKind.REPLAY:
            part = browse.between(snapshot, after, record.until_path, query.limit, plan.to_version)
            rows = [{"path": entry.path, "action": "new", "size": entry.size} for entry in part.entries]
            return {**nothing, "files": rows, "next": part.next, "files_note": note}
        changed = snapshot.changed(plan.from_version, plan.to_version)
        inside = pc.less_equal(changed[PATH], record.until_path or "")
        if after is not None:
            inside = pc.and_(inside, pc.greater(changed[PATH], after))
        changed = changed.filter(inside)
        lasts = last_of_each(changed).slice(0, query.limit).to_pylist()
        firsts = first_of_each(changed).slice(0, query.limit).to_pylist()
    except VolstreamError as error:
        return {**nothing, "files_note": error.message}
    rows = [
        {"path": last[PATH], "action": _action(first, last), "size": last["size"]}
        for first, last in zip(firsts, lasts, strict=True)
    ]
    full = len(rows) == query.limit
    return {**nothing, "files": rows, "next": rows[-1]["path"] if full else None, "files_note": note}


def _action(first: dict[str, Any], last: dict[str, Any]) -> str:
    """Returns what the net change of a file is."""
    if last["change"] == DELETE:
        return "removed"
    return "new" if first["change"] == INSERT else "changed"
