"""Functions without a file: defined in a notebook, in ``__main__``, or inside another function. The catalog
stores them.

Each is a zip archive of the pickle (made by PySpark's cloudpickle), the source for people, and the local
modules that the function imports. Functions in files are in ``source``.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import io
import json
import pickle
import pickletools
import sys
import textwrap
import types
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from volstream.base.definitions import FileJob, Function
from volstream.base.model.units import format_size
from volstream.errors import FunctionLoadError, InvalidValueError
from volstream.functions.finding import absolute, find, local_modules, location_of, missing
from volstream.functions.signature import batch_size_of
from volstream.functions.source import FunctionSource, importing, named_like

#: Maximum size of a function with its references: it is in a row of the catalog, which is read with its job.
MAX_BYTES = 1 << 20

#: This process's functions by their pickles. Unpickling one here would replace methods of the classes it
#: references with methods that no longer see the program's variables.
_local_functions: WeakValueDictionary[bytes, Any] = WeakValueDictionary()

_PICKLE, _TEXT, _FACTS, _BESIDE = "function.pickle", "source.py", "about.json", "beside/"


@dataclass(frozen=True)
class PickledSource(FunctionSource):
    """A pickled function.

    Attributes:
        python: the version of Python, such as ``3.12``, that pickled it: bytecode is for one version.
        pickled: the pickle.
        text: its source, for people, if known to Python.
        batch_size: see :func:`~volstream.functions.signature.batch_size_of`. Its annotations may not resolve
            elsewhere.
    """

    python: str
    pickled: bytes
    text: str | None
    batch_size: int | None

    @property
    def place(self) -> str:
        """The function's name in messages."""
        return f"The function {self.attribute}"

    @property
    def unfit(self) -> str | None:
        """Why this Python cannot run the function, or None."""
        if self.python == _python():
            return None
        return f"The function {self.attribute} was created with Python {self.python} and cannot be run with Python {_python()}."

    def load(self) -> Callable[..., Any]:
        """Returns the function, unpickled unless this process defined it. Raises FunctionLoadError."""
        local: Callable[..., Any] | None = _local_functions.get(self.pickled)
        if local is not None:
            return local
        if (why := self.unfit) is not None:
            raise FunctionLoadError(
                why, f"Create the job again with Python {_python()}, or move the function into a file and name it FILE.py:FUNC."
            )
        with importing(self):
            if self.files:
                self.unpacked()
            with self.importable():
                function: Callable[..., Any] = pickle.loads(self.pickled)
        if self.batch_size is not None:
            # Read by batch_size_of.
            function.__volstream_batch_size__ = self.batch_size  # type: ignore[attr-defined]
        return function


def archive_of(function: Callable[..., Any]) -> bytes:
    """Pickles a function, or a class whose instances are functions, for the catalog.

    Raises:
        InvalidValueError: it references something that cannot be pickled, or is too large (the message names
            the variable), or it reads files beside it, which only a function in a file can.
    """
    name = name_of(function)
    if getattr(function, "__volstream_reads__", ()):
        raise InvalidValueError(
            f"{name} declares files that it reads, but is not in a file.", "Move it into a file, beside them."
        )
    try:
        pickled = _dumps(function)
        content = Content(_pickler(io.BytesIO()))
        identity = content.of(function)
    except Exception as error:  # noqa: BLE001  # pickling may raise anything
        raise _unpicklable(name, function, error) from None
    with suppress(TypeError):  # an object that does not support weak references
        _local_functions[pickled] = function
    text = _text_of(function)
    files = _module_files(pickled, content.imported)
    facts = {
        "name": name,
        "python": _python(),
        "fingerprint": fingerprint_of(identity, files),
        "batch_size": batch_size_of(function),
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_FACTS, json.dumps(facts))
        archive.writestr(_PICKLE, pickled)
        if text is not None:
            archive.writestr(_TEXT, text)
        for path, data in files.items():
            archive.writestr(_BESIDE + path, data)
    if packed.tell() > MAX_BYTES:
        raise _too_large(name, function, packed.tell())
    return packed.getvalue()


