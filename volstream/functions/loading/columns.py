"""Columns of a file: texts, Arrow values, or JSON values. Each can find its type, and convert itself to a
given type.

A value that does not fit is NULL in the result, and kept in its original form: nothing is rounded, cut or
guessed.
"""

from __future__ import annotations

import base64
import binascii
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Context, Decimal
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from volstream.base.model.names import NOT_IN_COLUMNS, distinct, folded
from volstream.base.model.paths import is_utf8
from volstream.functions.loading.options import RESCUED, LoadOptions
from volstream.functions.loading.texts import DECODER, USUAL, Notation, cast_or_null, fit_text, null_if_inexact, of_text
from volstream.functions.schema import RESERVED as RESERVED_IN_RESULTS
from volstream.functions.schema import checked, from_ddl, to_ddl
from volstream.functions.types import convert
from volstream.functions.types.convert import is_too_fine, python_values
from volstream.functions.types.kinds import is_number, of_arrow
from volstream.functions.types.values import as_text, document_values
from volstream.functions.types.widen import grown, of_values_only, widen

# Maps a file's columns to a table's columns. Pure.

#: Names under which a file's values are rescued.
RESERVED = RESERVED_IN_RESULTS | {RESCUED}


@dataclass(frozen=True)
class Placement:
    """The columns of a file, by position.

    Attributes:
        names: names for rescued values: the file's names, with a number if they are repeated.
        by_name: position of the file's column for each of the table's columns that it has.
        new: names of columns that the table lacks, by position.
        stray: columns that cannot be in a table: their name is reserved, used by another column of the file,
            or not text.
    """

    names: Sequence[str]
    by_name: Mapping[str, int]
    new: Mapping[int, str]
    stray: Sequence[int]


def column_name(written: str) -> str:
    """Returns the table's column name for a name in a file: characters that Delta rejects become ``_``."""
    return NOT_IN_COLUMNS.sub("_", written)


def place(names: Sequence[str], table: pa.Schema) -> Placement:
    """Places a file's columns. Names that differ only in case are one column, and the exact spelling wins."""
    columns = {folded(name): name for name in table.names if name != RESCUED}
    by_name: dict[str, int] = {}
    new: dict[str, int] = {}
    stray: list[int] = []
    for exact in (True, False):
        for at, written in enumerate(names):
            name = column_name(written)
            if (name in table.names) is not exact:
                continue
            match = columns.get(folded(name))
            if not name or not is_utf8(name) or folded(name) in RESERVED or match in by_name or folded(name) in new:
                stray.append(at)
            elif match is not None:
                by_name[match] = at
            else:
                new[folded(name)] = at
    return Placement(distinct(names), by_name, {at: column_name(names[at]) for at in new.values()}, stray)


@dataclass(frozen=True)
class Fitted:
    """A column fitted to a type.

    Attributes:
        misfits: values that do not fit, by position.
    """

    values: pa.Array
    misfits: Mapping[int, Any]


class FileColumn(Protocol):
    """A column of some rows of a file."""

    @property
    def name(self) -> str:
        """Its name in the file."""

    @property
    def values(self) -> pa.Array | Sequence[Any]:
        """Its values in the file."""

    def kind(self) -> pa.DataType:
        """Returns the type that holds all its values, or null without values."""

    def grown(self, kind: pa.DataType) -> pa.DataType:
        """Returns a nested type, extended by further fields of structs in the values."""

    def fit(self, kind: pa.DataType, *, inferred: bool = False) -> Fitted:
        """Converts the values to ``kind``. For ``inferred`` see :func:`fit_text`."""


@dataclass(frozen=True)
class Chunk:
    """Some rows of a file.

    Attributes:
        rescued: values without a column, by position and name.
        is_part: other rows, which were read together with these, follow in a separate chunk.
    """

    rows: int
    columns: Sequence[FileColumn]
    rescued: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    is_part: bool = False


@dataclass(frozen=True)
class TextColumn:
    """Texts, from a csv file."""

    name: str
    values: pa.Array
    notation: Notation = USUAL

    def kind(self) -> pa.DataType:
        """See :class:`FileColumn`."""
        return of_text(self.values, self.notation)

    def grown(self, kind: pa.DataType) -> pa.DataType:
        """See :class:`FileColumn`."""
        return self._as_json().grown(kind)

    def fit(self, kind: pa.DataType, *, inferred: bool = False) -> Fitted:
        """See :class:`FileColumn`."""
        if pa.types.is_nested(kind):
            fitted = self._as_json().fit(kind, inferred=inferred)
            return Fitted(fitted.values, _at(self.values, fitted.misfits))
        values = fit_text(self.values, kind, self.notation, inferred=inferred)
        return Fitted(values, _lost(self.values, values))

    def _as_json(self) -> JsonColumn:
        return JsonColumn(self.name, [_parsed(text) for text in self.values.to_pylist()])


