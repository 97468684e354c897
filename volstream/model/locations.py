"""Locations as URIs: ``file:///...`` for a directory, ``scheme://...`` for the rest; paths in and out of them.

What does not belong here: which schemes have a store (``volstream.storage``), what is at a location.
"""

from __future__ import annotations

import os
import re
import string
from urllib.parse import quote, unquote_to_bytes

from volstream.errors import InvalidValueError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: Where all bytes are among these, as in most paths, nothing needs to be quoted; looking is faster than quoting.
_UNQUOTED = f"/{string.ascii_letters}{string.digits}_.-~".encode()
_FILE = re.compile(r"file:(?://([^/]*))?(/.*)", re.IGNORECASE | re.DOTALL)


def scheme_of(text: str) -> str:
    """The URI scheme of ``text`` in lower case; ``file`` for a plain path."""
    match = _SCHEME.match(text)
    return match[1].lower() if match else "file"


def file_uri(path: str) -> str:
    """The canonical URI of a directory: absolute, percent-encoded, without a trailing slash (but for the root).

    Args:
        path: relative to the current directory, absolute, or beginning with ``~``. Links are kept as they are.

    Raises:
        InvalidValueError: an empty path, or one with a NUL character.
    """
    if not path or "\0" in path:
        raise InvalidValueError(f"{path!r} is not a path.", "Write a directory, for example /data/images.")
    # POSIX lets abspath keep exactly two leading slashes; every file system here reads them as one.
    absolute = "/" + os.path.abspath(os.path.expanduser(path)).lstrip("/")
    return "file://" + quote_path(absolute)


def local_path(location: str) -> str:
    """The absolute path of a ``file:`` URI or plain path: what :func:`file_uri` encodes.

    ``?`` and ``#`` are read as parts of the path: a file URI has neither query nor fragment.

    Raises:
        InvalidValueError: a URI that names a host, or has no absolute path.
    """
    match = _FILE.fullmatch(location)
    if match is None and not _SCHEME.match(location):
        return os.path.abspath(os.path.expanduser(location))
    if match is None or (match[1] or "").lower() not in {"", "localhost"}:
        raise InvalidValueError(
            f"{location!r} is not the URI of a local directory.",
            "Write file:///absolute/path with three slashes, or the plain path.",
        )
    return os.fsdecode(unquote_to_bytes(os.fsencode(match[2])))


def quote_path(path: str) -> str:
    """``path`` percent-encoded byte by byte, slashes kept; file names that are not UTF-8 survive."""
    raw = path.encode("utf-8", "surrogateescape")
    return quote(raw, safe="/") if raw.strip(_UNQUOTED) else path
