"""Reads the definitions of a pipeline's TOML files: references are replaced, values are canonical, unknown keys are errors."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from volstream.api.pipelines.complete import complete
from volstream.api.pipelines.keys import KEYS, defaults
from volstream.api.pipelines.model import Definition, Kind
from volstream.api.pipelines.references import expand, is_secret
from volstream.base import config
from volstream.base.model.names import Name
from volstream.base.model.text import like, nearest
from volstream.base.model.units import MAX_INTEGER
from volstream.base.privacy import refers
from volstream.errors import InvalidValueError, NotFoundError, VolstreamError

#: Settings of a home, which may lie beside a pipeline.
_SETTINGS = "volstream.toml"

#: More than any definition has, and far less than Python's stack.
_MAX_LEVELS = 50

_OTHERS = ("variables", "profile")


@dataclass(frozen=True)
class _File:
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
                        f"{self.name}: {name!r} stands in [{kind.value}] itself.", f"Write [{kind.value}.NAME] above it."
                    )
                yield kind, name, keys


def read(path: Path, profile: str | None = None) -> Sequence[Definition]:
    """Returns the definitions of a file, or of all files of a folder.

    Args:
        profile: the profile whose variables apply besides those of ``[variables]``.

    Raises:
        NotFoundError: there is no such file.
        InvalidValueError: a file is not TOML, or contradicts itself; the message names file, object and key.
        FunctionLoadError: the code of a function is missing.
    """
    files = _files(path)
    variables = _Variables(files, profile)
    definitions: dict[tuple[Kind, Name], Definition] = {}
    for file in files:
        for kind, written, keys in file.objects():
            try:
                definition = _definition(file, kind, written, keys, variables)
            except VolstreamError as error:
                raise located(error, f"{file.name}: {kind.noun} {written}") from None
            if definition.identity in definitions:
                raise InvalidValueError(
                    f"{definition.where} is defined in {definitions[definition.identity].file} already.", "Define it once."
                )
            definitions[definition.identity] = definition
    return list(definitions.values())


def located(error: VolstreamError, where: str) -> VolstreamError:
    """Returns the same error with the place that it is about."""
    return type(error)(f"{where}: {error.message}", error.remedy)


def _definition(file: _File, kind: Kind, written: str, keys: Mapping[str, Any], variables: _Variables) -> Definition:
    name, known, values = Name.parse(written), KEYS[kind], defaults(kind)
    for key, value in keys.items():
        if key not in known:
            raise InvalidValueError(f"There is no key {key!r}.", _hint(kind, written, key, value, list(known)))
        try:
            values[key] = known[key].read(_expanded(key, value, variables))
        except VolstreamError as error:
            raise located(error, key) if not error.message.startswith(key) else error from None
    missing = [key for key, spec in known.items() if spec.required and key not in keys]
    if missing:
        raise InvalidValueError(f"It needs the key {missing[0]!r}.", f"Its keys: {', '.join(known)}.")
    folder = file.path.parent.absolute()
    return Definition(kind, name, complete(kind, written, values, keys.keys(), folder), folder, file.name)


def _expanded(key: str, value: Any, variables: _Variables) -> Any:
    if key == "arguments" and isinstance(value, Mapping):
        for name in filter(is_secret, value):
            raise InvalidValueError(
                f"{name} is a secret, and the catalog stores arguments in plain text.",
                "Let the function read it from the environment (os.environ).",
            )
    if key in ("properties", "queue_properties") and isinstance(value, Mapping):
        # The catalog keeps the reference: the daemon looks it up.
        kept = {name: text for name, text in value.items() if is_secret(name) and isinstance(text, str) and refers(text)}
        others = {name: text for name, text in value.items() if name not in kept}
        return {**expand(others, variables.get, config.environment), **kept}
    return expand(value, variables.get, config.environment)


def _hint(kind: Kind, written: str, key: str, value: Any, known: Sequence[str]) -> str:
    if isinstance(value, Mapping) and not like(key, known):
        return f'For an object of a schema write [{kind.value}."{written}.{key}"].'
    return nearest(key, known)


def _files(path: Path) -> Sequence[_File]:
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


def _read(path: Path) -> _File:
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
    return _File(path, content)


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


class _Variables:
    """The variables of a pipeline: those of ``[variables]``, and above them those of a profile.

    Raises:
        InvalidValueError: no such profile; a value is not plain, or a secret; two files set one.
    """

    def __init__(self, files: Sequence[_File], profile: str | None) -> None:
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
    def _add(file: _File, table: str, variables: dict[str, Any], values: Any) -> None:
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
