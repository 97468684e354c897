"""A job: its runs and batches, its failures by cause, what its function printed, and rows of its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from volstream.catalog.failures import ANY
from volstream.console.facts.batches import newest
from volstream.console.query import Query
from volstream.definitions import FileJob, Job, SourceKind
from volstream.delta import folders, rows
from volstream.delta.log import DeltaLog
from volstream.delta.places import reached
from volstream.errors import NotFoundError, VolstreamError
from volstream.home import Home
from volstream.inspection import details, runs
from volstream.inspection.failures import FailureGroup, explained, group_id, grouped
from volstream.inspection.problems import problems
from volstream.inspection.status import job_status
from volstream.inspection.tables import sample_of
from volstream.jobs import logs
from volstream.jobs.lease import runs_of
from volstream.jobs.load import loads
from volstream.model.names import Name
from volstream.model.work import Batch, BatchState

#: Batches of the chart, batches of the page, and groups of failures.
_CHARTED, _BATCHES, _GROUPS = 200, 10, 20

#: Failures that are grouped for a page: the newest ones of a job. They are read that many at a time.
_GROUPED = 5_000

#: Lines of the log that are shown with a job, and on their own page.
_FEW_LINES, _MAX_LINES = 15, 500


def job(home: Home, name: str, probed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a job's state, its run in progress, its newest batches, its failures by cause, log lines and rows.

    Raises:
        NotFoundError: there is no such job.
    """
    found = home.catalog.jobs.get(Name.parse(name))
    measured = home.catalog.consumptions.measured(found.id, limit=_CHARTED)
    due, says = runs.next_run(home, found)
    groups = groups_of(home, found)
    worked_on = home.catalog.consumptions.worked_on(found.id, _BATCHES)
    status = job_status(home, found, runs_of(home.catalog, [found]))
    return {
        "job": details.described(home, found),
        "status": {key.replace(" ", "_"): value for key, value in status.items()},
        "problem": next(iter(problems({"jobs": [status]}, probed)), None),
        "volume": _volume(home, found),
        "comparable": isinstance(found, FileJob) and not loads(found),
        "run": _run(home, found, measured[:20]),
        "next_run": due,
        "runs": says,
        "history": runs.history(measured),
        "batches": worked_on,
        "groups": _shown(home, found, groups[:_GROUPS]),
        "more_groups": max(0, len(groups) - _GROUPS),
        "log": _lines(home, found, _FEW_LINES),
        "preview": _preview(home, found, worked_on),
    }


def batches(home: Home, name: str, query: Query) -> dict[str, Any]:
    """Returns the batches of a job, newest first. Raises NotFoundError."""
    found = home.catalog.jobs.get(Name.parse(name))
    return {"job": str(found.name), **newest(home, found, query)}


def failures(home: Home, name: str, query: Query) -> dict[str, Any]:
    """Returns the failed files of a job, newest first: all, or those of one cause. Raises NotFoundError."""
    found = home.catalog.jobs.get(Name.parse(name))
    wanted, after, limit = query.text("group"), query.number("after"), query.limit
    groups = groups_of(home, found)
    chosen = [group for group in groups if wanted is None or group.id == wanted]
    ids = sorted((identity for one in chosen for identity in one.ids), reverse=True)
    page = [identity for identity in ids if after is None or identity < after][:limit]
    return {
        "job": str(found.name),
        "volume": _volume(home, found),
        "group": wanted,
        "groups": [
            {"id": group.id, "kind": group.kind, "why": group.why, "files": len(group.ids)}
            for group in groups[:_GROUPS]
        ],
        "count": len(ids) if wanted is not None else home.catalog.failures.count(found.id, ANY),
        "failures": explained(home, home.catalog.failures.by_id(found.id, page)),
        "next": page[-1] if page and page[-1] != ids[-1] else None,
    }


def log(home: Home, name: str, query: Query) -> dict[str, Any]:
    """Returns the last lines that a job's function printed, of all, of one file or of one batch. Raises NotFoundError."""
    found = home.catalog.jobs.get(Name.parse(name))
    path, batch = query.text("path"), query.text("batch")
    return {
        "job": str(found.name),
        "file": path,
        "batch": batch,
        "lines": _lines(home, found, _MAX_LINES, path=path, batch=batch),
    }


def groups_of(home: Home, found: Job) -> list[FailureGroup]:
    """Returns the newest failures of a job by cause."""
    return grouped(home.catalog.failures.briefly(found.id, limit=_GROUPED))


def paths_of_group(home: Home, found: Job, identity: str) -> Sequence[str]:
    """Returns all files of a group, the old ones included. Raises NotFoundError."""
    paths: list[str] = []
    before = None
    while page := home.catalog.failures.briefly(found.id, limit=_GROUPED, before=before):
        paths += [one.path for one in page if group_id(one.kind, one.message, one.path) == identity]
        before = page[-1].id
    if not paths:
        raise NotFoundError(f"The job {found.name} has no such failures any more.")
    return paths


def _shown(home: Home, found: Job, groups: Sequence[FailureGroup]) -> list[dict[str, Any]]:
    """Returns groups, each with its newest failure as the example."""
    newest = home.catalog.failures.by_id(found.id, [group.ids[0] for group in groups])
    examples = {one["path"]: one for one in explained(home, newest)}
    return [
        {
            "id": group.id,
            "kind": group.kind,
            "why": group.why,
            "files": len(group.ids),
            "states": group.states,
            "newest": group.newest,
            "example": examples.get(group.paths[0]),
        }
        for group in groups
    ]


def _run(home: Home, found: Job, measured: Sequence[Any]) -> dict[str, Any] | None:
    work = runs.open_run(home, found, measured)
    return None if work is None else {**vars(work), "done": work.done}


def _volume(home: Home, found: Job) -> str | None:
    """Returns the name of the volume that a job reads, if it still exists."""
    stream = home.catalog.streams.by_id(found.stream_id)
    if stream is None or stream.source_kind is not SourceKind.VOLUME:
        return None
    volume = home.catalog.volumes.by_id(stream.source_id)
    return None if volume is None else str(volume.name)


def _lines(
    home: Home, found: Job, most: int, *, path: str | None = None, batch: str | None = None
) -> Sequence[logs.LogLine]:
    if not isinstance(found, FileJob):
        return ()
    with reached(home.warehouse):
        return logs.read(logs.location_of(home.warehouse, found.id), most, batch=batch, path=path)


def _preview(home: Home, found: Job, worked_on: Sequence[Batch]) -> dict[str, Any] | None:
    """Returns a few rows of the newest batch that wrote some, or of the table; None: there is no table yet."""
    location = folders.table_location(home.warehouse, found.into)
    try:
        version = DeltaLog(location).latest_version()
    except VolstreamError as error:
        return {"columns": [], "rows": [], "error": error.message, "batch": None}
    if version is None:
        return None
    batch = next((one.id for one in worked_on if one.state is BatchState.COMMITTED and one.rows), None)
    where = "true" if batch is None or not isinstance(found, FileJob) else f"_batch_id = {rows.text(batch)}"
    shown = sample_of(location, version, where)
    if not shown["rows"] and where != "true":  # replaced since by another batch
        shown, batch = sample_of(location, version), None
    return {**shown, "batch": batch}
