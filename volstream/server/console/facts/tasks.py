"""What was done from the console: the audit, tasks, and comparisons of code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from volstream.base.model.work import AuditEntry
from volstream.errors import NotFoundError
from volstream.jobs.proof.compare import Comparison
from volstream.server.console.comparisons import MAX_SAMPLE, MAX_SECONDS, SAMPLE
from volstream.server.console.facts import PageRequest


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


@dataclass(frozen=True)
class ComparisonsFacts:
    """The comparisons of a job's code. ``sample``: the usual number of files, of at most ``max_sample``."""

    job: str
    function: str | None
    sample: int
    max_sample: int
    max_seconds: float
    comparisons: Sequence[AuditEntry]


@dataclass(frozen=True)
class ComparisonFacts:
    """A comparison. ``next``: commands that switch the job to the other code. None: it has not ended well."""

    job: str
    task: AuditEntry
    comparison: Comparison | None
    next: Sequence[str] | None


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


def comparisons(asked: PageRequest) -> ComparisonsFacts:
    """The comparisons of a job's code with other code, newest first. POST starts one."""
    job = asked.job
    made = asked.audit.tasks(f"job {job.name}", "compare")
    return ComparisonsFacts(str(job.name), getattr(job, "function", None), SAMPLE, MAX_SAMPLE, MAX_SECONDS, made)


def comparison(asked: PageRequest) -> ComparisonFacts:
    """A comparison: how far it is, and what other code would change."""
    found, name = asked.audit.task(asked.names["comparison"]), str(asked.job.name)
    if (found.action, found.object) != ("compare", f"job {name}"):
        raise NotFoundError(f"There is no comparison {found.id} of the job {name}.")
    outcome = asked.audit.outcome(found.id) or {"comparison": None, "next": None}
    return ComparisonFacts(name, found, **outcome)
