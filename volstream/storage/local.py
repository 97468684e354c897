"""The files of a local directory, or of anything that is mounted as one.

Links: a link to a regular file inside the root is that file; a link out of the root, or to a directory, is a finding;
a dangling one is nothing. What does not belong here: noticing changes (``queues.local``).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from volstream.errors import StorageDeniedError, StorageError
from volstream.model.files import FileInfo, Finding, is_utf8, printable
from volstream.model.locations import file_uri, local_path, quote_path
from volstream.model.selection import Selection
from volstream.storage.types import content_type

_NOT_UTF8 = "The name is not valid UTF-8, so no table can hold it; rename it."
_LINK_OUT = "A symbolic link to a file outside the volume's location is not followed."
_LINK_DIRECTORY = "A symbolic link to a directory is not followed."
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The path cannot name an object: a missing or non-directory parent, a loop of links, a name too long to exist.
_NO_SUCH = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


class LocalStore:
    """The objects below a directory.

    Args:
        location: a ``file:`` URI or plain path.
    """

    def __init__(self, location: str) -> None:
        self._root = local_path(location)
        self._plain_root: str | None = None
        self._url = file_uri(self._root).rstrip("/")

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        """See :meth:`ObjectStore.list`. A directory that vanishes meanwhile has no files; an unreadable one raises."""
        before = self._identity()
        real_root = os.path.realpath(self._root)
        start = prefix.removesuffix("/")
        if prefix != "/" and selection.descends(start) and self._is_plain_directory(real_root, start):
            pending = [start]
            while pending:
                directory = pending.pop()
                for found in self._scan(directory, real_root, selection):
                    if isinstance(found, str):
                        pending.append(found)
                    else:
                        yield found
        if self._identity() != before:
            raise StorageError(
                f"The directory {printable(self._root)} was replaced or remounted while it was listed.",
                "The listing will be tried again.",
            )

    def head(self, path: str) -> FileInfo | None:
        """See :meth:`ObjectStore.head`. None also for a path that is not UTF-8 or not inside the location."""
        found = self._resolve(path) if is_utf8(path) else None
        if found is None:
            self._identity()
            return None
        return _file_info(path, found[1])

    def open(self, path: str) -> BinaryIO:
        """See :meth:`ObjectStore.open`."""
        with _errors_of(path):
            return open(self._target(path), "rb")  # a Path costs more than the rest; the caller closes it

    def local_path(self, path: str) -> Path:
        """See :meth:`HasLocalPaths.local_path`. Links are resolved."""
        return Path(self._target(path))

    def write(self, path: str, content: bytes) -> None:
        """See :meth:`Writable.write`. Directly below the root only."""
        with _errors_of(path):
            Path(self._root, path).write_bytes(content)

    def remove(self, path: str) -> None:
        """See :meth:`Writable.remove`."""
        with _errors_of(path):
            Path(self._root, path).unlink(missing_ok=True)

    def url(self, path: str) -> str:
        """See :meth:`ObjectStore.url`."""
        return f"{self._url}/{quote_path(path)}"

    def _identity(self) -> tuple[int, int]:
        """Device and inode of the root; raises where it is not there: that must not read as "all files are gone"."""
        with _errors_of(self._root):
            try:
                status = os.stat(self._root)
            except (FileNotFoundError, NotADirectoryError) as exc:
                raise _no_root(self._root) from exc
        if not stat.S_ISDIR(status.st_mode):
            raise _no_root(self._root)
        return status.st_dev, status.st_ino

    def _is_plain_directory(self, real_root: str, directory: str) -> bool:
        """Whether ``directory`` is one that a walk from the root reaches: no link on the way, no ``..``."""
        if not directory:
            return True
        if "\0" in directory or any(part in {"", ".", ".."} for part in directory.split("/")):
            return False
        full = os.path.join(real_root, directory)
        return os.path.realpath(full) == full

    def _scan(self, directory: str, real_root: str, selection: Selection) -> Iterator[FileInfo | Finding | str]:
        """The files and findings directly in ``directory``, and the paths of its sub-directories."""
        with _errors_of(directory or self._root):
            try:
                entries = os.scandir(os.path.join(self._root, directory))
            except (FileNotFoundError, NotADirectoryError):
                return
            with entries:
                for entry in entries:
                    path = f"{directory}/{entry.name}" if directory else entry.name
                    try:
                        found = _look(entry, path, real_root, selection)
                    except FileNotFoundError:
                        continue
                    if found is not None:
                        yield found

    def _target(self, path: str) -> str:
        found = self._resolve(path)
        if found is None:
            self._identity()
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found[0]

    def _resolve(self, path: str) -> tuple[str, os.stat_result] | None:
        """The real path and status of the regular file at ``path``; None where there is none that a listing shows."""
        return self._resolve_plain(path) or self._resolve_links(path)

    def _resolve_plain(self, path: str) -> tuple[str, os.stat_result] | None:
        """As :meth:`_resolve`, of a file to which no link leads, which the kernel of Linux tells at once; else None."""
        try:
            if self._plain_root is None:
                self._plain_root = _opened(self._root)[0].rstrip("/")
            target, status = _opened(f"{self._root}/{path}")
        except (OSError, ValueError):
            return None
        # A root that has moved since leads to another target, too.
        plain = target == f"{self._plain_root}/{path}"
        return (target, status) if plain and stat.S_ISREG(status.st_mode) else None

    def _resolve_links(self, path: str) -> tuple[str, os.stat_result] | None:
        parent, _, name = path.rpartition("/")
        if name in {"", ".", ".."} or "\0" in name or (not parent and path.startswith("/")):
            return None
        real_root = os.path.realpath(self._root)
        if not self._is_plain_directory(real_root, parent):
            return None
        with _errors_of(path):
            target = os.path.realpath(os.path.join(real_root, path))
            try:
                status = os.stat(target)
            except OSError as exc:
                if exc.errno in _NO_SUCH:
                    return None
                raise
        return (target, status) if stat.S_ISREG(status.st_mode) and _is_inside(target, real_root) else None


def _look(entry: os.DirEntry[str], path: str, real_root: str, selection: Selection) -> FileInfo | Finding | str | None:
    """What a listing makes of one entry: a file, a finding, a directory's path to walk, or nothing."""
    if not entry.is_file(follow_symlinks=False):
        return _look_at_other(entry, path, real_root, selection)
    if not selection.accepts_name(path):
        return None
    if not is_utf8(path):
        return Finding(printable(path), _NOT_UTF8)
    return _file_info(path, entry.stat(follow_symlinks=False))


