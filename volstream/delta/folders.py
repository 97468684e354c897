"""Folders of the warehouse: where tables lie, and those that are no tables: plans, staged outcomes, listings."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from volstream.delta.places import filesystem_of, make_folder, replace_file
from volstream.model.names import Name

if TYPE_CHECKING:
    from pyarrow import dataset as ds
    from pyarrow import parquet as pq

#: The file in a warehouse that names tables outside of it.
LINKS = "_links.json"

#: How old what is known of other processes' links may be.
_LINKS_SECONDS = 2.0

_links: dict[str, tuple[float, Mapping[str, str]]] = {}


def table_location(warehouse: str, name: Name) -> str:
    """Where a user's or a job's table lies: in the warehouse, or where it is linked to."""
    known = _links.get(warehouse)
    if known is None or time.monotonic() - known[0] > _LINKS_SECONDS:
        known = _links[warehouse] = (time.monotonic(), links(warehouse))
    return known[1].get(str(name)) or own_location(warehouse, name)


def own_location(warehouse: str, name: Name) -> str:
    """Where a table of that name is made."""
    return f"{warehouse}/tables/{name.schema}/{name.name}"


def link(warehouse: str, name: Name, location: str | None) -> None:
    """Lets a table's name stand for a place outside of the warehouse; None: not any more."""
    changed = {key: place for key, place in links(warehouse).items() if key != str(name)}
    if location is not None:
        changed[str(name)] = location
    make_folder(warehouse)
    replace_file(f"{warehouse}/{LINKS}", json.dumps(changed, indent=1).encode())
    _links.pop(warehouse, None)


def links(warehouse: str) -> Mapping[str, str]:
    """Where tables outside of a warehouse lie that have a name in it."""
    found: Mapping[str, str] = json.loads(content(f"{warehouse}/{LINKS}") or b"{}")
    return found


def dataset(location: str, schema: pa.Schema | None = None) -> ds.Dataset:
    """The rows of a Parquet file or of a folder of them; ``schema``: as the files say, where it is not given."""
    from pyarrow import dataset as ds  # it takes pandas along, half a second

    filesystem, path = filesystem_of(location)
    return ds.dataset(path, filesystem=filesystem, format="parquet", schema=schema)


@contextmanager
def written(location: str, schema: pa.Schema, **options: Any) -> Iterator[pq.ParquetWriter]:
    """Makes a folder with one Parquet file, which the block writes. ``options`` of pyarrow's writer."""
    from pyarrow import parquet as pq  # which commands that write none need not load

    make_folder(location)
    filesystem, path = filesystem_of(location)
    with pq.ParquetWriter(f"{path}/part-00000.parquet", schema, filesystem=filesystem, **options) as writer:
        yield writer


def remove(location: str) -> None:
    """Deletes a folder with all that is in it, where it is."""
    filesystem, path = filesystem_of(location)
    if filesystem.get_file_info(path).type != fs.FileType.NotFound:
        filesystem.delete_dir(path)


def inside(location: str) -> Sequence[str]:
    """Names of the folders directly below ``location``; none where it is not there."""
    filesystem, path = filesystem_of(location)
    selector = fs.FileSelector(path, allow_not_found=True)
    return [info.base_name for info in filesystem.get_file_info(selector) if info.type == fs.FileType.Directory]


@dataclass(frozen=True)
class Written:
    """A file in a folder."""

    name: str
    size: int
    written_on: datetime


def files(location: str) -> Sequence[Written]:
    """The files directly in a folder, the newest first; none where it is not there."""
    filesystem, path = filesystem_of(location)
    found = [
        Written(info.base_name, info.size, info.mtime)
        for info in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        if info.type == fs.FileType.File and not info.base_name.endswith(".new")
    ]
    return sorted(found, key=lambda one: (one.written_on, one.name), reverse=True)


def content(location: str) -> bytes:
    """What a small file says; nothing where it is not there any more."""
    filesystem, path = filesystem_of(location)
    try:
        with filesystem.open_input_stream(path) as file:
            return bytes(file.read())
    except FileNotFoundError:
        return b""


def remove_file(location: str) -> None:
    """Deletes a file, if it is there."""
    filesystem, path = filesystem_of(location)
    with suppress(FileNotFoundError):
        filesystem.delete_file(path)


def last_written(location: str) -> datetime:
    """When something in a folder was last written."""
    filesystem, path = filesystem_of(location)
    found = filesystem.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    times = [info.mtime for info in [*found, filesystem.get_file_info(path)] if info.mtime is not None]
    return max(times, default=datetime.min.replace(tzinfo=UTC))
