"""Allows one run of a job at a time, by the holder of its lease, and records its result in the catalog.

What does not belong here: what a run does (``jobs.run`` for functions, ``statements.jobs`` for statements).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from volstream.catalog import Catalog, leases
from volstream.catalog.definitions import note_run
from volstream.errors import InvalidStateError, NotFoundError, StreamBusyError, in_brief
from volstream.jobs.progress import Observer, Progress
from volstream.lifecycle.identity import new_owner
from volstream.lifecycle.stop import Stop
from volstream.model.objects import Job, JobState

J = TypeVar("J", bound=Job)


@dataclass
class RunReport:
    """The result of a run. ``paused`` is the reason why the job was paused meanwhile, or None."""

    progress: Progress = field(default_factory=Progress)
    recovered: bool = False
    paused: str | None = None


class Runner(Protocol):
    """Runs one job. Thread-safe."""

    def run(self, *, until_empty: bool = False, stop: Stop | None = None, observe: Observer | None = None) -> RunReport:
        """Consumes the changes that the job's streams hold now.

        Args:
            until_empty: continue while new changes arrive.
            stop: checked between batches.
            observe: receives the progress.

        Raises:
            StreamBusyError: another process runs the job.
            InvalidStateError: the job is paused.
            FencedError: another process took over meanwhile; uncommitted work is discarded.
        """

    def has_work(self) -> bool:
        """Returns whether a run would find work, judging by catalog and log only: no Spark."""


@dataclass
class Lead(Generic[J]):
    """A run that holds its job's lease.

    Attributes:
        job: its current definition in the catalog.
        summary: one line for the catalog, if the run succeeds.
    """

    job: J
    owner: str
    summary: str = ""


@contextmanager
def lease(catalog: Catalog, job: J, lease_seconds: float) -> Iterator[Lead[J]]:
    """Holds the job's lease for a run, and records its start and its result.

    Raises:
        StreamBusyError: another process runs the job.
        NotFoundError, InvalidStateError: it was dropped; it is paused.
    """
    with settling(catalog, job, lease_seconds) as owner:
        lead = Lead(_current(catalog, job), owner)
        note_run(catalog.database, lead.job, "running", ended=False)
        try:
            yield lead
        except Exception as error:
            note_run(catalog.database, lead.job, f"failed: {in_brief(error)}", ended=True)
            raise
        note_run(catalog.database, lead.job, lead.summary, ended=True)


@contextmanager
def settling(catalog: Catalog, job: Job, lease_seconds: float) -> Iterator[str]:
    """Holds the job's lease, even if it is paused, and yields the owner's name. Raises StreamBusyError."""
    owner = new_owner()
    with leases.lease(catalog.leases, f"job:{job.id}", owner, f"run of job {job.name}", lease_seconds) as other:
        if other is not None:
            raise StreamBusyError(f"The job {job.name} is being run by {other.owner}.", "Wait for it to end.")
        yield owner


def _current(catalog: Catalog, job: J) -> J:
    current = catalog.jobs.by_id(job.id)
    if current is None:
        raise NotFoundError(f"The job {job.name} was dropped.")
    assert isinstance(current, type(job)), "an id belongs to one job"
    if current.state is JobState.PAUSED:
        reason = f": {current.state_reason}" if current.state_reason else ""
        raise InvalidStateError(f"The job {job.name} is paused{reason}.", f"Run: volstream resume {job.name}.")
    return current
