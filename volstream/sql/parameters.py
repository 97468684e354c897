"""Replaces question marks with values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlglot.tokenizer_core import TokenType

from volstream.base.model.files import is_utf8
from volstream.base.model.names import DEFAULT_SCHEMA, Name
from volstream.base.model.values import plain
from volstream.errors import InvalidValueError, SqlError
from volstream.sql import grammar, names
from volstream.sql.text import literal
from volstream.sql.tokens import only, tokenize, words_of


def with_parameters(statement: str, values: Sequence[Any]) -> str:
    """Returns the statement with a literal for each ``?`` outside of strings and comments.

    Raises:
        SqlError: the numbers of question marks and values differ; the statement cannot be split into tokens.
        InvalidValueError: a value has no literal.
    """
    marks = [token for token in tokenize(statement) if token.token_type is TokenType.PLACEHOLDER]
    if len(marks) != len(values):
        raise SqlError(f"The statement has {len(marks)} parameters, but {len(values)} values were given.")
    text = statement
    for mark, value in reversed(list(zip(marks, values, strict=True))):
        text = text[: mark.start] + literal_of(value) + text[mark.end + 1 :]
    return text


def literal_of(value: Any) -> str:
    """Returns the SQL literal of a Python value. Raises InvalidValueError if it has none."""
    value = plain(value)
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return _integer(value)
        case float():
            return f"DOUBLE({literal(float.__repr__(value))})"
        case Decimal():
            return _decimal(value)
        case str() if not is_utf8(value):
            raise InvalidValueError(
                f"{value!r:.60} cannot be a parameter.",
                "It contains half a character (a lone surrogate), which UTF-8 cannot encode.",
            )
        case str():
            return literal(value)
        case bytes() | bytearray() | memoryview():
            return f"X'{bytes(value).hex()}'"
        case datetime() if value != value:
            raise InvalidValueError("NaT cannot be a parameter of a statement.", "For NULL, give None.")
        case datetime() if getattr(value, "nanosecond", 0):
            raise InvalidValueError(f"The nanoseconds of {value} would be lost.", "Round it to microseconds.")
        case datetime():
            kind = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
            return f"{kind} {literal(value.isoformat(sep=' '))}"
        case date():
            return f"DATE {literal(value.isoformat())}"
        case list() | tuple():
            return f"array({', '.join(map(literal_of, value))})"
        case Mapping():
            return f"map({', '.join(literal_of(item) for pair in value.items() for item in pair)})"
    raise InvalidValueError(f"A {type(value).__name__} cannot be a parameter of a statement.")


def _integer(value: int) -> str:
    if -(1 << 31) < value < 1 << 31:
        return f"({value})" if value < 0 else str(value)
    if -(1 << 63) <= value < 1 << 63:
        return f"({value}L)" if value < 0 else f"{value}L"
    return _decimal(Decimal(value))


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise InvalidValueError(f"{value} cannot be a parameter of a statement.", "Give a float.")
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "it is finite"
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale)
    if precision > 38:
        raise InvalidValueError(f"{value} has more than 38 digits.")
    return f"CAST({literal(f'{value:f}')} AS DECIMAL({max(1, precision)}, {scale}))"


def in_schema(statement: str, schema: str) -> str:
    """Returns a statement with ``schema`` added to each unqualified object name. Raises SqlError if it cannot be parsed."""
    if schema == DEFAULT_SCHEMA:
        return statement
    statement = only(statement)
    if grammar.owned(words_of(statement)):
        return grammar.in_schema(statement, schema, lambda query: in_schema(query, schema))
    text = statement
    for reference in reversed(names.references(statement)):
        if not reference.qualified:
            name = Name(schema, reference.name.name)
            written = f"DIRECTORY(VOLUME {name})" if reference.directory else str(name)
            if reference.files is not None:
                written = f"VOLUME {name}{statement[reference.files.start : reference.end]}"
            text = text[: reference.start] + written + text[reference.end :]
    return text