def source_of(archive: bytes) -> PickledSource:
    """Returns the function in an archive without unpickling it. Raises FunctionLoadError."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            content = {name: opened.read(name) for name in opened.namelist()}
        facts = json.loads(content[_FACTS])
        text = content.get(_TEXT)
        files = {name.removeprefix(_BESIDE): data for name, data in content.items() if name.startswith(_BESIDE)}
        return PickledSource(
            module="__main__",
            attribute=facts["name"],
            root=None,
            files=files,
            fingerprint=facts["fingerprint"],
            behaviour=facts["fingerprint"],
            python=facts["python"],
            pickled=content[_PICKLE],
            text=None if text is None else text.decode(),
            batch_size=facts["batch_size"],
        )
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise FunctionLoadError(
            f"The function in the catalog cannot be read: {error}.", "Create the job again, with its function."
        ) from None


def function_attributes(function: str | Callable[..., Any]) -> Mapping[str, Any]:
    """Returns a function as attributes of a catalog definition: its place in a file or module, or its pickle.

    Raises:
        InvalidValueError: as :func:`archive_of`.
    """
    if isinstance(function, str):
        return {"function": function, "pickled": None}
    place = location_of(function)
    if place is not None:
        return {"function": place, "pickled": None}
    return {"function": name_of(function), "pickled": archive_of(function)}


def resolved(given: Mapping[str, Any], folder: Path) -> tuple[str, FunctionSource]:
    """Returns the absolute name and the code of a function, given in the form of :func:`function_attributes`.

    Args:
        folder: where to find a file or module.

    Raises:
        FunctionLoadError: the file or module does not exist.
    """
    text, pickled = given["function"], given.get("pickled")
    if pickled is not None:
        return text, source_of(pickled)
    place = absolute(text, folder)
    return place, find(place, str(folder))


def code_of(definition: FileJob | Function) -> FunctionSource:
    """Returns the current code of a job's function, or of a SQL function. Raises FunctionLoadError if it is
    missing."""
    return find(definition.function, definition.search_path) if definition.pickled is None else source_of(definition.pickled)


def has_steps(source: FunctionSource) -> bool:
    """Returns whether a function may have steps, because its source or its pickle names them."""
    texts = [*source.files.values(), *([source.pickled] if isinstance(source, PickledSource) else [])]
    return any(b"step" in text and b"volstream" in text for text in texts)


def missing_code(definition: FileJob | Function) -> str | None:
    """Returns why the code cannot be found or run, or None."""
    if definition.pickled is None:
        return missing(definition.function, definition.search_path)
    try:
        return source_of(definition.pickled).unfit
    except FunctionLoadError as error:
        return error.message


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _dumps(value: Any) -> bytes:
    packed = io.BytesIO()
    _pickler(packed).dump(value)
    return packed.getvalue()


def _pickler(target: io.BytesIO) -> Any:
    from pyspark import cloudpickle  # late: commands start without it

    base: Any = cloudpickle.Pickler

    class Pickler(base):  # type: ignore[misc]  # PySpark's copy has no types
        def reducer_override(self, value: Any) -> Any:
            # cloudpickle would pickle it by its module's name, as if that could be imported.
            if isinstance(value, _CACHED) and is_pickled_by_value(value.__wrapped__):
                return _cached, (value.__wrapped__, value.cache_parameters())
            # cloudpickle would pickle the unread content.
            if isinstance(value, _FILES) and value not in (sys.stdout, sys.stderr):
                raise pickle.PicklingError("an open file")
            return super().reducer_override(value)

    return Pickler(target)


_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)

#: The type of functions with ``lru_cache`` or ``cache``.
_CACHED = type(functools.cache(len))


def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Callable[..., Any]:
    decorated: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return decorated


def _text_of(function: Any) -> str | None:
    """Returns a function's source, or None if it has none, or was typed into a program that Python read from
    standard input."""
    try:
        return textwrap.dedent(inspect.getsource(function if hasattr(function, "__code__") else _class_of(function)))
    except (OSError, TypeError, IndentationError):
        return None


def _class_of(function: Any) -> Any:
    return function if isinstance(function, type) else type(function)


def _module_files(pickled: bytes, imported: Collection[str]) -> Mapping[str, bytes]:
    """Returns the source of modules that are not installed and that a function references, or imports when
    called."""
    strings = {argument for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str)}
    files: dict[str, bytes] = {}
    for name in sorted({module.partition(".")[0] for module in {*imported, *(strings & sys.modules.keys())}} - {"__main__"}):
        files |= local_modules(name)
    return files


def _unpicklable(name: str, function: Any, error: Exception) -> InvalidValueError:
    seen: set[int] = set()
    waiting = [(name, function)]
    while waiting:
        where, user = waiting.pop(0)
        for variable, value in captured(user):
            if id(value) in seen or isinstance(value, types.ModuleType):
                continue
            seen.add(id(value))
            if is_pickled_by_value(value):
                waiting.append((variable, value))
                continue
            try:
                _dumps(value)
            except Exception as cause:  # noqa: BLE001  # pickling may raise anything
                within = "" if where == name else f" (in {where})"
                return InvalidValueError(
                    f"The function {name} uses the variable {variable!r}{within}, a {type(value).__name__}, which cannot be "
                    f"sent to the workers: {cause}.",
                    f"Create {variable} inside the function or, once per worker, in the __init__ of a class.",
                )
    return InvalidValueError(
        f"The function {name} cannot be sent to the workers: {error}.", "Move it into a file, and name it FILE.py:FUNC."
    )


def _too_large(name: str, function: Any, size: int) -> InvalidValueError:
    sizes = {variable: len(_dumps(value)) for variable, value in captured(function) if not isinstance(value, types.ModuleType)}
    largest = max(sizes, key=lambda variable: sizes[variable], default=None)
    part = f", most of it in the variable {largest!r}" if largest is not None and sizes[largest] > size // 2 else ""
    return InvalidValueError(
        f"The function {name} and the values it uses have {format_size(size)}{part}; the limit is {format_size(MAX_BYTES)}.",
        "Load large values from a file, once per worker, in the __init__ of a class.",
    )


def name_of(function: Any) -> str:
    """Returns the name of a callable, on one line."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return str(name).rpartition("<locals>.")[2].replace("<lambda>", "lambda")


