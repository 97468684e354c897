"""Folders of the warehouse: where tables lie, and those that are no tables: plans, staged outcomes, listings."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from volstream.model.names import Name


def table_location(warehouse: str, name: Name) -> str:
    """Where a user's or a job's table lies."""
    return f"{warehouse}/tables/{name.schema}/{name.name}"


def dataset(location: str, schema: pa.Schema | None = None) -> ds.Dataset:
    """The rows of a Parquet file or of a folder of them; ``schema``: as the files say, where it is not given."""
    filesystem, path = fs.FileSystem.from_uri(location)
    return ds.dataset(path, filesystem=filesystem, format="parquet", schema=schema)


def remove(location: str) -> None:
    """Deletes a folder with all that is in it, where it is."""
    filesystem, path = fs.FileSystem.from_uri(location)
    if filesystem.get_file_info(path).type != fs.FileType.NotFound:
        filesystem.delete_dir(path)


def inside(location: str) -> Sequence[str]:
    """Names of the folders directly below ``location``; none where it is not there."""
    filesystem, path = fs.FileSystem.from_uri(location)
    selector = fs.FileSelector(path, allow_not_found=True)
    return [info.base_name for info in filesystem.get_file_info(selector) if info.type == fs.FileType.Directory]
