"""The TOML files of a pipeline: which they are, their variables and profiles, and the raw tables in them."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from volstream import config
from volstream.errors import InvalidValueError, NotFoundError
from volstream.model.text import nearest
from volstream.model.units import MAX_INTEGER
from volstream.pipelines.model import Kind
from volstream.pipelines.references import expand, is_secret

#: Settings of a home, which may lie beside a pipeline.
_SETTINGS = "volstream.toml"

#: More than any definition has, and far less than Python's stack.
_MAX_LEVELS = 50

_OTHERS = ("variables", "profile")


@dataclass(frozen=True)
class RawFile:
    """A file as TOML has it."""

    path: Path
    content: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name, for messages."""
        return self.path.name

    def objects(self) -> Iterator[tuple[Kind, str, Mapping[str, Any]]]:
        """Yields kind, name as written, and keys of each object. Raises InvalidValueError."""
        for kind in Kind:
            named = self.content.get(kind.value, {})
            if not isinstance(named, Mapping):
                raise InvalidValueError(f"{self.name}: {kind.value} is not a table.", f"Write [{kind.value}.NAME].")
            for name, keys in named.items():
                if not isinstance(keys, Mapping):
                    raise InvalidValueError(
                        f"{self.name}: {name!r} stands in [{kind.value}] itself.",
                        f"Write [{kind.value}.NAME] above it.",
                    )
                yield kind, name, keys


def read_files(path: Path) -> Sequence[RawFile]:
    """Returns a file, or all files ``*.toml`` directly in a folder except settings of a home.

    Raises:
        NotFoundError: there is none.
        InvalidValueError: one is not TOML, or has an unknown table.
    """
    if os.path.isdir(path):
        paths = sorted(file for file in path.glob("*.toml") if file.name != _SETTINGS)
    else:
        paths = [path] if os.path.isfile(path) else []
    if not paths:
        what = f"no file *.toml in {path}" if os.path.isdir(path) else f"no file {path}"
        raise NotFoundError(f"There is {what}.", "Give a pipeline's file or folder; volstream export writes one.")
    return [_read(file) for file in paths]


def _read(path: Path) -> RawFile:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise InvalidValueError(f"{path} cannot be read: {error}.") from None
    except RecursionError:
        raise _too_deep(path) from None
    if _levels(content) > _MAX_LEVELS:
        raise _too_deep(path)
    if not _has_plain_numbers(content):
        raise InvalidValueError(f"{path} cannot be read: an integer has more than 64 bits.")
    tables = [*(kind.value for kind in Kind), *_OTHERS]
    for key in content:
        if key not in tables:
            raise InvalidValueError(f"{path.name}: there is no table [{key}].", nearest(key, tables))
    return RawFile(path, content)


def _too_deep(path: Path) -> InvalidValueError:
    return InvalidValueError(f"{path} cannot be read: its values are nested too deeply.")


def _levels(content: Any) -> int:
    """Returns how deeply tables and lists are nested. Not recursive: dotted keys nest without limit."""
    levels, level = 0, [content]
    while level := [
        inner
        for node in level
        for inner in (node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ())
    ]:
        levels += 1
    return levels


def _has_plain_numbers(value: Any) -> bool:
    """True if all integers are TOML's, which have 64 bits; Python reads larger ones, and does not write the largest."""
    if isinstance(value, Mapping):
        return all(map(_has_plain_numbers, value.values()))
    if isinstance(value, list):
        return all(map(_has_plain_numbers, value))
    return not isinstance(value, int) or -MAX_INTEGER <= value <= MAX_INTEGER


class Variables:
    """The variables of a pipeline: those of ``[variables]``, and above them those of a profile.

    Raises:
        InvalidValueError: no such profile; a value is not plain, or a secret; two files set one.
    """

    def __init__(self, files: Sequence[RawFile], profile: str | None) -> None:
        self._common: dict[str, Any] = {}
        self._profiles: dict[str, dict[str, Any]] = {}
        for file in files:
            self._add(file, "variables", self._common, file.content.get("variables", {}))
            profiles = file.content.get("profile", {})
            if not isinstance(profiles, Mapping):
                raise InvalidValueError(f"{file.name}: profile is not a table.", "Write [profile.NAME].")
            for name, values in profiles.items():
                self._add(file, f"profile.{name}", self._profiles.setdefault(name, {}), values)
        if profile is not None and profile not in self._profiles:
            names = sorted(self._profiles)
            raise InvalidValueError(
                f"There is no profile {profile!r}.",
                nearest(profile, names) if names else f"Write [profile.{profile}] into the file.",
            )
        self._profile = profile

    def get(self, name: str) -> Any:
        """Returns a variable's value. Raises InvalidValueError."""
        chosen = {**self._common, **self._profiles.get(self._profile or "", {})}
        if name in chosen:
            return expand(chosen[name], self._nested, config.environment)
        having = sorted(profile for profile, values in self._profiles.items() if name in values)
        if having and self._profile is None:
            raise InvalidValueError(
                f"The variable {name} has a value only in profiles.", f"Choose one: --profile {' or '.join(having)}."
            )
        what = f" in the profile {self._profile}" if having else ""
        raise InvalidValueError(f"The variable {name} has no value{what}.", nearest(name, sorted(chosen)))

    @staticmethod
    def _add(file: RawFile, table: str, variables: dict[str, Any], values: Any) -> None:
        for name, value in values.items() if isinstance(values, Mapping) else [(table, {})]:
            where = f"{file.name}: {table}.{name}"
            if not isinstance(value, str | int | float):
                raise InvalidValueError(f"{where} is not a plain value.", "Write text, a number, true or false.")
            if is_secret(name):
                raise InvalidValueError(f"{where} is a secret.", "Write ${env:NAME} where it is used.")
            if name in variables:
                raise InvalidValueError(f"{where} is set by another file as well.", "Set it once.")
            variables[name] = value

    @staticmethod
    def _nested(name: str) -> Any:
        raise InvalidValueError(f"A variable refers to another one, {name}.", "Write its value, or ${env:NAME}.")
