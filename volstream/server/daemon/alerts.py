"""Notifies people of problems: one daemon per catalog decides, and delivers to each receiver in its own
thread.

A decision is in the catalog before its delivery. After a crash between a delivery and its record, the alert
is delivered again, with the same id: each is delivered at least once. ``alerts`` decides what is sent and
when.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from volstream.base import faults
from volstream.base.config import Receiver
from volstream.base.log import get
from volstream.base.threads import Backoff, FailureTracker, Stop, join_all, run_loop
from volstream.catalog.leases import ALERTS
from volstream.errors import VolstreamError
from volstream.home import Home
from volstream.ops import receivers
from volstream.ops.alerts import Alert, AlertEvaluator, digest_of, recipients
from volstream.server.daemon.families import counter, gauge
from volstream.server.daemon.leased import LeasedWorker

_log = get("alerts")

#: Interval of checks of the catalog, and of the receivers' checks for alerts.
_CHECK_SECONDS = 1.0

#: An alert that could not be delivered for this long is dropped, and the interval of checks for such alerts.
_MAX_AGE, _DROP_SECONDS = timedelta(days=1), 3600.0

#: The end of a turn waits this long for deliveries. Later ones are repeated by the next turn.
_END_SECONDS = 3.0

#: Maximum number of alerts in one delivery.
_MAX_DIGEST = 100

#: Maximum delay before a delivery is retried.
_CAP_SECONDS = 300.0


class DeliveryWorker:
    """Delivers the alerts of one receiver, whose failures delay no other.

    Attributes:
        delivered, failed: numbers of deliveries.
        trouble: why deliveries currently fail.
    """

    def __init__(self, name: str, receiver: Receiver, home: Home) -> None:
        self.name = name
        self.delivered = self.failed = 0
        self.trouble = FailureTracker(f"receiver {name}", _log, Backoff(first_seconds=1.0, cap_seconds=_CAP_SECONDS))
        self._receiver = receiver
        self._alerts = home.catalog.alerts
        self._woken = threading.Event()

    def run(self, stop: Stop) -> None:
        """Runs in its own thread. Returns when stopped."""
        self.wake()  # earlier alerts may be waiting
        run_loop(lambda: self._tick(stop), stop, self.trouble)

    def wake(self) -> None:
        """Makes it check for alerts."""
        self._woken.set()

    def _tick(self, stop: Stop) -> None:
        if not self._woken.wait(_CHECK_SECONDS) or stop:
            return
        self._woken.clear()
        digest = self._receiver.digest
        waiting = self._alerts.next_for(self.name, _MAX_DIGEST if digest else 1)
        if not waiting:
            return
        since = min(alert.created_on for alert in waiting)
        if stop.wait(min(digest, _seconds_until(since + timedelta(seconds=digest)))):  # clocks may be set
            return
        if digest:  # more may have arrived
            waiting = self._alerts.next_for(self.name, _MAX_DIGEST)
        self._woken.set()  # the delivery may fail, or there may be more
        payload = waiting[0].payload if len(waiting) == 1 else digest_of([alert.payload for alert in waiting])
        try:
            receivers.deliver(self._receiver, payload)
        except Exception as error:
            self.failed += 1
            # An unexpected error may contain a secret.
            self._alerts.failed(waiting, str(error) if isinstance(error, VolstreamError) else type(error).__name__)
            raise
        faults.point("alert.sent")
        self._alerts.delivered(waiting)
        self.delivered += 1
        _log.info("alert_delivered", receiver=self.name, alert=payload["id"], about=payload["name"], alerts=len(waiting))


def _seconds_until(moment: datetime) -> float:
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


class AlertService(LeasedWorker, Collector):
    """Decides which alerts to send while no other daemon on the catalog does, and has them delivered.

    Args:
        engine: returns the state of the daemon's engine.
        page: returns the address of an object's page from its kind and name.

    Raises:
        InvalidValueError: a setting names an unknown receiver.
    """

    def __init__(self, home: Home, engine: Callable[[], Mapping[str, Any]], page: Callable[[str, str], str]) -> None:
        receivers.check(home.settings)
        super().__init__("alerts", ALERTS, home.catalog, home.settings, _log)
        self._home = home
        self._engine = engine
        self._page = page
        self._workers = [DeliveryWorker(name, receiver, home) for name, receiver in self._settings.receivers.items()]
        self._warned: set[str] = set()
        self._next_drop = time.monotonic()

    def is_wanted(self) -> bool:
        """See :meth:`LeasedWorker.is_wanted`: without receivers there is nothing to do."""
        return bool(self._workers)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of one scrape."""
        deliveries = counter("alerts", "Deliveries of alerts, by outcome.", "receiver", "outcome")
        waiting = gauge("alerts_waiting", "Alerts to be delivered.", "receiver")
        failing = gauge("alert_receiver_failing", "1 if the newest delivery failed.", "receiver")
        counts = self._home.catalog.alerts.waiting() if self._workers else {}
        for worker in self._workers:
            deliveries.add_metric([worker.name, "delivered"], worker.delivered)
            deliveries.add_metric([worker.name, "failed"], worker.failed)
            waiting.add_metric([worker.name], counts.get(worker.name, 0))
            failing.add_metric([worker.name], int(worker.trouble.reason is not None))
        yield from (deliveries, waiting, failing)

    def work(self, turn: Stop) -> None:
        """See :meth:`LeasedWorker.work`: decides and delivers."""
        evaluator, ending = AlertEvaluator(self._home, self._engine, self._addressed), Stop()
        threads = [
            threading.Thread(target=worker.run, args=(ending,), name=f"receiver {worker.name}", daemon=True)
            for worker in self._workers
        ]
        for thread in threads:
            thread.start()
        try:
            while not turn:
                self._drop()
                if evaluator.look():
                    faults.point("alert.recorded")
                    for worker in self._workers:
                        worker.wake()
                turn.wait(_CHECK_SECONDS)
        finally:
            ending.set()
            join_all(threads, _END_SECONDS)

    def _addressed(self, alert: Alert) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yields the receivers of an alert, each with its payload."""
        subject = alert.subject
        _log.info("alert", about=str(alert.event), kind=subject.kind, name=subject.name, why=alert.why)
        page = self._page(subject.kind, subject.name)
        payload = alert.payload(str(self._settings.home), socket.gethostname(), datetime.now(UTC), page)
        for receiver in dict.fromkeys(recipients(self._settings, alert.event, subject)):
            if receiver in self._settings.receivers:
                yield receiver, payload
            elif receiver not in self._warned:
                self._warned.add(receiver)
                _log.warning("receiver_unknown", receiver=receiver, named_by=f"{subject.kind} {subject.name}")

    def _drop(self) -> None:
        if time.monotonic() < self._next_drop:
            return
        self._next_drop = time.monotonic() + _DROP_SECONDS
        dropped = self._home.catalog.alerts.drop(receivers=list(self._settings.receivers), before=datetime.now(UTC) - _MAX_AGE)
        if dropped:
            _log.warning("alerts_dropped", count=dropped)
