"""Locations of tables and folders, opened as pyarrow filesystems or deltalake tables.

A location is a local path or a URI, stored as text in the catalog, in plans and in Spark's SQL. The warehouse
that contains it determines further options of an object store, such as an endpoint (``delta.warehouse``).

No other module creates pyarrow filesystems or opens tables with deltalake. A cluster's workers write files
with this module and may lack deltalake, so it is imported late.
"""

from __future__ import annotations

import json
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa
from pyarrow import fs

from volstream.base.log import get
from volstream.base.model.names import Name, similar
from volstream.base.processes import disk_error, sync_to_disk
from volstream.base.threads import attempts_at
from volstream.errors import DependencyError, InvalidStateError, InvalidValueError, StorageError, VolstreamError
from volstream.files.providers.base import provider_of
from volstream.files.storage.local import entries_of, held_directory, open_regular, remove_tree, time_of
from volstream.tables.delta.warehouse import options_of, unclaimed_warehouses, warehouse_links

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow import dataset as ds
    from pyarrow import parquet as pq

    from volstream.files.providers.base import TableStore

#: Characters that libraries interpret differently in an object's URI.
_UNSAFE_IN_URIS = frozenset("?#%")

#: Characters that deltalake misinterprets in a path, or with which it does not find all of a table.
_UNSAFE_IN_PATHS = re.compile(r"[#?\\\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")

_LOCAL = fs.LocalFileSystem()

#: Mode bits of a folder that its group may write, and whose content belongs to that group.
_GROUP_BITS = stat.S_ISGID | stat.S_IWGRP


def is_remote(location: str) -> bool:
    """True if a location is in an object store or on another host, not a local path."""
    return "://" in location and not location.startswith("file://")


def filesystem_of(location: str) -> tuple[fs.FileSystem, str]:
    """Returns a location's filesystem and its path there, without a trailing slash.

    Raises:
        InvalidValueError: the location is neither a path nor the URI of a filesystem.
    """
    tables = _tables_of(location)
    if tables is not None:
        if not _UNSAFE_IN_URIS.isdisjoint(location):
            raise InvalidValueError(f"{location} is not a valid location for tables.", "Name it without ?, # and %.")
        return tables.filesystem(options_of(location)), location.partition("://")[2].rstrip("/")
    if _UNSAFE_IN_PATHS.search(location) is not None:
        raise InvalidValueError(
            f"{location!r} is not a valid location for tables.",
            "Name it without #, ?, backslashes, control characters, and codes such as %20.",
        )
    if os.path.isabs(location):
        return _LOCAL, location.rstrip("/")
    try:
        filesystem, path = fs.FileSystem.from_uri(location)
    except ValueError as error:
        raise InvalidValueError(
            f"{location} is not a valid location for tables: {error}.",
            "Correct the setting `warehouse`: a directory, or s3://bucket/prefix.",
        ) from None
    return filesystem, path.rstrip("/")


def is_table(location: str) -> bool:
    """True if there is a Delta table at the location. Raises DependencyError."""
    from deltalake import DeltaTable

    with mapped(location):
        return DeltaTable.is_deltatable(location, options_of(location) or None)


def is_folder(location: str) -> bool:
    """True if there is a folder or, in an object store, anything below ``location``."""
    filesystem, path = filesystem_of(location)
    return bool(filesystem.get_file_info(path).type == fs.FileType.Directory)


#: Part of deltalake's message for a log that lacks an entry, and how often the log is then listed.
_GAP, _LISTINGS = "found gap", 8


def open_table(location: str, version: int | None = None) -> DeltaTable:
    """Opens the table at a version, or at the newest. Raises deltalake's exceptions."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return DeltaTable(location, version=version, storage_options=options_of(location) or None)
    except DeltaError as error:
        if _GAP not in str(error):
            raise
    # Listing a folder is not atomic: it may miss a new entry although it shows the next one.
    for attempt in attempts_at(lambda error: _GAP in str(error), attempts=_LISTINGS, wait_initial=0.01, wait_max=0.2):
        with attempt:
            return DeltaTable(location, version=version, storage_options=options_of(location) or None)
    raise AssertionError("the last attempt raises")


def stamp_of(path: str) -> tuple[int, ...] | None:
    """Returns a stamp that changes with a file, or with a folder's list of files. None if it is missing."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def files_of(table: DeltaTable, *, flatten: bool = True) -> pa.Table:
    """Returns deltalake's list of a version's data files.

    ``pa.table`` would import pandas for it, which takes half a second.
    """
    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=flatten)).read_all()


