"""Text in which others have a say, such as the names of files, so shown that neither a terminal nor a reader is led astray."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def visible(text: str) -> str:
    """``text`` with what a terminal would obey, and what turns the direction of writing, as escapes. Lines and tabs stay."""
    return _escaped(text, "\n\t", _as_in_python)


def one_line(text: str) -> str:
    """Like :func:`visible`, in one line."""
    return _escaped(text, "", _as_in_python)


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: ``1 batch``, ``2 batches``."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def json_document(value: Any, *, default: Callable[[Any], Any] | None = None, indent: int | None = None) -> str:
    """JSON in which letters stay what they are, and such characters are escapes: who parses it gets them back."""
    return _escaped(json.dumps(value, default=default, indent=indent, ensure_ascii=False), "\n", _as_in_json)


def _escaped(text: str, kept: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():  # nearly all is
        return text
    return "".join(c if c.isprintable() or c in kept else escape(c) for c in text)


def _as_in_python(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _as_in_json(character: str) -> str:
    return json.dumps(character)[1:-1]
