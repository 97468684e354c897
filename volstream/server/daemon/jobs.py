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

#: Interval of checks of the schedule if nothing wakes the scheduler; also the delay until other processes' commits are seen.
_LOOK_SECONDS = 0.5

#: The longest time between two looks at a job, because clocks may be set.
_FARTHEST_LOOK_SECONDS = 30.0

#: A job's table is looked after once the job has rested this long, and again when files that its last commits replaced may go.
_REST_SECONDS = (60.0, 4000.0)

#: The time between two tables that are looked after.
_COMPACT_SECONDS = 4.0


@dataclass
class _Known:
    """What the scheduler remembers of a job. Times are monotonic.

    Attributes:
        failures: of runs, one after the other.
        not_before: when a run may begin.
        not_run: the reason last logged.
        idle: its entry when it was found without work.
        begun: its entry when it was last begun, because it promised work.
        verified: when a verification was last begun here.
        compactions: when its table is to be compacted; None: it has run, or is new to this daemon.
    """

    failures: int = 0
    not_before: float = 0.0
    not_run: str = ""
    idle: AgendaEntry | None = None
    begun: AgendaEntry | None = None
    verified: float | None = None
    compactions: list[float] | None = None


class Looks:
    """Which jobs are to be looked at, and since when. It knows no clock and does no I/O: times are seconds of one clock.

    | a job | is looked at | becomes |
    |---|---|---|
    | has changed, itself or its volume | in turn, by how long it waits | running: :meth:`begins`; resting: :meth:`rests` |
    | rests | once its time has come, or it changes | as above |
    | runs | at its end, which is a change; one before counts, too | changed |
    """

    def __init__(self) -> None:
        self._changed: dict[str, float] = {}  # by job: since when
        self._rests: dict[str, float] = {}  # by job: until when

    def changed(self, jobs: Iterable[str], now: float) -> None:
        """Jobs have changed. One that waits already keeps its turn."""
        for job_id in jobs:
            self._changed.setdefault(job_id, now)

    def begins(self, job_id: str) -> None:
        """A job begins to run."""
        self._changed.pop(job_id, None)
        self._rests[job_id] = math.inf

    def seen(self, job_id: str) -> None:
        """A job was looked at as it is now."""
        self._changed.pop(job_id, None)

    def rests(self, job_id: str, until: float) -> None:
        """A job is not due before a time."""
        self._rests[job_id] = until

    def waiting(self, now: float, *, rested: bool) -> Mapping[str, float]:
        """Returns since when jobs wait to be looked at, by job; ``rested``: also those whose rest is over."""
        over = {job_id: at for job_id, at in self._rests.items() if at <= now} if rested else {}
        return over | self._changed

    def forget(self, jobs: Collection[str]) -> None:
        """Forgets all jobs but these."""
        for by_job in (self._changed, self._rests):
            for job_id in by_job.keys() - jobs:
                del by_job[job_id]


