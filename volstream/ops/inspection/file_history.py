"""The complete history of a file: its changes in the directory, the batches that took it, their outcomes, its
current rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.definitions import FileJob, Volume
from volstream.base.model.names import Name
from volstream.base.model.paths import did_you_mean, is_utf8, printable
from volstream.base.model.work import FailureState, PlanKind
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.directory.table import DELETE, INSERT, UPDATE, WROTE
from volstream.changes.streams.sources import VolumeSource
from volstream.errors import NotFoundError
from volstream.files.volumes.access import store_of
from volstream.files.volumes.definitions import jobs_on
from volstream.functions.schema import key_column
from volstream.jobs.batches.step_values import blob_of
from volstream.jobs.plans import sets
from volstream.ops.inspection.details import where_printed
from volstream.tables.delta import places
from volstream.tables.delta.lookup import read_rows
from volstream.tables.delta.opened import newest_version

if TYPE_CHECKING:
    from volstream.home import Home


_SAYS = {INSERT: "in the directory", UPDATE: "changed in the directory", DELETE: "removed from the directory"}

#: Columns that are read from a result table.
_ROWS = pa.schema(
    [
        ("_file_path", pa.string()),
        ("_file_version", pa.string()),
        ("_batch_id", pa.string()),
        ("_processed_at", pa.timestamp("us", tz="UTC")),
    ]
)

#: Maximum number of other files checked for the same content, since a move involves two.
_MAX_ALIKE = 100

#: Maximum number of other files compared with a missing one.
_MAX_BESIDE = 1000


@dataclass(frozen=True)
class FileEvent:
    """An event in the history of a file. ``time`` None: now, or unknown."""

    time: datetime | None
    what: str
    details: dict[str, Any]


def tell(home: Home, volume_name: str, path: str) -> list[FileEvent]:
    """Returns the events of a file, oldest first: a batch before the rows and failures that came of it.

    Reads the kept history of this path, and of others with the same content: cost grows with the history, not
    the directory. No Spark, except for the key of a set that is an expression.

    Raises:
        NotFoundError: no such volume, or no trace of the file.
    """
    volume = home.catalog.volumes.get(Name.parse(volume_name))
    events: list[FileEvent] = []
    outside = (
        []
        if volume.selection.accepts(path)
        else [FileEvent(None, "outside of the volume", {"patterns": volume.patterns, "ignores": volume.ignores})]
    )
    for rejected in home.catalog.refreshes.rejected(volume.id):
        if rejected.subject == printable(path):
            events.append(FileEvent(rejected.last_seen, "rejected", {"reason": rejected.reason, "count": rejected.count}))
    if is_utf8(path):
        history = _history(home, volume, path)
        events += [_seen(change) for change in history[path]]
        # The rows of a statement do not refer to files.
        for job in (job for job in jobs_on(home.catalog, volume) if isinstance(job, FileJob)):
            events += _of_job(home, volume, job, path, history)
    dated = [event for event in events if event.time is not None]
    undated = [event for event in events if event.time is None]
    now = _now(home, volume, path)
    if now is None and not dated:
        raise NotFoundError(
            f"There is no record of {printable(path)} in volume {volume_name}, and it is not in the store.",
            did_you_mean(volume.location, path, [*_beside(home, volume, path)]).rstrip(),
        )
    return [
        *outside,
        *sorted(dated, key=lambda event: event.time or datetime.max),
        *undated,
        now or FileEvent(None, "no longer exists", {}),
    ]


def _beside(home: Home, volume: Volume, path: str) -> Iterator[str]:
    """Yields paths of files in the folder of a file, or of its name in other folders."""
    directory = VolumeSource(home.catalog, home.warehouse, volume.id).find()
    paths = (name for part in (directory.at() if directory else ()) for name in part["relative_path"].to_pylist())
    folder, _, own = path.rpartition("/")
    split = ((name, *name.rpartition("/")) for name in paths)
    return islice((name for name, other, _, last in split if other == folder or last == own), _MAX_BESIDE)


def _history(home: Home, volume: Volume, path: str) -> dict[str, list[dict[str, Any]]]:
    """Returns the directory's changes of the file, and of others that once had the same content: by path,
    oldest first.

    What existed when the kept history begins counts as inserted when it was written.
    """
    directory = VolumeSource(home.catalog, home.warehouse, volume.id).find()
    if directory is None:
        return {path: []}
    changes = directory.history()
    mine = _by_path(changes.filter(pc.equal(changes["relative_path"], path)))
    history = {path: [*_before(directory, path, mine.get(path, [])), *mine.get(path, [])]}
    etags = pa.array(sorted({row["etag"] for row in history[path]}), pa.string())
    alike = changes.filter(pc.and_(pc.is_in(changes["etag"], value_set=etags), pc.not_equal(changes["relative_path"], path)))
    others = pc.unique(alike["relative_path"]).slice(0, _MAX_ALIKE)
    return history | _by_path(changes.filter(pc.is_in(changes["relative_path"], value_set=others)))


def _by_path(changes: pa.Table) -> dict[str, list[dict[str, Any]]]:
    by_path: dict[str, list[dict[str, Any]]] = {}
    for change in changes.to_pylist():
        by_path.setdefault(change["relative_path"], []).append(change)
    return by_path


def _before(directory: Snapshot, path: str, changes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns how the file was added, if that is before the kept history."""
    if changes:
        old = {name: changes[0][f"old_{name}"] for name in ("size", "last_modified_time", "etag", *WROTE)}
        added = [] if changes[0]["change"] == INSERT else [old]
    else:
        added = directory.find([path]).to_pylist()
    return [{**row, "relative_path": path, "change": INSERT} for row in added]


