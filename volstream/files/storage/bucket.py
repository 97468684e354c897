"""Rules common to all providers' buckets: mapping of keys to paths, and which keys are files. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from volstream.base.model.paths import FileInfo, Finding, Selection, is_utf8, printable, quote_path, without_secrets
from volstream.errors import InvalidValueError
from volstream.files.providers import provider_of
from volstream.files.providers.base import Provider
from volstream.files.storage.types import content_type

_LOCATION = re.compile(r"([a-z0-9]+)://([^/]+)(?:/(.*))?", re.DOTALL)

#: Maximum length of a key, in UTF-8. OSS allows one byte less.
_MAX_BYTES = 1024

#: Types that stores report for objects uploaded without one.
_UNTOLD = ("binary/octet-stream", "application/octet-stream", None)

_FOLDER = "Its key ends in '/' like a directory's, but it has content; rename it."
_UNASKABLE = "Its key cannot be asked for: a part of it is '.' or '..', or it has characters that the store refuses; rename it."
_NUL = "Its key contains a NUL character, which no path may contain; rename it."


@dataclass(frozen=True)
class BucketPlace:
    """A bucket, or a prefix of it.

    Attributes:
        bucket: its name, by which events mention it.
        authority: what stands for it in URLs: the name, for some providers with the address of its account.
        root: prefix of all keys; empty, or ending in ``/``.
    """

    provider: Provider
    bucket: str
    authority: str
    root: str

    @classmethod
    def of(cls, location: str) -> BucketPlace:
        """Parses a normalised URI; the part after the bucket is taken literally, not percent-decoded.

        Raises:
            InvalidValueError: the bucket name is not valid.
        """
        match = _LOCATION.fullmatch(location)
        provider = provider_of(location)
        found = provider.buckets.fullmatch(match[2]) if match is not None and provider is not None else None
        if match is None or provider is None or found is None:
            raise InvalidValueError(
                f"{without_secrets(location)!r} does not name a bucket.",
                "Write for example s3://my-bucket or s3://my-bucket/some/prefix.",
            )
        return cls(provider, found[found.re.groups and 1], match[2], f"{match[3]}/" if match[3] else "")

    @property
    def scheme(self) -> str:
        """The scheme of its location."""
        return self.provider.scheme

    def key(self, path: str) -> str | None:
        """Returns the key at ``path``, or None if no file can be there."""
        key = self.root + path
        if not path or path.endswith("/") or "\0" in path or not is_utf8(key) or len(key.encode()) > _MAX_BYTES:
            return None
        return key if self._is_askable(key) else None

    def path(self, key: str) -> str:
        """Returns the path of a key in this bucket or prefix."""
        return key[len(self.root) :]

    def url(self, path: str) -> str:
        """Returns the object's URL, percent-encoded."""
        return f"{self.scheme}://{self.authority}/{quote_path(self.root + path)}"

    def name(self, path: str) -> str:
        """Returns the object's name for messages."""
        return printable(f"{self.scheme}://{self.authority}/{self.root}{path}")

    def entry(
        self, key: str, size: int, modified: datetime, etag: str, version_id: str | None = None, *, selection: Selection
    ) -> FileInfo | Finding | None:
        """Returns the listing entry for a key: a file, a finding, or None."""
        path = self.path(key)
        if not path or path.endswith("/"):
            is_folder = size > 0 and selection.may_contain(path.rstrip("/"))
            return Finding(path or key, _FOLDER) if is_folder else None
        if not selection.accepts(path):
            return None
        if not self._is_askable(key):
            return Finding(path, _UNASKABLE)
        return Finding(path, _NUL) if "\0" in path else self.file(path, size, modified, etag, None, version_id)

    def file(
        self, path: str, size: int, modified: datetime, etag: str, said_type: str | None = None, version_id: str | None = None
    ) -> FileInfo:
        """Converts an object to a file.

        Args:
            version_id: None: listings of the store have none.
            modified: truncated to seconds: only some listings, and no HEAD, have fractions.
        """
        type_ = content_type(path) if said_type in _UNTOLD else said_type
        return FileInfo(path, size, modified.replace(microsecond=0), etag.strip('"'), version_id, type_)

    def _is_askable(self, key: str) -> bool:
        unaskable = self.provider.unaskable
        return unaskable is None or unaskable.search(key) is None
