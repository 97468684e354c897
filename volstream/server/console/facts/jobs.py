"""A job: its runs and batches, its failures by cause, what its function printed, and rows of its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from volstream.base.definitions import FileJob, Job
from volstream.base.model.work import AuditEntry, Batch, BatchState
from volstream.catalog.failures import ANY
from volstream.errors import NotFoundError, VolstreamError
from volstream.home import Home
from volstream.jobs.batches import logs
from volstream.jobs.batches.ledger import LOGS
from volstream.jobs.rules.load import loads
from volstream.jobs.runs.lease import runs_of
from volstream.ops.inspection import details
from volstream.ops.inspection.details import FailureGroup, MeasuredBatch, OpenRun, explained, group_id, grouped
from volstream.ops.inspection.status import Problem, job_status, problems
from volstream.ops.inspection.tables import Sample, sample_of
from volstream.server.console.facts import FEW_TASKS, PageRequest
from volstream.server.console.facts.rows import JobRow
from volstream.tables.delta import places
from volstream.tables.delta.opened import newest_version
from volstream.tables.delta.places import reached

#: Batches of the chart, batches of the page, and groups of failures.
_CHARTED, _BATCHES, _GROUPS = 200, 10, 20

#: Days for which it is shown what a function counted.
_DAYS = 30

#: Failures that are grouped for a page: the newest ones of a job. They are read that many at a time.
_GROUPED = 5_000

#: Jobs whose failures are shown together.
_FAILING_JOBS = 20

#: Lines of the log that are shown with a job, and on their own page.
_FEW_LINES, _MAX_LINES = 15, 500


@dataclass(frozen=True)
class Group:
    """A group of failures with one cause."""

    id: str
    kind: str
    why: str
    files: int


@dataclass(frozen=True)
class ShownGroup(Group):
    """The same. ``example``: the newest, as ``volstream list failures`` shows it."""

    states: Mapping[str, int]
    newest: datetime
    example: Mapping[str, Any] | None


@dataclass(frozen=True)
class RowsPreview(Sample):
    """A few rows of a job's table. ``batch``: that all of them are of; None: of any."""

    batch: str | None = None


@dataclass(frozen=True)
class CountedDays:
    """What a function counted under a name, on each of the last days in UTC."""

    name: str
    numbers: Sequence[float]


@dataclass(frozen=True)
class JobFacts:
    """A job.

    Attributes:
        job: its definition, and what ``volstream describe`` shows.
        comparable: its code can be compared with other code.
        next_run: when; ``runs`` says by what.
        history: batches as points of a chart.
        counted_days: what its function counted on each of the last days, today's last.
        more_groups: how many groups of failures are not shown.
        preview: None: there is no table yet.
    """

    job: Mapping[str, Any]
    status: JobRow
    problem: Problem | None
    volume: str | None
    comparable: bool
    run: OpenRun | None
    next_run: datetime | None
    runs: str
    history: Sequence[MeasuredBatch]
    counted_days: Sequence[CountedDays]
    batches: Sequence[Batch]
    groups: Sequence[ShownGroup]
    more_groups: int
    log: Sequence[logs.LogLine]
    preview: RowsPreview | None
    tasks: Sequence[AuditEntry]


@dataclass(frozen=True)
class FailuresFacts:
    """Failed files of a job, of one group or of all: how many there are, some of them, and where the next page begins."""

    job: str
    volume: str | None
    group: str | None
    groups: Sequence[Group]
    count: int
    failures: Sequence[Mapping[str, Any]]
    next: int | None


@dataclass(frozen=True)
class JobGroups:
    """The failures of a job by cause. ``volume``: that it reads."""

    job: str
    volume: str | None
    groups: Sequence[ShownGroup]


@dataclass(frozen=True)
class AllFailuresFacts:
    """What fails in all jobs, by cause: the job with the newest failure first; of causes, paths and jobs that contain what was
    searched. ``count``: of all files that failed."""

    jobs: Sequence[JobGroups]
    count: int
    search: str


@dataclass(frozen=True)
class LogFacts:
    """What a job's function printed: for all files, for one, or in one batch."""

    job: str
    file: str | None
    batch: str | None
    lines: Sequence[logs.LogLine]


def job(asked: PageRequest) -> JobFacts:
    """A job: its run in progress, its newest batches, its failures by cause, and rows of its table."""
    home, definition = asked.home, asked.job
    measured = home.catalog.reports.measured(definition.id, limit=_CHARTED)
    due, says = details.next_run(home, definition)
    groups = groups_of(home, definition)
    worked_on = home.catalog.reports.worked_on(definition.id, _BATCHES)
    status = job_status(home, definition, runs_of(home.catalog, [definition]))
    return JobFacts(
        job=details.described(home, definition),
        status=JobRow(**status),
        problem=next(iter(problems({"jobs": [status]}, asked.probed())), None),
        volume=details.volume_of(home, definition),
        comparable=isinstance(definition, FileJob) and not loads(definition),
        run=details.open_run(home, definition, measured[:20]),
        next_run=due,
        runs=says,
        history=details.history(home.catalog, measured),
        counted_days=_counted_days(home, definition),
        batches=worked_on,
        groups=_shown(home, groups[:_GROUPS]),
        more_groups=max(0, len(groups) - _GROUPS),
        log=_lines(home, definition, _FEW_LINES),
        preview=_preview(home, definition, worked_on),
        tasks=asked.audit.tasks(f"job {definition.name}", limit=FEW_TASKS),
    )


