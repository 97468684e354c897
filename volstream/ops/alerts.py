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
from volstream.catalog.failures import BriefFailure
from volstream.home import Home
from volstream.ops.inspection.details import group_id
from volstream.ops.inspection.status import Problem, ProblemCause, health, problems
from volstream.tables.delta.places import reached

# Current problems, and the alerts about them. Values only. The payload is documented in
# docs/operations/alerts.md.

#: Version of the payload. Within a version, keys are only added.
PAYLOAD_VERSION = 1


#: Maximum number of alerts' texts in the text of a digest.
_MAX_TEXTS = 20

#: Links and mentions, to which chats react, as they may occur in names of files and errors.
_HARMLESS = {ord("<"): "\u2039", ord(">"): "\u203a", ord("@"): "@\u200b"}


class AlertEvent(StrEnum):
    """The events of alerts. The setting ``on_<event>`` names the receivers of each."""

    FAILURE = "failure"
    PAUSE = "pause"
    STALE = "stale"
    PROBLEM = "problem"
    TEST = "test"
    DIGEST = "digest"


@dataclass(frozen=True)
class Subject:
    """The object of an alert.

    Attributes:
        kind, name: as in commands. The name is empty for the engine and the home.
        to: the job's own receivers, if it has any, instead of the settings'.
    """

    kind: str
    name: str
    to: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Condition:
    """A current problem.

    Attributes:
        key: its identity, which stays while the problem lasts.
        why: a sentence.
        do: a command or a sentence.
        passing: it may be transient, so it becomes an alert only after a while.
        lasting: its alert is repeated while it lasts.
        files: the failed files that it is about, newest last. Its alert is repeated if there are more.
    """

    key: str
    event: AlertEvent
    subject: Subject
    severe: bool
    why: str
    do: str
    passing: bool = False
    lasting: bool = True
    files: Sequence[BriefFailure] = ()


@dataclass(frozen=True)
class Alert:
    """The content for a receiver.

    Attributes:
        details: further information, by event.
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
        """The common key of alerts about the same event and object."""
        return f"{self.event}:{self.subject.kind}:{self.subject.name}"

    def payload(self, home: str, host: str, when: datetime, url: str | None) -> dict[str, Any]:
        """Returns the payload of a delivery, as plain values.

        Args:
            url: the page of the object, or None.
        """
        do = f"Run: {self.do}" if self.do.startswith("volstream ") else self.do
        subject_text = f"{self.subject.kind} {self.subject.name}".strip()
        lines = [f"{subject_text[:1].upper()}{subject_text[1:]}: {self.why}", do, url or ""]
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
    """Combines several alerts into one, with the alerts in its details. The same alerts give the same id."""
    newest, severe = payloads[-1], any(alert["severity"] == "error" for alert in payloads)
    texts = [str(alert["text"]) for alert in payloads[:_MAX_TEXTS]]
    left = len(payloads) - len(texts)
    why = f"{len(payloads)} alerts"
    return {
        **newest,
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, " ".join(alert["id"] for alert in payloads))),
        "key": str(AlertEvent.DIGEST),
        "event": str(AlertEvent.DIGEST),
        "state": "active" if any(alert["state"] == "active" for alert in payloads) else "resolved",
        "severity": "error" if severe else "warning",
        "kind": "home",
        "name": "",
        "why": why,
        "do": "volstream status",
        "details": {"alerts": list(payloads)},
        "url": None,
        "text": "\n\n".join([why, *texts, *([f"And {left} more."] if left else [])]),
    }


def without_markup(text: str) -> str:
    """Returns text on one line that no chat takes for a mention or a link: it may contain names of files."""
    return one_line(text).translate(_HARMLESS)


# The conditions in a home that require alerts, regardless of the process or host that caused them. No Spark.

#: The events of problems. Failed files are separate conditions, one for each cause.
_EVENTS = {
    ProblemCause.RUN: AlertEvent.FAILURE,
    ProblemCause.PAUSE: AlertEvent.PAUSE,
    ProblemCause.STALE: AlertEvent.STALE,
    ProblemCause.OTHER: AlertEvent.PROBLEM,
}


def conditions(catalog: Catalog, problems: Sequence[Problem]) -> tuple[list[Condition], list[str]]:
    """Returns problems as conditions, and prefixes of the keys of conditions that are currently unknown.

    Unknown are failing runs of a paused job, and the staleness of a stream whose source cannot be reached.
    """
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
        event, details = _EVENTS[problem.cause], (problem.severe, problem.why, problem.do)
        job, stream = jobs.get(problem.name), streams.get(problem.name)
        if problem.cause is ProblemCause.PAUSE and job is not None:
            # A manual pause is sent once: it was intended.
            yield Condition(f"pause:{job.id}", event, subject_of(job), *details, lasting=problem.severe)
        elif problem.cause is ProblemCause.RUN and job is not None:
            key = f"run:{job.id}:{group_id('run', problem.why)}"
            yield Condition(key, event, subject_of(job), *details, passing=True)
        elif problem.cause is ProblemCause.STALE and stream is not None:
            key = f"stale:{stream.id}:{'now' if problem.severe else 'soon'}"
            yield Condition(key, event, _subject_of_stream(stream, jobs.values()), *details)
        elif problem.cause is ProblemCause.OTHER:
            of = group_id("problem", problem.do)  # an object may have several problems
            key = f"problem:{of}:{problem.kind}:{problem.name}:{'severe' if problem.severe else 'waits'}"[:200]
            subject = Subject(problem.kind, problem.name)
            if problem.kind == "job" and job is not None:
                subject = subject_of(job)
            elif problem.kind == "stream" and stream is not None:
                subject = _subject_of_stream(stream, jobs.values())
            yield Condition(key, event, subject, *details, passing=True)


def subject_of(job: Job) -> Subject:
    """Returns a job as the subject of alerts."""
    return Subject("job", str(job.name), None if job.alert is None else tuple(job.alert))


def _subject_of_stream(stream: Stream, jobs: Iterable[Job]) -> Subject:
    """Returns a stream as the subject of alerts, which go to its job's own receivers, if it has any."""
    receivers: Sequence[str] | None = next((job.alert for job in jobs if stream.id in job.stream_ids), None)
    return Subject("stream", str(stream.name), None if receivers is None else tuple(receivers))


