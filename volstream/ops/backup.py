"""Backups: copies of homes that are made while work goes on, and homes restored from them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from volstream.base.config import Settings
from volstream.base.privacy import make_directory
from volstream.base.processes import new_owner
from volstream.catalog import Catalog, upkeep
from volstream.catalog.leases import RESTORE, lease
from volstream.changes.directory import table
from volstream.changes.directory.snapshot import Snapshot
from volstream.errors import DependencyError, InvalidStateError, InvalidValueError, ObjectInUseError
from volstream.jobs.batches.ledger import STORES
from volstream.tables.delta import places
from volstream.tables.delta.copying import copy_folder, copy_table
from volstream.tables.delta.opened import newest_version
from volstream.tables.delta.places import replace_file
from volstream.tables.tails.tail import TailedTable

# The description of a backup. It is written last, so that a folder without it is not a backup.

_FILE = "backup.json"


@dataclass(frozen=True)
class Manifest:
    """One backup.

    Attributes:
        created_on: time of the state in the backup.
        volstream: version that created it.
        home, warehouse: original locations; plans and open attempts refer to places in the warehouse.
        tables: Delta version of each table, by its path in the warehouse.
        rows: number of catalog rows, by table.
        linked: tables outside the warehouse, which are not in the backup.
    """

    created_on: datetime
    volstream: str
    home: str
    warehouse: str
    tables: dict[str, int]
    rows: dict[str, int]
    linked: list[str]

    def write(self, folder: Path) -> None:
        """Turns ``folder`` into a backup, after everything else in it has reached the disk."""
        os.sync()
        value = asdict(self) | {"created_on": self.created_on.isoformat()}
        replace_file(str(folder / _FILE), json.dumps(value, indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads the manifest of the backup in ``folder``. Raises InvalidValueError if it is missing or
        unfinished."""
        try:
            value: dict[str, Any] = json.loads((folder / _FILE).read_bytes())
            return cls(**value | {"created_on": datetime.fromisoformat(value["created_on"])})
        except FileNotFoundError:
            raise InvalidValueError(
                f"{folder} is not a finished backup: it has no {_FILE}.", "Name a folder created by volstream backup."
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidValueError(f"{folder / _FILE} cannot be read: {error}.") from None


# Takes a backup while daemons and jobs are running.
#
# A backup has what a crash at one moment would have left, from which volstream recovers anyway. Every commit
# to a table is announced in the catalog first and acknowledged there afterwards. Blocking writes to the
# catalog, for a moment, therefore fixes its rows and the newest versions of all tables. Their files do not
# change, and are copied afterwards.

#: The catalog file of a backup, whatever database the home uses.
CATALOG = "catalog.db"

#: The folder of a backup's tables and plans, laid out like a warehouse.
WAREHOUSE = "warehouse"

SETTINGS = "volstream.toml"


def make_backup(
    catalog: Catalog, settings: Settings, folder: Path, progress: Callable[[str], object] = lambda _: None
) -> Manifest:
    """Takes a backup of a home.

    Args:
        folder: absolute; created; must be missing or empty.
        progress: called with each table before it is copied.

    Raises:
        InvalidValueError: the folder is not empty, or is in the warehouse.
        StorageError, DependencyError, DiskError, CatalogError: reading or writing failed. The folder is as
            before.
    """
    present = os.path.exists(folder)  # False also of a name that is too long
    _prepare(folder, settings)
    try:
        manifest = _copy_home(catalog, settings, folder, progress)
        manifest.write(folder)
    except BaseException:
        for entry in folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if not present:
            folder.rmdir()
        raise
    return manifest


def _copy_home(catalog: Catalog, settings: Settings, folder: Path, progress: Callable[[str], object]) -> Manifest:
    warehouse, target = settings.warehouse_path, f"{folder}/{WAREHOUSE}"
    with ExitStack() as stack:
        with catalog.database.frozen():
            rows = stack.enter_context(catalog.database.snapshot())
            created_on = datetime.now(UTC)
            sources = [*_tables(catalog, warehouse)]
            for plan in catalog.consumptions.open_plans():  # their files are deleted when they end
                copy_folder(warehouse, target, f"_plans/{plan}")
        copied = Catalog(f"sqlite:///{folder / CATALOG}")
        stack.callback(copied.close)
        with copied.database.transaction() as transaction:
            counts = upkeep.copy(rows, transaction)
    tables: dict[str, int] = {}
    for location, newest, owner in sources:
        name = location.removeprefix(f"{warehouse}/")
        progress(name)
        with owner.explaining():
            copy_table(location, newest, f"{target}/{name}")
        tables[name] = newest
    own = settings.home / SETTINGS
    if own.exists():
        (folder / SETTINGS).touch(mode=0o600)
        (folder / SETTINGS).write_bytes(own.read_bytes())
    return Manifest(
        created_on, version("volstream"), str(settings.home), warehouse, tables, counts, sorted(map(str, catalog.links.list()))
    )


def _prepare(folder: Path, settings: Settings) -> None:
    try:
        if os.path.exists(folder) and any(folder.iterdir()):
            raise InvalidValueError(f"{folder} is not empty.", "Name a folder that does not exist yet.")
    except NotADirectoryError:
        raise InvalidValueError(f"{folder} is not a folder.") from None
    resolved = str(folder.resolve())
    if f"{resolved}/".startswith(f"{settings.warehouse_path}/"):
        raise InvalidValueError(f"{folder} is in the warehouse that is to be copied.", "Name a folder elsewhere.")
    try:
        make_directory(folder)
    except OSError as error:
        raise InvalidValueError(f"{folder} cannot be created: {error.strerror}.") from None


@dataclass(frozen=True)
class _Owner:
    """What a table belongs to, and what ends its part in backups."""

    what: str
    drop: str

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Adds to an error that is not transient what cannot be backed up, and the remedy."""
        try:
            yield
        except DependencyError as error:
            if error.transient:
                raise
            remedy = f"Repair it; or drop it and back up again: {self.drop}."
            raise DependencyError(
                f"{self.what} cannot be backed up: {error.message}", f"{error.remedy} {remedy}".lstrip()
            ) from error


def _tables(catalog: Catalog, warehouse: str) -> Iterator[tuple[str, int, _Owner]]:
    """Yields all tables with their newest versions; for directories and tables with a tail, two versions that
    belong together."""
    for volume in catalog.volumes.list():
        owner = _Owner(f"The directory of volume {volume.name}", f"volstream drop volume {volume.name} --cascade")
        root = table.directory_location(warehouse, volume.id)
        with owner.explaining():
            snapshot = Snapshot.open(root, volume.id)
        if snapshot is not None:
            for view in (snapshot.base, snapshot.tail):
                yield view.spec.location, view.version, owner
    for name in places.own_tables(warehouse):
        owner = _Owner(f"The table {name}", f"volstream sql 'DROP TABLE {name}'")
        location = places.own_location(warehouse, name)
        with owner.explaining():
            both = TailedTable.open(location)
            newest = newest_version(location) if both is None else both.version
        if newest is not None:
            yield location, newest, owner
        if both is not None:
            yield both.tail.view.spec.location, both.tail.view.version, owner
    for job, store in product(catalog.jobs.list(statement=None), [store for store in STORES if store.is_table]):
        location = store.of(warehouse, job.id)
        owner = _Owner(f"The {store.what} of job {job.name}", f"volstream drop job {job.name}")
        with owner.explaining():
            newest = newest_version(location)
        if newest is not None:
            yield location, newest, owner


# Restores a home from a backup: first its tables, then its catalog in one transaction, so that it exists
# completely or not.

#: Folders that a warehouse may have before a restore: leftovers of processes, and what names the home's
#: catalog.
_LEFTOVERS = (places.STAGING, "_listings", places.CATALOG)

#: How folders with a copy of a backup's catalog begin.
SCRATCH = "volstream-restore-"


def restore_backup(
    catalog: Catalog, settings: Settings, folder: Path, progress: Callable[[str], object] = lambda _: None
) -> Manifest:
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
        _restore_home(catalog, settings.warehouse_path, folder, manifest, progress)
    return manifest


def _restore_home(catalog: Catalog, warehouse: str, folder: Path, manifest: Manifest, progress: Callable[[str], object]) -> None:
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
    """Raises InvalidValueError if something in a backup is a link, whose target would be copied, or a pipe or
    device, which may never end: a backup has none."""
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