def check_creates(location: str) -> None:
    """Raises DependencyError if a location cannot have tables, InvalidStateError for an unsafe store."""
    provider = provider_of(location)
    if provider is not None and provider.tables is not None and not can_create(location):
        raise DependencyError(
            f"Commits to {location} require {provider.package}.", f"Run: pip install 'volstream[{provider.scheme}]'."
        )


def make_folder(location: str) -> None:
    """Creates a folder and its parents. Their names survive a power cut. Object stores have no folders.

    Below a folder with mode 2770, for example one shared by the daemon's user and Spark's, the group may also
    write new folders, whatever the umask.

    Raises:
        DependencyError: the folder cannot be created.
    """
    if not _has_folders(location):
        return
    filesystem, path = filesystem_of(location)
    missing: list[str] = []
    if isinstance(filesystem, fs.LocalFileSystem):
        folder = path
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
    try:
        filesystem.create_dir(path, recursive=True)
        for folder in reversed(missing):
            if os.stat(os.path.dirname(folder)).st_mode & _GROUP_BITS == _GROUP_BITS:
                os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | stat.S_IRWXG | stat.S_ISGID)
    except OSError as error:
        _check_disk(location, error)
        kind = StorageError if is_remote(location) else DependencyError
        raise kind(f"The folder {location} cannot be created: {error}.", "Correct the setting `warehouse`.") from error
    make_durable(filesystem, *map(os.path.dirname, missing), folders=False)


def replace_file(location: str, content: bytes, *, durable: bool = True) -> None:
    """Writes a small file atomically: readers see the old or the new content, if ``durable`` even after a power cut."""
    filesystem, path = filesystem_of(location)
    target = f"{path}.new" if _has_folders(location) else path
    if isinstance(filesystem, fs.LocalFileSystem):
        Path(target).unlink(missing_ok=True)  # left by a crash; or a link, whose target would be overwritten
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666), "wb") as local:
            local.write(content)
    else:
        with filesystem.open_output_stream(target) as file:
            file.write(content)
    if durable:
        make_durable(filesystem, target, folders=False)
    if target != path:
        filesystem.move(target, path)
    if durable:
        make_durable(filesystem, os.path.dirname(path), folders=False)


def can_create(location: str) -> bool:
    """True if :func:`create_file` works below ``location``: locally, and where a provider supports it.

    The first call for a store may send it a few requests.

    Raises:
        InvalidStateError: the store ignores the condition, so commits to it are unsafe.
        DependencyError: the store is unreachable.
    """
    if not is_remote(location):
        return True
    tables = _tables_of(location)
    return tables is not None and tables.can_create(location, options_of(location))


def create_file(location: str, content: bytes) -> bool:
    """Writes a small file. Returns False if another file exists there. Durable on return.

    Raises:
        DependencyError: an object store is unreachable. The file may exist nevertheless.
    """
    tables = _tables_of(location)
    if tables is not None:
        return tables.create_file(location, options_of(location), content)
    filesystem, path = filesystem_of(location)
    draft = f"{os.path.dirname(path)}/.{uuid.uuid4().hex}.tmp"
    if not isinstance(filesystem, fs.LocalFileSystem):
        return _create_by_move(filesystem, draft, path, content)
    try:
        with Path(draft).open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)
    make_durable(filesystem, path)
    return True


def _create_by_move(filesystem: fs.FileSystem, draft: str, path: str, content: bytes) -> bool:
    """Writes a file on HDFS, whose move never overwrites a file."""
    with filesystem.open_output_stream(draft) as file:
        file.write(content)
    try:
        filesystem.move(draft, path)
    except OSError:
        filesystem.delete_file(draft)
        if filesystem.get_file_info(path).type == fs.FileType.NotFound:
            raise
        return False
    return True


def try_writing(location: str) -> None:
    """Writes a file below a location, and deletes it. Raises OSError."""
    filesystem, root = filesystem_of(location)
    probe = f"{root}/_probe-{uuid.uuid4().hex}"
    with filesystem.open_output_stream(probe) as file:
        file.write(b"x")
    filesystem.delete_file(probe)


@dataclass(frozen=True)
class WrittenFile:
    """A file below a location. ``path`` is relative to the location."""

    path: str
    size: int
    written_on: datetime

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return self.path.rpartition("/")[2]


