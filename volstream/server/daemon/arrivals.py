"""Rows that arrive while a daemon runs: real-time streams are committed, and Kafka topics are read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from volstream.base.config import Settings
from volstream.base.definitions import Source, SourceType
from volstream.base.log import get
from volstream.base.model.names import Name
from volstream.base.threads import Backoff, FailureTracker, Stop, run_loop
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.database import Version
from volstream.catalog.leases import of_source
from volstream.errors import CatalogError, EngineLostError, TailFullError, in_brief, unexpected
from volstream.home import Home
from volstream.ingest.local import commit
from volstream.ingest.sources.kafka import TopicIngestion
from volstream.ingest.sources.tables import expire_events
from volstream.server.daemon.families import counter, gauge
from volstream.server.daemon.leased import LeasedWorker
from volstream.tables.delta import places
from volstream.tables.delta.places import is_table
from volstream.tables.tails.writer import MovePlanner

# Commits rows of real-time streams, so that table streams, dynamic tables and plain Spark see them. Deletes
# events that are too old.

_log = get("commits")

#: Maximum interval of commits, so that a daemon follows new tables, and interval of sweeps, which list
#: folders.
_MAX_COMMIT_SECONDS, _SWEEP_SECONDS = 60.0, 3600.0


class Committer:
    """Commits every ``commit_seconds`` while a daemon runs.

    Once an hour it deletes files that no tail needs any longer, and events older than their stream's
    retention. A failing table does not delay others.
    """

    def __init__(self, home: Home, settings: Settings, stop: Stop) -> None:
        self._home = home
        self._seconds = min(settings.commit_seconds or _MAX_COMMIT_SECONDS, _MAX_COMMIT_SECONDS)
        self._stop = stop
        self._next_sweep = time.monotonic()
        self._to_expire: dict[Name, Source] = {}
        # Recorded failures, also of an earlier daemon.
        causes = home.catalog.conditions.causes(ConditionKind.TABLE)
        self._troubles = {Name.parse(name): cause for name, cause in causes.items()}

    @property
    def failing(self) -> dict[str, str]:
        """Why commits currently fail, by table."""
        return {str(name): reason for name, reason in dict(self._troubles).items()}

    def run(self) -> None:
        """Runs in its own thread. Returns when stopped."""
        run_loop(self._tick, self._stop, FailureTracker("commits", _log, Backoff()))

    def _tick(self) -> None:
        if self._stop.wait(self._seconds):
            return
        catalog = self._home.catalog
        sweeps = time.monotonic() >= self._next_sweep
        if sweeps:
            self._next_sweep = time.monotonic() + _SWEEP_SECONDS
        tails = catalog.tails.list()
        for dropped in self._troubles.keys() - tails.keys():
            del self._troubles[dropped]
        for name, location in tails.items():
            try:
                if is_table(location):
                    commit(catalog, name, location, lambda: self._home.gateway)
                    self._record(name, None)
                    if sweeps:
                        MovePlanner(location).sweep()
                else:
                    places.check_there(self._home.warehouse)
                    catalog.tails.remove(name)
                    self._troubles.pop(name, None)
            except Exception as error:  # noqa: BLE001  # the rows are durable, and the next turn retries
                self._record(name, in_brief(error), error)
        if sweeps:
            self._to_expire = {source.name: source for source in catalog.sources.list()}
        for source in list(self._to_expire.values()):
            try:
                if expire_events(self._home, source):
                    _log.info("events_expired", source=str(source.name))
            except EngineLostError:  # the engine starts, or is restarted
                continue
            except Exception as error:  # noqa: BLE001  # the next sweep retries
                _log.warning("expiry_failed", source=str(source.name), error=in_brief(error), exc_info=unexpected(error))
            del self._to_expire[source.name]

    def _record(self, name: Name, reason: str | None, error: Exception | None = None) -> None:
        """Logs and records why a table's commits fail, once, for ``volstream status``. None clears the
        failure."""
        if reason == self._troubles.get(name):
            return
        if reason is None:
            del self._troubles[name]
            _log.info("commits_again", table=str(name))
        else:
            self._troubles[name] = reason
            _log.warning("commit_failed", table=str(name), error=reason, exc_info=unexpected(error))
        with suppress(CatalogError):  # while it is unavailable, the failure is in the log
            self._home.catalog.conditions.note(ConditionKind.TABLE, str(name), reason)


# Fills tables from Kafka topics while a daemon runs, in a thread per topic, which reads for as long as it
# holds the lease.

#: Interval of checks for new and dropped sources.
_TOPIC_SECONDS = 0.5


class SourceWorker(LeasedWorker):
    """Reads one topic into its table until it is ended. While another process holds the lease, it waits.

    Any error is reported and retried, and does not affect other sources: the messages read so far are in the
    table's tail.

    Attributes:
        messages: number of messages that it has read.
    """

    def __init__(self, source: Source, home: Home) -> None:
        title, condition = f"reader of source {source.name}", (ConditionKind.SOURCE, source.id)
        super().__init__(title, of_source(source.id), home.catalog, home.settings, _log, condition)
        self.source = source
        self.messages = 0
        self._home = home
        self._loss: str | None = None

    @property
    def reason(self) -> str | None:
        """The problem with the topic, or the loss of messages while this daemon runs, or None."""
        return self.trouble.reason or self._loss

    def is_wanted(self) -> bool:
        """See :meth:`LeasedWorker.is_wanted`. Reads the source's definition."""
        current = self._catalog.sources.by_id(self.source.id)
        self.source = current or self.source
        return current is not None

    def work(self, turn: Stop) -> None:
        """See :meth:`LeasedWorker.work`."""
        with TopicIngestion(self._home, self.source, self._lose) as reading:
            while not turn:
                try:
                    count = reading.step()
                except TailFullError as error:  # the messages read so far wait
                    turn.wait(self.trouble.failed(error))
                    continue
                self.messages += count
                if count or reading.has_caught_up:
                    self.trouble.recovered()

    def _lose(self, reason: str) -> None:
        self._loss = reason
        _log.error("messages_lost", source=str(self.source.name), why=reason)
        self.record()


