"""The current state of a home, object by object. Starts no JVM: it reads the catalog and the logs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from volstream.base.definitions import FileJob, Function, Job, JobState, Stream, TriggerKind, Volume
from volstream.base.model.names import Name
from volstream.base.model.text import counted, ended, first_line, one_line
from volstream.base.model.units import about, format_duration
from volstream.base.model.work import FAILING, FailureState
from volstream.base.processes import host_of, pid_of
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.leases import DISABLED, of_daemons, of_volume
from volstream.errors import CatalogError, StreamStaleError, VolstreamError
from volstream.functions.pickled import missing_code
from volstream.jobs.runs.lease import LastRuns, runs_of
from volstream.ops.inspection.details import arrived_rows, backlog, next_retry, outcome, shown
from volstream.spark.engine.client import engine_status

if TYPE_CHECKING:
    from volstream.home import Home

T = TypeVar("T")

#: A job that waits longer than this for others to end is reported. Also the maximum number of examined jobs.
_PATIENCE, _FEW = timedelta(minutes=5), 20


def status(home: Home) -> dict[str, Any]:
    """Returns the state of the engine and of all volumes, streams, jobs, functions, sources, and tables with
    arriving rows."""
    with home.catalog.database.one_snapshot():
        return _status(home)


def _status(home: Home) -> dict[str, Any]:
    catalog = home.catalog
    jobs = catalog.jobs.list()
    open_runs = runs_of(catalog, jobs)
    failing, uncommitted = (catalog.conditions.causes(ConditionKind.VOLUME), catalog.conditions.causes(ConditionKind.TABLE))
    return {
        "home": str(home.settings.home),
        "engine": engine_status(home.settings),
        "volumes": [volume_status(home, volume, failing) for volume in catalog.volumes.list()],
        "streams": [stream_status(home, stream) for stream in catalog.streams.list()],
        "jobs": [job_status(home, job, open_runs) for job in jobs],
        "tables": [table_status(home, name, uncommitted.get(str(name))) for name in catalog.tails.list()],
        "sources": shown(home, catalog.sources.list()),
        "functions": [function_health(function) for function in catalog.functions.list()],
        "alerts": alerts_status(home),
        "metastore": metastore_health(home),
        "unattended": unattended(home, jobs),
        "disabled": disabled(home),
        "crowd": crowd(home, jobs, open_runs),
    }


def disabled(home: Home) -> list[tuple[str, str]]:
    """Returns host and reason of daemons, apart from this home's, that have been without an engine for a
    while."""
    recorded = engine_status(home.settings)
    ours = {os.getpid(), 0 if recorded is None else recorded.pid}
    leases = [lease for lease in home.catalog.leases.held(of_daemons()) if lease.purpose.startswith(DISABLED)]
    others = [lease for lease in leases if host_of(lease.owner) != socket.gethostname() or pid_of(lease.owner) not in ours]
    return [(host_of(lease.owner), lease.purpose.removeprefix(DISABLED)) for lease in others]


def crowd(home: Home, jobs: Sequence[Job], open_runs: LastRuns) -> Mapping[str, Any] | None:
    """Returns the running jobs, the time since which none of them has started, and how many of a few other
    jobs have waited for minutes for one to end. None if no job has."""
    running = [job for job in jobs if job.id in open_runs.in_hand]
    since = max((job.last_started for job in running if job.last_started is not None), default=None)
    long_ago = datetime.now(UTC) - _PATIENCE
    if since is None or since > long_ago or len(running) < home.settings.max_parallel_jobs:
        return None
    free = [job for job in jobs if job.state is JobState.ACTIVE and job.trigger.kind is TriggerKind.ON_CHANGE]
    idle = [job for job in free if job.id not in open_runs.in_hand | open_runs.failed.keys()][:_FEW]
    owed = [backlog(home.catalog, job) for job in idle]
    waiting = sum(each is not None and each.waiting_since is not None and each.waiting_since < long_ago for each in owed)
    return {"running": [str(job.name) for job in running], "since": since, "waiting": waiting} if waiting else None


def unattended(home: Home, jobs: Sequence[Job]) -> list[str]:
    """Returns the jobs with a trigger that nothing starts, because no daemon keeps a volume of the home."""
    triggered = [str(job.name) for job in jobs if job.trigger.kind is not TriggerKind.MANUAL and job.state is JobState.ACTIVE]
    volumes = {of_volume(volume.id) for volume in home.catalog.volumes.list()} if triggered else set()
    has_daemon = not volumes or any(lease.name in volumes for lease in home.catalog.leases.held())
    return [] if has_daemon else triggered


def health(home: Home, *, streams: bool) -> dict[str, Any]:
    """Returns the problems in :func:`status`, without failed files and alerts: cheap enough for probes.

    Args:
        streams: also of streams, for which the logs of tables are read.
    """
    catalog = home.catalog
    jobs = catalog.jobs.list()
    open_runs = runs_of(catalog, jobs)
    failing, unread = catalog.conditions.causes(ConditionKind.VOLUME), catalog.conditions.causes(ConditionKind.SOURCE)
    return {
        "engine": engine_status(home.settings),
        "volumes": [volume_health(home, volume, failing) for volume in catalog.volumes.list()],
        "streams": [stream_health(home, stream) for stream in catalog.streams.list()] if streams else [],
        "jobs": [{**job_health(job, open_runs), "failures": {}} for job in jobs],
        "tables": [{"table": name, "note": reason} for name, reason in catalog.conditions.causes(ConditionKind.TABLE).items()],
        "sources": [{"name": str(source.name), "error": unread.get(source.id)} for source in catalog.sources.list()],
        "functions": [function_health(function) for function in catalog.functions.list()],
        "alerts": [],
        "metastore": metastore_health(home),
        "disabled": disabled(home),
        "crowd": crowd(home, jobs, open_runs),
    }


def metastore_health(home: Home) -> dict[str, Any]:
    """Returns why tables cannot be registered in the metastore of the settings."""
    name = home.settings.metastore
    return {"name": name, "trouble": home.catalog.conditions.cause(ConditionKind.METASTORE, name) if name else None}


def alerts_status(home: Home) -> list[dict[str, Any]]:
    """Returns the receivers of alerts to which deliveries fail."""
    return [
        {"receiver": undelivered.receiver, "waiting": undelivered.count, "since": undelivered.since, "error": undelivered.error}
        for undelivered in home.catalog.alerts.undelivered()
        if undelivered.receiver in home.settings.receivers
    ]


def volume_status(home: Home, volume: Volume, failing: Mapping[str, str]) -> dict[str, Any]:
    """Returns how complete a volume's directory is, and its problem."""
    listing = next(iter(home.catalog.refreshes.reconciles(volume.id)), None)
    # Without events, listings find all changes, and no event was missed.
    missed = listing if volume.queue_type.has_events else None
    files = home.catalog.refreshes.file_count(volume.id)
    unknown = volume.last_listing is None and not files
    held = f"{counted(volume.held_removals, 'removal')} held" if volume.held_removals else None
    return {
        **volume_health(home, volume, failing),
        "location": volume.location,
        "queue": volume.queue_type,
        "files": None if unknown else files,
        "last_listing": volume.last_listing,
        "listed": listing and listing.listed,
        "listed_bytes": listing and listing.bytes,
        "added_by_listing": missed and missed.added_by_listing,
        "changed_by_listing": missed and missed.changed_by_listing,
        "removed_by_listing": missed and missed.removed_by_listing,
        "late_events": missed and missed.late_events,
        "rejected": home.catalog.refreshes.rejected_count(volume.id),
        "note": failing.get(volume.id) or held or ("not listed yet" if unknown else None),
    }


