"""A job's page: its runs and batches, its failures by cause, the output of its function, and rows of its
table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import unified_diff
from itertools import accumulate
from typing import Any

import pyarrow.compute as pc

from volstream.base.definitions import FileJob, Job, SourceKind
from volstream.base.model.work import AuditEntry, Batch, BatchState, Plan, PlanKind
from volstream.base.processes import host_of
from volstream.catalog import Catalog
from volstream.catalog.failures import ANY
from volstream.catalog.reports import Attempt, CodeVersion
from volstream.changes.directory import browse
from volstream.changes.directory.snapshot import first_of_each, last_of_each
from volstream.changes.directory.table import DELETE, INSERT, PATH
from volstream.errors import InvalidValueError, NotFoundError, VolstreamError
from volstream.home import Home
from volstream.jobs.batches import logs
from volstream.jobs.batches.ledger import LOGS
from volstream.jobs.rules.version import version_of
from volstream.jobs.runs.lease import runs_of
from volstream.ops.inspection import details
from volstream.ops.inspection.details import FailureGroup, MeasuredBatch, OpenRun, described_code, explained, group_id, grouped
from volstream.ops.inspection.status import Problem, job_status, problems
from volstream.ops.inspection.tables import Sample, sample_of
from volstream.server.console.facts import FEW_TASKS, PageRequest
from volstream.server.console.facts.data import snapshot_of
from volstream.server.console.facts.rows import JobRow, ListedJob
from volstream.server.console.http import Query
from volstream.tables.delta import places
from volstream.tables.delta.opened import newest_version
from volstream.tables.delta.places import reached

# Batches of a job: page by page, and a single batch with its files, attempts and failures.

#: Maximum number of failed files shown with a batch.
_FAILURES = 50


@dataclass(frozen=True)
class BatchesFacts:
    """Batches of a job, and the start of the next page."""

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
    """The files of a batch, page by page.

    ``files_note`` tells why there are no files, or which files the job takes.
    """

    files: Sequence[BatchFile]
    next: str | None
    files_note: str | None
    volume: str | None


@dataclass(frozen=True)
class BatchFacts(BatchFiles):
    """A batch, as in ``volstream describe``, with its attempts, failed files, and files."""

    job: str
    batch: Mapping[str, Any]
    attempts: Sequence[AttemptFacts]
    failures: Sequence[Mapping[str, Any]]


def batches(request: PageRequest) -> BatchesFacts:
    """The batches of a job, newest first. Raises NotFoundError."""
    job, before, limit = request.job, request.query.text("before"), request.query.limit
    last = None if before is None else _batch(request.home, job, before)
    found = request.home.catalog.reports.batches_of(job.id, before=last, limit=limit)
    return BatchesFacts(str(job.name), found, found[-1].id if len(found) == limit else None)


def batch(request: PageRequest) -> BatchFacts:
    """A batch: its attempts, its files, its failed files. Raises NotFoundError."""
    home, job = request.home, request.job
    record = _batch(home, job, request.names["batch"])
    after, until = record.paths
    failures = home.catalog.failures.active(job.id, wanted=ANY, after=after, until=until, batch_id=record.id, limit=_FAILURES)
    plan = home.catalog.reports.plan(record.plan_id)
    return BatchFacts(
        job=str(job.name),
        batch=details.described_batch(home, record, failures),
        attempts=[_attempt(attempt) for attempt in home.catalog.reports.attempts_at(record.id)],
        failures=explained(home, failures),
        **vars(_batch_files(home, record, plan, request.query)),
    )


def _batch(home: Home, job: Job, identity: str) -> Batch:
    record = home.catalog.reports.batch(identity)
    if record is None or record.job_id != job.id:
        raise NotFoundError(f"The job {job.name} has no batch {identity}.", "The history is kept for history_seconds.")
    return record


def _attempt(attempt: Attempt) -> AttemptFacts:
    values = dict(vars(attempt))
    return AttemptFacts(host=host_of(values.pop("owner")), **values)


def _batch_files(home: Home, record: Batch, plan: Plan | None, query: Query) -> BatchFiles:
    """Returns a page of the batch's files from the directory's history, or the reason why none are shown."""
    empty = BatchFiles([], None, None, None)
    stream = home.catalog.streams.by_id(record.stream_id)
    if stream is None or stream.source_kind is not SourceKind.VOLUME or plan is None:
        return replace(empty, files_note="This batch processed rows, not files.")
    volume = home.catalog.volumes.by_id(stream.source_id)
    snapshot = None if volume is None else snapshot_of(home, volume)
    if volume is None or snapshot is None or snapshot.table_id != plan.table_id:
        return replace(empty, files_note="The volume was dropped or replaced.")
    empty = replace(empty, volume=str(volume.name))
    if plan.kind is PlanKind.RETRY:
        return replace(empty, files_note="The batch retried failed files; those that failed again are below.")
    if plan.kind is PlanKind.REPAIR:
        return replace(empty, files_note="The batch repaired files for which the table was wrong (volstream verify).")
    if plan.kind is PlanKind.STRAYS:
        return replace(empty, files_note="The batch removed rows of files that are no longer in the volume.")
    if record.until_time is not None:
        since = f"modified at {record.until_time:%Y-%m-%d %H:%M:%S} UTC or later"
        before = "" if record.after_time is None else f", until {record.after_time:%Y-%m-%d %H:%M:%S} UTC"
        return replace(empty, files_note=f"The batch took the newest files first: those {since}{before}.")
    note = None if plan.where is None else f"The job processes only files with: {plan.where}"
    after = query.text("after") or record.after_path
    try:
        if plan.initial or plan.from_version is None or plan.kind is PlanKind.REPLAY:
            part = browse.between(snapshot, after, record.until_path, query.limit, plan.to_version)
            rows = [BatchFile(entry.path, "new", entry.size) for entry in part.entries]
            return replace(empty, files=rows, next=part.next, files_note=note)
        changed = snapshot.changed(plan.from_version, plan.to_version)
        inside = pc.less_equal(changed[PATH], record.until_path or "")
        if after is not None:
            inside = pc.and_(inside, pc.greater(changed[PATH], after))
        changed = changed.filter(inside)
        lasts = last_of_each(changed).slice(0, query.limit).to_pylist()
        firsts = first_of_each(changed).slice(0, query.limit).to_pylist()
    except VolstreamError as error:
        return replace(empty, files_note=error.message)
    rows = [BatchFile(last[PATH], _action(first, last), last["size"]) for first, last in zip(firsts, lasts, strict=True)]
    full = len(rows) == query.limit
    return replace(empty, files=rows, next=rows[-1].path if full else None, files_note=note)


def _action(first: dict[str, Any], last: dict[str, Any]) -> str:
    """Returns the net change of a file."""
    if last["change"] == DELETE:
        return "removed"
    return "new" if first["change"] == INSERT else "changed"


#: Number of batches in the chart, of batches on the page, and of groups of failures.
_CHARTED, _BATCHES, _GROUPS = 200, 10, 20

#: Number of days for which a function's counters are shown.
_DAYS = 30

#: Number of failures that are grouped for a page: a job's newest. Also the number read at a time.
_GROUPED = 5_000

#: Maximum number of jobs whose failures are shown together.
_FAILING_JOBS = 20

#: Number of log lines shown with a job, and on the log's page.
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
    """A group with its ``example``: the newest failure, as in ``volstream list failures``."""

    states: Mapping[str, int]
    newest: datetime
    example: Mapping[str, Any] | None


@dataclass(frozen=True)
class RowsPreview(Sample):
    """A few rows of a job's table. If they are all of one batch, ``batch`` is its id."""

    batch: str | None = None


