"""Rewrites statements before they are passed to Spark. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

from sqlglot.tokenizer_core import TokenType

from volstream.base.model.names import DEFAULT_SCHEMA, Name, quote
from volstream.base.model.text import like, plain
from volstream.errors import InvalidValueError, SqlError
from volstream.sql import grammar
from volstream.sql.incremental import StableColumns, cannot_fail
from volstream.sql.names import is_alias, parts_at
from volstream.sql.statement import SparkStatement
from volstream.sql.text import literal, pairs, slices, tree_of
from volstream.sql.tokens import Edit, Token, only, tokenize

# Types in column definitions and casts, in Spark's spelling: replaces those of other platforms. Pure.

#: Types that Spark lacks, and Spark's types for the same values.
_SPARKS = {"INT8": "TINYINT", "INT16": "SMALLINT", "INT32": "INT", "INT64": "BIGINT", "JSON": "STRING", "TEXT": "STRING"}

#: The type of result columns with files that a function makes.
FILE = "STRUCT<volume: STRING, relative_path: STRING, size: BIGINT, etag: STRING, content_type: STRING>"

#: Types that a person may have meant.
_KNOWN = (
    *_SPARKS,
    *("ARRAY", "BIGINT", "BINARY", "BOOLEAN", "BYTE", "CHAR", "DATE", "DEC", "DECIMAL", "DOUBLE", "FLOAT", "INT", "INTEGER"),
    *("LONG", "MAP", "NUMERIC", "REAL", "SHORT", "SMALLINT", "STRING", "STRUCT", "TIMESTAMP", "TIMESTAMP_LTZ"),
    *("TIMESTAMP_NTZ", "TINYINT", "VARCHAR", "VARIANT", "VOID"),
)

_CAST = re.compile(r"cast\s*\(|::", re.IGNORECASE)

#: Words after the columns of a table.
_END = {"AS", "SELECT", "USING", "PARTITIONED BY", "CLUSTER BY", "TBLPROPERTIES", "LOCATION", "COMMENT", "OPTIONS"}


def columns_in_sparks_words(columns: str) -> str:
    """Converts the types in a result's columns (``name TYPE, name TYPE``) to Spark's. Raises
    InvalidValueError."""
    for start, end, new in reversed(type_edits(tokenize(columns), depth=0)):
        columns = columns[:start] + new + columns[end:]
    return columns


def type_edits(tokens: Sequence[Token], *, depth: int = 1) -> list[Edit]:
    """Returns the replacements for a CREATE TABLE or ALTER TABLE: positions, and Spark's type.

    Args:
        depth: number of parentheses around a column.

    Raises:
        InvalidValueError: a table cannot have the type; or the type is unknown, but similar to a known one.
    """
    replacements = []
    for at in _positions(tokens, depth):
        token, word = tokens[at], tokens[at].word
        if word == "INTERVAL":
            raise InvalidValueError(
                "A column cannot be an INTERVAL: Delta does not store them.",
                "Use BIGINT for a number of seconds or months, and make_dt_interval() or make_ym_interval() in queries.",
            )
        if word == "FILE" and depth == 0:
            replacements.append((token.start, token.end + 1, FILE))
        elif (sparks := _sparks(tokens, at)) is not None:
            replacements.append((token.start, token.end + 1, sparks))
        elif token.token_type is TokenType.VAR and tokens[at - 2].word != "COLUMN" and (near := like(word, _KNOWN)):
            raise InvalidValueError(f"There is no type {token.text}.", near.rstrip())
    return replacements


def in_casts(statement: SparkStatement) -> list[Edit]:
    """Returns the replacements of types in a statement's CAST, TRY_CAST and ``::`` by Spark's."""
    if not _CAST.search(statement.text):
        return []
    tokens, around, edits = statement.tokens, [""], list[Edit]()
    for at, token in enumerate(tokens):
        before = tokens[at - 1].word if at else ""
        cast = (before == "AS" and around[-1] in ("CAST", "TRY_CAST")) or before == "::"
        if cast and (sparks := _sparks(tokens, at)) is not None:
            edits.append((token.start, token.end + 1, sparks))
        if token.word == "(":
            around.append(before)
        elif token.word == ")" and len(around) > 1:
            around.pop()
    return edits


def _sparks(tokens: Sequence[Token], at: int) -> str | None:
    """Returns Spark's type for that of another platform; CHAR and VARCHAR without a length are texts. None:
    it stays."""
    word, following = tokens[at].word, tokens[at + 1].text if at + 1 < len(tokens) else ""
    return "STRING" if word in ("CHAR", "VARCHAR") and following != "(" else _SPARKS.get(word)


def _positions(tokens: Sequence[Token], depth: int) -> Iterator[int]:
    """Yields the positions of types: after the name of a column or field, and inside ``<>``."""
    inside = ["("] * (1 - depth)  # the open parentheses, and the types around ``<>``
    for at, token in enumerate(tokens):
        word = token.word
        before = tokens[at - 1].word if at else "("
        earlier = tokens[at - 2].word if at > 1 else "("
        if not inside and word in _END:
            return
        if inside == ["("] or (not inside and earlier == "COLUMN"):
            if earlier in ("(", ",", "COLUMN") and before not in ("(", ","):
                yield at
        elif inside and inside[-1] == "STRUCT":
            if before == ":" or (earlier in ("<", ",") and before not in ("<", ",") and word != ":"):
                yield at
        elif (inside and inside[-1] != "(" and before in ("<", ",")) or before == "TYPE":
            yield at
        if word == "<":
            inside.append(before)
        elif word == "(":
            inside.append(word)
        elif word in (")", ">") and inside:
            inside.pop()


# Replaces placeholders with values. Pure.


def with_parameters(statement: str, values: Sequence[Any] | Mapping[str, Any]) -> str:
    """Returns the statement with the literals of values in place of its placeholders outside of strings and
    comments: ``?`` or ``%s`` for a sequence, ``:name`` or ``%(name)s`` for a mapping. A list in ``IN (?)`` or
    ``IN ?`` is its elements.

    Raises:
        SqlError: the numbers of placeholders and values differ, or a value has no placeholder; the statement
            cannot be split into tokens.
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
    """Returns where the placeholders of a mapping begin and end, with their names. A colon behind a word is a
    path into JSON."""
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
    """Returns a statement with ``schema`` added to each unqualified object name. Raises SqlError if it cannot
    be parsed."""
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