def failed_files(jobs: Iterable[Job], failures: Sequence[BriefFailure]) -> Iterator[Condition]:
    """Yields a condition for each cause of a job's quarantined files. Causes beyond the first 50 are one
    condition.

    Args:
        failures: newest first.
    """
    by_job: dict[str, dict[str, list[BriefFailure]]] = {}
    for failure in reversed(failures):
        if failure.state == FailureState.QUARANTINED:  # otherwise it will be retried
            causes = by_job.setdefault(failure.job_id, {})
            of = group_id(failure.kind, failure.message, failure.path)
            causes.setdefault(of if of in causes or len(causes) < _MAX_CAUSES else _OTHERS, []).append(failure)
    for job in jobs:
        for of, files in by_job.get(job.id, {}).items():
            why, do = first_line(files[-1].message)[:_MAX_WHY], f"volstream list failures --job {job.name}"
            yield Condition(
                f"{FAILED}{job.id}:{of}", AlertEvent.FAILURE, subject_of(job), True, why, do, passing=True, files=files
            )


# When a problem becomes an alert: once it has lasted, not again for a while, and when it is over. Pure.

#: Prefixes of keys: a cause of files' failures, with job and group; an alert that was sent for an object and
#: is not resolved, with its key; and the time of the first decision.
FAILED, OPEN, BEGAN = "failed:", "open:", "began"

#: A prefix of keys that earlier releases stored, in which failed files were events, not conditions.
_SEEN = "seen:"

#: Maximum number of causes of a job (the others are one cause), of causes that an alert names, and of
#: characters of each.
_MAX_CAUSES, _MAX_NAMED, _MAX_WHY = 50, 5, 300

#: Maximum characters of a key.
_MAX_KEY = 200

_OTHERS = "others"

#: With this many failures since an alert, and as many as it reported, the alert is repeated early.
_GROWN = 5


@dataclass(frozen=True)
class Pace:
    """How soon and how often alerts are sent.

    Attributes:
        after: how long a transient problem must last, and how long failed files are gathered.
        repeat: time after an alert before the same problem is sent again.
    """

    after: timedelta
    repeat: timedelta


@dataclass
class Decision:
    """What to send and to remember.

    Attributes:
        due: when to decide again although nothing changes, or None.
    """

    alerts: list[Alert] = field(default_factory=list)
    changed: dict[str, AlertCause] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    due: datetime | None = None

    def wait_until(self, when: datetime) -> None:
        """Ensures that the next decision is made by then."""
        self.due = when if self.due is None else min(self.due, when)