@dataclass(frozen=True)
class CountedDays:
    """A counter of a function, on each of the last days in UTC."""

    name: str
    numbers: Sequence[float]


@dataclass(frozen=True)
class JobFacts:
    """A job.

    Attributes:
        job: its definition, as in ``volstream describe``.
        next_run: its time. ``runs`` tells what starts it.
        history: batches as points of a chart.
        counted_days: the function's counters on each of the last days. Today is last.
        more_groups: number of groups of failures that are not shown.
        preview: None before the table exists.
    """

    job: Mapping[str, Any]
    status: JobRow
    problem: Problem | None
    volume: str | None
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
    """Failed files of a job, of one group or of all: their number, some of them, and the start of the next
    page."""

    job: str
    volume: str | None
    group: str | None
    groups: Sequence[Group]
    count: int
    failures: Sequence[Mapping[str, Any]]
    next: int | None


@dataclass(frozen=True)
class JobGroups:
    """The failures of a job by cause. ``volume`` is its source."""

    job: str
    volume: str | None
    groups: Sequence[ShownGroup]


@dataclass(frozen=True)
class AllFailuresFacts:
    """The failures of all jobs by cause. The job with the newest failure comes first.

    Only causes, paths and jobs that contain ``search``. ``count``: of all failed files.
    """

    jobs: Sequence[JobGroups]
    count: int
    search: str


