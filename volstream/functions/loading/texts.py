"""Texts read as values of a type: finds the type of all texts, and the values of texts that fit it. Pure."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from volstream.functions.loading.options import LoadOptions
from volstream.functions.types.convert import as_texts
from volstream.functions.types.kinds import MAX_DIGITS, TIMESTAMP, is_number

#: Patterns of texts and their types, from the most specific, in the order of trying. Numbers with leading
#: zeros or a plus are codes, and digits beyond the type's precision would be lost: all these stay text.
_INFERRED: Sequence[tuple[str, pa.DataType]] = (
    (r"^-?(0|[1-9][0-9]{0,17})$", pa.int64()),
    (r"^-?((0|[1-9][0-9]{0,14})(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?$", pa.float64()),
    (r"(?i)^(true|false)$", pa.bool_()),
    (r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", pa.date32()),
    (r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]+(Z|[+-][0-9:]+)?)?$", TIMESTAMP),
)

#: The beginning of texts that are numbers only in declared columns.
_CODE = r"^(\+|-?0[0-9])"

_ZONED = r"(Z|[T ].*[+-][0-9:]+)$"


@dataclass(frozen=True)
class Notation:
    """How a file writes numbers and times, if it deviates from the usual.

    Attributes:
        decimal: the character before the fraction.
        date_format, timestamp_format: as in Python's ``strptime``. ISO 8601 by default.
    """

    decimal: str = "."
    date_format: str | None = None
    timestamp_format: str | None = None

    @classmethod
    def of(cls, options: LoadOptions) -> Notation:
        """Returns the notation in a job's options."""
        return cls(options.decimal, options.date_format, options.timestamp_format)

    def format_of(self, kind: pa.DataType) -> str | None:
        """Returns the format of a type's values, if one is set."""
        return self.date_format if pa.types.is_date(kind) else self.timestamp_format if pa.types.is_timestamp(kind) else None

    def pointed(self, texts: pa.Array) -> pa.Array:
        """Returns numbers with a point before the fraction, and NULL for texts that already have a point."""
        if self.decimal == ".":
            return texts
        with_point = pc.match_substring(texts, ".")
        return pc.replace_substring(pc.if_else(with_point, pa.scalar(None, pa.string()), texts), self.decimal, ".")


#: The notation of most files.
USUAL = Notation()


def of_text(texts: pa.Array, notation: Notation = USUAL) -> pa.DataType:
    """Returns the type of which all texts are valid values, or null without text."""
    present = texts.drop_null()
    if not len(present):
        return pa.null()
    trimmed = pc.utf8_trim_whitespace(present)
    for kind in (pa.date32(), TIMESTAMP):
        if notation.format_of(kind) and not any(fit_text(part, kind, notation).null_count for part in (trimmed[:1], trimmed)):
            return kind
    for pattern, kind in _INFERRED:
        # The first text rules out most types.
        written = notation.pointed(trimmed) if pa.types.is_floating(kind) else trimmed
        if all(pc.all(pc.match_substring_regex(part, pattern).fill_null(False)).as_py() for part in (written[:1], written)):
            values = fit_text(trimmed, kind, notation)
            if not values.null_count:
                return kind
    return pa.string()


