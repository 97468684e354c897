"""The daemon's Prometheus metrics, collected at each scrape from the catalog, the logs and the workers. No
Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from volstream.base.definitions import JobState, TriggerKind
from volstream.base.model.work import FailureState
from volstream.catalog import Catalog
from volstream.changes.streams.read import StreamReader
from volstream.errors import CatalogError, StreamStaleError, VolstreamError
from volstream.jobs.runs.lease import runs_of
from volstream.ops.inspection.details import backlog
from volstream.ops.inspection.status import job_health, problems
from volstream.server.daemon.engine import DaemonEngine
from volstream.server.daemon.families import counter, gauge
from volstream.server.daemon.jobs import Scheduler
from volstream.server.daemon.volumes import VolumeWorker

#: Time that a scrape waits for an unresponsive catalog. Prometheus waits ten seconds for the scrape.
_CATALOG_SECONDS = 5.0

# Whether a daemon is ready: everything that it keeps makes progress. Pure.


@dataclass(frozen=True)
class Readiness:
    """The state of a daemon's parts.

    Attributes:
        serving: it has begun to follow the catalog, and is not stopping.
        kept: number of volumes that it keeps.
        engine: the state of its engine, which restarts automatically.
        volumes, sources, tables: reasons of failures, by name: a volume or its queue is missing, a topic
            cannot be read, or arrived rows cannot be committed.
        jobs: reasons of failing jobs that could not be written to the catalog.
        held_removals: for their owners to check.
    """

    serving: bool
    kept: int
    engine: Mapping[str, Any]
    volumes: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    jobs: Mapping[str, str] = field(default_factory=dict)
    held_removals: Mapping[str, int] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether everything that this daemon keeps makes progress."""
        return self.serving and not (self.volumes or self.sources or self.tables)

    def details(self) -> dict[str, Any]:
        """Returns the daemon's part of the response of ``/readyz``, without empty entries."""
        parts = {
            "failing_volumes": self.volumes,
            "failing_jobs": self.jobs,
            "failing_sources": self.sources,
            "failing_tables": self.tables,
            "held_removals": self.held_removals,
        }
        status = {"status": "ready" if self.ready else "not ready", "volumes": self.kept}
        return status | {name: failing for name, failing in parts.items() if failing} | {"engine": self.engine}