#: Delta refuses columns with a DEFAULT without this table feature.
_DEFAULTS = "delta.feature.allowColumnDefaults"

#: Words of a clause of MERGE that lists no columns.
_ALL_COLUMNS = ("INSERT", "VALUES")

_SHOW_LIKE = re.compile(r"\s*SHOW\s+(TABLES|VIEWS|SCHEMAS|DATABASES|FUNCTIONS)\b.*\bLIKE\b", re.IGNORECASE | re.DOTALL)


def create_table(
    statement: SparkStatement, key_property: str, shorthands: Mapping[str, Callable[[str], Mapping[str, str]]]
) -> SparkStatement:
    """Rewrites CREATE TABLE or ALTER TABLE for Spark: replaces types of other platforms by Spark's, a PRIMARY
    KEY by a table property with the columns' names, and properties like ``change_tracking`` by several Delta
    properties. A column's ``DEFAULT`` in a CREATE TABLE adds the table feature that Delta requires.

    Args:
        shorthands: by lower-case name of such a property, a function from its value to the properties that
            replace it.

    Raises:
        SqlError: a primary key whose columns cannot be determined, or which lacks a partition column;
            TBLPROPERTIES without a list.
        InvalidValueError: the value of such a property, or the type of a column, is invalid.
    """
    tokens = statement.tokens
    edits = type_edits(tokens)
    key: list[str] = []
    for position, token in enumerate(tokens):
        if token.token_type is TokenType.PRIMARY_KEY:
            if key:
                raise SqlError("A table can have only one PRIMARY KEY.")
            key, edit = _key(statement, position)
            edits.append(edit)
    for one in statement.properties:
        if one.value is not None and (shorthand := shorthands.get(one.name.lower())) is not None:
            edits.append((one.start, one.end, pairs(shorthand(one.value))))
    added: dict[str, str] = {}
    if _has_default(statement) and _DEFAULTS not in {token.text for token in tokens}:
        added[_DEFAULTS] = "supported"
    if key:
        check_partitions(_partitions(tokens), key)
        added[key_property] = json.dumps(key)
    return statement.replaced([*edits, *([_with_properties(statement, added)] if added else [])])


