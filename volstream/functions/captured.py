"""The captured variables of a pickled function, and its identity."""

from __future__ import annotations

import dis
import hashlib
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
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


def fingerprint_of(function: Any, files: Mapping[str, bytes]) -> str:
    """Returns a hash of a function's behaviour: its bytecode, everything it refers to, and the modules beside it.

    The pickle is not hashed, because it differs between runs of a program.
    """
    digest = hashlib.sha256()
    _identify(function, digest.update, set())
    for path in sorted(files):
        digest.update(f"{path}\0{len(files[path])}\0".encode())
        digest.update(files[path])
    return digest.hexdigest()


def _identify(value: Any, put: Callable[[bytes], None], seen: set[int]) -> None:
    """Adds a value's content to a hash: equal values in two processes give the same hash."""
    put(f"{type(value).__qualname__}\0".encode())
    if isinstance(value, str | int | float | complex | types.NoneType | types.EllipsisType):
        put(f"{value!r}\0".encode("utf-8", "surrogatepass"))
    elif isinstance(value, bytes | bytearray):
        put(bytes(value))
    elif id(value) in seen:
        pass
    elif isinstance(value, types.CodeType):
        put(value.co_code)
        for part in (value.co_consts, value.co_names, value.co_varnames, value.co_freevars, value.co_exceptiontable):
            _identify(part, put, seen)
    elif isinstance(value, list | tuple):
        for item in value:
            _identify(item, put, seen)
    elif isinstance(value, set | frozenset):
        put("\0".join(sorted(map(repr, value))).encode("utf-8", "surrogatepass"))
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            _identify((key, value[key]), put, seen)
    elif is_pickled_by_value(value):
        seen.add(id(value))
        put(name_of(value).encode())
        if isinstance(value, types.FunctionType):
            _identify([value.__code__, [*captured(value)], value.__dict__], put, seen)
        else:
            parts = {key: getattr(var, "__func__", var) for key, var in vars(value).items() if not key.startswith("__")}
            own = {key: var for key, var in vars(value).items() if key in ("__init__", "__call__", "__annotations__")}
            _identify([[base.__qualname__ for base in value.__mro__[1:]], parts, own], put, seen)
    elif isinstance(value, property):
        _identify([value.fget, value.fset], put, seen)
    elif isinstance(value, types.ModuleType | types.FunctionType | types.BuiltinFunctionType | type):
        put(f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}".encode())
    else:
        seen.add(id(value))
        _identify_object(value, put, seen)


def _identify_object(value: Any, put: Callable[[bytes], None], seen: set[int]) -> None:
    state = getattr(value, "__dict__", None)
    if state:
        _identify(dict(state), put, seen)
        return
    try:
        put(pickle.dumps(value, 4))
    except Exception:  # noqa: BLE001  # any object may be asked; its type says what it is
        return
