"""Copies of tables and folders while others write: what a table's version consists of never changes.

Through the filesystems of both sides, so that either may be in an object store.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

from pyarrow import fs

from volstream.delta.places import filesystem_of, make_folder, mapped, open_table
from volstream.errors import StorageError

_LOG = "_delta_log/"

#: A number in the name of an entry of a log.
_DIGITS = 20

#: Files on their way at once: copying waits for disk or network.
_COPIERS = 4

_PIECE = 1 << 20


def copy_table(location: str, version: int, target: str) -> None:
    """Copies a table as of a version, which was the newest a short while ago, with what older versions still need.

    Raises:
        StorageError: files that its version needs were removed before they could be copied.
        DependencyError: a table cannot be read or written.
    """
    names = [name for name in _inside(location) if _belongs(name, version)]
    missing = {unquote(name) for name in copy_files(location, names, target)}
    with mapped(target):
        made = open_table(target)
        needed = missing.intersection(map(unquote, made.get_add_actions()["path"].to_pylist())) if missing else set()
        needed |= {name for name in missing if name.startswith("deletion_vector")}
    if needed or made.version() != version:
        raise StorageError(
            f"The table at {location} was vacuumed while it was copied: files of version {version} are gone.",
            "Try again.",
        )


def copy_folder(location: str, target: str) -> None:
    """Copies all files of a folder; nothing where it is not there."""
    copy_files(location, _inside(location), target)


def copy_files(location: str, names: Sequence[str], target: str) -> Sequence[str]:
    """Copies files of a folder; those that are not there any more."""
    source, root = filesystem_of(location)
    sink, folder = filesystem_of(target)
    for parent in sorted({name.rpartition("/")[0] for name in names}):
        make_folder(f"{target}/{parent}".rstrip("/"))

    def copy(name: str) -> bool:
        try:
            with (
                source.open_input_stream(f"{root}/{name}") as read,
                sink.open_output_stream(f"{folder}/{name}") as write,
            ):
                shutil.copyfileobj(read, write, _PIECE)
        except FileNotFoundError:
            return False
        return True

    with mapped(target), ThreadPoolExecutor(_COPIERS, thread_name_prefix="copy") as pool:
        return [name for name, there in zip(names, pool.map(copy, names), strict=True) if not there]


def _inside(location: str) -> list[str]:
    filesystem, root = filesystem_of(location)
    with mapped(location):
        found = filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    return [info.path[len(root) + 1 :] for info in found if info.type == fs.FileType.File]


def _belongs(name: str, version: int) -> bool:
    """Whether a file of a table's folder was there when ``version`` was the newest, as far as its name tells."""
    if not name.startswith(_LOG):
        return True
    entry = name.removeprefix(_LOG).removeprefix(".")  # Hadoop's checksums of files are hidden beside them
    number = entry[:_DIGITS]
    # What names the newest checkpoint may name a newer one; readers find it without.
    return int(number) <= version if number.isdecimal() else not entry.startswith("_last_checkpoint")
