"""Jobs whose runs consume streams with a SQL statement: validation and runner."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from volstream.api.statements.dynamic import refresh
from volstream.api.statements.run import check_exists, consume, streams_of, target_of
from volstream.base.definitions import DynamicJob, SourceKind, StatementJob, StatementJobSpec, Stream
from volstream.base.model.names import Name
from volstream.base.model.text import counted
from volstream.base.threads import Stop
from volstream.base.tracing import span
from volstream.errors import FencedError, InvalidStateError, InvalidValueError, JobChangedError, SqlError
from volstream.jobs.runs.lease import BatchStoppedError, JobWatch, Observer, RunReport, lease, resumable
from volstream.sql.statement import SparkStatement

if TYPE_CHECKING:
    from volstream.home import Home

_DML = ("INSERT", "MERGE", "UPDATE", "DELETE", "WITH", "FROM")


def spec_of_statement(home: Home, name: Name, statement: str, stream: Name | None, **options: Any) -> StatementJobSpec:
    """Returns the spec of a job that runs ``statement``. Without Spark: the first run checks the statement fully.

    Args:
        stream: the stream under which the job is listed; None: the first that the statement reads.
        options: of any job.

    Raises:
        SqlError: the statement is not DML that reads a stream and writes to an existing Delta table.
        InvalidValueError: the statement does not read ``stream``, or each run would trigger the next.
    """
    dml = SparkStatement(statement)
    if dml.words[:1] not in [[word] for word in _DML] or not dml.writes:
        raise SqlError(f"The statement of job {name} writes nothing.", "It can be INSERT, MERGE, UPDATE or DELETE.")
    target, location = target_of(home, dml)
    check_exists(home, target, location)
    streams = streams_of(home, dml)
    if not streams:
        raise SqlError(f"The statement of job {name} reads no stream.", "A run consumes a stream, so select from one.")
    if stream is not None and stream not in [read.name for read in streams]:
        raise InvalidValueError(f"The statement of job {name} does not read the stream {stream}.", "Leave ON STREAM out.")
    fed = [read for read in streams if read.source_kind is SourceKind.TABLE and read.source_name == target]
    if options.get("on_change") and fed:
        raise InvalidValueError(
            f"The job {name} would run forever: it writes {target}, which is the source of its stream {fed[0].name}.",
            "Let it write another table, or run on a schedule.",
        )
    first, *others = sorted((read.name for read in streams), key=lambda read: read != (stream or streams[0].name))
    return StatementJobSpec(name=name, into=target, statement=statement, streams=[first, *others], **options)


class StatementRunner:
    """Runs a job of a statement or a query; a :class:`~volstream.jobs.runs.lease.Runner`."""

    def __init__(self, home: Home, job: StatementJob | DynamicJob) -> None:
        self._home = home
        self._job = job

    def run(
        self, *, until_empty: bool = False, stop: Stop | None = None, observe: Observer | None = None, owner: str | None = None
    ) -> RunReport:
        """Runs the statement if one of its streams has data. See :class:`~volstream.jobs.runs.lease.Runner`.

        Raises:
            SqlError: Spark rejects the statement; the offsets stay.
        """
        stopped, report, name = Stop() if stop is None else stop, RunReport(), self._job.name
        if self._home.open_consumption is not None:
            raise InvalidStateError(f"The job {name} cannot run inside a transaction.", "Run it before, or after.")
        with lease(self._home.catalog, self._job, self._home.settings.lease_seconds, owner) as lead:
            watch = JobWatch(self._home.catalog, lead.job, stopped, self._home.settings.batch_seconds)
            with resumable(stopped), suppress(BatchStoppedError):
                report.recovered = self._recover()
                while not stopped and self._is_any_to_read():
                    with span("batch", job=str(name)) as current:
                        rows = self._write(lead.job, watch)
                        current.set(rows=rows)
                    report.progress.rows += rows
                    report.progress.batches += 1
                    if observe is not None:
                        observe(report.progress)
                    if not until_empty:
                        break
                    watch.look()
                    if watch.paused:
                        break
            report.paused = watch.paused
            done = counted(report.progress.rows, "row") if report.progress.batches else None
            lead.summary = done if report.paused is None else f"paused: {report.paused}"
        return report

    def has_work(self) -> bool:
        """See :class:`~volstream.jobs.runs.lease.Runner`."""
        consumptions = self._home.catalog.consumptions
        return any(
            self._home.reader.has_data(stream) or consumptions.open_plan(stream.id) is not None for stream in self._streams()
        )

    def _write(self, job: StatementJob | DynamicJob, watch: JobWatch) -> int:
        try:
            if isinstance(job, DynamicJob):
                return refresh(self._home, job, watch)
            return consume(self._home, SparkStatement(job.statement), watch)
        except JobChangedError as error:  # dropped or replaced: nothing else changes what it does
            raise FencedError(error.message) from error

    def _recover(self) -> bool:
        """Settles what an earlier run left open, before checking for work."""
        consumptions = self._home.catalog.consumptions
        unfinished = [stream for stream in self._streams() if consumptions.open_plan(stream.id) is not None]
        if unfinished:
            with self._home.consumption() as consumption:
                for stream in unfinished:
                    consumption.free(stream)
        return bool(unfinished)

    def _is_any_to_read(self) -> bool:
        """True if a stream has more than commits without data; advances past those here, without Spark."""
        unread = [stream for stream in self._streams() if self._is_to_read(stream)]
        return bool(unread)

    def _is_to_read(self, stream: Stream) -> bool:
        reader = self._home.reader
        covered = reader.pin_news(stream)
        if covered is None or covered.empty:
            return False
        follows = isinstance(self._job, DynamicJob) and covered.reshaped  # the table may get these columns
        if reader.only_upkeep(covered) and not follows:
            self._home.catalog.consumptions.advance(stream, covered.to_version, covered.table_id)
            return False
        return True

    def _streams(self) -> list[Stream]:
        streams = map(self._home.catalog.streams.by_id, self._job.stream_ids)
        return [stream for stream in streams if stream is not None]
