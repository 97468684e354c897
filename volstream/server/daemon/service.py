"""The daemon's process: locks the home, starts a worker per volume, scheduler, HTTP and engine, and stops
them in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from volstream.api.session import Session
from volstream.base.config import Settings
from volstream.base.definitions import Job, SourceKind
from volstream.base.log import get
from volstream.base.privacy import address_of, certificate_of
from volstream.base.threads import Stop, Supervisor
from volstream.catalog import Catalog
from volstream.errors import InterruptedByUserError
from volstream.jobs.batches.residents import Residents
from volstream.server.console.actions import task_body
from volstream.server.console.app import Console
from volstream.server.console.http import url
from volstream.server.console.server import HttpServer
from volstream.server.daemon.alerts import AlertService
from volstream.server.daemon.arrivals import Committer, SourceWorkers
from volstream.server.daemon.engine import DaemonEngine, EmbeddedEngine, LastingFailure, RemoteEngine, asking, watch_of
from volstream.server.daemon.housekeeping import Housekeeper, Registrar
from volstream.server.daemon.ingest import IngestServer
from volstream.server.daemon.jobs import Scheduler
from volstream.server.daemon.keeping import VolumeKeeping
from volstream.server.daemon.metrics import DaemonMetrics, Readiness
from volstream.server.daemon.tasks import TaskWorker
from volstream.spark.engine.client import remote_address
from volstream.spark.engine.owner import Engine, Owner
from volstream.spark.loading import load
from volstream.spark.session import SparkGateway

_log = get("daemon")

#: The daemon waits indefinitely for another daemon on its home.
_FOREVER = 10 * 365 * 86400.0


class Daemon:
    """One daemon on one home.

    Args:
        virtual_cluster: the daemon keeps the volumes of this cluster, and runs the jobs on them.
        stop: set by a signal, or when any part dies.
        ready: called once everything runs, with the HTTP port.
    """

    def __init__(
        self, settings: Settings, virtual_cluster: str, stop: Stop, ready: Callable[[int], None] = lambda _: None
    ) -> None:
        self._settings = settings
        self._virtual_cluster = virtual_cluster
        self._stop = stop
        self._ready_callback = ready
        self._volume_of: dict[str, str | None] = {}  # by id of a job's stream; None for a stream on a table
        self._threads = Supervisor(stop)
        self._serving = False
        self._owned: Engine | None = None
        self._scheduler: Scheduler | None = None
        self._sources: SourceWorkers | None = None
        self._committer: Committer | None = None
        self._port = 0

    def run(self) -> None:
        """Serves until the stop signal, then finishes work in progress. Called by the main thread.

        The home is locked first. The engine comes last: volumes are kept, and HTTP responds, before it is up,
        while it restarts, and even if it cannot be started at all.

        Raises:
            VolstreamError: the error that ended a part.
        """
        settings = self._settings
        if not settings.spark_remote:
            self._owned = Engine(settings, kind="daemon", stop=self._stop, wait_seconds=_FOREVER, waiting=self._waits_for_home)
            try:
                self._owned.take()
            except InterruptedByUserError:
                return  # stopped while it waited for the home: a normal end
            engine: DaemonEngine = EmbeddedEngine(self._owned, self._stop, self._wake, watch_of(settings))
        else:
            address = remote_address(settings)
            engine = RemoteEngine(address, self._stop, self._wake, watch_of(settings), asking(settings))
        load()  # before threads exist that would import parts of it
        session = Session(settings, lambda: SparkGateway(engine.attach, stall_seconds=settings.engine_stall_seconds))
        try:
            self._serve(session, engine)
        finally:
            session.close()
            if self._owned is not None:
                self._owned.stop()

    def kill(self) -> None:
        """Kills the JVM, on the second signal."""
        if self._owned is not None:
            self._owned.kill()

    def _waits_for_home(self, owner: Owner) -> None:
        note = "this daemon begins when that process ends"
        _log.info("waiting_for_home", home=str(self._settings.home), owner_pid=owner.pid, owner=owner.kind, note=note)

    def _serve(self, session: Session, engine: DaemonEngine) -> None:
        catalog = session.home.catalog
        keeping = VolumeKeeping(catalog, self._settings, self._virtual_cluster, self._stop, self._wake)
        if self._owned is not None:  # an external Spark is the same for all daemons
            keeping.disabled = LastingFailure(engine, self._settings.engine_start_seconds)
        self._scheduler = scheduler = Scheduler(
            catalog,
            session.jobs.runner,
            self._settings,
            session.home.zone,
            lambda job: self._serves(catalog, keeping, job),
            self._stop,
            lambda: engine.is_up,
        )
        count = 0 if self._settings.on_cluster else self._settings.residents
        residents = Residents(lambda: session.home.gateway.fresh(), self._settings.run_directory, count)
        session.home.residents = residents if count else None
        ingest = IngestServer(session) if self._settings.ingest_address else None
        self._sources = SourceWorkers(session.home, self._stop)
        alerts = AlertService(session.home, engine.status, self._page)
        others = [self._sources, alerts] if ingest is None else [self._sources, alerts, ingest]
        metrics = DaemonMetrics(catalog, session.home.reader, lambda: keeping.workers, scheduler, engine, others)
        self._committer = Committer(session.home, self._settings, self._stop)
        cluster = self._virtual_cluster.upper()
        tasks = TaskWorker(catalog, self._settings, cluster, partial(task_body, session), lambda: engine.is_up)
        ready = partial(self._readiness, engine, scheduler, keeping)
        console = Console(session, self._healthy, ready, metrics, cluster, tasks.wake)
        address = self._settings.console_address
        tls = certificate_of(self._settings, "console", address)
        http = HttpServer(console.app, self._settings.http_port, address, tls)
        http.start()
        self._port = http.port
        try:
            if ingest is not None:
                ingest.start()
            if self._owned is not None:
                self._owned.announce(http_port=http.port)
            self._threads.run("scheduler", scheduler.run)
            self._threads.run("tasks", tasks.run)
            self._threads.run("volumes", keeping.run)
            self._threads.run("catalog", keeping.follow)
            self._threads.run("sources", self._sources.run)
            self._threads.run("commits", self._committer.run)
            self._threads.run("alerts", alerts.run)
            self._threads.run("residents", residents.run, may_end=True)
            self._threads.run("housekeeping", Housekeeper(catalog, self._settings, self._stop).run)
            if self._settings.metastore:
                self._threads.run("registration", Registrar(session.home, lambda: engine.is_up, self._stop).run)
            _log.info("daemon_started", home=str(self._settings.home), http_port=http.port, cluster=self._virtual_cluster)
            self._serving = True
            self._ready_callback(http.port)
            engine.run()
        finally:
            self._serving = False
            self._stop.set()
            scheduler.wake()
            alerts.end()
            tasks.end()
            residents.end()
            if ingest is not None:
                ingest.stop()
            console.stop()
            self._end()
            http.stop()
        self._raise_failure()

    def _page(self, kind: str, name: str) -> str:
        """Returns the address of an object's page, or of the overview for an object without a page."""
        parts = (f"{kind}s", name) if kind in ("job", "volume", "table") else ()
        return f"{address_of(self._settings, self._port)}{url(*parts)}"

    def _wake(self, volume_id: str | None = None) -> None:
        if self._scheduler is not None:
            self._scheduler.wake(volume_id)

    def _end(self) -> None:
        """Lets the parts finish work in progress, within ``shutdown_seconds``."""
        if not self._threads.join(self._settings.shutdown_seconds):
            _log.warning("not_finished_in_time", parts=self._threads.alive())
        _log.info("daemon_stopped")

    def _raise_failure(self) -> None:
        failure = self._threads.failure
        if failure is not None and failure.error is not None:
            _log.error("part_died", part=failure.name, error=str(failure.error))
            raise failure.error

    def _serves(self, catalog: Catalog, keeping: VolumeKeeping, job: Job) -> bool:
        """Returns whether this daemon keeps a volume that the job reads. Jobs that read only tables run on
        any daemon."""
        for stream in map(catalog.streams.by_id, {*job.stream_ids} - self._volume_of.keys()):
            if stream is not None:
                self._volume_of[stream.id] = stream.source_id if stream.source_kind is SourceKind.VOLUME else None
        sources = {self._volume_of[stream_id] for stream_id in job.stream_ids if stream_id in self._volume_of}
        volumes = [volume_id for volume_id in sources if volume_id is not None]
        return bool(sources) and (not volumes or any(map(keeping.keeps, volumes)))

    def _healthy(self) -> tuple[bool, Mapping[str, Any]]:
        is_well = not self._stop and self._threads.failure is None
        return is_well, {"status": "ok" if is_well else "stopping"}

    def _readiness(self, engine: DaemonEngine, scheduler: Scheduler, keeping: VolumeKeeping) -> tuple[bool, Mapping[str, Any]]:
        kept = keeping.kept
        readiness = Readiness(
            serving=self._serving and keeping.is_looking,
            kept=len(kept),
            engine=engine.status(),
            volumes=keeping.failing,
            sources={} if self._sources is None else self._sources.failing,
            tables={} if self._committer is None else self._committer.failing,
            jobs=dict(scheduler.unrecorded),
            held_removals={str(worker.volume.name): worker.held_removals for worker in kept if worker.held_removals},
        )
        return readiness.ready, readiness.details()
