"""Object names: ``[schema.]name``, case-insensitive, with backticks for anything that is not a plain
identifier."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from typing import Self

from volstream.base.model.text import like
from volstream.errors import InvalidValueError

DEFAULT_SCHEMA = "public"

#: Maximum characters of a name or schema: tables are folders.
MAX_LENGTH = 200

_PART = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([A-Za-z_][A-Za-z0-9_]*))\s*")
#: Characters that names of columns and of fields in structs cannot have: Delta rejects some unless a table
#: maps its columns, and a name with NUL makes a table unreadable through Arrow.
NOT_IN_COLUMNS = re.compile(r"[ ,;{}()=\x00-\x1f\x7f]")

#: Names of columns that volstream, Delta or Spark give a meaning in statements about any table, in lower
#: case: streams and changes of a table with such a column could not be read.
RESERVED_COLUMNS = frozenset(
    [
        *("__change_type", "__commit_version", "__commit_timestamp", "_change_type", "_commit_version", "_commit_timestamp"),
        *("_metadata", "__row_id", "__row_version", "__id", "__wrote", "__rows", "__before", "__rank"),
        *("__least", "__most", "__deletes", "__inserts", "__follows", "__gone", "__arrival", "__position", "__operation"),
        *("__volstream_kind", "__volstream_version", "__volstream_time"),
    ]
)

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


def folded(name: str) -> str:
    """Returns a column's name in the case in which Spark compares names.

    As Java's ``equalsIgnoreCase``, character by character: a dotless i is an i, but a sharp s is not ``ss``.
    """
    if name.isascii():
        return name.lower()
    uppers = ((character, character.upper()) for character in name)
    return "".join((upper if len(upper) == 1 else character).lower()[0] for character, upper in uppers)


class Name(str):
    """A schema and a name, both in lower case because names are case-insensitive. It is the shortest text
    that :meth:`parse` accepts, so that it equals what people write, and can be given wherever a name is.

    Attributes:
        schema, name: its parts, without backticks.
    """

    __slots__ = ("name", "schema")

    schema: str
    name: str

    def __new__(cls, schema: str, name: str) -> Self:
        """Returns the name of two parts, which are valid and in lower case."""
        last = quote(name)
        made = super().__new__(cls, last if schema == DEFAULT_SCHEMA else f"{quote(schema)}.{last}")
        made.schema, made.name = schema, name
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # those of __new__
        return self.schema, self.name

    @classmethod
    def parse(cls, text: str, schema: str = DEFAULT_SCHEMA) -> Name:
        """Parses ``name``, ``schema.name``, or either part in backticks. ``schema`` applies to a name without
        one.

        Raises:
            InvalidValueError: not a name; or a name with a slash or control character, because tables are
                folders.
        """
        if isinstance(text, cls):
            return text
        parts: list[str] = []
        position = 0
        while True:
            match = _PART.match(text, position)
            if match is None:
                raise _not_a_name(text)
            parts.append((match[1].replace("``", "`") if match[1] is not None else match[2]).lower())
            position = match.end()
            if position == len(text):
                break
            if text[position] != ".":
                raise _not_a_name(text)
            position += 1
        if len(parts) > 2 or any(not _storable(part) for part in parts):
            raise _not_a_name(text)
        return cls(*parts) if len(parts) == 2 else cls(schema, parts[0])

    @classmethod
    def of(cls, schema: str, name: str) -> Name:
        """Returns the name of two parts taken literally, without backticks. Raises InvalidValueError: see
        :meth:`parse`."""
        parsed = cls(schema.lower(), name.lower())
        if not (_storable(parsed.schema) and _storable(parsed.name)):
            raise _not_a_name(f"{schema}.{name}")
        return parsed

    @property
    def qualified(self) -> str:
        """``schema.name`` with backticks around both, for SQL."""
        return f"`{self.schema.replace('`', '``')}`.`{self.name.replace('`', '``')}`"


def check_table(name: Name) -> None:
    """Raises InvalidValueError for a name that no table can have: Spark's catalog takes letters, digits and
    underscores."""
    for part in (name.schema, name.name):
        if not re.fullmatch(r"[a-z0-9_]+", part):
            raise InvalidValueError(f"A table cannot be named {name}.", "Use letters from a to z, digits and underscores.")


def similar(name: Name, others: Iterable[Name]) -> str:
    """Returns ``Did you mean 'x'?

    `` with a similar name in the same schema, or the same name in another; or nothing.
    """
    candidates = list(others)
    same = next((f"Did you mean {str(other)!r}? " for other in candidates if other.name == name.name), "")
    beside = [other.name for other in candidates if other.schema == name.schema]
    return like(name.name, beside, lambda word: str(Name(name.schema, word))) or same


def quote(part: str) -> str:
    """Returns ``part`` unchanged, or in backticks if it is not a plain identifier."""
    return part if _PLAIN.fullmatch(part) else "`" + part.replace("`", "``") + "`"


def _storable(part: str) -> bool:
    return not (part.startswith(".") or part in {"", "_"} or re.search(r"[/\\\x00-\x1f:]", part) or len(part) > MAX_LENGTH)


def _not_a_name(text: str) -> InvalidValueError:
    if len(text) > 2 * MAX_LENGTH:
        return InvalidValueError(f"{text[:50]!r}... is not a name: it has {len(text)} characters.", f"Use at most {MAX_LENGTH}.")
    parts = text.strip().split(".")
    if len(parts) <= 2 and "`" not in text and all(map(_storable, parts)):
        quoted = ".".join(quote(part) for part in parts)
        return InvalidValueError(f"{text!r} is not a name without backticks.", f"Write {quoted}, in a shell '{quoted}'.")
    return InvalidValueError(
        f"{text!r} is not a name.",
        "Write name or schema.name, with backticks around anything but letters, digits and underscores; "
        f"slashes, colons, control characters, a leading dot and more than {MAX_LENGTH} characters are not allowed.",
    )


def free(name: str, taken: Container[str], *, number: int = 2, key: Callable[[str], str] = str) -> str:
    """Returns a name that is not taken: itself, or with a number behind it, at least this one. ``taken`` has
    ``key`` of names."""
    found = name
    while key(found) in taken:
        found, number = f"{name}_{number}", number + 1
    return found


def distinct(names: Iterable[str]) -> list[str]:
    """Returns names in order; one that was there before gets its position: ``x``, ``x_2``, ``x_3``."""
    found: dict[str, None] = {}
    for at, name in enumerate(names, start=1):
        found[free(name, found, number=at)] = None
    return [*found]
