"""What a home does at present, object by object. Starts no JVM: it asks the catalog and the logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from volstream.base.definitions import FileJob, Function, Job, JobState, Stream, TriggerKind, Volume
from volstream.base.model.names import Name
from volstream.base.model.text import counted
from volstream.base.model.work import FAILING, FailureState
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.leases import of_volume
from volstream.errors import CatalogError, StreamStaleError, VolstreamError
from volstream.functions.pickled import missing_code
from volstream.jobs.runs.lease import LastRuns, runs_of
from volstream.ops.inspection.details import arrived_rows, shown
from volstream.ops.inspection.runs import backlog, next_retry, outcome
from volstream.spark.engine.client import engine_status

if TYPE_CHECKING:
    from volstream.home import Home

T = TypeVar("T")

#: A job that waits longer than this for others to end is reported; and how many are looked at, at most.
_PATIENCE, _FEW = timedelta(minutes=5), 20


def status(home: Home) -> dict[str, Any]:
    """Returns the state of the engine and of all volumes, streams, jobs, functions, sources, and tables with rows that arrive one
    by one."""
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
        "crowd": crowd(home, jobs, open_runs),
    }


def crowd(home: Home, jobs: Sequence[Job], open_runs: LastRuns) -> Mapping[str, Any] | None:
    """Returns the jobs that run, since when none of them has begun, and how many of a few others have waited for minutes for one
    to end; None: none has."""
    running = [job for job in jobs if job.id in open_runs.in_hand]
    since = max((job.last_started for job in running if job.last_started is not None), default=None)
    long_ago = datetime.now(UTC) - _PATIENCE
    if since is None or since > long_ago or len(running) < home.settings.max_parallel_jobs:
        return None
    free = [job for job in jobs if job.state is JobState.ACTIVE and job.trigger.kind is TriggerKind.ON_CHANGE]
    idle = [job for job in free if job.id not in open_runs.in_hand | open_runs.failed.keys()][:_FEW]
    owed = [backlog(home.catalog, job) for job in idle]
    waiting = sum(one is not None and one.waiting_since is not None and one.waiting_since < long_ago for one in owed)
    return {"running": [str(job.name) for job in running], "since": since, "waiting": waiting} if waiting else None


def unattended(home: Home, jobs: Sequence[Job]) -> list[str]:
    """Returns the jobs with a trigger that nothing starts, because no daemon keeps a volume of the home."""
    triggered = [str(job.name) for job in jobs if job.trigger.kind is not TriggerKind.MANUAL and job.state is JobState.ACTIVE]
    volumes = {of_volume(volume.id) for volume in home.catalog.volumes.list()} if triggered else set()
    kept = not volumes or any(lease.name in volumes for lease in home.catalog.leases.held())
    return [] if kept else triggered


def health(home: Home, *, streams: bool) -> dict[str, Any]:
    """Returns what :func:`status` says is wrong, without failed files and alerts: cheap enough for probes.

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
    """Returns how complete a volume's directory is, and what is wrong with it."""
    listing = next(iter(home.catalog.refreshes.reconciles(volume.id)), None)
    # Without events, listings find all changes, and none of them was missed.
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
    """Returns what is wrong with a volume, of those that fail by their ids. ``quiet``: for how many seconds no file has come,
    if that is too long."""
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
    """Returns whether a stream can be read, and until when. ``note`` says why not; ``stale``: it never will again.

    Raises:
        CatalogError: the catalog is unavailable.
    """
    state: dict[str, Any] = {"stream": str(stream.name), "note": None, "stale": False, "stale_after": None}
    try:
        until = None
        if not home.catalog.is_at_end(stream):  # to look into thousands of directories takes seconds
            home.reader.pin(stream)
            until = home.reader.stale_after(stream)
    except CatalogError:
        raise
    except VolstreamError as error:
        return {**state, "note": error.message, "stale": isinstance(error, StreamStaleError), "stale_soon": False}
    soon = datetime.now(UTC) + timedelta(seconds=home.settings.stale_warning_seconds)
    return {**state, "stale_after": until, "stale_soon": until is not None and until <= soon}


def job_status(home: Home, job: Job, open_runs: LastRuns) -> dict[str, Any]:
    """Returns what waits for a job, what failed, and how its last run went."""
    counts = home.catalog.failures.counts(job.id)
    owed = backlog(home.catalog, job)
    return {
        **job_health(job, open_runs),
        "files": owed and owed.files,
        "done": owed and owed.done,
        "share": owed and owed.share,
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
    """Returns what is wrong with a job as a whole.

    ``unit`` is what its numbers of failures count, ``reason`` says why it paused itself, ``trouble`` why its last run failed,
    ``interrupted`` that this run never ended, ``code`` why its function cannot be found, ``wrong`` what the last verification
    found wrong with its table, ``left`` why a file that it has loaded is still in its volume, and ``endless`` when
    its current batch started, if the job has no time limit.
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
    """Returns why the code of a SQL function cannot be found, if so."""
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