class Scheduler:
    """Starts jobs when they are due: one run of a job at a time, a few jobs at once.

    A job whose run fails as a whole, for any reason, is retried after a growing delay; nothing is lost meanwhile, and the
    other jobs run. While the engine is down no run is started: due jobs wait.

    Args:
        runner_of: returns a job's runner.
        zone: time zone of cron lines.
        serves: whether a job belongs to this daemon.
        engine_is_up: whether runs can be started now.

    Attributes:
        runs: number of runs, by the job's name and outcome.
        unrecorded: why a job fails, by its name, for as long as the catalog, which should say so, cannot be written.
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
        self._looks_at = 0.0  # at all jobs (monotonic)
        self._looks = Looks()
        self._committed: deque[str] = deque()  # ids of volumes that were refreshed
        self._compacts_at = 0.0  # the next table (monotonic)
        self._compacting: str | None = None  # the job whose table is, or was last, compacted
        self._backoff = Backoff(first_seconds=1.0, cap_seconds=60.0)
        self.runs: dict[tuple[str, str], int] = {}
        self.unrecorded: dict[str, str] = {}

    def wake(self, volume_id: str | None = None) -> None:
        """Makes the scheduler check the schedule now, because something changed.

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
        """Runs in its own thread; returns when it is stopped and the runs in progress have ended."""
        with ThreadPoolExecutor(self._settings.max_parallel_jobs, thread_name_prefix="job") as pool:
            run_loop(lambda: self._tick(pool), self._stop, FailureTracker("scheduler", _log, Backoff()))

    def _tick(self, pool: ThreadPoolExecutor) -> None:
        """Records finished runs, starts due ones, and waits for the next check."""
        self._wake.clear()
        jobs = self._look()
        if self._engine_is_up():
            for job in jobs:
                if not self._has_room():
                    break
                if job.id not in self._running:
                    self._begin_if_due(pool, job)
        self._compact_one(pool)
        self._wake.wait(_LOOK_SECONDS)

    def _look(self) -> Iterator[Job]:
        """Collects the results of runs, and notes what has changed. Returns the jobs that may be due, in turn."""
        now = time.monotonic()
        volumes = {self._committed.popleft() for _ in range(len(self._committed))}
        ended = {job_id for job_id, future in self._running.items() if future.done()}
        looks = now >= self._looks_at
        if looks:
            self._looks_at = now + _LOOK_SECONDS
            before = self._agenda.jobs
            self._looks.changed(self._agenda.changed(), now)
            if self._agenda.jobs is not before:
                self._forget()
        changed = self._agenda.of_volumes(volumes) | ended
        if changed and not looks:
            self._agenda.look(changed)
        self._looks.changed(changed, now)
        for job_id in ended:
            job = self._agenda.jobs.get(job_id)
            if job is None:  # dropped
                del self._running[job_id]
            else:
                self._collect(job)
        # Between two looks it is not known when jobs with a clock ran last.
        in_turn = self._agenda.in_turn(self._looks.waiting(now, rested=looks))
        return (job for job in in_turn if looks or job.trigger.kind is TriggerKind.ON_CHANGE)

    def _forget(self) -> None:
        """Forgets what is known of dropped jobs."""
        jobs = self._agenda.jobs
        for name in self.unrecorded.keys() - {str(job.name) for job in jobs.values()}:
            del self.unrecorded[name]
        for job_id in self._known.keys() - jobs.keys():
            del self._known[job_id]
        self._looks.forget(jobs.keys())

    def _begin_if_due(self, pool: ThreadPoolExecutor, job: Job) -> None:
        try:
            act = self._due(job)
        except CatalogError:  # not the job's fault
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, the other jobs must run
            self._failed(job, error)
            act = None
        if act is not None:
            self._begin(pool, job, act)
            return
        if not self._agenda.is_outdated(job.id):
            self._looks.seen(job.id)
        self._looks.rests(job.id, self._next_look(job))
        known = self._known[job.id]
        if isinstance(job, FileJob) and known.compactions is None:
            known.compactions = [time.monotonic() + seconds for seconds in _REST_SECONDS]

    def _next_look(self, job: Job) -> float:
        """Returns when a job that is not due may be, if nothing changes until then (monotonic)."""
        at, now = time.monotonic(), datetime.now(UTC)
        times = [at + _FARTHEST_LOOK_SECONDS]
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
        self._looks.begins(job.id)
        self._running[job.id] = pool.submit(act, job)
        self._running[job.id].add_done_callback(lambda _: self._wake.set())

    def _due(self, job: Job) -> Callable[[Job], RunReport] | None:
        """Returns what is to be done for a job now, if anything."""
        if self._verifies(job):
            return self._verify
        return self._run if self._is_due(job) else None

    def _run(self, job: Job) -> RunReport:
        return self._runner_of(job).run(stop=self._stop)

    def _verify(self, job: Job) -> RunReport:
        """Compares a job's table with its files. What is wrong is a condition of the job; that it cannot be compared, too."""
        assert isinstance(job, FileJob), "only these are due"
        self._known[job.id].verified = time.monotonic()
        runner = self._runner_of(job)
        assert isinstance(runner, FileRunner)
        try:
            found = runner.verify(stop=self._stop)
        except (FencedError, StreamBusyError, InterruptedByUserError, InvalidStateError, EngineLostError):
            raise  # another run, or the engine, is what hindered it
        except Exception as error:
            reason = f"could not be compared with the files: {in_brief(error)}"
            self._catalog.conditions.note(ConditionKind.PROOF, job.id, reason)
            raise
        if not found.is_right:
            _log.warning("table_wrong", job=str(job.name), found=found.text)
        return RunReport()

    def _compact_one(self, pool: ThreadPoolExecutor) -> None:
        """Looks after the table of a job that rests: of one at a time, and only if no job that is due needs the room."""
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
        assert isinstance(runner, FileRunner), "only these rest"
        runner.compact(self._stop)

    def _verifies(self, job: Job) -> bool:
        """Returns whether a verification of the job is due. One that fails is tried again after as long as one that succeeds."""
        if not isinstance(job, FileJob) or job.verify_every is None or not self._serves(job):
            return False
        if self._seconds_to_verification(job, job.verify_every) > 0:
            return False
        stream = self._catalog.streams.by_id(job.stream_id)
        return stream is not None and stream.offset is not None and not stream.initial  # its first run has ended

    def _seconds_to_verification(self, job: FileJob, every: float) -> float:
        since = (datetime.now(UTC) - (job.verified_on or job.created_on)).total_seconds()
        tried = self._known[job.id].verified
        return every - (since if tried is None else min(since, time.monotonic() - tried))

    def _has_room(self) -> bool:
        """Returns whether a run could begin at once. None waits for another: a job of higher priority goes first."""
        return len(self.running) < self._settings.max_parallel_jobs

    def _is_due(self, job: Job) -> bool:
        # What needs no query comes first.
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
            self._known[job.id].begun = entry  # if the run finds nothing, its tables are asked the next time
            return True
        if self._agenda.is_outdated(job.id):
            return False  # until the next look
        if self._runner_of(job).has_work():
            return True
        clear(self._catalog, job)
        self.unrecorded.pop(str(job.name), None)
        self._known[job.id].idle = entry
        return False

    def _may_have_work(self, job: Job, now: datetime) -> bool:
        """False if a file job has certainly nothing to do: its files arrive by commits to the catalog, which are cheap to notice.
        Changes of tables do not appear in the catalog."""
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
        if report is not None or error is not None:  # else its table was looked after
            self._known[job.id].not_before = time.monotonic() + self._settings.on_change_gap_seconds
        if report is not None:
            self._succeeded(job, report)
        elif isinstance(error, StreamBusyError | FencedError) or (isinstance(error, InvalidStateError) and self._is_paused(job)):
            # Another process runs it, or it was paused meanwhile: this is not a failure.
            if self._known[job.id].not_run != str(error):  # another daemon's long run would log this every second
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
        """Records why a job fails, also before a run of it begins, for everybody who looks at the job."""
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
