"""Which type holds the values of two."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from volstream.functions.types.kinds import BY_NAME, TIMESTAMP, TIMESTAMP_NTZ
from volstream.functions.types.widen import DifferentTypesError, fields_added, grown, of_values_only, widen, without_null

INT, LONG, TEXT, NULL = pa.int32(), pa.int64(), pa.string(), pa.null()


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct([*fields.items()])


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (INT, LONG, LONG),
        (pa.int8(), pa.int16(), pa.int16()),
        (LONG, pa.float64(), pa.float64()),
        (INT, pa.float32(), pa.float64()),
        (LONG, pa.decimal128(12, 2), pa.decimal128(21, 2)),
        (LONG, pa.decimal128(38, 18), pa.decimal128(38, 18)),
        (pa.decimal128(20, 0), pa.float64(), pa.float64()),
        (pa.decimal128(12, 2), pa.float64(), TEXT),
        (pa.decimal128(5, 2), pa.decimal128(6, 4), pa.decimal128(7, 4)),
        (pa.decimal128(38, 0), pa.decimal128(38, 38), TEXT),
        (pa.date32(), TIMESTAMP, TIMESTAMP),
        (TIMESTAMP, TIMESTAMP_NTZ, TEXT),
        (LONG, pa.date32(), TEXT),
        (pa.binary(), TEXT, TEXT),
        (NULL, pa.bool_(), pa.bool_()),
        (NULL, NULL, NULL),
        (pa.list_(NULL), pa.list_(LONG), pa.list_(LONG)),
        (pa.list_(struct(a=INT)), pa.list_(struct(a=LONG, b=TEXT)), pa.list_(struct(a=LONG, b=TEXT))),
        (struct(a=INT, b=pa.date32()), struct(a=TEXT, b=TIMESTAMP), struct(a=TEXT, b=TIMESTAMP)),
        (pa.map_(TEXT, INT), pa.map_(TEXT, LONG), pa.map_(TEXT, LONG)),
        (pa.map_(TEXT, INT), struct(a=LONG, b=NULL), pa.map_(TEXT, LONG)),
        (struct(a=INT), pa.list_(INT), TEXT),
    ],
)
def test_two_types_have_one_that_holds_the_values_of_both(one: Any, other: Any, both: Any) -> None:
    assert widen(one, other) == widen(other, one) == both


def test_fields_whose_names_differ_in_case_are_one() -> None:
    assert widen(struct(a=INT), struct(A=LONG, b=TEXT)) == struct(a=LONG, b=TEXT)
    assert widen(struct(a=INT, b=INT), struct(A=TEXT, b=INT), python=True) == struct(a=INT, b=INT, A=TEXT)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (struct(a=LONG), struct(b=pa.float64()), pa.map_(TEXT, pa.float64())),
        (struct(a=LONG, b=TEXT), struct(a=LONG), struct(a=LONG, b=TEXT)),
        (LONG, TEXT, None),
        (pa.date32(), TIMESTAMP, None),
        (pa.list_(LONG), pa.list_(TEXT), None),
        (pa.map_(TEXT, LONG), struct(a=TEXT), None),
    ],
)
def test_dicts_of_python_may_be_maps_and_nothing_becomes_text(one: Any, other: Any, both: Any) -> None:
    if both is not None:
        assert widen(one, other, python=True) == both
    else:
        with pytest.raises(DifferentTypesError):
            widen(one, other, python=True)


def test_fields_of_another_type_are_added_behind_those_of_a_table_which_stay() -> None:
    kind = struct(a=INT, l=pa.list_(struct(x=INT)), m=pa.map_(TEXT, struct(y=INT)))
    more = grown(kind, struct(m=pa.map_(TEXT, struct(Z=TEXT, Y=TEXT)), A=TEXT, l=pa.list_(struct(z=TEXT)), n=LONG))
    assert more == struct(a=INT, l=pa.list_(struct(x=INT, z=TEXT)), m=pa.map_(TEXT, pa.struct([("y", INT), ("Z", TEXT)])), n=LONG)
    assert fields_added(kind, pa.field("s s", more)) == ["`s s`.l.element.z STRING", "`s s`.m.value.`Z` STRING", "`s s`.n BIGINT"]
    assert fields_added(kind, pa.field("s", struct(n=LONG, a=INT))) == []
    assert grown(kind, TEXT) == kind


def test_what_was_always_empty_is_text_or_nothing() -> None:
    kind = struct(a=pa.list_(NULL), b=NULL, c=INT)
    assert without_null(kind) == struct(a=pa.list_(TEXT), b=TEXT, c=INT)
    assert of_values_only(kind) == struct(c=INT)
    assert of_values_only(struct(a=pa.list_(pa.list_(NULL)))) == NULL


DECIMALS = st.integers(1, 38).flatmap(lambda digits: st.builds(pa.decimal128, st.just(digits), st.integers(0, digits)))
LEAVES = st.sampled_from([*BY_NAME.values(), NULL]) | DECIMALS


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.dictionaries(st.sampled_from("abC"), inner, min_size=1)
    return inner.map(pa.list_) | inner.map(lambda item: pa.map_(TEXT, item)) | fields.map(lambda kinds: struct(**kinds))


KINDS = st.recursive(LEAVES, nested, max_leaves=4)


def ordered(kind: pa.DataType) -> Any:
    """A type without the order of its fields."""
    if pa.types.is_struct(kind):
        return {field.name: ordered(field.type) for field in kind}
    if pa.types.is_nested(kind):
        return (str(type(kind)), *(ordered(kind.field(at).type) for at in range(kind.num_fields)))
    return kind


@given(st.lists(KINDS, min_size=1, max_size=3))
def test_neither_the_order_of_types_nor_seeing_one_again_makes_a_difference(kinds: Sequence[pa.DataType]) -> None:
    found = functools.reduce(widen, kinds)
    assert ordered(functools.reduce(widen, reversed(kinds))) == ordered(found)
    assert all(widen(found, kind) == found for kind in (*kinds, found))


@given(DECIMALS | st.sampled_from([pa.int8(), pa.int16(), INT, LONG]), DECIMALS)
def test_a_decimal_holds_the_largest_and_the_finest_value_of_both(one: pa.DataType, other: pa.DataType) -> None:
    both = widen(one, other)
    for kind in (one, other) if pa.types.is_decimal(both) else ():
        largest = (
            Decimal(-(2 ** (kind.bit_width - 1)))
            if pa.types.is_integer(kind)
            else Decimal((0, (9,) * kind.precision, -kind.scale))
        )
        assert pa.array([largest], both)[0].as_py() == largest