class ReadTextColumn(TextColumn):
    """Texts from a file whose columns need no header."""


#: Zero-padded numbers, as in folders of months, days and hours.
_PADDED = re.compile("0[0-9]")


@dataclass(frozen=True)
class FolderColumn(TextColumn):
    """The value in a folder name of the file's path, for each row."""

    value: str | None = None

    def kind(self) -> pa.DataType:
        """See :class:`FileColumn`: also without rows."""
        return of_text(pa.array([self._number], pa.string()))

    def fit(self, kind: pa.DataType, *, inferred: bool = False) -> Fitted:
        """See :class:`FileColumn`."""
        if is_number(kind) and self._number != self.value:
            return TextColumn(self.name, pa.array([self._number] * len(self.values), pa.string())).fit(kind, inferred=inferred)
        return super().fit(kind, inferred=inferred)

    @property
    def _number(self) -> str | None:
        """The value without the zero that pads a month, a day or an hour to two digits."""
        return self.value[1:] if self.value is not None and _PADDED.fullmatch(self.value) else self.value


def kind_of(column: FileColumn, options: LoadOptions) -> pa.DataType:
    """Returns a table's type for a column: text if its file has no types and none are to be inferred. Null
    without values."""
    kind = column.kind()
    untyped = not (options.infer_types or isinstance(column, ArrowColumn | TypedColumn))
    return pa.string() if untyped and not pa.types.is_null(kind) else kind


@dataclass(frozen=True)
class ArrowColumn:
    """Typed values, from a parquet file."""

    name: str
    values: pa.Array

    def kind(self) -> pa.DataType:
        """See :class:`FileColumn`."""
        return of_arrow(self.values.type, utc=True, lossless=False)

    def grown(self, kind: pa.DataType) -> pa.DataType:
        """See :class:`FileColumn`."""
        return grown(kind, of_values_only(self.kind()))

    def fit(self, kind: pa.DataType, *, inferred: bool = False) -> Fitted:
        """See :class:`FileColumn`."""
        values = self.values
        if values.type == kind:
            return Fitted(values, {})
        if values.type == pa.null():
            return Fitted(pa.nulls(len(values), kind), {})
        if isinstance(values.type, pa.BaseExtensionType):
            values = values.storage
        local = of_arrow(values.type, lossless=False)  # keeps times without a zone if the column's lack one
        natural = kind if local == kind else of_arrow(values.type, utc=True, lossless=False)
        if pa.types.is_nested(values.type) or pa.types.is_duration(values.type):
            if natural == kind:
                with suppress(pa.ArrowException, OverflowError, ValueError):
                    return Fitted(convert.cast(values, kind), {})
            plain = python_values if "map<" in str(kind) else document_values
            return TypedColumn(self.name, plain(_in_utc(values)), values.type).fit(kind, inferred=inferred)
        if values.type != natural:
            values = _without_nanoseconds(values, natural) if _has_nanoseconds(values.type) else cast_or_null(values, natural)
        lost = _lost(self.values, values)
        if natural == kind:
            return Fitted(values, lost)
        if natural == pa.string():
            return TextColumn(self.name, values).fit(kind, inferred=inferred)
        if not _converts(natural, kind):
            return Fitted(pa.nulls(len(values), kind), {**lost, **present(values)})
        fitting = _converted(values, kind)
        return Fitted(fitting, {**lost, **_lost(values, fitting)})


def _in_utc(values: pa.Array) -> pa.Array:
    """Returns nested values with times in UTC: pandas shifts other zones, by 584 years at the ends of
    nanoseconds."""
    if pa.types.is_list_view(values.type) or pa.types.is_large_list_view(values.type):
        # PyArrow casts views to lists with wrong places.
        ends = np.cumsum(pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False))
        missing = None if not values.null_count else values.is_null()
        values = pa.LargeListArray.from_arrays(np.concatenate([[0], ends]), values.flatten(), mask=missing)
    kind = _of_utc(values.type)
    return values if kind == values.type else values.cast(kind)


