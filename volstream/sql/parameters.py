"""Replaces placeholders with values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

from sqlglot.tokenizer_core import TokenType

from volstream.base.model.names import DEFAULT_SCHEMA, Name, quote
from volstream.base.model.text import plain
from volstream.errors import InvalidValueError, SqlError
from volstream.sql import grammar
from volstream.sql.statement import SparkStatement
from volstream.sql.text import literal
from volstream.sql.tokens import Edit, Token, only, tokenize


def with_parameters(statement: str, values: Sequence[Any] | Mapping[str, Any]) -> str:
    """Returns the statement with the literals of values in place of its placeholders outside of strings and comments: ``?`` or
    ``%s`` for a sequence, ``:name`` or ``%(name)s`` for a mapping. A list in ``IN (?)`` or ``IN ?`` is its elements.

    Raises:
        SqlError: the numbers of placeholders and values differ, or a value has no placeholder; the statement cannot be split
            into tokens.
        InvalidValueError: a value has no literal; the values are a text.
    """
    if isinstance(values, str | bytes):
        raise InvalidValueError("Parameters are a list or a dict.", "Put the value into a list: [value].")
    if isinstance(values, Mapping):
        named = _named(statement)
        marks = [(first, last, values[name]) for first, last, name in named if name in values]
        known = {name for _, _, name in named}
        if lacking := [name for name in values if name not in known]:
            raise SqlError(f"The statement has no parameter :{lacking[0]}.")
    else:
        places = _places(statement)
        if len(places) != len(values):
            raise SqlError(f"The statement has {len(places)} parameters, but {len(values)} values were given.")
        marks = [(first, last, value) for (first, last), value in zip(places, values, strict=True)]
    text = statement
    for first, last, value in reversed(marks):
        text = text[:first] + _written(statement, first, last, value) + text[last + 1 :]
    return text


def _written(statement: str, first: int, last: int, value: Any) -> str:
    """Returns the literal of the value of a placeholder; of a list alone behind IN, those of its elements."""
    if not isinstance(value, list | tuple):
        return literal_of(value)
    tokens = tokenize(statement)
    before = [token.word for token in tokens if token.end < first][-2:]
    after = next((token.text for token in tokens if token.start > last), None)
    elements = ", ".join(map(literal_of, value)) or "SELECT NULL WHERE FALSE"
    if before[-1:] == ["IN"]:
        return f"({elements})"
    return elements if before == ["IN", "("] and after == ")" else literal_of(value)


def _places(statement: str) -> list[tuple[int, int]]:
    """Returns where the placeholders of a sequence begin and end: question marks, or else ``%s``."""
    tokens = tokenize(statement)
    marks = [(token.start, token.end) for token in tokens if token.token_type is TokenType.PLACEHOLDER]
    pairs = pairwise(tokens)
    return marks or [(one.start, two.end) for one, two in pairs if one.word == "%" and two.text == "s" and _adjacent(one, two)]


def _named(statement: str) -> list[tuple[int, int, str]]:
    """Returns where the placeholders of a mapping begin and end, with their names. A colon behind a word is a path into JSON."""
    tokens = tokenize(statement)
    found = []
    for at, token in enumerate(tokens):
        following = tokens[at + 1 : at + 5]
        if token.word == ":" and following and _adjacent(token, following[0]):
            before = statement[max(0, token.start - 1) : token.start]
            if not (before.isalnum() or before in tuple('_`")]')):
                found.append((token.start, following[0].end, following[0].text))
        elif token.word == "%" and [one.text for one in following[:1] + following[2:]] == ["(", ")", "s"]:
            found.append((token.start, following[3].end, following[1].text))
    return found


def _adjacent(one: Token, two: Token) -> bool:
    return bool(one.end + 1 == two.start)


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
        case str():
            return literal(value)
        case UUID():
            return literal(str(value))
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


def in_schema(text: str, schema: str) -> str:
    """Returns a statement with ``schema`` added to each unqualified object name. Raises SqlError if it cannot be parsed."""
    if schema == DEFAULT_SCHEMA:
        return text
    statement = SparkStatement(only(text))
    words, tokens, edits = statement.words, statement.tokens, list[Edit]()
    if grammar.owned(words):
        return grammar.in_schema(statement.text, schema, lambda query: in_schema(query, schema))
    if statement.begins("SHOW", "TABLES") and words[2:3] not in (["IN"], ["FROM"]):
        edits.append((tokens[1].end + 1, tokens[1].end + 1, f" IN {quote(schema)}"))
    elif statement.begins("DROP", "FUNCTION") and "." not in words:
        edits.append((tokens[-1].start, tokens[-1].start, f"{quote(schema)}."))
    else:
        statement = statement.replaced(
            (call.start, call.end, f"{call.function}(VOLUME {Name(schema, call.volume.name)},")
            for call in statement.volume_calls
            if not call.qualified
        )
        for reference in statement.references:
            name = Name(schema, reference.name.name)
            written = f"DIRECTORY(VOLUME {name})" if reference.directory else str(name)
            if reference.files is not None:
                written = f"VOLUME {name}{statement.text[reference.files.start : reference.end]}"
            edits += [] if reference.qualified else [(reference.start, reference.end, written)]
    return statement.replaced(edits).text