def in_sparks_words(statement: SparkStatement) -> SparkStatement:
    """Rewrites what other platforms write in a statement of any kind: types of casts, and ``%`` in ``SHOW ...
    LIKE``."""
    if not _SHOW_LIKE.match(statement.text):
        return statement.replaced(in_casts(statement))
    pattern = statement.tokens[-1]
    if pattern.token_type is not TokenType.STRING:
        return statement
    return statement.replaced([(pattern.start, pattern.end + 1, literal(pattern.text.replace("%", "*")))])


def insert_all_columns(merge: SparkStatement, columns: Sequence[str]) -> SparkStatement:
    """Adds the target's columns to a MERGE whose ``INSERT VALUES (...)`` lists none."""
    listed = ", ".join("`" + name.replace("`", "``") + "`" for name in columns)
    before = pairwise(merge.tokens)
    return merge.replaced(
        (one.end + 1, one.end + 1, f" ({listed})") for one, two in before if (one.word, two.word) == _ALL_COLUMNS
    )


def filtered_merge(
    merge: SparkStatement, columns_of: Callable[[str], Mapping[str, str]], target_columns: Sequence[str]
) -> SparkStatement:
    """Returns a MERGE without the source rows that no clause can match, where its conditions show which these
    are.

    A stream represents an update as two rows with one key, which Delta rejects as two matches of one target
    row. The filter consists of slices of the conditions, because another spelling of a function may have
    another meaning.

    Args:
        columns_of: returns the columns of a query, with Spark's names of their types.
    """
    tokens, words, depths = merge.tokens, merge.words, _depths(merge.tokens)
    begin = _next(words, depths, "MERGE")  # after common table expressions
    using, on, when = (_next(words, depths, word, begin) for word in ("USING", "ON", "WHEN"))
    if not begin < using < on < when < len(words):
        return merge
    alias = _alias(tokens[using + 1 : on]) if using + 1 < on else None
    conditions = _conditions(merge.text, tokens[when:], words[when:], depths[when:])
    if alias is None or conditions is None:
        return merge
    start, end = tokens[using + 1].start, tokens[on - 1].end + 1
    source = merge.text[start:end]
    columns = columns_of(f"{merge.text[: tokens[begin].start]}SELECT * FROM {source}")
    stable = StableColumns(alias, columns)
    own = {name.lower() for name in columns} - {name.lower() for name in target_columns}
    kept = []
    for parts in conditions:
        mine = [text for text, tree in parts if _is_of_source(tree, stable, own) and cannot_fail(tree, columns)]
        if not mine:
            return merge
        kept.append(f"({' AND '.join(f'({text})' for text in mine)})")
    return merge.replaced([(start, end, f"(SELECT * FROM {source} WHERE {' OR '.join(kept)}) AS {quote(alias)}")])


def _is_of_source(condition: Any, stable: StableColumns, own: Collection[str]) -> bool:
    """True if a condition has one value for each row of the source, whose columns ``own`` are not the
    target's."""
    from sqlglot import exp

    columns = list(condition.find_all(exp.Column))
    return bool(columns) and stable.are_stable(condition) and all(one.table or one.name.lower() in own for one in columns)


