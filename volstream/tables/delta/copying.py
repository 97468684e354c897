"""Copies tables and folders during concurrent writes, which do not change the files of a table's version.

Source and target may each be in an object store.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

from deltalake.exceptions import TableNotFoundError

from volstream.errors import StorageError
from volstream.tables.delta.places import files, filesystem_of, make_folder, mapped, open_below, open_table

_LOG = "_delta_log/"

#: Number of digits in the name of a log entry.
_DIGITS = 20

#: Number of concurrent copies, which mostly wait for disk or network.
_COPIERS = 4

_PIECE = 1 << 20


def copy_table(location: str, version: int, target: str) -> None:
    """Copies a table as of a version that was recently the newest, including files that older versions still
    need.

    Leaves out a table within its folder, such as a tail: it has its own versions.

    Raises:
        StorageError: files of the version were removed before they could be copied.
        DependencyError: a table cannot be read or written.
    """
    # Copy the log first: runs delete log entries sooner than data.
    names = sorted(_inside(location), key=lambda name: not name.startswith(_LOG))
    nested = tuple({f"{name.partition(f'/{_LOG}')[0]}/" for name in names if f"/{_LOG}" in name})
    wanted = [name for name in names if not name.startswith(nested) and _belongs(name, version)]
    missing = {unquote(name) for name in copy_files(location, wanted, target)}
    with mapped(target):
        try:
            copied = open_table(target)
        except TableNotFoundError:
            raise StorageError(f"The log of {location} was cleaned up while it was copied.", "Try again.") from None
        needed = missing.intersection(map(unquote, copied.get_add_actions()["path"].to_pylist())) if missing else set()
        needed |= {name for name in missing if name.startswith("deletion_vector")}
    if needed or copied.version() != version:
        raise StorageError(
            f"The table at {location} was vacuumed while it was copied: files of version {version} were deleted.", "Try again."
        )


def copy_folder(location: str, target: str, folder: str = "") -> None:
    """Copies all files of a folder, or of a subfolder, if it exists."""
    copy_files(location, _inside(location, folder), target)


def copy_files(location: str, names: Sequence[str], target: str) -> Sequence[str]:
    """Copies files of a folder. Returns the names of files that no longer exist."""
    sink, folder = filesystem_of(target)
    for parent in sorted({name.rpartition("/")[0] for name in names}):
        make_folder(f"{target}/{parent}".rstrip("/"))

    def copy(name: str) -> bool:
        try:
            with open_below(location, name) as read, sink.open_output_stream(f"{folder}/{name}") as write:
                shutil.copyfileobj(read, write, _PIECE)
        except FileNotFoundError:
            return False
        return True

    with mapped(target), ThreadPoolExecutor(_COPIERS, thread_name_prefix="copy") as pool:
        return [name for name, copied in zip(names, pool.map(copy, names), strict=True) if not copied]


def _inside(location: str, folder: str = "") -> list[str]:
    with mapped(location):
        return [file.path for file in files(location, folder, recursive=True)]


def _belongs(name: str, version: int) -> bool:
    """True if, by its name, a file in a table's folder belongs to a copy as of ``version``."""
    if not name.startswith(_LOG):
        return True
    entry = name.removeprefix(_LOG).removeprefix(".")  # Hadoop's checksum files are hidden files
    number = entry[:_DIGITS]
    # _last_checkpoint may point to a later checkpoint. Without it, readers search for one.
    return int(number) <= version if number.isdecimal() else not entry.startswith("_last_checkpoint")
