"""All details of an object, for people and programs: its definition and related information. Starts no
JVM."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from volstream.base import privacy
from volstream.base.definitions import (
    Connection,
    DynamicJob,
    FileJob,
    Function,
    Job,
    JobState,
    QueueType,
    Source,
    SourceDefinition,
    SourceKind,
    Stream,
    TriggerKind,
    Volume,
)
from volstream.base.definitions.forms import DURATION, SIZE
from volstream.base.definitions.options import keys
from volstream.base.model.names import Name
from volstream.base.model.text import cause, first_line
from volstream.base.model.units import about, format_duration
from volstream.base.model.work import FAILING, Batch, Failure, FailureKind, FailureState, PlanKind
from volstream.catalog import Catalog
from volstream.catalog.alerts import Condition, ConditionKind
from volstream.catalog.failures import BriefFailure, FailureFilter
from volstream.errors import VolstreamError
from volstream.files.volumes import routing
from volstream.files.volumes.access import policies
from volstream.functions.printing import PRINTED_LAST
from volstream.jobs.plans import sizing
from volstream.jobs.runs.lease import LastRuns, runs_of
from volstream.jobs.runs.schedule import next_due

if TYPE_CHECKING:
    from volstream.home import Home

# Explains failures to users: what happens next automatically, and what they can do. Pure.

#: Usual remedy, besides another version of the file.
_HELPS = {
    FailureKind.RAISED: "Fix the function or the file",
    FailureKind.CODE: "Fix what the function imports, or install it",
    FailureKind.WRONG_RESULT: "Fix the function, or alter-job --returns",
    FailureKind.UNEXPECTED: "Fix the function or the file, or expect something else (alter-job --expect)",
    FailureKind.TOO_LARGE: "Return less (a path instead of contents), or raise the setting",
    FailureKind.TIMED_OUT: "Raise the limit (alter-job --timeout)",
    FailureKind.WORKER_DIED: "Fix the function or the file; the message says what killed the worker",
    FailureKind.UNREADABLE: "Check that the store answers",
    FailureKind.MALFORMED: "Fix the file, or how it is read (alter-job --arg)",
    FailureKind.NEW_COLUMNS: "Accept new columns (alter-job --arg new_columns=add)",
    FailureKind.DENIED: "Grant read access to the identity of the connection (volstream describe connection)",
}


def automatic_action(failure: Failure, job: FileJob, now: datetime) -> str:
    """Describes what happens to a failed file automatically."""
    match failure.state:
        case FailureState.RETRYING:
            done = f"({failure.attempts} of {job.retries + 1} attempts done)"
            if job.trigger.kind is TriggerKind.MANUAL:
                return f"retried by the next run {done}"
            return f"retry {_when(failure, now)} {done}"
        case FailureState.WAITING if failure.kind is FailureKind.RETRY_LATER:
            return f"called again {_when(failure, now)}, as it requested"
        case FailureState.WAITING if failure.kind is FailureKind.STORE:
            return "waits until the store can be read; tried again by each run"
        case FailureState.WAITING if failure.kind is FailureKind.HELD:
            return "waits for more files" if failure.next_try is None else f"checked again {_when(failure, now)}"
        case FailureState.WAITING:
            return "waits until the directory shows the change"
        case FailureState.SKIPPED:
            return "skipped; processed when it changes"
        case _:
            return "no automatic retry; processed when it changes"


def _when(failure: Failure, now: datetime) -> str:
    seconds = 0.0 if failure.next_try is None else (failure.next_try - now).total_seconds()
    return f"in {about(seconds)}" if seconds > 0 else "at the next run"


def where_printed(failure: Failure, job: FileJob) -> str | None:
    """Returns the command that shows the function's output for the file, or None without output."""
    trace = failure.traceback or ""
    last_words = failure.kind in (FailureKind.WORKER_DIED, FailureKind.TIMED_OUT) and trace
    if PRINTED_LAST not in trace and not last_words:
        return None
    return f"volstream logs {job.name} --file {shlex.quote(failure.path)}"