def judge(
    decision: Decision,
    conditions: Iterable[Condition],
    known: Mapping[str, AlertCause],
    unclear: Iterable[str],
    now: datetime,
    pace: Pace,
) -> None:
    """Decides about conditions. Adds to ``decision``.

    Args:
        known: the causes of earlier conditions.
        unclear: prefixes of the keys of currently unknown conditions. Their alerts stay unchanged.
    """
    skipped = tuple(unclear)
    vanished = {key for key in known if not key.startswith((OPEN, BEGAN, *skipped))}
    opened = {key: cause for key, cause in known.items() if key.startswith(OPEN)}
    together: dict[str, list[tuple[Condition, AlertCause, datetime]]] = {}
    for condition in conditions:
        vanished.discard(condition.key)
        opened.pop(_open_key(Alert.of(condition)), None)
        cause = known.get(condition.key) or AlertCause(condition.key, now)
        alerted = cause.alerted_on and min(cause.alerted_on, now)
        reported = min(_reported(cause), len(condition.files))
        # Clocks may be set.
        cause = replace(cause, since=min(cause.since, now), alerted_on=alerted, count=reported, note="")
        if cause != known.get(condition.key):
            decision.changed[condition.key] = cause
        more = len(condition.files) - reported
        if more if condition.files else cause.alerted_on is None or condition.lasting:
            # A job's alerts about files stay few: all that waits is sent with the first.
            of = condition.subject.name if condition.files else condition.key
            together.setdefault(of, []).append((condition, cause, _when(cause, pace, condition, more)))
    for waiting in together.values():
        until = now + pace.after if min(when for *_, when in waiting) <= now else datetime.min.replace(tzinfo=UTC)
        due = [(condition, cause) for condition, cause, when in waiting if when <= until]
        if due:
            alert = _failure(due) if due[0][0].files else Alert.of(due[0][0])
            decision.alerts.append(alert)
            decision.changed[_open_key(alert)] = _opened(due[0][0], alert, now)
        for condition, cause, when in waiting:
            if when <= until:
                decision.changed[condition.key] = replace(cause, alerted_on=now, count=len(condition.files))
                when = now + pace.repeat
            decision.wait_until(when)
    for key, cause in opened.items():
        alerted = json.loads(cause.note)
        if not alerted["condition"].startswith(skipped):
            decision.alerts.append(_resolved(alerted))
            vanished.add(key)
    decision.gone |= vanished


def _open_key(alert: Alert) -> str:
    return f"{OPEN}{alert.key}"[:_MAX_KEY]


def _opened(condition: Condition, alert: Alert, now: datetime) -> AlertCause:
    """Returns the record that is needed when the condition is over."""
    why = first_line(alert.why)[:_MAX_WHY]
    note = {"condition": condition.key, "event": alert.event, "why": why, "severe": alert.severe}
    return AlertCause(_open_key(alert), now, alerted_on=now, note=json.dumps({**note, **asdict(alert.subject)}))


def _resolved(alerted: Mapping[str, Any]) -> Alert:
    subject = Subject(alerted["kind"], alerted["name"], alerted["to"] and tuple(alerted["to"]))
    why = f"Resolved: {alerted['why']}"
    return Alert(AlertEvent(alerted["event"]), subject, alerted["severe"], why, "No action is needed.", resolved=True)


def _when(cause: AlertCause, pace: Pace, condition: Condition, more: int) -> datetime:
    """Returns when a condition is due for an alert: after a while, or once as many further files have
    failed."""
    if cause.alerted_on is None or more >= max(_GROWN, cause.count):
        return cause.since + pace.after if condition.passing else cause.since
    return cause.alerted_on + pace.repeat


def _reported(cause: AlertCause) -> int:
    """Returns how many failed files alerts have reported. Earlier releases stored the number in the note."""
    return int(json.loads(cause.note)["sent"]) if cause.note else cause.count