def _seen(change: Mapping[str, Any]) -> FileEvent:
    details = {
        "version": change["refresh_id"],
        "size": change["size"],
        "modified": change["last_modified_time"],
        "etag": change["etag"],
    }
    return FileEvent(change["refreshed_on"], _SAYS[change["change"]], details)


def moved(history: Mapping[str, Sequence[Mapping[str, Any]]], path: str, after: int, to: int) -> dict[str, str]:
    """Returns ``moved_to`` or ``moved_from`` with the other path if the net changes of ``(after, to]`` show
    it, as in a plan.

    Args:
        history: changes of the path, and of others with the same content, in order.
    """
    gone: dict[tuple[str, int], list[str]] = {}
    came: dict[tuple[str, int], list[str]] = {}
    for name, changes in history.items():
        inside = [change for change in changes if after < change["refresh_id"] <= to]
        if not inside:
            continue
        had, has = inside[0]["change"] != INSERT, inside[-1]["change"] != DELETE
        content = (inside[-1]["etag"], inside[-1]["size"]) if has else (inside[0]["old_etag"], inside[0]["old_size"])
        if had != has:
            (gone if had else came).setdefault(content, []).append(name)
    for content in gone.keys() & came.keys():
        if len(gone[content]) == len(came[content]) == 1:
            (old,), (new,) = gone[content], came[content]
            if path in (old, new):
                return {"moved_to": new} if path == old else {"moved_from": old}
    return {}


def _modified(changes: Sequence[Mapping[str, Any]], to: int) -> datetime | None:
    """Returns the time of a file as of a version of the directory, or None before its first one."""
    return next((change["last_modified_time"] for change in reversed(changes) if change["refresh_id"] <= to), None)