@contextmanager
def held_table(location: str, version: int) -> Iterator[int | None]:
    """Opens the folder of a local table, for :func:`files` and :func:`remove_file`.

    The folder's name could lead elsewhere meanwhile, so checks that the table has ``version``. Yields a
    descriptor, or None in object stores.
    """
    filesystem, root = filesystem_of(location)
    if not isinstance(filesystem, fs.LocalFileSystem):
        yield None
        return
    with held_directory(root, "") as descriptor, open_regular(descriptor, f"_delta_log/{version:020d}.json"):
        yield descriptor


def files(location: str, folder: str = "", *, recursive: bool = False, descriptor: int | None = None) -> Iterator[WrittenFile]:
    """Yields the files in a folder below a location. A missing folder has no files.

    The location may be a link. Below it, other users may be able to create links at any moment, so a local
    link counts neither as a file nor as a folder here, in :func:`open_below` and in :func:`remove_file`.
    """
    filesystem, root = filesystem_of(location)
    if not isinstance(filesystem, fs.LocalFileSystem):
        selector = fs.FileSelector(f"{root}/{folder}".rstrip("/"), recursive=recursive, allow_not_found=True)
        for info in filesystem.get_file_info(selector):
            if info.type == fs.FileType.File:
                yield WrittenFile(info.path[len(root) + 1 :], info.size, info.mtime)
        return
    pending = [folder]
    while pending:
        folder = pending.pop()
        for entry in entries_of(root if descriptor is None else descriptor, folder):
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    yield WrittenFile(path, status.st_size, time_of(status.st_mtime_ns))
            elif recursive and entry.is_dir(follow_symlinks=False):
                pending.append(path)


def open_below(location: str, path: str) -> BinaryIO:
    """Opens a file below a location for reading. Raises FileNotFoundError, also if it is not a file."""
    filesystem, root = filesystem_of(location)
    if isinstance(filesystem, fs.LocalFileSystem):
        return open_regular(root, path)
    return cast(BinaryIO, filesystem.open_input_stream(f"{root}/{path}"))


def remove_file(location: str, path: str, descriptor: int | None = None) -> None:
    """Deletes a file below a location, if it exists."""
    filesystem, root = filesystem_of(location)
    folder, _, name = path.rpartition("/")
    with suppress(FileNotFoundError, NotADirectoryError):
        if not isinstance(filesystem, fs.LocalFileSystem):
            filesystem.delete_file(f"{root}/{path}")
            return
        with held_directory(root if descriptor is None else descriptor, folder) as directory:
            os.unlink(name, dir_fd=directory)


def make_durable(filesystem: fs.FileSystem, *paths: str, folders: bool = True) -> None:
    """Syncs local files to disk, and with ``folders`` their names. In object stores, writes are durable."""
    if not isinstance(filesystem, fs.LocalFileSystem):
        return
    for path in dict.fromkeys([*paths, *(map(os.path.dirname, paths) if folders else ())]):
        sync_to_disk(path)


#: Color codes and arrows before a reason, and the maximum length of the shown reasons.
_ARROW, _REASONS = re.compile(r"\x1b\[[0-9;]*m|\u21b3"), 600

#: Part of deltalake's message for a NULL in a NOT NULL partition column.
_NULL_PARTITION = "unmasked nulls for non-nullable"


@contextmanager
def mapped(location: str) -> Iterator[None]:
    """Maps exceptions of deltalake and pyarrow to DependencyError or its subclass DiskError.

    In an object store they become StorageError, which may be temporary. A missing table's error is not
    mapped.
    """
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        yield
    except (TableNotFoundError, VolstreamError):
        raise
    except (DeltaError, OSError, ValueError) as error:  # Arrow raises the last for a name with NUL
        _check_disk(location, error)
        kind = StorageError if is_remote(location) else DependencyError
        remedy = ""
        if _NULL_PARTITION in str(error):
            kind = DependencyError
            repair = f"ALTER TABLE delta.`{location}` ALTER COLUMN ... DROP NOT NULL"
            remedy = f'Spark stored NULL in a partition column that is NOT NULL. Run session.spark.sql("{repair}").'
        raise kind(f"The table at {location} cannot be read or written: {_in_a_line(str(error))}.", remedy) from error


def _in_a_line(message: str) -> str:
    """Joins the reasons in a deltalake error. It has one per line, outermost first, after colored arrows."""
    lines = [_ARROW.sub("", line).strip(" .") for line in message.splitlines()]
    return ": ".join(dict.fromkeys(filter(None, lines)))[:_REASONS]


def _check_disk(location: str, error: Exception) -> None:
    """Raises DiskError if an error means that the disk is full or read-only."""
    disk = disk_error(error, location)
    if disk is not None:
        raise disk from error


