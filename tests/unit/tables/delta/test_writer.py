"""The SQL text that values become."""

from __future__ import annotations

from volstream.sql.text import MAX_NAMED, literal, one_of


def test_a_literal_may_contain_anything() -> None:
    assert literal("a b/ü.txt") == "'a b/ü.txt'"
    assert literal("it's") == r"'it\'s'"
    assert literal("a\\b") == r"'a\\b'"
    assert literal("\\'") == r"'\\\''"


def test_a_literal_contains_no_variable_that_spark_would_substitute() -> None:
    assert literal("${env:HOME}") == r"'\u0024{env:HOME}'"
    assert literal("$") == r"'\u0024'"
    assert literal(r"\u0024") == r"'\\u0024'"


def test_few_values_are_enumerated_and_many_become_a_range_in_byte_order() -> None:
    assert one_of("t.p", ["b", "é", "Z"]) == "t.p IN ('b', 'é', 'Z')"
    many = [f"{number:05}" for number in range(MAX_NAMED - 1)]
    assert one_of("t.p", ["é", *many]).startswith("t.p IN ('é', '00000', ")
    assert one_of("t.p", ["\U0001f600", "\uffff", *many]) == "t.p BETWEEN '00000' AND '\U0001f600'"
