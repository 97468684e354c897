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

#: Objects of a kind that are shown; and tables, of which each is opened.
_MAX_SHOWN, _MAX_TABLES = 200, 20

#: Jobs whose most frequent failure is named, and the failures of each that are looked at, the newest.
_MAX_CAUSES, _MAX_FAILURES = 5, 200


@dataclass(frozen=True)
class OverviewFacts:
    """A home: whether all is well, what is wrong, how many objects there are of each kind, and the first of them, or of those
    whose names contain what was searched. ``causes``: the most frequent failure of a few jobs whose files failed."""

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


def overview(asked: PageRequest) -> OverviewFacts:
    """The state of all volumes, streams, jobs, tables and sources, trouble first; what is wrong; and when jobs worked."""
    with asked.home.catalog.database.one_snapshot():
        return _overview(asked)


def _overview(asked: PageRequest) -> OverviewFacts:
    home, probed = asked.home, asked.probed()
    state = status(home)
    wrong = problems(state, probed)
    now = datetime.now(UTC)
    jobs = {str(job.name): job for job in home.catalog.jobs.list()}
    first = most_severe(wrong)
    failing = [problem.name for problem in wrong if problem.cause is ProblemCause.FILES]
    search = asked.query.text("search") or ""

    def shown(kinds: str, kind: str, key: str | None = None) -> list[dict[str, Any]]:
        rows = [{**row, "problem": first.get((kind, row[key or kind]))} for row in state[kinds] if search in row[key or kind]]
        return sorted(rows, key=_trouble)[:_MAX_SHOWN]

    stopped = {name for (kind, name), problem in first.items() if kind == "volume" and problem.severe}
    listed = [
        (jobs[row["job"]], _job(home, jobs[row["job"]], row, stopped)) for row in shown("jobs", "job") if row["job"] in jobs
    ]
    made = {identity: str(job.name) for job in jobs.values() if job.owns_stream for identity in job.stream_ids}
    readers = {str(stream.name): made.get(stream.id) for stream in home.catalog.streams.list()}
    return OverviewFacts(
        home=state["home"],
        well=not wrong,
        problems=wrong,
        causes={name: top for name in failing[:_MAX_CAUSES] for top in _causes(home, jobs[name])[:1]},
        engine=probed.get("engine") or _engine(home),
        counts={kind: len(state[kind]) for kind in ("volumes", "streams", "jobs", "tables", "sources")},
        timeline=timeline(home.catalog, sorted(listed, key=lambda pair: not pair[1].running), asked.query.text("span"), now),
        volumes=[_volume(row, now) for row in shown("volumes", "volume")],
        streams=[ListedStream(**row, made_by=readers.get(row["stream"])) for row in shown("streams", "stream")],
        jobs=[one for _, one in listed],
        tables=[ListedTail(**row) for row in shown("tables", "table")],
        sources=shown("sources", "source", "name"),
        all_tables=list_tables(home, _MAX_TABLES, extents=not is_remote(home.warehouse), like=search),
        search=search,
    )


def _causes(home: Home, job: Job) -> list[Group]:
    """Returns a job's newest failures by cause, the most frequent first."""
    groups = details.grouped(home.catalog.failures.briefly(job.id, limit=_MAX_FAILURES))
    return [Group(group.id, group.kind, group.why, len(group.ids)) for group in groups]


def _trouble(row: Mapping[str, Any]) -> int:
    """Sorts rows with a severe problem first, then those with another."""
    problem = row["problem"]
    return 2 if problem is None else 0 if problem.severe else 1


def _engine(home: Home) -> dict[str, Any]:
    if home.settings.spark_remote:
        return {"state": "elsewhere"}
    engine = engine_status(home.settings)
    return {"state": "not running" if engine is None else engine.state}


def _volume(row: Mapping[str, Any], now: datetime) -> ListedVolume:
    """Adds the age of the last full listing, and how many events it missed."""
    listed = row["last_listing"]
    counts = [row["added_by_listing"], row["changed_by_listing"], row["removed_by_listing"]]
    # The events of files that were late may still have been under way.
    missed = None if None in counts else max(0, sum(counts) - (row["late_events"] or 0))
    lag = None if listed is None else (now - listed).total_seconds()
    return ListedVolume(**row, missed_events=missed, lag_seconds=lag)


def _job(home: Home, job: Job, row: Mapping[str, Any], stopped: Set[str]) -> ListedJob:
    """Adds how fast a job is, when it runs next, and whether its volume is among those that stopped."""
    measured = home.catalog.reports.measured(job.id)
    rate = sizing.typical_rate(measured)
    due, says = details.next_run(home, job)
    work = details.open_run(home, job, measured)
    return ListedJob(
        **row,
        source_stopped=details.volume_of(home, job) in stopped,
        into=str(job.into),
        last_ended=job.last_ended,
        files_per_second=None if rate is None else rate.files,
        next_run=due,
        runs=says,
        run_done=None if work is None else work.done,
        seconds_left=None if work is None else work.seconds_left,
        older_code=_older_code(home, job),
    )


def _older_code(home: Home, job: Job) -> int:
    """Returns how many files have rows made by older code; 0: also unknown."""
    if not isinstance(job, FileJob) or is_remote(home.warehouse):
        return 0
    try:
        found = code.older(home, job)
    except VolstreamError:
        return 0  # the job's page says why
    return 0 if found is None else found.stale


# What was done from the console: the audit and tasks.


@dataclass(frozen=True)
class AuditFacts:
    """Entries of the audit, and the page after them."""

    entries: Sequence[AuditEntry]
    next: int | None


@dataclass(frozen=True)
class TasksFacts:
    """Tasks, newest first."""

    tasks: Sequence[AuditEntry]


@dataclass(frozen=True)
class TaskFacts:
    """A task. ``outcome``: what a run did, or a verification found; None: nothing yet."""

    task: AuditEntry
    outcome: Mapping[str, Any] | None


def audit(asked: PageRequest) -> AuditFacts:
    """What was done from the console, newest first."""
    limit = asked.query.limit
    entries = asked.audit.newest(before=asked.query.number("before"), limit=limit)
    return AuditFacts(entries, entries[-1].id if len(entries) == limit else None)


def tasks(asked: PageRequest) -> TasksFacts:
    """The newest background tasks with their progress, newest first."""
    return TasksFacts(asked.audit.tasks())


def task(asked: PageRequest) -> TaskFacts:
    """A background task: how far it is, how it ended, and what a run did, or what ``verify`` found."""
    found = asked.audit.task(asked.names["task"])
    return TaskFacts(found, asked.audit.outcome(found.id))


# How the home is set up, and whether that works.


@dataclass(frozen=True)
class SettingsFacts:
    """All settings."""

    settings: Sequence[ShownSetting]


@dataclass(frozen=True)
class DoctorFacts:
    """The volumes that can be checked, and the one that was. ``checks``: None: nothing was checked."""

    volumes: Sequence[str]
    volume: str | None
    checks: Sequence[Check] | None = None


def settings(asked: PageRequest) -> SettingsFacts:
    """The settings of the home, without secrets."""
    return SettingsFacts(shown_settings(asked.home.settings, asked.home.catalog.database.describe()))


def doctor(asked: PageRequest) -> DoctorFacts:
    """The volumes that can be checked. POST checks the home, and one of them."""
    volumes = [str(volume.name) for volume in asked.home.catalog.volumes.list()]
    return DoctorFacts(volumes, asked.query.text("volume"))