def volume_health(home: Home, volume: Volume, failing: Mapping[str, str]) -> dict[str, Any]:
    """Returns the problem of a volume; ``failing`` has the reasons of failing volumes, by id.

    ``quiet``: seconds without a new file, if that is too long.
    """
    quiet = None
    if volume.expect_every is not None:
        last = home.catalog.refreshes.last_arrival(volume.id) or volume.created_on
        seconds = (datetime.now(UTC) - last).total_seconds()
        quiet = seconds if seconds > volume.expect_every else None
    return {
        "volume": str(volume.name),
        "held_removals": volume.held_removals,
        "trouble": failing.get(volume.id),
        "quiet": quiet,
        "expect_every": volume.expect_every,
    }


def stream_status(home: Home, stream: Stream) -> dict[str, Any]:
    """Returns how far a stream is behind its source."""
    state = stream_health(home, stream)
    unread = None if state["note"] else not home.catalog.is_at_end(stream) and home.reader.has_data(stream)
    rows, size = (home.reader.lag(stream) or (None, None)) if unread else (0, 0)
    return {
        **state,
        "source": f"{stream.source_kind} {stream.source_name}",
        "offset": stream.offset,
        "unread": rows,
        "unread_bytes": size,
        "has_data": unread,
    }


def stream_health(home: Home, stream: Stream) -> dict[str, Any]:
    """Returns whether a stream can be read, and until when. ``note`` tells why not. ``stale``: it never will
    be again.

    Raises:
        CatalogError: the catalog is unavailable.
    """
    state: dict[str, Any] = {"stream": str(stream.name), "note": None, "stale": False, "stale_after": None}
    try:
        until = None
        if not home.catalog.is_at_end(stream):  # reading thousands of directories takes seconds
            home.reader.pin(stream)
            until = home.reader.stale_after(stream)
    except CatalogError:
        raise
    except VolstreamError as error:
        return {**state, "note": error.message, "stale": isinstance(error, StreamStaleError), "stale_soon": False}
    soon = datetime.now(UTC) + timedelta(seconds=home.settings.stale_warning_seconds)
    return {**state, "stale_after": until, "stale_soon": until is not None and until <= soon}


