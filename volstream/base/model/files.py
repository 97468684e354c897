"""A file of a volume as reported by a store, and listing entries that cannot become rows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

#: Maximum number of files in a set that a function takes together; all of them are in one row of a plan.
MAX_OF_SET = 100_000


class FileInfo(NamedTuple):
    """One object of a store. A tuple, because a listing creates millions, and a frozen dataclass takes three times as long.

    Attributes:
        relative_path: ``/``-separated, relative to the volume's location.
        size: bytes.
        last_modified_time: UTC.
        etag: changes whenever the content may have changed. Local files: inode, mtime in ns and size.
        version_id: the store's own version, or None if it has none.
        content_type: as reported by the store, else guessed from the name, else None.
    """

    relative_path: str
    size: int
    last_modified_time: datetime
    etag: str
    version_id: str | None = None
    content_type: str | None = None

    @property
    def version(self) -> str:
        """The identity of this content: the store's version id, else the etag."""
        return self.version_id or self.etag


@dataclass(frozen=True, slots=True)
class Finding:
    """A name in a listing that cannot become a row of the directory table.

    Attributes:
        path: printable, with bytes that are not UTF-8 as ``\\xNN``.
        reason: the reason, in one sentence.
    """

    path: str
    reason: str


def printable(path: str) -> str:
    """Returns ``path`` with undecodable bytes (surrogates of :func:`os.fsdecode`) as ``\\xNN``."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_utf8(path: str) -> bool:
    """True if ``path`` is valid text, without bytes of an undecodable file name."""
    if path.isascii():  # fast, and the case for nearly all paths
        return True
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def why_no_row(path: str) -> str | None:
    """Returns why the file at ``path`` cannot become a row, in one sentence, or None if it can."""
    if not is_utf8(path):
        return "Its name is not valid UTF-8, so no table can store it."
    return "Its name contains a NUL character, which no catalog can store." if "\0" in path else None


def checked(entry: FileInfo | Finding) -> FileInfo | Finding:
    """Returns a store's listing entry, or a finding instead if it cannot become a row."""
    reason = None if isinstance(entry, Finding) else why_no_row(entry.relative_path)
    return entry if isinstance(entry, Finding) or reason is None else Finding(printable(entry.relative_path), reason)
