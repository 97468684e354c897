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
        values = self.values.get(name, ())
        return values[-1] if values and values[-1] else None

    def texts(self, name: str) -> Sequence[str]:
        """Returns all values of a parameter that are not empty."""
        return [value for value in self.values.get(name, ()) if value]

    def number(self, name: str) -> int | None:
        """Returns a parameter as a number; None if it is missing. Raises InvalidValueError."""
        text = self.text(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdecimal() or len(text) > 16 or int(text) > _MAX_NUMBER:
            raise InvalidValueError(f"{name} cannot be {text[:50]!r}.", "Give a whole number.")
        return int(text)

    def flag(self, name: str) -> bool:
        """True if a parameter is 1; False if it is 0 or missing. Raises InvalidValueError."""
        text = self.text(name)
        if text not in (None, "0", "1"):
            raise InvalidValueError(f"{name} cannot be {text[:50]!r}.", "Give 1, or leave it out.")
        return text == "1"

    @property
    def limit(self) -> int:
        """Returns how many rows a table of the answer may have. Raises InvalidValueError."""
        number = self.number("limit")
        if number is not None and not 1 <= number <= _MAX_ROWS:
            raise InvalidValueError(f"limit cannot be {number}.", f"Give a number from 1 to {_MAX_ROWS}.")
        return number or _ROWS