def _conditions(
    merge: str, tokens: Sequence[Token], words: Sequence[str], depths: Sequence[int]
) -> list[list[tuple[str, Any]]] | None:
    """Returns the conjuncts of each clause's condition, as text and as trees, or None if a clause lacks a
    condition, applies to rows that are not in the source, or cannot be parsed."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    starts = [at for at, word in enumerate(words) if word == "WHEN" and depths[at] == 0]
    try:
        whens = tree_of(f"MERGE INTO t USING s ON true {merge[tokens[0].start :]}").args["whens"].expressions
    except (SqlglotError, AttributeError, KeyError):
        return None  # Spark reports the error
    if len(whens) != len(starts):
        return None
    found = []
    for at, when in zip(starts, whens, strict=True):
        first, then = _next(words, depths, "AND", at), _next(words, depths, "THEN", at)
        condition = when.args.get("condition")
        if condition is None or when.args.get("source") or not first < then < len(words):
            return None
        # An AND may also belong to BETWEEN, or be inside of an OR.
        inside = [at - first - 1 for at in range(first + 1, then) if words[at] == "AND" and depths[at] == 0]
        conjuncts = [part.unnest() for part in (condition.flatten() if isinstance(condition, exp.And) else [condition])]
        texts = slices(merge, tokens[first + 1 : then], inside, conjuncts, _tree_of_condition)
        if texts is None:
            return None
        found.append(list(zip(texts, conjuncts, strict=True)))
    return found


def _tree_of_condition(text: str) -> Any:
    """Returns the tree of a condition, or None if it cannot be parsed."""
    from sqlglot.errors import SqlglotError

    try:
        return tree_of(f"SELECT 1 WHERE ({text})").args["where"].this.unnest()
    except (SqlglotError, AttributeError, KeyError):
        return None


def _alias(source: Sequence[Token]) -> str | None:
    """Returns the name by which a MERGE qualifies the columns of its source, or None."""
    words = [token.word for token in source]
    named = [] if words[:1] == ["("] else parts_at(source, 0)
    after = 2 * len(named) - 1 if named else (_closing(words, 0) or len(words)) + 1
    if named and after == len(source):
        return named[-1].text
    after += words[after : after + 1] == ["AS"]
    return source[after].text if is_alias(source, after) else None


def _depths(tokens: Sequence[Token]) -> list[int]:
    """Returns for each token in how many parentheses and CASE expressions it is."""
    depths, depth = list[int](), 0
    for token in tokens:
        depth -= token.word in (")", "END")
        depths.append(depth)
        depth += token.word in ("(", "CASE")
    return depths


def _next(words: Sequence[str], depths: Sequence[int], word: str, start: int = 0) -> int:
    """Returns the position of the next such word outside of parentheses, or the end."""
    return next((at for at in range(start, len(words)) if words[at] == word and depths[at] == 0), len(words))


def _closing(words: Sequence[str], opening: int) -> int | None:
    """Returns the position of the closing parenthesis that matches the one at ``opening``."""
    depth = 0
    for at in range(opening, len(words)):
        depth += (words[at] == "(") - (words[at] == ")")
        if depth == 0:
            return at
    return None


def as_insert(statement: SparkStatement) -> tuple[SparkStatement, SparkStatement] | None:
    """Splits ``CREATE TABLE ... AS query`` into a statement that creates the empty table and one that fills
    it. None for other statements.
    """
    text, words = statement.text, statement.words
    if words[:1] != ["CREATE"] or "TABLE" not in words[:4]:
        return None
    for position, word in enumerate(words):
        if word == "AS" and position + 1 < len(words) and words[position + 1] in ("SELECT", "WITH", "(", "VALUES", "FROM"):
            start = words.index("TABLE") + 1
            if words[start : start + 3] == ["IF", "NOT", "EXISTS"]:
                start += 3
            named = statement.reference_at(start)
            if named is None:
                raise SqlError("CREATE TABLE must be followed by the name of a table.")
            end = statement.tokens[position].end + 1
            create = f"{text[:end]} SELECT * FROM ({text[end:]}\n) LIMIT 0"
            return SparkStatement(create), SparkStatement(f"INSERT INTO {text[named.start : named.end]} {text[end:]}")
    return None


def _has_default(statement: SparkStatement) -> bool:
    """True if a CREATE TABLE has a column with a DEFAULT."""
    tokens, words = statement.tokens, statement.words
    opening = words.index("(") if "(" in words else 0
    if words[:1] != ["CREATE"] or not opening or "AS" in words[:opening]:
        return False
    inside = range(opening + 1, _closing(words, opening) or len(words))
    # After a comma or parenthesis, DEFAULT is a column's name.
    return any(tokens[at].token_type is TokenType.DEFAULT and words[at - 1] not in ("(", ",") for at in inside)


def _key(statement: SparkStatement, position: int) -> tuple[list[str], Edit]:
    """Returns the columns of the PRIMARY KEY at a position, and the edit that removes the clause."""
    tokens, words = statement.tokens, statement.words
    after = position + 1
    if words[after : after + 1] == ["("]:  # a table constraint: with the preceding comma and name
        end = next((at for at in range(after, len(tokens)) if words[at] == ")"), None)
        if end is None:
            raise SqlError("The PRIMARY KEY has no closing parenthesis.")
        columns = [_unquoted(statement, token) for token in tokens[after + 1 : end] if token.word != ","]
        first = position - 2 if words[position - 2] == "CONSTRAINT" else position
        if words[first - 1] != ",":
            raise SqlError("A table needs columns before its PRIMARY KEY.")
        return columns, (tokens[first - 1].start, tokens[end].end + 1, "")
    # A column constraint: the column is between the enclosing commas or parentheses.
    at, end = _edge(tokens, position, -1), _edge(tokens, position, 1)
    required = ("NOT", "NULL") in pairwise(words[at + 1 : end])
    edit = (tokens[position].start, tokens[position].end + 1, "" if required else "NOT NULL")
    return [_unquoted(statement, tokens[at + 1])], edit


def check_partitions(partitions: Sequence[str], key: Sequence[str]) -> None:
    """Raises SqlError if a partition column is not part of the key: else several partitions could hold rows
    of one key."""
    keys = {name.lower() for name in key}
    for column in partitions:
        if column.lower() not in keys:
            raise SqlError(
                f"The partition column {column} is not part of the PRIMARY KEY.",
                f"Add it to the key: PRIMARY KEY ({', '.join((*key, column))}).",
            )


def _partitions(tokens: Sequence[Any]) -> Sequence[str]:
    """Returns the partition columns of a CREATE TABLE."""
    at = next((at for at, token in enumerate(tokens) if token.token_type is TokenType.PARTITION_BY), None)
    end = None if at is None else _closing([token.word for token in tokens], at + 1)
    if at is None or end is None:
        return []
    return [token.text for before, token in pairwise(tokens[at + 1 : end]) if before.word in ("(", ",")]


def _edge(tokens: Sequence[Any], position: int, step: int) -> int:
    """Returns the position of the comma or parenthesis that ends the column at ``position``, in the direction
    ``step``."""
    depth, at = 0, position + step
    while 0 <= at < len(tokens):
        text = tokens[at].word
        depth += (text == "(") - (text == ")")
        if depth * step < 0 or (depth == 0 and text == ","):
            break
        at += step
    return at


def _with_properties(statement: SparkStatement, properties: Mapping[str, str]) -> Edit:
    """Returns the edit that adds properties to those of a table. Raises SqlError if these are no list."""
    words = statement.words
    at = words.index("TBLPROPERTIES") if "TBLPROPERTIES" in words else None
    if at is None:
        return (len(statement.text), len(statement.text), f" TBLPROPERTIES ({pairs(properties)})")
    if words[at + 1 : at + 2] != ["("]:
        raise SqlError("TBLPROPERTIES must be followed by a list.", "TBLPROPERTIES ('key' = 'value')")
    begin = statement.tokens[at + 1].end + 1
    return (begin, begin, f"{pairs(properties)}, ")


def _unquoted(statement: SparkStatement, token: Token) -> str:
    text = statement.text[token.start : token.end + 1]
    return text[1:-1].replace("``", "`") if text.startswith("`") else text
