"""When a problem becomes an alert: once it has lasted, not again for a while, and when it is over. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from volstream.base.model.text import counted, first_line
from volstream.base.model.work import FailureState
from volstream.catalog.alerts import AlertCause
from volstream.ops.alerts.model import Alert, AlertEvent, Condition, Subject
from volstream.ops.inspection.failures import group_id

#: Prefixes of keys: a cause of files' failures, with job and group; up to where a job's failures were seen, with the job; an
#: alert that was sent for an object and is not resolved, with its key; and the time at which all began.
FAILED, SEEN, OPEN, BEGAN = "failed:", "seen:", "open:", "began"

#: Causes of one job; the others are one. Causes that an alert names; characters of each.
_MAX_CAUSES, _MAX_NAMED, _MAX_WHY = 50, 5, 300

#: Characters of a key.
_MAX_KEY = 200

_OTHERS = "others"

#: So many failures since an alert, and as many as alerts have reported, are news before the alert would be repeated.
_GROWN = 5


@dataclass(frozen=True)
class Pace:
    """How soon and how often alerts are sent.

    Attributes:
        after: how long a transient problem must last, and failures are gathered.
        repeat: how long after an alert the same problem is another one.
    """

    after: timedelta
    repeat: timedelta


@dataclass
class Decision:
    """What to send and remember.

    Attributes:
        due: when to decide again although nothing changes; None: never.
    """

    alerts: list[Alert] = field(default_factory=list)
    changed: dict[str, AlertCause] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    due: datetime | None = None

    def wait_until(self, when: datetime) -> None:
        """Sees to it that the next decision is made by then."""
        self.due = when if self.due is None else min(self.due, when)


def judge(
    decision: Decision,
    conditions: Iterable[Condition],
    known: Mapping[str, AlertCause],
    unclear: Iterable[str],
    now: datetime,
    pace: Pace,
) -> None:
    """Decides about conditions: adds to ``decision``.

    Args:
        known: the causes of earlier conditions.
        unclear: prefixes of the keys of conditions that cannot be judged now; their alerts stay as they are.
    """
    skipped = tuple(unclear)
    vanished = {key for key in known if not key.startswith((FAILED, SEEN, OPEN, BEGAN)) and not key.startswith(skipped)}
    opened = {key: cause for key, cause in known.items() if key.startswith(OPEN)}
    for condition in conditions:
        vanished.discard(condition.key)
        alert = Alert.of(condition)
        opened.pop(_open_key(alert), None)
        cause = known.get(condition.key) or AlertCause(condition.key, now)
        alerted = cause.alerted_on and min(cause.alerted_on, now)
        cause = replace(cause, since=min(cause.since, now), alerted_on=alerted)  # the clock may have been ahead
        when = _when(cause, pace, passing=condition.passing)
        if cause.alerted_on is not None and not condition.lasting:
            continue
        if when <= now:
            decision.alerts.append(alert)
            decision.changed[_open_key(alert)] = _opened(condition, alert, now)
            cause = replace(cause, alerted_on=now)
            when = now + pace.repeat
        decision.wait_until(when)
        if cause != known.get(condition.key):
            decision.changed[condition.key] = cause
    for key, cause in opened.items():
        alerted = json.loads(cause.note)
        if not alerted["condition"].startswith(skipped):
            decision.alerts.append(_resolved(alerted))
            vanished.add(key)
    decision.gone |= vanished


def _open_key(alert: Alert) -> str:
    return f"{OPEN}{alert.key}"[:_MAX_KEY]


def _opened(condition: Condition, alert: Alert, now: datetime) -> AlertCause:
    """Returns what has to be known when it is over."""
    why = first_line(alert.why)[:_MAX_WHY]
    note = {"condition": condition.key, "event": alert.event, "why": why, "severe": alert.severe}
    return AlertCause(_open_key(alert), now, alerted_on=now, note=json.dumps({**note, **asdict(alert.subject)}))


def _resolved(alerted: Mapping[str, Any]) -> Alert:
    subject = Subject(alerted["kind"], alerted["name"], alerted["to"] and tuple(alerted["to"]))
    why = f"Resolved: {alerted['why']}"
    return Alert(AlertEvent(alerted["event"]), subject, alerted["severe"], why, "No action is needed.", resolved=True)


def _when(cause: AlertCause, pace: Pace, *, passing: bool) -> datetime:
    """Returns when a cause is due for an alert, first or again."""
    if cause.alerted_on is not None:
        return cause.alerted_on + pace.repeat
    return cause.since + pace.after if passing else cause.since


def gather(job_id: str, failures: Sequence[Any], known: Mapping[str, AlertCause], now: datetime) -> dict[str, AlertCause]:
    """Returns the causes of a job's quarantined files, with new failures added to them.

    Args:
        failures: with ``state``, ``kind``, ``message`` and ``path``.
        known: of earlier failures.
    """
    prefix = f"{FAILED}{job_id}:"
    mine = {key: cause for key, cause in known.items() if key.startswith(prefix)}
    changed = dict[str, AlertCause]()
    for failure in failures:
        if failure.state != FailureState.QUARANTINED:  # it will be tried again
            continue
        key = f"{prefix}{group_id(failure.kind, failure.message, failure.path)}"
        if key not in mine and len(mine) >= _MAX_CAUSES:
            key = f"{prefix}{_OTHERS}"
        before = mine.get(key) or AlertCause(key, now)
        said = {"kind": failure.kind, "why": first_line(failure.message)[:_MAX_WHY], "example": failure.path}
        note = json.dumps({**said, "sent": _sent(before)})
        begins = before if before.count else replace(before, since=now)
        mine[key] = changed[key] = replace(begins, count=before.count + 1, note=note)
    return changed


def judge_failures(decision: Decision, subject: Subject, causes: Sequence[AlertCause], now: datetime, pace: Pace) -> None:
    """Decides about the causes of a job's failures, which are one alert: adds to ``decision``."""
    decision.gone |= {
        cause.key  # it has not come again
        for cause in causes
        if not cause.count and cause.alerted_on is not None and cause.alerted_on + pace.repeat <= now
    }
    due = {cause.key: _failure_due(cause, pace) for cause in causes if cause.count}
    if not due:
        return
    first = min(due.values())
    if first > now:
        decision.wait_until(first)
        return
    # All that waits is sent with it, so that a job's alerts stay few.
    due_causes = [cause for cause in causes if cause.key in due and due[cause.key] <= now + pace.after]
    decision.changed |= {cause.key: _alerted(cause, now) for cause in due_causes}
    decision.alerts.append(_failure(subject, due_causes))
    later = [moment for key, moment in due.items() if moment > now + pace.after]
    if later:
        decision.wait_until(min(later))


