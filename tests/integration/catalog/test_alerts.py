"""Causes of alerts, and alerts that wait, on both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests import objects
from volstream.base.definitions import Job
from volstream.base.model.work import Target
from volstream.catalog import Catalog
from volstream.catalog.alerts import MAX_WAITING, AlertCause
from volstream.catalog.consumptions import BatchOutcome

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def test_what_was_decided_is_stored_with_its_alerts(catalog: Catalog) -> None:
    alerts = catalog.alerts
    paused = AlertCause("pause:1", NOW, alerted_on=NOW)
    waiting = AlertCause("failed:1:x", NOW, count=3, note='{"why": "\\u0000 \\ud800"}')
    alerts.record(changed=[paused, waiting], gone=[], made=[("ops", {"why": "paused \x00"}), ("team", {"why": "paused"})])
    assert alerts.causes() == {one.key: one for one in (paused, waiting)}
    assert alerts.waiting() == {"ops": 1, "team": 1}
    alerts.record(changed=[AlertCause(waiting.key, NOW, alerted_on=NOW)], gone=[paused.key], made=[])
    assert alerts.causes() == {waiting.key: AlertCause(waiting.key, NOW, alerted_on=NOW)}


def test_an_alert_that_fails_lets_others_pass(catalog: Catalog) -> None:
    alerts = catalog.alerts
    alerts.record(changed=[], gone=[], made=[("ops", {"n": n}) for n in range(2)])
    first = alerts.next_for("ops")
    assert [alert.payload for alert in first] == [{"n": 0}]
    alerts.failed(first, "it is down")
    second = alerts.next_for("ops")
    assert [alert.payload for alert in second] == [{"n": 1}]
    assert [alert.payload for alert in alerts.next_for("ops", 5)] == [{"n": 1}, {"n": 0}]
    alerts.delivered(second)
    (again,) = alerts.next_for("ops")
    assert (again.payload, again.attempts, again.error) == ({"n": 0}, 1, "it is down")
    (undelivered,) = alerts.undelivered()
    assert (undelivered.receiver, undelivered.count, undelivered.error) == ("ops", 1, "it is down")
    assert alerts.next_for("other") == []


def test_old_alerts_are_dropped_and_those_beyond_the_limit_and_those_of_nobody(catalog: Catalog) -> None:
    alerts = catalog.alerts
    made = [("ops", {"n": n}) for n in range(MAX_WAITING + 5)] + [("gone", {"n": 0})]
    alerts.record(changed=[], gone=[], made=made)
    begins = datetime.now(UTC) - timedelta(days=1)
    assert alerts.drop(receivers=["ops"], before=begins) == 6
    assert alerts.waiting() == {"ops": MAX_WAITING}
    (first,) = alerts.next_for("ops")
    assert first.payload == {"n": 5}
    assert alerts.drop(receivers=["ops"], before=datetime.now(UTC) + timedelta(minutes=1)) == MAX_WAITING


def test_failures_of_an_open_attempt_are_not_seen_and_not_lost(catalog: Catalog, job: Job) -> None:
    _, (first, _) = objects.store_plan(catalog, job, 2)
    intent = catalog.consumptions.begin(first, owner="me", target=Target("/t", "table", 0))
    catalog.failures.add_pending([objects.failure(job, "a", intent.attempt, next_try=None)])
    assert catalog.failures.briefly(None, limit=10) == []
    before = catalog.failures.marks()
    catalog.consumptions.commit(intent, BatchOutcome(1, 1, 1))
    assert catalog.failures.marks() != before
    (seen,) = catalog.failures.briefly(None, limit=10)
    assert (seen.path, seen.state) == ("a", "quarantined")
