"""The forms of a definition's values: how each is read, from whatever says it, and written back. Pure.

A form reads two kinds of input. ``read`` takes a value of Python or TOML, which have types of their own;
``parse`` takes text, from a command line or a SQL property, which have none. Both return the one value that
the catalog stores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from volstream.base import plugins
from volstream.base.model.names import Name
from volstream.base.model.text import like, shortened
from volstream.base.model.units import MAX_INTEGER, exact_size, format_duration, in_utc, parse_duration, parse_rate, parse_size
from volstream.base.plugins import Group
from volstream.errors import InvalidValueError

# Words that providers and plug-ins may add to, such as types of queues.

#: Plug-ins' words: the catalog has room for twenty characters.
_WORD = re.compile(r"[a-z][a-z0-9_-]{0,19}")


class OpenWords(StrEnum):
    """Words, to which those of plug-ins come by their names."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Returns a plug-in's word. Whether it is installed is a question of where the word is used."""
        if not isinstance(value, str) or not _WORD.fullmatch(value):
            return None
        other = str.__new__(cls, value)
        other._name_ = other._value_ = value
        return other

    @property
    def is_plugin(self) -> bool:
        """True if it is a plug-in's word."""
        return self not in type(self).__members__.values()


def of_plugins(group: Group) -> Callable[[], Sequence[str]]:
    """Returns what lists the words of the plug-ins that are installed here."""
    return lambda: [*filter(_WORD.fullmatch, plugins.names(group))]


@dataclass(frozen=True)
class Form:
    """A form of values.

    Attributes:
        wanted: what to give, in messages.
        read: returns a value of Python or TOML as the catalog stores it. Raises InvalidValueError.
        keyword: the type of a keyword argument in Python, as source.
        parse: does the same for text; by default text is read like any value.
        write: returns a stored value as TOML and people have it.
        metavar: stands for the value in a command's help.
        values: the words that there are; None: any.
        has_others: there may be more words than ``values``.
    """

    wanted: str
    read: Callable[[Any], Any]
    keyword: str
    parse: Callable[[str], Any]
    write: Callable[[Any], Any] = lambda value: value
    metavar: str | None = None
    values: type[StrEnum] | None = None
    has_others: bool = False


def form(wanted: str, keyword: str, read: Callable[[Any], Any], parse: Callable[[str], Any] | None = None, **more: Any) -> Form:
    """Returns a form; text is read like any value unless ``parse`` says otherwise."""
    return Form(wanted, read, keyword, parse or read, **more)


def unfit(value: object, wanted: str, remedy: str = "") -> InvalidValueError:
    """Returns the error for a value that does not have its form."""
    return InvalidValueError(f"{shortened(value)} is not {wanted}.", remedy or f"Give {wanted}.")


def as_text(value: Any) -> str:
    """Returns a plain value as text, as TOML writes it; several, with commas between them, and named ones as
    JSON."""
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, Mapping):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise unfit(value, "text")
    return value


def _name(value: Any) -> Name:
    if isinstance(value, Name):
        return value
    if not isinstance(value, str):
        raise unfit(value, "a name")
    return Name.parse(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise unfit(value, "true or false")
    return value


def _parsed_flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise unfit(text, "true or false")
    return text.lower() == "true"


def _number(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise unfit(value, "a whole number")
    return int(value)


def _parsed_number(text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?\d+\s*", text):
        raise unfit(text, "a whole number")
    if len(text) > 40 or abs(number := int(text)) > MAX_INTEGER:
        raise InvalidValueError(f"{shortened(text)} is too large a number.", "Give a smaller one.")
    return number


def _duration(value: Any) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, bool) or not hasattr(value, "__float__") or not float(value) > 0:
        raise unfit(value, "a duration", "Give a number of seconds, or text such as 30s.")
    return parse_duration(f"{float(value):.9f}")


def _size(value: Any) -> int:
    if isinstance(value, str):
        return parse_size(value)
    if isinstance(value, bool) or not hasattr(value, "__index__") or not int(value) > 0:
        raise unfit(value, "a size", "Give a number of bytes, or text such as 64MiB.")
    return parse_size(str(int(value)))


def _rate(value: Any) -> str:
    if not isinstance(value, str):
        raise unfit(value, "a rate", "Write for example 300/min, 5/s or 1000/h.")
    parse_rate(value)
    return "".join(value.split())


def _moment(value: Any) -> datetime:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise unfit(value, "a time", "Write for example 2026-03-01T12:00:00+01:00.") from None
    if not isinstance(value, datetime):
        raise unfit(value, "a time")
    return in_utc(value)


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Sequence | set | frozenset) or not all(isinstance(item, str) for item in value):
        raise unfit(value, "a list of text")
    return tuple(value)


def _parsed_texts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _receivers(value: Any) -> tuple[str, ...] | None:
    """Reads names of those who get alerts: ``none`` is nobody, ``default`` those of the settings."""
    names = _texts(value)
    return None if names == ("default",) else () if names == ("none",) else names


def _pairs(value: Any) -> Mapping[str, str]:
    plain = isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(item, str | int | float) for key, item in value.items()
    )
    if not plain:
        raise unfit(value, "a table of text")
    return {key: as_text(item) for key, item in value.items()}


