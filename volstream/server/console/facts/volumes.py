"""A volume: its directory folder by folder, its refreshes, and the history of one of its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from volstream.base.definitions import Volume
from volstream.base.model.work import AuditEntry, Completeness, Refresh
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.refreshes import RejectedMessage
from volstream.changes.directory import browse
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.streams.sources import VolumeSource
from volstream.files.volumes.definitions import jobs_on
from volstream.home import Home
from volstream.ops.inspection import details
from volstream.ops.inspection.file_history import FileEvent, tell
from volstream.ops.inspection.status import Problem, problems, volume_status
from volstream.server.console.facts import FEW_TASKS, PageRequest
from volstream.server.console.facts.rows import VolumeRow
from volstream.server.console.previews import FilePreview, preview
from volstream.server.console.query import Query

#: Refreshes, listings and rejected messages that are shown with a volume.
_RECENT = 20


@dataclass(frozen=True)
class DirectoryPart:
    """Entries of a folder, or of files whose paths contain a text, after one of them."""

    prefix: str
    search: str | None
    after: str | None
    entries: Sequence[browse.Entry]
    next: str | None


@dataclass(frozen=True)
class VolumeFacts:
    """A volume.

    Attributes:
        volume: its definition, and what ``volstream describe`` shows.
        lag_seconds: since its last full listing; None: there was none.
        refreshes_before: where the next page of refreshes begins.
    """

    volume: Mapping[str, Any]
    status: VolumeRow
    problem: Problem | None
    lag_seconds: float | None
    jobs: Sequence[str]
    directory: DirectoryPart
    refreshes: Sequence[Refresh]
    refreshes_before: int | None
    listings: Sequence[Completeness]
    rejected: Sequence[RejectedMessage]
    tasks: Sequence[AuditEntry]


@dataclass(frozen=True)
class FileFacts:
    """A file, and what happened to it, oldest first."""

    volume: str
    file: str
    folder: str
    events: Sequence[FileEvent]
    preview: FilePreview


def volume(asked: PageRequest) -> VolumeFacts:
    """A volume: its state, a part of its directory, its newest refreshes."""
    home, catalog, definition = asked.home, asked.home.catalog, asked.volume
    refreshes = catalog.refreshes.newest(definition.id, before=asked.query.number("before"), limit=_RECENT)
    listed = definition.last_listing
    status = volume_status(home, definition, catalog.conditions.causes(ConditionKind.VOLUME))
    return VolumeFacts(
        volume=details.described(home, definition),
        status=VolumeRow(**status),
        problem=next(iter(problems({"volumes": [status]}, asked.probed())), None),
        lag_seconds=None if listed is None else (datetime.now(UTC) - listed).total_seconds(),
        jobs=[str(job.name) for job in jobs_on(catalog, definition)],
        directory=_directory(home, definition, asked.query),
        refreshes=refreshes,
        refreshes_before=refreshes[-1].number if len(refreshes) == _RECENT else None,
        listings=catalog.refreshes.reconciles(definition.id, limit=5),
        rejected=catalog.refreshes.rejected(definition.id, limit=_RECENT),
        tasks=asked.audit.tasks(f"volume {definition.name}", limit=FEW_TASKS),
    )


def file(asked: PageRequest) -> FileFacts:
    """The history of a file: versions, batches, attempts, failures, rows. Raises NotFoundError."""
    path, name = asked.query.text("path") or "", str(asked.volume.name)
    return FileFacts(name, path, path.rpartition("/")[0], tell(asked.home, name, path), preview(asked.home, name, path))


def snapshot_of(home: Home, definition: Volume) -> Snapshot | None:
    """Returns a volume's directory; None if it was never listed."""
    return VolumeSource(home.catalog, home.warehouse, definition.id).find()


def _directory(home: Home, definition: Volume, query: Query) -> DirectoryPart:
    """Returns the entries of a folder, or the files whose paths contain a text."""
    prefix, text, after = query.text("prefix") or "", query.text("search"), query.text("after")
    snapshot = snapshot_of(home, definition)
    part = browse.DirectoryPage([], None)
    if snapshot is not None and text is not None:
        part = browse.search(snapshot, text, after, query.limit)
    elif snapshot is not None:
        part = browse.children(snapshot, prefix, after, query.limit)
    return DirectoryPart(prefix, text, after, part.entries, part.next)
