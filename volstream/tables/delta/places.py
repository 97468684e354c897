"""Locations of tables and folders, opened as pyarrow filesystems or deltalake tables.

A location is a local path or a URI, kept as text in the catalog, in plans and in Spark's SQL. The warehouse that contains the
location determines other options of an object store, such as an endpoint (``delta.warehouse``).

No other module creates pyarrow filesystems or opens tables with deltalake. Workers of a cluster write files by this module, and
may lack deltalake: it is imported late.
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

#: Characters that libraries read differently in the URI of an object.
_NO_MARKS = frozenset("?#%")

#: What deltalake reads as something else in a path, or does not find all of a table with.
_UNFIT = re.compile(r"[#?\\\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")

_LOCAL = fs.LocalFileSystem()

#: Mode of a folder that a group may write, and whose content belongs to that group.
_OF_GROUP = stat.S_ISGID | stat.S_IWGRP


def is_remote(location: str) -> bool:
    """True if a location is in an object store or on another host, not a local path."""
    return "://" in location and not location.startswith("file://")


def filesystem_of(location: str) -> tuple[fs.FileSystem, str]:
    """Returns a location's filesystem and the path in it, without a trailing slash.

    Raises:
        InvalidValueError: the location is neither a path nor the URI of a filesystem.
    """
    tables = _tables_of(location)
    if tables is not None:
        if not _NO_MARKS.isdisjoint(location):
            raise InvalidValueError(f"{location} is not a valid location for tables.", "Name it without ?, # and %.")
        return tables.filesystem(options_of(location)), location.partition("://")[2].rstrip("/")
    if _UNFIT.search(location) is not None:
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


#: What deltalake says of a log that lacks an entry, and how often it is listed then.
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
    # A folder is not listed at one moment: an entry that comes meanwhile may be missed although the next one is seen.
    for attempt in attempts_at(lambda error: _GAP in str(error), attempts=_LISTINGS, wait_initial=0.01, wait_max=0.2):
        with attempt:
            return DeltaTable(location, version=version, storage_options=options_of(location) or None)
    raise AssertionError("the last attempt raises")


def stamp_of(path: str) -> tuple[int, ...] | None:
    """Returns what changes with a file, or with a folder's list of files; None: there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def files_of(table: DeltaTable, *, flatten: bool = True) -> pa.Table:
    """Returns deltalake's list of a version's data files. ``pa.table`` would import pandas for it, which takes half a second."""
    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=flatten)).read_all()


def check_creates(location: str) -> None:
    """Raises DependencyError if tables of volstream's own cannot be kept at a location; InvalidStateError for an unsafe store."""
    provider = provider_of(location)
    if provider is not None and provider.tables is not None and not can_create(location):
        raise DependencyError(
            f"Commits to {location} require {provider.package}.", f"Run: pip install 'volstream[{provider.scheme}]'."
        )


def make_folder(location: str) -> None:
    """Creates a folder and its parents, whose names survive a power cut. Object stores have no folders.

    Below a folder that a group may write and passes on (mode 2770), such as that of the daemon's user and Spark's, the group may
    write new folders, too, whatever the umask.

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
            if os.stat(os.path.dirname(folder)).st_mode & _OF_GROUP == _OF_GROUP:
                os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | stat.S_IRWXG | stat.S_ISGID)
    except OSError as error:
        _check_disk(location, error)
        kind = StorageError if is_remote(location) else DependencyError
        raise kind(f"The folder {location} cannot be created: {error}.", "Correct the setting `warehouse`.") from error
    make_durable(filesystem, *map(os.path.dirname, missing), folders=False)


def replace_file(location: str, content: bytes, *, durable: bool = True) -> None:
    """Writes a small file atomically: readers see either the old content or the new one, if it is ``durable`` even after a power
    cut."""
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
    """True if :func:`create_file` is possible below ``location``: on a local file system, and where a provider keeps tables.

    The first call for a store may send it a few requests.

    Raises:
        InvalidStateError: the store ignores the condition, so that nothing may be committed to it.
        DependencyError: the store cannot be asked.
    """
    if not is_remote(location):
        return True
    tables = _tables_of(location)
    return tables is not None and tables.can_create(location, options_of(location))


def create_file(location: str, content: bytes) -> bool:
    """Writes a small file unless it exists, durable on return; returns False if another one is there.

    Raises:
        DependencyError: an object store cannot be reached. The file may be there nevertheless.
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
    """Writes a file on HDFS, which moves none over another."""
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
    """A file below a location. ``path``: from there."""

    path: str
    size: int
    written_on: datetime

    @property
    def name(self) -> str:
        """Its name in its folder."""
        return self.path.rpartition("/")[2]


