"""The alerts that the state of a home calls for, whichever process or host caused it. No Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from volstream.base.definitions import Job, JobState, Stream
from volstream.catalog import Catalog
from volstream.ops.alerts.model import AlertEvent, Condition, Subject
from volstream.ops.inspection.failures import group_id
from volstream.ops.inspection.problems import Problem, ProblemCause

#: What alerts about a problem are called. Failed files are not a state: each is sent when it fails.
_EVENTS = {
    ProblemCause.RUN: AlertEvent.FAILURE,
    ProblemCause.PAUSE: AlertEvent.PAUSE,
    ProblemCause.STALE: AlertEvent.STALE,
    ProblemCause.OTHER: AlertEvent.PROBLEM,
}


def conditions(catalog: Catalog, problems: Sequence[Problem]) -> tuple[list[Condition], list[str]]:
    """Returns problems as conditions; and prefixes of the keys of conditions that cannot be judged now: failing runs of a paused
    job, and the staleness of a stream whose source cannot be reached."""
    jobs = {str(job.name): job for job in catalog.jobs.list()}
    streams = {str(stream.name): stream for stream in catalog.streams.list()}
    unclear = [f"run:{job.id}:" for job in jobs.values() if job.state is JobState.PAUSED]
    unreached = {problem.name for problem in problems if problem.kind == "stream" and problem.cause is ProblemCause.OTHER}
    unclear += [f"stale:{streams[name].id}:" for name in unreached & streams.keys()]
    return list(_conditions(problems, jobs, streams)), unclear


def _conditions(problems: Iterable[Problem], jobs: dict[str, Job], streams: dict[str, Stream]) -> Iterator[Condition]:
    for problem in problems:
        if problem.cause is ProblemCause.FILES:
            continue
        event, said = _EVENTS[problem.cause], (problem.severe, problem.why, problem.do)
        job, stream = jobs.get(problem.name), streams.get(problem.name)
        if problem.cause is ProblemCause.PAUSE and job is not None:
            # A pause by hand is sent once: it was intended.
            yield Condition(f"pause:{job.id}", event, subject_of(job), *said, lasting=problem.severe)
        elif problem.cause is ProblemCause.RUN and job is not None:
            key = f"run:{job.id}:{group_id('run', problem.why)}"
            yield Condition(key, event, subject_of(job), *said, passing=True)
        elif problem.cause is ProblemCause.STALE and stream is not None:
            key = f"stale:{stream.id}:{'now' if problem.severe else 'soon'}"
            yield Condition(key, event, _subject_of_stream(stream, jobs.values()), *said)
        elif problem.cause is ProblemCause.OTHER:
            of = group_id("problem", problem.do)  # an object may have several
            key = f"problem:{of}:{problem.kind}:{problem.name}:{'severe' if problem.severe else 'waits'}"[:200]
            subject = Subject(problem.kind, problem.name)
            if problem.kind == "job" and job is not None:
                subject = subject_of(job)
            elif problem.kind == "stream" and stream is not None:
                subject = _subject_of_stream(stream, jobs.values())
            yield Condition(key, event, subject, *said, passing=True)


def subject_of(job: Job) -> Subject:
    """Returns a job as the subject of alerts."""
    return Subject("job", str(job.name), None if job.alert is None else tuple(job.alert))


def _subject_of_stream(stream: Stream, jobs: Iterable[Job]) -> Subject:
    """Returns a stream as the subject of alerts, which go to its job's own receivers if it has some."""
    own: Sequence[str] | None = next((job.alert for job in jobs if stream.id in job.stream_ids), None)
    return Subject("stream", str(stream.name), None if own is None else tuple(own))