def remedy(failure: Failure, job: FileJob, volume: str | None) -> str:
    """Describes what the user can do about a failure.

    Args:
        volume: name of the file's volume, or None if it was dropped.
    """
    retry = f"volstream retry {job.name} {shlex.quote(failure.path)}"
    match failure.state:
        case FailureState.WAITING if failure.kind is FailureKind.RETRY_LATER:
            return f"Sooner: {retry}"
        case FailureState.WAITING if failure.kind is FailureKind.STORE:
            return f"See why the volume {volume} cannot be read: volstream doctor" if volume else "The volume was dropped."
        case FailureState.WAITING if failure.kind is FailureKind.HELD:
            if failure.next_try is not None:
                return "Nothing to do: it is processed once it has not changed for a while."
            return f"Add its missing files, or: volstream alter-job {job.name} --group-complete ..."
        case FailureState.WAITING:
            return f"volstream refresh {volume}" if volume else "The volume was dropped: drop the job."
        case FailureState.SKIPPED:
            return f"Changed your mind? {retry}"
        case _:
            command = where_printed(failure, job)
            output_hint = f" Full output: {command}" if command else ""
            skip = retry.replace("volstream retry", "volstream skip", 1)
            return f"{_HELPS.get(failure.kind, 'Look at the file')}, then {retry}; or: {skip}{output_hint}"


# Failed files for people: what happens next, what they can do, and which failures have the same cause.

#: Minimum length of a file's name to be left out of a message. A shorter name may be part of any word.
_MIN_NAME = 4


def explained(home: Home, failures: Iterable[Failure]) -> list[dict[str, Any]]:
    """Returns the attributes of failures, with the job's name and unit, ``next``, ``why`` and ``remedy``."""
    catalog = home.catalog
    jobs = {job.id: job for job in catalog.jobs.list() if isinstance(job, FileJob)}
    volumes = {volume.id: str(volume.name) for volume in catalog.volumes.list()}
    of_stream = {stream.id: volumes.get(stream.source_id) for stream in catalog.streams.list()}
    now = datetime.now(UTC)
    return [
        {
            **values(failure),
            "job": str(jobs[failure.job_id].name),
            "unit": jobs[failure.job_id].unit,
            "next": automatic_action(failure, jobs[failure.job_id], now),
            "why": first_line(failure.message),
            "remedy": remedy(failure, jobs[failure.job_id], of_stream.get(jobs[failure.job_id].stream_id)),
        }
        for failure in failures
        if failure.job_id in jobs
    ]


@dataclass(frozen=True)
class FailureGroup:
    """Failures of a job that, according to their messages, have one cause.

    Attributes:
        id: stays the same as long as the error does.
        why: the first line of their messages, with ``*`` in place of differences.
        ids: of the failures, newest first.
    """

    id: str
    kind: str
    why: str
    ids: Sequence[int]
    paths: Sequence[str]
    states: dict[str, int]
    newest: datetime
    job_id: str


def grouped(failures: Iterable[BriefFailure]) -> list[FailureGroup]:
    """Groups failures by job, kind and message, ignoring numbers, paths and quoted text. The largest group
    comes first.

    Args:
        failures: newest first.
    """
    by_id: dict[tuple[str, str], list[BriefFailure]] = {}
    for failure in failures:
        by_id.setdefault((failure.job_id, group_id(failure.kind, failure.message, failure.path)), []).append(failure)
    groups = [_group(identity, members) for (_, identity), members in by_id.items()]
    return sorted(groups, key=lambda group: (-len(group.ids), group.why))


def group_id(kind: str, message: str, path: str = "") -> str:
    """Returns the id of a failure's group. Ignores the file's own path and name in the message."""
    return _id(kind, cause(_without(message, path)))


