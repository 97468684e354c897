"""Which alerts are sent, and when: decided from the problems of the home."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from volstream.base.config import Settings
from volstream.base.definitions import Job, JobState, Stream
from volstream.base.model.text import counted, first_line, one_line
from volstream.base.model.work import FailureState
from volstream.catalog import Catalog
from volstream.catalog.alerts import AlertCause
from volstream.catalog.database import Version
from volstream.home import Home
from volstream.ops.inspection.details import group_id
from volstream.ops.inspection.status import Problem, ProblemCause, health, problems
from volstream.tables.delta.places import reached

# What is wrong at present, and the alerts about it. Values only; the payload is documented in
# docs/operations/alerts.md.

#: Version of the payload; keys are only added within one.
PAYLOAD_VERSION = 1


#: Texts of alerts in the text of a digest.
_MAX_TEXTS = 20

#: What chats act on: links and mentions, as they would be written into names of files and errors.
_HARMLESS = {ord("<"): "\u2039", ord(">"): "\u203a", ord("@"): "@\u200b"}


class AlertEvent(StrEnum):
    """What alerts are about; receivers of each are named by the setting ``on_<event>``."""

    FAILURE = "failure"
    PAUSE = "pause"
    STALE = "stale"
    PROBLEM = "problem"
    TEST = "test"
    DIGEST = "digest"


@dataclass(frozen=True)
class Subject:
    """The object that an alert is about.

    Attributes:
        kind, name: as in commands; the name is empty for the engine and the home.
        to: the job's own receivers; None: those of the settings.
    """

    kind: str
    name: str
    to: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Condition:
    """Something that is so at present.

    Attributes:
        key: its identity; while it is so, the key stays.
        why: a sentence.
        do: a command or a sentence.
        passing: it may be transient, so it is an alert only once it has lasted a while.
        lasting: it is sent again if it lasts.
    """

    key: str
    event: AlertEvent
    subject: Subject
    severe: bool
    why: str
    do: str
    passing: bool = False
    lasting: bool = True


@dataclass(frozen=True)
class Alert:
    """What a receiver gets.

    Attributes:
        details: what is known besides, by event.
        resolved: the problem of an earlier alert is over.
    """

    event: AlertEvent
    subject: Subject
    severe: bool
    why: str
    do: str
    details: Mapping[str, Any] = field(default_factory=dict)
    resolved: bool = False

    @classmethod
    def of(cls, condition: Condition) -> Alert:
        """Returns the alert about a condition."""
        return cls(condition.event, condition.subject, condition.severe, condition.why, condition.do)

    @property
    def key(self) -> str:
        """What alerts about the same event and object have in common."""
        return f"{self.event}:{self.subject.kind}:{self.subject.name}"

    def payload(self, home: str, host: str, when: datetime, url: str | None) -> dict[str, Any]:
        """Returns what is delivered, as plain values.

        Args:
            url: the page of the object; None: unknown.
        """
        do = f"Run: {self.do}" if self.do.startswith("volstream ") else self.do
        said = f"{self.subject.kind} {self.subject.name}".strip()
        lines = [f"{said[:1].upper()}{said[1:]}: {self.why}", do, url or ""]
        return {
            "version": PAYLOAD_VERSION,
            "id": str(uuid.uuid4()),
            "key": self.key,
            "event": str(self.event),
            "state": "resolved" if self.resolved else "active",
            "severity": "error" if self.severe else "warning",
            "kind": self.subject.kind,
            "name": self.subject.name,
            "why": self.why,
            "do": self.do,
            "details": dict(self.details),
            "home": home,
            "host": host,
            "time": when.isoformat(),
            "url": url,
            "text": "\n".join(without_markup(line) for line in lines if line),
        }


def digest_of(payloads: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns several alerts as one, which has them in its details; the same ones have the same id."""
    newest, severe = payloads[-1], any(one["severity"] == "error" for one in payloads)
    said = [str(one["text"]) for one in payloads[:_MAX_TEXTS]]
    left = len(payloads) - len(said)
    why = f"{len(payloads)} alerts"
    return {
        **newest,
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, " ".join(one["id"] for one in payloads))),
        "key": str(AlertEvent.DIGEST),
        "event": str(AlertEvent.DIGEST),
        "state": "active" if any(one["state"] == "active" for one in payloads) else "resolved",
        "severity": "error" if severe else "warning",
        "kind": "home",
        "name": "",
        "why": why,
        "do": "volstream status",
        "details": {"alerts": list(payloads)},
        "url": None,
        "text": "\n\n".join([why, *said, *([f"And {left} more."] if left else [])]),
    }