@contextmanager
def held_table(location: str, version: int) -> Iterator[int | None]:
    """Opens the folder of a local table that has a version, for :func:`files` and :func:`remove_file`: its name could lead to
    another folder meanwhile. None in object stores.
    """
    filesystem, root = filesystem_of(location)
    if not isinstance(filesystem, fs.LocalFileSystem):
        yield None
        return
    with held_directory(root, "") as descriptor, open_regular(descriptor, f"_delta_log/{version:020d}.json"):
        yield descriptor


def files(location: str, folder: str = "", *, recursive: bool = False, descriptor: int | None = None) -> Iterator[WrittenFile]:
    """Yields the files in a folder below a location; none if it does not exist.

    The location may be a link. Below it, others may be able to make links, at any moment: a local link counts neither as a
    file nor as a folder here, in :func:`open_below` and in :func:`remove_file`.
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
    """Opens a file below a location for reading. Raises FileNotFoundError, also if it is no file."""
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
    """Makes files, and with ``folders`` their names, survive a power cut. Object stores guarantee that."""
    if not isinstance(filesystem, fs.LocalFileSystem):
        return
    for path in dict.fromkeys([*paths, *(map(os.path.dirname, paths) if folders else ())]):
        sync_to_disk(path)


#: In front of a reason, and characters of reasons that are shown at most.
_ARROW, _REASONS = re.compile(r"\x1b\[[0-9;]*m|\u21b3"), 600

#: What deltalake says of a NULL in a NOT NULL partition column.
_NULL_PARTITION = "unmasked nulls for non-nullable"


@contextmanager
def mapped(location: str) -> Iterator[None]:
    """Maps exceptions of deltalake and pyarrow, except for a missing table, to DependencyError or its subclass DiskError;
    for a location in an object store, to StorageError, which may be temporary."""
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
    """Returns the reasons of an error of deltalake, which writes each on a line, with arrows in color, from the outermost on."""
    lines = [_ARROW.sub("", line).strip(" .") for line in message.splitlines()]
    return ": ".join(dict.fromkeys(filter(None, lines)))[:_REASONS]


def _check_disk(location: str, error: Exception) -> None:
    """Raises DiskError if an error means that the disk is full or read-only."""
    disk = disk_error(error, location)
    if disk is not None:
        raise disk from error


@contextmanager
def reached(location: str) -> Iterator[None]:
    """Maps errors of pyarrow: in an object store to StorageError, those of a full or read-only disk to DiskError. Other errors
    of disks are not temporary, and are not mapped."""
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
    """Returns how tables are kept at a location's provider; None: it has no provider. Raises InvalidValueError."""
    provider = provider_of(location)
    if provider is not None and provider.tables is None:
        raise InvalidValueError(
            f"Tables cannot be kept in {provider.scheme}://.",
            "Correct the setting `warehouse`: a directory, or s3://bucket/prefix.",
        )
    return None if provider is None else provider.tables


def crowded(location: str) -> StorageError:
    """Returns what is raised when others commit to a table again and again before this process does."""
    return StorageError(f"Too many concurrent writes to the table at {location}.", "Try again later.")


# Folders of the warehouse: table locations, and folders that are not tables: plans, staged outcomes,
# listings.

_log = get("warehouse")

#: The file in a warehouse that identifies the catalog of its tables.
CATALOG = "_catalog.json"

#: The folder of a warehouse for rows that are written for one batch or one statement, where Spark finds them on any host.
STAGING = "_staging"

#: Names that every library writes alike in a URI.
_IN_URIS = re.compile(r"[\w.+=~'-]+/[\w.+=~'-]+", re.ASCII)


def _claim(warehouse: str) -> None:
    """Records which catalog a warehouse belongs to; raises InvalidStateError if it belongs to another one."""
    own = unclaimed_warehouses[warehouse]()
    claim = json.loads(content(f"{warehouse}/{CATALOG}") or b"{}")
    if not claim:
        with suppress(OSError, DependencyError):  # a reader without write permission can do no harm
            make_folder(warehouse)
            replace_file(f"{warehouse}/{CATALOG}", json.dumps(own, indent=1).encode())
    elif claim["catalog"] != own["catalog"]:
        raise InvalidStateError(
            f"The warehouse {warehouse} belongs to the home {claim['home']}, which has another catalog.",
            f"Give this home its own warehouse, or use the same catalog_url. If that home was deleted: rm {warehouse}/{CATALOG}",
        )
    unclaimed_warehouses.pop(warehouse, None)


def table_location(warehouse: str, name: Name) -> str:
    """Returns the location of a user's or a job's table: in the warehouse, or the target of its link.

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
        InvalidValueError: the warehouse is in an object store, whose clients read the name differently in a URI.
    """
    if is_remote(warehouse) and not _IN_URIS.fullmatch(f"{name.schema}/{name.name}"):
        raise InvalidValueError(
            f"A table in an object store cannot be named {name}.", "Use ASCII letters, digits, and _ - . + = ~ '."
        )
    return f"{warehouse}/tables/{name.schema}/{name.name}"