def captured(function: Any) -> Iterator[tuple[str, Any]]:
    """Yields the outer variables that a function, or a class's methods, use: globals first, then closures."""
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
    """Returns whether a function or class is pickled by value, not by the name of its module."""
    if not isinstance(value, types.FunctionType | type):
        return False
    module, named = sys.modules.get(value.__module__), named_like(value)
    # A decorator's result has the function's name, and wraps it.
    importable = value is named or value is getattr(named, "__wrapped__", None)
    return module is None or module.__name__ == "__main__" or not importable


# A hash of a pickled function's behaviour: of everything in its pickle, in a form that is the same in each
# run.
#
# The pickle itself differs between runs of a program: the order of sets varies, code has file names and line
# numbers, and classes have random numbers by which cloudpickle identifies them. So the hash follows the
# reductions of the same pickler.

#: Attributes of classes and functions with their position in the source, or computed from others. pydantic's
#: contain memory addresses.
_NOT_BEHAVIOUR = frozenset(
    [
        "__module__",
        "__firstlineno__",
        "__static_attributes__",
        "__pydantic_core_schema__",
        "__pydantic_serializer__",
        "__pydantic_validator__",
        "_cloudpickle_submodules",
        "cls_ref",
    ]
)


def fingerprint_of(content: bytes, files: Mapping[str, bytes]) -> str:
    """Returns the fingerprint of a function with this content (:meth:`Content.of`) and these local
    modules."""
    return _node("function", [content, *(_leaf(path, files[path]) for path in sorted(files))]).hex()


def content_of(function: Callable[..., Any]) -> str:
    """Returns the hash of a function's content. Raises the errors of its reduction."""
    return Content(_pickler(io.BytesIO())).of(function).hex()


