"""Values of rows: checked and converted when they are set, against the type of the table's column.

============================  ==========================================================================
TailColumn                        Python value
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

None fits every column that is nullable. Values that have an ``item`` method, as NumPy's do, are taken as Python's.
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

from volstream.base.model.values import plain
from volstream.errors import InvalidValueError
from volstream.tables.delta.log import is_char, length_of
from volstream.tables.tails.table import CHARACTERS

#: Returns the value as it is stored, and its size in bytes, approximately. Raises ValueError with the reason.
Converter = Callable[[Any], tuple[Any, int]]

#: Whole numbers beyond this are not exact as floats.
_EXACT = 1 << 53

#: Longest text of a value in a message, in characters.
_SHOWN = 60


@dataclass(frozen=True)
class TailColumn:
    """A column of a table.

    Attributes:
        length: of a CHAR or VARCHAR, in characters; None: unlimited.
        char: blanks at the end of text mean nothing, and are not stored.
    """

    name: str
    type: pa.DataType
    nullable: bool
    length: int | None = None
    char: bool = False

    @classmethod
    def of(cls, field: pa.Field) -> TailColumn:
        """Returns the column of a field of :func:`volstream.tables.tails.table.columns_of`."""
        declared = (field.metadata or {}).get(CHARACTERS.encode(), b"").decode()
        return cls(field.name, field.type, field.nullable, length_of(declared), char=is_char(declared))

    def converter(self, *, truncate: bool, on_cut: Callable[[], None]) -> Converter:
        """Returns what converts values of this column.

        Args:
            truncate: cut text that is too long.
            on_cut: called for each text that is cut.

        Raises:
            InvalidValueError: real-time streams do not support the column's type.
        """
        if self.length is not None:
            return _limited(self.length, char=self.char, truncate=truncate, on_cut=on_cut)
        try:
            return _converter(self.type)
        except NotImplementedError:
            raise InvalidValueError(f"Column {self.name}: real-time streams do not support {self.type}.") from None

    def refusal(self, value: Any, reason: str) -> InvalidValueError:
        """Returns the error for a value of this column."""
        try:
            shown = repr(value)
        except ValueError:  # Python writes no integer of more than 4,300 digits
            shown = f"this {type(value).__name__}"
        shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
        return InvalidValueError(f"Column {self.name} cannot be {shown}: {reason}.")


def _converter(kind: pa.DataType) -> Converter:
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_signed_integer(kind):
        return _integer(kind.bit_width)
    if pa.types.is_float32(kind):
        return _single
    if pa.types.is_float64(kind):
        return _double
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _bytes
    if pa.types.is_date32(kind):
        return _date
    if pa.types.is_timestamp(kind):
        return _zoned if kind.tz else _local
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _array(_optional(_converter(kind.value_type), nullable=kind.value_field.nullable))
    if pa.types.is_map(kind):
        item = _optional(_converter(kind.item_type), nullable=kind.item_field.nullable)
        return _map(_optional(_converter(kind.key_type), nullable=False), item)
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return _struct({field.name: _optional(_converter(field.type), nullable=field.nullable) for field in fields})
    raise NotImplementedError


def _optional(convert: Converter, *, nullable: bool) -> Converter:
    def converted(value: Any) -> tuple[Any, int]:
        if value is not None:
            return convert(value)
        if not nullable:
            raise ValueError("it has a NULL inside, which its type does not allow")
        return None, 1

    return converted


def _boolean(value: Any) -> tuple[bool, int]:
    value = plain(value)
    if not isinstance(value, bool):
        raise ValueError("a bool is needed")
    return value, 1


def _integer(bits: int) -> Converter:
    minimum, maximum = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    name = {8: "TINYINT", 16: "SMALLINT", 32: "INT", 64: "BIGINT"}[bits]

    def convert(value: Any) -> tuple[int, int]:
        value = plain(value)
        if isinstance(value, float) and math.isnan(value):
            raise ValueError("it is not a number; for NULL, give None")
        if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("a whole number is needed")
        if not minimum <= value <= maximum:
            raise ValueError(f"it is out of the range of {name}")
        return value, bits // 8

    return convert


def _double(value: Any) -> tuple[float, int]:
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a number is needed")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("it is out of the range of DOUBLE") from None
    if isinstance(value, int) and int(number) != value:
        raise ValueError("DOUBLE cannot represent it exactly")
    return number, 8


def _single(value: Any) -> tuple[float, int]:
    converted, _ = _double(value)
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", converted))
    except OverflowError:
        raise ValueError("it is out of the range of FLOAT") from None
    if converted and not single:
        raise ValueError("it is out of the range of FLOAT")
    if single != converted and isinstance(plain(value), int):
        raise ValueError("FLOAT cannot represent it exactly")
    return converted, 4


def _decimal(precision: int, scale: int) -> Converter:
    unit = Decimal(1).scaleb(-scale)
    # A result with more digits is an invalid operation.
    context = Context(prec=precision, rounding=ROUND_HALF_UP, traps=[InvalidOperation])

    def convert(value: Any) -> tuple[Decimal, int]:
        value = plain(value)
        if isinstance(value, bool | float) or not isinstance(value, Decimal | int | str):
            raise ValueError("a Decimal is needed")
        try:
            decimal = value if isinstance(value, Decimal) else Decimal(value)
        except InvalidOperation:
            raise ValueError("it is not a number") from None
        if not decimal.is_finite():
            raise ValueError("it is not a finite number")
        try:
            return decimal.quantize(unit, context=context), 16
        except InvalidOperation:
            raise ValueError(f"it does not fit DECIMAL({precision}, {scale})") from None

    return convert


def _text(value: Any) -> tuple[str, int]:
    if not isinstance(value, str):
        raise ValueError("text is needed")
    if value.isascii():
        return value, len(value)
    try:
        return value, len(value.encode())
    except UnicodeEncodeError:
        raise ValueError("it has characters that UTF-8 cannot represent") from None


def _limited(length: int, *, char: bool, truncate: bool, on_cut: Callable[[], None]) -> Converter:
    def convert(value: Any) -> tuple[str, int]:
        text, size = _text(value)
        text = text.rstrip(" ") if char else text
        if len(text) > length:
            if not truncate:
                raise ValueError(f"it has {len(text)} characters, and the column {length}")
            on_cut()
            text = text[:length].rstrip(" ") if char else text[:length]
        return text, size

    return convert


def _bytes(value: Any) -> tuple[bytes, int]:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueError("bytes are needed")
    return bytes(value), len(value)


def _date(value: Any) -> tuple[date, int]:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise ValueError("a date is needed, without a time")
    return value, 4


def _zoned(value: Any) -> tuple[datetime, int]:
    instant = _instant(value)
    if instant.utcoffset() is None:
        raise ValueError("a time zone is needed: datetime(..., tzinfo=UTC)")
    try:
        return instant.astimezone(UTC), 8
    except OverflowError:
        raise ValueError("in UTC it is not within the years 1 to 9999") from None


def _local(value: Any) -> tuple[datetime, int]:
    instant = _instant(value)
    if instant.utcoffset() is not None:
        raise ValueError("its time zone would be lost: the column has none")
    return instant, 8


def _instant(value: Any) -> datetime:
    if not isinstance(value, datetime) or value != value:  # the latter: NaT
        raise ValueError("a datetime is needed")
    if getattr(value, "nanosecond", 0):
        raise ValueError("its nanoseconds would be lost: the column has microseconds")
    return value


def _array(element: Converter) -> Converter:
    def convert(value: Any) -> tuple[list[Any], int]:
        items = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence):
            raise ValueError("a list is needed")
        pairs = [element(item) for item in items]
        return [item for item, _ in pairs], 4 + sum(size for _, size in pairs)

    return convert


def _map(key: Converter, item: Converter) -> Converter:
    def convert(value: Any) -> tuple[list[tuple[Any, Any]], int]:
        if not isinstance(value, Mapping):
            raise ValueError("a dict is needed")
        pairs = [(key(first), item(other)) for first, other in value.items()]
        size = 4 + sum(first[1] + second[1] for first, second in pairs)
        return [(first[0], second[0]) for first, second in pairs], size

    return convert


def _struct(fields: Mapping[str, Converter]) -> Converter:
    def convert(value: Any) -> tuple[dict[str, Any], int]:
        members = _object(value)
        unknown = [name for name in members if name not in fields]
        if unknown:
            raise ValueError(f"it has no field {unknown[0]}; its fields are {', '.join(fields)}")
        pairs = {name: convert(members.get(name)) for name, convert in fields.items()}
        return {name: converted for name, (converted, _) in pairs.items()}, 4 + sum(size for _, size in pairs.values())

    return convert


def _object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("it is not JSON") from None
    named = getattr(value, "_asdict", None)
    members = named() if callable(named) else value
    if not isinstance(members, Mapping):
        raise ValueError("a dict, a named tuple or a JSON object is needed")
    return members
