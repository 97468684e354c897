"""Fills tables from Kafka topics while a daemon runs: a thread per topic, which reads for as long as its lease is held."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from volstream.base.definitions import Source, SourceType
from volstream.base.log import get
from volstream.base.threads import Backoff, FailureTracker, Stop, run_loop
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.database import Version
from volstream.catalog.leases import of_source
from volstream.errors import TailFullError
from volstream.home import Home
from volstream.ingest.sources.kafka import TopicIngestion
from volstream.server.daemon.families import counter, gauge
from volstream.server.daemon.leased import LeasedWorker

_log = get("sources")

#: Interval of checks for new and dropped sources.
_LOOK_SECONDS = 0.5


class SourceWorker(LeasedWorker):
    """Reads one topic into its table until it is ended. While another process holds the lease, it waits.

    Any error is reported and retried, and does not affect other sources: what it has read so far is in the table's tail.

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
        """The problem with the topic, or what cannot be read any more, for as long as this daemon runs; None if there is none."""
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
                except TailFullError as error:  # what was read waits
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
        self._seen: Version | None = None  # the catalog's version at the last look

    def run(self) -> None:
        """Runs in its own thread; returns when stopped, and all workers have ended."""
        try:
            run_loop(self._look, self._stop, FailureTracker("sources", _log, Backoff()))
        finally:
            for worker in self._workers.values():
                worker.end()
            for thread in self._threads:
                thread.join()

    @property
    def failing(self) -> dict[str, str]:
        """What is wrong at present, by source."""
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

    def _look(self) -> None:
        version = self._home.catalog.database.version()
        if version != self._seen:
            self._follow()
            self._seen = version
        self._stop.wait(_LOOK_SECONDS)

    def _follow(self) -> None:
        wanted = {source.id: source for source in self._home.catalog.sources.list(kind=SourceType.KAFKA)}
        for gone in self._workers.keys() - wanted.keys():
            self._workers.pop(gone).end()
        for new in wanted.keys() - self._workers.keys():
            worker = self._workers[new] = SourceWorker(wanted[new], self._home)
            self._threads.append(threading.Thread(target=worker.run, name=f"source {worker.source.name}", daemon=True))
            self._threads[-1].start()
        self._threads = [thread for thread in self._threads if thread.is_alive()]