def _of_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_of_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_of_utc(kind.key_type), kind.item_field.with_type(_of_utc(kind.item_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_of_utc(kind.value_type)), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_of_utc(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_of_utc(kind.value_type)))
    return kind


@dataclass(frozen=True)
class JsonColumn:
    """JSON values as Python objects, and nested Arrow values. None is null, or missing."""

    name: str
    values: Sequence[Any]

    def kind(self) -> pa.DataType:
        """See :class:`FileColumn`."""
        kind = functools.reduce(widen, map(_of_class, {*map(type, self.values)}), pa.null())
        return pa.string() if kind in (pa.int64(), pa.float64()) and self.fit(kind).misfits else kind

    def grown(self, kind: pa.DataType) -> pa.DataType:
        """See :class:`FileColumn`. A value in a struct is not text, but has a structure, too."""
        return grown(kind, of_values_only(_widest(self.values, kind)))

    def fit(self, kind: pa.DataType, *, inferred: bool = False) -> Fitted:
        """See :class:`FileColumn`."""
        if pa.types.is_nested(kind):
            return self._fit_nested(kind, inferred=inferred)
        if {*map(type, self.values)} <= _plain_classes(kind):
            # The usual case: one conversion, without checking each value.
            with suppress(pa.ArrowException, OverflowError, UnicodeEncodeError):
                plain = pa.array(self.values, kind)
                return self._with_misfits(plain)
        if kind == pa.string():
            return self._with_misfits(pa.array(map(as_text, self.values), pa.string()))
        convert_value = _acceptance(kind)
        values = [None if value is None else convert_value(value) for value in self.values]
        texts = {at: value for at, value in enumerate(self.values) if type(value) is str and kind != pa.binary()}
        if texts:
            read = fit_text(pa.array(texts.values(), pa.string()), kind, inferred=inferred)
            for at, value in zip(texts, read, strict=True):
                values[at] = value
        return self._with_misfits(cast_or_null(values, kind, convert.array if pa.types.is_decimal(kind) else pa.array))

    def _with_misfits(self, values: pa.Array) -> Fitted:
        """Returns the column of these values, without floats that differ from the written number. Lost values
        are misfits."""
        fitting = null_if_inexact(values, self.values) if pa.types.is_floating(values.type) else values
        lost = pc.indices_nonzero(fitting.is_null()).to_pylist() if fitting.null_count else ()
        return Fitted(fitting, {at: self.values[at] for at in lost if self.values[at] is not None})

    def _fit_nested(self, kind: pa.DataType, *, inferred: bool) -> Fitted:
        values: list[Any] = []
        misfits: dict[int, Any] = {}
        for at, original in enumerate(self.values):
            value, misfit = _fit_value(original, kind, inferred=inferred)
            values.append(value)
            if misfit is not None:
                misfits[at] = misfit
        return Fitted(pa.array(values, kind), misfits)


@dataclass(frozen=True)
class TypedColumn(JsonColumn):
    """Values whose file declares their type, but which Arrow does not convert to it."""

    type: pa.DataType

    def kind(self) -> pa.DataType:
        """See :class:`FileColumn`."""
        return self.type

    def grown(self, kind: pa.DataType) -> pa.DataType:
        """See :class:`FileColumn`."""
        return grown(kind, of_values_only(self.type))

    def fit(self, kind: pa.DataType, *, inferred: bool = False) -> Fitted:
        """See :class:`FileColumn`."""
        values = [*map(_with_exact_floats, self.values)] if _has_exact_numbers(kind) else self.values
        return JsonColumn(self.name, values).fit(kind, inferred=inferred)


