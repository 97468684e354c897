"""What a home does at present, object by object. Starts no JVM: it asks the catalog and the logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from volstream.engine.control import engine_status
from volstream.errors import VolstreamError
from volstream.inspection.details import arrived_rows, shown
from volstream.model.names import Name
from volstream.model.objects import Job, QueueType, Stream, Volume
from volstream.model.text import counted

if TYPE_CHECKING:
    from volstream.home import Home

T = TypeVar("T")


def status(home: Home) -> dict[str, Any]:
    """Returns the state of the engine and of all volumes, streams, jobs, sources, and tables with rows that arrive one by one."""
    catalog = home.catalog
    return {
        "home": str(home.settings.home),
        "engine": engine_status(home.settings),
        "volumes": [volume_status(home, volume) for volume in catalog.volumes.list()],
        "streams": [stream_status(home, stream) for stream in catalog.streams.list()],
        "jobs": [job_status(home, job) for job in catalog.jobs.list()],
        "tables": [table_status(home, name, reason) for name, reason in catalog.tails.troubles().items()],
        "sources": [shown(home, one) for one in catalog.feeds.list()],
        "alerts": alerts_status(home),
    }


def alerts_status(home: Home) -> list[dict[str, Any]]:
    """Returns the receivers of alerts to which deliveries fail."""
    return [
        {"receiver": one.receiver, "waiting": one.count, "since": one.since, "error": one.error}
        for one in home.catalog.alerts.undelivered()
        if one.receiver in home.settings.receivers
    ]


def volume_status(home: Home, volume: Volume) -> dict[str, Any]:
    """Returns how complete a volume's directory is, and what is wrong with it."""
    found = next(iter(home.catalog.refreshes.reconciles(volume.id)), None)
    # Without a queue, listings find all changes, and none of them was missed.
    missed = found if volume.queue_type not in (QueueType.NONE, QueueType.POLL) else None
    return {
        "volume": str(volume.name),
        "location": volume.location,
        "queue": volume.queue_type,
        "files": home.catalog.refreshes.file_count(volume.id),
        "reconciled": volume.reconciled_on,
        "listed": found and found.listed,
        "listed_bytes": found and found.bytes,
        "missing": missed and missed.missing,
        "changed": missed and missed.changed,
        "phantom": missed and missed.phantom,
        "late": missed and missed.late,
        "rejected": home.catalog.refreshes.rejected_count(volume.id),
        "held_removals": volume.held_removals,
        "trouble": volume.trouble,
        "note": volume.trouble
        or (f"{counted(volume.held_removals, 'removal')} held" if volume.held_removals else None),
    }


def stream_status(home: Home, stream: Stream) -> dict[str, Any]:
    """Returns how far a stream is behind its source."""
    unread, note = _or_note(lambda: home.reader.has_data(stream))
    rows, size = (home.reader.lag(stream) or (None, None)) if unread else (0, 0)
    return {
        "stream": str(stream.name),
        "source": f"{stream.source_kind} {stream.source_name}",
        "offset": stream.offset,
        "unread": rows,
        "unread_bytes": size,
        "has_data": unread,
        "note": note,
    }


def job_status(home: Home, job: Job) -> dict[str, Any]:
    """Returns what waits for a job, what failed, and how its last run went."""
    counts = home.catalog.failures.counts(job.id)
    return {
        "job": str(job.name),
        "state": job.state,
        "reason": job.state_reason,
        "trigger": job.trigger.kind,
        "waiting": home.catalog.consumptions.waiting(job.id).files,
        "failed": sum(counts.values()),
        "failures": counts,
        "last run": job.last_started,
        "outcome": job.last_outcome,
        "next retry": home.catalog.failures.next_due(job.id),
    }


def table_status(home: Home, name: Name, trouble: str | None) -> dict[str, Any]:
    """Returns how many rows have arrived for a table and are not committed, and why not."""
    arrived, note = _or_note(lambda: arrived_rows(home, name))
    return {"table": str(name), "not_committed": arrived, "note": trouble or note}


def _or_note(question: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return question(), None
    except VolstreamError as error:
        return None, error.message
