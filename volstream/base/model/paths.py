"""Files of a volume, the locations of volumes as URIs, and which paths of a location belong to a volume."""

from __future__ import annotations

import mimetypes
import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from volstream.base.model.text import like
from volstream.errors import InvalidValueError

# A file of a volume as reported by a store, and listing entries that cannot become rows.

#: Maximum number of files in a set that a function takes together; all of them are in one row of a plan.
MAX_OF_SET = 100_000


class FileInfo(NamedTuple):
    """One object of a store. A tuple, because a listing creates millions, and a frozen dataclass takes three
    times as long.

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


# Locations as URIs: ``file:///...`` for a directory, ``scheme://...`` otherwise; conversion from and to
# paths.
#
# What does not belong here: the supported schemes (``volstream.files.storage``), the contents of a location.

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
    """Returns a location for messages: without user and password, and without a web address's query, which
    may sign it."""
    shown = location if scheme_of(location) in _OF_ACCOUNTS else _USER.sub(r"\1", location, count=1)
    return re.split(r"[?#]", shown, maxsplit=1)[0] if scheme_of(location) in ("http", "https") else shown


def file_uri(path: str) -> str:
    """Returns the canonical URI of a directory: absolute, percent-encoded, without a trailing slash (except
    for the root).

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
    """Returns whether one of two places is in the other, or they are the same; both are from
    :func:`place_of`."""
    return one.startswith(other) or other.startswith(one)


def did_you_mean(location: str, path: str, known: Collection[str] = ()) -> str:
    """Returns a hint, ending with a space, on the file that an unknown path may mean; or nothing.

    That is the place below ``location`` to which the path leads from the current directory, or from the root,
    or one of the ``known`` paths that is similar.
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
    """Returns ``path`` percent-encoded byte by byte, except for slashes; file names that are not UTF-8
    survive."""
    if _QUOTED.search(path) is None:  # nearly all paths
        return path
    return quote(path.encode("utf-8", "surrogateescape"), safe="/")


# Selection of the paths of a location that belong to a volume: recursion, patterns, ignored names.

#: Hidden files, and the names that programs use for unfinished files.
DEFAULT_IGNORES = (".*", "*~", "*.tmp", "*.part", "*.crdownload")


@dataclass(frozen=True)
class Selection:
    """A rule that includes or excludes paths.

    Attributes:
        recursive: include files in sub-directories.
        patterns: globs, at least one of which must match; empty: every name. A glob without ``/`` is matched
            against the last part of the path, one with ``/`` against the whole path, where ``**`` spans
            directories.
        ignores: globs that exclude a path or, if they match one of its directories, everything below it.
    """

    recursive: bool = True
    patterns: Sequence[str] = ()
    ignores: Sequence[str] = DEFAULT_IGNORES

    def accepts(self, path: str) -> bool:
        """True if the file at ``path`` belongs to the volume."""
        if not path or path.endswith("/"):
            return False
        parent, slash, _ = path.rpartition("/")
        # A key that begins with "/" is in a directory with an empty name.
        return self.accepts_name(path) and (not slash or (self.recursive and self.may_contain(parent)))

    def accepts_name(self, path: str) -> bool:
        """Like :meth:`accepts`, for a file in a directory that is known to be included."""
        if self._ignored.match(path):
            return False
        return not self.patterns or self._wanted.match(path)

    def may_contain(self, directory: str) -> bool:
        """True if files below ``directory`` (no trailing slash; ``""`` is the root) can belong to the
        volume."""
        if not directory:
            return True
        if not self.recursive:
            return False
        return not _is_ignored(tuple(self.ignores), directory)

    @cached_property
    def _ignored(self) -> _Rules:
        return _compiled(tuple(self.ignores))

    @cached_property
    def _wanted(self) -> _Rules:
        return _compiled(tuple(self.patterns))


#: Globs for only a beginning or an end, the most common ones.
_STARTS, _ENDS = re.compile(r"[^*?\[]+\*"), re.compile(r"\*[^*?\[]+")


class _Rules(NamedTuple):
    """Globs prepared for matching every file of a listing; plain beginnings and ends are tested faster,
    without an expression.

    Attributes:
        starts, ends: beginnings and ends of the last part of a path.
        names: expression for the last part; ``paths``: for the whole path.
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]
    names: re.Pattern[str] | None
    paths: re.Pattern[str] | None

    def match(self, path: str) -> bool:
        """True if a glob matches the last part of the path or, if the glob has a ``/``, the whole path."""
        name = path[path.rfind("/") + 1 :]
        if name.startswith(self.starts) or name.endswith(self.ends):
            return True
        if self.names is not None and self.names.fullmatch(name):
            return True
        return self.paths is not None and self.paths.fullmatch(path) is not None


@lru_cache(maxsize=512)
def _compiled(globs: tuple[str, ...]) -> _Rules:
    names = [glob for glob in globs if "/" not in glob]
    starts = [glob for glob in names if _STARTS.fullmatch(glob)]
    ends = [glob for glob in names if _ENDS.fullmatch(glob)]
    return _Rules(
        tuple(glob[:-1] for glob in starts),
        tuple(glob[1:] for glob in ends),
        _pattern(glob for glob in names if glob not in starts and glob not in ends),
        _pattern(glob for glob in globs if "/" in glob),
    )