class DaemonMetrics(Collector):
    """The metrics of one daemon.

    Args:
        workers: returns the workers of the volumes that it currently keeps.
        scheduler: source of the counts of runs, and of failures that could not be written to the catalog.
        engine: of the daemon's jobs.
        others: parts of the daemon with separate metrics.
    """

    def __init__(
        self,
        catalog: Catalog,
        reader: StreamReader,
        workers: Callable[[], Iterable[VolumeWorker]],
        scheduler: Scheduler,
        engine: DaemonEngine,
        others: Iterable[Collector] = (),
    ) -> None:
        self._catalog = catalog
        self._reader = reader
        self._workers = workers
        self._scheduler = scheduler
        self._engine = engine
        self._others = others
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self._catalog_metrics: Future[tuple[list[Metric], bool]] | None = None

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of one scrape."""
        up = gauge("engine_up", "1 if jobs can run on the daemon's engine.")
        up.add_metric([], int(self._engine.is_up))
        failures = counter("engine_failures", "Losses and failed starts of the engine since the daemon started.")
        failures.add_metric([], self._engine.failures)
        reachable = gauge("catalog_up", "1 if the catalog answers. If not, metrics that need it are missing.")
        future = self._catalog_metrics = self._catalog_metrics or self._executor.submit(self._collect_catalog)
        try:
            found, is_up = future.result(_CATALOG_SECONDS)
            self._catalog_metrics = None  # concurrent scrapes may share a result
        except TimeoutError:  # the next scrape waits for the same result
            found, is_up = [], False
        reachable.add_metric([], int(is_up))
        yield from [up, failures, reachable, *found]

    def _collect_catalog(self) -> tuple[list[Metric], bool]:
        """Returns the metrics that need the catalog, and whether it was available for all of them."""
        found, is_up = list[Metric](), True
        for part in (self._own_metrics, *(other.collect for other in self._others)):
            try:
                found += part()
            except CatalogError:
                is_up = False
        return found, is_up

    def _own_metrics(self) -> Sequence[Metric]:
        with self._catalog.database.one_snapshot():
            return [*self._volumes(), *self._streams(), *self._jobs()]

    def _volumes(self) -> Iterator[Metric]:
        lag = gauge("directory_lag_seconds", "Seconds since the last full listing.", "volume")
        listed = gauge(
            "last_listing_timestamp_seconds", "End of the last full listing, or time of the last inventory report.", "volume"
        )
        depth = gauge("queue_depth", "Waiting messages.", "volume")
        tick = gauge("last_refresh_seconds", "Duration of the last refresh.", "volume")
        silence = gauge("queue_silence_seconds", "Seconds since the last event.", "volume")
        rows = counter("directory_rows_changed", "Rows that refreshes changed.", "volume")
        repairs = counter(
            "listing_repairs", "Rows that listings corrected, by change; late ones may have had an event.", "volume", "change"
        )
        failing = gauge("volume_failing", "1 if the volume or its queue is failing.", "volume")
        held = gauge("directory_removals_held", "Removals waiting for confirmation.", "volume")
        now = datetime.now(UTC)
        for worker in self._workers():
            name = [str(worker.volume.name)]
            failing.add_metric(name, int(worker.reason is not None))
            held.add_metric(name, worker.held_removals)
            volume = self._catalog.volumes.by_id(worker.volume.id) or worker.volume
            if volume.last_listing is not None:
                listed.add_metric(name, volume.last_listing.timestamp())
                lag.add_metric(name, (now - volume.last_listing).total_seconds())
            if worker.queue_depth is not None:
                depth.add_metric(name, worker.queue_depth)
            if worker.last_event is not None:
                silence.add_metric(name, (now - worker.last_event).total_seconds())
            tick.add_metric(name, worker.last_tick_seconds)
            rows.add_metric(name, worker.refreshed_rows)
            for change, number in worker.repairs.items():
                repairs.add_metric([*name, change], number)
        yield from (lag, listed, depth, tick, silence, rows, repairs, failing, held)

    def _streams(self) -> Iterator[Metric]:
        files = gauge("stream_lag_files", "Changed rows not consumed.", "stream")
        size = gauge("stream_lag_bytes", "Bytes of new files not consumed.", "stream")
        stale = gauge("stream_stale", "1 if the stream can no longer be read.", "stream")
        for stream in self._catalog.streams.list():
            name = [str(stream.name)]
            try:
                self._reader.pin(stream)
                unread = self._reader.has_data(stream)
                stale.add_metric(name, 0)
            except CatalogError:
                raise
            except VolstreamError as error:
                stale.add_metric(name, int(isinstance(error, StreamStaleError)))
                continue
            behind = self._reader.lag(stream) if unread else (0, 0)
            if behind is not None:
                files.add_metric(name, behind[0])
                size.add_metric(name, behind[1])
        yield from (files, size, stale)

    def _jobs(self) -> Iterator[Metric]:
        waiting = gauge("job_waiting_files", "Files of open batches.", "job_name")
        waiting_bytes = gauge("job_waiting_bytes", "Bytes of open batches.", "job_name")
        oldest = gauge("job_oldest_waiting_seconds", "Age of the oldest waiting change.", "job_name")
        done = gauge("job_files_done", "Files of the volume that the job has finished.", "job_name")
        failures = gauge("job_failures", "Failed files by state.", "job_name", "state")
        files = counter("job_files", "Processed files by outcome. One that is tried again counts again.", "job_name", "outcome")
        size = counter("job_bytes", "Bytes of processed files.", "job_name")
        batches = counter("job_batches", "Committed batches.", "job_name")
        counted = counter("job_counted", "What the job's function counted.", "job_name", "name")
        runs = counter("job_runs", "Runs by outcome since the daemon started.", "job_name", "outcome")
        failing = gauge("job_failing", "1 if the job is failing.", "job_name")
        follows = gauge("job_on_change", "1 if a daemon runs the job when files change, and it is not paused.", "job_name")
        jobs, probed = self._catalog.jobs.list(), {"failing_jobs": dict(self._scheduler.unrecorded)}
        open_runs = runs_of(self._catalog, jobs)
        for job in jobs:
            name = str(job.name)
            wrong = problems({"jobs": [{**job_health(job, open_runs), "failures": {}}]}, probed)
            failing.add_metric([name], int(any(problem.severe for problem in wrong)))
            follows.add_metric([name], int(job.state is JobState.ACTIVE and job.trigger.kind is TriggerKind.ON_CHANGE))
            load = self._catalog.reports.waiting(job.id)
            waiting.add_metric([name], load.files)
            waiting_bytes.add_metric([name], load.bytes)
            owed = backlog(self._catalog, job)
            if owed is not None:
                if owed.done is not None:
                    done.add_metric([name], owed.done)
                since = owed.waiting_since
                oldest.add_metric([name], 0.0 if since is None else (datetime.now(UTC) - since).total_seconds())
            counts = self._catalog.failures.counts(job.id)
            for state in FailureState:
                if state is not FailureState.PENDING:
                    failures.add_metric([name, state], counts.get(state, 0))
            totals = self._catalog.reports.totals(job.id)
            files.add_metric([name, "succeeded"], totals["succeeded"])
            files.add_metric([name, "failed"], totals["failed"])
            size.add_metric([name], totals["bytes"])
            batches.add_metric([name], totals["batches"])
            for what, number in self._catalog.reports.counted(job.id).items():
                counted.add_metric([name, what], number)
        for (name, outcome), count in dict(self._scheduler.runs).items():
            runs.add_metric([name, outcome], count)
        yield from (waiting, waiting_bytes, oldest, done, failures, files, size, batches, counted, runs, failing, follows)
