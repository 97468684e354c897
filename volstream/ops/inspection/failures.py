"""Failed files for people: what happens next, what they can do, and which failures are the same."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from volstream.base.definitions import FileJob
from volstream.base.model.text import cause, first_line
from volstream.base.model.work import Failure
from volstream.catalog.failures import BriefFailure
from volstream.jobs.runs.advice import automatic_action, remedy
from volstream.ops.inspection.details import values

if TYPE_CHECKING:
    from volstream.home import Home

#: Characters that a file's name has to have to be left out of a message: a shorter one may be part of any word.
_MIN_NAME = 4


def explained(home: Home, failures: Iterable[Failure]) -> list[dict[str, Any]]:
    """Returns the attributes of failures, with the job's name and unit, ``next``, ``why`` and ``remedy``."""
    catalog = home.catalog
    jobs = {job.id: job for job in catalog.jobs.list() if isinstance(job, FileJob)}
    volumes = {volume.id: str(volume.name) for volume in catalog.volumes.list()}
    of_stream = {stream.id: volumes.get(stream.source_id) for stream in catalog.streams.list()}
    now = datetime.now(UTC)
    return [
        {
            **values(failure),
            "job": str(jobs[failure.job_id].name),
            "unit": jobs[failure.job_id].unit,
            "next": automatic_action(failure, jobs[failure.job_id], now),
            "why": first_line(failure.message),
            "remedy": remedy(failure, jobs[failure.job_id], of_stream.get(jobs[failure.job_id].stream_id)),
        }
        for failure in failures
        if failure.job_id in jobs
    ]


@dataclass(frozen=True)
class FailureGroup:
    """Failures of a job that have, as far as their messages tell, one cause.

    Attributes:
        id: stays the same as long as the error does.
        why: the first line of their messages, with ``*`` for what differs.
        ids: of the failures, newest first.
    """

    id: str
    kind: str
    why: str
    ids: Sequence[int]
    paths: Sequence[str]
    states: dict[str, int]
    newest: datetime
    job_id: str


def grouped(failures: Iterable[BriefFailure]) -> list[FailureGroup]:
    """Groups failures by job, kind and message, in which numbers, paths and quoted text do not count; the largest group first.

    Args:
        failures: newest first.
    """
    by_id: dict[tuple[str, str], list[BriefFailure]] = {}
    for failure in failures:
        by_id.setdefault((failure.job_id, group_id(failure.kind, failure.message, failure.path)), []).append(failure)
    groups = [_group(identity, members) for (_, identity), members in by_id.items()]
    return sorted(groups, key=lambda group: (-len(group.ids), group.why))


def group_id(kind: str, message: str, path: str = "") -> str:
    """Returns the id of the group that a failure belongs to; the file's own path, or name, in the message does not count."""
    return _id(kind, cause(_without(message, path)))


def common_message(failures: Iterable[tuple[str, str]]) -> str:
    """Returns the first line of the messages of a group, from messages and paths; with ``*`` for what differs."""
    messages = {first_line(message): path for message, path in failures}
    first = next(iter(messages.items()))
    return first[0] if len(messages) == 1 else cause(_without(*first))


def _without(message: str, path: str) -> str:
    """Returns the first line of a message without the file's own path and name."""
    line = first_line(message)
    for named in (path, path.rpartition("/")[2]):
        line = line.replace(named, "*") if len(named) >= _MIN_NAME else line
    return line


@functools.lru_cache(1000)
def _id(kind: str, pattern: str) -> str:
    return hashlib.sha256(f"{kind}\0{pattern}".encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _group(identity: str, members: Sequence[BriefFailure]) -> FailureGroup:
    states: dict[str, int] = {}
    for failure in members:
        states[failure.state] = states.get(failure.state, 0) + 1
    first = members[0]
    ids, paths = [member.id for member in members], [member.path for member in members]
    why = common_message((member.message, member.path) for member in members)
    return FailureGroup(identity, first.kind, why, ids, paths, states, first.failed_on, first.job_id)
