"""Which paths of a location belong to a volume: recursion, patterns, ignored names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

#: Hidden files and the names under which programs keep unfinished work (events.md, local directory).
DEFAULT_IGNORES = (".*", "*~", "*.tmp", "*.part", "*.crdownload")


@dataclass(frozen=True)
class Selection:
    """The rule by which paths are in or out.

    Attributes:
        recursive: whether files in sub-directories count.
        patterns: globs of which one must match; empty: every name. A glob without ``/`` is matched against the last
            part of the path, one with ``/`` against the whole path, where ``**`` spans directories.
        ignores: globs that rule a path out, or, matched against any of its directories, all below it.
    """

    recursive: bool = True
    patterns: Sequence[str] = ()
    ignores: Sequence[str] = DEFAULT_IGNORES

    def accepts(self, path: str) -> bool:
        """Whether the file at ``path`` belongs to the volume."""
        if not path or path.endswith("/"):
            return False
        parent, slash, _ = path.rpartition("/")
        # A key that begins with "/" lies in a directory without a name.
        return self.accepts_name(path) and (not slash or (self.recursive and self.descends(parent)))

    def accepts_name(self, path: str) -> bool:
        """Like :meth:`accepts` for a file whose directory is known to be in."""
        if _matches(self.ignores, path):
            return False
        return not self.patterns or _matches(self.patterns, path)

    def descends(self, directory: str) -> bool:
        """Whether files below ``directory`` (no trailing slash; ``""`` is the root) can belong to the volume."""
        if not directory:
            return True
        if not self.recursive:
            return False
        parts = directory.split("/")
        prefixes = ("/".join(parts[: depth + 1]) for depth in range(len(parts)))
        return not any(_matches(self.ignores, prefix) for prefix in prefixes)


def _matches(globs: Sequence[str], path: str) -> bool:
    """Whether one of the globs matches: the last part of the path, or the whole of it where the glob has a ``/``."""
    for_names, for_paths = _compiled(tuple(globs))
    if for_names is not None and for_names.fullmatch(path, path.rfind("/") + 1):
        return True
    return for_paths is not None and for_paths.fullmatch(path) is not None


@lru_cache(maxsize=512)
def _compiled(globs: tuple[str, ...]) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    """One expression for all globs without ``/``, and one for those with it: every file of a listing is matched."""
    kinds = [[glob for glob in globs if ("/" in glob) is whole] for whole in (False, True)]
    both = [re.compile("|".join(map(_expression, kind)), re.DOTALL) if kind else None for kind in kinds]
    return both[0], both[1]


def _expression(glob: str) -> str:
    """The glob as a regular expression: ``*`` and ``?`` stop at ``/``, ``**`` does not, ``[...]`` as in fnmatch.

    fnmatch's own translation lets ``*`` cross slashes, and glob.translate is new in Python 3.13.
    """
    pattern, position = "", 0
    while position < len(glob):
        if glob.startswith("**/", position):
            pattern, position = pattern + r"(?:.*/)?", position + 3
        elif glob.startswith("**", position):
            pattern, position = pattern + ".*", position + 2
        elif glob[position] == "*":
            pattern, position = pattern + "[^/]*", position + 1
        elif glob[position] == "?":
            pattern, position = pattern + "[^/]", position + 1
        elif glob[position] == "[" and (end := glob.find("]", position + 2)) > 0:
            pattern, position = pattern + _class(glob[position + 1 : end]), end + 1
        else:
            pattern, position = pattern + re.escape(glob[position]), position + 1
    return f"(?:{pattern})"


def _class(body: str) -> str:
    """What stands between brackets as a regular expression: one character, never ``/``; an empty range matches nothing."""
    negated = body.startswith("!")
    rest = body[1:] if negated else body
    members = ""
    while rest:
        if rest[1:2] == "-" and len(rest) > 2:
            if rest[0] <= rest[2]:
                members += f"{re.escape(rest[0])}-{re.escape(rest[2])}"
            rest = rest[3:]
        else:
            members, rest = members + re.escape(rest[0]), rest[1:]
    if not members:
        return "[^/]" if negated else "(?!)"
    return f"(?!/)[{'^' * negated}{members}]"
