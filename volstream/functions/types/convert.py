"""Converts values to Arrow and back. PyArrow drops fractions, parts of times, zones and fields, and makes
numbers infinite or 0.

These conversions refuse a value that its column cannot hold. Only FLOAT rounds, to the nearest number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.model.names import distinct
from volstream.functions.types.kinds import (
    MAX_DIGITS,
    has_objects,
    has_views_of_lists,
    is_bytes,
    is_number,
    is_sequence,
    is_text,
    of_arrow,
)

#: The errors for values that do not fit a column.
WRONG_VALUES = (pa.ArrowException, TypeError, ValueError, ArithmeticError)

#: Larger integers are not exact as doubles.
EXACT = 1 << 53


def is_too_fine(value: Decimal) -> bool:
    """Returns whether a decimal has more digits after the point than any column type.

    To scale it, PyArrow reads beyond the end of a table of powers, which crashes the worker's process.
    """
    exponent = value.as_tuple().exponent
    return isinstance(exponent, int) and exponent < -MAX_DIGITS


def array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Converts Python values to Arrow. A time without a zone is in UTC. NaN is NULL in a column that is not
    numeric.

    Raises:
        pa.ArrowException, TypeError, ValueError, OverflowError: the type cannot hold a value exactly.
    """
    if not is_number(kind) and any(isinstance(value, float) and value != value for value in values):
        values = [None if isinstance(value, float) and value != value else value for value in values]
    _check(values, kind)
    return pa.array(values, kind)


def repeats(keys: Iterable[Any]) -> bool:
    """Returns whether a map would have a key twice."""
    texts = [*map(repr, keys)]  # some have no hash, and NaN differs from itself
    return len({*texts}) < len(texts)


