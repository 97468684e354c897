"""Checks arguments of public methods against their annotations at the call.

A wrong type, an unknown word or an unknown keyword raises an :class:`~volstream.errors.InvalidValueError`
that names the argument, its value and what is accepted, instead of an error deep inside. Words become members
of their enumeration, and texts become names, so that methods receive values of the annotated types. What does
not belong here: rules about values of the right type.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from volstream.base.model.names import Name
from volstream.base.model.text import like, nearest, shortened
from volstream.errors import InvalidValueError, VolstreamError

T = TypeVar("T", bound=Callable[..., Any])

#: What to pass for a type, in messages.
_WANTED: Mapping[Any, str] = {
    str: "text",
    bytes: "bytes",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    type(None): "None",
    Name: "a name",
    Path: "a path",
    os.PathLike: "a path",
    datetime: "a datetime",
    timedelta: "a timedelta",
    Callable: "a function",
    Mapping: "a dict",
}

#: Likewise for the items of a list.
_MANY: Mapping[Any, str] = {str: "texts", int: "whole numbers", Mapping: "dicts"}

#: Arguments whose values messages do not repeat.
_SECRET = frozenset({"token", "password"})


def checked(thing: T) -> T:
    """Checks the arguments of a function, or of each public method defined by a class.

    Annotations that cannot be evaluated, because they are imported only for type checkers, accept anything. A
    text in ``Annotated`` says what to pass.
    """
    if isinstance(thing, type):
        for name, member in list(vars(thing).items()):
            if isinstance(member, types.FunctionType) and not name.startswith("_"):
                setattr(thing, name, checked(member))
        return thing
    function = thing

    @functools.wraps(function)  # with the signature declared by `takes`
    def call(*positional: Any, **named: Any) -> Any:
        signature, kinds, options = _signature(function)
        if options is not None and (unknown := sorted(named.keys() - options)):
            raise InvalidValueError(
                f"{function.__qualname__}() has no argument {unknown[0]!r}.", nearest(unknown[0], sorted(options))
            )
        try:
            bound = signature.bind(*positional, **named)
        except TypeError:
            return function(*positional, **named)  # raises Python's own message about missing or superfluous arguments
        for name, value in bound.arguments.items():
            if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {
                    key: fitting(key, item, kinds.get(key, kinds.get(name, Any))) for key, item in value.items()
                }
            elif signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(fitting(name, item, kinds.get(name, Any)) for item in value)
            else:
                bound.arguments[name] = fitting(name, value, kinds.get(name, Any))
        return function(*bound.args, **bound.kwargs)

    return brief(typing.cast(T, call))


def brief(function: T) -> T:
    """Makes an error of ours, and Ctrl-C, show the caller's line and the message, without the frames of
    volstream and Spark.

    What caused it stays in ``__context__``. An error that reaches other code of volstream stays unchanged.
    """

    @functools.wraps(function)
    def call(*positional: Any, **named: Any) -> Any:
        try:
            return function(*positional, **named)
        except (VolstreamError, KeyboardInterrupt) as error:
            if sys._getframe(1).f_globals.get("__name__", "").startswith("volstream."):
                raise
            error.__context__ = error.__cause__ or error.__context__
            raise error.with_traceback(None) from None

    return typing.cast(T, call)


class _Unchanged(Enum):
    """The default of options in methods that change an object: the option stays as it is."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return self.value


class OptionDescription(Protocol):
    """An option of a definition: see :class:`volstream.base.definitions.options.Key`."""

    @property
    def keyword(self) -> str:
        """The keyword argument's type, as source."""

    @property
    def default(self) -> Any:
        """The value of an object created without the option."""


def takes(options: Mapping[str, OptionDescription], *, changes: bool = False) -> Callable[[T], T]:
    """Declares the ``**options`` of a function: :func:`checked` refuses others, and ``help`` shows them.

    Args:
        changes: omitted options stay as they are.
    """

    def declared(function: T) -> T:
        signature = inspect.signature(function)
        plain = [parameter for parameter in signature.parameters.values() if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        shown = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_Unchanged.UNCHANGED if changes else option.default,
                annotation=option.keyword,
            )
            for name, option in options.items()
        ]
        function.__volstream_options__ = frozenset(options)  # type: ignore[attr-defined]  # functions take attributes
        function.__signature__ = signature.replace(parameters=[*plain, *shown])  # type: ignore[attr-defined]
        return function

    return declared


@functools.cache
def _signature(function: Callable[..., Any]) -> tuple[inspect.Signature, Mapping[str, Any], Collection[str] | None]:
    """Returns a function's signature, the types of its arguments, and the keywords that it accepts; None:
    any. Options of definitions are parsed according to their forms."""
    options: frozenset[str] = getattr(function, "__volstream_options__", frozenset())
    signature = inspect.signature(function)
    types_of = {name: kind for name, kind in _types(function).items() if name not in options}
    named = {name for name, parameter in signature.parameters.items() if parameter.kind in _NAMED and name != "self"}
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    return signature, types_of, None if inspect.Parameter.VAR_KEYWORD in kinds else named


