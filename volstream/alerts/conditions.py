"""What is wrong in a home at present, from its catalog and logs: also what other processes and hosts did. No Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from volstream.alerts.model import Condition, Event, Subject
from volstream.catalog import Catalog
from volstream.errors import CatalogError, StreamStaleError, VolstreamError
from volstream.inspection.failures import group_id
from volstream.inspection.problems import problems
from volstream.jobs.definitions import PAUSED_BY_USER
from volstream.model.objects import Job, JobState, Stream
from volstream.model.units import about
from volstream.streams.read import StreamReader

#: What an outcome of a run that failed begins with, and that of one that has not ended.
_FAILED, _RUNNING = "failed: ", "running"


def of_jobs(jobs: Sequence[Job]) -> tuple[list[Condition], list[str]]:
    """Returns paused jobs and those whose last run failed as a whole; and prefixes of keys of runs of which it cannot be said,
    because the job is running or paused."""
    unclear = [job for job in jobs if job.last_outcome == _RUNNING or job.state is JobState.PAUSED]
    return list(_of_jobs(jobs)), [f"run:{job.id}:" for job in unclear]


def _of_jobs(jobs: Sequence[Job]) -> Iterator[Condition]:
    for job in jobs:
        subject = subject_of(job)
        outcome = job.last_outcome or ""
        if job.state is JobState.PAUSED:
            by_itself = job.state_reason is not None and job.state_reason != PAUSED_BY_USER
            why = f"It paused itself: {job.state_reason}." if by_itself else "It was paused by hand."
            do = f"volstream resume {job.name}"
            yield Condition(f"pause:{job.id}", Event.PAUSE, subject, by_itself, why, do, lasting=by_itself)
        elif outcome.startswith(_FAILED):
            why = outcome.removeprefix(_FAILED)
            key, do = f"run:{job.id}:{group_id('run', why)}", f"volstream describe job {job.name}"
            yield Condition(key, Event.FAILURE, subject, True, f"Its run failed: {why}", do, passing=True)


def subject_of(job: Job) -> Subject:
    """Returns a job as the subject of alerts."""
    return Subject("job", str(job.name), None if job.alert is None else tuple(job.alert))


def of_streams(
    streams: Sequence[Stream], jobs: Sequence[Job], reader: StreamReader, warning: timedelta
) -> tuple[list[Condition], list[str]]:
    """Returns streams that are stale, or about to be; and prefixes of keys of those that cannot be looked at now.

    Raises:
        CatalogError: the catalog is unavailable.
    """
    found: list[Condition] = []
    unclear: list[str] = []
    soon = datetime.now(UTC) + warning
    for stream in streams:
        of_job = next((job.alert for job in jobs if stream.id in job.stream_ids), None)
        subject = Subject("stream", str(stream.name), None if of_job is None else tuple(of_job))
        try:
            reader.pin(stream)
            until = reader.stale_after(stream)
        except StreamStaleError as error:
            do = f"volstream reset-stream {stream.name}"
            found.append(Condition(f"stale:{stream.id}:now", Event.STALE, subject, True, error.message, do))
        except CatalogError:
            raise
        except VolstreamError:  # its source cannot be reached, which is another problem
            unclear.append(f"stale:{stream.id}:")
        else:
            if until is not None and until <= soon:
                found.append(_soon(stream, subject, until))
    return found, unclear


def _soon(stream: Stream, subject: Subject, until: datetime) -> Condition:
    left = (until - datetime.now(UTC)).total_seconds()
    when = f"in {about(left)}" if left > 0 else "at any time from now on"
    why = f"Changes that it has not consumed may be deleted {when}; then it can no longer be read."
    do = "Run its job, or keep the history of its table for longer."
    return Condition(f"stale:{stream.id}:soon", Event.STALE, subject, False, why, do)


def of_problems(catalog: Catalog, engine: Mapping[str, Any]) -> list[Condition]:
    """Returns what stands still besides jobs and streams, as ``volstream status`` says it.

    Args:
        engine: the state of the daemon's engine, with ``reason`` if it is not well.
    """
    status = {
        "volumes": [
            {"volume": str(one.name), "trouble": one.trouble, "held_removals": one.held_removals}
            for one in catalog.volumes.list()
        ],
        "tables": [{"table": str(name), "note": why} for name, why in catalog.tails.troubles().items()],
        "sources": [{"name": str(one.name), "error": one.error} for one in catalog.feeds.list()],
        "streams": [],
        "jobs": [],
        "alerts": [],
    }
    return [
        Condition(
            f"problem:{one.kind}:{one.name}:{'severe' if one.severe else 'waits'}"[:200],
            Event.PROBLEM,
            Subject(one.kind, one.name),
            one.severe,
            one.why,
            one.do,
            passing=True,
        )
        for one in problems(status, {"engine": engine})
    ]