def _of_job(home: Home, volume: Volume, job: FileJob, path: str, history: dict[str, list[dict[str, Any]]]) -> list[FileEvent]:
    events: list[FileEvent] = []
    versions = [change["refresh_id"] for change in history[path]]
    of_sets = job.group_by is not None
    key = sets.key_of(lambda: home.gateway.session(), job, path) if of_sets else path
    if not key:
        return [FileEvent(None, "in no set", {"job": str(job.name), "group_by": job.group_by})]
    batches = home.catalog.reports.batches_of(job.id, covering=key)
    plans = home.catalog.reports.plans(batch.plan_id for batch in batches)
    for batch in batches:
        plan = plans.get(batch.plan_id)
        if plan is None:
            continue
        start = 0 if plan.from_version is None else plan.from_version
        if not any(version <= plan.to_version and (plan.initial or version > start) for version in versions):
            continue
        if not of_sets and not batch.covers(path, _modified(history[path], plan.to_version)):
            continue
        move = {} if of_sets or plan.initial or plan.kind is not PlanKind.STREAM else moved(history, path, start, plan.to_version)
        if "moved_to" in move:  # the batch of the new path handles the old one
            others = home.catalog.reports.batches_of(job.id, covering=move["moved_to"])
            new = _modified(history[move["moved_to"]], plan.to_version)
            batch = next((other for other in others if other.plan_id == plan.id and other.covers(move["moved_to"], new)), batch)
        details = {
            "job": str(job.name),
            "batch": batch.id,
            "state": batch.state,
            "attempts": batch.attempts,
            "kind": plan.kind,
            "committed": batch.committed_on,
            **({"set": key} if of_sets else {}),
        }
        events.append(FileEvent(batch.created_on, "processed in batch", details | move))
    for failure in home.catalog.failures.active(job.id, path=key):
        details = {
            "job": str(job.name),
            "state": failure.state,
            "kind": failure.kind,
            "message": failure.message,
            "attempts": failure.attempts,
            "next_try": failure.next_try,
            "batch": failure.batch_id,
            "printed": where_printed(failure, job),
        }
        what = "waits" if failure.state is FailureState.WAITING else "failed"
        events.append(FileEvent(failure.failed_on, what, details))
    rows = _rows(home, job, key)
    if job.takes_files and rows and history[path] and history[path][-1]["change"] == DELETE:
        to = (
            {}
            if job.archive is None
            else {"archive": _archived(home, volume, f"{job.archive}/{path}", history[path][-1]["etag"])}
        )
        rows.append(FileEvent(history[path][-1]["refreshed_on"], "removed after loading", {"job": str(job.name), **to}))
    if job.where is not None and not any(event.what in ("failed", "waits") for event in events):
        # Whether the condition holds, Spark alone knows.
        rows = rows or [FileEvent(None, "no result rows", {"job": str(job.name), "takes only": job.where})]
    if not of_sets and (blob := blob_of(home.warehouse, job, path)) is not None:
        kept = {"values": dict(blob.by_step()), "computed_last": dict(blob.computed)}
        rows.append(FileEvent(None, "has kept values of steps", {"job": str(job.name), **kept}))
    return events + rows


def _archived(home: Home, volume: Volume, path: str, etag: str) -> str:
    """Returns the path of an archived file, or a glob for it if another version may have the name."""
    found = store_of(volume, home.catalog, home.settings).head(path)
    if found is None or found.etag == etag:
        return path
    folder, _, name = path.rpartition("/")
    stem, dot, ending = name.partition(".")
    return f"{folder}/{stem}*{dot}{ending}"


def _rows(home: Home, job: FileJob, key: str) -> list[FileEvent]:
    """Returns the current rows of a file, or of its set, in the job's table, by batch and version of the
    file."""
    location = places.table_location(home.warehouse, job.into)
    version = newest_version(location)
    if version is None:
        return []
    column = key_column(job)
    columns = _ROWS.set(0, pa.field(column, pa.string()))
    current = read_rows(location, version, columns, (column, key), home.gateway.session)
    counted = current.group_by(["_batch_id", "_file_version"]).aggregate([("_processed_at", "max"), (column, "count")])
    found = counted.to_pylist()
    codes = home.catalog.codes.of_batches(row["_batch_id"] for row in found if row["_batch_id"] is not None)
    return [
        FileEvent(
            row["_processed_at_max"],
            "has result rows",
            {
                "table": str(job.into),
                "rows": row[f"{column}_count"],
                "batch": row["_batch_id"],
                "file_version": row["_file_version"],
                "code_version": codes[row["_batch_id"]].of(key) if row["_batch_id"] in codes else None,
            },
        )
        for row in found
    ]


def _now(home: Home, volume: Volume, path: str) -> FileEvent | None:
    info = store_of(volume, home.catalog, home.settings).head(path)
    if info is None:
        return None
    return FileEvent(None, "exists now", {"size": info.size, "modified": info.last_modified_time, "etag": info.etag})
