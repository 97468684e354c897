"""Reads the definitions of a pipeline's TOML files: references are replaced, values are canonical, unknown
keys are errors."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from volstream.api.pipelines.definitions import BOOKKEEPING, CODE, JOB_KINDS, KEYS, Definition, Kind, defaults
from volstream.base import config
from volstream.base.definitions import NO_SCHEDULE, DefinableSource, JobOptions, QueueType, VolumeSpec
from volstream.base.definitions.forms import as_text
from volstream.base.definitions.job import Scheduled
from volstream.base.definitions.options import keys
from volstream.base.model.names import Name
from volstream.base.model.paths import scheme_of
from volstream.base.model.text import like, nearest
from volstream.base.model.units import MAX_INTEGER
from volstream.base.privacy import has_references
from volstream.errors import InvalidValueError, NotFoundError, VolstreamError

# References in the strings of a file, ``${var:NAME}`` and ``${env:NAME}``, and the refusal of secrets written
# out.

#: A reference, or with another dollar before it its text.
_REFERENCE = re.compile(r"(\$?)\$\{(var|env):([^{}]*)\}")

#: Names of values that are secrets, in whatever style they are written.
_SECRET_NAME = re.compile(
    r"passw(or)?d|passphrase|secret|token|credential|(api|access|private|account)[_.-]?key|key[_.]pem|pwd|dsn|webhook|cookie|signing"
    r"|(^|[_.-]|pg|db)pass(?=$|[_.-])|(^|[_.-])(pat|auth)(?=$|[_.-])",
    re.IGNORECASE,
)

#: Values that are secrets, whatever they are called: keys of AWS and Alibaba Cloud, private keys, a password
#: in a URL.
_SECRET_VALUE = re.compile(
    r"\b(AKIA|ASIA)[A-Z0-9]{16}\b|\bLTAI[A-Za-z0-9]{12,}|-----BEGIN [A-Z ]*PRIVATE KEY-----|://[^/\s:@]*:[^/\s@]+@"
)


def is_secret(name: str) -> bool:
    """True if a value of this name is a secret."""
    return _SECRET_NAME.search(name) is not None


def check_literal(text: str) -> None:
    """Raises InvalidValueError, without repeating it, for text that contains a secret, or a NUL, which no
    catalog can hold."""
    if "\0" in text:
        raise InvalidValueError("The value has a NUL character.", "Leave it out.")
    if _SECRET_VALUE.search(text):
        raise InvalidValueError(
            "The value contains a secret.",
            "Keys of stores belong in [credentials] of volstream.toml; refer to others by ${env:NAME}.",
        )


def expand(value: Any, variable: Callable[[str], Any], environment: Callable[[str], str | None]) -> Any:
    """Returns a value, or a list or table of values, with its references replaced.

    A string that is nothing but ``${var:NAME}`` becomes the variable's value with its type. ``$${`` stands
    for ``${``.

    Args:
        variable: returns a variable's value, or raises InvalidValueError.
        environment: returns the value of a variable of the environment, or None.

    Raises:
        InvalidValueError: a reference leads nowhere or to a secret, or a text contains a secret or a NUL.
    """
    if isinstance(value, Mapping):
        return {key: expand(item, variable, environment) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, variable, environment) for item in value]
    if not isinstance(value, str):
        return value
    check_literal(value)

    def resolved(kind: str, name: str) -> Any:
        if kind == "var":
            return variable(name)
        if is_secret(name):
            raise InvalidValueError(
                f"{name} is a secret, and the catalog stores this value in plain text.",
                "Refer to secrets only in secret properties of topics, or let the function read the environment.",
            )
        text = environment(name)
        if text is None:
            raise InvalidValueError(f"The environment variable {name} is not set.", f"Set it, or replace ${{env:{name}}}.")
        check_literal(text)
        return text

    whole = _REFERENCE.fullmatch(value)
    if whole is not None and not whole[1]:
        return resolved(whole[2], whole[3])
    return _REFERENCE.sub(lambda match: match[0][1:] if match[1] else as_text(resolved(match[2], match[3])), value)


def escaped(text: str) -> str:
    """Returns text that :func:`expand` turns back into ``text``."""
    return re.sub(r"\$+\{(var|env):[^{}]*\}", lambda match: f"${match[0]}", text)


# Completes the values of a definition: what depends on the file's folder or on several keys at once.

#: Keys of a job of files that one of another form does not have.
_NOT_OF: Mapping[str, Collection[str]] = {
    "load": ("stream", "returns", "arguments", "environment", "outputs_to", "outputs_prefix"),
    "statement": tuple(KEYS[Kind.JOB].keys() - {"statement", "stream", *keys(JobOptions)}),
    "function": (),
}

#: Keys of each kind of source.
_OF_SOURCE: Mapping[DefinableSource, Collection[str]] = {
    DefinableSource.EVENTS: ("retention_policy",),
    DefinableSource.ITEMS: ("primary_key",),
    DefinableSource.KAFKA: ("brokers", "topic", "format", "properties", "retention_policy"),
}


def complete(kind: Kind, written: str, values: Mapping[str, Any], given: Collection[str], folder: Path) -> Mapping[str, Any]:
    """Returns all values of a definition.

    Args:
        written: its name as the file has it.
        values: the values in the file, in canonical form, and defaults.
        given: the keys that the file has.
        folder: the file's.

    Raises:
        InvalidValueError: keys contradict each other, or a value is invalid.
        FunctionLoadError: the code of a job's function is missing.
    """
    completed = dict(values)
    Scheduled(**{name: completed[name] for name in NO_SCHEDULE if name in completed})
    finish = _FINISH.get(kind)
    return completed if finish is None else {**completed, **finish(written, completed, given, folder)}


def _volume(written: str, values: Mapping[str, Any], _given: Collection[str], folder: Path) -> dict[str, Any]:
    from volstream.files.storage import normalise_location

    place = values["location"]
    if scheme_of(place) == "file" and not place.lower().startswith("file:"):
        place = os.path.join(folder, os.path.expanduser(place))
    place = normalise_location(place)
    return {"location": place, "queue_type": default_queue(written, place, values)}


def default_queue(name: str, location: str, values: Mapping[str, Any]) -> QueueType:
    """Returns a volume's queue type, or the default for its location. Raises InvalidValueError."""
    from volstream.files.volumes.definitions import queue_type_of

    queue = {key: values[key] for key in ("queue_type", "queue_name")}
    return queue_type_of(VolumeSpec(name=Name.parse(name), location=location, **queue), location)


def _function(_written: str, values: Mapping[str, Any], _given: Collection[str], folder: Path) -> dict[str, Any]:
    from volstream.functions.finding import absolute
    from volstream.functions.sql import sql_type

    return {"function": absolute(values["function"], folder), "returns": sql_type(values["returns"])}


def _source(written: str, values: Mapping[str, Any], given: Collection[str], _folder: Path) -> dict[str, Any]:
    kind: DefinableSource = values["kind"]
    for key in sorted(given):
        if key not in ("kind", "comment", *_OF_SOURCE[kind]):
            raise InvalidValueError(
                f"A source of {kind} has no key {key!r}.", f"It has {', '.join(['comment', *_OF_SOURCE[kind]])}."
            )
    if kind is DefinableSource.ITEMS and values["primary_key"] is None:
        raise InvalidValueError("A source of items needs a primary_key.", 'Write primary_key = "COLUMN".')
    if kind is not DefinableSource.KAFKA:
        return {}
    from volstream.api.objects.sources import as_written

    return {"topic": values["topic"] or as_written(written), "format": values["format"] or "json"}


def _table(_written: str, values: Mapping[str, Any], _given: Collection[str], _folder: Path) -> dict[str, Any]:
    from volstream.api.pipelines.columns import parse_columns
    from volstream.changes.streams.sources import kept_days, tracking

    for key in values["properties"]:
        if key.startswith(BOOKKEEPING):
            raise InvalidValueError(f"properties: {key} is maintained by Delta or volstream.", "Remove it.")
    columns = parse_columns(values["columns"])
    for key in ("primary_key", "partitioned_by"):
        for column in values[key]:
            if column.lower() not in columns:
                raise InvalidValueError(f"{key} names a column {column!r}, which the table lacks.")
    if "change_tracking" in values["properties"]:
        tracking(values["properties"]["change_tracking"])
    properties = dict(values["properties"])
    if (days := properties.pop("data_retention_days", None)) is not None:  # a table has it as Delta's
        properties |= kept_days(days)
    return {"columns": values["columns"].strip(), "properties": properties}


def _stream(_written: str, values: Mapping[str, Any], _given: Collection[str], _folder: Path) -> dict[str, Any]:
    if (values["volume"] is None) == (values["table"] is None):
        raise InvalidValueError("A stream is on a volume or on a table.", "Write one of volume and table.")
    return {}


def _job(_written: str, values: Mapping[str, Any], given: Collection[str], folder: Path) -> dict[str, Any]:
    forms = [form for form in JOB_KINDS if values[form] is not None]
    if len(forms) != 1:
        raise InvalidValueError("A job has a function, a statement or load.", "Write one of them.")
    for key in _NOT_OF[forms[0]]:
        if key in given:
            raise InvalidValueError(f"A job with {forms[0]} has no {key}.", "Leave it out.")
    if forms[0] == "statement":
        return {"statement": values["statement"].strip(), CODE: None}
    if forms[0] == "load":
        if values["volume"] is None or values["into"] is None:
            raise InvalidValueError("A job that loads needs volume and into.")
        load = values["load"]
        return {"load": dataclasses.replace(load, schema=_columns(load.schema)), CODE: None}
    from volstream.functions.finding import absolute, find
    from volstream.jobs.rules.definitions import resolve_environment

    function = absolute(values["function"], folder)
    code = find(function, str(folder)).behaviour
    environment = resolve_environment(values["environment"], folder)
    return {"function": function, "returns": _columns(values["returns"]), "environment": environment, CODE: code}


def _columns(text: str | None) -> str | None:
    """Returns columns as the catalog has them."""
    if text is None:
        return None
    from volstream.functions.schema import as_declared, from_ddl

    return as_declared(from_ddl(text))


def _dynamic_table(_written: str, values: Mapping[str, Any], _given: Collection[str], _folder: Path) -> dict[str, Any]:
    return {"query": values["query"].strip()}


_FINISH: Mapping[Kind, Callable[[str, Mapping[str, Any], Collection[str], Path], dict[str, Any]]] = {
    Kind.VOLUME: _volume,
    Kind.FUNCTION: _function,
    Kind.SOURCE: _source,
    Kind.TABLE: _table,
    Kind.STREAM: _stream,
    Kind.JOB: _job,
    Kind.DYNAMIC_TABLE: _dynamic_table,
}


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
            for name, given in named.items():
                if not isinstance(given, Mapping):
                    raise InvalidValueError(
                        f"{self.name}: {name!r} stands in [{kind.value}] itself.", f"Write [{kind.value}.NAME] above it."
                    )
                yield kind, name, given


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
        for kind, written, given in file.objects():
            try:
                definition = _definition(file, kind, written, given, variables)
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


def _definition(file: _File, kind: Kind, written: str, given: Mapping[str, Any], variables: _Variables) -> Definition:
    name, known, values = Name.parse(written), KEYS[kind], defaults(kind)
    for key, value in given.items():
        if key not in known:
            raise InvalidValueError(f"There is no key {key!r}.", _hint(kind, written, key, value, list(known)))
        try:
            values[key] = known[key].read(_expanded(key, value, variables))
        except VolstreamError as error:
            raise located(error, key) if not error.message.startswith(key) else error from None
    missing = [key for key, spec in known.items() if spec.required and key not in given]
    if missing:
        raise InvalidValueError(f"It needs the key {missing[0]!r}.", f"Its keys: {', '.join(known)}.")
    folder = file.path.parent.absolute()
    return Definition(kind, name, complete(kind, written, values, given.keys(), folder), folder, file.name)


def _expanded(key: str, value: Any, variables: _Variables) -> Any:
    if key == "arguments" and isinstance(value, Mapping):
        for name in filter(is_secret, value):
            raise InvalidValueError(
                f"{name} is a secret, and the catalog stores arguments in plain text.",
                "Let the function read it from the environment (os.environ).",
            )
    if key in ("properties", "queue_properties") and isinstance(value, Mapping):
        # The catalog keeps the reference: the daemon looks it up.
        kept = {name: text for name, text in value.items() if is_secret(name) and isinstance(text, str) and has_references(text)}
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
    """True if all integers are TOML's, which have 64 bits; Python reads larger ones, and does not write the
    largest."""
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
