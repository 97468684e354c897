"""Restores a home from a backup: first its tables, then its catalog in one transaction, so that it exists completely or not."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from volstream.base.config import Settings
from volstream.base.processes import new_owner
from volstream.catalog import Catalog, upkeep
from volstream.catalog.leases import RESTORE, lease
from volstream.errors import InvalidStateError, InvalidValueError, ObjectInUseError
from volstream.ops.backup.make import CATALOG, WAREHOUSE
from volstream.ops.backup.manifest import Manifest
from volstream.tables.delta import places
from volstream.tables.delta.copying import copy_folder

#: Folders that a warehouse may have before a restore: leftovers of processes, and what names the home's catalog.
_LEFTOVERS = (places.STAGING, "_listings", places.CATALOG)

#: How folders with a copy of a backup's catalog begin.
SCRATCH = "volstream-restore-"


def restore(catalog: Catalog, settings: Settings, folder: Path, progress: Callable[[str], object] = lambda _: None) -> Manifest:
    """Fills a new home, with the catalog and warehouse of its settings, from the backup in ``folder``.

    Work in progress at the time of the backup is recovered by the next run of each job, as after a crash.

    Args:
        progress: called with the name of what is being copied.

    Raises:
        InvalidValueError: the folder is not a finished backup, or has links or pipes in it.
        InvalidStateError: the home's catalog or warehouse is not empty.
        ObjectInUseError: another process is restoring the home.
        StorageError, DependencyError, DiskError, CatalogError: reading or writing failed.
    """
    _check_kinds(folder)
    manifest = Manifest.read(folder)
    # What is removed after a failure must not be what somebody else has restored.
    with lease(catalog.leases, RESTORE, new_owner(), "restoring a backup", settings.lease_seconds) as other:
        if other is not None:
            raise ObjectInUseError("Another process is restoring a backup into this home.", "Wait for it to end.")
        _check_empty(catalog, settings)
        _fill(catalog, settings.warehouse_path, folder, manifest, progress)
    return manifest


def _fill(catalog: Catalog, warehouse: str, folder: Path, manifest: Manifest, progress: Callable[[str], object]) -> None:
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as scratch:
        try:
            # An older catalog is migrated in the copy; the backup stays unchanged.
            shutil.copyfile(folder / CATALOG, f"{scratch}/{CATALOG}")
        except FileNotFoundError:
            raise InvalidValueError(
                f"The backup in {folder} is damaged: it has no {CATALOG}.", "Restore another backup."
            ) from None
        with closing(Catalog(f"sqlite:///{scratch}/{CATALOG}")) as kept, kept.database.reading() as rows:
            try:
                progress("tables")
                copy_folder(f"{folder.resolve()}/{WAREHOUSE}", warehouse)
                progress("catalog")
                with catalog.database.transaction() as transaction:
                    _check_rows(catalog, upkeep.is_empty(transaction))
                    upkeep.copy(rows, transaction, _Moved(manifest.warehouse, warehouse))
            except BaseException:
                for name in places.inside(warehouse):
                    if name not in _LEFTOVERS:
                        places.remove(f"{warehouse}/{name}")
                raise


def _check_kinds(folder: Path) -> None:
    """Raises InvalidValueError if something in a backup is a link, whose target would be copied, or a pipe or device, which may
    never end: a backup has none."""
    for parent, folders_in, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders_in, *files)):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                what = "a link" if path.is_symlink() else "neither a file nor a folder"
                raise InvalidValueError(
                    f"The backup in {folder} was changed: {path.relative_to(folder)} is {what}.", "Restore another backup."
                )


def _check_empty(catalog: Catalog, settings: Settings) -> None:
    with catalog.database.reading() as transaction:
        _check_rows(catalog, upkeep.is_empty(transaction))
    present = [name for name in places.inside(settings.warehouse_path) if name not in _LEFTOVERS]
    if present:
        raise InvalidStateError(
            f"The warehouse {settings.warehouse_path} already has {', '.join(sorted(present))}.",
            "Restore into a new home: --home DIR.",
        )


def _check_rows(catalog: Catalog, empty: bool) -> None:
    if not empty:
        raise InvalidStateError(
            f"The catalog {catalog.database.describe()} is already in use.", "Restore into a new home: --home DIR."
        )


class _Moved:
    """Converts catalog rows so that their locations refer to the new warehouse, and no run is in progress."""

    def __init__(self, before: str, now: str) -> None:
        self._before = f"{before}/"
        self._now = f"{now}/"

    def __call__(self, table: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
        if table == "plans":
            return {**row, "location": self._place(row["location"])}
        if table == "jobs" and row["last_started"] is not None and row["last_ended"] is None:
            return {**row, "last_ended": row["last_started"], "last_outcome": "running when the backup was made"}
        if table == "intents":
            return {**row, "targets": [{**target, "location": self._place(target["location"])} for target in row["targets"]]}
        return row

    def _place(self, location: str) -> str:
        return self._now + location.removeprefix(self._before) if location.startswith(self._before) else location
