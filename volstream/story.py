"""The whole story of one file: what the directory showed when, which batches took it, how attempts ended, its rows now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from volstream.delta.log import DeltaLog
from volstream.delta.writer import literal, table_at
from volstream.directory import table
from volstream.model.files import is_utf8, printable
from volstream.model.objects import Job
from volstream.spark.errors import map_spark_errors
from volstream.storage import open_store

if TYPE_CHECKING:
    from volstream.session import Session


@dataclass(frozen=True)
class Event:
    """Something that happened to the file. ``time`` None: now, or not known."""

    time: datetime | None
    what: str
    details: dict[str, Any]


def tell(session: Session, volume_name: str, path: str) -> list[Event]:
    """What is known of a file, the oldest first.

    Reads the change feed of the whole kept history for this one path: cost grows with the history, not the directory.

    Raises:
        NotFoundError: no such volume.
    """
    volume = session.volumes.get(volume_name)
    events: list[Event] = []
    if not volume.selection.accepts(path):
        events.append(Event(None, "outside of the volume", {"patterns": volume.patterns, "ignores": volume.ignores}))
    for rejected in session.catalog.refreshes.rejected(volume.id):
        if rejected.subject == printable(path):
            events.append(Event(rejected.last_seen, "rejected", {"reason": rejected.reason, "count": rejected.count}))
    if is_utf8(path):
        changes = _changes(session, table.location(session.warehouse, volume.id), path)
        events += [event for event, _ in changes]
        versions = [version for _, version in changes]
        for job in _jobs(session, volume.id):
            events += _of_job(session, job, path, versions)
    known = [event for event in events if event.time is not None]
    events = [event for event in events if event.time is None] + sorted(
        known, key=lambda event: event.time or datetime.max
    )
    return [*events, _now(volume.location, path)]


def _changes(session: Session, location: str, path: str) -> list[tuple[Event, int]]:
    latest = DeltaLog(location).latest_version()
    if latest is None:
        return []
    with map_spark_errors():
        rows = (
            session.gateway.session()
            .sql(
                f"SELECT * FROM table_changes_by_path({literal(location)}, 0, {latest}) "
                f"WHERE relative_path = {literal(path)} AND _change_type <> 'update_preimage' ORDER BY _commit_version"
            )
            .toArrow()
            .to_pylist()
        )
    says = {
        "insert": "in the directory",
        "update_postimage": "changed in the directory",
        "delete": "gone from the directory",
    }
    events = []
    for row in rows:
        details = {
            "version": row["_commit_version"],
            "size": row["size"],
            "modified": row["last_modified_time"],
            "etag": row["etag"],
        }
        events.append(
            (Event(row["_commit_timestamp"], says[row["_change_type"]], details), int(row["_commit_version"]))
        )
    return events


def _jobs(session: Session, volume_id: str) -> list[Job]:
    streams = {stream.id for stream in session.catalog.streams.list(source_id=volume_id)}
    return [job for job in session.catalog.jobs.list() if job.stream_id in streams]


def _of_job(session: Session, job: Job, path: str, versions: list[int]) -> list[Event]:
    events: list[Event] = []
    for batch in session.catalog.consumptions.batches_of(job.id, covering=path):
        plan = session.catalog.consumptions.plan(batch.plan_id)
        if plan is None:
            continue
        start = -1 if plan.from_version is None else plan.from_version
        if any(version <= plan.to_version and (plan.initial or version > start) for version in versions):
            details = {
                "job": str(job.name),
                "batch": batch.id,
                "state": batch.state,
                "attempts": batch.attempts,
                "kind": plan.kind,
            }
            events.append(Event(batch.committed_on or batch.created_on, "in the range of a batch", details))
    for failure in session.catalog.failures.active(job.id, path=path):
        details = {
            "job": str(job.name), "state": failure.state, "kind": failure.kind, "message": failure.message,
            "attempts": failure.attempts, "next_try": failure.next_try, "batch": failure.batch_id,
        }  # fmt: skip
        events.append(Event(failure.failed_on, "failed", details))
    events += _rows(session, job, path)
    return events


def _rows(session: Session, job: Job, path: str) -> list[Event]:
    location = f"{session.warehouse}/tables/{job.into.schema}/{job.into.name}"
    if not DeltaLog(location).exists():
        return []
    with map_spark_errors():
        rows = (
            session.gateway.session()
            .sql(
                "SELECT _batch_id, _file_version, max(_processed_at) AS time, count(*) AS rows "
                f"FROM {table_at(location)} WHERE _file_path = {literal(path)} GROUP BY _batch_id, _file_version"
            )
            .toArrow()
            .to_pylist()
        )
    return [
        Event(row["time"], "has result rows", {"table": str(job.into), "rows": row["rows"], "batch": row["_batch_id"],
                                               "file_version": row["_file_version"]})
        for row in rows
    ]  # fmt: skip


def _now(location: str, path: str) -> Event:
    info = open_store(location).head(path)
    if info is None:
        return Event(None, "not in the store now", {})
    return Event(None, "in the store now", {"size": info.size, "modified": info.last_modified_time, "etag": info.etag})
