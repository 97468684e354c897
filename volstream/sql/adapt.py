"""Rewrites SQL before it is passed to Spark. Pure: text in, text out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from sqlglot.tokenizer_core import TokenType

from volstream.errors import SqlError
from volstream.sql import names, types
from volstream.sql.text import literal, tree_of
from volstream.sql.tokens import tokenize

#: Delta refuses columns with a DEFAULT without this table feature.
_DEFAULTS = "delta.feature.allowColumnDefaults"

_SHOW_LIKE = re.compile(r"\s*SHOW\s+(TABLES|VIEWS|SCHEMAS|DATABASES|FUNCTIONS)\b.*\bLIKE\b", re.IGNORECASE | re.DOTALL)


def create_table(statement: str, key_property: str, shorthands: Mapping[str, Callable[[str], Mapping[str, str]]]) -> str:
    """Rewrites CREATE TABLE or ALTER TABLE for Spark: replaces types of other platforms by Spark's, a PRIMARY KEY by a table
    property with the columns' names, and properties like ``change_tracking`` by several Delta properties. A column's
    ``DEFAULT`` in a CREATE TABLE adds the table feature that Delta requires.

    Args:
        shorthands: by lower-case name of such a property, a function from its value to the properties that replace it.

    Raises:
        SqlError: a primary key whose columns cannot be determined, or which lacks a partition column; TBLPROPERTIES without a
            list.
        InvalidValueError: the value of such a property, or the type of a column, is invalid.
    """
    tokens = tokenize(statement)
    edits = types.edits(tokens)
    key: list[str] = []
    for position, token in enumerate(tokens):
        if token.token_type is TokenType.PRIMARY_KEY:
            if key:
                raise SqlError("A table can have only one PRIMARY KEY.")
            key, edit = _key(statement, tokens, position)
            edits.append(edit)
    for one in names.properties(statement):
        if one.value is not None and (shorthand := shorthands.get(one.name.lower())) is not None:
            pairs = ", ".join(f"'{name}' = '{setting}'" for name, setting in shorthand(one.value).items())
            edits.append((one.start, one.end, pairs))
    if key:
        check_partitions(_partitions(tokens), key)
    text = statement
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    if key:
        text = _with_property(text, key_property, json.dumps(key))
    if _has_default(tokens) and _DEFAULTS not in {token.text for token in tokens}:
        text = _with_property(text, _DEFAULTS, "supported")
    return text


def in_sparks_words(statement: str) -> str:
    """Rewrites what other platforms write in a statement of any kind: types of casts, and ``%`` in ``SHOW ... LIKE``."""
    if not _SHOW_LIKE.match(statement):
        return types.in_casts(statement)
    pattern = tokenize(statement)[-1]
    if pattern.token_type is not TokenType.STRING:
        return statement
    return f"{statement[: pattern.start]}{literal(pattern.text.replace('%', '*'))}{statement[pattern.end + 1 :]}"


def insert_all_columns(statement: str, columns: Sequence[str]) -> str:
    """Adds the target's columns to a MERGE whose ``INSERT VALUES (...)`` lists none."""
    listed = ", ".join("`" + name.replace("`", "``") + "`" for name in columns)
    text = statement
    for before, after in reversed(list(pairwise(tokenize(statement)))):
        if before.word == "INSERT" and after.word == "VALUES":
            text = text[: before.end + 1] + f" ({listed})" + text[before.end + 1 :]
    return text


def merge_filter(statement: str, stream: str, stream_columns: Sequence[str], target_columns: Sequence[str]) -> str | None:
    """Returns SQL on a stream's own columns for the rows that can match a clause of a MERGE; None: every row can.

    A stream represents an update as two rows with one key, which Delta rejects as two matches of one target row. Rows that
    cannot match any clause have no effect and are left out.

    Args:
        stream: the stream's alias in the statement, or its name.
    """
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    try:
        merge = tree_of(statement)
    except SqlglotError:
        return None  # Spark reports the error
    whens = merge.args.get("whens") if isinstance(merge, exp.Merge) else None
    if whens is None:
        return None
    own = {name.lower() for name in stream_columns} - {name.lower() for name in target_columns}

    def of_stream(column: Any) -> bool:
        if column.table:
            return bool(column.table.lower() == stream.lower())
        return column.name.lower() in own

    kept = []
    for when in whens.expressions:
        condition = when.args.get("condition")
        if when.args.get("source") or condition is None:
            return None
        parts = [part.unnest() for part in (condition.flatten() if isinstance(condition, exp.And) else [condition])]
        mine = [
            part
            for part in parts
            if not part.find(exp.Subquery, exp.Select)
            and part.find(exp.Column)
            and all(map(of_stream, part.find_all(exp.Column)))
        ]
        if not mine:
            return None
        for part in mine:
            for column in part.find_all(exp.Column):
                column.set("table", None)
        kept.append(" AND ".join(f"({part.sql(dialect='databricks')})" for part in mine))
    return " OR ".join(f"({part})" for part in kept)