@contextmanager
def reached(location: str) -> Iterator[None]:
    """Maps pyarrow's errors: in an object store to StorageError, for a full or read-only disk to DiskError.

    Other disk errors are not temporary and are not mapped.
    """
    try:
        yield
    except OSError as error:
        _check_disk(location, error)
        if not is_remote(location):
            raise
        raise StorageError(f"{location} cannot be read or written: {error}.") from error


def _has_folders(location: str) -> bool:
    return not is_remote(location) or location.startswith(("hdfs://", "viewfs://"))


def _tables_of(location: str) -> TableStore | None:
    """Returns the table store of a location's provider, or None without a provider. Raises
    InvalidValueError."""
    provider = provider_of(location)
    if provider is not None and provider.tables is None:
        raise InvalidValueError(
            f"Tables cannot be kept in {provider.scheme}://.",
            "Correct the setting `warehouse`: a directory, or s3://bucket/prefix.",
        )
    return None if provider is None else provider.tables


def crowded(location: str) -> StorageError:
    """Returns the error for a commit that lost every race against other writers."""
    return StorageError(f"Too many concurrent writes to the table at {location}.", "Try again later.")


# Folders of the warehouse: tables, and other folders: plans, staged outcomes, listings.

_log = get("warehouse")

#: The file in a warehouse that identifies the catalog of its tables.
CATALOG = "_catalog.json"

#: The folder of a warehouse for the rows of one batch or one statement. Spark can read it from any host.
STAGING = "_staging"

#: Names that all libraries write alike in a URI.
_IN_URIS = re.compile(r"[\w.+=~'-]+/[\w.+=~'-]+", re.ASCII)


def _claim(warehouse: str) -> None:
    """Records which catalog a warehouse belongs to. Raises InvalidStateError if it belongs to another one."""
    expected = unclaimed_warehouses[warehouse]()
    claim = json.loads(content(f"{warehouse}/{CATALOG}") or b"{}")
    if not claim:
        with suppress(OSError, DependencyError):  # a reader without write permission can do no harm
            make_folder(warehouse)
            replace_file(f"{warehouse}/{CATALOG}", json.dumps(expected, indent=1).encode())
    elif claim["catalog"] != expected["catalog"]:
        raise InvalidStateError(
            f"The warehouse {warehouse} belongs to the home {claim['home']}, which has another catalog.",
            f"Give this home its own warehouse, or use the same catalog_url. If that home was deleted: rm {warehouse}/{CATALOG}",
        )
    unclaimed_warehouses.pop(warehouse, None)


def table_location(warehouse: str, name: Name) -> str:
    """Returns the location of a table: in the warehouse, or the target of its link.

    Raises:
        InvalidStateError: the warehouse belongs to another catalog.
    """
    if warehouse in unclaimed_warehouses:
        _claim(warehouse)
    linked = warehouse_links.get(warehouse)
    return (linked().get(name) if linked else None) or own_location(warehouse, name)


def own_location(warehouse: str, name: Name) -> str:
    """Returns the location at which a table with this name is created.

    Raises:
        InvalidValueError: the warehouse is in an object store, and clients write the name differently in
            URIs.
    """
    if is_remote(warehouse) and not _IN_URIS.fullmatch(f"{name.schema}/{name.name}"):
        raise InvalidValueError(
            f"A table in an object store cannot be named {name}.", "Use ASCII letters, digits, and _ - . + = ~ '."
        )
    return f"{warehouse}/tables/{name.schema}/{name.name}"


def named_by(warehouse: str, location: str) -> Name | None:
    """Returns the name of a warehouse's table by its location, or None for a location elsewhere."""
    location = location if is_remote(location) else "/" + os.path.normpath(location).lstrip("/")
    inside_, parts = f"{warehouse}/tables/", location.rstrip("/").split("/")
    return Name(*parts[-2:]) if location.startswith(inside_) and len(parts) == inside_.count("/") + 2 else None


def dataset(location: str, schema: pa.Schema | None = None) -> ds.Dataset:
    """Returns the rows of a Parquet file or folder. Without ``schema``, uses the files' own schema.

    Spark stores times as INT96. They fit in microseconds, but not in nanoseconds, the default for decoding.
    """
    from pyarrow import dataset as ds  # imports pandas, which takes half a second

    filesystem, path = filesystem_of(location)
    parquet = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
    return ds.dataset(path, filesystem=filesystem, format=parquet, schema=schema)


