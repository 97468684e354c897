"""What the objects of a bucket have in common, whoever keeps it: which key is which path, and which keys are files. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from volstream.errors import InvalidValueError
from volstream.model.files import FileInfo, Finding, is_utf8, printable
from volstream.model.locations import quote_path
from volstream.model.selection import Selection
from volstream.storage.types import content_type

_LOCATION = re.compile(r"([a-z0-9]+)://([A-Za-z0-9][A-Za-z0-9._-]{1,254})(?:/(.*))?", re.DOTALL)

#: Of a key, in UTF-8. OSS allows one byte less.
_MOST_BYTES = 1024

#: What stores say of objects whose type nobody told them.
_UNTOLD = ("binary/octet-stream", "application/octet-stream", None)

_FOLDER = "Its key ends in '/' as if it were a directory, and it has content; rename it."
_NUL = "Its key has a NUL character, which no path may have; rename it."


@dataclass(frozen=True)
class Place:
    """A bucket, or what lies below a prefix of it.

    Attributes:
        root: what all keys begin with; empty, or ending in ``/``.
    """

    scheme: str
    bucket: str
    root: str

    @classmethod
    def of(cls, location: str) -> Place:
        """The place of a normalised URI; what follows the bucket is taken as it is, and not percent-decoded.

        Raises:
            InvalidValueError: no bucket is called that.
        """
        found = _LOCATION.fullmatch(location)
        if found is None:
            raise InvalidValueError(
                f"{location!r} names no bucket.", "Write for example s3://my-bucket or oss://my-bucket/some/prefix."
            )
        return cls(found[1], found[2], f"{found[3]}/" if found[3] else "")

    def key(self, path: str) -> str | None:
        """The key at ``path``; None where no file can be."""
        key = self.root + path
        if not path or path.endswith("/") or "\0" in path or not is_utf8(key) or len(key.encode()) > _MOST_BYTES:
            return None
        return key

    def url(self, path: str) -> str:
        """The object's URL, percent-encoded."""
        return f"{self.scheme}://{self.bucket}/{quote_path(self.root + path)}"

    def name(self, path: str) -> str:
        """The object, as messages name it."""
        return printable(f"{self.scheme}://{self.bucket}/{self.root}{path}")

    def entry(
        self, key: str, size: int, modified: datetime, etag: str, selection: Selection
    ) -> FileInfo | Finding | None:
        """What a listing makes of a key: a file, a finding, or nothing."""
        path = key[len(self.root) :]
        if not path or path.endswith("/"):
            told = size > 0 and selection.descends(path.rstrip("/"))
            return Finding(path or key, _FOLDER) if told else None
        if not selection.accepts(path):
            return None
        return Finding(path, _NUL) if "\0" in path else self.file(path, size, modified, etag)

    def file(self, path: str, size: int, modified: datetime, etag: str, said_type: str | None = None) -> FileInfo:
        """An object as a file. Its version is its ETag: listings tell no version ids, so a look at a key tells none either.

        Args:
            modified: its fraction of a second is dropped, for only some listings have it, and no look at a key.
        """
        type_ = content_type(path) if said_type in _UNTOLD else said_type
        return FileInfo(path, size, modified.replace(microsecond=0), etag.strip('"'), content_type=type_)
