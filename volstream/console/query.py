"""The parameters of a request: text, checked where it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from volstream.errors import InvalidValueError

#: Rows of a page of a table: by default, and at most.
_ROWS, _MAX_ROWS = 50, 500

#: Sorts after any number of rows that a page can have.
_MAX_NUMBER = 1 << 53


@dataclass(frozen=True)
class Query:
    """Parameters by name; each may be given several times."""

    values: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """Returns a parameter; None if it is missing or empty."""
        found = self.values.get(name, ())
        return found[-1] if found and found[-1] else None

    def texts(self, name: str) -> Sequence[str]:
        """Returns all values of a parameter that are not empty."""
        return [one for one in self.values.get(name, ()) if one]

    def number(self, name: str) -> int | None:
        """Returns a parameter as a number; None if it is missing. Raises InvalidValueError."""
        found = self.text(name)
        if found is None:
            return None
        if not found.isascii() or not found.isdecimal() or len(found) > 16 or int(found) > _MAX_NUMBER:
            raise InvalidValueError(f"{name} cannot be {found[:50]!r}.", "Give a whole number.")
        return int(found)

    @property
    def limit(self) -> int:
        """Returns how many rows a table of the answer may have. Raises InvalidValueError."""
        found = self.number("limit")
        if found is not None and not 1 <= found <= _MAX_ROWS:
            raise InvalidValueError(f"limit cannot be {found}.", f"Give a number from 1 to {_MAX_ROWS}.")
        return found or _ROWS
