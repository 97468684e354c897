"""Checks and converts row values when they are set, according to the column's type.

============================  ==========================================================================
Column                        Python value
============================  ==========================================================================
BOOLEAN                       bool
TINYINT, SMALLINT, INT,       int, or a float without a fraction
BIGINT
FLOAT, DOUBLE                 float, int
DECIMAL(p, s)                 Decimal, int, or text of a number; rounded half up to s digits
STRING                        str
CHAR(n), VARCHAR(n)           str; cut to n characters, or refused (``RealtimeOptions.truncate``)
BINARY                        bytes, bytearray, memoryview
DATE                          date
TIMESTAMP                     datetime with a time zone
TIMESTAMP_NTZ                 datetime without one
ARRAY                         list, tuple
MAP                           dict
STRUCT                        dict, named tuple, JSON text
============================  ==========================================================================

None fits every nullable column. A partition column rejects text that Delta cannot store as a partition value,
and turns text that Delta stores as NULL into NULL. Values with an ``item`` method, such as NumPy's, are
treated as the Python value.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from volstream.base.model.paths import is_utf8
from volstream.base.model.text import plain, shortened
from volstream.errors import InvalidValueError
from volstream.functions.types.convert import EXACT, check_moment, repeats
from volstream.functions.types.kinds import is_bytes, is_sequence, is_text, name_of
from volstream.tables.delta.schema import is_char, length_of, partition_text
from volstream.tables.tails.tail import CHARACTERS, PARTITION

#: Returns the stored form of a value. Raises ValueError with the reason.
Converter = Callable[[Any], Any]


@dataclass(frozen=True)
class TailColumn:
    """A column of a table.

    Attributes:
        length: of a CHAR or VARCHAR, in characters. None means unlimited.
        char: trailing blanks are insignificant and not stored.
        partition: the table is partitioned by the column.
    """

    name: str
    type: pa.DataType
    nullable: bool
    length: int | None = None
    char: bool = False
    partition: bool = False

    @classmethod
    def of(cls, field: pa.Field) -> TailColumn:
        """Returns the column of a field of :func:`volstream.tables.tails.tail.tail_columns`. Raises
        InvalidValueError."""
        metadata = field.metadata or {}
        declared, partition = metadata.get(CHARACTERS.encode(), b"").decode(), PARTITION.encode() in metadata
        # Delta writes partition values as text, which loses some bytes
        if partition and is_bytes(field.type):
            raise InvalidValueError(f"Column {field.name}: real-time streams do not support partition columns of BINARY.")
        return cls(field.name, field.type, field.nullable, length_of(declared), char=is_char(declared), partition=partition)

    def converter(self, *, truncate: bool, on_cut: Callable[[], None]) -> Converter:
        """Returns the converter of this column's values.

        Args:
            truncate: cut text that is too long.
            on_cut: called for each cut text.

        Raises:
            InvalidValueError: real-time streams do not support the column's type.
        """
        if self.length is not None:
            convert = _bounded_text(self.length, char=self.char, truncate=truncate, on_cut=on_cut)
        else:
            try:
                convert = _converter(self.type)
            except NotImplementedError:
                raise InvalidValueError(f"Column {self.name}: real-time streams do not support {self.type}.") from None
        if self.partition and is_text(self.type):
            return lambda value: partition_text(self.name, convert(value), nullable=self.nullable)
        return convert

    def refusal(self, value: Any, reason: str) -> InvalidValueError:
        """Returns the error for a value of this column."""
        return InvalidValueError(f"Column {self.name} cannot be {shortened(value)}: {reason}.")


def _converter(kind: pa.DataType) -> Converter:
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_signed_integer(kind):
        return _integer(kind)
    if pa.types.is_float32(kind):
        return _single
    if pa.types.is_float64(kind):
        return _double
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if is_text(kind):
        return _text
    if is_bytes(kind):
        return _bytes
    if pa.types.is_date32(kind):
        return _date
    if pa.types.is_timestamp(kind):
        return _moment(kind)
    if is_sequence(kind):
        return _array(_optional(_converter(kind.value_type), nullable=kind.value_field.nullable))
    if pa.types.is_map(kind):
        item = _optional(_converter(kind.item_type), nullable=kind.item_field.nullable)
        return _map(_optional(_converter(kind.key_type), nullable=False), item)
    if pa.types.is_struct(kind):
        return _struct({field.name: _optional(_converter(field.type), nullable=field.nullable) for field in kind})
    raise NotImplementedError


def _optional(convert: Converter, *, nullable: bool) -> Converter:
    def converted(value: Any) -> Any:
        if value is not None:
            return convert(value)
        if not nullable:
            raise ValueError("it has a NULL inside, which its type does not allow")
        return None

    return converted


def _boolean(value: Any) -> bool:
    value = plain(value)
    if not isinstance(value, bool):
        raise ValueError("a bool is needed")
    return value


def _integer(kind: pa.DataType) -> Converter:
    maximum = (1 << (kind.bit_width - 1)) - 1

    def convert(value: Any) -> int:
        value = plain(value)
        if isinstance(value, float) and math.isnan(value):
            raise ValueError("it is not a number; for NULL, give None")
        if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("a whole number is needed")
        if not -maximum - 1 <= value <= maximum:
            raise ValueError(f"it is out of the range of {name_of(kind)}")
        return value

    return convert


def _double(value: Any) -> float:
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a number is needed")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("it is out of the range of DOUBLE") from None
    if isinstance(value, int) and int(number) != value:
        raise ValueError("DOUBLE cannot represent it exactly")
    return number


def _single(value: Any) -> float:
    converted = _double(value)
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", converted))
    except OverflowError:
        raise ValueError("it is out of the range of FLOAT") from None
    if converted and not single:
        raise ValueError("it is out of the range of FLOAT")
    if single != converted and isinstance(plain(value), int):
        raise ValueError("FLOAT cannot represent it exactly")
    return float(single)


def _decimal(precision: int, scale: int) -> Converter:
    unit = Decimal(1).scaleb(-scale)
    # A result with more digits is an invalid operation.
    context = Context(prec=precision, rounding=ROUND_HALF_UP, traps=[InvalidOperation])

    def convert(value: Any) -> Decimal:
        value = plain(value)
        if isinstance(value, bool | float) or not isinstance(value, Decimal | int | str):
            raise ValueError("a Decimal is needed")
        try:
            decimal = value if isinstance(value, Decimal) else Decimal(value)
            # spellings that only Python has
            if isinstance(value, str) and ("_" in value or not value.isascii()):
                raise InvalidOperation
        except InvalidOperation:
            raise ValueError("it is not a number") from None
        if not decimal.is_finite():
            raise ValueError("it is not a finite number")
        try:
            return decimal.quantize(unit, context=context)
        except InvalidOperation:
            raise ValueError(f"it does not fit DECIMAL({precision}, {scale})") from None

    return convert


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text is needed")
    if not is_utf8(value):
        raise ValueError("it has characters that UTF-8 cannot represent")
    return value


def _bounded_text(length: int, *, char: bool, truncate: bool, on_cut: Callable[[], None]) -> Converter:
    def convert(value: Any) -> str:
        text = _text(value)
        text = text.rstrip(" ") if char else text
        if len(text) > length:
            if not truncate:
                raise ValueError(f"it has {len(text)} characters, and the column {length}")
            on_cut()
            text = text[:length].rstrip(" ") if char else text[:length]
        return text

    return convert


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueError("bytes are needed")
    return bytes(value)


def _date(value: Any) -> date:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise ValueError("a date is needed, without a time")
    return value


def _moment(kind: pa.DataType) -> Converter:
    def convert(value: Any) -> datetime:
        if not isinstance(value, datetime) or value != value:  # the latter: NaT
            raise ValueError("a datetime is needed")
        if kind.tz is not None and value.utcoffset() is None:
            raise ValueError("a time zone is needed: datetime(..., tzinfo=UTC)")
        check_moment(value, kind)
        return value if kind.tz is None else value.astimezone(UTC)

    return convert


def _unpack_array(value: Any) -> Any:
    """Returns the elements of an array, or any other value unchanged."""
    if not hasattr(value, "tolist") or isinstance(value, memoryview):
        return value
    # NumPy's tolist() returns times and durations in nanoseconds as numbers.
    return [*value] if getattr(getattr(value, "dtype", None), "kind", "O") in "mM" else value.tolist()


def _array(element: Converter) -> Converter:
    def convert(value: Any) -> list[Any]:
        items = _unpack_array(value)
        if isinstance(items, str | bytes | bytearray | memoryview | Mapping) or not isinstance(items, Sequence):
            raise ValueError("a list is needed")
        return [element(item) for item in items]

    return convert


def _map(key: Converter, item: Converter) -> Converter:
    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise ValueError("a dict is needed")
        pairs = [(key(first), item(other)) for first, other in value.items()]
        if repeats(name for name, _ in pairs):
            raise ValueError("two of its keys are stored as the same value")
        return pairs

    return convert


def _struct(fields: Mapping[str, Converter]) -> Converter:
    def convert(value: Any) -> dict[str, Any]:
        members = _object(value)
        unknown = [name for name in members if name not in fields]
        if unknown:
            raise ValueError(f"it has no field {unknown[0]}; its fields are {', '.join(fields)}")
        return {name: convert(members.get(name)) for name, convert in fields.items()}

    return convert


def _number(text: str) -> float:
    """Parses a JSON float. Raises ValueError if it would become infinite or another whole number."""
    value = float(text)
    if math.isinf(value) or (value.is_integer() and Decimal(text) != Decimal(value)):
        raise ValueError(f"DOUBLE cannot represent {text[:40]} exactly")
    return value


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_float=_number)
        except (json.JSONDecodeError, RecursionError):
            raise ValueError("it is not JSON") from None
    as_dict = getattr(value, "_asdict", None)
    members = as_dict() if callable(as_dict) else value
    if not isinstance(members, Mapping):
        raise ValueError("a dict, a named tuple or a JSON object is needed")
    return members