@lru_cache(maxsize=4096)
def _is_ignored(ignores: tuple[str, ...], directory: str) -> bool:
    """True if a directory, or one that it is in, is ignored.

    Remembered, because millions of files share their directories.
    """
    parts, ignored = directory.split("/"), _compiled(ignores)
    return any(ignored.match("/".join(parts[: depth + 1])) for depth in range(len(parts)))


def _pattern(globs: Iterable[str]) -> re.Pattern[str] | None:
    """Returns one expression for all globs; None without globs."""
    expressions = [expression(glob) for glob in globs]
    return re.compile("|".join(expressions), re.DOTALL) if expressions else None


class _Wild(StrEnum):
    """Wildcards that match any number of characters."""

    NAME = "*"
    PATH = "**"
    DIRECTORIES = "**/"


def expression(glob: str) -> str:
    """Converts a glob to a regular expression: ``*`` and ``?`` stop at ``/``, ``**`` does not, ``[...]`` as
    in fnmatch.

    Uploaders choose the names, so matching must not try every way to divide a name among wildcards: the first
    place where the characters after a wildcard match is kept (``(?>...)``), except for the last ones, which
    end the name. No match is lost: anything that can follow a later place can also follow an earlier one.

    fnmatch's own translation lets ``*`` cross slashes, and glob.translate is new in Python 3.13.
    """
    pattern, blocks = "", _blocks(glob)
    for number, (wild, pieces) in enumerate(blocks):
        last = number == len(blocks) - 1
        block = "".join(f"(?>[^/]*?{piece})" for piece in pieces[1:-1])
        if len(pieces) > 1:
            block += f"[^/]*{pieces[-1]}" if last else f"(?>[^/]*?{pieces[-1]})"
        block = pieces[0] + block
        skipped = {None: "", _Wild.PATH: ".*?", _Wild.DIRECTORIES: "(?:[^/]*+/)*?"}[wild]
        pattern += f"{skipped}{block}" if last else f"(?>{skipped}{block})"
    return f"(?:{pattern})"


def _blocks(glob: str) -> list[tuple[_Wild | None, list[str]]]:
    """Splits the glob at its path wildcards; each comes with the expressions that follow it, separated by
    ``*``."""
    blocks: list[tuple[_Wild | None, list[str]]] = [(None, [""])]
    position = 0
    while position < len(glob):
        wild = _wild(glob, position)
        if wild is _Wild.NAME:
            blocks[-1][1].append("")
        elif wild is not None:
            blocks.append((wild, [""]))
        else:
            piece, position = _one(glob, position)
            blocks[-1][1][-1] += piece
            continue
        position += len(wild)
    return blocks


def _wild(glob: str, position: int) -> _Wild | None:
    # Only at the start of a directory's name: `a**/b` is `a`, anything, `/b`.
    if glob.startswith(_Wild.DIRECTORIES, position) and (position == 0 or glob[position - 1] == "/"):
        return _Wild.DIRECTORIES
    return next((wild for wild in (_Wild.PATH, _Wild.NAME) if glob.startswith(wild, position)), None)


def _one(glob: str, position: int) -> tuple[str, int]:
    """Returns the expression for the single character at ``position``, and the next position."""
    if glob[position] == "?":
        return "[^/]", position + 1
    if glob[position] == "[" and (end := glob.find("]", position + 2)) > 0:
        return _class(glob[position + 1 : end]), end + 1
    return re.escape(glob[position]), position + 1


def _class(body: str) -> str:
    """Converts the contents of brackets: one character, never ``/``; an empty range matches nothing."""
    negated = body.startswith("!")
    remaining = body[1:] if negated else body
    members = ""
    while remaining:
        if remaining[1:2] == "-" and len(remaining) > 2:
            if remaining[0] <= remaining[2]:
                members += f"{re.escape(remaining[0])}-{re.escape(remaining[2])}"
            remaining = remaining[3:]
        else:
            members, remaining = members + re.escape(remaining[0]), remaining[1:]
    if not members:
        return "[^/]" if negated else "(?!)"
    return f"(?!/)[{'^' * negated}{members}]"


# Recognizes pictures that browsers show by their first bytes: in files, and in values of tables.

#: Not SVG, which can contain scripts.
_BEGIN = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF87a": "image/gif", b"GIF89a": "image/gif"}

#: Names of files that are likely pictures.
_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".avif")


def media_type(content: bytes) -> str | None:
    """Returns the type of a picture by its first bytes; None if it is not a picture that browsers show."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    if content[4:12] in (b"ftypavif", b"ftypavis"):
        return "image/avif"
    return next((kind for begin, kind in _BEGIN.items() if content.startswith(begin)), None)


def may_be_picture(path: str) -> bool:
    """True if a file's name is that of a picture."""
    return path.lower().endswith(_SUFFIXES)


# Content types by file name.

#: A separate instance: the module-level functions also read the machine's mime.types, so hosts would
#: disagree.
_TYPES = mimetypes.MimeTypes()


def content_type(path: str) -> str | None:
    """Returns the type of the bytes at ``path``; for a compressed file, that of the compression."""
    # Like os.path.splitext, which is three times slower: leading dots do not begin an extension.
    _, dot, extension = path[path.rfind("/") + 1 :].lstrip(".").rpartition(".")
    return _of_extension(extension) if dot else None


@lru_cache(maxsize=4096)
def _of_extension(extension: str) -> str | None:
    content_type, encoding = _TYPES.guess_type("name." + extension)
    if encoding is None:
        return content_type
    return "application/gzip" if encoding == "gzip" else f"application/x-{encoding}"
