"""Folders of the warehouse: table locations, and folders that are not tables: plans, staged outcomes, listings."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from volstream.base.log import get
from volstream.base.model.names import Name, similar
from volstream.errors import DependencyError, InvalidStateError, InvalidValueError
from volstream.files.storage.local import held_directory, remove_tree
from volstream.tables.delta import owners
from volstream.tables.delta.places import filesystem_of, is_remote, make_folder, replace_file

if TYPE_CHECKING:
    from pyarrow import dataset as ds
    from pyarrow import parquet as pq

_log = get("warehouse")

#: The file in a warehouse that identifies the catalog of its tables.
CATALOG = "_catalog.json"

#: The folder of a warehouse for rows that are written for one batch or one statement, where Spark finds them on any host.
STAGING = "_staging"

#: Names that every library writes alike in a URI.
_IN_URIS = re.compile(r"[\w.+=~'-]+/[\w.+=~'-]+", re.ASCII)


def _claim(warehouse: str) -> None:
    """Records which catalog a warehouse belongs to; raises InvalidStateError if it belongs to another one."""
    own = owners.unclaimed[warehouse]()
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
    owners.unclaimed.pop(warehouse, None)


def table_location(warehouse: str, name: Name) -> str:
    """Returns the location of a user's or a job's table: in the warehouse, or the target of its link.

    Raises:
        InvalidStateError: the warehouse belongs to another catalog.
    """
    if warehouse in owners.unclaimed:
        _claim(warehouse)
    linked = owners.links.get(warehouse)
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
        root = within or next((one for one in owners.links if location.startswith(f"{one}/")), above)
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