def job_status(home: Home, job: Job, open_runs: LastRuns) -> dict[str, Any]:
    """Returns a job's waiting and failed work, and the result of its last run.

    ``done`` includes the files that the condition ``where`` excludes: only Spark could count these.
    """
    counts = home.catalog.failures.counts(job.id)
    owed = backlog(home.catalog, job)
    return {
        **job_health(job, open_runs),
        "files": owed and owed.files,
        "done": owed and owed.done,
        "share": owed and owed.share,
        "where": job.where if isinstance(job, FileJob) else None,
        "waiting_since": owed and owed.waiting_since,
        "waiting": home.catalog.reports.waiting(job.id).files,
        "failed": sum(counts.get(state, 0) for state in FAILING),
        "skipped": counts.get(FailureState.SKIPPED, 0),
        "failures": counts,
        "last_run": job.last_started,
        "outcome": outcome(job, open_runs),
        "next_retry": next_retry(home, job),
    }


def job_health(job: Job, open_runs: LastRuns) -> dict[str, Any]:
    """Returns the problems of a job as a whole.

    ``unit`` is the unit of its numbers of failures, ``reason`` tells why it paused itself, ``trouble`` why
    its last run failed, ``interrupted`` that this run never ended, ``code`` why its function cannot be found,
    ``wrong`` the findings of the last verification, ``left`` why a loaded file is still in its volume, and
    ``endless`` when its current batch started, if the job has no time limit.
    """
    return {
        "job": str(job.name),
        "state": job.state,
        "reason": job.paused_itself,
        "unit": job.unit if isinstance(job, FileJob) else None,
        "trigger": job.trigger.kind,
        "schedule": str(job.trigger),
        "running": job.id in open_runs.in_hand,
        "trouble": open_runs.failed.get(job.id),
        "interrupted": job.id in open_runs.interrupted,
        "code": missing_code(job) if isinstance(job, FileJob) else None,
        "wrong": open_runs.wrong.get(job.id),
        "left": open_runs.left.get(str(job.into)),
        "endless": open_runs.endless.get(job.id),
    }


