"""Disks: errors of those that accept no more data, full or read-only, and what makes files survive a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from volstream.errors import DiskError

_FULL = (errno.ENOSPC, errno.EDQUOT)

#: Texts of these errors in messages of libraries that omit the number.
_FULL_TEXTS = (*map(os.strerror, _FULL), "ENOSPC", "disk is full")
_SEALED_TEXTS = (os.strerror(errno.EROFS), "EROFS")


def disk_error(error: BaseException | str, what: str) -> DiskError | None:
    """Returns the error for a full or read-only disk if ``error`` or its text indicates one; otherwise None.

    Args:
        what: name of what could not be written.
    """
    number, text = getattr(error, "errno", None), str(error)
    if number in _FULL or any(fragment in text for fragment in _FULL_TEXTS):
        return DiskError(f"No space left on the disk of {what}.", "Free space, then try again.")
    if number == errno.EROFS or any(fragment in text for fragment in _SEALED_TEXTS):
        return read_only_error(what)
    return None


def read_only_error(what: str) -> DiskError:
    """Returns the error for a read-only disk, to which ``what`` could not be written."""
    return DiskError(f"The disk of {what} is read-only.", "See the system's log, and mount it writable.")


def is_read_only(path: Path) -> bool:
    """True if an existing file or folder is on a read-only disk."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def user_name() -> str:
    """Returns the name of the user whose rights this process has, or the number if it has no name."""
    import pwd  # late: it is for Unix alone

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def sync(path: str) -> None:
    """Makes a file's content, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
