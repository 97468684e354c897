"""Steps: functions whose values are kept for each file, so that its next version pays only for what is new.

The values are a cache, in one blob per source file. A key holds everything that a value depends on, so no commit
guards the cache, and a lost or torn blob costs calls, never a wrong row. Pickled functions name this module.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import io
import json
import pickle
import threading
import types
import zoneinfo
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Protocol, TypeVar, overload
from uuid import UUID

from volstream.errors import InvalidValueError
from volstream.functions.file import LONGEST_COUNT
from volstream.functions.source import FunctionSource, named_like
from volstream.functions.step_code import code_of

_F = TypeVar("_F", bound=Callable[..., Any])


@overload
def step(decorated: _F, /) -> _F: ...


@overload
def step(*, version: str | int = "", batch_size: int | None = None) -> Callable[[_F], _F]: ...


def step(decorated: Any = None, /, *, version: str | int = "", batch_size: int | None = None) -> Any:
    """Keeps the values of a function that a per-file function calls.

    When the next version of a file, or a retry, calls the step with equal arguments and the same code, it returns the
    kept value without a call. Arguments and values are plain data: None, bool, numbers, text, bytes, dates and times,
    UUIDs, lists, tuples, dicts, sets and NumPy arrays.

    Args:
        version: what the code cannot show, such as the model behind a URL. A new version computes all values again.
        batch_size: the first argument and the value are lists, with a value for each item. The function gets at most
            this many items at a time, and only those without a kept value.

    Raises:
        InvalidValueError: the decorated object is a generator function or a class, or ``batch_size`` is less than one.
    """
    if batch_size is not None and batch_size < 1:
        raise InvalidValueError(f"A step cannot take {batch_size} items at once.", "Give batch_size=1 or more.")

    def declare(function: Any) -> Any:
        inner = inspect.unwrap(function)
        name = getattr(inner, "__name__", type(function).__name__)
        if isinstance(function, staticmethod | classmethod):
            raise InvalidValueError(
                f"{name} is a {type(function).__name__}.", f"Write @{type(function).__name__} above @volstream.step."
            )
        if not isinstance(inner, types.FunctionType) or not callable(function):
            raise InvalidValueError(f"{name} is not a function, and cannot be a step.", "Write @volstream.step above a def.")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidValueError(f"The step {name} yields.", "Return a list: a step's value is kept as a whole.")
        if batch_size is not None and not _signature_of(function).parameters:
            raise InvalidValueError(
                f"The step {name} has no argument for its list of items.", "Add one, or leave out batch_size."
            )
        return Step(function, str(version), batch_size)

    return declare if decorated is None else declare(decorated)


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature of a function as it is called, not as what it wraps is."""
    try:
        return inspect.signature(function, follow_wrapped=False)
    except ValueError:  # functools.lru_cache
        return inspect.signature(function)


