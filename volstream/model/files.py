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