class SourceWorkers(Collector):
    """Follows the catalog: runs a worker for each topic that fills a table."""

    def __init__(self, home: Home, stop: Stop) -> None:
        self._home = home
        self._stop = stop
        self._workers: dict[str, SourceWorker] = {}
        self._threads: list[threading.Thread] = []
        self._seen: Version | None = None  # the catalog's version at the last check

    def run(self) -> None:
        """Runs in its own thread. Returns when stopped, after all workers have ended."""
        try:
            run_loop(self._check, self._stop, FailureTracker("sources", _log, Backoff()))
        finally:
            for worker in self._workers.values():
                worker.end()
            for thread in self._threads:
                thread.join()

    @property
    def failing(self) -> dict[str, str]:
        """Why sources currently fail, by name."""
        workers = list(self._workers.values())
        return {str(worker.source.name): worker.trouble.reason for worker in workers if worker.trouble.reason is not None}

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of one scrape."""
        messages = counter("source_messages", "Messages that were read.", "source")
        failing = gauge("source_failing", "1 if the topic cannot be read.", "source")
        for worker in list(self._workers.values()):
            messages.add_metric([str(worker.source.name)], worker.messages)
            failing.add_metric([str(worker.source.name)], int(worker.trouble.reason is not None))
        yield from (messages, failing)

    def _check(self) -> None:
        version = self._home.catalog.database.version()
        if version != self._seen:
            self._follow()
            self._seen = version
        self._stop.wait(_TOPIC_SECONDS)

    def _follow(self) -> None:
        wanted = {source.id: source for source in self._home.catalog.sources.list(kind=SourceType.KAFKA)}
        for gone in self._workers.keys() - wanted.keys():
            self._workers.pop(gone).end()
        for new in wanted.keys() - self._workers.keys():
            worker = self._workers[new] = SourceWorker(wanted[new], self._home)
            self._threads.append(threading.Thread(target=worker.run, name=f"source {worker.source.name}", daemon=True))
            self._threads[-1].start()
        self._threads = [thread for thread in self._threads if thread.is_alive()]