def fit_text(texts: pa.Array, kind: pa.DataType, notation: Notation = USUAL, *, inferred: bool = False) -> pa.Array:
    """Returns texts as values of a type that is not nested, and NULL for texts that are not such values.

    Args:
        inferred: the type was found in files, so codes such as ``007`` are not numbers.
    """
    if kind == pa.string():
        return texts
    if kind == pa.binary():
        return texts.cast(kind)
    trimmed = pc.utf8_trim_whitespace(texts)
    if (format_ := notation.format_of(kind)) is not None:
        return _by_format(trimmed, kind, format_)
    if inferred and is_number(kind):
        trimmed = pc.if_else(pc.match_substring_regex(trimmed, _CODE), pa.scalar(None, pa.string()), trimmed)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        trimmed = notation.pointed(trimmed)
    pattern, prepared = next((text, prepared) for matches, text, prepared in _READINGS if matches(kind))
    fitting = pc.if_else(pc.match_substring_regex(trimmed, pattern), trimmed, pa.scalar(None, pa.string()))
    values = cast_or_null(prepared(fitting, kind), kind)
    if pa.types.is_temporal(kind):  # Python lacks the years 0 and 10000, which times of other zones may reach
        first, last = (
            pc.greater_equal(values, pa.scalar(datetime.min, kind)),
            pc.less_equal(values, pa.scalar(datetime.max, kind)),
        )
        return pc.if_else(pc.and_(first, last), values, pa.scalar(None, kind))
    return null_if_inexact(values, fitting) if pa.types.is_floating(kind) else values


#: Adjacent numeric fields, for which Python's parser accepts fewer digits than each has.
_ADJOINING = re.compile(r"%[YymdHIMSj]%[YymdHIMSj]")


def _by_format(texts: pa.Array, kind: pa.DataType, format_: str) -> pa.Array:
    """Returns dates or times in a format, and NULL for other texts."""
    distinct, midnight = texts.dictionary_encode(), datetime.min.time()
    if "%p" in format_ and "%I" not in format_:  # Python would ignore it
        return pa.nulls(len(texts), kind)
    has_zone = "%Z" in format_.replace("%%", "")
    counted = any(f"%{letter}" in format_ for letter in "jUWV")
    adjoining = _ADJOINING.search(format_) is not None and not any(f"%{letter}" in format_ for letter in "fzZ")

    def value(text: str) -> date | None:
        try:
            moment = datetime.strptime(text, format_)
            # Python accepts day 366 of any year.
            if counted and _unpadded(moment.strftime(format_)) != _unpadded(text):
                return None
            # And takes 202611 for the first of January.
            if adjoining and moment.strftime(format_).lower() != text.lower():
                return None
            if has_zone:  # a zone's name, whose offset Python does not know
                if time.strptime(text, format_).tm_zone.upper() not in ("UTC", "GMT"):
                    return None
                moment = moment.replace(tzinfo=UTC)
            if pa.types.is_date(kind):
                return moment.date() if moment.time() == midnight else None
            if kind.tz is None:
                return moment if moment.tzinfo is None else None
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            return None

    return pa.array(map(value, distinct.dictionary.to_pylist()), kind).take(distinct.indices)


def _unpadded(text: str) -> str:
    return re.sub(r"\b0+(?=[0-9])", "", text.strip().lower())


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Casts values. Raises pa.ArrowException if the type cannot hold a value."""
    if pa.types.is_decimal(kind):
        # PyArrow drops a number's bits beyond 128, which changes it. 256 bits have room for 38 digits on each
        # side of the point, and the cast to fewer bits checks the range.
        values = values.cast(pa.decimal256(2 * MAX_DIGITS, kind.scale))
    if pa.types.is_decimal(values.type) and pa.types.is_floating(kind):
        # PyArrow multiplies by a power of ten, which does not give the nearest number.
        values = values.cast(pa.string())
    return as_texts(values) if kind == pa.string() else values.cast(kind)


def cast_or_null(values: Any, kind: pa.DataType, convert: Callable[[Any, pa.DataType], pa.Array] = _cast) -> pa.Array:
    """Converts values, with NULL for values that cannot be converted. Bisects, because PyArrow stops at the
    first such value."""
    try:
        return convert(values, kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        if len(values) == 1:
            return pa.nulls(1, kind)
    half = len(values) // 2
    return pa.concat_arrays([cast_or_null(values[:half], kind, convert), cast_or_null(values[half:], kind, convert)])


def _as_written(texts: pa.Array, _kind: pa.DataType) -> pa.Array:
    return texts


def _unsigned(texts: pa.Array, _kind: pa.DataType) -> pa.Array:
    return pc.replace_substring_regex(texts, r"^\+", "")


def _times(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns times in the form that PyArrow reads for the type, with at most six digits of a second."""
    cut = pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]+", r"\1")
    zoned = pc.match_substring_regex(cut, _ZONED)
    if kind.tz is None:
        return pc.if_else(zoned, pa.scalar(None, pa.string()), cut)
    whole = pc.if_else(pc.equal(pc.utf8_length(cut), 10), pc.binary_join_element_wise(cut, "00:00", " "), cut)
    return pc.if_else(zoned, whole, pc.binary_join_element_wise(whole, "Z", ""))


