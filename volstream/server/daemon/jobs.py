"""The daemon's scheduler: finds jobs that are due, and runs each in its own thread."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from volstream.base.config import Settings
from volstream.base.definitions import FileJob, Job, JobState, TriggerKind
from volstream.base.log import get
from volstream.base.threads import Backoff, FailureTracker, Stop, run_loop
from volstream.catalog import Catalog
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.changes import Agenda, AgendaEntry
from volstream.errors import (
    CatalogError,
    EngineLostError,
    FencedError,
    InterruptedByUserError,
    InvalidStateError,
    StreamBusyError,
    in_brief,
    reason_of,
    unexpected,
    with_remedy,
)
from volstream.jobs.runs.lease import Runner, RunReport, clear
from volstream.jobs.runs.run import FileRunner
from volstream.jobs.runs.schedule import next_due

_log = get("scheduler")

#: Interval of checks of the schedule if nothing wakes the scheduler. Also the delay until other processes'
#: commits are seen.
_CHECK_SECONDS = 0.5

#: Maximum time between two checks of a job, because clocks may be set.
_MAX_CHECK_SECONDS = 30.0

#: A job's table is maintained after the job has been idle this long, and again when files replaced by its
#: last commits may be deleted.
_REST_SECONDS = (60.0, 4000.0)

#: Time between the maintenance of two tables.
_COMPACT_SECONDS = 4.0


@dataclass
class _Known:
    """The scheduler's memory of a job. Times are monotonic.

    Attributes:
        failures: number of consecutive failed runs.
        not_before: earliest start of the next run.
        not_run: the reason last logged.
        idle: its entry when it was found without work.
        begun: its entry when it was last started because of it.
        verified: when a verification was last started here.
        compactions: times at which its table is to be compacted. None if it has run, or is new to this
            daemon.
    """

    failures: int = 0
    not_before: float = 0.0
    not_run: str = ""
    idle: AgendaEntry | None = None
    begun: AgendaEntry | None = None
    verified: float | None = None
    compactions: list[float] | None = None


class PendingChecks:
    """The jobs to be checked, and since when. It has no clock and does no I/O: times are seconds of one
    clock.

    | a job | is checked | becomes | |---|---|---| | has changed, itself or its volume | in turn, by waiting
    time | running: :meth:`begins`; resting: :meth:`rests` | | rests | at its time, or when it changes | as
    above | | runs | at its end, which is a change; earlier changes count, too | changed |
    """

    def __init__(self) -> None:
        self._changed: dict[str, float] = {}  # since when, by job
        self._rests: dict[str, float] = {}  # until when, by job

    def changed(self, jobs: Iterable[str], now: float) -> None:
        """Jobs have changed. A waiting job keeps its turn."""
        for job_id in jobs:
            self._changed.setdefault(job_id, now)

    def begins(self, job_id: str) -> None:
        """A job starts to run."""
        self._changed.pop(job_id, None)
        self._rests[job_id] = math.inf

    def seen(self, job_id: str) -> None:
        """A job was checked in its current state."""
        self._changed.pop(job_id, None)

    def rests(self, job_id: str, until: float) -> None:
        """A job is not due before a time."""
        self._rests[job_id] = until

    def waiting(self, now: float, *, rested: bool) -> Mapping[str, float]:
        """Returns since when jobs wait to be checked, by job. If ``rested``, includes jobs whose rest is
        over."""
        due = {job_id: at for job_id, at in self._rests.items() if at <= now} if rested else {}
        return due | self._changed

    def forget(self, jobs: Collection[str]) -> None:
        """Forgets all jobs except these."""
        for by_job in (self._changed, self._rests):
            for job_id in by_job.keys() - jobs:
                del by_job[job_id]


class Scheduler:
    """Starts jobs when they are due: one run of a job at a time, a few jobs at once.

    A job whose run fails as a whole, for any reason, is retried after a growing delay. Nothing is lost
    meanwhile, and other jobs run. While the engine is down no run is started: due jobs wait.

    Args:
        runner_of: returns a job's runner.
        zone: time zone of cron lines.
        serves: whether a job belongs to this daemon.
        engine_is_up: whether runs can be started now.

    Attributes:
        runs: number of runs, by job name and outcome.
        unrecorded: why a job fails, by name, while the catalog, which should record it, cannot be written.
    """

    def __init__(
        self,
        catalog: Catalog,
        runner_of: Callable[[Job], Runner],
        settings: Settings,
        zone: ZoneInfo,
        serves: Callable[[Job], bool],
        stop: Stop,
        engine_is_up: Callable[[], bool],
    ) -> None:
        self._catalog = catalog
        self._runner_of = runner_of
        self._settings = settings
        self._zone = zone
        self._serves = serves
        self._stop = stop
        self._engine_is_up = engine_is_up
        self._wake = threading.Event()
        self._running: dict[str, Future[RunReport | None]] = {}
        self._known: dict[str, _Known] = defaultdict(_Known)  # by job
        self._agenda = Agenda(catalog.database, catalog.jobs)
        self._checks_at = 0.0  # time of the next check of all jobs (monotonic)
        self._pending = PendingChecks()
        self._committed: deque[str] = deque()  # ids of volumes that were refreshed
        self._compacts_at = 0.0  # time of the next table's compaction (monotonic)
        self._compacting: str | None = None  # the job whose table is or was last compacted
        self._backoff = Backoff(first_seconds=1.0, cap_seconds=60.0)
        self.runs: dict[tuple[str, str], int] = {}
        self.unrecorded: dict[str, str] = {}

    def wake(self, volume_id: str | None = None) -> None:
        """Makes the scheduler check the schedule now, because of a change.

        Args:
            volume_id: a volume that was refreshed.
        """
        if volume_id is not None:
            self._committed.append(volume_id)
        self._wake.set()

    @property
    def running(self) -> list[str]:
        """Ids of the jobs that are running."""
        return [job_id for job_id, future in list(self._running.items()) if not future.done()]

    def run(self) -> None:
        """Runs in its own thread. Returns when it is stopped and all runs have ended."""
        with ThreadPoolExecutor(self._settings.max_parallel_jobs, thread_name_prefix="job") as pool:
            run_loop(lambda: self._tick(pool), self._stop, FailureTracker("scheduler", _log, Backoff()))

    def _tick(self, pool: ThreadPoolExecutor) -> None:
        """Records finished runs, starts due jobs, and waits for the next check."""
        self._wake.clear()
        jobs = self._check()
        if self._engine_is_up():
            for job in jobs:
                if not self._has_room():
                    break
                if job.id not in self._running:
                    self._begin_if_due(pool, job)
        self._compact_one(pool)
        self._wake.wait(_CHECK_SECONDS)

    def _check(self) -> Iterator[Job]:
        """Collects the results of runs, and records changes. Returns the jobs that may be due, in turn."""
        now = time.monotonic()
        volumes = {self._committed.popleft() for _ in range(len(self._committed))}
        ended = {job_id for job_id, future in self._running.items() if future.done()}
        is_due = now >= self._checks_at
        if is_due:
            self._checks_at = now + _CHECK_SECONDS
            before = self._agenda.jobs
            self._pending.changed(self._agenda.changed(), now)
            if self._agenda.jobs is not before:
                self._forget()
        changed = self._agenda.of_volumes(volumes) | ended
        if changed and not is_due:
            self._agenda.look(changed)
        self._pending.changed(changed, now)
        for job_id in ended:
            job = self._agenda.jobs.get(job_id)
            if job is None:  # dropped
                del self._running[job_id]
            else:
                self._collect(job)
        # Between two checks it is not known when jobs with a clock last ran.
        in_turn = self._agenda.in_turn(self._pending.waiting(now, rested=is_due))
        return (job for job in in_turn if is_due or job.trigger.kind is TriggerKind.ON_CHANGE)

    def _forget(self) -> None:
        """Forgets dropped jobs."""
        jobs = self._agenda.jobs
        for name in self.unrecorded.keys() - {str(job.name) for job in jobs.values()}:
            del self.unrecorded[name]
        for job_id in self._known.keys() - jobs.keys():
            del self._known[job_id]
        self._pending.forget(jobs.keys())

    def _begin_if_due(self, pool: ThreadPoolExecutor, job: Job) -> None:
        try:
            act = self._due(job)
        except CatalogError:  # not the job's fault
            raise
        except Exception as error:  # noqa: BLE001  # any error: the other jobs must run
            self._failed(job, error)
            act = None
        if act is not None:
            self._begin(pool, job, act)
            return
        if not self._agenda.is_outdated(job.id):
            self._pending.seen(job.id)
        self._pending.rests(job.id, self._next_check(job))
        known = self._known[job.id]
        if isinstance(job, FileJob) and known.compactions is None:
            known.compactions = [time.monotonic() + seconds for seconds in _REST_SECONDS]

    def _next_check(self, job: Job) -> float:
        """Returns when a job that is not due may be due, if nothing changes until then (monotonic)."""
        at, now = time.monotonic(), datetime.now(UTC)
        times = [at + _MAX_CHECK_SECONDS]
        if isinstance(job, FileJob) and job.verify_every is not None and self._serves(job):
            times.append(at + self._seconds_to_verification(job, job.verify_every))
        if job.state is not JobState.PAUSED:
            by_clock = next_due(job.trigger, job.last_started, job.created_on, self._zone, now)
            if by_clock is not None:
                times.append(at + (by_clock - now).total_seconds())
            elif job.trigger.kind is TriggerKind.ON_CHANGE:
                entry = self._agenda.entries.get(job.id)
                if self._may_have_work(job, now):
                    times.append(self._known[job.id].not_before or at)
                elif entry is not None and entry.next_try is not None:
                    times.append(at + (entry.next_try - now).total_seconds())
        return min(times)

    def _begin(self, pool: ThreadPoolExecutor, job: Job, act: Callable[[Job], RunReport | None]) -> None:
        self._pending.begins(job.id)
        self._running[job.id] = pool.submit(act, job)
        self._running[job.id].add_done_callback(lambda _: self._wake.set())

    def _due(self, job: Job) -> Callable[[Job], RunReport] | None:
        """Returns the work that is due for a job now, if any."""
        if self._verifies(job):
            return self._verify
        return self._run if self._is_due(job) else None

    def _run(self, job: Job) -> RunReport:
        return self._runner_of(job).run(stop=self._stop)

    def _verify(self, job: Job) -> RunReport:
        """Compares a job's table with its files.

        Problems, and a failed comparison, are conditions of the job.
        """
        assert isinstance(job, FileJob), "only file jobs are due"
        self._known[job.id].verified = time.monotonic()
        runner = self._runner_of(job)
        assert isinstance(runner, FileRunner)
        try:
            found = runner.verify(stop=self._stop)
        except (FencedError, StreamBusyError, InterruptedByUserError, InvalidStateError, EngineLostError):
            raise  # another run, or the engine, prevented it
        except Exception as error:
            reason = f"could not be compared with the files: {in_brief(error)}"
            self._catalog.conditions.note(ConditionKind.PROOF, job.id, reason)
            raise
        if not found.is_right:
            _log.warning("table_wrong", job=str(job.name), found=found.text)
        return RunReport()

    def _compact_one(self, pool: ThreadPoolExecutor) -> None:
        """Maintains the table of an idle job: one at a time, and only if no due job needs the slot."""
        now = time.monotonic()
        if now < self._compacts_at or self._compacting in self._running or not self._has_room():
            return
        self._compacts_at = now + _COMPACT_SECONDS
        times = {job_id: known.compactions for job_id, known in [*self._known.items()] if known.compactions}
        for job in self._agenda.in_turn({job_id: due[0] for job_id, due in times.items() if due[0] <= now}):
            if job.id not in self._running and self._serves(job):
                del times[job.id][0]
                self._compacting = job.id
                self._begin(pool, job, self._compact)
                return

    def _compact(self, job: Job) -> None:
        runner = self._runner_of(job)
        assert isinstance(runner, FileRunner), "only file jobs are compacted"
        runner.compact(self._stop)

    def _verifies(self, job: Job) -> bool:
        """Returns whether a verification of the job is due.

        A failed one is retried after the same time as a successful one.
        """
        if not isinstance(job, FileJob) or job.verify_every is None or not self._serves(job):
            return False
        if self._seconds_to_verification(job, job.verify_every) > 0:
            return False
        stream = self._catalog.streams.by_id(job.stream_id)
        # The first run has ended.
        return stream is not None and stream.offset is not None and not stream.initial

    def _seconds_to_verification(self, job: FileJob, every: float) -> float:
        since = (datetime.now(UTC) - (job.verified_on or job.created_on)).total_seconds()
        tried = self._known[job.id].verified
        return every - (since if tried is None else min(since, time.monotonic() - tried))

    def _has_room(self) -> bool:
        """Returns whether a run could start at once.

        No job waits for a slot, so a job of higher priority goes first.
        """
        return len(self.running) < self._settings.max_parallel_jobs

    def _is_due(self, job: Job) -> bool:
        # Checks without a query come first.
        if job.state is JobState.PAUSED or time.monotonic() < self._known[job.id].not_before:
            return False
        now = datetime.now(UTC)
        by_clock = next_due(job.trigger, job.last_started, job.created_on, self._zone, now)
        if by_clock is not None:
            return by_clock <= now and self._serves(job)
        if job.trigger.kind is not TriggerKind.ON_CHANGE or not self._may_have_work(job, now) or not self._serves(job):
            return False
        entry = self._agenda.entries.get(job.id)
        if entry is not None and entry.has_news and self._known[job.id].begun != entry:
            self._known[job.id].begun = entry  # if the run finds nothing, its tables are checked next time
            return True
        if self._agenda.is_outdated(job.id):
            return False  # until the next check
        if self._runner_of(job).has_work():
            return True
        clear(self._catalog, job)
        self.unrecorded.pop(str(job.name), None)
        self._known[job.id].idle = entry
        return False

    def _may_have_work(self, job: Job, now: datetime) -> bool:
        """Returns False if a file job certainly has no work: its files arrive by commits to the catalog,
        which are cheap to notice.

        Changes of tables do not appear in the catalog.
        """
        entry = self._agenda.entries.get(job.id)
        if entry is None or not isinstance(job, FileJob):
            return True
        if self._known[job.id].idle == entry and not entry.is_due(now):
            return False
        return entry.may_have_work(now) or job.may_have_strays or job.unended or entry.has_condition

    def _collect(self, job: Job) -> None:
        """Records the result of a run that has ended."""
        future = self._running.pop(job.id)
        error = future.exception()
        report = future.result() if error is None else None
        if report is not None or error is not None:  # otherwise its table was maintained
            self._known[job.id].not_before = time.monotonic() + self._settings.on_change_gap_seconds
        if report is not None:
            self._succeeded(job, report)
        elif isinstance(error, StreamBusyError | FencedError) or (isinstance(error, InvalidStateError) and self._is_paused(job)):
            # Another process runs it, or it was paused meanwhile. That is not a failure.
            # Another daemon's long run would log this every second.
            if self._known[job.id].not_run != str(error):
                _log.info("job_not_run", job=str(job.name), reason=str(error))
            self._known[job.id].not_run = str(error)
            self._known[job.id].not_before = time.monotonic() + 1.0
        elif error is not None:
            self._failed(job, error)

    def _is_paused(self, job: Job) -> bool:
        current = self._catalog.jobs.by_id(job.id)
        return current is not None and current.state is JobState.PAUSED

    def _succeeded(self, job: Job, report: RunReport) -> None:
        if report.progress.batches:
            self._known[job.id].compactions = None
        self._count(job, "ok")
        self._known[job.id].failures, self._known[job.id].not_run = 0, ""
        self.unrecorded.pop(str(job.name), None)
        if report.paused:
            _log.warning("job_paused", job=str(job.name), reason=report.paused)

    def _failed(self, job: Job, error: BaseException) -> None:
        self._count(job, "failed")
        known = self._known[job.id]
        known.failures += 1
        delay = self._backoff.delay(known.failures)
        known.not_before = time.monotonic() + delay
        self._record(job, with_remedy(error))
        _log.error(
            "job_failed",
            job=str(job.name),
            error=reason_of(error),
            failures=known.failures,
            retry_seconds=round(delay, 1),
            exc_info=unexpected(error),
        )

    def _record(self, job: Job, reason: str) -> None:
        """Records why a job fails, even before its run starts, for everyone who inspects the job."""
        try:
            if self._catalog.conditions.cause(ConditionKind.JOB, job.id) != reason and self._catalog.jobs.by_id(job.id):
                self._catalog.conditions.note(ConditionKind.JOB, job.id, reason)
        except CatalogError:
            self.unrecorded[str(job.name)] = reason
        else:
            self.unrecorded.pop(str(job.name), None)

    def _count(self, job: Job, outcome: str) -> None:
        key = (str(job.name), outcome)
        self.runs[key] = self.runs.get(key, 0) + 1
