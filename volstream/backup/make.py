"""Making a backup while daemons and jobs work.

A backup holds what a crash at one moment would have left, which is what volstream recovers from anyway. Every commit to a table
is announced in the catalog first and acknowledged there after: while nobody can write the catalog, which takes a moment, its
rows and the newest versions of all tables are fixed. What they consist of does not change, and is copied afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from volstream.backup.manifest import Manifest
from volstream.catalog import Catalog, copying
from volstream.config import Settings
from volstream.delta import folders
from volstream.delta.copying import copy_files, copy_folder, copy_table
from volstream.delta.log import DeltaLog
from volstream.directory import table
from volstream.directory.snapshot import Snapshot
from volstream.errors import InvalidStateError, InvalidValueError
from volstream.lifecycle.privacy import make_directory

#: The catalog of a backup, whatever database the home's is in.
CATALOG = "catalog.db"

#: The tables and plans of a backup, laid out as in a warehouse.
WAREHOUSE = "warehouse"

SETTINGS = "volstream.toml"


def make(
    catalog: Catalog, settings: Settings, folder: Path, told: Callable[[str], object] = lambda _: None
) -> Manifest:
    """Makes a backup of a home.

    Args:
        folder: is made; must not be there, or be empty.
        told: hears of each table before it is copied.

    Raises:
        InvalidValueError: there is something in the folder, or it lies in the warehouse.
        InvalidStateError: a volume's directory is still as volstream 0.1 made it.
        StorageError, DependencyError, DiskFullError, CatalogError: something cannot be read or written.
    """
    _prepare(folder, settings)
    warehouse, target = settings.warehouse_path, f"{folder}/{WAREHOUSE}"
    with ExitStack() as stack:
        with catalog.database.frozen():
            rows = stack.enter_context(catalog.database.snapshot())
            created_on = datetime.now(UTC)
            found = dict(_tables(catalog, warehouse))
            for plan in catalog.consumptions.open_plans():  # their files go when they end
                copy_folder(f"{warehouse}/_plans/{plan}", f"{target}/_plans/{plan}")
        copied = Catalog(f"sqlite:///{folder / CATALOG}")
        stack.callback(copied.close)
        with copied.database.transaction() as transaction:
            counts = copying.copy(rows, transaction)
    tables: dict[str, int] = {}
    for location, newest in found.items():
        name = location.removeprefix(f"{warehouse}/")
        told(name)
        copy_table(location, newest, f"{target}/{name}")
        tables[name] = newest
    copy_files(warehouse, [folders.LINKS], target)
    own = settings.home / SETTINGS
    if own.exists():
        (folder / SETTINGS).touch(mode=0o600)
        (folder / SETTINGS).write_bytes(own.read_bytes())
    made = Manifest(
        created_on,
        version("volstream"),
        str(settings.home),
        warehouse,
        tables,
        counts,
        sorted(folders.links(warehouse)),
    )
    made.write(folder)
    return made


def _prepare(folder: Path, settings: Settings) -> None:
    try:
        if folder.exists() and any(folder.iterdir()):
            raise InvalidValueError(f"{folder} is not empty.", "Name a folder that is not there yet.")
    except NotADirectoryError:
        raise InvalidValueError(f"{folder} is not a folder.") from None
    resolved = str(folder.resolve())
    if f"{resolved}/".startswith(f"{settings.warehouse_path}/"):
        raise InvalidValueError(f"{folder} lies in the warehouse that is to be copied.", "Name a folder elsewhere.")
    try:
        make_directory(folder)
    except OSError as error:
        raise InvalidValueError(f"{folder} cannot be made: {error.strerror}.") from None


def _tables(catalog: Catalog, warehouse: str) -> Iterator[tuple[str, int]]:
    """All tables and their newest versions; of each directory two that belong together."""
    for volume in catalog.volumes.list():
        root = table.location(warehouse, volume.id)
        found = Snapshot.open(root, volume.id)
        if found is not None:
            for view in (found.base, found.tail):
                yield view.spec.location, view.version
        elif DeltaLog(root).exists():
            raise InvalidStateError(
                f"The directory of volume {volume.name} is as volstream 0.1 made it.",
                f"Run volstream refresh {volume.name} first.",
            )
    for schema in folders.inside(f"{warehouse}/tables"):
        for name in folders.inside(f"{warehouse}/tables/{schema}"):
            location = f"{warehouse}/tables/{schema}/{name}"
            newest = DeltaLog(location).latest_version()
            if newest is not None:
                yield location, newest
