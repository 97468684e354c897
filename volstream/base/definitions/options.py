"""Describes the options of an object once, where its dataclass declares them: the fields of a dataclass that
are annotated with an :class:`Option`. Commands, SQL, Python, pipeline files, the catalog and the reference
pages follow from it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from volstream.base.definitions import forms
from volstream.base.definitions.forms import Form
from volstream.base.model.names import Name
from volstream.errors import InvalidValueError, VolstreamError


@dataclasses.dataclass(frozen=True)
class Option:
    """What the annotation of a field says of an option.

    Attributes:
        help: a sentence, for a command's help and the reference pages.
        form: how its values are written; None: as its type is.
        metavar: stands for the value in a command's help.
        single: the word where one item of a list or a mapping is given at a time: ``--pattern`` for
            ``patterns``.
        flag: the command's option if it cannot have the option's name.
        alterable: an existing object can get another value.
        at_start: matters only when the object is created, and cannot be read back from an existing one.
        minimum, maximum: bounds of a number.
        names: the kind of objects that it names, for completion in the shell.
        clause: SQL has a clause for it, so that it is not a property.
    """

    help: str = ""
    form: Form | None = None
    metavar: str | None = None
    single: str | None = None
    flag: str | None = None
    alterable: bool = True
    at_start: bool = False
    minimum: float | None = None
    maximum: float | None = None
    names: str | None = None
    clause: bool = False


@dataclasses.dataclass(frozen=True)
class Key:
    """An option of a kind of object, with its name, the type of its stored values, its form, and the default
    of its field."""

    name: str
    kind: Any
    form: Form
    option: Option
    optional: bool
    default: Any
    required: bool

    @property
    def keyword(self) -> str:
        """The type of the keyword argument in Python, as source."""
        return f"{self.form.keyword} | None" if self.optional and "None" not in self.form.keyword else self.form.keyword

    @property
    def word(self) -> str:
        """The option where one item of it is given at a time."""
        return self.option.single or self.name

    def read(self, value: Any) -> Any:
        """Returns a value of Python or TOML as it is stored. Raises InvalidValueError, which names the
        option."""
        return self._checked(value, self.form.read)

    def parse(self, text: str) -> Any:
        """Returns a value written as text as it is stored. Raises like :meth:`read`."""
        return self._checked(text, self.form.parse)

    def write(self, value: Any) -> Any:
        """Returns a stored value as TOML and people have it."""
        return None if value is None else self.form.write(value)

    def _checked(self, value: Any, read: Any) -> Any:
        if value is None and self.optional:
            return None
        try:
            stored = read(value)
        except VolstreamError as error:
            raise InvalidValueError(f"{self.name}: {error.message}", error.remedy) from None
        minimum, maximum = self.option.minimum, self.option.maximum
        if minimum is not None and stored < minimum:
            raise InvalidValueError(f"{self.name} cannot be {stored}.", f"Give {minimum} or more.")
        if maximum is not None and stored > maximum:
            raise InvalidValueError(f"{self.name} cannot be {stored}.", f"Give {maximum} or less.")
        return stored


#: The forms of values by their types.
_FORMS: Mapping[Any, Form] = {
    str: forms.TEXT,
    bool: forms.FLAG,
    int: forms.NUMBER,
    float: forms.DURATION,
    datetime: forms.MOMENT,
    Name: forms.NAME,
    Sequence[str]: forms.TEXTS,
    Mapping[str, str]: forms.PAIRS,
}


def keys(cls: type[Any]) -> Mapping[str, Key]:
    """Returns the options that a dataclass describes: those without a default first, then its own before
    those of its bases."""
    described = _KNOWN.get(cls)
    if described is None:
        described = _KNOWN[cls] = _keys(cls)
    return described


_KNOWN: dict[type[Any], Mapping[str, Key]] = {}


def _keys(cls: type[Any]) -> Mapping[str, Key]:
    hints = typing.get_type_hints(cls, include_extras=True)
    order = [name for base in cls.__mro__ for name in vars(base).get("__annotations__", ())]
    described = {}
    for field in sorted(dataclasses.fields(cls), key=lambda field: order.index(field.name)):
        option = next((item for item in getattr(hints[field.name], "__metadata__", ()) if isinstance(item, Option)), None)
        if option is None:
            continue
        kind, optional = _plain(hints[field.name])
        form = option.form or (forms.words(kind) if _is_words(kind) else _FORMS[kind])
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        required = default is dataclasses.MISSING
        described[field.name] = Key(field.name, kind, form, option, optional, None if required else default, required)
    return dict(sorted(described.items(), key=lambda item: not item[1].required))


def to_create(cls: type[Any], *own: str) -> Mapping[str, Key]:
    """Returns the options with which an object is created, except those that are the method's ``own``
    arguments."""
    return {name: key for name, key in keys(cls).items() if name not in own}


def to_alter(cls: type[Any], *own: str) -> Mapping[str, Key]:
    """Returns the options that can be changed, except those that are the method's ``own`` arguments."""
    described = keys(cls).items()
    return {name: key for name, key in described if key.option.alterable and not key.option.at_start and name not in own}


def _plain(annotation: Any) -> tuple[Any, bool]:
    """Returns the type of an annotated field without None, and whether it may be None."""
    kind = typing.get_args(annotation)[0]
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        [kind] = [arm for arm in typing.get_args(kind) if arm is not type(None)]
        return kind, True
    return kind, False


def _is_words(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, StrEnum)


def read(cls: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options given by name in Python, as they are stored; other names are left as they are.

    Raises:
        InvalidValueError: a value does not have the form of its option.
    """
    described = keys(cls)
    return {name: described[name].read(value) if name in described else value for name, value in given.items()}