@dataclass(frozen=True)
class LogFacts:
    """The output of a job's function: for all files, for one, or in one batch."""

    job: str
    file: str | None
    batch: str | None
    lines: Sequence[logs.LogLine]


def job(request: PageRequest) -> JobFacts:
    """A job: its run in progress, its newest batches, its failures by cause, and rows of its table."""
    home, definition = request.home, request.job
    measured = home.catalog.reports.measured(definition.id, limit=_CHARTED)
    due, says = details.next_run(home, definition)
    groups = groups_of(home, definition)
    worked_on = home.catalog.reports.worked_on(definition.id, _BATCHES)
    status = job_status(home, definition, runs_of(home.catalog, [definition]))
    return JobFacts(
        job=details.described(home, definition),
        status=JobRow(**status),
        problem=next(iter(problems({"jobs": [status]}, request.probed())), None),
        volume=details.volume_of(home, definition),
        run=details.open_run(home, definition, measured[:20]),
        next_run=due,
        runs=says,
        history=details.history(home.catalog, measured),
        counted_days=_counted_days(home, definition),
        batches=worked_on,
        groups=_with_examples(home, groups[:_GROUPS]),
        more_groups=max(0, len(groups) - _GROUPS),
        log=_lines(home, definition, _FEW_LINES),
        preview=_preview(home, definition, worked_on),
        tasks=request.audit.tasks(f"job {definition.name}", limit=FEW_TASKS),
    )


def failures(request: PageRequest) -> FailuresFacts:
    """The failed files of a job, newest first: all, or those of one cause."""
    home, definition, query = request.home, request.job, request.query
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


def all_failures(request: PageRequest) -> AllFailuresFacts:
    """The failures of all jobs, by job and cause."""
    home, search = request.home, request.query.text("search") or ""
    jobs = {job.id: job for job in home.catalog.jobs.list()}
    wanted = search.casefold()
    newest = [
        row
        for row in home.catalog.failures.briefly(None, limit=_GROUPED)
        if row.job_id in jobs and any(wanted in t.casefold() for t in (row.message, row.path, str(jobs[row.job_id].name)))
    ]
    groups = grouped(newest)
    return AllFailuresFacts(
        [
            JobGroups(
                str(jobs[job_id].name),
                details.volume_of(home, jobs[job_id]),
                _with_examples(home, [group for group in groups if group.job_id == job_id][:_GROUPS]),
            )
            for job_id in [*dict.fromkeys(failure.job_id for failure in newest)][:_FAILING_JOBS]
        ],
        home.catalog.failures.count(None, ANY),
        search,
    )


def log(request: PageRequest) -> LogFacts:
    """The last lines of output of a job's function, of all files, of one file or of one batch."""
    path, batch = request.query.text("path"), request.query.text("batch")
    lines = _lines(request.home, request.job, _MAX_LINES, path=path, batch=batch)
    return LogFacts(str(request.job.name), path, batch, lines)


def groups_of(home: Home, definition: Job) -> list[FailureGroup]:
    """Returns the newest failures of a job by cause."""
    return grouped(home.catalog.failures.briefly(definition.id, limit=_GROUPED))


def paths_of_group(home: Home, definition: Job, identity: str) -> Sequence[str]:
    """Returns all files of a group, including old failures. Raises NotFoundError."""
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
    counters: dict[str, list[float]] = {}
    for name, day, number in home.catalog.reports.counted_since(definition.id, today - timedelta(days=_DAYS - 1)):
        if day <= today:  # another host's clock may be ahead
            counters.setdefault(name, [0.0] * _DAYS)[_DAYS - 1 - (today - day).days] = number
    return [CountedDays(name, numbers) for name, numbers in counters.items()]