def _failure_due(cause: AlertCause, pace: Pace) -> datetime:
    """Returns when failures of a cause are due for an alert: again after a while, or once they are twice as many."""
    grown = cause.count >= max(_GROWN, _sent(cause))
    return cause.since + pace.after if cause.alerted_on is None or grown else cause.alerted_on + pace.repeat


def _sent(cause: AlertCause) -> int:
    """Returns how many failures of a cause alerts have reported."""
    return int(json.loads(cause.note or "{}").get("sent", 0))


def _alerted(cause: AlertCause, now: datetime) -> AlertCause:
    note = {**json.loads(cause.note), "sent": _sent(cause) + cause.count}
    return replace(cause, alerted_on=now, count=0, note=json.dumps(note))


def _failure(subject: Subject, due_causes: Sequence[AlertCause]) -> Alert:
    most_first = sorted(due_causes, key=lambda cause: -cause.count)
    files = sum(cause.count for cause in due_causes)
    examples = [
        {**{key: value for key, value in json.loads(cause.note).items() if key != "sent"}, "files": cause.count}
        for cause in most_first[:_MAX_NAMED]
    ]
    sent = sum(map(_sent, due_causes))
    said = (
        f"{counted(files, 'more file')} quarantined, {sent + files:,} in all" if sent else f"{counted(files, 'file')} quarantined"
    )
    if len(due_causes) == 1:
        why = f"{said}, such as {examples[0]['example']}: {examples[0]['why']}"
    else:
        causes = "; ".join(f"{example['files']} x {example['why']}" for example in examples)
        more = len(due_causes) - len(examples)
        why = f"{said}, for {len(due_causes)} causes: {causes}" + (f"; and {counted(more, 'other cause')}" if more else "")
    do = f"volstream list failures --job {subject.name}"
    details = {"files": files, "files_in_all": sent + files, "causes": examples, "more_causes": len(due_causes) - len(examples)}
    return Alert(AlertEvent.FAILURE, subject, True, why, do, details)
