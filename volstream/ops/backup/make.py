"""Takes a backup while daemons and jobs are running.

A backup has what a crash at one moment would have left, from which volstream recovers anyway. Every commit to a table is
announced in the catalog first and acknowledged there afterwards. Blocking writes to the catalog, for a moment, therefore
fixes its rows and the newest versions of all tables. Their files do not change, and are copied afterwards.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path

from volstream.base.config import Settings
from volstream.base.privacy import make_directory
from volstream.catalog import Catalog, upkeep
from volstream.changes.directory import table
from volstream.changes.directory.snapshot import Snapshot
from volstream.errors import DependencyError, InvalidValueError
from volstream.jobs.batches.ledger import STORES
from volstream.ops.backup.manifest import Manifest
from volstream.tables.delta import places
from volstream.tables.delta.copying import copy_folder, copy_table
from volstream.tables.delta.opened import newest_version
from volstream.tables.tails.tail import TailedTable

#: The catalog file of a backup, whatever database the home uses.
CATALOG = "catalog.db"

#: The folder of a backup's tables and plans, laid out like a warehouse.
WAREHOUSE = "warehouse"

SETTINGS = "volstream.toml"


def make(catalog: Catalog, settings: Settings, folder: Path, progress: Callable[[str], object] = lambda _: None) -> Manifest:
    """Takes a backup of a home.

    Args:
        folder: absolute; created; must be missing or empty.
        progress: called with each table before it is copied.

    Raises:
        InvalidValueError: the folder is not empty, or is in the warehouse.
        StorageError, DependencyError, DiskError, CatalogError: reading or writing failed. The folder is as before.
    """
    present = os.path.exists(folder)  # False also of a name that is too long
    _prepare(folder, settings)
    try:
        manifest = _fill(catalog, settings, folder, progress)
        manifest.write(folder)
    except BaseException:
        for entry in folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if not present:
            folder.rmdir()
        raise
    return manifest


def _fill(catalog: Catalog, settings: Settings, folder: Path, progress: Callable[[str], object]) -> Manifest:
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
    """Yields all tables with their newest versions; for directories and tables with a tail, two versions that belong together."""
    for volume in catalog.volumes.list():
        owner = _Owner(f"The directory of volume {volume.name}", f"volstream drop volume {volume.name} --cascade")
        root = table.location(warehouse, volume.id)
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
