"""Looks at a home again and again, and records what to send: in one transaction with what was decided, so that a restart
neither loses an alert nor decides twice."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from volstream.base.config import Settings
from volstream.base.definitions import Job
from volstream.catalog.alerts import AlertCause
from volstream.catalog.database import Version
from volstream.home import Home
from volstream.ops.alerts import conditions
from volstream.ops.alerts.decide import BEGAN, FAILED, SEEN, Decision, Pace, gather, judge, judge_failures
from volstream.ops.alerts.model import Alert, AlertEvent, Condition, Subject
from volstream.ops.inspection.problems import problems
from volstream.ops.inspection.status import health
from volstream.tables.delta.places import reached

#: Interval of looks at streams, which read the logs of tables.
_STREAM_SECONDS = 60.0

#: Failures read at once.
_FAILURES = 5000

#: Returns who gets an alert, and as what payload.
Address = Callable[[Alert], Iterable[tuple[str, Mapping[str, Any]]]]


def recipients(settings: Settings, event: AlertEvent, subject: Subject) -> tuple[str, ...]:
    """Returns the names of those who get alerts of an event about an object."""
    named: tuple[str, ...] = getattr(settings, f"on_{event}") if subject.to is None else subject.to
    return named


class AlertEvaluator:
    """Looks at one home; for use by one thread.

    Args:
        engine: returns the state of the daemon's engine.
        address: see :data:`Address`.
    """

    def __init__(self, home: Home, engine: Callable[[], Mapping[str, Any]], address: Address) -> None:
        settings = self._settings = home.settings
        self._home = home
        self._engine = engine
        self._address = address
        self._pace = Pace(timedelta(seconds=settings.alert_after_seconds), timedelta(seconds=settings.alert_repeat_seconds))
        self._version: Version | None = None
        self._streams_looked = -math.inf  # monotonic
        self._due: datetime | None = None
        self._engine_reason: object = None
        self._counts: Mapping[str, int] = {}  # of failures by job's id, at the last look

    def look(self) -> bool:
        """Looks if something may have changed, which it knows within microseconds; returns True if alerts were recorded.

        Raises:
            CatalogError: the catalog is unavailable.
        """
        version, reason, now = self._home.catalog.database.version(), self._engine().get("reason"), time.monotonic()
        due = self._due is not None and datetime.now(UTC) >= self._due
        streams = now - self._streams_looked >= _STREAM_SECONDS
        if not (due or streams or version != self._version or reason != self._engine_reason):
            return False
        with reached(self._settings.warehouse_path):
            changed = self._decide(streams=streams)
        self._version, self._engine_reason = version, reason
        if streams:
            self._streams_looked = now
        return changed

    def _decide(self, *, streams: bool) -> bool:
        catalog, now = self._home.catalog, datetime.now(UTC)
        known, jobs = catalog.alerts.causes(), catalog.jobs.list()
        wrong = problems(health(self._home, streams=streams), {"engine": self._engine()})
        present, unclear = conditions.conditions(catalog, wrong)
        if not streams:
            unclear = [*unclear, "stale:", "problem:stream:"]
        wanted = [condition for condition in present if recipients(self._settings, condition.event, condition.subject)]
        decision = Decision()
        if BEGAN not in known:
            self._begin(decision, wanted, now)
        judge(decision, wanted, {**known, **decision.changed}, unclear, now, self._pace)
        self._failures(decision, jobs, {**known, **decision.changed}, now)
        decision.gone |= _orphans(known, jobs)
        new = [pair for alert in decision.alerts for pair in self._address(alert)]
        if decision.changed or decision.gone or new:
            changed = [cause for key, cause in decision.changed.items() if key not in decision.gone]
            catalog.alerts.record(changed=changed, gone=sorted(decision.gone), made=new)
        self._due = decision.due
        return bool(new)

    def _begin(self, decision: Decision, present: Sequence[Condition], now: datetime) -> None:
        """Counts what happened before alerts were configured as sent; what is wrong now is sent."""
        happened = [condition for condition in present if condition.event in (AlertEvent.PAUSE, AlertEvent.FAILURE)]
        decision.changed = {condition.key: AlertCause(condition.key, now, alerted_on=now) for condition in happened}
        decision.changed[BEGAN] = AlertCause(BEGAN, now)
        for job_id, newest in self._home.catalog.alerts.newest_failures().items():
            decision.changed[f"{SEEN}{job_id}"] = AlertCause(f"{SEEN}{job_id}", now, count=newest)

    def _failures(self, decision: Decision, jobs: Sequence[Job], known: Mapping[str, AlertCause], now: datetime) -> None:
        """Decides about files that were quarantined since the last look, and about earlier ones that were not sent yet."""
        counts = self._home.catalog.alerts.failed_files()
        for job in jobs:
            causes = {key: cause for key, cause in known.items() if key.startswith(f"{FAILED}{job.id}:")}
            if counts.get(job.id, 0) != self._counts.get(job.id, 0):
                new = self._new_failures(decision, job, known, now)
                decision.changed |= new
                causes |= new
            subject = conditions.subject_of(job)
            if recipients(self._settings, AlertEvent.FAILURE, subject):
                judge_failures(decision, subject, list(causes.values()), now, self._pace)
            else:
                decision.gone |= causes.keys()
        self._counts = counts

    def _new_failures(
        self, decision: Decision, job: Job, known: Mapping[str, AlertCause], now: datetime
    ) -> dict[str, AlertCause]:
        key = f"{SEEN}{job.id}"
        seen = known.get(key) or AlertCause(key, now)
        changed = dict[str, AlertCause]()
        after = seen.count
        while failures := self._home.catalog.alerts.failures_after(job.id, after, _FAILURES):
            changed |= gather(job.id, failures, {**known, **changed}, now)
            after = failures[-1].id
        if after != seen.count:
            decision.changed[key] = AlertCause(key, seen.since, count=after)
        return changed


def _orphans(known: Mapping[str, AlertCause], jobs: Sequence[Job]) -> set[str]:
    """Returns the keys of what is known of jobs that were dropped."""
    ids = {job.id for job in jobs}
    return {key for key in known if key.startswith((FAILED, SEEN)) and key.split(":")[1] not in ids}
