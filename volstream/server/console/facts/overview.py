"""The overview of a home: whether all is well, and each volume, stream, job, table and source in a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from volstream.base.definitions import FileJob, Job
from volstream.base.model.work import AuditEntry, Check
from volstream.errors import VolstreamError
from volstream.home import Home
from volstream.jobs.plans import sizing
from volstream.jobs.rules import code
from volstream.ops.inspection import details
from volstream.ops.inspection.doctor import ShownSetting, shown_settings
from volstream.ops.inspection.status import Problem, ProblemCause, most_severe, problems, status
from volstream.ops.inspection.tables import ListedTable, list_tables
from volstream.server.console.facts import PageRequest
from volstream.server.console.facts.jobs import Group, Timeline, timeline
from volstream.server.console.facts.rows import ListedJob, ListedStream, ListedTail, ListedVolume
from volstream.spark.engine.client import engine_status
from volstream.tables.delta.places import is_remote

#: Maximum number of objects of a kind, and of tables, because each of them is opened.
_MAX_SHOWN, _MAX_TABLES = 200, 20

#: Number of jobs whose most frequent failure is named, and number of each job's newest failures that are
#: examined.
_MAX_CAUSES, _MAX_FAILURES = 5, 200


@dataclass(frozen=True)
class OverviewFacts:
    """A home: its state, its problems, the number of objects of each kind, and the first of them, or those
    whose names contain ``search``.

    ``causes``: the most frequent failure of some jobs with failed files.
    """

    home: str
    well: bool
    problems: Sequence[Problem]
    causes: Mapping[str, Group]
    engine: Mapping[str, Any]
    counts: Mapping[str, int]
    timeline: Timeline
    volumes: Sequence[ListedVolume]
    streams: Sequence[ListedStream]
    jobs: Sequence[ListedJob]
    tables: Sequence[ListedTail]
    sources: Sequence[Mapping[str, Any]]
    all_tables: Sequence[ListedTable]
    search: str


def overview(request: PageRequest) -> OverviewFacts:
    """All volumes, streams, jobs, tables and sources, trouble first; the problems; and the work of jobs."""
    with request.home.catalog.database.one_snapshot():
        return _overview(request)


def _overview(request: PageRequest) -> OverviewFacts:
    home, probed = request.home, request.probed()
    state = status(home)
    found_problems = problems(state, probed)
    now = datetime.now(UTC)
    jobs = {str(job.name): job for job in home.catalog.jobs.list()}
    first = most_severe(found_problems)
    failing = [problem.name for problem in found_problems if problem.cause is ProblemCause.FILES]
    search = request.query.text("search") or ""

    def listing(kinds: str, kind: str, key: str | None = None) -> list[dict[str, Any]]:
        rows = [{**row, "problem": first.get((kind, row[key or kind]))} for row in state[kinds] if search in row[key or kind]]
        return sorted(rows, key=_severity)[:_MAX_SHOWN]

    stopped = {name for (kind, name), problem in first.items() if kind == "volume" and problem.severe}
    job_rows = [
        (jobs[row["job"]], _job(home, jobs[row["job"]], row, stopped)) for row in listing("jobs", "job") if row["job"] in jobs
    ]
    own_streams = {identity: str(job.name) for job in jobs.values() if job.owns_stream for identity in job.stream_ids}
    readers = {str(stream.name): own_streams.get(stream.id) for stream in home.catalog.streams.list()}
    return OverviewFacts(
        home=state["home"],
        well=not found_problems,
        problems=found_problems,
        causes={name: top for name in failing[:_MAX_CAUSES] for top in _causes(home, jobs[name])[:1]},
        engine=probed.get("engine") or _engine(home),
        counts={kind: len(state[kind]) for kind in ("volumes", "streams", "jobs", "tables", "sources")},
        timeline=timeline(home.catalog, sorted(job_rows, key=lambda pair: not pair[1].running), request.query.text("span"), now),
        volumes=[_volume(row, now) for row in listing("volumes", "volume")],
        streams=[ListedStream(**row, made_by=readers.get(row["stream"])) for row in listing("streams", "stream")],
        jobs=[row for _, row in job_rows],
        tables=[ListedTail(**row) for row in listing("tables", "table")],
        sources=listing("sources", "source", "name"),
        all_tables=list_tables(home, _MAX_TABLES, extents=not is_remote(home.warehouse), like=search),
        search=search,
    )


def _causes(home: Home, job: Job) -> list[Group]:
    """Returns a job's newest failures by cause, the most frequent first."""
    groups = details.grouped(home.catalog.failures.briefly(job.id, limit=_MAX_FAILURES))
    return [Group(group.id, group.kind, group.why, len(group.ids)) for group in groups]


