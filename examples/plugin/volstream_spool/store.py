"""The files of a folder, as a store: ``spool:///srv/files``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import BinaryIO
from urllib.parse import quote

from volstream.errors import StorageError
from volstream.plugins import FileInfo, Finding, Selection, content_type, is_utf8, printable


class SpoolStore:
    """The files below a folder. It holds nothing but its path, so copies of it can be sent to executors."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._root = location.removeprefix("spool://")

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        """See ObjectStore.list."""
        self._check()
        if prefix.startswith("/"):
            return
        for folder, _, names in os.walk(os.path.join(self._root, prefix)):
            for name in names:
                path = os.path.relpath(os.path.join(folder, name), self._root)
                if not is_utf8(path):
                    yield Finding(printable(path), "Its name is not UTF-8.")
                elif selection.accepts(path) and (info := self._info(path)) is not None:
                    yield info

    def head(self, path: str) -> FileInfo | None:
        """See ObjectStore.head."""
        self._check()
        return self._info(path) if is_utf8(path) and not path.endswith("/") else None

    def open(self, path: str) -> BinaryIO:
        """See ObjectStore.open."""
        self._check()
        return open(os.path.join(self._root, path), "rb")

    def url(self, path: str) -> str:
        """See ObjectStore.url."""
        return f"{self._location}/{quote(path)}"

    def _check(self) -> None:
        # A folder that is missing, such as an unmounted disk, must not look as if all files were deleted.
        if not os.path.isdir(self._root):
            raise StorageError(f"The folder {self._root} does not exist.", "Create it, or mount its disk.")

    def _info(self, path: str) -> FileInfo | None:
        try:
            stat = os.stat(os.path.join(self._root, path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not os.path.isfile(os.path.join(self._root, path)):
            return None
        changed = datetime.fromtimestamp(stat.st_mtime, UTC)
        version = f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"
        return FileInfo(path, stat.st_size, changed, version, content_type=content_type(path))
