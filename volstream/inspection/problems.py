"""What is wrong with a home, and what to do about it: derived from its status. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from volstream.model.text import counted, one_line
from volstream.model.work import FailureState


@dataclass(frozen=True)
class Problem:
    """Something that a person should look at.

    Attributes:
        severe: data stands still; otherwise something waits for a decision.
        kind, name: the object; empty: the home.
        do: what helps, as a sentence or a command.
    """

    severe: bool
    kind: str
    name: str
    why: str
    do: str

    @property
    def line(self) -> str:
        """What is wrong, and what to do, in one line."""
        title = f"{self.kind} {self.name}".rstrip()
        do = f"Run: {self.do}" if self.do.startswith("volstream ") else self.do
        return one_line(f"{'■' if self.severe else '▲'} {title}: {self.why} {do}")


def problems(status: Mapping[str, Any], probed: Mapping[str, Any]) -> list[Problem]:
    """Returns what is wrong, the severe first.

    Args:
        status: see :func:`volstream.inspection.status.status`.
        probed: what the daemon says about itself in ``/readyz``; empty without a daemon.
    """
    found = [
        *_engine(probed),
        *_volumes(status, probed),
        *_streams(status),
        *_jobs(status, probed),
        *_tables(status),
        *_sources(status, probed),
        *_alerts(status),
    ]
    return sorted(found, key=lambda one: not one.severe)


def _engine(probed: Mapping[str, Any]) -> Iterator[Problem]:
    engine = probed.get("engine", {})
    if engine.get("reason"):
        do = "Jobs wait, and the daemon tries again. The log of the engine is in the home's folder log/."
        yield Problem(True, "engine", "", f"The Spark engine is {engine['state']}: {engine['reason']}", do)


def _volumes(status: Mapping[str, Any], probed: Mapping[str, Any]) -> Iterator[Problem]:
    failing = dict(probed.get("failing_volumes", {}))
    for one in status["volumes"]:
        name, held = one["volume"], one["held_removals"]
        trouble = failing.pop(name, None) or one["trouble"]
        if trouble:
            yield Problem(True, "volume", name, trouble, f"volstream doctor {name}")
        if held:
            why = f"{counted(held, 'file')} gone from the store, more than the volume's limit: kept until you confirm."
            do = f"If they were deleted on purpose: volstream refresh {name} --accept-removals"
            yield Problem(False, "volume", name, why, do)
    for name, reason in failing.items():
        yield Problem(True, "volume", name, reason, f"volstream doctor {name}")


def _streams(status: Mapping[str, Any]) -> Iterator[Problem]:
    for one in status["streams"]:
        if one["note"]:
            do = f"volstream reset-stream {one['stream']}"
            yield Problem(True, "stream", one["stream"], one["note"], do)


def _jobs(status: Mapping[str, Any], probed: Mapping[str, Any]) -> Iterator[Problem]:
    failing = probed.get("failing_jobs", {})
    for one in status["jobs"]:
        name, failures = one["job"], one["failures"]
        if one["reason"]:
            yield Problem(True, "job", name, f"It paused itself: {one['reason']}", f"volstream resume {name}")
        elif name in failing:
            yield Problem(True, "job", name, f"Its runs fail: {failing[name]}", f"volstream logs {name}")
        lost = failures.get(FailureState.QUARANTINED, 0)
        trying = failures.get(FailureState.RETRYING, 0)
        if lost:
            why = f"{counted(lost, 'file')} failed for good."
            yield Problem(False, "job", name, why, f"volstream list failures --job {name}")
        elif trying:
            why = f"{counted(trying, 'file')} failed and will be retried."
            yield Problem(False, "job", name, why, f"volstream list failures --job {name}")


def _tables(status: Mapping[str, Any]) -> Iterator[Problem]:
    for one in status["tables"]:
        if one["note"]:
            do = "The rows that have arrived are safe; the daemon tries again."
            yield Problem(True, "table", one["table"], one["note"], do)


def _sources(status: Mapping[str, Any], probed: Mapping[str, Any]) -> Iterator[Problem]:
    failing = {**{one["name"]: one["error"] for one in status["sources"]}, **probed.get("failing_sources", {})}
    for name, reason in failing.items():
        if reason:
            yield Problem(True, "source", name, reason, f"volstream describe source {name}")


def _alerts(status: Mapping[str, Any]) -> Iterator[Problem]:
    for one in status["alerts"]:
        why = f"{counted(one['waiting'], 'alert')} could not be delivered: {one['error']}"
        yield Problem(True, "receiver", one["receiver"], why, f"volstream alert test {one['receiver']}")