def _severity(row: Mapping[str, Any]) -> int:
    """A sort key: rows with a severe problem first, then rows with another."""
    problem = row["problem"]
    return 2 if problem is None else 0 if problem.severe else 1


def _engine(home: Home) -> dict[str, Any]:
    if home.settings.spark_remote:
        return {"state": "elsewhere"}
    engine = engine_status(home.settings)
    return {"state": "not running" if engine is None else engine.state}


def _volume(row: Mapping[str, Any], now: datetime) -> ListedVolume:
    """Adds the age of the last full listing, and the number of events it missed."""
    listed = row["last_listing"]
    counts = [row["added_by_listing"], row["changed_by_listing"], row["removed_by_listing"]]
    # The events of late files may still have been on their way.
    missed = None if None in counts else max(0, sum(counts) - (row["late_events"] or 0))
    lag = None if listed is None else (now - listed).total_seconds()
    return ListedVolume(**row, missed_events=missed, lag_seconds=lag)


def _job(home: Home, job: Job, row: Mapping[str, Any], stopped: Set[str]) -> ListedJob:
    """Adds a job's speed, its next run, and whether its volume has stopped."""
    measured = home.catalog.reports.measured(job.id)
    rate = sizing.typical_rate(measured)
    due, starts = details.next_run(home, job)
    open_run = details.open_run(home, job, measured)
    return ListedJob(
        **row,
        source_stopped=details.volume_of(home, job) in stopped,
        into=str(job.into),
        last_ended=job.last_ended,
        files_per_second=None if rate is None else rate.files,
        next_run=due,
        runs=starts,
        run_done=None if open_run is None else open_run.done,
        seconds_left=None if open_run is None else open_run.seconds_left,
        older_code=_older_code(home, job),
    )


def _older_code(home: Home, job: Job) -> int:
    """Returns the number of files with rows of older code. 0 if unknown."""
    if not isinstance(job, FileJob) or is_remote(home.warehouse):
        return 0
    try:
        found = code.older(home, job)
    except VolstreamError:
        return 0  # the job's page tells why
    return 0 if found is None else found.stale


# Actions from the console: the audit and tasks.


@dataclass(frozen=True)
class AuditFacts:
    """Entries of the audit, and the start of the next page."""

    entries: Sequence[AuditEntry]
    next: int | None


@dataclass(frozen=True)
class TasksFacts:
    """Tasks, newest first."""

    tasks: Sequence[AuditEntry]


@dataclass(frozen=True)
class TaskFacts:
    """A task. ``outcome``: the result of a run or a verification, if it has ended."""

    task: AuditEntry
    outcome: Mapping[str, Any] | None


def audit(request: PageRequest) -> AuditFacts:
    """The actions from the console, newest first."""
    limit = request.query.limit
    entries = request.audit.newest(before=request.query.number("before"), limit=limit)
    return AuditFacts(entries, entries[-1].id if len(entries) == limit else None)


def tasks(request: PageRequest) -> TasksFacts:
    """The newest background tasks with their progress, newest first."""
    return TasksFacts(request.audit.tasks())


def task(request: PageRequest) -> TaskFacts:
    """A background task: its progress, its end, and the result of a run or of ``verify``."""
    found = request.audit.task(request.names["task"])
    return TaskFacts(found, request.audit.outcome(found.id))


# The home's settings, and their check.


@dataclass(frozen=True)
class SettingsFacts:
    """All settings."""

    settings: Sequence[ShownSetting]


@dataclass(frozen=True)
class DoctorFacts:
    """The volumes that can be checked, and the checked one. ``checks`` is None before a check."""

    volumes: Sequence[str]
    volume: str | None
    checks: Sequence[Check] | None = None


def settings(request: PageRequest) -> SettingsFacts:
    """The settings of the home, without secrets."""
    return SettingsFacts(shown_settings(request.home.settings, request.home.catalog.database.describe()))


def doctor(request: PageRequest) -> DoctorFacts:
    """The volumes that can be checked. POST checks the home, and one of them."""
    volumes = [str(volume.name) for volume in request.home.catalog.volumes.list()]
    return DoctorFacts(volumes, request.query.text("volume"))
