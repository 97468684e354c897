"""Selection of the paths of a location that belong to a volume: recursion, patterns, ignored names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import NamedTuple

#: Hidden files, and the names that programs use for unfinished files.
DEFAULT_IGNORES = (".*", "*~", "*.tmp", "*.part", "*.crdownload")


@dataclass(frozen=True)
class Selection:
    """A rule that includes or excludes paths.

    Attributes:
        recursive: include files in sub-directories.
        patterns: globs, at least one of which must match; empty: every name. A glob without ``/`` is matched against the last
            part of the path, one with ``/`` against the whole path, where ``**`` spans directories.
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
        """True if files below ``directory`` (no trailing slash; ``""`` is the root) can belong to the volume."""
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
    """Globs prepared for matching every file of a listing; plain beginnings and ends are tested faster, without an expression.

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
    """True if a directory, or one that it is in, is ignored. Remembered, because millions of files share their directories."""
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
    """Converts a glob to a regular expression: ``*`` and ``?`` stop at ``/``, ``**`` does not, ``[...]`` as in fnmatch.

    Uploaders choose the names, so matching must not try every way to divide a name among wildcards: the first place where the
    characters after a wildcard match is kept (``(?>...)``), except for the last ones, which end the name. No match is lost:
    anything that can follow a later place can also follow an earlier one.

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
    """Splits the glob at its path wildcards; each comes with the expressions that follow it, separated by ``*``."""
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
