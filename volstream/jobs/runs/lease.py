"""The progress of a job's run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from volstream.base.definitions import FileJob, Job, JobState
from volstream.base.model.names import Name
from volstream.base.model.work import FailureKind, count_unsuccessful
from volstream.base.processes import host_of, new_owner
from volstream.base.threads import Stop
from volstream.catalog import Catalog, leases
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.definitions import note_begun, note_ended
from volstream.errors import (
    CatalogError,
    EngineLostError,
    FencedError,
    InterruptedByUserError,
    InvalidStateError,
    NotFoundError,
    StreamBusyError,
    with_remedy,
)
from volstream.spark.tasks import watched

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


@dataclass
class Progress:
    """A run's progress. Its observer is notified after each step.

    Attributes:
        files, bytes: of all batches planned so far. A file that the run retries counts once.
        failed, overtaken: of ``done_files``. Overtaken files were removed or changed before their turn, which
            is not a failure.
        later: files of ``done_files`` whose function asked to be called later. Not a failure either.
        held: sets of files that are held back. Not a failure either.
        moves: number of moved files of ``done_files``.
        counted: the function's counters, by name.
        new_columns: names of columns that loaded files added to the table, or extended with fields.
        code_changed: the function's source has changed since the job was created.
    """

    files: int = 0
    bytes: int = 0
    done_files: int = 0
    done_bytes: int = 0
    failed: int = 0
    overtaken: int = 0
    later: int = 0
    held: int = 0
    rows: int = 0
    removals: int = 0
    moves: int = 0
    batches: int = 0
    code_changed: bool = False
    counted: dict[str, float] = field(default_factory=dict)
    new_columns: list[str] = field(default_factory=list)

    @property
    def processed(self) -> int:
        """Number of files that were processed successfully."""
        return self.done_files - self.failed - self.overtaken - self.later - self.held

    def add(self, **counted: int) -> None:
        """Adds to numeric attributes, by name."""
        for name, number in counted.items():
            setattr(self, name, getattr(self, name) + number)

    def take_back(self, kinds: Sequence[FailureKind]) -> None:
        """Subtracts files that failed earlier in the run and were retried, so that each counts once."""
        removed = {"files": len(kinds), "done_files": len(kinds), **count_unsuccessful(Counter(kinds))}
        self.add(**{name: -number for name, number in removed.items()})


#: Receives a run's progress.
Observer = Callable[[Progress], None]


# Limits a job to one run at a time with its lease, and records the result in the catalog.
#
# The work of a run is in ``runs.run`` for functions, and in ``api.statements`` for statements.

J = TypeVar("J", bound=Job)
T = TypeVar("T")

#: Interval at which a waiting run retries. Daemons pause no longer between two runs.
_TURN_SECONDS = 0.1

#: Interval at which a run that works on a batch checks whether it may continue.
LOOK_SECONDS = 5.0

#: The outcome of a run without work, if no earlier outcome is recorded.
NOTHING = "nothing to do"


@dataclass
class RunReport:
    """The result of a run.

    Attributes:
        paused: why the job was paused during the run, or None.
        unit: the unit of the progress: ``file`` or ``set``.
    """

    progress: Progress = field(default_factory=Progress)
    recovered: bool = False
    paused: str | None = None
    unit: str = "file"

    @property
    def document(self) -> Mapping[str, Any]:
        """All attributes, for JSON."""
        done = self.progress
        return {**vars(done), "processed": done.processed, "recovered": self.recovered, "paused": self.paused}


class Runner(Protocol):
    """Runs one job. Thread-safe."""

    def run(
        self, *, until_empty: bool = False, stop: Stop | None = None, observe: Observer | None = None, owner: str | None = None
    ) -> RunReport:
        """Consumes the current changes of the job's streams.

        Args:
            until_empty: continue while new changes arrive.
            stop: checked between batches.
            observe: receives the progress.
            owner: holds the job's lease already. By default, the run takes the lease.

        Raises:
            StreamBusyError: another process runs the job.
            InvalidStateError: the job is paused.
            FencedError: another process took over meanwhile; uncommitted work is discarded.
        """

    def has_work(self) -> bool:
        """Returns whether a run would find work, according to catalog and log, without Spark."""


@dataclass
class LeasedRun(Generic[J]):
    """A run that holds its job's lease.

    Attributes:
        job: its definition in the catalog when the run began.
        failed: why the previous run failed as a whole.
        summary: one line for the catalog if the run succeeds, or None if it found nothing to do.
    """

    job: J
    owner: str
    failed: str | None = None
    summary: str | None = None


@contextmanager
def lease(catalog: Catalog, job: J, lease_seconds: float, owner: str | None = None) -> Iterator[LeasedRun[J]]:
    """Holds the job's lease during a run, and records the run's start and result.

    Args:
        owner: from an enclosing :func:`held`. A new owner by default.

    Raises:
        StreamBusyError: another process runs the job.
        NotFoundError: the job was dropped.
        InvalidStateError: the job is paused.
    """
    with held(catalog, job.id, job.name, lease_seconds, owner) as holder:
        lead = LeasedRun(_current(catalog, job), holder, catalog.conditions.cause(ConditionKind.JOB, job.id))
        note_begun(catalog.database, lead.job)
        try:
            yield lead
        except FencedError:  # another run records the end
            raise
        except KeyboardInterrupt:  # the user knows: no alert
            with suppress(CatalogError):
                note_ended(catalog.database, lead.job, "interrupted by the user", failed=lead.failed)
            raise
        except StreamBusyError:  # nothing failed: the run will be retried
            note_ended(catalog.database, lead.job, lead.job.last_outcome, failed=lead.failed)
            raise
        except Exception as error:
            with suppress(CatalogError):  # the run appears as interrupted; its own error matters more
                note_ended(catalog.database, lead.job, lead.job.last_outcome, failed=with_remedy(error))
            raise
        note_ended(catalog.database, lead.job, lead.summary or _nothing_after(lead.job.last_outcome))


@contextmanager
def resumable(stop: Stop) -> Iterator[None]:
    """Lets a stopped run end without a failure if the stop also ends its engine. The next run resumes its
    open batch."""
    try:
        yield
    except EngineLostError:
        if not stop:
            raise


@contextmanager
def held(catalog: Catalog, job_id: str, name: Name, lease_seconds: float, owner: str | None = None) -> Iterator[str]:
    """Holds a job's lease, even before the job exists or while it is paused, and yields the owner's name.

    Raises:
        StreamBusyError: another process holds the lease.
    """
    owner = owner or new_owner()
    with leases.lease(catalog.leases, leases.of_job(job_id), owner, f"run of job {name}", lease_seconds) as other:
        if other is not None:
            where = host_of(other.owner)
            raise StreamBusyError(
                f"Another run of the job {name} is in progress, on {where}.",
                "Wait for it to end, as run-job and replay do with --wait.",
            )
        yield owner


def in_turn(run: Callable[[], T], stop: Stop, on_wait: Callable[[str], object] | None) -> T:
    """Runs a job as soon as no other process runs it.

    Args:
        stop: also ends the wait.
        on_wait: called once with the reason before waiting. None means not to wait.

    Raises:
        StreamBusyError: another process runs the job, and ``on_wait`` is None.
        InterruptedByUserError: stopped while waiting.
    """
    reported = False
    while True:
        try:
            return run()
        except StreamBusyError as busy:
            if on_wait is None:
                raise
            if not reported:
                on_wait(busy.message)
                reported = True
            if stop.wait(_TURN_SECONDS):
                raise InterruptedByUserError("Interrupted while it waited for another run of the job.") from None


class BatchStoppedError(Exception):
    """A run that is to end interrupted its batch. Nothing was committed, and the next run repeats the
    batch."""


def present(catalog: Catalog, job: Job) -> Job:
    """Returns the current record of a running job. Raises FencedError if it was dropped."""
    current = catalog.jobs.by_id(job.id)
    if current is None:
        raise FencedError(f"The job {job.name} was dropped while it ran.")
    return current


class JobWatch:
    """Checks whether a run that works on a batch may continue: a function or a statement may never return.

    Args:
        seconds: how long a batch may continue once the run is to end.

    Attributes:
        paused: why the job was paused, by the last check, or None.
    """

    def __init__(self, catalog: Catalog, job: Job, stop: Stop, seconds: float) -> None:
        self._catalog = catalog
        self.job = job
        self._stop = stop
        self._seconds = seconds
        self._stopped: float | None = None  # since when the run is to end (monotonic)
        self.paused: str | None = None

    def over(self, session: SparkSession) -> AbstractContextManager[None]:
        """Checks repeatedly while the block runs a session's statements. An error of :meth:`check` ends
        them."""
        return watched(session, self.check, LOOK_SECONDS)

    def check(self) -> Job | None:
        """Returns the job's current record, or None if the catalog is unavailable.

        Raises:
            FencedError: the job was dropped.
            BatchStoppedError: the job was paused, or the run stopped, longer ago than a batch should take.
        """
        try:
            current = present(self._catalog, self.job)
        except CatalogError:
            return None
        self.paused = current.paused
        if not (self._stop or self.paused):
            self._stopped = None
        elif self._stopped is None:
            self._stopped = time.monotonic()
        elif time.monotonic() - self._stopped > self._seconds:
            raise BatchStoppedError("It did not end in time.")
        return current


@dataclass(frozen=True)
class LastRuns:
    """The states of jobs' last runs, by job id.

    Attributes:
        in_hand: jobs that a process is running now.
        interrupted: jobs whose last run did not end.
        failed: why the run failed as a whole.
        wrong: problems that the last verification found in the job's table.
        left: why loaded files could not be taken away, by table.
        endless: start of the current batch of each running job without a time limit.
    """

    in_hand: frozenset[str]
    interrupted: frozenset[str]
    failed: Mapping[str, str]
    wrong: Mapping[str, str]
    left: Mapping[str, str]
    endless: Mapping[str, datetime]


def runs_of(catalog: Catalog, jobs: Sequence[Job]) -> LastRuns:
    """Returns the states of jobs' last runs.

    Args:
        jobs: read before this call. A run was interrupted if it is still open when it is read again without a
            lease.
    """
    unended = {job.id: job.last_started for job in jobs if job.unended}
    in_hand = catalog.leases.running_jobs()
    reread = {identity: catalog.jobs.by_id(identity) for identity in unended.keys() - in_hand}
    interrupted = {
        identity for identity, job in reread.items() if job is not None and job.unended and job.last_started == unended[identity]
    }
    failed, wrong, left = map(catalog.conditions.causes, (ConditionKind.JOB, ConditionKind.PROOF, ConditionKind.TAKING))
    unlimited = [job for job in jobs if job.id in in_hand and not (isinstance(job, FileJob) and job.timeout)]
    intents = {job.id: catalog.consumptions.open_intent(job.stream_id) for job in unlimited}
    endless = {identity: intent.started_on for identity, intent in intents.items() if intent is not None}
    return LastRuns(in_hand, frozenset(interrupted), failed, wrong, left, endless)


def clear(catalog: Catalog, job: Job) -> None:
    """Clears "failed" and "interrupted" from a job that has nothing left to do.

    Does nothing if the job is running, or has run since ``job`` was read.
    """
    if not job.unended and catalog.conditions.cause(ConditionKind.JOB, job.id) is None:
        return
    if job.id not in catalog.leases.running_jobs() and catalog.jobs.by_id(job.id) == job:
        note_ended(catalog.database, job, _nothing_after(job.last_outcome))


def _nothing_after(outcome: str | None) -> str:
    """Returns the outcome of a run without work, including the outcome of the last run with work."""
    if outcome is None or outcome.startswith(NOTHING):
        return outcome or NOTHING
    return f"{NOTHING}; before: {outcome}"


def _current(catalog: Catalog, job: J) -> J:
    current = catalog.jobs.by_id(job.id)
    if current is None:
        raise NotFoundError(f"The job {job.name} was dropped.")
    assert isinstance(current, type(job)), "an id belongs to one job"
    if current.state is JobState.PAUSED:
        reason = f": {current.state_reason}" if current.state_reason else ""
        raise InvalidStateError(f"The job {job.name} is paused{reason}.", f"Run: volstream resume {job.name}.")
    return current