class Step:
    """A decorated function; see :func:`step`.

    Attributes:
        name: the function's name, in counts and messages.
        function: the decorated function.
        version: as given to :func:`step`.
        pickled_code: hash of the code, if the function was pickled because it is in no file; else empty.
    """

    def __init__(self, function: Callable[..., Any], version: str, batch_size: int | None, pickled_code: str = "") -> None:
        functools.update_wrapper(self, function)
        self.name = str(function.__qualname__).rpartition("<locals>.")[2]
        self.function = function
        self.version = version
        self.pickled_code = pickled_code
        self._batch_size = batch_size
        self._awaits = inspect.iscoroutinefunction(function)
        self._signature = _signature_of(function)
        self._pickling = False

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Returns the kept value, or calls the function; an awaitable of it for a coroutine function."""
        if self._awaits:
            return self._await(args, kwargs)
        if (memo := _current()) is None and self._batch_size is None:
            return self.function(*args, **kwargs)
        call = self._begin(memo, args, kwargs)
        for arguments, keys in call.missing():
            with call.using():
                returned = self.function(*arguments.args, **arguments.kwargs)
            if inspect.isawaitable(returned):
                raise TypeError(
                    f"The step {self.name} returned an awaitable. Decorate a function that is written with async def."
                )
            call.add(keys, returned)
        return call.value()

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Binds a method."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        from volstream.functions import pickled  # late: environments lack what it imports

        if named_like(self.function) is self and not pickled.is_pickled_by_value(self.function):
            return str(self.function.__qualname__)
        code = self.pickled_code
        if not code and not self._pickling:  # a function that refers to itself comes here again
            self._pickling = True
            try:
                code = pickled.content_of(self.function)
            finally:
                self._pickling = False
        return Step, (self.function, self.version, self._batch_size, code)

    def _begin(self, memo: Memo | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _StepCall:
        return _StepCall(self, memo, self._signature.bind(*args, **kwargs), self._batch_size)

    async def _await(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if (memo := _current()) is None and self._batch_size is None:
            return await self.function(*args, **kwargs)
        call = self._begin(memo, args, kwargs)
        for arguments, keys in call.missing():
            with call.using():
                returned = await self.function(*arguments.args, **arguments.kwargs)
            call.add(keys, returned)
        return call.value()


class _StepCall:
    """A call of a step: the keys of its values, and the values known so far.

    Args:
        memo: None outside a job, where nothing is kept.
        batch_size: None if the step returns one value.
    """

    def __init__(self, step: Step, memo: Memo | None, bound: inspect.BoundArguments, batch_size: int | None) -> None:
        bound.apply_defaults()
        self._step, self._memo, self._bound, self._batch_size = step, memo, bound, batch_size
        names = [*bound.arguments]
        self._self = names[0] if "." in step.name and names[:1] in (["self"], ["cls"]) else None
        self._items: Sequence[Any] | None = None
        if batch_size is not None:
            self._list_name = names[1 if self._self else 0]
            self._items = bound.arguments[self._list_name]
            if not isinstance(self._items, list | tuple):
                kind = type(self._items).__name__
                raise TypeError(f"The step {step.name} takes a list as its first argument, not a value of type {kind}.")
        self._uses: set[str] = set()
        items = [None] if self._items is None else self._items
        self._keys = [self._key(item) for item in items]
        self._item_of = dict(zip(reversed(self._keys), reversed(items), strict=True))  # of equal items the first
        self._values: dict[object, Any] = {}
        if memo is not None:
            for key in self._item_of:
                with suppress(KeyError):
                    self._values[key] = memo.find(step, str(key))

    def missing(self) -> Iterator[tuple[inspect.BoundArguments, Sequence[object]]]:
        """Yields the calls to make: their arguments, and the keys of the values that each returns."""
        if self._items is None:
            if self._keys[0] not in self._values:
                yield self._bound, self._keys
            return
        absent = [key for key in dict.fromkeys(self._keys) if key not in self._values]
        assert self._batch_size is not None, "there are items"
        for start in range(0, len(absent), self._batch_size):
            keys = absent[start : start + self._batch_size]
            self._bound.arguments[self._list_name] = [self._item_of[key] for key in keys]
            yield self._bound, keys

    def add(self, keys: Sequence[object], returned: Any) -> None:
        """Adds what the function returned for some keys. Raises TypeError or ValueError if that does not fit."""
        values = [returned]
        if self._items is not None:
            is_array = type(returned).__module__ == "numpy" and getattr(returned, "ndim", 0) > 0
            if not isinstance(returned, list | tuple) and not is_array:
                raise TypeError(f"The step {self._step.name} returned a value of type {type(returned).__name__}, not a list.")
            values = [*returned]
            if len(values) != len(keys):
                raise ValueError(f"The step {self._step.name} returned {len(values)} values for {len(keys)} items.")
        if self._memo is not None and any(self._key(self._item_of[key]) != key for key in keys):
            raise TypeError(f"The step {self._step.name} changed its argument. Let it return a changed copy.")
        for key, value in zip(keys, values, strict=True):
            self._values[key] = value if self._memo is None else self._memo.add(self._step, str(key), value, self._uses)

    @contextmanager
    def using(self) -> Iterator[None]:
        """Notes which values the function uses in the block: they are kept with its own."""
        token = _using.set(self._uses)
        try:
            yield
        finally:
            _using.reset(token)

    def value(self) -> Any:
        """Returns the value of the call."""
        values = [self._values[key] for key in self._keys]
        return values[0] if self._items is None else values

    def _key(self, item: Any) -> object:
        """Returns the key of a value; a fresh object outside a job, where nothing is looked up."""
        if self._memo is None:
            return object()
        given = dict(self._bound.arguments)
        if self._items is not None:
            given[self._list_name] = item
        receiver = given.pop(self._self) if self._self is not None else None
        cls = receiver if isinstance(receiver, type) or receiver is None else type(receiver)
        about = (self._memo.code_of(self._step, cls), self._step.version, self._state_of(receiver), self._items is None)
        what = f"An argument of the step {self._step.name}"
        return hashlib.sha256(encoded((about, _ordered(list(given.items()))), what)).hexdigest()

    def _state_of(self, receiver: Any) -> object:
        """Returns what the value of a method can depend on in its object, besides the code of its class."""
        if receiver is None or isinstance(receiver, type):
            return None
        assert self._memo is not None, "only a call with a memo has keys"
        if receiver is self._memo.instance:
            return _ordered(dict(self._memo.set_up_with))
        if dataclasses.is_dataclass(receiver):
            fields = {field.name: getattr(receiver, field.name) for field in dataclasses.fields(receiver)}
            return _ordered({**fields, **getattr(receiver, "__dict__", {})})
        raise TypeError(
            f"The step {self._step.name} is a method of {type(receiver).__name__}, which is neither the job's class nor a "
            "dataclass, so its value may depend on anything. Make it a function of plain values."
        )


def _ordered(value: Any) -> Any:
    """Returns a value in which sets, at any depth, are in an order that all processes share."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(map(_ordered, value))
    if kind is dict:
        return {name: _ordered(one) for name, one in value.items()}
    if kind in (set, frozenset):
        return _Ordered(kind.__name__, sorted(encoded(_ordered(one), "An argument") for one in value))
    return value


