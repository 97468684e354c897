"""The outer variables that a pickled function uses, and which of them are pickled by value."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any


def name_of(function: Any) -> str:
    """Returns the name of a callable, on one line."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return str(name).rpartition("<locals>.")[2].replace("<lambda>", "lambda")


def captured(function: Any) -> Iterator[tuple[str, Any]]:
    """Yields the outer variables that a function, or a class's methods, use: globals, then those of closures."""
    if isinstance(function, type):
        for var in vars(function).values():
            yield from captured(getattr(var, "__func__", var)) if not isinstance(var, type) else ()
    elif isinstance(function, types.FunctionType):
        for name in dict.fromkeys(_globals_in(function.__code__)):
            if name in function.__globals__:
                yield name, function.__globals__[name]
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # the cell is empty
                continue
        yield from zip(_defaulted(function), function.__defaults__ or (), strict=False)
        yield from (function.__kwdefaults__ or {}).items()


def _defaulted(function: types.FunctionType) -> Iterable[str]:
    code = function.__code__
    return code.co_varnames[: code.co_argcount][-len(function.__defaults__ or ()) :]


def _globals_in(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_in(constant)


def is_pickled_by_value(value: Any) -> bool:
    """True for a function or class that is pickled by value, rather than by the name of its module."""
    if not isinstance(value, types.FunctionType | type):
        return False
    module = sys.modules.get(value.__module__)
    named: Any = module
    for part in value.__qualname__.split("."):
        named = getattr(named, part, None)
    # A decorator's result has the function's name, and leads to it.
    importable = value is named or value is getattr(named, "__wrapped__", None)
    return module is None or module.__name__ == "__main__" or not importable