def cast(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> Any:
    """Casts Arrow values to another type. Raises pa.ArrowException if the type cannot hold a value
    exactly."""
    if values.type == kind:
        return values
    if has_views_of_lists(values.type):  # PyArrow casts them to lists with wrong places
        values = pa.array(values.to_pylist(), of_arrow(values.type))
    stored = values.cast(kind)
    _compare(_whole(values), _whole(stored))
    return stored


def from_arrow(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> Any:
    """Converts Arrow values like :func:`array` converts the same values in dicts. PyArrow's casts accept
    more, such as 5 for a time.

    Raises: as :func:`array`.
    """
    if _is_alike(values.type, kind):
        try:
            return cast(values, kind)
        except pa.ArrowException:
            pass  # a cast refuses some valid values, such as 1e17 for integers
    return array(values.to_pylist(maps_as_pydicts="strict"), kind)


def lacks_zone(before: pa.DataType, after: pa.DataType) -> bool:
    """Returns whether times without a zone would go into a column of times, at any depth."""
    if pa.types.is_timestamp(before) and pa.types.is_timestamp(after):
        return before.tz is None and after.tz is not None
    if pa.types.is_struct(before) and pa.types.is_struct(after):
        fields = {field.name: field.type for field in after}
        return any(lacks_zone(field.type, fields[field.name]) for field in before if field.name in fields)
    if pa.types.is_map(before) and pa.types.is_map(after):
        return lacks_zone(before.key_type, after.key_type) or lacks_zone(before.item_type, after.item_type)
    return is_sequence(before) and is_sequence(after) and lacks_zone(before.value_type, after.value_type)


def _is_alike(before: pa.DataType, after: pa.DataType) -> bool:
    """Returns whether a cast that succeeds stores the same as :func:`array`."""
    if pa.types.is_dictionary(before) or pa.types.is_run_end_encoded(before):
        before = before.value_type
    if isinstance(before, pa.BaseExtensionType) and not has_objects(before):
        before = before.storage_type
    if before == after or pa.types.is_null(before):
        return True
    if has_views_of_lists(before):
        return False
    if is_sequence(before) and pa.types.is_list(after):
        return _is_alike(before.value_type, after.value_type)
    if pa.types.is_map(before) and pa.types.is_map(after):
        return _is_alike(before.key_type, after.key_type) and _is_alike(before.item_type, after.item_type)
    if pa.types.is_struct(before) and pa.types.is_struct(after):
        fields = {field.name: field.type for field in after}
        names = [field.name for field in before]
        known = len(set(names)) == len(names) and fields.keys() >= {*names}
        return known and all(_is_alike(field.type, fields[field.name]) for field in before)
    if pa.types.is_timestamp(before) and before.tz is None and pa.types.is_date(after):
        return True
    return any(test(before) and test(after) for test in _ALIKE)


def _is_binary_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


#: Kinds of types. Within a kind, Arrow casts values as Python's values are converted, or fails.
_ALIKE: Sequence[Callable[[pa.DataType], bool]] = (
    _is_binary_number,
    pa.types.is_decimal,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_timestamp,
    is_text,
    is_bytes,
)


_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


def copied(rows: _Rows) -> _Rows:
    """Returns a copy of rows. Arrow shares memory with numpy and pandas, whose owner may reuse it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    reader = pa.ipc.open_stream(sink.getvalue())
    return reader.read_all() if isinstance(rows, pa.Table) else reader.read_next_batch()


def _whole(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _check(values: Sequence[Any], kind: pa.DataType) -> None:
    """Raises ValueError if PyArrow would store a different value."""
    present = [value for value in values if value is not None]
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        named = [_by_name(value, names) for value in present]
        for mapping in named:
            unknown = mapping.keys() - {*names}
            if unknown:
                raise ValueError(f"the struct has no field {min(map(str, unknown))!r}")
        for field in kind:
            _check([mapping.get(field.name) for mapping in named], field.type)
    elif pa.types.is_map(kind):
        if any(isinstance(value, str | bytes) for value in present):
            raise ValueError("a dict is needed")
        pairs = [*chain.from_iterable(value.items() if isinstance(value, Mapping) else value for value in present)]
        _check([key for key, _ in pairs], kind.key_type)
        _check([item for _, item in pairs], kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        if any(isinstance(value, str | bytes | bytearray | memoryview | Mapping) for value in present):
            raise ValueError("a list is needed")
        lists = (value.tolist() if isinstance(value, np.ndarray) else value for value in present)
        _check([*chain.from_iterable(lists)], kind.value_type)
    else:
        expected, check = next(((plain, check) for test, plain, check in _CHECKS if test(kind)), ((), None))
        # Checks are rarely needed.
        if check is not None and not {*map(type, present)} <= {*expected}:
            for value in present:
                check(value, kind)
        if pa.types.is_float32(kind):
            _check_singles(present)


def _by_name(value: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """Returns a struct by the names of its fields.

    PyArrow takes a tuple by position, and much else. Raises ValueError.
    """
    if isinstance(value, tuple) and len(value) == len(names):
        return dict(zip(names, value, strict=True))
    if not isinstance(value, Mapping):
        raise ValueError("a dict is needed")
    return value


def _whole_number(value: Any, _: pa.DataType) -> None:
    if isinstance(value, Decimal):
        is_whole, is_nan = value.is_finite() and value == value.to_integral_value(), value.is_nan()
    else:
        is_whole = not isinstance(value, bool | np.bool_) and not (isinstance(value, float | np.floating) and value % 1 != 0)
        is_nan = value != value
    if not is_whole:
        raise ValueError(f"a whole number is needed{'; for NULL, give None' if is_nan else ''}")


def _number(value: Any, _: pa.DataType) -> None:
    if isinstance(value, bool | np.bool_):
        raise ValueError("a number is needed")


def _decimal(value: Any, kind: pa.DataType) -> None:
    """Raises ValueError for a decimal of which PyArrow would drop bits beyond 128, which changes the
    number."""
    if not isinstance(value, Decimal) or not value.is_finite():
        return
    if is_too_fine(value):
        raise ValueError(f"a decimal has at most {MAX_DIGITS} digits after the point")
    if len(value.as_tuple().digits) > MAX_DIGITS or (value and value.adjusted() >= kind.precision - kind.scale):
        raise ValueError(f"a number with at most {kind.precision - kind.scale} digits before the point is needed")


#: The years that Python's dates and times can have, as numpy's.
_YEARS = np.datetime64("0001", "Y"), np.datetime64("10000", "Y")


def _check_years(value: Any) -> None:
    """Raises ValueError for a numpy or pandas date that PyArrow would store with another year."""
    if isinstance(value, np.datetime64) and not np.isnat(value):
        is_within = bool(_YEARS[0] <= value < _YEARS[1])
    else:
        is_within = not isinstance(value, date) or value != value or 1 <= value.year <= 9999
    if not is_within:
        raise ValueError("it is not within the years 1 to 9999")


def _day(value: Any, _: pa.DataType) -> None:
    if isinstance(value, int | float | Decimal):
        raise ValueError("a date is needed")
    _check_years(value)
    # NaT differs from itself, and pandas' times of day have no nanoseconds.
    if isinstance(value, datetime) and (value != value or value.time() != time() or getattr(value, "nanosecond", 0) != 0):
        raise ValueError("a date is needed, without a time")


def _moment(value: Any, kind: pa.DataType) -> None:
    if isinstance(value, int | float | Decimal):
        raise ValueError("a datetime is needed")
    if not isinstance(value, datetime):
        _check_years(value)
        return
    if value != value:  # NaT
        raise ValueError("it is not a time; for NULL, give None")
    check_moment(value, kind)


def check_moment(value: datetime, kind: pa.DataType) -> None:
    """Raises ValueError if a column of times cannot hold a time exactly. A time without a zone is in UTC."""
    if getattr(value, "nanosecond", 0):
        raise ValueError("its nanoseconds would be lost: the column has microseconds")
    _check_years(value)
    if kind.tz is None:
        if value.utcoffset() is not None:
            raise ValueError("its time zone would be lost: the column has none")
    elif offset := value.utcoffset():
        if offset.microseconds:
            raise ValueError("its UTC offset has a fraction of a second, which would be lost")
        try:
            value.astimezone(UTC)
        except OverflowError:
            raise ValueError("in UTC it is not within the years 1 to 9999") from None


_CHECKS: Sequence[tuple[Callable[[pa.DataType], bool], Sequence[type], Callable[[Any, pa.DataType], None]]] = (
    (pa.types.is_integer, [int], _whole_number),
    (pa.types.is_floating, [float, int], _number),
    (pa.types.is_decimal, [int], _decimal),
    (pa.types.is_date, [date], _day),
    (pa.types.is_timestamp, [], _moment),
)


def _check_singles(values: Sequence[Any]) -> None:
    try:
        numbers = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return  # PyArrow refuses these
    _compare_floats(numbers, pa.float32())


def _compare_floats(numbers: Any, kind: pa.DataType) -> None:
    """Raises pa.ArrowInvalid if a number becomes infinite or zero as a FLOAT."""
    with np.errstate(over="ignore", under="ignore"):
        stored = numbers.astype(kind.to_pandas_dtype())
    lost = (np.isinf(stored) & np.isfinite(numbers)) | ((stored == 0) & (numbers != 0))
    if lost.any():
        raise pa.ArrowInvalid(f"{numbers[lost][0]!s} is out of the range of {kind}")


def _compare(values: pa.Array, stored: pa.Array) -> None:
    """Raises pa.ArrowInvalid if a cast changed values."""
    before, after = values.type, stored.type
    if before == after or pa.types.is_null(before):
        return
    if pa.types.is_struct(before) and pa.types.is_struct(after):
        unknown = {field.name for field in before} - {field.name for field in after}
        if unknown:
            raise pa.ArrowInvalid(f"the struct has no field {min(unknown)!r}")
        for field in before:
            _compare(values.field(field.name), stored.field(field.name))
    elif pa.types.is_map(before) and pa.types.is_map(after):
        _compare(values.keys, stored.keys)
        _compare(values.items, stored.items)
    elif pa.types.is_nested(before) and pa.types.is_nested(after):
        _compare(values.flatten(), stored.flatten())
    elif pa.types.is_floating(after):
        if pa.types.is_floating(before):
            _compare_floats(values.drop_null().to_numpy(zero_copy_only=False), after)
        elif pa.types.is_decimal(before):
            large = pc.greater_equal(pc.abs(stored), float(EXACT))
            _raise_unless_equal(values.filter(large), stored.filter(large).cast(before))
    elif pa.types.is_duration(before):
        raise pa.ArrowInvalid("a duration would become a number without its unit")
    elif pa.types.is_timestamp(before) and pa.types.is_timestamp(after) and before.tz is not None and after.tz is None:
        raise pa.ArrowInvalid("the time zone would be lost: the column has none")
    elif not any(_is_text(kind) for kind in (before, after)):
        _raise_unless_equal(values, stored.cast(before))


def _is_text(kind: pa.DataType) -> bool:
    """Returns whether it is text, bytes, or a type that wraps other values, which a cast checks."""
    return not (is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind))


def _raise_unless_equal(values: pa.Array, back: pa.Array) -> None:
    differs = pc.not_equal(values, back)
    if pc.any(differs).as_py():
        raise pa.ArrowInvalid(f"{values.filter(differs)[0]} cannot be stored as it is")


def python_values(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Converts values to Python values, at any depth.

    Times outside Python's years 1 to 9999 become text, as do durations that Python lacks, with their unit.
    Duplicate field names in a struct get a number.
    """
    try:
        if not _has_times(values.type):
            items: list[Any] = values.to_pylist()
            return items
    except (OverflowError, ValueError):
        pass
    return [_python_value(value) for value in values]


def _has_times(kind: pa.DataType) -> bool:
    """Returns whether it has times of day, at any depth: PyArrow misreads times of 24 hours and more."""
    return "time32[" in str(kind) or "time64[" in str(kind)


def _python_value(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    if pa.types.is_time(scalar.type):
        [text] = as_texts(pa.repeat(scalar, 1)).to_pylist()
        return scalar.as_py() if "00" <= text < "24" and text[2] == ":" else text
    try:
        if not _has_times(scalar.type):
            return scalar.as_py()
    except (OverflowError, ValueError):
        pass
    if isinstance(scalar, pa.StructScalar):
        names = distinct([field.name for field in scalar.type])
        return {name: _python_value(scalar[at]) for at, name in enumerate(names)}
    if isinstance(scalar, pa.MapScalar):
        keys, items = (python_values(scalar.values.field(at)) for at in range(2))
        return list(zip(keys, items, strict=True))
    if is_sequence(scalar.type):
        return python_values(scalar.values)
    if isinstance(scalar, pa.DurationScalar):
        return f"{scalar.value} {scalar.type.unit}"
    return as_texts(pa.repeat(scalar, 1))[0].as_py()


def _times_of_day(values: pa.Array) -> pa.Array:
    """Returns the texts of times of day, including a day or more and negative ones, in which some writers
    store durations."""
    unit, size = values.type.unit, pa.int64() if values.type.bit_width == 64 else pa.int32()
    numbers, second = values.view(size).cast(pa.int64()), {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    odd = pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, 86_400 * second))
    if not pc.any(odd).as_py():
        return values.cast(pa.string())
    texts = pc.if_else(odd, pa.scalar(None, values.type), values).cast(pa.string()).to_pylist()
    for at in pc.indices_nonzero(odd.fill_null(False)).to_pylist():
        seconds, rest = divmod(abs(numbers[at].as_py()), second)
        fraction = f".{rest:0{len(str(second)) - 1}}" if second > 1 else ""
        sign = "-" if numbers[at].as_py() < 0 else ""
        texts[at] = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"
    return pa.array(texts, pa.string())


#: A day in the units in which times reach years that PyArrow writes incorrectly.
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}

#: The range of days since 1970 that PyArrow writes correctly.
_WRITTEN = [int(np.datetime64(day, "D").astype(np.int64)) for day in ("-32767-01-01", "32767-12-31")]


def as_texts(values: pa.Array) -> pa.Array:
    """Casts values to text, including dates and times of years that PyArrow does not write.

    Raises:
        pa.ArrowException: the values have no text form.
    """
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns" and values.type.tz is not None:
        # PyArrow shifts other zones, by 584 years at the ends.
        values = values.cast(pa.timestamp("ns", "UTC"))
    if pa.types.is_time(values.type):
        return _times_of_day(values)
    if pa.types.is_floating(values.type):
        texts = values.cast(pa.string())  # "nan" and "inf" become Spark's words
        return pc.replace_substring(pc.replace_substring(texts, "nan", "NaN"), "inf", "Infinity")
    kind, is_date = values.type, pa.types.is_date32(values.type)
    if not (is_date or (pa.types.is_timestamp(kind) and kind.unit in _DAY)):
        return values.cast(pa.string())
    numbers = pc.fill_null(values.view(pa.int32() if is_date else pa.int64()), 0).to_numpy()
    days, rest = np.divmod(numbers, 1 if is_date else _DAY[kind.unit])
    unwritten = (days < _WRITTEN[0]) | (days > _WRITTEN[1])
    if not unwritten.any():
        return values.cast(pa.string())
    texts = pc.if_else(pa.array(unwritten), pa.scalar(None, kind), values).cast(pa.string())
    dates = np.datetime_as_string(days[unwritten].astype("datetime64[D]"))
    in_1970 = pa.array(rest[unwritten]).view(kind if is_date or kind.tz is None else pa.timestamp(kind.unit, "UTC"))
    times = pc.utf8_slice_codeunits(in_1970.cast(pa.string()), len("1970-01-01"))
    return pc.replace_with_mask(texts, pa.array(unwritten), pc.binary_join_element_wise(pa.array(dates, pa.string()), times, ""))