def filter_query(statement: str, stream_columns: Sequence[str], target_columns: Sequence[str]) -> str:
    """Returns a MERGE on a query on a stream, without source rows that cannot match a clause; see :func:`merge_filter`."""
    tokens = tokenize(statement)
    words = [token.word for token in tokens]
    using = next((at for at in range(len(words) - 1) if words[at : at + 2] == ["USING", "("]), None)
    close = None if using is None else _closing(words, using + 1)
    if using is None or close is None:
        return statement
    first, last = tokens[using + 1].start, tokens[close].end + 1
    alias = names.alias_after(statement, last)
    wanted = None if alias is None else merge_filter(statement, alias, stream_columns, target_columns)
    if wanted is None:
        return statement
    return f"{statement[:first]}(SELECT * FROM {statement[first:last]} WHERE {wanted}){statement[last:]}"


def _closing(words: Sequence[str], opening: int) -> int | None:
    """Returns the position of the closing parenthesis that matches the one at ``opening``."""
    depth = 0
    for at in range(opening, len(words)):
        depth += (words[at] == "(") - (words[at] == ")")
        if depth == 0:
            return at
    return None


def as_insert(statement: str) -> tuple[str, str, str] | None:
    """Splits ``CREATE TABLE ... AS query`` into a statement that creates the empty table and one that fills it.

    Also returns the table's name. None for other statements.
    """
    tokens = tokenize(statement)
    words = [token.word for token in tokens]
    if words[:1] != ["CREATE"] or "TABLE" not in words[:4]:
        return None
    for position, word in enumerate(words):
        if word == "AS" and position + 1 < len(words) and words[position + 1] in ("SELECT", "WITH", "(", "VALUES", "FROM"):
            start = words.index("TABLE") + 1
            if words[start : start + 3] == ["IF", "NOT", "EXISTS"]:
                start += 3
            named = names.reference_at(statement, tokens, start)
            if named is None:
                raise SqlError("CREATE TABLE must be followed by the name of a table.")
            name = statement[named.start : named.end]
            query = statement[tokens[position].end + 1 :]
            create = f"{statement[: tokens[position].end + 1]} SELECT * FROM ({query}\n) LIMIT 0"
            return create, f"INSERT INTO {name} {query}", name
    return None


def _has_default(tokens: Sequence[Any]) -> bool:
    """True if a CREATE TABLE has a column with a DEFAULT."""
    words = [token.word for token in tokens]
    opening = words.index("(") if "(" in words else 0
    if words[:1] != ["CREATE"] or not opening or "AS" in words[:opening]:
        return False
    inside = range(opening + 1, _closing(words, opening) or len(words))
    # After a comma or parenthesis, DEFAULT is a column's name.
    return any(tokens[at].token_type is TokenType.DEFAULT and words[at - 1] not in ("(", ",") for at in inside)


def _key(statement: str, tokens: Sequence[Any], position: int) -> tuple[list[str], tuple[int, int, str]]:
    """Returns the columns of the PRIMARY KEY at a position, and the edit that removes the clause."""
    after = position + 1
    if after < len(tokens) and tokens[after].word == "(":  # a table constraint: with the preceding comma and name
        end = next((at for at in range(after, len(tokens)) if tokens[at].word == ")"), None)
        if end is None:
            raise SqlError("The PRIMARY KEY has no closing parenthesis.")
        columns = [_unquoted(statement, token) for token in tokens[after + 1 : end] if token.word != ","]
        first = position - 2 if tokens[position - 2].word == "CONSTRAINT" else position
        if tokens[first - 1].word != ",":
            raise SqlError("A table needs columns before its PRIMARY KEY.")
        return columns, (tokens[first - 1].start, tokens[end].end + 1, "")
    # A column constraint: the column is between the enclosing commas or parentheses.
    at, end = _edge(tokens, position, -1), _edge(tokens, position, 1)
    column = [token.word for token in tokens[at + 1 : end]]
    required = any(column[index : index + 2] == ["NOT", "NULL"] for index in range(len(column)))
    edit = (tokens[position].start, tokens[position].end + 1, "" if required else "NOT NULL")
    return [_unquoted(statement, tokens[at + 1])], edit


def check_partitions(partitions: Sequence[str], key: Sequence[str]) -> None:
    """Raises SqlError if a partition column is not part of the key: else several partitions could hold rows of one key."""
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
    """Returns the position of the comma or parenthesis that ends the column at ``position``, in the direction ``step``."""
    depth, at = 0, position + step
    while 0 <= at < len(tokens):
        text = tokens[at].word
        depth += (text == "(") - (text == ")")
        if depth * step < 0 or (depth == 0 and text == ","):
            break
        at += step
    return at


def _with_property(statement: str, key: str, value: str) -> str:
    tokens = tokenize(statement)
    pair = f"'{key}' = {literal(value)}"
    for position, token in enumerate(tokens):
        if token.word == "TBLPROPERTIES":
            if position + 1 == len(tokens) or tokens[position + 1].word != "(":
                raise SqlError("TBLPROPERTIES must be followed by a list.", "TBLPROPERTIES ('key' = 'value')")
            at = tokens[position + 1].end + 1
            return f"{statement[:at]}{pair}, {statement[at:]}"
    return f"{statement} TBLPROPERTIES ({pair})"


def _unquoted(statement: str, token: Any) -> str:
    text = statement[token.start : token.end + 1]
    return text[1:-1].replace("``", "`") if text.startswith("`") else text