@dataclass(frozen=True)
class _Ordered:
    """A set as a part of a key."""

    kind: str
    members: list[bytes]


# The values of one call of a per-file function on a file.


class BlobStore(Protocol):
    """Stores the blobs of a job."""

    def read(self, name: str) -> bytes | None:
        """Returns a blob, or None if it does not exist."""

    def write(self, name: str, blob: bytes) -> None:
        """Replaces a blob atomically."""

    def remove(self, name: str) -> None:
        """Deletes a blob if it exists."""


@dataclass(frozen=True)
class KeptValue:
    """An encoded value of a step; ``uses``: the keys of the values of other steps that it was made of."""

    step: str
    data: bytes
    uses: frozenset[str] = frozenset()


class Memo:
    """The values of steps for one file, while its function runs. Thread-safe.

    Args:
        code_of: returns the hash of a step's code.
        store: None: keep nothing, only count.
        paths: the path of the file; for a moved file also its old path.
        most_bytes: size limit for the file's values.
        instance: the job's object if its function is a class.
        set_up_with: the arguments of that object.

    Attributes:
        counted: numbers of computed and reused values, by their names in the job's counts.
        ended: the call has ended, so threads that it left running no longer belong to a file.
    """

    def __init__(
        self,
        code_of: Callable[[Step, type | None], str],
        store: BlobStore | None = None,
        paths: Sequence[str] = (),
        most_bytes: int = 0,
        instance: object = None,
        set_up_with: Mapping[str, Any] | None = None,
    ) -> None:
        self.code_of = code_of
        self.instance = instance
        self.set_up_with = set_up_with or {}
        self.counted: dict[str, float] = {}
        self.ended = False
        self._store = store
        self._names = [*map(name_of, paths)]
        self._most_bytes = most_bytes
        self._stored: Mapping[str, KeptValue] = {}
        self._stored_as: str | None = None
        self._stored_computed: Mapping[str, int] | None = None
        self._used: dict[str, KeptValue] = {}
        self._computed: set[str] = set()
        self._lock = threading.Lock()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Loads the file's values. In the block, steps use this memo if they are called in its thread or coroutines, or in any
        thread while no other call runs in the process."""
        if self._store is not None:
            self._load(self._store)
        token = _memo.set(self)
        _active.append(self)
        try:
            yield
        finally:
            self.ended = True
            _active.remove(self)
            _memo.reset(token)

    def _load(self, store: BlobStore) -> None:
        for name in self._names:
            with suppress(Exception):  # the call computes the values again
                blob = store.read(name)
                if blob is not None:
                    self._stored_as = name
                    found = unpack(blob)
                    self._stored, self._stored_computed = found.values, found.computed
                    return

    def find(self, step: Step, key: str) -> Any:
        """Returns a fresh copy of a kept value. Raises KeyError if the value must be computed."""
        with self._lock:
            kept = self._used.get(key) or self._stored[key]
        try:
            value = decoded(kept.data)
        except Exception:  # noqa: BLE001  # damaged data may raise anything
            raise KeyError(key) from None
        with self._lock:
            self._use(key, kept)
            self._count(f"step {step.name} reused")
        return value

    def _use(self, key: str, kept: KeptValue) -> None:
        """Marks a value as used, with the values that it was made of."""
        if key not in self._used:
            self._used[key] = kept
            for inner in kept.uses & self._stored.keys():
                self._use(inner, self._stored[inner])
        if (uses := _using.get()) is not None:
            uses.add(key)

    def add(self, step: Step, key: str, value: Any, uses: Collection[str]) -> Any:
        """Keeps a computed value; returns a copy, as :meth:`find` does later. Raises TypeError if it is not plain data."""
        data = encoded(value, f"The value of the step {step.name}")
        with self._lock:
            self._use(key, KeptValue(step.name, data, frozenset(uses)))
            self._computed.add(key)
            self._count(f"step {step.name} computed")
        return decoded(data)

    def finish(self, succeeded: bool) -> None:
        """Stores the values that the call used; after a failure also the earlier ones, so that a retry pays for the rest only."""
        if self._store is None:
            return
        with self._lock:
            kept = self._within_limit(self._used if succeeded else {**self._used, **self._stored})
        name = self._names[0]
        computed = Counter(value.step for key, value in kept.items() if key in self._computed)
        if self._stored_as is None and not kept:
            return
        if self._stored_as == name and kept.keys() == self._stored.keys() and computed == self._stored_computed:
            return
        try:
            if kept:
                self._store.write(name, pack(Blob(kept, computed)))
            else:
                self._store.remove(name)
        except Exception:  # noqa: BLE001  # the next call computes them again
            self._count(NOT_KEPT, len(kept))

    def _within_limit(self, values: Mapping[str, KeptValue]) -> Mapping[str, KeptValue]:
        room, kept = self._most_bytes, {}
        for key, value in values.items():
            if len(value.data) <= room:
                room, kept[key] = room - len(value.data), value
        if len(kept) < len(values):
            self._count(NOT_KEPT, len(values) - len(kept))
        return kept

    def _count(self, name: str, number: int = 1) -> None:
        name = name[:LONGEST_COUNT]
        self.counted[name] = self.counted.get(name, 0.0) + number


#: Counts values that exceed the file's limit or that the store did not take.
NOT_KEPT = "step values not kept"

#: The memo of the call in this thread or coroutine.
_memo: ContextVar[Memo | None] = ContextVar("memo", default=None)

#: Collects the keys of the values that the running step uses.
_using: ContextVar[set[str] | None] = ContextVar("using", default=None)

#: The memos of all calls in this process.
_active: list[Memo] = []


def _current() -> Memo | None:
    memo = _memo.get()
    if memo is None:  # perhaps a thread that the function started
        with suppress(ValueError):
            [memo] = _active
    return None if memo is None or memo.ended else memo


# A blob is a hash of the rest, then Arrow's stream format with a row for each value.


@dataclass(frozen=True)
class Blob:
    """The kept values of a file.

    Attributes:
        values: by key.
        computed: number of values of each step that the last call computed; it reused the others.
    """

    values: Mapping[str, KeptValue]
    computed: Mapping[str, int]

    def by_step(self) -> Mapping[str, int]:
        """Returns the number of values of each step."""
        return Counter(value.step for value in self.values.values())


def name_of(path: str) -> str:
    """Returns the name of the blob of a file."""
    return hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()


def pack(blob: Blob) -> bytes:
    """Returns a blob as bytes."""
    import pyarrow as pa

    columns = [
        pa.array([bytes.fromhex(key) for key in blob.values], pa.binary(32)),
        pa.array([value.step for value in blob.values.values()], pa.string()),
        pa.array([value.data for value in blob.values.values()], pa.large_binary()),
        pa.array([[*map(bytes.fromhex, sorted(value.uses))] for value in blob.values.values()], pa.list_(pa.binary(32))),
    ]
    batch = pa.record_batch(columns, names=["key", "step", "value", "uses"])
    batch = batch.replace_schema_metadata({"computed": json.dumps(blob.computed)})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    body = sink.getvalue()
    return hashlib.sha256(body).digest() + body


def unpack(data: bytes) -> Blob:
    """Returns a blob. Raises ValueError if it is damaged."""
    import pyarrow as pa

    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise ValueError("The blob is damaged.")
    table = pa.ipc.open_stream(pa.BufferReader(data[32:])).read_all()
    rows = zip(*(table[name].to_pylist() for name in ("key", "step", "value", "uses")), strict=True)
    kept = {key.hex(): KeptValue(step, value, frozenset(map(bytes.hex, uses))) for key, step, value, uses in rows}
    return Blob(kept, json.loads(table.schema.metadata[b"computed"]))


# Values as bytes: pickles that name plain types only, so that reading one runs no foreign code. Equal values of equal types
# have equal bytes.

_PLAIN = (date, datetime, time, timedelta, timezone, Decimal, UUID, bytearray, complex)


def _array(kind: str, shape: tuple[int, ...], data: bytes) -> Any:
    import numpy as np

    return np.frombuffer(data, dtype=kind).reshape(shape).copy()


def _scalar(kind: str, data: bytes) -> Any:
    import numpy as np

    return np.frombuffer(data, dtype=kind)[0]


def _zone(key: str) -> Any:
    return zoneinfo.ZoneInfo(key)


#: What a pickle may name.
_NAMED: Mapping[tuple[str, str], Any] = {
    (named.__module__, named.__qualname__): named for named in (*_PLAIN, _array, _scalar, _zone, _Ordered)
}


class _Encoder(pickle.Pickler):
    """Refuses what is not plain."""

    def __init__(self, target: io.BytesIO, what: str) -> None:
        super().__init__(target, protocol=4)
        self.fast = True  # no references: equal values are equal bytes
        self._what = what

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN or any(value is one for one in _NAMED.values()):
            return NotImplemented
        if kind is zoneinfo.ZoneInfo and value.key is not None:
            return _zone, (value.key,)
        if kind is _Ordered:
            return _Ordered, (value.kind, value.members)
        if kind.__module__ == "numpy" and getattr(getattr(value, "dtype", None), "kind", "O") in "biufcSUMm":
            import numpy as np

            if kind is np.ndarray and value.dtype.itemsize:
                return _array, (value.dtype.str, value.shape, value.tobytes())
            if isinstance(value, np.generic) and value.dtype.itemsize:
                return _scalar, (value.dtype.str, value.tobytes())
        hint = " Pass its content, such as file.read_bytes()." if kind.__name__ == "File" else ""
        raise TypeError(
            f"{self._what} has a value of type {kind.__name__}, which cannot be kept. Use plain data: None, bool, numbers, text, "
            f"bytes, dates and times, UUIDs, lists, tuples, dicts, sets, NumPy arrays.{hint}"
        )


class _Decoder(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _NAMED[module, name]


def encoded(value: Any, what: str) -> bytes:
    """Returns a plain value as bytes.

    Args:
        what: begins the message if it is not plain.

    Raises:
        TypeError: it is not.
    """
    target = io.BytesIO()
    try:
        _Encoder(target, what).dump(value)
    except (ValueError, RecursionError):
        raise TypeError(f"{what} contains itself, or is nested too deeply, and cannot be kept.") from None
    return target.getvalue()


def decoded(data: bytes) -> Any:
    """Returns the value of :func:`encoded`."""
    return _Decoder(io.BytesIO(data)).load()


# What a job's worker needs.


@dataclass(frozen=True)
class StepTarget:
    """Where a job's values are kept; pickled with the query.

    Attributes:
        store: None: nowhere, and calls are counted.
        most_bytes: limit for each file.
    """

    store: BlobStore | None = None
    most_bytes: int = 0


#: The hashes of the code of steps in this process.
_codes: dict[tuple[object, ...], tuple[Step, str]] = {}


def known_code_of(source: FunctionSource, step: Step, receiver: type | None) -> str:
    """Returns the hash of a step's code, found once. Raises InvalidValueError if it cannot be found."""
    place = (source.fingerprint, source.environment, step.pickled_code, id(step), receiver)
    if place not in _codes:
        _codes[place] = step, code_of(source, step, receiver)
    return _codes[place][1]
