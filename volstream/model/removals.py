"""How many files a full listing may remove from a directory before somebody is asked. Pure.

An empty mount point, or a prefix that was emptied by mistake, looks like a directory whose files were deleted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from volstream.errors import InvalidValueError

#: Of fewer files a share says nothing; but all of so many are no accident of a small directory.
_SHARE_OF, _ALL_OF = 100, 10

_WRITTEN = re.compile(r"\s*(?:(\d{1,3}(?:\.\d+)?)\s*%)?\s*,?\s*(\d{1,15})?\s*")


@dataclass(frozen=True)
class RemovalLimit:
    """What one listing may remove; without either of the two, anything.

    Attributes:
        share: of the files of a directory of at least 100, from 0 to 1; and, below 1, not all of at least 10.
        count: files.
    """

    share: float | None = 0.5
    count: int | None = None

    @classmethod
    def parse(cls, text: str | None) -> RemovalLimit:
        """Reads ``50%``, ``1000``, both (``50%,1000``), or ``all``; None: the default. Raises InvalidValueError."""
        if text is None:
            return cls()
        if text.strip().lower() == "all":
            return cls(None, None)
        match = _WRITTEN.fullmatch(text)
        share = float(match[1]) / 100 if match and match[1] else None
        count = int(match[2]) if match and match[2] else None
        if (share is None and count is None) or (share is not None and share > 1):
            raise InvalidValueError(
                f"{text!r} does not say how many files may be removed.", "Write for example 50%, 1000, 50%,1000 or all."
            )
        return cls(share, count)

    def holds(self, removed: int, of: int) -> bool:
        """Whether so many removals from a directory of so many files need a word."""
        if self.count is not None and removed > self.count:
            return True
        if self.share is None:
            return False
        return (of >= _SHARE_OF and removed > self.share * of) or (self.share < 1 and removed == of >= _ALL_OF)
