"""The files of a local directory, or of anything that is mounted as one.

Links: a link to a regular file inside the root is that file; a link out of the root, or to a directory, is a finding;
a dangling one is nothing. What does not belong here: noticing changes (``queues.local``).
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, NamedTuple

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

#: How something is opened to be looked at: without reading it, which may be forbidden, and without waiting, as a pipe would.
_LOOK = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_CLOEXEC

#: Where what this process has open can be opened again.
_DESCRIPTORS = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"


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
        if prefix != "/" and selection.descends(start) and (not start or _is_plain(start)):
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
        with self._found(path) as found:
            if found is not None:
                return _file_info(path, os.fstat(found.descriptor))
        self._identity()
        return None

    def open(self, path: str) -> BinaryIO:
        """See :meth:`ObjectStore.open`."""
        with _errors_of(path), self._found(path) as found:
            if found is None:
                raise self._missing(path)
            opened = f"{_DESCRIPTORS}/{found.descriptor}"
            # Under its own name, which some readers look at. The caller closes it.
            return open(found.path, "rb", opener=lambda _name, flags: os.open(opened, flags))

    def local_path(self, path: str) -> Path:
        """See :meth:`HasLocalPaths.local_path`. Links are resolved.

        Who opens the path later opens what is there then: for files that others may swap, :meth:`open` is the safe way.
        """
        with self._found(path) as found:
            if found is None:
                raise self._missing(path)
            return Path(found.path)

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

    def _missing(self, path: str) -> FileNotFoundError:
        """The error for a path where no file is; raises where the root is not there either."""
        self._identity()
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _scan(self, directory: str, real_root: str, selection: Selection) -> Iterator[FileInfo | Finding | str]:
        """The files and findings directly in ``directory``, and the paths of its sub-directories."""
        with _errors_of(directory or self._root):
            try:
                with _directory(self._root, directory) as reached:
                    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=reached)
            except (FileNotFoundError, NotADirectoryError):
                return
            with ExitStack() as held:
                held.callback(os.close, descriptor)
                for entry in held.enter_context(os.scandir(descriptor)):
                    path = f"{directory}/{entry.name}" if directory else entry.name
                    try:
                        found = _look(entry, path, real_root, selection)
                    except FileNotFoundError:
                        continue
                    if found is not None:
                        yield found

    @contextmanager
    def _found(self, path: str) -> Iterator[_Found | None]:
        """The regular file at ``path``, open while the block runs; None where there is none that a listing shows."""
        found = None
        if is_utf8(path) and _is_plain(path):
            with _errors_of(path):
                found = self._at_once(path) or self._step_by_step(path)
        try:
            yield found
        finally:
            if found is not None:
                os.close(found.descriptor)

    def _at_once(self, path: str) -> _Found | None:
        """The file at ``path`` where no link leads to it, which the kernel of Linux tells of what is open; else None."""
        if sys.platform != "linux":
            return None
        try:
            if self._plain_root is None:
                with _directory(self._root, "") as root:
                    self._plain_root = os.readlink(f"{_DESCRIPTORS}/{root}").rstrip("/")
            descriptor = os.open(f"{self._root}/{path}", _LOOK)
        except OSError:
            return None
        target = f"{self._plain_root}/{path}"
        # A root that has moved since leads to another target, too.
        plain = os.readlink(f"{_DESCRIPTORS}/{descriptor}") == target
        if plain:
            return _regular(descriptor, target)
        os.close(descriptor)
        return None

    def _step_by_step(self, path: str) -> _Found | None:
        """The file at ``path``, to which a link may lead; None where there is none, or it is outside of the root."""
        root = os.path.realpath(self._root)
        try:
            if stat.S_ISLNK(_status(root, path).st_mode):
                target = os.path.realpath(os.path.join(root, path))
                if not _is_inside(target, root):
                    return None
                path = _below(root, target)
            return _opened(root, path)
        except OSError as exc:
            if exc.errno in _NO_SUCH:
                return None
            raise


class _Found(NamedTuple):
    """A regular file that is open, to be looked at or opened for reading by its descriptor, and its real path."""

    descriptor: int
    path: str


def _opened(root: str, path: str) -> _Found | None:
    """The regular file at ``path`` below ``root``, reached through no link. Raises OSError of ``_NO_SUCH`` where nothing is."""
    parent, _, name = path.rpartition("/")
    with _directory(root, parent) as directory:
        descriptor = os.open(name, _LOOK | os.O_NOFOLLOW, dir_fd=directory)
    return _regular(descriptor, os.path.join(root, path))


def _regular(descriptor: int, path: str) -> _Found | None:
    """What is open, where that is a regular file; else it is closed."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return _Found(descriptor, path)
    os.close(descriptor)
    return None