def _look_at_other(
    entry: os.DirEntry[str], path: str, real_root: str, selection: Selection
) -> FileInfo | Finding | str | None:
    if entry.is_symlink():
        return _look_at_link(entry, path, real_root, selection)
    if not entry.is_dir(follow_symlinks=False) or not selection.descends(path):
        return None
    return path if is_utf8(path) else Finding(printable(path) + "/", _NOT_UTF8)


def _look_at_link(
    entry: os.DirEntry[str], path: str, real_root: str, selection: Selection
) -> FileInfo | Finding | None:
    target = os.path.realpath(entry.path)
    try:
        status = os.stat(target)
    except OSError as exc:
        if exc.errno in _NO_SUCH:
            return None
        if isinstance(exc, PermissionError) and not _is_inside(target, real_root):
            return Finding(printable(path), _LINK_OUT) if selection.accepts_name(path) else None
        raise
    if stat.S_ISDIR(status.st_mode):
        return Finding(printable(path), _LINK_DIRECTORY) if selection.descends(path) else None
    if not stat.S_ISREG(status.st_mode) or not selection.accepts_name(path):
        return None
    if not is_utf8(path):
        return Finding(printable(path), _NOT_UTF8)
    return _file_info(path, status) if _is_inside(target, real_root) else Finding(printable(path), _LINK_OUT)


def _opened(path: str) -> tuple[str, os.stat_result]:
    """The real path and the status of what is at ``path``, of one moment. Raises OSError where the system cannot tell."""
    if not hasattr(os, "O_PATH"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _is_inside(target: str, real_root: str) -> bool:
    return target.startswith(real_root.rstrip("/") + "/")


def _file_info(path: str, status: os.stat_result) -> FileInfo:
    changed, size = status.st_mtime_ns, status.st_size
    try:
        # Integers all the way: seconds as a float lose microseconds.
        modified = _EPOCH + timedelta(0, changed // 1_000_000_000, changed // 1_000 % 1_000_000)
    except OverflowError:
        # Some file systems keep times that a datetime cannot hold; the etag still has the exact one.
        modified = (datetime.max if changed > 0 else datetime.min).replace(tzinfo=UTC)
    return FileInfo(path, size, modified, f"{status.st_ino:x}-{changed:x}-{size:x}", None, content_type(path))


def _no_root(root: str) -> StorageError:
    return StorageError(
        f"The directory {printable(root)} does not exist or is not a directory.",
        "Mount or create it; until then its files are kept in the directory table as they were.",
    )


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
    """Maps what the operating system raises about ``path``; FileNotFoundError passes: the caller knows what it means."""
    try:
        yield
    except FileNotFoundError:
        raise
    except PermissionError as exc:
        raise StorageDeniedError(
            f"Permission denied: {printable(path)} ({exc.strerror}).",
            "Let the user that volstream runs as read it, or exclude it with an ignore pattern.",
        ) from exc
    except OSError as exc:
        raise StorageError(f"{printable(path)} cannot be read: {exc.strerror or exc}.") from exc
