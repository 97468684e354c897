"""A function's own declarations: its decorator and annotations."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

from volstream.base.model.arguments import checked
from volstream.base.model.text import like
from volstream.errors import FunctionLoadError, InvalidValueError

# Declarations of a function: its decorator, annotations and signature.

#: Files per call if a function takes a list of unspecified length.
_BATCH_SIZE = 64


#: Calls in flight per worker for a coroutine function that declares no number.
_COROUTINE_CALLS = 32


_F = TypeVar("_F", bound=Callable[..., Any])


@overload
def function(decorated: _F, /) -> _F: ...


@overload
def function(
    *, returns: object = None, batch_size: int | None = None, concurrency: int | None = None, reads: str | Sequence[str] = ()
) -> Callable[[_F], _F]: ...


@checked
def function(
    decorated: Any = None,
    /,
    *,
    returns: object = None,
    batch_size: int | None = None,
    concurrency: int | None = None,
    reads: str | Sequence[str] = (),
) -> Any:
    """Declares properties that annotations cannot express, of a per-file function or of a class whose
    instances are such functions.

    Args:
        returns: DDL such as ``label STRING, score DOUBLE``, a dataclass, or a PyArrow schema.
        batch_size: the function takes a list of at most this many files, and returns a list with one entry
            per file.
        concurrency: calls in flight in each worker: of a coroutine function on an event loop (default 32), or
            of a plain function in threads, which must be thread-safe.
        reads: further files that the function reads, such as ``prompts/*.txt``. They travel with its code,
            and a change makes a new version. Write the patterns as literals: they are read from the source.
    """
    if concurrency is not None and concurrency < 1:
        raise InvalidValueError(f"A function cannot have {concurrency} calls in flight.", "Give concurrency=1 or more.")
    if batch_size is not None and batch_size < 1:
        raise InvalidValueError(f"A function cannot take {batch_size} files at once.", "Give batch_size=1 or more.")

    def declare(decorated: _F) -> _F:
        # Read by schema.declaration_of, batch_size_of, concurrency_of and pickled.
        if returns is not None:
            decorated.__volstream_returns__ = returns  # type: ignore[attr-defined]
        if batch_size is not None:
            decorated.__volstream_batch_size__ = batch_size  # type: ignore[attr-defined]
        if concurrency is not None:
            decorated.__volstream_concurrency__ = concurrency  # type: ignore[attr-defined]
        if reads:
            decorated.__volstream_reads__ = reads  # type: ignore[attr-defined]
        return decorated

    return declare if decorated is None else declare(decorated)


def batch_size_of(function: Callable[..., Any]) -> int | None:
    """Returns the number of files that the function takes at once, or None for one file that is not in a
    list.

    It takes a list if :func:`function` declares so, or if its first parameter is annotated as ``list[File]``.
    """
    declared: int | None = getattr(function, "__volstream_batch_size__", None)
    if declared is not None:
        return declared
    target: Any = function
    if not hasattr(target, "__code__"):  # a class, or a callable object
        target = target.__call__
    try:
        parameters = [*inspect.signature(target).parameters][isinstance(function, type) :]
    except (TypeError, ValueError):  # a built-in function
        return None
    first = hints_of(target).get(parameters[0]) if parameters else None
    return _BATCH_SIZE if typing.get_origin(first) in (list, Sequence) else None


def concurrency_of(function: Callable[..., Any]) -> int:
    """Returns the number of calls in flight that the function wants in each worker, declared or by
    default."""
    declared: int | None = getattr(function, "__volstream_concurrency__", None)
    target: Any = function if hasattr(function, "__code__") else function.__call__  # type: ignore[operator]
    is_async = inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target)
    return declared or (_COROUTINE_CALLS if is_async else 1)


def check_signature(function: Callable[..., Any], arguments: Mapping[str, str]) -> None:
    """Raises FunctionLoadError if a function cannot be called with a file and these arguments, or a class
    cannot be set up with them.

    Accepts functions without an inspectable signature, such as some written in C.
    """
    if isinstance(function, type):
        if not any("__call__" in vars(base) for base in function.__mro__):
            raise FunctionLoadError(f"{function.__name__} is a class without __call__.", "Give it a method __call__(self, file).")
        calls: list[tuple[Any, tuple[None, ...], Mapping[str, str], str]] = [
            (function, (), arguments, "set up"),
            (function.__call__, (None, None), {}, "called with a file"),
        ]
    else:
        calls = [(function, (None,), arguments, "called with a file")]
    for called, positional, named, what in calls:
        try:
            signature = inspect.signature(called)
        except (TypeError, ValueError):
            continue
        name = getattr(function, "__name__", type(function).__name__)
        keywords = [parameter.name for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        if len(keywords) == len(signature.parameters) and (unknown := sorted({*named} - {*keywords})):
            raise FunctionLoadError(
                f"{name} has no argument {unknown[0]!r}.", like(unknown[0], keywords) or f"It has {', '.join(keywords)}."
            )
        try:
            signature.bind(*positional, **named)
        except TypeError as error:
            raise FunctionLoadError(
                f"{name}{signature} cannot be {what}: {error}.",
                "The function, or a class's __call__, takes the file first; the others are given by name: --arg name=value.",
            ) from None
    typed(function, arguments)


#: Texts that are accepted for a bool.
_BOOLS = {**dict.fromkeys(("true", "1", "yes", "on"), True), **dict.fromkeys(("false", "0", "no", "off"), False)}


def typed(function: Callable[..., Any], arguments: Mapping[str, str]) -> Mapping[str, Any]:
    """Returns arguments in their annotated types: text for an int, a float or a bool is converted. Raises
    FunctionLoadError if that fails."""
    # As Python calls it.
    hints = hints_of(function.__init__ if isinstance(function, type) else function)  # type: ignore[misc]
    values: dict[str, Any] = {}
    for name, text in arguments.items():
        hint = hints.get(name)
        options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
        kinds = [kind for kind in options if kind is not type(None)]
        try:
            match kinds:
                case [kind] if kind is bool:
                    values[name] = _BOOLS[text.lower()]
                case [kind] if kind is int or kind is float:
                    values[name] = kind(text)
                case _:
                    values[name] = text
        except (KeyError, ValueError):
            raise FunctionLoadError(f"The argument {name} is {text!r}, which is no {kinds[0].__name__}.") from None
    return values


# Resolves each annotation of a function separately, so that one that cannot be resolved does not hide the
# others.


def hints_of(function: Any) -> Mapping[str, Any]:
    """Returns the resolved annotations of a function's parameters and of its result (``return``), in
    order."""
    hints: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        single = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= typing.get_type_hints(single, getattr(function, "__globals__", {}))
        except Exception:  # noqa: BLE001  # resolving text can raise anything
            continue
    return hints