#: Types, the pattern of valid texts, and how such texts are prepared for PyArrow.
_READINGS: Sequence[tuple[Callable[[pa.DataType], bool], str, Callable[[pa.Array, pa.DataType], pa.Array]]] = (
    (pa.types.is_integer, r"^[+-]?[0-9]+$", _unsigned),
    (pa.types.is_floating, r"(?i)^[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|nan|inf|infinity)$", _unsigned),
    # PyArrow can crash on a text with more digits after the point than any decimal has. For digits before it,
    # see _cast.
    (pa.types.is_decimal, r"^[+-]?(0*[0-9]{1,38}(\.[0-9]{0,38})?|\.[0-9]{1,38})$", _unsigned),
    (pa.types.is_boolean, r"(?i)^(true|false)$", _as_written),
    (pa.types.is_date, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", _as_written),
    (
        pa.types.is_timestamp,
        r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?)?$",
        _times,
    ),
)


# Lossless numbers: which numbers of JSON are floats, and which values of FLOAT and DOUBLE equal the written
# number. Pure.


def number(text: str) -> float | Decimal:
    """Returns the number in a text of JSON: a float if its representation is the same text, else a Decimal.

    Raises:
        ValueError: the exponent is too large for a Decimal.
    """
    value = float(text)
    if repr(value) == text:
        return value
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:40]} is out of range.") from None


#: Decodes JSON with all digits of its numbers.
DECODER = json.JSONDecoder(parse_float=number)


def null_if_inexact(values: pa.Array, given: pa.Array | Sequence[Any]) -> pa.Array:
    """Returns values of FLOAT or DOUBLE, with NULL for values that differ from the number by more than a
    rounded fraction.

    0.1 is accepted, although binary fractions only approximate it. Whole numbers from 2**24 (FLOAT) or 2**53
    (DOUBLE), and numbers near 0, are accepted if the value is exact or has the same representation. No number
    becomes infinite or zero.

    Args:
        given: the numbers, or their texts, by position.
    """
    kind = np.finfo(values.type.to_pandas_dtype())
    size = np.abs(values.to_numpy(zero_copy_only=False))
    doubtful = np.flatnonzero((size >= 2.0 ** (kind.nmant + 1)) | (size < kind.smallest_normal))
    if not doubtful.size:
        return values
    picked = given.take(doubtful).to_pylist() if isinstance(given, pa.Array) else [given[at] for at in doubtful.tolist()]
    accepted: dict[Any, bool] = {}
    for value, written in zip(values.take(doubtful), picked, strict=True):
        if written not in accepted:  # zeros, mostly
            accepted[written] = _round_trips(value, written)
    mask = np.ones(len(values), bool)
    mask[doubtful] = [accepted[written] for written in picked]
    return pc.if_else(pa.array(mask), values, pa.scalar(None, values.type))


def _round_trips(value: pa.Scalar, given: Any) -> bool:
    """Returns whether a value equals the given number, or is written like it."""
    try:
        number = Decimal(given) if isinstance(given, str) else given
        written = Decimal(repr(number) if isinstance(number, float) else number)
        return bool(value.as_py() == number) or Decimal(str(value.cast(pa.string()))) == written
    except InvalidOperation:
        return False
