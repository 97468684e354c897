"""The whole story of one file: what the directory showed when, which batches took it, how attempts ended, its rows now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from volstream.changelog.base import OLD_KINDS
from volstream.delta import cleanup, folders
from volstream.delta.log import DeltaLog
from volstream.delta.writer import MOST_NAMED, literal, one_of, table_at
from volstream.directory import table
from volstream.directory.access import store_of
from volstream.model.files import is_utf8, printable
from volstream.model.objects import Job, Volume
from volstream.model.work import PlanKind
from volstream.spark.errors import map_spark_errors

if TYPE_CHECKING:
    from volstream.session import Session


_SAYS = {
    "insert": "in the directory",
    "update_postimage": "changed in the directory",
    "delete": "gone from the directory",
}

#: So many other files are looked at for the same content: a move is one of two.
_MOST_ALIKE = 100


@dataclass(frozen=True)
class Event:
    """Something that happened to the file. ``time`` None: now, or not known."""

    time: datetime | None
    what: str
    details: dict[str, Any]


def tell(session: Session, volume_name: str, path: str) -> list[Event]:
    """What is known of a file, the oldest first.

    Reads the change feed of the whole kept history for this one path, and those of the same content: cost grows with the
    history, not the directory.

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
        history = _history(session, volume, path)
        events += [_seen(change) for change in history[path] if change["_change_type"] in _SAYS]
        for job in _jobs(session, volume.id):
            events += _of_job(session, job, path, history)
    known = [event for event in events if event.time is not None]
    events = [event for event in events if event.time is None] + sorted(
        known, key=lambda event: event.time or datetime.max
    )
    return [*events, _now(session, volume, path)]


def _history(session: Session, volume: Volume, path: str) -> dict[str, list[dict[str, Any]]]:
    """The changes of the file in the directory, and of others that had the same content once: by path, the oldest first.

    What was there when the kept history begins counts as inserted when it was written.
    """
    location = table.location(session.warehouse, volume.id)
    first, latest = cleanup.earliest(location), DeltaLog(location).latest_version()
    if first is None or latest is None:
        return {path: []}

    def rows(query: str) -> list[dict[str, Any]]:
        with map_spark_errors():
            found: list[dict[str, Any]] = session.gateway.session().sql(query).toArrow().to_pylist()
        return found

    history: dict[str, list[dict[str, Any]]] = {path: []}
    if first > 0:
        for row in rows(
            f"SELECT * FROM {table_at(location)} VERSION AS OF {first} WHERE relative_path = {literal(path)}"
        ):
            for wrote in session.catalog.refreshes.committed(volume.id, numbers=[row["refresh_id"]]):
                about = {
                    "_change_type": "insert",
                    "_commit_version": wrote.version,
                    "_commit_timestamp": wrote.committed_on,
                }
                history[path].append(row | about)
        first += 1
    if first > latest:
        return history
    feed = f"table_changes_by_path({literal(location)}, {first}, {latest})"
    order = f"ORDER BY _commit_version, _change_type NOT IN ({', '.join(map(literal, OLD_KINDS))})"
    history[path] += rows(f"SELECT * FROM {feed} WHERE relative_path = {literal(path)} {order}")
    etags = sorted({row["etag"] for row in history[path][-MOST_NAMED:]})
    if etags:
        alike = f"WHERE {one_of('etag', etags)} AND relative_path <> {literal(path)} LIMIT {_MOST_ALIKE}"
        history |= {row["relative_path"]: [] for row in rows(f"SELECT DISTINCT relative_path FROM {feed} {alike}")}
    others = [other for other in history if other != path]
    for row in rows(f"SELECT * FROM {feed} WHERE {one_of('relative_path', others)} {order}") if others else []:
        history[row["relative_path"]].append(row)
    return history


def _seen(change: dict[str, Any]) -> Event:
    details = {
        "version": change["_commit_version"], "size": change["size"], "modified": change["last_modified_time"],
        "etag": change["etag"],
    }  # fmt: skip
    return Event(change["_commit_timestamp"], _SAYS[change["_change_type"]], details)


def moved(history: Mapping[str, Sequence[Mapping[str, Any]]], path: str, after: int, to: int) -> dict[str, str]:
    """``moved_to`` or ``moved_from`` with the other path, where the net changes of ``(after, to]`` say so, as in a plan.

    Args:
        history: changes of the path, and of others with the same content, in order.
    """
    gone: dict[tuple[str, int], list[str]] = {}
    came: dict[tuple[str, int], list[str]] = {}
    for one, changes in history.items():
        inside = [change for change in changes if after < change["_commit_version"] <= to]
        if not inside:
            continue
        had, has = inside[0]["_change_type"] in OLD_KINDS, inside[-1]["_change_type"] not in OLD_KINDS
        image = inside[-1] if has else inside[0]
        if had != has:
            (gone if had else came).setdefault((image["etag"], image["size"]), []).append(one)
    for content in gone.keys() & came.keys():
        if len(gone[content]) == len(came[content]) == 1:
            (old,), (new,) = gone[content], came[content]
            if path in (old, new):
                return {"moved_to": new} if path == old else {"moved_from": old}
    return {}


def _jobs(session: Session, volume_id: str) -> list[Job]:
    """The jobs that process the volume's files one by one: the rows of a statement tell of no file."""
    streams = {stream.id for stream in session.catalog.streams.list(source_id=volume_id)}
    return [job for job in session.catalog.jobs.list() if job.statement is None and job.stream_id in streams]


def _of_job(session: Session, job: Job, path: str, history: dict[str, list[dict[str, Any]]]) -> list[Event]:
    events: list[Event] = []
    versions = [change["_commit_version"] for change in history[path]]
    for batch in session.catalog.consumptions.batches_of(job.id, covering=path):
        plan = session.catalog.consumptions.plan(batch.plan_id)
        if plan is None:
            continue
        start = -1 if plan.from_version is None else plan.from_version
        if not any(version <= plan.to_version and (plan.initial or version > start) for version in versions):
            continue
        move = {} if plan.initial or plan.kind is not PlanKind.STREAM else moved(history, path, start, plan.to_version)
        if "moved_to" in move:  # what becomes of the old path is the business of the new one's batch
            others = session.catalog.consumptions.batches_of(job.id, covering=move["moved_to"])
            batch = next((other for other in others if other.plan_id == plan.id), batch)
        details = {
            "job": str(job.name), "batch": batch.id, "state": batch.state, "attempts": batch.attempts, "kind": plan.kind,
        }  # fmt: skip
        events.append(Event(batch.committed_on or batch.created_on, "in the range of a batch", details | move))
    for failure in session.catalog.failures.active(job.id, path=path):
        details = {
            "job": str(job.name), "state": failure.state, "kind": failure.kind, "message": failure.message,
            "attempts": failure.attempts, "next_try": failure.next_try, "batch": failure.batch_id,
        }  # fmt: skip
        events.append(Event(failure.failed_on, "failed", details))
    events += _rows(session, job, path)
    return events


def _rows(session: Session, job: Job, path: str) -> list[Event]:
    location = folders.table_location(session.warehouse, job.into)
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


def _now(session: Session, volume: Volume, path: str) -> Event:
    info = store_of(volume, session.catalog, session.settings).head(path)
    if info is None:
        return Event(None, "not in the store now", {})
    return Event(None, "in the store now", {"size": info.size, "modified": info.last_modified_time, "etag": info.etag})