def _types(thing: Callable[..., Any]) -> Mapping[str, Any]:
    """Returns the types of the arguments of a function."""
    scope = vars(sys.modules[inspect.unwrap(thing).__module__])
    return {name: _evaluated(parameter.annotation, scope) for name, parameter in inspect.signature(thing).parameters.items()}


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _evaluated(annotation: Any, scope: Mapping[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return Any if annotation is inspect.Parameter.empty else annotation
    try:
        return eval(annotation, dict(scope))  # noqa: S307  # an annotation in volstream's code
    except (NameError, TypeError):
        return Any


def fitting(name: str, value: Any, kind: Any) -> Any:
    """Converts an argument to its type.

    Raises:
        InvalidValueError: the value does not fit the type.
    """
    try:
        return _converted(value, kind)
    except _UnfitError:
        remedy = f"Give {_wanted(kind)}."
        words = [word for arm in _arms(kind) if _is_enum(arm) for word in _words(arm)]
        if isinstance(value, str) and words:
            remedy = like(value, words) + remedy
        shown = f"of the type {type(value).__name__}" if name in _SECRET else shortened(value)
        raise InvalidValueError(f"{name} cannot be {shown}.", remedy) from None


class _UnfitError(Exception):
    """A value does not have a type."""


def _converted(value: Any, kind: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or isinstance(kind, TypeVar):
        return value
    if origin is typing.Annotated:
        return _converted(value, inner[0])
    if origin in (typing.Union, types.UnionType):
        for arm in inner:
            try:
                return _converted(value, arm)
            except _UnfitError:
                continue
        raise _UnfitError
    if _is_enum(kind):
        return _member(value, kind)
    fits: bool
    match origin or kind:
        case None:
            fits = value is None
        case builtin if builtin is int:
            fits = hasattr(value, "__index__") and not isinstance(value, bool)
        case builtin if builtin is float:
            fits = hasattr(value, "__float__") and not isinstance(value, bool)
        case one if one is Name:
            return Name.parse(value) if isinstance(value, str) else _checked(value, isinstance(value, Name))
        case one if one is Path:
            return Path(value) if isinstance(value, str) else _checked(value, isinstance(value, Path))
        case one if one is Mapping:
            _checked(value, isinstance(value, Mapping))
            for key, item in value.items():
                _converted(key, inner[0])
                _converted(item, inner[1])
            return value
        case one if one in (Sequence, Iterable, Collection):
            _checked(value, isinstance(value, one) and not isinstance(value, str | bytes | Mapping))
            few = isinstance(value, list | tuple | set | frozenset)  # others can perhaps be iterated only once
            if few and (inner[0] in (str, int) or _is_enum(inner[0])):
                return [_converted(item, inner[0]) for item in value]
            return value
        case type() as one:
            fits = isinstance(value, one)
        case _:
            return value
    return _checked(value, fits)


def _checked(value: Any, fits: bool) -> Any:
    if not fits:
        raise _UnfitError
    return value


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _member(value: Any, kind: Any) -> Any:
    """Returns the member of an enumeration that a word means, as written in SQL, in Python or on the command
    line."""
    if isinstance(value, kind):
        return value
    if isinstance(value, str):
        words = {_plain(word): member for member in kind for word in (member.value, member.name)}
        member = words.get(_plain(value))
        if member is not None:
            return member
    raise _UnfitError


def _plain(word: object) -> str:
    return str(word).replace("-", "_").lower()


def _words(kind: type[Enum]) -> Sequence[str]:
    """Returns the words for an enumeration: the values if they equal the names except for case, else the
    names."""
    same = all(_plain(member.value) == _plain(member.name) for member in kind)
    return [str(member.value) if same else member.name for member in kind]


def _arms(kind: Any) -> Sequence[Any]:
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _wanted(kind: Any) -> str:
    """Returns what messages say an argument of a type may be."""
    if typing.get_origin(kind) is typing.Annotated:
        return str(kind.__metadata__[0])
    arms = [_wanted_of(arm) for arm in _arms(kind)]
    return arms[0] if len(arms) == 1 else f"{', '.join(arms[:-1])} or {arms[-1]}"


def _wanted_of(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if _is_enum(kind):
        return f"one of {', '.join(_words(kind))}"
    if origin in (Sequence, Iterable, Collection):
        if _is_enum(inner[0]):
            return f"a list of {', '.join(_words(inner[0]))}"
        return f"a list of {_MANY.get(typing.get_origin(inner[0]) or inner[0], 'values')}"
    if origin is Mapping:
        return "a dict of texts" if inner == (str, str) else _WANTED[Mapping]
    base = origin or kind
    if base in _WANTED:
        return _WANTED[base]
    name = getattr(base, "__name__", str(base))
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