def _failure(due: Sequence[tuple[Condition, AlertCause]]) -> Alert:
    """Returns the alert about a job's failed files, from their causes and the numbers reported before."""
    sent = sum(cause.count for _, cause in due)
    most_first = sorted(((len(one.files) - cause.count, one) for one, cause in due), key=lambda pair: -pair[0])
    files, subject, do = sum(more for more, _ in most_first), due[0][0].subject, due[0][0].do
    examples = [
        {"kind": one.files[-1].kind, "why": one.why, "example": one.files[-1].path, "files": more}
        for more, one in most_first[:_MAX_NAMED]
    ]
    said = (
        f"{counted(files, 'more file')} quarantined, {sent + files:,} in all" if sent else f"{counted(files, 'file')} quarantined"
    )
    left = len(due) - len(examples)
    if len(due) == 1:
        why = f"{said}, such as {examples[0]['example']}: {examples[0]['why']}"
    else:
        causes = "; ".join(f"{example['files']} x {example['why']}" for example in examples)
        why = f"{said}, for {len(due)} causes: {causes}" + (f"; and {counted(left, 'other cause')}" if left else "")
    details = {"files": files, "files_in_all": sent + files, "causes": examples, "more_causes": left}
    return Alert(AlertEvent.FAILURE, subject, True, why, do, details)


# Checks a home repeatedly, and records the alerts to send in the same transaction as the decision, so that a
# restart neither loses an alert nor decides twice.

#: Interval of checks of streams, which read the logs of tables.
_STREAM_SECONDS = 60.0

#: Number of newest failures that are read.
_FAILURES = 5000

#: Returns the receivers of an alert, each with its payload.
Address = Callable[[Alert], Iterable[tuple[str, Mapping[str, Any]]]]


def recipients(settings: Settings, event: AlertEvent, subject: Subject) -> tuple[str, ...]:
    """Returns the names of the receivers of an event about an object."""
    named: tuple[str, ...] = getattr(settings, f"on_{event}") if subject.to is None else subject.to
    return named


class AlertEvaluator:
    """Checks one home. For use by one thread.

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
        self._failures: Sequence[BriefFailure] = ()
        self._marks: Sequence[Any] = ()  # of the failures

    def look(self) -> bool:
        """Checks for changes, which takes microseconds if there are none. Returns True if alerts were
        recorded.

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
        found = problems(health(self._home, streams=streams), {"engine": self._engine()})
        present, unclear = conditions(catalog, found)
        present += failed_files(jobs, self._newest_failures())
        unclear += {f"{FAILED}{failure.job_id}:" for failure in self._failures if failure.state == FailureState.RETRYING}
        if len(self._failures) == _FAILURES:  # older ones are unknown
            unclear.append(FAILED)
        if not streams:
            unclear += ["stale:", "problem:stream:"]
        # Failed files are old news for receivers that are added later.
        wanted = [each for each in present if each.files or recipients(self._settings, each.event, each.subject)]
        decision = Decision()
        if BEGAN not in known or any(key.startswith(_SEEN) for key in known):
            self._begin(decision, wanted, known, now)
        judge(decision, wanted, {**known, **decision.changed}, unclear, now, self._pace)
        sent = [alert for alert in decision.alerts if recipients(self._settings, alert.event, alert.subject)]
        new = [pair for alert in sent for pair in self._address(alert)]
        if decision.changed or decision.gone or new:
            changed = [cause for key, cause in decision.changed.items() if key not in decision.gone]
            catalog.alerts.record(changed=changed, gone=sorted(decision.gone), made=new)
        self._due = decision.due
        return bool(new)

    def _begin(self, decision: Decision, present: Sequence[Condition], known: Mapping[str, AlertCause], now: datetime) -> None:
        """Marks conditions from before alerts were configured, or before an upgrade, as sent."""
        for condition in present:
            if condition.files and condition.key not in known:
                decision.changed[condition.key] = AlertCause(condition.key, now, count=len(condition.files))
            elif condition.event in (AlertEvent.PAUSE, AlertEvent.FAILURE) and BEGAN not in known:
                decision.changed[condition.key] = AlertCause(condition.key, now, alerted_on=now)
        decision.changed[BEGAN] = known.get(BEGAN) or AlertCause(BEGAN, now)

    def _newest_failures(self) -> Sequence[BriefFailure]:
        """Returns the failures of all jobs, newest first. Reads them again only if one has changed."""
        failures = self._home.catalog.failures
        if (marks := failures.marks()) != self._marks:
            self._failures, self._marks = failures.briefly(None, limit=_FAILURES), marks
        return self._failures