def _has_exact_numbers(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_exact_numbers(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _with_exact_floats(value: Any) -> Any:
    """Returns a value in which whole floats are decimals: their texts, with 17 digits, denote other
    numbers."""
    if isinstance(value, float):
        return Decimal(value) if value.is_integer() else value
    if isinstance(value, dict):
        return type(value)((name, _with_exact_floats(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return type(value)(map(_with_exact_floats, value))
    return value


def _of_class(kind: type) -> pa.DataType:
    """Returns the type for JSON values of a class. Nested values are text, because their shape may vary."""
    if kind is type(None):
        return pa.null()
    if kind in (bool, int):
        return pa.bool_() if kind is bool else pa.int64()
    return pa.float64() if kind in (float, Decimal) else pa.string()


def _widest(values: Iterable[Any], like: pa.DataType) -> pa.DataType:
    """Returns the type that holds JSON values by their structure, except values that ``like`` cannot hold.

    Objects are structs, or maps where ``like`` is a map.
    """
    return functools.reduce(widen, (_shape(value, like) for value in values), pa.null())


def _shape(value: Any, like: pa.DataType) -> pa.DataType:
    if isinstance(value, dict) and pa.types.is_map(like):
        return pa.map_(like.key_type, _widest(value.values(), like.item_type))
    if isinstance(value, dict) and (pa.types.is_struct(like) or not pa.types.is_nested(like)):
        fields = {folded(field.name): field.type for field in like} if pa.types.is_struct(like) else {}
        named = {name: item for name, item in value.items() if name and is_utf8(name) and not NOT_IN_COLUMNS.search(name)}
        return pa.struct([pa.field(name, _shape(item, fields.get(folded(name), pa.null()))) for name, item in named.items()])
    if isinstance(value, list) and (pa.types.is_list(like) or not pa.types.is_nested(like)):
        return pa.list_(_widest(value, like.value_type if pa.types.is_list(like) else pa.null()))
    return pa.null() if pa.types.is_nested(like) else _of_class(type(value))


def _parsed(text: str | None) -> Any:
    """Returns the value of a JSON text, or the text itself if it is not JSON."""
    try:
        return None if text is None else DECODER.decode(text)
    except (ValueError, RecursionError):
        return text


def _fit_value(value: Any, kind: pa.DataType, *, inferred: bool) -> tuple[Any, Any]:
    """Converts a value to ``kind``. Also returns the part that does not fit, or None.

    The fields of a struct fit separately, a list or a map only as a whole.
    """
    if value is None:
        return None, None
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return _fit_struct(value, kind, inferred=inferred)
    if pa.types.is_list(kind) and isinstance(value, list):
        fitted = [_fit_value(item, kind.value_type, inferred=inferred) for item in value]
        return (None, value) if any(lost is not None for _, lost in fitted) else ([item for item, _ in fitted], None)
    if pa.types.is_map(kind) and isinstance(value, dict | list):
        pairs = [*value.items()] if isinstance(value, dict) else value
        if all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            keys, items = JsonColumn("", [key for key, _ in pairs]), JsonColumn("", [item for _, item in pairs])
            fit = [keys.fit(kind.key_type, inferred=inferred), items.fit(kind.item_type, inferred=inferred)]
            is_same = convert.repeats(fit[0].values.to_pylist()) and not convert.repeats(keys.values)
            if is_same or any(column.misfits for column in fit):
                return None, value
            return list(zip(*(column.values for column in fit), strict=True)), None
    if pa.types.is_nested(kind):
        return None, value
    fitted_one = JsonColumn("", [value]).fit(kind, inferred=inferred)
    return fitted_one.values[0], fitted_one.misfits.get(0)


def _fit_struct(
    value: Mapping[str, Any], kind: pa.DataType, *, inferred: bool
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    values = dict(value)
    fitted: dict[str, Any] = {}
    misfits: dict[str, Any] = {}
    for member in kind:
        similar = (key for key in values if folded(key) == folded(member.name))
        name = member.name if member.name in values else next(similar, None)
        if name is None:
            continue
        fitted[member.name], misfit = _fit_value(values.pop(name), member.type, inferred=inferred)
        if misfit is not None:
            misfits[name] = misfit
    misfits |= {name: extra for name, extra in values.items() if extra is not None}
    return fitted, misfits or None


def _acceptance(kind: pa.DataType) -> Callable[[Any], Any]:
    """Returns a converter of values other than text to ``kind``. It returns None for a value that does not
    fit."""
    if pa.types.is_integer(kind):
        return _whole
    if pa.types.is_floating(kind):
        return _floating
    if pa.types.is_decimal(kind):
        return _decimal
    if pa.types.is_boolean(kind):
        return lambda value: value if type(value) is bool else None
    if pa.types.is_timestamp(kind):
        return functools.partial(_moment, kind)
    if pa.types.is_date(kind):
        return lambda value: value if type(value) is date else None
    return _bytes


def _plain_classes(kind: pa.DataType) -> AbstractSet[type]:
    """Returns the classes of JSON values that PyArrow itself converts to a type, if they fit it."""
    fitting = next((classes for test, classes in _PLAIN_CLASSES if test(kind)), ())
    return {type(None), *fitting}


_PLAIN_CLASSES: Sequence[tuple[Callable[[pa.DataType], bool], Sequence[type]]] = (
    (pa.types.is_string, [str]),
    (pa.types.is_integer, [int]),
    (pa.types.is_floating, [float, int]),
    (pa.types.is_boolean, [bool]),
)


def _moment(kind: pa.DataType, value: Any) -> datetime | None:
    """Returns a time.

    A date becomes its beginning, in UTC. A column without zones takes no time with a zone.
    """
    if type(value) is date:
        return datetime.combine(value, time())
    return value if isinstance(value, datetime) and (kind.tz or value.tzinfo is None) else None


def _floating(value: Any) -> float | None:
    """Returns the float nearest to a number."""
    if not isinstance(value, int | float | Decimal) or type(value) is bool:
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _whole(value: Any) -> int | None:
    """Returns a number if it is whole. 5.704363878889351e+16 has the written digits, not those of the nearest
    float."""
    if type(value) is int:
        return value
    number = _decimal(value)
    return int(number) if number is not None and abs(number) < 2**64 and number == int(number) else None


def _is_finite(value: Any) -> bool:
    return isinstance(value, float | Decimal) and math.isfinite(value)


def _decimal(value: Any) -> Decimal | None:
    """Returns a number as a decimal."""
    number = Decimal(str(value)) if type(value) is int or _is_finite(value) else None
    if number is None or is_too_fine(number):
        return None
    # Strips trailing zeros without rounding.
    return number.normalize(Context(prec=max(1, len(number.as_tuple().digits))))


def _bytes(value: Any) -> bytes | None:
    """Returns bytes, which are Base64 in JSON."""
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (binascii.Error, ValueError):
        return None


def _converts(source: pa.DataType, kind: pa.DataType) -> bool:
    """Returns whether values of one type may be values of the other."""
    if pa.types.is_nested(kind):
        return False
    if kind == pa.string():
        return True
    if source == pa.date32():
        return bool(pa.types.is_timestamp(kind))
    return is_number(source) and is_number(kind)


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Converts values to a type that may hold them, with NULL for values that do not fit."""
    if pa.types.is_floating(values.type) and pa.types.is_decimal(kind):  # PyArrow rounds
        written = zip(values.cast(pa.string()).to_pylist(), values.to_pylist(), strict=True)
        numbers = [None if text is None else Decimal(number if number.is_integer() else text) for text, number in written]
        return JsonColumn("", numbers).fit(kind).values
    converted = cast_or_null(values, kind)
    return null_if_inexact(converted, values) if pa.types.is_floating(kind) else converted


def _has_nanoseconds(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) and kind.unit == "ns"


def _without_nanoseconds(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Rounds times down to microseconds, as Spark does. A cast rounds times before 1970 up."""
    nanoseconds = values.view(pa.int64())
    cut = pc.divide(nanoseconds, 1000)
    below = pc.less(nanoseconds, pc.multiply(cut, 1000)).cast(pa.int64())
    return pc.subtract(cut, below).view(kind)


def with_rescued(ddl: str) -> str:
    """Adds the column for rescued data to a user's columns. Raises InvalidValueError."""
    declared = [field for field in from_ddl(ddl, given=True) if folded(field.name) != RESCUED]
    return to_ddl(checked(pa.schema([*declared, pa.field(RESCUED, pa.string())])))


def inferred_of(columns: Iterable[pa.Field]) -> str:
    """Returns the argument :data:`INFERRED` for columns whose types were found in files."""
    return ",".join(column.name for column in columns if is_number(column.type) or pa.types.is_nested(column.type))


def present(values: pa.Array | Sequence[Any]) -> Mapping[int, Any]:
    """Returns the values that are not NULL, by position."""
    plain = document_values(values) if isinstance(values, pa.Array) else values
    return {at: value for at, value in enumerate(plain) if value is not None}


def _at(values: pa.Array, positions: Mapping[int, Any]) -> Mapping[int, Any]:
    return {at: values[at].as_py() for at in positions}


def _lost(before: pa.Array, after: pa.Array) -> Mapping[int, Any]:
    """Returns the values that were present before and are NULL after."""
    if before.null_count == after.null_count:
        return {}
    lost = pc.indices_nonzero(pc.and_(before.is_valid(), after.is_null()))
    return dict(zip(lost.to_pylist(), python_values(before.take(lost)), strict=True))