class Content:
    """Hashes values by content. Nesting, order and identity count, but not the position in the source.

    Args:
        pickler: cloudpickle's.

    Attributes:
        imported: names of the modules that code imports when it runs.
    """

    def __init__(self, pickler: Any) -> None:
        self.imported: set[str] = set()
        self._pickler = pickler
        # By address. Keeps the values, so that no address is reused.
        self._seen: dict[int, tuple[int, Any]] = {}

    def of(self, value: Any) -> bytes:
        """Returns the hash of a value. Raises the errors of its reduction."""
        kind = type(value)
        if kind is str:
            return _leaf("str", value.encode("utf-8", "surrogatepass"))
        if kind is int:
            return _leaf("int", hex(value).encode())
        if kind is bytes:
            return _leaf("bytes", value)
        if value is None or kind in (bool, float, complex, types.EllipsisType, types.NotImplementedType):
            return _leaf(kind.__name__, repr(value).encode())
        if kind is tuple:
            return _node("tuple", map(self.of, value))
        if kind is frozenset:
            return self._unordered("frozenset", value)
        if id(value) in self._seen:
            return _leaf("again", str(self._seen[id(value)][0]).encode())
        self._seen[id(value)] = len(self._seen), value
        if kind is list:
            return _node("list", map(self.of, value))
        if kind is dict:
            return _node("dict", (self.of(part) for pair in value.items() for part in pair))
        if kind is set:
            return self._unordered("set", value)
        if kind is types.CodeType:
            return self._code(value)
        return self._reduced(value)

    def _unordered(self, kind: str, values: Iterable[Any]) -> bytes:
        # By hashes that do not depend on earlier values.
        return _node(kind, map(self.of, sorted(values, key=lambda value: Content(self._pickler).of(value))))

    def _code(self, code: types.CodeType) -> bytes:
        instructions = dis.get_instructions(code)
        self.imported.update(str(one.argval) for one in instructions if one.opname == "IMPORT_NAME")
        names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        parts = (code.co_code, code.co_exceptiontable, names, counts, code.co_consts)
        return _node("code", map(self.of, parts))

    def _reduced(self, value: Any) -> bytes:
        from pyspark.cloudpickle import cloudpickle

        reduced = self._pickler.reducer_override(value)
        if reduced is NotImplemented:
            if isinstance(value, type | types.FunctionType):
                return self._named(value, value.__qualname__)
            reduce = self._pickler.dispatch_table.get(type(value))
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(reduced, str):
            return self._named(value, reduced)
        make, arguments, *rest = reduced
        if make is cloudpickle._make_function:
            state, attributes = rest[0]
            arguments, rest = arguments[:1], [state, _behaviour(attributes)]
        elif make is cloudpickle._make_skeleton_class:
            kind, name, bases, *_ = arguments
            arguments, rest = (kind, name, bases), [_behaviour(rest[0][0])]
        elif make is cloudpickle._make_skeleton_enum:
            bases, name, _, members, *_ = arguments
            arguments, rest = (bases, name, members), [_behaviour(rest[0][0])]
        elif make is cloudpickle._make_typevar:
            arguments = arguments[:-1]
        else:
            state, items, pairs, setter = [*rest, None, None, None, None][:4]
            if type(value).__module__ == "pydantic._internal._decorators":
                state = [_behaviour(part or {}) for part in state]
            rest = [state, [*(items or ())], [*map(tuple, pairs or ())], setter]
        return _node("made", map(self.of, (make, arguments, *rest)))

    def _named(self, value: Any, name: str) -> bytes:
        del self._seen[id(value)]
        # Not in typeshed.
        return _leaf("named", f"{pickle.whichmodule(value, name)}.{name}".encode("utf-8", "surrogatepass"))  # type: ignore[attr-defined]


def _behaviour(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in attributes.items() if name not in _NOT_BEHAVIOUR}


def _leaf(kind: str, content: bytes) -> bytes:
    return hashlib.sha256(f"{kind}\0".encode("utf-8", "surrogatepass") + content).digest()


def _node(kind: str, parts: Iterable[bytes]) -> bytes:
    return hashlib.sha256(f"{kind}\0".encode() + b"".join(parts)).digest()
