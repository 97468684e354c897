"""A file of a volume as a store shows it, and what a listing found that cannot be a row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple


class FileInfo(NamedTuple):
    """One object of a store. A tuple: a listing makes millions, and a frozen dataclass takes three times as long.

    Attributes:
        relative_path: ``/``-separated, relative to the volume's location.
        size: bytes.
        last_modified_time: UTC.
        etag: changes whenever the content may have changed. Local files: inode, mtime in ns and size.
        version_id: the store's own version, or None where it keeps none.
        content_type: as the store says, else guessed from the name, else None.
    """

    relative_path: str
    size: int
    last_modified_time: datetime
    etag: str
    version_id: str | None = None
    content_type: str | None = None

    @property
    def version(self) -> str:
        """What identifies this content: the store's version id, else the etag."""
        return self.version_id or self.etag


@dataclass(frozen=True, slots=True)
class Finding:
    """A name that a listing met and that cannot be a row of the directory table.

    Attributes:
        path: printable: bytes that are not UTF-8 appear as ``\\xNN``.
        reason: why, one sentence.
    """

    path: str
    reason: str


def printable(path: str) -> str:
    """``path`` with undecodable bytes (surrogates of :func:`os.fsdecode`) as ``\\xNN``."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_utf8(path: str) -> bool:
    """Whether ``path`` is text, and not an undecodable file name in disguise."""
    if path.isascii():  # a str knows that of itself, and nearly all are
        return True
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def why_no_row(path: str) -> str | None:
    """Why no row can be of the file at ``path``, one sentence; None: one can."""
    if not is_utf8(path):
        return "Its name is not UTF-8, so that no table can hold it."
    return "Its name has a NUL character, which no catalog can hold." if "\0" in path else None


def checked(entry: FileInfo | Finding) -> FileInfo | Finding:
    """What a store listed, or a finding in its place where it cannot be a row."""
    reason = None if isinstance(entry, Finding) else why_no_row(entry.relative_path)
    return entry if isinstance(entry, Finding) or reason is None else Finding(printable(entry.relative_path), reason)
