"""What is wrong with a home, and what to do about it: derived from its status. Pure.

This is the one verdict: ``status``, ``top``, ``/readyz``, the console and alerts show what is found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from volstream.base.definitions import JobState, TriggerKind
from volstream.base.model.text import counted, ended, first_line, one_line
from volstream.base.model.units import about, format_duration
from volstream.base.model.work import FailureState

#: A daemon that has run for longer keeps volumes.
_START_SECONDS = 60.0

#: A batch that takes longer, of calls without a time limit, may never end.
_LONG_SECONDS = 600.0


class ProblemCause(StrEnum):
    """The kinds of problems: a run failed as a whole, a job is paused, a stream is stale or soon will be, files failed, and all
    others."""

    RUN = "run"
    PAUSE = "pause"
    STALE = "stale"
    FILES = "files"
    OTHER = "other"


@dataclass(frozen=True)
class Problem:
    """Something that a person should look at.

    Attributes:
        severe: processing has stopped; otherwise something needs attention.
        kind, name: the object; empty: the home.
        do: what helps, as a sentence or a command.
    """

    severe: bool
    kind: str
    name: str
    why: str
    do: str
    cause: ProblemCause = ProblemCause.OTHER

    @property
    def line(self) -> str:
        """The first line of what is wrong, and what to do."""
        title = f"{self.kind} {self.name}".rstrip()
        do = f"Run: {self.do}" if self.do.startswith("volstream ") else self.do
        return one_line(f"{'■' if self.severe else '▲'} {title}: {ended(first_line(self.why))} {do}")


def problems(status: Mapping[str, Any], probed: Mapping[str, Any]) -> list[Problem]:
    """Returns what is wrong, the severe first.

    Args:
        status: see :func:`volstream.ops.inspection.status.status`; a part of it will do.
        probed: what a daemon knows of itself, also while it cannot write the catalog; empty in other processes.
    """
    wrong = [
        *_engine(status, probed),
        *_volumes(status, probed),
        *_streams(status),
        *_jobs(status, probed),
        *_functions(status),
        *_tables(status, probed),
        *_sources(status, probed),
        *_alerts(status),
        *_metastore(status),
        *_daemon(status),
    ]
    return sorted(wrong, key=lambda problem: not problem.severe)


def most_severe(wrong: Iterable[Problem]) -> dict[tuple[str, str], Problem]:
    """Returns the first, most severe problem of each object, by kind and name."""
    first: dict[tuple[str, str], Problem] = {}
    for problem in wrong:
        first.setdefault((problem.kind, problem.name), problem)
    return first


def _engine(status: Mapping[str, Any], probed: Mapping[str, Any]) -> Iterator[Problem]:
    recorded = status.get("engine")
    engine = probed.get("engine") or ({} if recorded is None else vars(recorded))
    if engine.get("reason"):
        what, do = "The Spark engine", "The engine's log is in the home's log/ folder."
        if engine.get("server"):
            what, do = f"The Spark server {engine['server']}", "To check it: volstream doctor --cluster"
        yield Problem(True, "engine", "", f"{what} is down: {engine['reason']}", f"Jobs wait; the daemon retries. {do}")


def _daemon(status: Mapping[str, Any]) -> Iterator[Problem]:
    if jobs := status.get("unattended", ()):
        named = ", ".join(jobs[:3]) + (" ..." if len(jobs) > 3 else "")
        idle = f"so nothing starts {counted(len(jobs), 'job')} with a trigger: {named}."
        engine = status.get("engine")
        if engine is None or engine.kind != "daemon":
            yield Problem(False, "daemon", "", f"No daemon is running, {idle}", "volstream daemon")
        elif engine.up_seconds > _START_SECONDS:
            why = f"The daemon, pid {engine.pid}, keeps no volume, {idle}"
            do = "Its log and /readyz say why, such as a full disk; or it serves another virtual cluster."
            yield Problem(True, "daemon", "", why, do)
    if crowd := status.get("crowd"):
        since = about((datetime.now(UTC) - crowd["since"]).total_seconds())
        taken = f"{', '.join(crowd['running'])} took all places more than {since} ago."
        do = "If one hangs, limit its calls: volstream alter-job NAME --timeout 10m. Otherwise raise max_parallel_jobs."
        yield Problem(True, "daemon", "", f"{counted(crowd['waiting'], 'job')} or more cannot begin: {taken}", do)


def _volumes(status: Mapping[str, Any], probed: Mapping[str, Any]) -> Iterator[Problem]:
    for volume in _with(status.get("volumes", ()), "volume", "trouble", probed.get("failing_volumes", {})):
        name, held = volume["volume"], volume.get("held_removals")
        if volume["trouble"]:
            yield Problem(True, "volume", name, volume["trouble"], f"volstream doctor {name}")
        if volume.get("quiet"):
            expected = format_duration(volume["expect_every"])
            why = f"No file has arrived or changed for {about(volume['quiet'])}; one is expected every {expected}."
            do = f"Check what writes the files. To change the interval: volstream alter-volume {name} --expect-every 2h"
            yield Problem(False, "volume", name, why, do)
        if held:
            why = f"{counted(held, 'file')} missing from the store, more than the volume's limit: kept until you confirm."
            do = f"If they were deleted on purpose: volstream refresh {name} --accept-removals"
            yield Problem(False, "volume", name, why, do)


def _streams(status: Mapping[str, Any]) -> Iterator[Problem]:
    for stream in status.get("streams", ()):
        name = stream["stream"]
        if stream["stale"]:
            do = (
                f"To continue from now: volstream advance-stream {name}; "
                f"from a version: volstream reset-stream {name} --to-version N"
            )
            yield Problem(True, "stream", name, stream["note"], do, ProblemCause.STALE)
        elif stream["note"]:
            yield Problem(True, "stream", name, stream["note"], f"volstream describe stream {name}")
        elif stream["stale_soon"]:
            seconds = (stream["stale_after"] - datetime.now(UTC)).total_seconds()
            when = f"in {about(seconds)}" if seconds > 0 else "at any time"
            why = f"Changes that it has not consumed may be deleted {when}; then it can no longer be read."
            do = "Run its job, or keep the history of its table for longer."
            yield Problem(False, "stream", name, why, do, ProblemCause.STALE)


def _jobs(status: Mapping[str, Any], probed: Mapping[str, Any]) -> Iterator[Problem]:
    for job in _with(status.get("jobs", ()), "job", "trouble", probed.get("failing_jobs", {})):
        stopped = _stopped(job)
        if stopped is not None:
            yield stopped
        if job.get("wrong"):
            why = ended(f"Its table {job['wrong']}")
            yield Problem(False, "job", job["job"], why, f"volstream verify {job['job']} --fix")
        if job.get("left"):
            do = "Each run retries. Free space for the file, or grant the missing permission."
            yield Problem(False, "job", job["job"], f"A loaded file could not be moved out of its volume: {job['left']}", do)
        seconds = (datetime.now(UTC) - job["endless"]).total_seconds() if job.get("endless") else 0.0
        if seconds > _LONG_SECONDS:
            why = f"Its batch has been running for {about(seconds)}, and its calls have no time limit."
            do = f"volstream alter-job {job['job']} --timeout 10m"
            if job["unit"] is None:
                why, do = f"Its statement has been running for {about(seconds)}.", f"To end it: volstream pause {job['job']}"
            yield Problem(False, "job", job["job"], why, do)
        files = _files(job)
        if files is not None:
            yield files


def _stopped(job: Mapping[str, Any]) -> Problem | None:
    """Returns why a job as a whole does not go on."""
    name = job["job"]
    again = f"volstream run-job {name}" if job["trigger"] == TriggerKind.MANUAL else f"volstream describe job {name}"
    if job["state"] == JobState.PAUSED:
        why = f"It paused itself: {job['reason']}" if job["reason"] else "It was paused manually."
        return Problem(bool(job["reason"]), "job", name, why, f"volstream resume {name}", ProblemCause.PAUSE)
    if job["code"]:
        do = f"Restore it, or name another: volstream alter-job {name} --function FILE.py:FUNCTION"
        return Problem(True, "job", name, f"Its function is missing: {job['code']}", do, ProblemCause.RUN)
    if job["trouble"]:
        why, _, remedy = job["trouble"].partition("\n")
        return Problem(True, "job", name, f"Its run failed: {why}", remedy or again, ProblemCause.RUN)
    if job["interrupted"]:
        why = "Its last run was interrupted: the process died, or could not write the catalog."
        return Problem(True, "job", name, why, again, ProblemCause.RUN)
    return None


def _files(job: Mapping[str, Any]) -> Problem | None:
    """Returns how many files of a job failed."""
    lost, trying = (job["failures"].get(state, 0) for state in (FailureState.QUARANTINED, FailureState.RETRYING))
    if not lost and not trying:
        return None
    manual = job["trigger"] == TriggerKind.MANUAL
    retried = f"will be retried{' by the next run' if manual else ''}."
    said = [f"{counted(lost, job['unit'])} quarantined."] if lost else []
    said += [f"{trying} more {retried}" if lost else f"{counted(trying, job['unit'])} failed and {retried}"] if trying else []
    do = f"volstream list failures --job {job['job']}"
    return Problem(False, "job", job["job"], " ".join(said), do, ProblemCause.FILES)


def _functions(status: Mapping[str, Any]) -> Iterator[Problem]:
    for function in status.get("functions", ()):
        if function["code"]:
            do = 'Restore it, or create it again: volstream sql "CREATE OR REPLACE FUNCTION ..."'
            yield Problem(True, "function", function["function"], f"Its code is missing: {function['code']}", do)


def _tables(status: Mapping[str, Any], probed: Mapping[str, Any]) -> Iterator[Problem]:
    for table in _with(status.get("tables", ()), "table", "note", probed.get("failing_tables", {})):
        if table["note"]:
            do = "The rows that have arrived are safe; the daemon retries."
            yield Problem(True, "table", table["table"], table["note"], do)


def _sources(status: Mapping[str, Any], probed: Mapping[str, Any]) -> Iterator[Problem]:
    for source in _with(status.get("sources", ()), "name", "error", probed.get("failing_sources", {})):
        if source["error"]:
            yield Problem(True, "source", source["name"], source["error"], f"volstream describe source {source['name']}")


def _alerts(status: Mapping[str, Any]) -> Iterator[Problem]:
    for receiver in status.get("alerts", ()):
        why = f"{counted(receiver['waiting'], 'alert')} could not be delivered: {receiver['error']}"
        yield Problem(True, "receiver", receiver["receiver"], why, f"volstream alert test {receiver['receiver']}")


def _metastore(status: Mapping[str, Any]) -> Iterator[Problem]:
    metastore = status.get("metastore", {})
    if metastore.get("trouble"):
        do = "The daemon retries. If the metastore has another table of the same name, drop one of the two."
        yield Problem(False, "metastore", metastore["name"], metastore["trouble"], do)


def _with(rows: Iterable[Mapping[str, Any]], name: str, why: str, reasons: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    """Yields rows with the reasons that the daemon knows for some, by name."""
    for row in rows:
        yield {**row, why: reasons.get(row[name]) or row[why]}