def function_health(function: Function) -> dict[str, Any]:
    """Returns why the code of a SQL function cannot be found, if it cannot."""
    return {"function": str(function.name), "code": missing_code(function)}


def table_status(home: Home, name: Name, trouble: str | None) -> dict[str, Any]:
    """Returns how many rows have arrived for a table and are not committed, and why not."""
    arrived, note = _or_note(lambda: arrived_rows(home, name))
    return {"table": str(name), "not_committed": arrived, "note": trouble or note}


def _or_note(question: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return question(), None
    except VolstreamError as error:
        return None, error.message


# The problems of a home, and their remedies, derived from its status. Pure.
#
# This is the only verdict: ``status``, ``/readyz``, the console and alerts show these problems.

#: A daemon that has run for longer than this keeps volumes.
_START_SECONDS = 60.0

#: A batch that takes longer than this, with calls without a time limit, may never end.
_LONG_SECONDS = 600.0


class ProblemCause(StrEnum):
    """The kinds of problems: a run failed as a whole, a job is paused, a stream is stale or soon will be,
    files failed, and all others."""

    RUN = "run"
    PAUSE = "pause"
    STALE = "stale"
    FILES = "files"
    OTHER = "other"


@dataclass(frozen=True)
class Problem:
    """A problem that needs a person's attention.

    Attributes:
        severe: processing has stopped. Otherwise something needs attention.
        kind, name: the object. Empty for the home.
        do: the remedy, as a sentence or a command.
    """

    severe: bool
    kind: str
    name: str
    why: str
    do: str
    cause: ProblemCause = ProblemCause.OTHER

    @property
    def line(self) -> str:
        """The first line of the problem, and the remedy."""
        title = f"{self.kind} {self.name}".rstrip()
        do = f"Run: {self.do}" if self.do.startswith("volstream ") else self.do
        return one_line(f"{'■' if self.severe else '▲'} {title}: {ended(first_line(self.why))} {do}")


def problems(status: Mapping[str, Any], probed: Mapping[str, Any]) -> list[Problem]:
    """Returns the problems, the severe ones first.

    Args:
        status: see :func:`volstream.ops.inspection.status.status`. A part of it is enough.
        probed: a daemon's own state, even while it cannot write the catalog. Empty in other processes.
    """
    found = [
        *_engine(status, probed),
        *_volumes(status, probed),
        *_streams(status),
        *_jobs(status, probed),
        *_functions(status),
        *_tables(status, probed),
        *_sources(status, probed),
        *_alerts(status),
        *_metastore(status),
        *_daemon(status),
    ]
    return sorted(found, key=lambda problem: not problem.severe)


def most_severe(found: Iterable[Problem]) -> dict[tuple[str, str], Problem]:
    """Returns the first, most severe problem of each object, by kind and name."""
    first: dict[tuple[str, str], Problem] = {}
    for problem in found:
        first.setdefault((problem.kind, problem.name), problem)
    return first


def _engine(status: Mapping[str, Any], probed: Mapping[str, Any]) -> Iterator[Problem]:
    recorded = status.get("engine")
    engine = probed.get("engine") or ({} if recorded is None else vars(recorded))
    if engine.get("reason"):
        what, do = "The Spark engine", "The engine's log is in the home's log/ folder."
        if engine.get("server"):
            what, do = f"The Spark server {engine['server']}", "To check it: volstream doctor --cluster"
        yield Problem(True, "engine", "", f"{what} is down: {engine['reason']}", f"Jobs wait; the daemon retries. {do}")
    for host, reason in status.get("disabled", ()):
        why = f"The Spark engine of a daemon on {host} is down: {reason}"
        do = "Other daemons keep its volumes, if there are any; it retries. The engine's log is in its home's log/ folder."
        yield Problem(True, "engine", host, why, do)


def _daemon(status: Mapping[str, Any]) -> Iterator[Problem]:
    if jobs := status.get("unattended", ()):
        named = ", ".join(jobs[:3]) + (" ..." if len(jobs) > 3 else "")
        idle = f"so nothing starts {counted(len(jobs), 'job')} with a trigger: {named}."
        engine = status.get("engine")
        if engine is None or engine.kind != "daemon":
            yield Problem(False, "daemon", "", f"No daemon is running, {idle}", "volstream daemon")
        elif engine.up_seconds > _START_SECONDS:
            why = f"The daemon, pid {engine.pid}, keeps no volume, {idle}"
            do = "Its log and /readyz say why, such as a full disk; or it serves another virtual cluster."
            yield Problem(True, "daemon", "", why, do)
    if crowd := status.get("crowd"):
        since = about((datetime.now(UTC) - crowd["since"]).total_seconds())
        taken = f"{', '.join(crowd['running'])} took all places more than {since} ago."
        do = "If one hangs, limit its calls: volstream alter-job NAME --timeout 10m. Otherwise raise max_parallel_jobs."
        yield Problem(True, "daemon", "", f"{counted(crowd['waiting'], 'job')} or more cannot begin: {taken}", do)


def _volumes(status: Mapping[str, Any], probed: Mapping[str, Any]) -> Iterator[Problem]:
    for volume in _with(status.get("volumes", ()), "volume", "trouble", probed.get("failing_volumes", {})):
        name, held = volume["volume"], volume.get("held_removals")
        if volume["trouble"]:
            yield Problem(True, "volume", name, volume["trouble"], f"volstream doctor {name}")
        if volume.get("quiet"):
            expected = format_duration(volume["expect_every"])
            why = f"No file has arrived or changed for {about(volume['quiet'])}; one is expected every {expected}."
            do = f"Check what writes the files. To change the interval: volstream alter-volume {name} --expect-every 2h"
            yield Problem(False, "volume", name, why, do)
        if held:
            why = f"{counted(held, 'file')} missing from the store, more than the volume's limit: kept until you confirm."
            do = f"If they were deleted on purpose: volstream refresh {name} --accept-removals"
            yield Problem(False, "volume", name, why, do)


def _streams(status: Mapping[str, Any]) -> Iterator[Problem]:
    for stream in status.get("streams", ()):
        name = stream["stream"]
        if stream["stale"]:
            do = (
                f"To continue from now: volstream advance-stream {name}; "
                f"from a version: volstream reset-stream {name} --to-version N"
            )
            yield Problem(True, "stream", name, stream["note"], do, ProblemCause.STALE)
        elif stream["note"]:
            yield Problem(True, "stream", name, stream["note"], f"volstream describe stream {name}")
        elif stream["stale_soon"]:
            seconds = (stream["stale_after"] - datetime.now(UTC)).total_seconds()
            when = f"in {about(seconds)}" if seconds > 0 else "at any time"
            why = f"Changes that it has not consumed may be deleted {when}; then it can no longer be read."
            do = "Run its job, or keep the history of its table for longer."
            yield Problem(False, "stream", name, why, do, ProblemCause.STALE)


def _jobs(status: Mapping[str, Any], probed: Mapping[str, Any]) -> Iterator[Problem]:
    for job in _with(status.get("jobs", ()), "job", "trouble", probed.get("failing_jobs", {})):
        stopped = _stopped(job)
        if stopped is not None:
            yield stopped
        if job.get("wrong"):
            why = ended(f"Its table {job['wrong']}")
            yield Problem(False, "job", job["job"], why, f"volstream verify {job['job']} --fix")
        if job.get("left"):
            do = "Each run retries. Free space for the file, or grant the missing permission."
            yield Problem(False, "job", job["job"], f"A loaded file could not be moved out of its volume: {job['left']}", do)
        seconds = (datetime.now(UTC) - job["endless"]).total_seconds() if job.get("endless") else 0.0
        if seconds > _LONG_SECONDS:
            why = f"Its batch has been running for {about(seconds)}, and its calls have no time limit."
            do = f"volstream alter-job {job['job']} --timeout 10m"
            if job["unit"] is None:
                why, do = f"Its statement has been running for {about(seconds)}.", f"To end it: volstream pause {job['job']}"
            yield Problem(False, "job", job["job"], why, do)
        files = _files(job)
        if files is not None:
            yield files


def _stopped(job: Mapping[str, Any]) -> Problem | None:
    """Returns why a job as a whole has stopped, or None."""
    name = job["job"]
    rerun = f"volstream run-job {name}" if job["trigger"] == TriggerKind.MANUAL else f"volstream describe job {name}"
    if job["state"] == JobState.PAUSED:
        why = f"It paused itself: {job['reason']}" if job["reason"] else "It was paused manually."
        return Problem(bool(job["reason"]), "job", name, why, f"volstream resume {name}", ProblemCause.PAUSE)
    if job["code"]:
        do = f"Restore it, or name another: volstream alter-job {name} --function FILE.py:FUNCTION"
        return Problem(True, "job", name, f"Its function is missing: {job['code']}", do, ProblemCause.RUN)
    if job["trouble"]:
        why, _, remedy = job["trouble"].partition("\n")
        return Problem(True, "job", name, f"Its run failed: {why}", remedy or rerun, ProblemCause.RUN)
    if job["interrupted"]:
        why = "Its last run died before its end. Nothing is lost or doubled: the next run goes on from the last commit."
        do = f"volstream run-job {name}" if job["trigger"] == TriggerKind.MANUAL else "volstream daemon"
        return Problem(True, "job", name, why, do, ProblemCause.RUN)
    return None


def _files(job: Mapping[str, Any]) -> Problem | None:
    """Returns how many files of a job failed, as a problem."""
    lost, trying = (job["failures"].get(state, 0) for state in (FailureState.QUARANTINED, FailureState.RETRYING))
    if not lost and not trying:
        return None
    manual = job["trigger"] == TriggerKind.MANUAL
    retried = f"will be retried{' by the next run' if manual else ''}."
    parts = [f"{counted(lost, job['unit'])} quarantined."] if lost else []
    parts += [f"{trying} more {retried}" if lost else f"{counted(trying, job['unit'])} failed and {retried}"] if trying else []
    do = f"volstream list failures --job {job['job']}"
    return Problem(False, "job", job["job"], " ".join(parts), do, ProblemCause.FILES)


def _functions(status: Mapping[str, Any]) -> Iterator[Problem]:
    for function in status.get("functions", ()):
        if function["code"]:
            do = 'Restore it, or create it again: volstream sql "CREATE OR REPLACE FUNCTION ..."'
            yield Problem(True, "function", function["function"], f"Its code is missing: {function['code']}", do)


def _tables(status: Mapping[str, Any], probed: Mapping[str, Any]) -> Iterator[Problem]:
    for table in _with(status.get("tables", ()), "table", "note", probed.get("failing_tables", {})):
        if table["note"]:
            do = "The rows that have arrived are safe; the daemon retries."
            yield Problem(True, "table", table["table"], table["note"], do)


def _sources(status: Mapping[str, Any], probed: Mapping[str, Any]) -> Iterator[Problem]:
    for source in _with(status.get("sources", ()), "name", "error", probed.get("failing_sources", {})):
        if source["error"]:
            yield Problem(True, "source", source["name"], source["error"], f"volstream describe source {source['name']}")


def _alerts(status: Mapping[str, Any]) -> Iterator[Problem]:
    for receiver in status.get("alerts", ()):
        why = f"{counted(receiver['waiting'], 'alert')} could not be delivered: {receiver['error']}"
        yield Problem(True, "receiver", receiver["receiver"], why, f"volstream alert test {receiver['receiver']}")


def _metastore(status: Mapping[str, Any]) -> Iterator[Problem]:
    metastore = status.get("metastore", {})
    if metastore.get("trouble"):
        do = "The daemon retries. If the metastore has another table of the same name, drop one of the two."
        yield Problem(False, "metastore", metastore["name"], metastore["trouble"], do)


def _with(rows: Iterable[Mapping[str, Any]], name: str, why: str, reasons: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    """Yields rows with the reasons that the daemon knows for some of them, by name."""
    for row in rows:
        yield {**row, why: reasons.get(row[name]) or row[why]}
