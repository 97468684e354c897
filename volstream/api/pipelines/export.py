"""Writes definitions as a file that reads back as the same definitions. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from volstream.api.pipelines.complete import default_queue
from volstream.api.pipelines.keys import defaults, written
from volstream.api.pipelines.model import ADDED, CODE, Definition, Kind
from volstream.api.pipelines.order import in_order
from volstream.api.pipelines.references import escaped, is_secret
from volstream.base.definitions import QueueType
from volstream.base.privacy import refers

_BARE = re.compile(r"[A-Za-z0-9_-]+")

_HEADER = """\
# The objects of this home, for `volstream apply`. Written by `volstream export`.
"""


def to_toml(
    definitions: Sequence[Definition],
    left_out: Sequence[str] = (),
    folder: Path | None = None,
    without_files: Sequence[Definition] = (),
) -> str:
    """Returns a file with definitions, in the order of dependence, without values that are defaults.

    Args:
        left_out: names of what is not defined in the file, for a comment.
        folder: the file's; paths of code below it are relative. None: all paths are absolute.
        without_files: those whose code no file has; they are left out, with a comment.
    """
    text = _HEADER
    if left_out:
        text += f"# Left out, because they consist of data only: {', '.join(left_out)}.\n"
    if without_files:
        text += f"# {no_file(without_files)}\n"
    out = {file.identity for file in without_files}
    kept = [definition for definition in definitions if definition.identity not in out]
    return text + "".join(f"\n{_object(definition, folder)}" for definition in in_order(kept))


def no_file(definitions: Sequence[Definition]) -> str:
    """Returns why jobs and functions are left out whose code no file has."""
    names = ", ".join(definition.title for definition in definitions)
    return f"Left out, because their code is in the catalog and not in a file: {names}. Name a file: --function FILE.py:FUNC."


def _object(definition: Definition, folder: Path | None) -> str:
    lines = [f"[{definition.kind.value}.{_key(str(definition.name))}]"]
    for key, value in _said(definition):
        if key in ("function", "environment") and folder is not None:
            value = value.removeprefix(f"{folder}/")
        if isinstance(value, Mapping) and key != "load":
            lines += [f"{key}.{_key(name)} = {_value(text)}" for name, text in value.items()]
        else:
            lines.append(f"{key} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _said(definition: Definition) -> Iterator[tuple[str, Any]]:
    """Yields the keys that say more than the defaults."""
    usual = defaults(definition.kind)
    if definition.kind is Kind.VOLUME:
        usual["queue_type"] = _usual_queue(definition)
    for key, value in definition.values.items():
        if key in (CODE, ADDED) or value == usual[key]:
            continue
        value = written(definition.kind, key, value)
        if key in ("properties", "queue_properties"):
            value = {name: _reference(name, said) for name, said in value.items()}
        if definition.kind is Kind.SOURCE and key == "format" and value == "json":
            continue
        yield key, value


def _usual_queue(definition: Definition) -> QueueType:
    return default_queue(str(definition.name), definition.values["location"], {**definition.values, "queue_type": None})


class _Reference(str):
    """Text with a reference, which is written as it is."""


def _reference(name: str, value: str) -> str:
    return _Reference(value) if is_secret(name) and refers(value) else value


def _key(text: str) -> str:
    return text if _BARE.fullmatch(text) else _quoted(text)


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case _Reference():
            return _quoted(value)
        case str():
            return _text(escaped(value))
        case Mapping():
            return "{ " + ", ".join(f"{_key(key)} = {_value(val)}" for key, val in value.items()) + " }" if value else "{}"
        case tuple() | list():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            raise AssertionError(f"{value!r} is not a value of a definition")


def _text(text: str) -> str:
    """Returns text of several lines as it is, if TOML lets it, else quoted."""
    plain = "\n" in text and all(character in "\n\t" or character.isprintable() for character in text)
    return f"'''\n{text}'''" if plain and "''" not in text and not text.endswith("'") else _quoted(text)


def _quoted(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join(escapes.get(char) or (char if char.isprintable() else _code(char)) for char in text) + '"'


def _code(character: str) -> str:
    point = ord(character)
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