def _status(root: str, path: str) -> os.stat_result:
    """The status of what is at ``path`` below ``root``, reached through no link, itself perhaps one."""
    parent, _, name = path.rpartition("/")
    with _directory(root, parent) as directory:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)


def _is_plain(path: str) -> bool:
    """Whether ``path`` is spelled as a listing spells it."""
    return "\0" not in path and all(part not in {"", ".", ".."} for part in path.split("/"))


@contextmanager
def _directory(root: str, path: str) -> Iterator[int]:
    """A directory below ``root``, open while the block runs; FileNotFoundError or NotADirectoryError where there is none.

    It is reached from directory to directory and through no link. Between a look at a name and its use, whoever may write
    to the volume could put a link to another place there; what is open stays what it was.
    """
    reached = os.open(root, _LOOK | os.O_DIRECTORY)
    try:
        for part in path.split("/") if path else ():
            below = os.open(part, _LOOK | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=reached)
            os.close(reached)
            reached = below
        yield reached
    finally:
        os.close(reached)


def _look(entry: os.DirEntry[str], path: str, real_root: str, selection: Selection) -> FileInfo | Finding | str | None:
    """What a listing makes of one entry: a file, a finding, a directory's path to walk, or nothing."""
    if entry.is_file(follow_symlinks=False):  # first: nearly all are
        if not selection.accepts_name(path):
            return None
        if not is_utf8(path):
            return Finding(printable(path), _NOT_UTF8)
        return _file_info(path, entry.stat(follow_symlinks=False))
    if entry.is_symlink():
        return _look_at_link(path, real_root, selection)
    if not entry.is_dir(follow_symlinks=False) or not selection.descends(path):
        return None
    return path if is_utf8(path) else Finding(printable(path) + "/", _NOT_UTF8)


def _look_at_link(path: str, real_root: str, selection: Selection) -> FileInfo | Finding | None:
    target = os.path.realpath(os.path.join(real_root, path))
    inside = _is_inside(target, real_root)
    try:
        status = _status(real_root, _below(real_root, target)) if inside else os.stat(target)
    except OSError as exc:
        if exc.errno in _NO_SUCH:
            return None
        if isinstance(exc, PermissionError) and not inside:
            return Finding(printable(path), _LINK_OUT) if selection.accepts_name(path) else None
        raise
    if stat.S_ISDIR(status.st_mode):
        return Finding(printable(path), _LINK_DIRECTORY) if selection.descends(path) else None
    if not stat.S_ISREG(status.st_mode) or not selection.accepts_name(path):
        return None
    if not is_utf8(path):
        return Finding(printable(path), _NOT_UTF8)
    return _file_info(path, status) if inside else Finding(printable(path), _LINK_OUT)


def _below(real_root: str, target: str) -> str:
    return target[len(real_root) :].strip("/")


def _is_inside(target: str, real_root: str) -> bool:
    return target.startswith(real_root.rstrip("/") + "/")


def _file_info(path: str, status: os.stat_result) -> FileInfo:
    size, time_ns = status.st_size, status.st_mtime_ns
    try:
        modified = _EPOCH + timedelta(0, 0, time_ns // 1000)
    except OverflowError:
        # Some file systems keep times that a datetime cannot hold; the etag still has the exact one.
        modified = (datetime.max if time_ns > 0 else datetime.min).replace(tzinfo=UTC)
    return FileInfo(path, size, modified, f"{status.st_ino:x}-{time_ns:x}-{size:x}", None, content_type(path))


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
