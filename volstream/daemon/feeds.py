"""Fills tables from Kafka topics while a daemon runs: a thread per topic, which reads for as long as its lease is held."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from volstream.catalog.conditions import About
from volstream.catalog.leases import lease
from volstream.definitions import FeedKind, FeedTable
from volstream.errors import CatalogError, FencedError, TailFullError
from volstream.home import Home
from volstream.ingest.feeds import lease_name
from volstream.lifecycle.backoff import Backoff
from volstream.lifecycle.identity import new_owner
from volstream.lifecycle.stop import Stop
from volstream.lifecycle.supervisor import FailureTracker, run_loop
from volstream.log import get
from volstream.sources.kafka.feed import TopicFeed

_log = get("sources")

#: Interval of checks for new and dropped sources.
_LOOK_SECONDS = 0.5

#: Interval of attempts to acquire the lease from another reader.
_LEASE_SECONDS = 1.0

#: The longest delay before a source is tried again.
_CAP_SECONDS = 30.0


class FeedWorker:
    """Reads one topic into its table until it is ended. While another process holds the lease, it waits.

    Any error is reported and retried, and does not affect other sources: what it has read so far is in the table's tail.

    Attributes:
        messages: number of messages that it has read.
    """

    def __init__(self, feed: FeedTable, home: Home) -> None:
        self.feed = feed
        self.stop = Stop()
        self.messages = 0
        self._home = home
        self._turn = Stop()
        self._reads = False
        self._complained = False
        self._loss: str | None = None
        self.trouble = FailureTracker(f"source {feed.name}", _log, Backoff(cap_seconds=_CAP_SECONDS), self._tell)

    def run(self) -> None:
        """Runs in its own thread; returns when ended."""
        run_loop("source", self._try, self.stop, _log, Backoff(), survives=lambda _: True, trouble=self.trouble)

    def end(self) -> None:
        """Makes :meth:`run` return."""
        self.stop.set()
        self._turn.set()

    def _try(self) -> None:
        current = self._home.catalog.feeds.by_id(self.feed.id)
        if current is not None:
            with self._unless_dropped():
                self._take_turn(current)
        self.stop.wait(_LEASE_SECONDS)

    @contextmanager
    def _unless_dropped(self) -> Iterator[None]:
        """Ignores whatever happened to the table of a source that was dropped: the thread that follows the catalog ends this."""
        try:
            yield
        except Exception:
            if self._home.catalog.feeds.by_id(self.feed.id) is not None:
                raise

    def _take_turn(self, feed: FeedTable) -> None:
        """Reads for as long as the lease is held; returns at once if another process holds it."""
        turn = self._turn = Stop()
        if self.stop:  # set before this turn existed
            return
        catalog, seconds = self._home.catalog, self._home.settings.lease_seconds
        purpose = f"daemon's reader of source {feed.name}"
        with lease(catalog.leases, lease_name(feed), new_owner(), purpose, seconds, turn.set) as other:
            if other is not None:
                return
            self._reads = True
            # Left by an earlier reader; cleared by the first success.
            self.trouble.reason = self.trouble.reason or catalog.conditions.cause(About.SOURCE, feed.id)
            try:
                with TopicFeed(self._home, feed, self._lose) as reading:
                    self._read(reading, turn)
            except FencedError as error:
                _log.warning("source_taken_over", source=str(feed.name), error=str(error))
            finally:
                self._reads = False

    def _read(self, reading: TopicFeed, turn: Stop) -> None:
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
        """Reports what cannot be read any more, for as long as this daemon runs."""
        self._loss = reason
        _log.error("messages_lost", source=str(self.feed.name), why=reason)
        self._tell(None)

    def _tell(self, reason: str | None) -> None:
        """Records the trouble in the catalog for other processes. The all-clear is recorded only by the worker that reads, or
        that recorded the trouble."""
        said = reason or self._loss
        if said is None and not (self._reads or self._complained):
            return
        with suppress(CatalogError):  # while it is unavailable, the log has the trouble
            self._home.catalog.conditions.note(About.SOURCE, self.feed.id, said)
            self._complained = said is not None


class Feeds(Collector):
    """Follows the catalog: runs a worker for each topic that fills a table."""

    def __init__(self, home: Home, stop: Stop) -> None:
        self._home = home
        self._stop = stop
        self._workers: dict[str, FeedWorker] = {}
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        """Runs in its own thread; returns when stopped, and all workers have ended."""
        try:
            run_loop("sources", self._look, self._stop, _log, Backoff(), survives=lambda _: True)
        finally:
            for worker in self._workers.values():
                worker.end()
            for thread in self._threads:
                thread.join()

    @property
    def failing(self) -> dict[str, str]:
        """What is wrong at present, by source."""
        workers = list(self._workers.values())
        return {str(one.feed.name): one.trouble.reason for one in workers if one.trouble.reason is not None}

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of one scrape."""
        messages = CounterMetricFamily("volstream_source_messages", "Messages that were read.", labels=["source"])
        failing = GaugeMetricFamily("volstream_source_failing", "1 if the topic cannot be read.", labels=["source"])
        for one in list(self._workers.values()):
            messages.add_metric([str(one.feed.name)], one.messages)
            failing.add_metric([str(one.feed.name)], int(one.trouble.reason is not None))
        yield from (messages, failing)

    def _look(self) -> None:
        wanted = {feed.id: feed for feed in self._home.catalog.feeds.list(kind=FeedKind.KAFKA)}
        for gone in self._workers.keys() - wanted.keys():
            self._workers.pop(gone).end()
        for new in wanted.keys() - self._workers.keys():
            worker = self._workers[new] = FeedWorker(wanted[new], self._home)
            self._threads.append(threading.Thread(target=worker.run, name=f"source {worker.feed.name}", daemon=True))
            self._threads[-1].start()
        self._threads = [one for one in self._threads if one.is_alive()]
        self._stop.wait(_LOOK_SECONDS)
