"""When jobs worked in the last ten minutes, hour, day or week: the batches of a job that follow one another are one bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate

from volstream.base.definitions import Job
from volstream.catalog import Catalog
from volstream.errors import InvalidValueError
from volstream.server.console.facts.rows import ListedJob

_SPANS = {"minutes": timedelta(minutes=10), "hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1)}

#: Jobs that have a line, and parts of the span in which batches are counted together.
_MAX_JOBS, _SLOTS = 20, 240


@dataclass(frozen=True)
class Bar:
    """Work without a pause.

    Attributes:
        kind: ``ok``, ``bad`` (some files failed), ``running``, or ``waiting``, of which only the beginning is known.
        start, end: as parts of the span, from 0 to 1.
    """

    kind: str
    start: float
    end: float
    batches: int = 0
    files: int = 0
    failed: int = 0


@dataclass(frozen=True)
class JobLine:
    """The work of a job, in the order of time."""

    job: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Timeline:
    """The work of the jobs with the most to say.

    Attributes:
        idle: number of jobs without any work in this time.
        done, failed: files of all jobs' batches that were committed in each part of the span.
        waiting: the most files that waited for a commit in each part, each from the oldest change of its plan.
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
    """Returns what jobs did until now.

    Args:
        jobs: the most important first.
        span: ``minutes``, ``hour``, ``day`` or ``week``; None: a day, or less while all jobs are younger.

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
