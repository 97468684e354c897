"""Reads the definitions of a pipeline's files: references are replaced, values are canonical, unknown keys are errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from volstream import config
from volstream.errors import InvalidValueError, VolstreamError
from volstream.model.names import Name
from volstream.model.text import like, nearest
from volstream.pipelines.complete import complete
from volstream.pipelines.files import RawFile, Variables, read_files
from volstream.pipelines.keys import KEYS, defaults
from volstream.pipelines.model import Definition, Kind
from volstream.pipelines.references import expand, is_secret
from volstream.references import refers


def read(path: Path, profile: str | None = None) -> Sequence[Definition]:
    """Returns the definitions of a file, or of all files of a folder.

    Args:
        profile: the profile whose variables apply besides those of ``[variables]``.

    Raises:
        NotFoundError: there is no such file.
        InvalidValueError: a file is not TOML, or contradicts itself; the message names file, object and key.
        FunctionLoadError: the code of a function is missing.
    """
    files = read_files(path)
    variables = Variables(files, profile)
    definitions: dict[tuple[Kind, Name], Definition] = {}
    for file in files:
        for kind, written, keys in file.objects():
            try:
                definition = _definition(file, kind, written, keys, variables)
            except VolstreamError as error:
                raise located(error, f"{file.name}: {kind.noun} {written}") from None
            if definition.identity in definitions:
                raise InvalidValueError(
                    f"{definition.where} is defined in {definitions[definition.identity].file} already.",
                    "Define it once.",
                )
            definitions[definition.identity] = definition
    return list(definitions.values())


def located(error: VolstreamError, where: str) -> VolstreamError:
    """Returns the same error with the place that it is about."""
    return type(error)(f"{where}: {error.message}", error.remedy)


def _definition(file: RawFile, kind: Kind, written: str, keys: Mapping[str, Any], variables: Variables) -> Definition:
    name, known, values = Name.parse(written), KEYS[kind], defaults(kind)
    for key, value in keys.items():
        if key not in known:
            raise InvalidValueError(f"There is no key {key!r}.", _hint(kind, written, key, value, list(known)))
        try:
            values[key] = known[key].read(_expanded(kind, key, value, variables))
        except VolstreamError as error:
            raise located(error, key) if not error.message.startswith(key) else error from None
    missing = [key for key, spec in known.items() if spec.required and key not in keys]
    if missing:
        raise InvalidValueError(f"It needs the key {missing[0]!r}.", f"Its keys: {', '.join(known)}.")
    folder = file.path.parent.absolute()
    return Definition(kind, name, complete(kind, written, values, keys.keys(), folder), folder, file.name)


def _expanded(kind: Kind, key: str, value: Any, variables: Variables) -> Any:
    if key == "arguments" and isinstance(value, Mapping):
        for name in filter(is_secret, value):
            raise InvalidValueError(
                f"{name} is a secret, and the catalog stores arguments in plain text.",
                "Let the function read it from the environment (os.environ).",
            )
    if kind is Kind.SOURCE and key == "properties" and isinstance(value, Mapping):
        # The catalog keeps the reference: the daemon looks it up.
        kept = {
            name: text for name, text in value.items() if is_secret(name) and isinstance(text, str) and refers(text)
        }
        others = {name: text for name, text in value.items() if name not in kept}
        return {**expand(others, variables.get, config.environment), **kept}
    return expand(value, variables.get, config.environment)


def _hint(kind: Kind, written: str, key: str, value: Any, known: Sequence[str]) -> str:
    if isinstance(value, Mapping) and not like(key, known):
        return f'For an object of a schema write [{kind.value}."{written}.{key}"].'
    return nearest(key, known)
