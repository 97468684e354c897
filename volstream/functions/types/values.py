"""Plain values for values of classes without a column type: the table for return values and annotations.

Classes are recognized by name, so nothing is imported here: a function that returns values of a class has
imported it.
"""

from __future__ import annotations

import functools
import json
import re
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any

import pyarrow as pa

from volstream.base.model.paths import is_utf8
from volstream.base.model.text import finite, scalar_text, to_json
from volstream.functions.types.convert import python_values
from volstream.functions.types.kinds import TIMESTAMP, is_sequence


class NoColumnError(ValueError):
    """No column can hold values of a class.

    The message continues after a value's name, and tells what to return instead.
    """


def _of_numpy(value: Any) -> Any:
    """Returns a date for a ``datetime64`` of days or longer units, else a time without a zone. None for
    NaT."""
    import pandas as pd

    if pd.isna(value):
        return None
    moment = pd.Timestamp(value)
    return moment.date() if value.dtype.name[-2:] in ("Y]", "M]", "W]", "D]") else moment


#: Types of numbers whose vectors PyArrow converts directly, which is fast.
_VECTORS = frozenset({"int32", "int64", "float32", "float64"})


def _of_array(value: Any) -> Any:
    """Returns a list of an array's elements or rows, which may not be plain, or the value of a
    zero-dimensional array."""
    if value.dtype.kind in "biufSU":
        is_vector = value.ndim == 1 and value.dtype.name in _VECTORS and value.dtype.isnative
        # Lists have None for masked elements.
        return value.copy() if is_vector and _name(type(value)) == "numpy.ndarray" else value.tolist()
    return plain(value[()]) if value.ndim == 0 else [*value]


#: By class name: the conversion to a plain value, and the column type, or None for the plain value's type.
_PLAIN: Mapping[str, tuple[Callable[[Any], Any], pa.DataType | None]] = {
    "enum.Enum": (lambda value: plain(value.value), None),
    "uuid.UUID": (str, pa.string()),
    "pathlib.PurePath": (str, pa.string()),
    "pathlib._local.PurePath": (str, pa.string()),  # Python 3.13
    "pydantic.networks._BaseUrl": (str, pa.string()),
    "pydantic.networks._BaseMultiHostUrl": (str, pa.string()),
    "pydantic_core._pydantic_core.Url": (str, pa.string()),
    "pydantic_core._pydantic_core.MultiHostUrl": (str, pa.string()),
    "numpy.datetime64": (_of_numpy, TIMESTAMP),
    "numpy.str_": (str.__str__, pa.string()),
    "numpy.bytes_": (bytes.__bytes__, pa.binary()),
    "numpy.longdouble": (float, pa.float64()),
    "numpy.generic": (lambda value: value.item(), None),
    "numpy.ndarray": (_of_array, None),
    "pandas._libs.missing.NAType": (lambda _: None, pa.null()),
    "pandas._libs.tslibs.nattype.NaTType": (lambda _: None, pa.null()),
    "builtins.bytearray": (bytes, pa.binary()),
    "builtins.memoryview": (bytes, pa.binary()),
    "array.array": (lambda value: value.tolist(), None),
    "pyarrow.lib.Scalar": (lambda value: plain(value.as_py()), None),
}

#: By class name: what to return instead of values that would lose their meaning.
_REFUSED: Mapping[str, str] = {
    "datetime.timedelta": "seconds, value.total_seconds(), or text",
    "numpy.timedelta64": "seconds, value / numpy.timedelta64(1, 's'), or text",
    "datetime.time": "text, value.isoformat()",
    "builtins.set": "a list, sorted(value)",
    "builtins.frozenset": "a list, sorted(value)",
    **dict.fromkeys(("builtins.complex", "numpy.complexfloating"), "its real and its imaginary part"),
    "pandas.core.series.Series": "a list, value.tolist()",
    "pandas._libs.tslibs.period._Period": "text, or value.start_time",
    "pydantic.types._SecretBase": "value.get_secret_value() if a table may have it",
}


def plain(value: Any) -> Any:
    """Returns a value that is not nested as a plain value. For an array, returns a list whose elements may
    not be plain. Other values stay unchanged.

    Values that share memory, such as arrays, are copied.

    Raises:
        NoColumnError: no column can hold it.
    """
    cls: Any = type(value)
    convert = _converter(cls)
    return value if convert is None else convert(value)


