"""What is wrong at present, and the alerts about it. Values only; the payload is documented in docs/operations/alerts.md."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from volstream.base.model.text import one_line

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
