"""Types in column definitions and casts, in Spark's spelling: replaces those of other platforms. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import TokenType

from volstream.base.model.text import like
from volstream.errors import InvalidValueError
from volstream.sql.tokens import Edit, Token, tokenize

if TYPE_CHECKING:
    from volstream.sql.statement import SparkStatement

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


def in_sparks_words(columns: str) -> str:
    """Converts the types in a result's columns (``name TYPE, name TYPE``) to Spark's. Raises InvalidValueError."""
    for start, end, new in reversed(edits(tokenize(columns), depth=0)):
        columns = columns[:start] + new + columns[end:]
    return columns


def edits(tokens: Sequence[Token], *, depth: int = 1) -> list[Edit]:
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
    """Returns Spark's type for that of another platform; CHAR and VARCHAR without a length are texts. None: it stays."""
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