def _parsed_pair(text: str) -> Mapping[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise unfit(text, "KEY=VALUE")
    return {key: value}


def _parsed_pairs(text: str) -> Mapping[str, str]:
    """Reads one pair, or a JSON object of all."""
    if not text.startswith("{"):
        return _parsed_pair(text)
    try:
        return _pairs(json.loads(text))
    except ValueError:
        raise unfit(text, 'KEY=VALUE, or JSON such as {"sheet": "Sales"}') from None


def _parsed_property(text: str) -> Mapping[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[\w.-]+", key):
        raise unfit(text, "KEY=VALUE")
    return {key: value}


#: Words for units of a retention, besides the short forms of other durations.
_UNITS = {"second": "s", "minute": "m", "hour": "h", "day": "d"}


def _retention(value: Any) -> int | None:
    """Reads the age at which rows are deleted: ``30 days``, ``12 hours``, a short form like ``30d``, or a
    timedelta."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif not isinstance(value, str):
        raise unfit(value, "a retention", "Give '30 days', a timedelta, or None to keep rows for ever.")
    elif (text := value.strip().lower()) in ("forever", "for ever"):
        return None
    else:
        words = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(second|minute|hour|day|week)s?", text)
        if words is not None and words[2] == "week":
            seconds = parse_duration(f"{7 * float(words[1]):f}d")
        else:
            seconds = parse_duration(f"{words[1]}{_UNITS[words[2]]}" if words is not None else value)
    if seconds < 1:
        raise InvalidValueError("A retention is at least a second.", "Pass None to keep rows for ever.")
    return int(parse_duration(f"{seconds:f}"))


def _long(seconds: int | None) -> str | None:
    return None if seconds is None else format_duration(seconds)


TEXT = form("text", "str", _text, metavar="TEXT")
NAME = form("a name", "str | Name", _name, metavar="NAME", write=str)
FLAG = form("true or false", "bool", _flag, _parsed_flag)
NUMBER = form("a whole number", "int", _number, _parsed_number, metavar="N")
DURATION = form("a duration", "float | str | timedelta", _duration, metavar="30s", write=format_duration)
SIZE = form("a size", "int | str", _size, metavar="1GiB", write=exact_size)
RATE = form("a rate", "str", _rate, metavar="300/min")
MOMENT = form("a time", "datetime | str", _moment, metavar="TIME", write=datetime.isoformat)
TEXTS = form("a list of text", "Sequence[str] | str", _texts, _parsed_texts, write=tuple)
CONDITIONS = form("a list of SQL conditions", "Sequence[str] | str", _texts, lambda text: (text,), write=tuple)
RECEIVERS = form("a list of names", "Sequence[str] | str", _receivers, lambda text: _receivers(_parsed_texts(text)), write=tuple)
PAIRS = form("a table of text", "Mapping[str, str | int | float]", _pairs, _parsed_pair, metavar="KEY=VALUE")
PROPERTIES = form("a table of text", "Mapping[str, str | int | float]", _pairs, _parsed_property, metavar="KEY=VALUE")
NAMED = form("a table of text", "Mapping[str, str | int | float]", _pairs, _parsed_pairs, metavar="KEY=VALUE")
#: Forms of which one item is given at a time.
BY_ITEM = (PAIRS, PROPERTIES, NAMED)
RETENTION = form("a duration", "str | timedelta | None", _retention, metavar="'30 days'", write=_long)


def words(values: type[StrEnum], others: Callable[[], Sequence[str]] | None = None) -> Form:
    """Returns the form of an enumeration: its words, in any case, with dashes or underscores.

    Args:
        others: further words, which the enumeration then has to accept; asked for only after an unknown word.
    """
    by_word = {_bare(word): member for member in values for word in (member.value, member.name)}

    def read(value: Any) -> StrEnum:
        if isinstance(value, values):
            return value
        member = by_word.get(_bare(value)) if isinstance(value, str) else None
        if member is not None:
            return member
        known = [*values, *(others() if others is not None else ())]
        if value in known:
            return values(value)
        hint = like(value, known) if isinstance(value, str) else ""
        raise InvalidValueError(f"{shortened(value)} is not an allowed value.", f"{hint}Give one of {', '.join(known)}.")

    return form(f"one of {', '.join(values)}", values.__name__, read, values=values, write=str, has_others=others is not None)


def _bare(word: str) -> str:
    return word.replace("-", "_").lower()