@functools.lru_cache(maxsize=1024)
def _converter(cls: Any) -> Callable[[Any], Any] | None:
    for name in map(_name, cls.__mro__):
        if name in _REFUSED:
            return functools.partial(_refuse, cls, _REFUSED[name])
        if name in _PLAIN:
            return _PLAIN[name][0]
    return None


def _refuse(cls: type, instead: str, _: Any) -> Any:
    raise NoColumnError(f"{cls.__name__}, which no column holds; return {instead}")


def type_of_class(cls: type) -> pa.DataType | type | None:
    """Returns the column type for values of a class, or the plain class that they become, or None if it is
    not in the table.

    Raises:
        NoColumnError: no column can hold them.
    """
    for name in map(_name, cls.__mro__):
        if name in _REFUSED:
            _refuse(cls, _REFUSED[name], None)
        if name == "enum.Enum":
            classes = {type(member.value) for member in cls} if issubclass(cls, Enum) else set()
            if len(classes) != 1:
                raise NoColumnError(f"{cls.__name__}, whose values have different types; return text")
            return classes.pop()
        if name in _PLAIN:
            return _PLAIN[name][1]
    return None


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


# Values as JSON text.


def _writer(default: Callable[[Any], Any]) -> Callable[[Any], str]:
    """Returns a function that writes one-line JSON, escapes lone surrogates, and raises ValueError for NaN
    and infinity."""
    readable, escaped = (
        json.JSONEncoder(ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"), default=default).encode
        for ascii_only in (False, True)
    )

    def write(value: Any) -> str:
        text = readable(value)
        return text if is_utf8(text) else escaped(value)

    return write


def _strict_default(value: Any) -> str:
    text = scalar_text(value)
    if text is None:
        raise TypeError(f"{type(value).__name__} {value!r:.60}")
    return text


#: Temporarily marks decimals in JSON, which the standard library cannot write. Random, so that no file
#: contains it.
_NUMBER = uuid.uuid4().hex
_DIGITS = re.compile(f'"{_NUMBER}([^"]*)"')


def _lenient_default(value: Any) -> str:
    if isinstance(value, Decimal) and value.is_finite():
        return f"{_NUMBER}{value}"
    text = scalar_text(value)
    return str(value) if text is None else text


_encode, _encode_strictly = _writer(_lenient_default), _writer(_strict_default)


def as_json(value: Any) -> str:
    """Returns any value as JSON.

    Bytes are in Base64, times and durations in ISO 8601. Decimals are numbers with all their digits. Lone
    surrogates are escaped. Non-finite numbers, which JSON lacks, are text, as in Spark's ``to_json``.
    """
    try:
        text = _encode(value)
    except (TypeError, ValueError):
        text = _encode(finite(value))
    return _DIGITS.sub(r"\1", text) if _NUMBER in text else text


def as_text(value: Any) -> str | None:
    """Returns a value as text: text unchanged, UTF-8 bytes decoded, other values as in JSON. Returns None
    otherwise, and for None."""
    if value is None or type(value) is str:
        return value if value is None or is_utf8(value) else None
    if type(value) is Pairs:
        return None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    text = None if isinstance(value, Decimal) else scalar_text(value)
    if isinstance(value, float) and not isfinite(value):
        return as_json(value).strip('"')
    return as_json(value) if text is None else text


def strict_json(value: Any) -> str:
    """Returns a value as JSON, with decimals as text.

    Raises:
        TypeError, ValueError, RecursionError: JSON cannot represent it.
    """
    return _encode_strictly(value)


class Pairs(list[tuple[str, Any]]):
    """A map with a repeated key, for which JSON has no object."""


def document_values(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Converts values to Python values for JSON.

    Maps become dicts with text keys, or :class:`Pairs`. Other keys are written as in JSON.
    """
    items = python_values(values)
    return [_document(item, values.type) for item in items] if "map<" in str(values.type) else items


def _document(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        items = ((_document(key, kind.key_type), _document(item, kind.item_type)) for key, item in value)
        pairs = Pairs((key if isinstance(key, str) else to_json(key).strip('"'), item) for key, item in items)
        named = dict(pairs)
        return named if len(named) == len(pairs) else pairs
    if is_sequence(kind):
        return [_document(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _document(value[field.name], field.type) for field in kind}
    return value
