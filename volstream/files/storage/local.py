"""The files of a local directory, or of anything mounted as one.

Links: a link to a regular file inside the root counts as that file. A link out of the root or to a directory
is a finding. A dangling link is ignored. Not here: detecting changes (``queues.local``).
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import shutil
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, NamedTuple

from volstream.base.model.paths import (
    FileInfo,
    Finding,
    Selection,
    content_type,
    file_uri,
    is_utf8,
    local_path,
    printable,
    quote_path,
)
from volstream.base.processes import user_name
from volstream.errors import InvalidValueError, StorageDeniedError, StorageError
from volstream.files.storage.base import Details

_NOT_UTF8 = "The name is not valid UTF-8, so no table can hold it; rename it."
_LINK_OUT = "A symbolic link to a file outside the volume's location is not followed."
_LINK_DIRECTORY = "A symbolic link to a directory is not followed."
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Errors for a path that cannot exist: a missing or non-directory parent, a loop of links, a name too long.
_NO_SUCH = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}

#: Prefix of a user's extended attributes.
_USER = "user."

#: Flags to open a path without reading it, which may be forbidden, and without blocking on a pipe.
_INSPECT = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_CLOEXEC

#: From ``linux/stat.h``: the size of a ``struct statx``, the offset of the birth time, and its bit in the
#: mask.
_STATX_BYTES, _BTIME, _STATX_BTIME, _AT_FDCWD = 256, 80, 0x800, -100

#: ``renameat2`` from the C library, which Python lacks (None if the library does, too), and a flag from
#: ``linux/fs.h``.
_RENAMEAT2, _RENAME_NOREPLACE = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None), 1

#: Errors of file systems without such renames, or without hard links.
_NO_EXCLUSIVE_RENAME = {errno.EINVAL, errno.ENOSYS}
_NO_LINK = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}

#: Bytes per read from a file of unknown size.
_PART_BYTES = 1 << 20

#: Directory through which this process can reopen its open files.
_DESCRIPTORS = "/proc/self/fd"


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
        """See :meth:`ObjectStore.list`. A directory removed during the listing has no files; an unreadable
        one raises."""
        before = self._identity()
        real_root = os.path.realpath(self._root)
        start = prefix.removesuffix("/")
        if prefix != "/" and selection.may_contain(start) and (not start or _is_plain(start)):
            pending = [start]
            while pending:
                directory = pending.pop()
                for entry in self._scan(directory, real_root, selection):
                    if isinstance(entry, str):
                        pending.append(entry)
                    else:
                        yield entry
        if self._identity() != before:
            raise StorageError(
                f"The directory {printable(self._root)} was replaced or remounted while it was listed.",
                "The listing will be repeated.",
            )

    def head(self, path: str) -> FileInfo | None:
        """See :meth:`ObjectStore.head`. Also None if the path is not UTF-8 or leaves the location."""
        file = self._find(path)
        if file is None:
            self._identity()
            return None
        os.close(file.descriptor)
        return _file_info(path, file.status)

    def open(self, path: str) -> BinaryIO:
        """See :meth:`ObjectStore.open`."""
        file = self._find(path)
        if file is None:
            raise self._missing(path)
        try:
            return _reader(file)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _mapped(path, error) from error

    def read_bytes(self, path: str) -> bytes:
        """Returns the whole content like :meth:`open`, with half of the system calls."""
        file = self._find(path)
        if file is None:
            raise self._missing(path)
        try:
            opened = os.open(f"{_DESCRIPTORS}/{file.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                parts = [os.read(opened, file.status.st_size + 1)]
                if len(parts[0]) != file.status.st_size:  # it is being written, has no known size, or is huge
                    while parts[-1]:
                        parts.append(os.read(opened, _PART_BYTES))
                return parts[0] if len(parts) == 1 else b"".join(parts)
            finally:
                os.close(opened)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _mapped(path, error) from error
        finally:
            os.close(file.descriptor)

    def local_path(self, path: str) -> Path:
        """See :meth:`HasLocalPaths.local_path`. Links are resolved.

        A later open may find a different file. Use :meth:`open` if others may swap files.
        """
        file = self._find(path)
        if file is None:
            raise self._missing(path)
        os.close(file.descriptor)
        return Path(file.path)

    def details(self, path: str) -> Details:
        """See :meth:`HasDetails.details`."""
        file = self._find(path)
        if file is None:
            raise self._missing(path)
        try:
            return Details(_attributes(f"{_DESCRIPTORS}/{file.descriptor}"))
        finally:
            os.close(file.descriptor)

    def tags(self, path: str) -> Mapping[str, str]:
        """See :meth:`HasDetails.tags`. Local files have no tags."""
        if self.head(path) is None:
            raise self._missing(path)
        return {}

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See :meth:`HasDetails.read_range`."""
        with self.open(path) as file:
            file.seek(start)
            return file.read(length)

    def presigned_url(self, path: str, seconds: int) -> str:  # noqa: ARG002  # part of the protocol
        """See :meth:`HasDetails.presigned_url`. Always raises: local files have no such URLs."""
        raise InvalidValueError(
            f"{printable(path)} is a local file, for which there are no presigned URLs.", "Use file.local_path()."
        )

    def has_version(self, path: str, version: str) -> bool:
        """See :meth:`HasLocalPaths.has_version`. The version identifies the file, even through links."""
        try:
            status = os.stat(f"{self._root}/{path}")
        except (OSError, ValueError):
            return False
        return stat.S_ISREG(status.st_mode) and _etag(status) == version

    def born(self, path: str) -> datetime | None:
        """See :meth:`HasBirths.born`."""
        return _born(f"{self._root}/{path}")

    def write(self, path: str, content: bytes) -> None:
        """See :meth:`Writable.write`. Directly below the root only."""
        _check_plain(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with _errors_of(path), held_directory(self._root, "") as root, os.fdopen(os.open(path, flags, dir_fd=root), "wb") as file:
            file.write(content)

    def remove(self, path: str) -> None:
        """See :meth:`Writable.remove`. Also removes folders left empty: a file may need such a name."""
        _check_plain(path)
        folder, _, name = path.rpartition("/")
        with _errors_of(path), suppress(FileNotFoundError, NotADirectoryError), held_directory(self._root, folder) as descriptor:
            os.unlink(name, dir_fd=descriptor)
        with suppress(OSError):  # not empty
            while folder:
                above, _, name = folder.rpartition("/")
                with held_directory(self._root, above) as descriptor:
                    os.rmdir(name, dir_fd=descriptor)
                folder = above

    def put(self, path: str, content: BinaryIO, content_type: str | None) -> tuple[int, str]:  # noqa: ARG002  # part of the protocol
        """See :meth:`TakesOutputs.put`. Does not store the type: listings derive it from the name."""
        self._identity()
        _check_plain(path)
        folder, _, name = path.rpartition("/")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with _errors_of(path), self._created_folder(folder) as descriptor:
            try:
                opened = os.open(name, flags, 0o666, dir_fd=descriptor)
            except FileNotFoundError as error:
                raise StorageError(f"The folder {printable(folder)} was removed meanwhile.") from error
            with os.fdopen(opened, "wb") as file:
                try:
                    shutil.copyfileobj(content, file, 1 << 20)
                    file.flush()
                    os.fsync(file.fileno())
                except BaseException:
                    os.unlink(name, dir_fd=descriptor)
                    raise
                status = os.fstat(file.fileno())
            _sync(descriptor)
        return status.st_size, _etag(status)

    def move(self, path: str, to: str, *, replaces: bool = True) -> str | None:
        """See :meth:`TakesOutputs.move`. Never between file systems."""
        self._identity()
        _check_plain(path)
        _check_plain(to)
        (source, _, name), (target, _, new) = path.rpartition("/"), to.rpartition("/")
        with _errors_of(to), ExitStack() as stack:
            try:
                source_fd = stack.enter_context(held_directory(self._root, source))
                status = os.stat(name, dir_fd=source_fd, follow_symlinks=False)
            except FileNotFoundError:
                return None
            if not stat.S_ISREG(status.st_mode):
                raise StorageError(f"{printable(path)} was replaced by something that is not a file.")
            target_fd = stack.enter_context(self._created_folder(target))
            try:
                (os.rename if replaces else _rename_to_free)(name, new, src_dir_fd=source_fd, dst_dir_fd=target_fd)
            except FileNotFoundError as error:
                raise StorageError(f"{printable(path)}, or the folder of {printable(to)}, was removed meanwhile.") from error
            _sync(target_fd)
        return _etag(status)

    def remove_folder(self, path: str) -> None:
        """See :meth:`TakesOutputs.remove_folder`."""
        self._identity()
        _check_plain(path)
        above, _, name = path.rpartition("/")
        with _errors_of(path), suppress(FileNotFoundError, NotADirectoryError), held_directory(self._root, above) as descriptor:
            remove_tree(name, descriptor)

    def obstacle(self, path: str) -> str | None:
        """See :meth:`TakesOutputs.obstacle`."""
        self._identity()
        _check_plain(path)
        parts = path.split("/")
        with _errors_of(path):
            for depth in range(1, len(parts)):
                folder = "/".join(parts[:depth])
                if os.path.islink(f"{self._root}/{folder}"):
                    return f"is below the symbolic link {folder}"
                if not os.path.lexists(f"{self._root}/{folder}"):
                    return None
                if not os.path.isdir(f"{self._root}/{folder}"):
                    return f"is below {folder}, which is a file"
            return "already exists" if os.path.lexists(f"{self._root}/{path}") else None

    @contextmanager
    def _created_folder(self, path: str) -> Iterator[int]:
        """Opens a folder below the root. Durably creates it and missing parents.

        Like :func:`held_directory`, never follows links.
        """
        parts = path.split("/") if path else []
        with held_directory(self._root, "") as root:
            reached = os.dup(root)
        try:
            for depth, part in enumerate(parts, 1):
                try:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=reached)
                        _sync(reached)
                    below = os.open(part, _INSPECT | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=reached)
                except NotADirectoryError:
                    blocked = printable("/".join(parts[:depth]))
                    raise StorageError(
                        f"{blocked} is a file or a symbolic link, below which nothing is written.", "Remove it."
                    ) from None
                except FileNotFoundError as error:  # for example by remove(), which removes empty folders
                    raise StorageError(f"The folder {printable(path)} was removed meanwhile.") from error
                os.close(reached)
                reached = below
            yield reached
        finally:
            os.close(reached)

    def url(self, path: str) -> str:
        """See :meth:`ObjectStore.url`."""
        return f"{self._url}/{quote_path(path)}"

    def _identity(self) -> tuple[int, int]:
        """Returns the root's device and inode. Raises if missing, which must not look like deleted files."""
        with _errors_of(self._root):
            try:
                status = os.stat(self._root)
            except (FileNotFoundError, NotADirectoryError) as exc:
                raise _no_root(self._root) from exc
        if not stat.S_ISDIR(status.st_mode):
            raise _no_root(self._root)
        return status.st_dev, status.st_ino

    def root_id(self) -> str:
        """See :meth:`HasLocalPaths.root_id`."""
        device, inode = self._identity()
        return f"{device}:{inode}"

    def _missing(self, path: str) -> FileNotFoundError:
        """Returns the error for a path without a file. Raises StorageError if the root is missing."""
        self._identity()
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _scan(self, directory: str, real_root: str, selection: Selection) -> Iterator[FileInfo | Finding | str]:
        """Yields the files and findings directly in ``directory``, and its sub-directories' paths."""
        with _errors_of(directory or self._root):
            for entry in entries_of(self._root, directory):
                path = f"{directory}/{entry.name}" if directory else entry.name
                try:
                    item = _entry(entry, path, real_root, selection)
                except FileNotFoundError:
                    continue
                if item is not None:
                    yield item

    def _find(self, path: str) -> _Found | None:
        """Returns the regular file at ``path``, or None if a listing would not show it. The caller closes it.

        Called twice for each file of a batch: context managers would take a third of the time.
        """
        if not (is_utf8(path) and _is_plain(path)):
            return None
        try:
            return self._find_plain(path) or self._find_linked(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _mapped(path, error) from error

    def _find_plain(self, path: str) -> _Found | None:
        """Returns the file at ``path`` unless a link leads to it, by the kernel's name of the open file."""
        try:
            if self._plain_root is None:
                with held_directory(self._root, "") as root:
                    self._plain_root = os.readlink(f"{_DESCRIPTORS}/{root}").rstrip("/")
            descriptor = os.open(f"{self._root}/{path}", _INSPECT)
        except OSError:
            return None
        target = f"{self._plain_root}/{path}"
        # If the root was moved, the target differs, too.
        plain = os.readlink(f"{_DESCRIPTORS}/{descriptor}") == target
        if plain:
            return _regular(descriptor, target)
        os.close(descriptor)
        return None

    def _find_linked(self, path: str) -> _Found | None:
        """Returns the file at ``path``, possibly through a link, or None if missing or outside of the
        root."""
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
    """An open regular file: a descriptor through which to reopen it for reading, its real path and its
    status."""

    descriptor: int
    path: str
    status: os.stat_result


def _opened(root: str | int, path: str) -> _Found | None:
    """Returns the regular file at ``path`` below ``root``, without following links. Raises OSError
    (``_NO_SUCH``)."""
    parent, _, name = path.rpartition("/")
    with held_directory(root, parent) as directory:
        descriptor = os.open(name, _INSPECT | os.O_NOFOLLOW, dir_fd=directory)
    return _regular(descriptor, os.path.join(str(root), path))


def open_regular(root: str | int, path: str) -> BinaryIO:
    """Opens a file below ``root`` for reading. Raises FileNotFoundError for pipes, and if a link leads to
    it."""
    try:
        found = _opened(root, path)
    except OSError as error:
        if error.errno not in _NO_SUCH:
            raise
        found = None
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{root}/{path}")
    return _reader(found)


def _reader(file: _Found) -> BinaryIO:
    """Opens a found file for reading, and closes its descriptor. The caller closes the file."""
    opened = f"{_DESCRIPTORS}/{file.descriptor}"
    try:
        # Keeps the file's own name, which some readers inspect. Users' functions may replace `open`.
        return io.BufferedReader(io.FileIO(file.path, opener=lambda _name, flags: os.open(opened, flags)))
    finally:
        os.close(file.descriptor)


def _regular(descriptor: int, path: str) -> _Found | None:
    """Returns the open file if it is regular. Otherwise closes it."""
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return _Found(descriptor, path, status)
    os.close(descriptor)
    return None


def _attributes(path: str) -> dict[str, str]:
    """Returns a file's extended user attributes. Empty on file systems without them."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for name in os.listxattr(path):
            if name.startswith(_USER):
                found[name.removeprefix(_USER)] = os.getxattr(path, name).decode("utf-8", "replace")
    return found


def _status(root: str, path: str) -> os.stat_result:
    """Returns the status of ``path`` below ``root``, which may be a link. Follows no links."""
    parent, _, name = path.rpartition("/")
    with held_directory(root, parent) as directory:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)


def _is_plain(path: str) -> bool:
    """True if ``path`` is spelled as in listings."""
    return "\0" not in path and all(part not in {"", ".", ".."} for part in path.split("/"))


def _check_plain(path: str) -> None:
    """Raises StorageError for a path that leads out of the root or is not spelled as in listings."""
    if not _is_plain(path):
        raise StorageError(f"{printable(path)} is not the path of a file.")


@contextmanager
def held_directory(root: str | int, path: str) -> Iterator[int]:
    """Opens a directory below ``root`` (a path or an open directory) for the duration of the block.

    Opens one level at a time, without following links. Between checking and using a name, anyone with write
    permission could replace it by a link elsewhere; an open directory stays the same. Raises
    FileNotFoundError or NotADirectoryError if missing.
    """
    reached = os.dup(root) if isinstance(root, int) else os.open(root, _INSPECT | os.O_DIRECTORY)
    try:
        for part in path.split("/") if path else ():
            below = os.open(part, _INSPECT | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=reached)
            os.close(reached)
            reached = below
        yield reached
    finally:
        os.close(reached)


def entries_of(root: str | int, path: str) -> Iterator[os.DirEntry[str]]:
    """Yields the entries of a directory. Empty if it is missing or a link leads to it."""
    try:
        with held_directory(root, path) as reached:
            descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=reached)
    except (FileNotFoundError, NotADirectoryError):
        return
    with ExitStack() as stack:
        stack.callback(os.close, descriptor)
        yield from stack.enter_context(os.scandir(descriptor))


def remove_tree(name: str, directory: int) -> None:
    """Removes a folder of an open directory with its content. Of a link, removes only the link."""
    if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=directory)
    else:
        shutil.rmtree(name, dir_fd=directory)


def _rename_to_free(name: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
    """Renames a file. Raises FileExistsError if the new name is taken."""
    try:
        _rename_exclusively(name, new, src_dir_fd, dst_dir_fd)
    except FileExistsError:
        # It may be the file itself, if a process was killed between linking and unlinking it.
        old, existing = os.stat(name, dir_fd=src_dir_fd), os.stat(new, dir_fd=dst_dir_fd, follow_symlinks=False)
        if not os.path.samestat(old, existing):
            raise
        os.unlink(name, dir_fd=src_dir_fd)


def _rename_exclusively(name: str, new: str, here: int, there: int) -> None:
    if _RENAMEAT2 is not None:
        if _RENAMEAT2(here, os.fsencode(name), there, os.fsencode(new), _RENAME_NOREPLACE) == 0:
            return
        failed = ctypes.get_errno()
        if failed not in _NO_EXCLUSIVE_RENAME:
            raise OSError(failed, os.strerror(failed), new)
    try:
        os.link(name, new, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
    else:
        os.unlink(name, dir_fd=here)
        return
    # reserves the name
    os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, dir_fd=there))
    try:
        os.rename(name, new, src_dir_fd=here, dst_dir_fd=there)
    except BaseException:
        os.unlink(new, dir_fd=there)
        raise


def _sync(directory: int) -> None:
    """Syncs the names in an open directory to disk."""
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entry(entry: os.DirEntry[str], path: str, real_root: str, selection: Selection) -> FileInfo | Finding | str | None:
    """Returns an entry of a listing: a file, a finding, the path of a directory to walk, or None."""
    if entry.is_file(follow_symlinks=False):  # first, because nearly all entries are files
        if not selection.accepts_name(path):
            return None
        if not is_utf8(path):
            return Finding(printable(path), _NOT_UTF8)
        return _file_info(path, entry.stat(follow_symlinks=False))
    if entry.is_symlink():
        return _link_entry(path, real_root, selection)
    if not entry.is_dir(follow_symlinks=False) or not selection.may_contain(path):
        return None
    return path if is_utf8(path) else Finding(printable(path) + "/", _NOT_UTF8)


def _link_entry(path: str, real_root: str, selection: Selection) -> FileInfo | Finding | None:
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
        return Finding(printable(path), _LINK_DIRECTORY) if selection.may_contain(path) else None
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
    return FileInfo(path, status.st_size, time_of(status.st_mtime_ns), _etag(status), None, content_type(path))


def time_of(time_ns: int) -> datetime:
    """Converts a file's time in nanoseconds, clamped to datetime's range."""
    try:
        return _EPOCH + timedelta(0, 0, time_ns // 1000)
    except OverflowError:
        # Some file systems store times outside datetime's range. The etag still has the exact time.
        return (datetime.max if time_ns > 0 else datetime.min).replace(tzinfo=UTC)


def _etag(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _born(path: str) -> datetime | None:
    """Returns when a file was created, from Linux's ``statx``, which Python lacks."""
    statx = getattr(ctypes.CDLL(None), "statx", None)
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if statx is None or b"\0" in os.fsencode(path) or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, found):
        return None
    (mask,) = struct.unpack_from("=I", found)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BTIME)
    return time_of(seconds * 10**9 + nanoseconds) if mask & _STATX_BTIME else None


def _no_root(root: str) -> StorageError:
    return StorageError(
        f"The directory {printable(root)} does not exist or is not a directory.",
        "Mount or create it; until then the directory table keeps its files.",
    )


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
    """Maps OS errors for ``path``, except FileNotFoundError and FileExistsError, which callers handle."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        raise _mapped(path, error) from error


def _mapped(path: str, error: OSError) -> StorageError:
    if isinstance(error, PermissionError):
        return StorageDeniedError(
            f"Permission denied: {printable(path)} ({error.strerror}).",
            f"Let the user {user_name()} read it, or exclude it with an ignore pattern.",
        )
    return StorageError(f"{printable(path)} cannot be read: {error.strerror or error}.")