def failures(asked: PageRequest) -> FailuresFacts:
    """The failed files of a job, newest first: all, or those of one cause."""
    home, definition, query = asked.home, asked.job, asked.query
    wanted, after, limit = query.text("group"), query.number("after"), query.limit
    groups = groups_of(home, definition)
    chosen = [group for group in groups if wanted is None or group.id == wanted]
    ids = sorted((identity for group in chosen for identity in group.ids), reverse=True)
    page = [identity for identity in ids if after is None or identity < after][:limit]
    return FailuresFacts(
        job=str(definition.name),
        volume=details.volume_of(home, definition),
        group=wanted,
        groups=[Group(group.id, group.kind, group.why, len(group.ids)) for group in groups[:_GROUPS]],
        count=len(ids) if wanted is not None else home.catalog.failures.count(definition.id, ANY),
        failures=explained(home, home.catalog.failures.by_id(page)),
        next=page[-1] if page and page[-1] != ids[-1] else None,
    )


def all_failures(asked: PageRequest) -> AllFailuresFacts:
    """What failed in all jobs, by job and cause."""
    home, search = asked.home, asked.query.text("search") or ""
    jobs = {job.id: job for job in home.catalog.jobs.list()}
    wanted = search.casefold()
    newest = [
        one
        for one in home.catalog.failures.briefly(None, limit=_GROUPED)
        if one.job_id in jobs and any(wanted in of.casefold() for of in (one.message, one.path, str(jobs[one.job_id].name)))
    ]
    groups = grouped(newest)
    return AllFailuresFacts(
        [
            JobGroups(
                str(jobs[job_id].name),
                details.volume_of(home, jobs[job_id]),
                _shown(home, [group for group in groups if group.job_id == job_id][:_GROUPS]),
            )
            for job_id in [*dict.fromkeys(failure.job_id for failure in newest)][:_FAILING_JOBS]
        ],
        home.catalog.failures.count(None, ANY),
        search,
    )


def log(asked: PageRequest) -> LogFacts:
    """The last lines that a job's function printed, of all, of one file or of one batch."""
    path, batch = asked.query.text("path"), asked.query.text("batch")
    lines = _lines(asked.home, asked.job, _MAX_LINES, path=path, batch=batch)
    return LogFacts(str(asked.job.name), path, batch, lines)


def groups_of(home: Home, definition: Job) -> list[FailureGroup]:
    """Returns the newest failures of a job by cause."""
    return grouped(home.catalog.failures.briefly(definition.id, limit=_GROUPED))


def paths_of_group(home: Home, definition: Job, identity: str) -> Sequence[str]:
    """Returns all files of a group, the old ones included. Raises NotFoundError."""
    paths: list[str] = []
    before = None
    while page := home.catalog.failures.briefly(definition.id, limit=_GROUPED, before=before):
        paths += [failure.path for failure in page if group_id(failure.kind, failure.message, failure.path) == identity]
        before = page[-1].id
    if not paths:
        raise NotFoundError(f"The job {definition.name} no longer has such failures.")
    return paths


def _counted_days(home: Home, definition: Job) -> list[CountedDays]:
    today = datetime.now(UTC).date()
    counted: dict[str, list[float]] = {}
    for name, day, number in home.catalog.reports.counted_since(definition.id, today - timedelta(days=_DAYS - 1)):
        if day <= today:  # another host's clock may be ahead
            counted.setdefault(name, [0.0] * _DAYS)[_DAYS - 1 - (today - day).days] = number
    return [CountedDays(name, numbers) for name, numbers in counted.items()]


def _shown(home: Home, groups: Sequence[FailureGroup]) -> list[ShownGroup]:
    """Returns groups, each with its newest failure as the example."""
    newest = home.catalog.failures.by_id([group.ids[0] for group in groups])
    examples = {failure["path"]: failure for failure in explained(home, newest)}
    return [
        ShownGroup(
            id=group.id,
            kind=group.kind,
            why=group.why,
            files=len(group.ids),
            states=group.states,
            newest=group.newest,
            example=examples.get(group.paths[0]),
        )
        for group in groups
    ]


def _lines(
    home: Home, definition: Job, maximum: int, *, path: str | None = None, batch: str | None = None
) -> Sequence[logs.LogLine]:
    if not isinstance(definition, FileJob):
        return ()
    with reached(home.warehouse):
        return logs.read(LOGS.of(home.warehouse, definition.id), maximum, batch=batch, path=path)


def _preview(home: Home, definition: Job, worked_on: Sequence[Batch]) -> RowsPreview | None:
    """Returns a few rows of the newest batch that wrote some, or of the table; None: there is no table yet."""
    location = places.table_location(home.warehouse, definition.into)
    try:
        version = newest_version(location)
    except VolstreamError as error:
        return RowsPreview([], [], error.message)
    if version is None:
        return None
    batch = next((candidate.id for candidate in worked_on if candidate.state is BatchState.COMMITTED and candidate.rows), None)
    equals = None if batch is None or not isinstance(definition, FileJob) else ("_batch_id", batch)
    shown = sample_of(home, location, version, equals)
    if not shown.rows and equals is not None:  # replaced since by another batch
        shown, batch = sample_of(home, location, version), None
    return RowsPreview(**vars(shown), batch=batch)