def _with_examples(home: Home, groups: Sequence[FailureGroup]) -> list[ShownGroup]:
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
    """Returns a few rows of the newest batch that wrote some, or of the table. None if the table does not
    exist yet."""
    location = places.table_location(home.warehouse, definition.into)
    try:
        version = newest_version(location)
    except VolstreamError as error:
        return RowsPreview([], [], error.message)
    if version is None:
        return None
    batch = next((candidate.id for candidate in worked_on if candidate.state is BatchState.COMMITTED and candidate.rows), None)
    equals = None if batch is None or not isinstance(definition, FileJob) else ("_batch_id", batch)
    sample = sample_of(home, location, version, equals)
    if not sample.rows and equals is not None:  # since replaced by another batch
        sample, batch = sample_of(home, location, version), None
    return RowsPreview(**vars(sample), batch=batch)


# The versions of a job's code, side by side.

#: Maximum number of lines shown of a difference.
_MAX_CODE_LINES = 2_000


@dataclass(frozen=True)
class ChangedFile:
    """A module that differs between two versions, as the lines of a unified diff."""

    path: str
    lines: Sequence[str]


@dataclass(frozen=True)
class CodeFacts:
    """The versions of a job's code, and the difference between two of them.

    Attributes:
        versions: newest first, each with its number of files with rows.
        edited: the current code, if it has not run yet.
        old, new: the compared versions, if there are two.
        changes: different arguments, columns and environments, before and after.
        files: different modules, or None if the source of one version is not kept.
    """

    job: str
    versions: Sequence[dict[str, Any]]
    edited: CodeVersion | None
    old: CodeVersion | None
    new: CodeVersion | None
    changes: Sequence[tuple[str, str, str]]
    files: Sequence[ChangedFile] | None


def code(request: PageRequest) -> CodeFacts:
    """The versions of a job's code, with their numbers of files, and the difference between two of them."""
    job, query = request.job, request.query
    stored = {version.number: version for version in request.home.catalog.codes.versions(job.id)}
    newest = max(stored, default=0)
    numbers = query.number("old") or newest - 1, query.number("new") or newest
    if unknown := [number for number in numbers if number > newest]:
        raise NotFoundError(f"The code of {job.name} has no version {unknown[0]}.", f"The newest is {newest}.")
    old, new = (stored.get(number) for number in numbers)
    edited = _edited(request, stored.values())
    if edited is not None and query.number("new") is None:
        old, new = stored.get(query.number("old") or newest), edited
    return CodeFacts(
        str(job.name),
        described_code(request.home, job)["code_versions"] or [],
        edited,
        old,
        new,
        [] if old is None or new is None else _changes(old, new),
        None if old is None or new is None else _changed_files(old, new),
    )


def _edited(request: PageRequest, stored: Collection[CodeVersion]) -> CodeVersion | None:
    job = request.job
    if not stored or not isinstance(job, FileJob):
        return None
    try:
        current = version_of(request.home.settings, job)
    except VolstreamError:  # the job's page tells why
        return None
    return None if current.digest in {version.digest for version in stored} else current


def _changes(old: CodeVersion, new: CodeVersion) -> list[tuple[str, str, str]]:
    names = sorted({*old.arguments, *new.arguments})
    pairs = [
        ("Function", old.function, new.function),
        ("Columns", old.returns, new.returns),
        ("Environment", old.environment or "", new.environment or ""),
        *((f"Argument {name}", old.arguments.get(name, ""), new.arguments.get(name, "")) for name in names),
    ]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _changed_files(old: CodeVersion, new: CodeVersion) -> list[ChangedFile] | None:
    if old.source is None or new.source is None:
        return None
    changed = []
    for path in sorted({*old.source, *new.source}):
        before, after = (side.get(path, "").splitlines() for side in (old.source, new.source))
        if before != after:
            lines = list(unified_diff(before, after, lineterm="", n=3))[2:]
            changed.append(ChangedFile(path, lines[:_MAX_CODE_LINES]))
    return changed


# The work of jobs in the last ten minutes, hour, day or week. Consecutive batches of a job are one bar.