@contextmanager
def written(location: str, schema: pa.Schema, **options: Any) -> Iterator[pq.ParquetWriter]:
    """Creates a folder with one Parquet file for the block to write. ``options`` go to pyarrow's writer."""
    from pyarrow import parquet as pq  # late: not needed by commands that write no table

    make_folder(location)
    filesystem, path = filesystem_of(location)
    with pq.ParquetWriter(f"{path}/part-00000.parquet", schema, filesystem=filesystem, **options) as writer:
        yield writer


def put(path: str, location: str) -> None:
    """Copies a local file to a folder. Creates the folder if necessary."""
    make_folder(location)
    filesystem, folder = filesystem_of(location)
    target = f"{folder}/{Path(path).name}"
    fs.copy_files(path, target, source_filesystem=fs.LocalFileSystem(), destination_filesystem=filesystem)


def remove(location: str, *, within: str | None = None) -> None:
    """Deletes a folder with its contents, if it exists. If the folder is a link, deletes only the link.

    Args:
        within: a parent folder. No local link below it is followed. Defaults to the warehouse, or else to the
            direct parent.

    Raises:
        InvalidStateError: a link, or a file, leads to the folder.
    """
    filesystem, path = filesystem_of(location)
    if not isinstance(filesystem, fs.LocalFileSystem):
        if filesystem.get_file_info(path).type != fs.FileType.NotFound:
            filesystem.delete_dir(path)
    elif os.path.lexists(path):
        above, _, name = path.rpartition("/")
        root = within or next((warehouse for warehouse in warehouse_links if location.startswith(f"{warehouse}/")), above)
        root = filesystem_of(root)[1] if root else "/"
        try:
            with held_directory(root, above[len(root) :].strip("/")) as descriptor:
                remove_tree(name, descriptor)
        except NotADirectoryError as error:
            raise InvalidStateError(
                f"{location} is not removed: a symbolic link or a file leads to it.", "Replace the link by its folder."
            ) from error


def discard(location: str, *, within: str | None = None) -> None:
    """Deletes an unneeded folder. Leaves and logs what it cannot delete, such as another user's files."""
    try:
        remove(location, within=within)
    except (OSError, InvalidStateError) as error:
        _log.warning("folder_left", folder=location, reason=str(error))


@contextmanager
def staged(warehouse: str, purpose: str) -> Iterator[str]:
    """Yields the location of a folder for staged rows. Discards it at the end."""
    location = f"{warehouse}/{STAGING}/{purpose}-{uuid.uuid4().hex}"
    try:
        yield location
    finally:
        discard(location)


def is_link(location: str) -> bool:
    """True if a local folder is a symbolic link."""
    filesystem, path = filesystem_of(location)
    return isinstance(filesystem, fs.LocalFileSystem) and os.path.islink(path)


def inside(location: str) -> Sequence[str]:
    """Returns the names of the folders directly below ``location``. Empty if it does not exist."""
    filesystem, path = filesystem_of(location)
    selector = fs.FileSelector(path, allow_not_found=True)
    return [info.base_name for info in filesystem.get_file_info(selector) if info.type == fs.FileType.Directory]


def check_there(warehouse: str) -> None:
    """Raises DependencyError if a warehouse that has had tables does not exist, as on an unmounted disk.

    Checks the folders of schemas, which stay; in a bucket, which has no folders, the catalog's file.
    """
    if not (content(f"{warehouse}/{CATALOG}") if is_remote(warehouse) else inside(f"{warehouse}/tables")):
        raise DependencyError(f"The warehouse {warehouse} does not exist.", "Is its disk mounted?")


def own_tables(warehouse: str) -> Iterator[Name]:
    """Yields the names of the tables in a warehouse, except linked ones, in no particular order."""
    for schema in inside(f"{warehouse}/tables"):
        for name in inside(f"{warehouse}/tables/{schema}"):
            yield Name(schema, name)


def like_one(warehouse: str, name: Name, others: Iterable[Name] = ()) -> str:
    """Returns ``Did you mean 't'? `` with a similar name among tables and ``others``, or an empty string."""
    return similar(name, (*own_tables(warehouse), *others))


def content(location: str) -> bytes:
    """Returns the content of a small file. Empty if the file does not exist."""
    filesystem, path = filesystem_of(location)
    try:
        with filesystem.open_input_stream(path) as file:
            return bytes(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return b""


def last_written(location: str) -> datetime:
    """Returns the time of the newest write in a folder."""
    filesystem, path = filesystem_of(location)
    entries = filesystem.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    times = [info.mtime for info in [*entries, filesystem.get_file_info(path)] if info.mtime is not None]
    return max(times, default=datetime.min.replace(tzinfo=UTC))