def common_message(failures: Iterable[tuple[str, str]]) -> str:
    """Returns the common first line of a group's messages, given with paths. If they differ, returns one as
    an example."""
    messages = {first_line(message): path for message, path in failures}
    first = next(iter(messages))
    return first if len(messages) == 1 else f"{first} (for example)"


def _without(message: str, path: str) -> str:
    """Returns the first line of a message without the file's own path and name."""
    line = first_line(message)
    for named in (path, path.rpartition("/")[2]):
        line = line.replace(named, "*") if len(named) >= _MIN_NAME else line
    return line


@functools.lru_cache(1000)
def _id(kind: str, pattern: str) -> str:
    return hashlib.sha256(f"{kind}\0{pattern}".encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _group(identity: str, members: Sequence[BriefFailure]) -> FailureGroup:
    states: dict[str, int] = {}
    for failure in members:
        states[failure.state] = states.get(failure.state, 0) + 1
    first = members[0]
    ids, paths = [member.id for member in members], [member.path for member in members]
    why = common_message((member.message, member.path) for member in members)
    return FailureGroup(identity, first.kind, why, ids, paths, states, first.failed_on, first.job_id)


# A job's runs: the current one with its progress, the next one, and the past throughput. From the catalog
# alone.


@dataclass(frozen=True)
class OpenRun:
    """The plan that a job works on, or left unfinished.

    Attributes:
        files, bytes: of the whole plan.
        left_files, left_bytes, left_batches: not committed yet.
        done: the completed fraction of the files, from 0 to 1.
        seconds_left: by the job's past rate. None until a batch after the first one was measured.
    """

    plan: str
    kind: str
    created_on: datetime
    files: int
    bytes: int
    left_files: int
    left_bytes: int
    left_batches: int
    seconds_left: float | None
    done: float


def open_run(home: Home, job: Job, measured: Sequence[Batch]) -> OpenRun | None:
    """Returns the job's open plan, or None.

    Args:
        measured: the job's newest batches with a known duration.
    """
    plan = home.catalog.consumptions.open_plan(job.stream_id)
    if plan is None or plan.job_id != job.id:
        return None
    waiting = home.catalog.reports.waiting(job.id)
    # The first batch of a plan is small: it measures a file's duration, while workers start and functions are
    # set up.
    rate = sizing.typical_rate(batch for batch in measured if batch.number > 1 or not waiting.batches)
    left = waiting.files + waiting.removals
    files = max(plan.files, left)
    return OpenRun(
        plan=plan.id,
        kind=plan.kind,
        created_on=plan.created_on,
        files=files,
        bytes=plan.bytes,
        left_files=left,
        left_bytes=waiting.bytes,
        left_batches=waiting.batches,
        seconds_left=None if rate is None else rate.seconds(left, waiting.bytes),
        done=1 - left / files if files else 0.0,
    )


@dataclass(frozen=True)
class Backlog:
    """The remaining work of a file job.

    Attributes:
        files: in the volume.
        owed: maximum number of these that remain: files that wait in the stream or in an open plan of its
            changes, failed or skipped files, and files whose function asked to be called later. A retried or
            replayed file counts as before. None if unknown, because sets failed or are held back, and the
            catalog does not record the number of files in a set.
        waiting_since: when the oldest waiting change was found, if there is one.
    """

    files: int
    owed: int | None
    waiting_since: datetime | None

    @property
    def done(self) -> int | None:
        """Number of files that the job has finished. Each counts once, regardless of the number of
        attempts."""
        return None if self.owed is None else self.files - self.owed

    @property
    def share(self) -> float | None:
        """The completed fraction of the files, from 0 to 1."""
        return None if self.done is None else self.done / self.files if self.files else 1.0


def backlog(catalog: Catalog, job: Job) -> Backlog | None:
    """Returns the remaining work of a file job, or None if it reads no volume, or its volume was dropped."""
    stream = catalog.streams.by_id(job.stream_id)
    if stream is None or not isinstance(job, FileJob) or catalog.volumes.by_id(stream.source_id) is None:
        return None
    plan = catalog.consumptions.open_plan(stream.id)
    consumed = None if stream.initial else stream.offset
    in_plan, since = 0, None
    if plan is not None and plan.kind is PlanKind.STREAM:
        in_plan = catalog.reports.waiting(job.id).files
        since = catalog.refreshes.first_after(stream.source_id, None if plan.initial else plan.from_version)
        consumed = plan.to_version
    unread = 0
    if plan is not None or not catalog.is_at_end(stream):
        unread, _ = catalog.refreshes.changed_after(stream.source_id, consumed)
    if since is None and unread:
        since = catalog.refreshes.first_after(stream.source_id, consumed)
    files = catalog.refreshes.file_count(stream.source_id)
    failed = catalog.failures.count(job.id, FailureFilter((*FAILING, FailureState.SKIPPED)))
    waiting = (FailureKind.RETRY_LATER, FailureKind.STORE, FailureKind.HELD)
    later = catalog.failures.count(job.id, FailureFilter((FailureState.WAITING,), waiting))
    sets = job.group_by is not None and failed + later
    owed = None if sets else min(files, unread + in_plan + failed + later)
    return Backlog(files, owed, None if since is None else max(since, stream.created_on))


def outcome(job: Job, open_runs: LastRuns) -> str | None:
    """Returns the result of a job's last run, in a line."""
    if job.id in open_runs.in_hand:
        return "running"
    if job.id in open_runs.interrupted:
        return "interrupted"
    failed = open_runs.failed.get(job.id)
    result = job.last_outcome if failed is None else f"failed: {first_line(failed)}"
    return None if result is None else first_line(result)


def next_retry(home: Home, job: Job) -> datetime | None:
    """Returns when a failed file of the job is retried next, or None if no file waits for an automatic
    retry."""
    manual = job.trigger.kind is TriggerKind.MANUAL or job.state is JobState.PAUSED
    return None if manual else home.catalog.failures.next_due(job.id)


def next_run(home: Home, job: Job) -> tuple[datetime | None, str]:
    """Returns when the daemon will run the job, if that is known, and a description of it."""
    if job.state is JobState.PAUSED:
        return None, "paused"
    due = next_due(job.trigger, job.last_started, job.created_on, home.zone, datetime.now(UTC))
    match job.trigger.kind:
        case TriggerKind.ON_CHANGE:
            return None, f"when {'files' if isinstance(job, FileJob) else 'its sources'} change"
        case TriggerKind.EVERY:
            return due, f"every {format_duration(job.trigger.every or 0.0)}"
        case TriggerKind.CRON:
            return due, f"cron {job.trigger.cron}"
        case _:
            return None, "by hand"


@dataclass(frozen=True)
class MeasuredBatch:
    """Throughput and duration of a committed batch, as a point of a chart.

    Attributes:
        waited: seconds from the oldest change of its plan to its commit. For a replay, from the plan.
    """

    batch: str
    time: datetime
    files: int
    failed: int
    bytes: int
    seconds: float | None
    files_per_second: float | None
    waited: float | None


def history(catalog: Catalog, measured: Sequence[Batch]) -> list[MeasuredBatch]:
    """Returns the points of a chart, oldest first."""
    waited = catalog.reports.waited(measured)
    return [
        MeasuredBatch(
            batch=batch.id,
            time=batch.committed_on,
            files=batch.files + batch.removals,
            failed=batch.failed,
            bytes=batch.bytes,
            seconds=batch.seconds,
            files_per_second=batch.rate,
            waited=waited.get(batch.id),
        )
        for batch in reversed(measured)
        if batch.committed_on is not None
    ]


Object = Connection | Volume | Stream | Job | Function | Source

#: Options whose stored values differ from what people write.
_WRITTEN = {name: key for kind in (Volume, FileJob) for name, key in keys(kind).items() if key.form in (DURATION, SIZE)}


def values(definition: Any) -> dict[str, Any]:
    """Returns the attributes of a definition, with names as text."""
    attributes = {
        field.name: getattr(definition, field.name) for field in dataclasses.fields(definition) if field.name != "pickled"
    }
    if isinstance(definition, Job):  # for programs, all jobs have the same attributes
        query = attributes.pop("query", None)
        every = {field.name: None for field in dataclasses.fields(FileJob) if field.name != "pickled"}
        attributes = {**every, "statement": query, "dynamic": isinstance(definition, DynamicJob), **attributes}
    return {key: _plain(value) for key, value in attributes.items()}


def as_written(key: str, value: Any) -> Any:
    """Returns an attribute's value as people write it: durations and sizes with their units, others as they
    are."""
    return _WRITTEN[key].write(value) if key in _WRITTEN else value


def _plain(value: Any) -> Any:
    if isinstance(value, Name):
        return str(value)
    return round(value, 3) if isinstance(value, float) else value


def shown(home: Home, objects: Sequence[Object]) -> list[dict[str, Any]]:
    """Returns the attributes of objects for a list."""
    jobs = [item for item in objects if isinstance(item, Job)]
    open_runs = runs_of(home.catalog, jobs) if jobs else None
    unread = home.catalog.conditions.of(ConditionKind.SOURCE) if any(isinstance(item, Source) for item in objects) else {}
    return [_shown(home, item, open_runs, unread) for item in objects]


def _shown(home: Home, item: Object, open_runs: LastRuns | None, unread: Mapping[str, Condition]) -> dict[str, Any]:
    attributes = values(item)
    match item:
        case Job():
            assert open_runs is not None, "there is a job"
            attributes["trigger"] = str(item.trigger)
            attributes["last_outcome"] = outcome(item, open_runs)
        case Stream():
            attributes |= _state(home, item)
        case Source():
            condition = unread.get(item.id)
            attributes |= {"error": condition and condition.cause, "error_on": condition and condition.since}
            attributes["retention"] = keys(SourceDefinition)["retention_policy"].write(attributes.pop("retention_policy"))
            attributes["versions"] = ", ".join(sorted(attributes["options"].get("versions", {}), key=int)) or None
        case _:
            pass
    return attributes


def described(home: Home, item: Object) -> dict[str, Any]:
    """Returns all details of an object."""
    return {**shown(home, [item])[0], **_more(home, item)}


def described_batch(home: Home, batch: Batch, failures: Iterable[Failure]) -> dict[str, Any]:
    """Returns all details of a batch, with the messages of its failed files by path."""
    plan = home.catalog.reports.plan(batch.plan_id)
    job = home.catalog.jobs.by_id(batch.job_id) if batch.job_id else None
    return {
        **values(batch),
        "files_per_second": batch.rate,
        "job": str(job.name) if job else None,
        "failures": {failure.path: failure.message for failure in failures},
        "plan": None if plan is None else values(plan),
    }


def _events_url(home: Home, volume: Volume) -> str:
    """Returns the URL, with its token, to which senders post events of a volume."""
    settings = home.settings
    token = routing.token_of(privacy.token_of(settings), volume)
    return f"{privacy.address_of(settings, settings.http_port)}/volumes/{quote(str(volume.name))}/events?token={token}"


def _state(home: Home, stream: Stream) -> dict[str, Any]:
    try:
        home.reader.pin(stream)
        unread: bool | None = home.reader.has_data(stream)
        return {"has_data": unread, "stale": None, "stale_after": home.reader.stale_after(stream)}
    except VolstreamError as error:
        return {"has_data": None, "stale": error.message, "stale_after": None}


def _more(home: Home, item: Object) -> dict[str, Any]:
    catalog = home.catalog
    match item:
        case Connection():
            users = catalog.volumes.list(connection_id=item.id)
            return {"volumes": [str(volume.name) for volume in users], **policies(item, catalog)}
        case Volume():
            last = catalog.refreshes.last(item.id)
            return {
                **({"events_url": _events_url(home, item)} if item.queue_type is QueueType.WEBHOOK else {}),
                "files": catalog.refreshes.file_count(item.id),
                "rejected": catalog.refreshes.rejected_count(item.id),
                "completeness": next(map(values, catalog.refreshes.reconciles(item.id)), None),
                "last_refresh": None if last is None else values(last),
                "streams": [str(stream.name) for stream in catalog.streams.list(source_id=item.id)],
            }
        case Stream():
            job = catalog.job_of(item)
            if item.source_kind is SourceKind.TABLE:
                return {"job": str(job.name) if job else None}
            behind = home.reader.lag(item) or (None, None)
            return {"unread": behind[0], "unread_bytes": behind[1], "job": str(job.name) if job else None}
        case Job():
            streams = [str(stream.name) for stream in map(catalog.streams.by_id, item.stream_ids) if stream]
            return {
                "stream": next(iter(streams), None),
                "streams": streams,
                "failures": catalog.failures.counts(item.id),
                "next_retry": next_retry(home, item),
                "totals": catalog.reports.totals(item.id),
                "counted": catalog.reports.counted(item.id),
                **described_code(home, item),
                "source": _source(item),
            }
        case Function():
            return {"source": _source(item)}
        case Source():
            return _rows(home, item)
        case _:
            return {}


def volume_of(home: Home, job: Job) -> str | None:
    """Returns the name of the volume that a job reads, if it still exists."""
    volume = home.catalog.volume_of(job)
    return None if volume is None else str(volume.name)


def arrived_rows(home: Home, name: Name) -> int:
    """Returns the approximate number of rows that have arrived for a table and are not committed. Raises
    DependencyError."""
    from volstream.tables.delta import places  # late, here and below: most commands need no tables
    from volstream.tables.tails.tail import TailedTable

    tailed = TailedTable.open(places.table_location(home.warehouse, name))
    return 0 if tailed is None else sum(file.rows for file in tailed.tail.files(tailed.moved))


def _rows(home: Home, source: Source) -> dict[str, Any]:
    """Returns how many rows a source's table has, and how many more have arrived."""
    from volstream.tables.delta import places
    from volstream.tables.delta.opened import OpenTable

    location = places.table_location(home.warehouse, source.name)
    table = OpenTable.newest(location)
    readers = [str(stream.name) for stream in home.catalog.streams.list(source_id=str(source.name))]
    return {
        "location": location,
        "rows": None if table is None else table.rows,
        "not_committed": arrived_rows(home, source.name),
        "streams": readers,
    }


def described_code(home: Home, job: Job) -> dict[str, Any]:
    """Returns ``code``, a sentence on the code of the job's rows, and ``code_versions``, newest first, with
    their numbers of files.

    Both are None for a statement job. The versions are None if they cannot be counted.
    """
    from volstream.jobs.rules.code import counts, describe_code  # late: most commands need no tables

    if not isinstance(job, FileJob):
        return {"code": None, "code_versions": None}
    try:
        found = counts(home, job, exact=False)
    except VolstreamError as error:
        return {"code": error.message, "code_versions": None}
    where = "" if job.pickled is None else "in the catalog, because the function has no file; "
    summary = "not used yet" if found is None else describe_code(job, found) or "made all rows"
    files, current = ({}, None) if found is None else (found.files, found.current)
    versions = [
        {
            "number": one.number,
            "files": files.get(one.number, 0),
            "current": one.number == current,
            "made_on": one.made_on,
            "made_by": one.made_by,
            "function": one.function,
        }
        for one in reversed(home.catalog.codes.versions(job.id) if found is None else found.versions)
    ]
    return {"code": where + summary, "code_versions": versions}


def _source(definition: Job | Function) -> str | None:
    """Returns the source of a function without a file, or None if it has one."""
    from volstream.functions.pickled import source_of

    if not isinstance(definition, FileJob | Function) or definition.pickled is None:
        return None
    try:
        return source_of(definition.pickled).text or "(unknown: Python read the program from standard input)"
    except VolstreamError as error:
        return error.message