def without_markup(text: str) -> str:
    """Returns text on one line that no chat takes for a mention or a link: it may have names of files in it."""
    return one_line(text).translate(_HARMLESS)


# The alerts that the state of a home calls for, whichever process or host caused it. No Spark.

#: What alerts about a problem are called. Failed files are not a state: each is sent when it fails.
_EVENTS = {
    ProblemCause.RUN: AlertEvent.FAILURE,
    ProblemCause.PAUSE: AlertEvent.PAUSE,
    ProblemCause.STALE: AlertEvent.STALE,
    ProblemCause.OTHER: AlertEvent.PROBLEM,
}


def conditions(catalog: Catalog, problems: Sequence[Problem]) -> tuple[list[Condition], list[str]]:
    """Returns problems as conditions; and prefixes of the keys of conditions that cannot be judged now: failing runs of a paused
    job, and the staleness of a stream whose source cannot be reached."""
    jobs = {str(job.name): job for job in catalog.jobs.list()}
    streams = {str(stream.name): stream for stream in catalog.streams.list()}
    unclear = [f"run:{job.id}:" for job in jobs.values() if job.state is JobState.PAUSED]
    unreached = {problem.name for problem in problems if problem.kind == "stream" and problem.cause is ProblemCause.OTHER}
    unclear += [f"stale:{streams[name].id}:" for name in unreached & streams.keys()]
    return list(_conditions(problems, jobs, streams)), unclear


def _conditions(problems: Iterable[Problem], jobs: dict[str, Job], streams: dict[str, Stream]) -> Iterator[Condition]:
    for problem in problems:
        if problem.cause is ProblemCause.FILES:
            continue
        event, said = _EVENTS[problem.cause], (problem.severe, problem.why, problem.do)
        job, stream = jobs.get(problem.name), streams.get(problem.name)
        if problem.cause is ProblemCause.PAUSE and job is not None:
            # A pause by hand is sent once: it was intended.
            yield Condition(f"pause:{job.id}", event, subject_of(job), *said, lasting=problem.severe)
        elif problem.cause is ProblemCause.RUN and job is not None:
            key = f"run:{job.id}:{group_id('run', problem.why)}"
            yield Condition(key, event, subject_of(job), *said, passing=True)
        elif problem.cause is ProblemCause.STALE and stream is not None:
            key = f"stale:{stream.id}:{'now' if problem.severe else 'soon'}"
            yield Condition(key, event, _subject_of_stream(stream, jobs.values()), *said)
        elif problem.cause is ProblemCause.OTHER:
            of = group_id("problem", problem.do)  # an object may have several
            key = f"problem:{of}:{problem.kind}:{problem.name}:{'severe' if problem.severe else 'waits'}"[:200]
            subject = Subject(problem.kind, problem.name)
            if problem.kind == "job" and job is not None:
                subject = subject_of(job)
            elif problem.kind == "stream" and stream is not None:
                subject = _subject_of_stream(stream, jobs.values())
            yield Condition(key, event, subject, *said, passing=True)


def subject_of(job: Job) -> Subject:
    """Returns a job as the subject of alerts."""
    return Subject("job", str(job.name), None if job.alert is None else tuple(job.alert))


def _subject_of_stream(stream: Stream, jobs: Iterable[Job]) -> Subject:
    """Returns a stream as the subject of alerts, which go to its job's own receivers if it has some."""
    own: Sequence[str] | None = next((job.alert for job in jobs if stream.id in job.stream_ids), None)
    return Subject("stream", str(stream.name), None if own is None else tuple(own))


# When a problem becomes an alert: once it has lasted, not again for a while, and when it is over. Pure.

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


# Looks at a home again and again, and records what to send: in one transaction with what was decided, so that
# a restart neither loses an alert nor decides twice.

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
        present, unclear = conditions(catalog, wrong)
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
            subject = subject_of(job)
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
