"""Runs of jobs on files, of each kind: while the job's lease is held, with errors in the user's terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TypeVar

from volstream.base.definitions import FileJob
from volstream.base.log import get
from volstream.base.threads import Stop
from volstream.base.tracing import span
from volstream.errors import DependencyError, JobChangedError, SqlError, StorageError, VolstreamError
from volstream.jobs.lease import RunReport, held, lease, resumable
from volstream.jobs.preview import Preview, preview
from volstream.jobs.progress import Observer
from volstream.jobs.replay import ReplayRun
from volstream.jobs.running import Run
from volstream.jobs.services import JobServices
from volstream.jobs.stream_run import StreamRun
from volstream.jobs.verify import Verification
from volstream.jobs.verify_run import VerifyRun
from volstream.spark.errors import as_sql_errors, condition_of
from volstream.tables.delta.damage import Damage
from volstream.tables.delta.places import reached

_log = get("jobs")

#: Errors of ours whose cause may be that a table is damaged.
_OF_TABLES = (DependencyError, StorageError, SqlError)


R = TypeVar("R", bound=Run)


class FileRunner:
    """Runs a file job; a :class:`~volstream.jobs.lease.Runner`.

    Catalog and logs show whether there is work; it attaches to the engine only then.
    """

    def __init__(self, services: JobServices, job: FileJob) -> None:
        self._services = services
        self._job = job

    def run(
        self, *, until_empty: bool = False, stop: Stop | None = None, observe: Observer | None = None, owner: str | None = None
    ) -> RunReport:
        """Processes the stream's current changes, and the failures that are due. See :class:`Runner`."""
        return self._lead(StreamRun, stop, observe, lambda run: run.go(until_empty=until_empty), owner)

    def replay(
        self,
        where: str | None = None,
        *,
        among: Sequence[str] | None = None,
        stop: Stop | None = None,
        observe: Observer | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> RunReport:
        """Reprocesses the delivered files that have not changed since, and replaces their results.

        Newer files come through the stream, whose offset stays. A replay of all files accepts the function's current
        code. An interrupted replay resumes with the next run; another replay starts over.

        Args:
            where: SQL condition on the directory's columns, in addition to the job's own.
            among: only files with these paths, or sets with these keys; None: all.
            is_cancelled: called once the replay was stopped; True drops its rest, so that the next run does not resume it.

        Raises:
            As :meth:`run`.
        """
        return self._lead(ReplayRun, stop, observe, lambda run: run.replay(where, is_cancelled, among))

    def verify(
        self,
        *,
        fix: bool = False,
        heal: bool = False,
        outputs: bool = False,
        stop: Stop | None = None,
        observe: Observer | None = None,
    ) -> Verification:
        """Compares the table with the files that were delivered; calls the function only to fix what is wrong.

        Args:
            fix: process the files that are wrong again, and remove rows that no file explains.
            heal: fix, too, and if the directory no longer keeps what the stream needs, compare with its present files and let the
                stream continue from these.
            outputs: compare the files that the function made with the volume that has them, too.

        Raises:
            InvalidValueError: ``outputs``, but the job makes no files.
            See :meth:`run` for the rest.
        """
        found = Verification()

        def act(run: VerifyRun) -> None:
            nonlocal found
            found = run.verify(fix=fix or heal, heal=heal, outputs=outputs)

        if fix or heal:
            self._lead(VerifyRun, stop, observe, act)
            return found
        services = self._services
        with held(services.catalog, self._job.id, self._job.name, services.settings.lease_seconds) as owner:
            self._do(VerifyRun(services, self._job, owner, stop or Stop(), observe or (lambda _: None)), act)
        return found

    def preview(self) -> Preview:
        """Returns what a run would do now, without doing it."""
        return preview(self._services, self._job)

    def free(self) -> None:
        """Settles an attempt that a dead run left open. Uses Spark only if the table's writer must be fenced off.

        Raises:
            StreamBusyError: a run is in progress.
            As :meth:`Consumer.settle`.
        """
        services = self._services
        with (
            held(services.catalog, self._job.id, self._job.name, services.settings.lease_seconds),
            services.gateway.explaining(),
            as_sql_errors(),
            reached(services.warehouse),
        ):
            services.consumer.settle(self._job.stream_id)

    def compact(self, stop: Stop) -> None:
        """Puts the result table's small files together, and removes old ones, while the job rests. A failure is logged."""
        services = self._services
        with reached(services.warehouse):
            services.results.compact(self._job, 0, stop)

    def has_work(self) -> bool:
        """See :class:`Runner`."""
        stream = self._services.stream(self._job)
        return (
            self._services.reader.has_data(stream)
            or self._services.catalog.consumptions.open_plan(stream.id) is not None
            or (self._job.may_have_strays and self._services.reader.pin(stream) is not None)
            or bool(self._services.catalog.failures.due(self._job.id, datetime.now(UTC), 1))
        )

    def _lead(
        self, kind: type[R], stop: Stop | None, observe: Observer | None, act: Callable[[R], None], owner: str | None = None
    ) -> RunReport:
        """Runs the job while holding its lease, and records the run in the catalog."""
        services = self._services
        with lease(services.catalog, self._job, services.settings.lease_seconds, owner) as lead:
            run = kind(services, lead.job, lead.owner, Stop() if stop is None else stop, observe or (lambda _: None))
            with resumable(run.stop):
                self._do(run, act)
            lead.summary = run.summary()
            return run.report

    def _do(self, run: R, act: Callable[[R], None]) -> None:
        services = self._services
        with (
            services.gateway.explaining(),
            as_sql_errors(),
            reached(services.warehouse),
            span("job", job=str(self._job.name)) as current,
            self._naming_damage(),
        ):
            while True:
                try:
                    act(run)
                    break
                except JobChangedError:
                    run.renew()
            done = run.report.progress
            current.set(batches=done.batches, files=done.done_files, rows=done.rows, bytes=done.done_bytes)

    @contextmanager
    def _naming_damage(self) -> Iterator[None]:
        """Replaces the error of a run if its cause is that the table is damaged."""
        try:
            yield
        except Exception as error:
            if isinstance(error, VolstreamError) and type(error) not in _OF_TABLES:
                raise
            damages: Sequence[Damage] = ()
            unread = (condition_of(error) or "").startswith("FAILED_READ_FILE")
            with suppress(Exception):  # the first error says more
                damages = self._services.results.damages(self._job, whole=unread)
            if not damages:
                raise
            raise DependencyError(
                f"The table {self._job.into} is damaged: {'; '.join(map(str, damages))}.",
                f"Repair it: volstream verify {self._job.name} --fix",
            ) from error
