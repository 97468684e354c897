"""What a pickled function does, as a hash: of everything that its pickle would have, in a form that is the same in each run.

The pickle itself differs between runs of a program: sets come in another order, code has names of files and numbers of lines, and
classes have random numbers by which cloudpickle tells them apart. So the hash follows the reductions of the same pickler.
"""

from __future__ import annotations

import dis
import hashlib
import pickle
import types
from collections.abc import Iterable, Mapping
from typing import Any

#: Attributes of classes and functions that say where they stand in the source, or are computed from others. Those of pydantic
#: contain addresses in memory.
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
    """Returns the fingerprint of a function with this content (:meth:`Content.of`) and these modules beside it."""
    return _node("function", [content, *(_leaf(path, files[path]) for path in sorted(files))]).hex()


class Content:
    """Hashes values by what they are made of: nesting, order and identity count, places in the source do not.

    Args:
        pickler: of cloudpickle.

    Attributes:
        imported: names of the modules that code imports when it runs.
    """

    def __init__(self, pickler: Any) -> None:
        self.imported: set[str] = set()
        self._pickler = pickler
        # By address, with the values, so that no other one gets it.
        self._seen: dict[int, tuple[int, Any]] = {}

    def of(self, value: Any) -> bytes:
        """Returns the hash of a value. Raises whatever its reduction raises."""
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
        # By hashes that do not depend on what was seen before.
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
        return _leaf("named", f"{pickle.whichmodule(value, name)}.{name}".encode("utf-8", "surrogatepass"))  # type: ignore[attr-defined]  # not in typeshed


def _behaviour(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in attributes.items() if name not in _NOT_BEHAVIOUR}


def _leaf(kind: str, content: bytes) -> bytes:
    return hashlib.sha256(f"{kind}\0".encode("utf-8", "surrogatepass") + content).digest()


def _node(kind: str, parts: Iterable[bytes]) -> bytes:
    return hashlib.sha256(f"{kind}\0".encode() + b"".join(parts)).digest()
