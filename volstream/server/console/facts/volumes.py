"""A volume: its directory folder by folder, its refreshes, and the history of one of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from volstream.base.definitions import Volume
from volstream.base.model.names import Name
from volstream.catalog.conditions import ConditionKind
from volstream.changes.directory import browse
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.streams.volume_source import VolumeSource
from volstream.files.volumes.definitions import jobs_on
from volstream.jobs.home import Home
from volstream.ops.inspection import details
from volstream.ops.inspection.file_history import tell
from volstream.ops.inspection.problems import problems
from volstream.ops.inspection.status import volume_status
from volstream.server.console.query import Query

#: Refreshes, listings and rejected messages that are shown with a volume.
_RECENT = 20


def volume(home: Home, name: str, query: Query, probed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a volume's state, a part of its directory, and its newest refreshes.

    Raises:
        NotFoundError: there is no such volume.
    """
    catalog = home.catalog
    definition = catalog.volumes.get(Name.parse(name))
    refreshes = catalog.refreshes.newest(definition.id, before=query.number("before"), limit=_RECENT)
    reconciled = definition.reconciled_on
    status = volume_status(home, definition, catalog.conditions.causes(ConditionKind.VOLUME))
    return {
        "volume": details.described(home, definition),
        "status": status,
        "problem": next(iter(problems({"volumes": [status]}, probed)), None),
        "lag_seconds": None if reconciled is None else (datetime.now(UTC) - reconciled).total_seconds(),
        "jobs": [str(job.name) for job in jobs_on(catalog, definition)],
        "directory": _directory(home, definition, query),
        "refreshes": refreshes,
        "refreshes_before": refreshes[-1].number if len(refreshes) == _RECENT else None,
        "listings": catalog.refreshes.reconciles(definition.id, limit=5),
        "rejected": catalog.refreshes.rejected(definition.id, limit=_RECENT),
    }


def file(home: Home, name: str, query: Query) -> dict[str, Any]:
    """Returns all that happened to a file: its versions, batches, attempts, failures and rows, oldest first.

    Raises:
        NotFoundError: there is no such volume, or no trace of the file.
    """
    path = query.text("path") or ""
    definition = home.catalog.volumes.get(Name.parse(name))
    return {
        "volume": str(definition.name),
        "file": path,
        "folder": path.rpartition("/")[0],
        "events": tell(home, str(definition.name), path),
    }


def snapshot_of(home: Home, definition: Volume) -> Snapshot | None:
    """Returns a volume's directory; None if it was never listed."""
    return VolumeSource(home.catalog, home.warehouse, definition.id).find()


def _directory(home: Home, definition: Volume, query: Query) -> dict[str, Any]:
    """Returns the entries of a folder, or the files whose paths contain a text."""
    prefix, text, after = query.text("prefix") or "", query.text("search"), query.text("after")
    snapshot = snapshot_of(home, definition)
    part = browse.DirectoryPage([], None)
    if snapshot is not None and text is not None:
        part = browse.search(snapshot, text, after, query.limit)
    elif snapshot is not None:
        part = browse.children(snapshot, prefix, after, query.limit)
    return {
        "prefix": prefix,
        "search": text,
        "after": after,
        "entries": [asdict(entry) for entry in part.entries],
        "next": part.next,
    }