def named_by(warehouse: str, location: str) -> Name | None:
    """Returns the name of the table of a warehouse that is at a location; None: it is elsewhere."""
    location = location if is_remote(location) else "/" + os.path.normpath(location).lstrip("/")
    inside_, parts = f"{warehouse}/tables/", location.rstrip("/").split("/")
    return Name(*parts[-2:]) if location.startswith(inside_) and len(parts) == inside_.count("/") + 2 else None


def dataset(location: str, schema: pa.Schema | None = None) -> ds.Dataset:
    """Returns the rows of a Parquet file or a folder of Parquet files; without ``schema``, the files' own is used.

    Spark stores times as INT96, which fit in microseconds, but not in nanoseconds, to which they are decoded by default.
    """
    from pyarrow import dataset as ds  # imports pandas, which takes half a second

    filesystem, path = filesystem_of(location)
    parquet = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
    return ds.dataset(path, filesystem=filesystem, format=parquet, schema=schema)


@contextmanager
def written(location: str, schema: pa.Schema, **options: Any) -> Iterator[pq.ParquetWriter]:
    """Creates a folder with one Parquet file, which the block writes. ``options`` are passed to pyarrow's writer."""
    from pyarrow import parquet as pq  # late: not needed by commands that write no table

    make_folder(location)
    filesystem, path = filesystem_of(location)
    with pq.ParquetWriter(f"{path}/part-00000.parquet", schema, filesystem=filesystem, **options) as writer:
        yield writer


def put(path: str, location: str) -> None:
    """Copies a local file to a folder, which is created if necessary."""
    make_folder(location)
    filesystem, folder = filesystem_of(location)
    target = f"{folder}/{Path(path).name}"
    fs.copy_files(path, target, source_filesystem=fs.LocalFileSystem(), destination_filesystem=filesystem)


def remove(location: str, *, within: str | None = None) -> None:
    """Deletes a folder with its contents, if it exists. Deletes only the link if the folder is one.

    Args:
        within: a folder above, below which no local link is followed: by default the warehouse, else the folder just above.

    Raises:
        InvalidStateError: a link, or a file, leads to the folder.
    """
    filesystem, path = filesystem_of(location)
    if not isinstance(filesystem, fs.LocalFileSystem):
        if filesystem.get_file_info(path).type != fs.FileType.NotFound:
            filesystem.delete_dir(path)
    elif os.path.lexists(path):
        above, _, name = path.rpartition("/")
        root = within or next((one for one in warehouse_links if location.startswith(f"{one}/")), above)
        root = filesystem_of(root)[1] if root else "/"
        try:
            with held_directory(root, above[len(root) :].strip("/")) as descriptor:
                remove_tree(name, descriptor)
        except NotADirectoryError as error:
            raise InvalidStateError(
                f"{location} is not removed: a symbolic link or a file leads to it.", "Replace the link by its folder."
            ) from error


def discard(location: str, *, within: str | None = None) -> None:
    """Deletes a folder that nothing needs any more. What cannot be deleted, such as another user's files, stays and is logged."""
    try:
        remove(location, within=within)
    except (OSError, InvalidStateError) as error:
        _log.warning("folder_left", folder=location, reason=str(error))


@contextmanager
def staged(warehouse: str, purpose: str) -> Iterator[str]:
    """Yields the location of a folder to stage rows in, which is discarded at the end."""
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
    """Returns the names of the folders directly below ``location``; empty if it does not exist."""
    filesystem, path = filesystem_of(location)
    selector = fs.FileSelector(path, allow_not_found=True)
    return [info.base_name for info in filesystem.get_file_info(selector) if info.type == fs.FileType.Directory]


def check_there(warehouse: str) -> None:
    """Raises DependencyError if a warehouse that has had tables cannot be seen: their schemas' folders stay, but a bucket has
    none."""
    if not (content(f"{warehouse}/{CATALOG}") if is_remote(warehouse) else inside(f"{warehouse}/tables")):
        raise DependencyError(f"The warehouse {warehouse} does not exist.", "Is its disk mounted?")


def own_tables(warehouse: str) -> Iterator[Name]:
    """Yields the names of the tables in a warehouse, except linked ones, in no particular order."""
    for schema in inside(f"{warehouse}/tables"):
        for name in inside(f"{warehouse}/tables/{schema}"):
            yield Name(schema, name)


def like_one(warehouse: str, name: Name, others: Iterable[Name] = ()) -> str:
    """Returns ``Did you mean 't'? `` with the table, or one of ``others``, whose name is similar; or nothing."""
    return similar(name, (*own_tables(warehouse), *others))


def content(location: str) -> bytes:
    """Returns the content of a small file; empty if it no longer exists."""
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
