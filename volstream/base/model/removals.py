"""Limits for the number of files that a full listing may remove from a directory without confirmation. Pure.

An empty mount point, or a prefix emptied by mistake, looks like a directory whose files were all deleted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from volstream.errors import InvalidValueError

#: Minimum directory sizes at which a share is meaningful, and at which removing all files is suspicious.
_SHARE_OF, _ALL_OF = 100, 10

_WRITTEN = re.compile(r"\s*(?:(\d{1,3}(?:\.\d+)?)\s*%)?\s*,?\s*(\d{1,15})?\s*")


@dataclass(frozen=True)
class RemovalLimit:
    """The number of removals allowed to one listing; unlimited if neither attribute is set.

    Attributes:
        share: from 0 to 1, of a directory with at least 100 files; below 1, also not all files of one with at least 10.
        count: number of files.
    """

    share: float | None = 0.5
    count: int | None = None

    @classmethod
    def parse(cls, text: str | None) -> RemovalLimit:
        """Parses ``50%``, ``1000``, both (``50%,1000``), or ``all``; None: the default. Raises InvalidValueError."""
        if text is None:
            return cls()
        if text.strip().lower() == "all":
            return cls(None, None)
        match = _WRITTEN.fullmatch(text)
        share = float(match[1]) / 100 if match and match[1] else None
        count = int(match[2]) if match and match[2] else None
        if (share is None and count is None) or (share is not None and share > 1):
            raise InvalidValueError(
                f"{text!r} is not a limit for removed files.", "Write for example 50%, 1000, 50%,1000 or all."
            )
        return cls(share, count)

    def holds(self, removed: int, of: int, *, replaced: bool = False) -> bool:
        """True if this many removals from a directory of this many files need confirmation.

        Args:
            replaced: another directory is at the path of the former, as while a share is not mounted. Then the
                share applies to directories of any size.
        """
        if self.count is not None and removed > self.count:
            return True
        if self.share is None:
            return False
        return ((of >= _SHARE_OF or replaced) and removed > self.share * of) or (self.share < 1 and removed == of >= _ALL_OF)