_SPANS = {"minutes": timedelta(minutes=10), "hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1)}

#: Maximum number of jobs with a line, and number of parts of the span in which batches are counted together.
_MAX_JOBS, _SLOTS = 20, 240


@dataclass(frozen=True)
class Bar:
    """Work without a pause.

    Attributes:
        kind: ``ok``, ``bad`` (some files failed), ``running``, or ``waiting``, whose end is unknown.
        start, end: as fractions of the span.
    """

    kind: str
    start: float
    end: float
    batches: int = 0
    files: int = 0
    failed: int = 0


@dataclass(frozen=True)
class JobLine:
    """The work of a job, in chronological order."""

    job: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Timeline:
    """The work of the most important jobs.

    Attributes:
        idle: number of jobs without work in this time.
        done, failed: files of all jobs' batches that were committed in each part of the span.
        waiting: maximum number of files that waited for a commit in each part, each from the oldest change of
            its plan.
        part_seconds: length of a part.
    """

    span: str
    since: datetime
    until: datetime
    lines: Sequence[JobLine]
    idle: int
    done: Sequence[int]
    failed: Sequence[int]
    waiting: Sequence[int]
    part_seconds: float


def timeline(catalog: Catalog, jobs: Sequence[tuple[Job, ListedJob]], span: str | None, now: datetime) -> Timeline:
    """Returns the work of jobs until now.

    Args:
        jobs: the most important first.
        span: ``minutes``, ``hour``, ``day`` or ``week``. By default a day, or less while all jobs are
            younger.

    Raises:
        InvalidValueError: another span.
    """
    oldest = min((job.created_on for job, _ in jobs), default=now)
    span = span or next((name for name in ("minutes", "hour") if oldest > now - _SPANS[name]), "day")
    length = _SPANS.get(span)
    if length is None:
        raise InvalidValueError(f"span cannot be {span[:50]!r}.", "Give minutes, hour, day or week.")
    since = now - length
    slot = length / _SLOTS
    worked = catalog.reports.worked_in([job.id for job, _ in jobs], since, slot)
    done, failed = [0] * _SLOTS, [0] * _SLOTS
    for work in (work for works in worked.values() for work in works):
        at = min(_SLOTS - 1, int((work.ended_on - since) / slot))
        done[at] += work.files - work.failed
        failed[at] += work.failed

    def part(moment: datetime) -> float:
        return min(1.0, max(0.0, (moment - since) / length))

    lines = []
    for job, listed in jobs:
        bars: list[Bar] = []
        for work in worked.get(job.id, ()):
            bar = Bar(
                "bad" if work.failed else "ok", part(work.began_on), part(work.ended_on), work.batches, work.files, work.failed
            )
            if bars and bars[-1].kind == bar.kind and bar.start - bars[-1].end < 1 / _SLOTS:
                last = bars.pop()
                sums = last.batches + bar.batches, last.files + bar.files, last.failed + bar.failed
                bar = Bar(bar.kind, last.start, bar.end, *sums)
            bars.append(bar)
        if listed.running and listed.last_run is not None:
            bars.append(Bar("running", max([part(listed.last_run), *(bar.end for bar in bars)]), 1.0))
        elif listed.waiting_since is not None:
            bars.append(Bar("waiting", part(listed.waiting_since), 1.0))
        if bars:
            lines.append(JobLine(listed.job, bars))
    waiting = _waiting(catalog, jobs, since, slot)
    return Timeline(span, since, now, lines[:_MAX_JOBS], len(jobs) - len(lines), done, failed, waiting, slot.total_seconds())


def _waiting(catalog: Catalog, jobs: Sequence[tuple[Job, ListedJob]], since: datetime, slot: timedelta) -> list[int]:
    spans = list(catalog.reports.waited_in([job.id for job, _ in jobs], since, slot))
    for _, job in jobs:
        if job.waiting_since is not None and job.files is not None and job.done is not None:
            spans.append(
                (int((job.waiting_since - since) / slot), _SLOTS, max(0, job.files - job.done - job.failed - job.skipped))
            )
    changes = [0] * (_SLOTS + 1)
    for first, last, files in spans:
        changes[min(_SLOTS - 1, max(0, first))] += files
        changes[min(_SLOTS, last + 1)] -= files
    return list(accumulate(changes[:_SLOTS]))
