"""Safe display of text with external content, such as file names: it must mislead neither a terminal nor a
reader."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

#: The parts that differ between messages with the same cause: quoted text, paths and addresses, numbers.
_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|[^\s:,;()]*/[^\s:,;()]*|0x[0-9a-fA-F]+|\d+(?:\.\d+)?")

#: Characters of a message that identify its cause.
_MAX_CAUSE = 300


def visible(text: str) -> str:
    """Returns ``text`` with terminal control and text direction characters escaped. Newlines and tabs
    stay."""
    return _escaped(text, "\n\t", _as_in_python)


def one_line(text: str) -> str:
    """Like :func:`visible`, on one line."""
    return _escaped(text, "", _as_in_python)


def counted(number: int, one: str, many: str | None = None) -> str:
    """Returns a number with its noun: ``1 batch``, ``2 batches``."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def ended(sentence: str) -> str:
    """Returns a sentence with a full stop, if nothing ends it."""
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def by_kind(numbers: Mapping[Any, int]) -> str:
    """Returns numbers with their kinds: ``2 missing, 1 stray``."""
    return ", ".join(f"{number:,} {kind}" for kind, number in numbers.items())


def nearest(word: str, known: Sequence[str]) -> str:
    """Returns a hint for a misspelt word: the most similar known word, or all known words if none is
    similar."""
    return like(word, known).rstrip() or (f"There are: {', '.join(known)}." if known else "")


def like(word: str, known: Iterable[str], shown: Callable[[str], str] = str) -> str:
    """Returns ``Did you mean 'x'? `` with a similar known word, as ``shown`` formats it; or nothing."""
    from difflib import get_close_matches  # late: only mistakes need it

    written = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), list(written), n=1)
    return f"Did you mean {shown(written[near[0]])!r}? " if near else ""


def shortened(value: object) -> str:
    """Returns a value for a message: on one line, and shortened."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001  # the repr of a foreign class
        text = f"this {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def first_line(message: str) -> str:
    """Returns the first line of a message."""
    return message.strip().partition("\n")[0]


def cause(message: str) -> str:
    """Returns the first line of an error's message without the parts specific to one file: quoted text, paths
    and numbers."""
    return _VARYING.sub("*", first_line(message)[:_MAX_CAUSE])


#: A frame of a traceback, and where Python's own code and installed packages are.
_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_INSTALLED = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3\.\d+/|^<")


def frames(traceback: str | None) -> list[tuple[str, str, str]]:
    """Returns file, line and function of the last frame of a traceback in the user's code, and of the
    innermost frame if that is in another file; nothing without a traceback."""
    every = _FRAME.findall((traceback or "").rpartition("Traceback (most recent call last):")[2])
    own = [frame for frame in every if not _INSTALLED.search(frame[0])]
    return [frame for frame in dict.fromkeys([*own[-1:], *every[-1:]]) if not own or frame == own[-1] or frame[0] != own[-1][0]]


def json_document(value: Any, *, default: Callable[[Any], Any] | None = None, indent: int | None = None) -> str:
    """Returns JSON with readable letters and with unprintable characters escaped; parsing it restores them.

    Non-finite numbers and keys of other types become text, as in :func:`finite`.
    """

    def plain(item: Any) -> Any:
        if default is None:
            raise TypeError(f"JSON has no {type(item).__name__}.")
        return finite(default(item))

    def written(item: Any) -> str:
        return json.dumps(item, default=plain, indent=indent, ensure_ascii=False, allow_nan=False)

    try:
        text = written(value)
    except (TypeError, ValueError):
        text = written(finite(value))
    return _escaped(text, "\n", _as_in_json)


def finite(value: Any) -> Any:
    """Replaces the numbers and keys that JSON lacks by texts: ``NaN``, ``Infinity``, ``-Infinity``, and the
    key's."""
    if isinstance(value, dict):
        keys = (finite(key) if key is None or isinstance(key, str | int | float) else str(key) for key in value)
        return {key: finite(item) for key, item in zip(keys, value.values(), strict=True)}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _escaped(text: str, kept: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():  # the case for nearly all text
        return text
    return "".join(c if c.isprintable() or c in kept else escape(c) for c in text)


def _as_in_python(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _as_in_json(character: str) -> str:
    return json.dumps(character)[1:-1]


# Values as JSON, for programs: the command's ``--format json`` and the console's answers.


def to_json(value: Any) -> str:
    """Returns one line of JSON: times and durations as ISO 8601, binary as base64, decimals and non-finite
    numbers as text."""
    return json_document(value, default=_plain)


def scalar_text(value: Any) -> str | None:
    """Returns the text of a time, a duration, bytes, a decimal or a UUID, which JSON lacks; None for another
    value."""
    match value:
        case date() | time():
            return value.isoformat()
        case timedelta():
            return _duration(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case Decimal() | UUID():
            return str(value)
    return None


def _duration(value: timedelta) -> str:
    """Returns a duration as in ISO 8601: ``P1DT2H3M4.5S``. A negative one has its sign in front of it all."""
    size = abs(value)
    minutes, seconds = divmod(size.seconds, 60)
    # Those of pandas have nanoseconds.
    fraction = f"{size.microseconds:06}{getattr(size, 'nanoseconds', 0):03}".rstrip("0")
    sign, point = "-" if value < timedelta(0) else "", "." if fraction else ""
    return f"{sign}P{size.days}DT{minutes // 60}H{minutes % 60}M{seconds}{point}{fraction}S"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if (text := scalar_text(value)) is not None:
        return text
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "asDict"):
        return value.asDict(recursive=True)
    if isinstance(value, Iterable):
        return list(value)
    return str(value)


# Converts scalars of other libraries to Python's.

#: Types of most values, returned without a check.
_OWN = frozenset({bool, int, float, str, Decimal})


def plain(value: Any) -> Any:
    """Converts a value with an ``item`` method, such as NumPy's scalars, to Python's; returns others
    unchanged."""
    if type(value) in _OWN:
        return value
    item = getattr(value, "item", None)
    if not callable(item) or getattr(value, "shape", None) != ():
        return value
    found = item()
    if type(found) is int and value.dtype.kind in "mM":  # nanoseconds, as a number without its unit
        import pandas as pd

        return pd.Timestamp(value) if value.dtype.kind == "M" else pd.Timedelta(value)
    return found
