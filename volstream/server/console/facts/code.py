"""The versions of a job's code, side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from volstream.base.definitions import FileJob
from volstream.catalog.reports import CodeVersion
from volstream.errors import NotFoundError, VolstreamError
from volstream.jobs.rules.version import version_of
from volstream.ops.inspection.details import described_code
from volstream.server.console.facts import PageRequest

#: Lines of a difference that are shown.
_MAX_LINES = 2_000


@dataclass(frozen=True)
class ChangedFile:
    """A module of two versions, as the lines of a unified diff."""

    path: str
    lines: Sequence[str]


@dataclass(frozen=True)
class CodeFacts:
    """The versions of a job's code, and what differs between two of them.

    Attributes:
        versions: the newest first, each with the number of files that have its rows.
        edited: the code as it is now, which has not run yet; None: the newest version is.
        old, new: the two that are compared; None: there are none.
        changes: arguments, columns and environments that differ, before and after.
        files: modules that differ; None: the source of one of the two is not kept.
    """

    job: str
    versions: Sequence[dict[str, Any]]
    edited: CodeVersion | None
    old: CodeVersion | None
    new: CodeVersion | None
    changes: Sequence[tuple[str, str, str]]
    files: Sequence[ChangedFile] | None


def code(asked: PageRequest) -> CodeFacts:
    """The versions of a job's code, with the number of files that each made rows of, and what differs between two of them."""
    job, query = asked.job, asked.query
    kept = {one.number: one for one in asked.home.catalog.codes.versions(job.id)}
    newest = max(kept, default=0)
    numbers = query.number("old") or newest - 1, query.number("new") or newest
    if unknown := [number for number in numbers if number > newest]:
        raise NotFoundError(f"The code of {job.name} has no version {unknown[0]}.", f"The newest is {newest}.")
    old, new = (kept.get(number) for number in numbers)
    edited = _edited(asked, kept.values())
    if edited is not None and query.number("new") is None:
        old, new = kept.get(query.number("old") or newest), edited
    return CodeFacts(
        str(job.name),
        described_code(asked.home, job)["code_versions"] or [],
        edited,
        old,
        new,
        [] if old is None or new is None else _changes(old, new),
        None if old is None or new is None else _files(old, new),
    )


def _edited(asked: PageRequest, kept: Collection[CodeVersion]) -> CodeVersion | None:
    job = asked.job
    if not kept or not isinstance(job, FileJob):
        return None
    try:
        now = version_of(asked.home.settings, job)
    except VolstreamError:  # the job's page says why
        return None
    return None if now.digest in {one.digest for one in kept} else now


def _changes(old: CodeVersion, new: CodeVersion) -> list[tuple[str, str, str]]:
    names = sorted({*old.arguments, *new.arguments})
    pairs = [
        ("Function", old.function, new.function),
        ("Columns", old.returns, new.returns),
        ("Environment", old.environment or "", new.environment or ""),
        *((f"Argument {name}", old.arguments.get(name, ""), new.arguments.get(name, "")) for name in names),
    ]
    return [one for one in pairs if one[1] != one[2]]


def _files(old: CodeVersion, new: CodeVersion) -> list[ChangedFile] | None:
    if old.source is None or new.source is None:
        return None
    changed = []
    for path in sorted({*old.source, *new.source}):
        before, after = (side.get(path, "").splitlines() for side in (old.source, new.source))
        if before != after:
            lines = list(unified_diff(before, after, lineterm="", n=3))[2:]
            changed.append(ChangedFile(path, lines[:_MAX_LINES]))
    return changed
