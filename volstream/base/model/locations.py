"""Locations as URIs: ``file:///...`` for a directory, ``scheme://...`` otherwise; conversion from and to paths.

What does not belong here: the supported schemes (``volstream.files.storage``), the contents of a location.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from urllib.parse import quote, unquote_to_bytes

from volstream.base.model.files import printable
from volstream.base.model.text import like
from volstream.errors import InvalidValueError

#: Names of this host that other hosts cannot reach.
LOOPBACK = ("127.0.0.1", "localhost", "::1")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_USER = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)[^/?#]*@")
_QUOTED = re.compile(r"[^A-Za-z0-9_.~/-]")
_OF_ACCOUNTS = ("az", "abfs", "abfss")  # what stands before the @ is a container, not a user
_FILE = re.compile(r"file:(?://([^/]*))?(/.*)", re.IGNORECASE | re.DOTALL)


def scheme_of(text: str) -> str:
    """Returns the URI scheme of ``text`` in lower case; ``file`` for a plain path."""
    match = _SCHEME.match(text)
    return match[1].lower() if match else "file"


def without_secrets(location: str) -> str:
    """Returns a location for messages: without user and password, and without a web address's query, which may sign it."""
    shown = location if scheme_of(location) in _OF_ACCOUNTS else _USER.sub(r"\1", location, count=1)
    return re.split(r"[?#]", shown, maxsplit=1)[0] if scheme_of(location) in ("http", "https") else shown


def file_uri(path: str) -> str:
    """Returns the canonical URI of a directory: absolute, percent-encoded, without a trailing slash (except for the root).

    Args:
        path: relative to the current directory, absolute, or beginning with ``~``. Links are not resolved.

    Raises:
        InvalidValueError: an empty path, or one with a NUL character.
    """
    if not path or "\0" in path:
        raise InvalidValueError(f"{path!r} is not a path.", "Write a directory, for example /data/images.")
    # POSIX lets abspath keep two leading slashes; all file systems here treat them as one.
    absolute = "/" + os.path.abspath(os.path.expanduser(path)).lstrip("/")
    return "file://" + quote_path(absolute)


def local_path(location: str) -> str:
    """Returns the absolute path of a ``file:`` URI or plain path; the inverse of :func:`file_uri`.

    ``?`` and ``#`` are parts of the path: a file URI has neither query nor fragment.

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


def place_of(location: str, below: str | None = None) -> str:
    """Returns a location, or a folder below it, with a ``/`` at its end; a local one without links."""
    root = os.path.realpath(local_path(location)) if scheme_of(location) == "file" else location
    return f"{root.rstrip('/')}/{below}/" if below else f"{root.rstrip('/')}/"


def overlap(one: str, other: str) -> bool:
    """Returns whether one of two places is in the other, or they are the same; both are from :func:`place_of`."""
    return one.startswith(other) or other.startswith(one)


def did_you_mean(location: str, path: str, known: Collection[str] = ()) -> str:
    """Returns a hint, ending with a space, on the file that an unknown path may mean; or nothing.

    That is the place below ``location`` to which the path leads from the current directory, or from the root, or one of the
    ``known`` paths that is similar.
    """
    tidy = os.path.normpath(path)
    if tidy in known:
        below, leads = tidy, True
    elif scheme_of(location) == scheme_of(path) == "file":
        below = os.path.relpath(local_path(path), local_path(location))
        leads = below.partition(os.sep)[0] not in (os.curdir, os.pardir)
    else:
        below = path.removeprefix(f"{location}/")
        leads = below != path
    return f"Paths are relative to the volume: {printable(below)!r}. " if leads else like(path, known, printable)


def quote_path(path: str) -> str:
    """Returns ``path`` percent-encoded byte by byte, except for slashes; file names that are not UTF-8 survive."""
    if _QUOTED.search(path) is None:  # nearly all paths
        return path
    return quote(path.encode("utf-8", "surrogateescape"), safe="/")
