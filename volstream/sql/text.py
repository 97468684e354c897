"""Building blocks of SQL text: names, values and conditions; and parsing of whole statements. Pure.

No other module puts a path, a key or a user's text into a statement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from volstream.base.model.names import quote
from volstream.base.model.paths import is_utf8
from volstream.errors import InvalidValueError, SqlError

if TYPE_CHECKING:
    from volstream.sql.tokens import Token

#: A condition lists up to this many rows of a table, so that Spark drops the others before a join; beyond it,
#: it gives their range.
MAX_NAMED = 2000

#: Names that sqlglot or Spark misread unless they are quoted.
_WORDS = frozenset(
    [
        "any",
        "case",
        "connect_by_root",
        "constraint",
        "curdate",
        "current_date",
        "current_time",
        "current_timestamp",
        "current_user",
        "exclude",
        "false",
        "if",
        "like",
        "not",
        "null",
        "select",
        "session_user",
        "true",
        "unique",
        "user",
        "with",
    ]
)

#: Types that SQL calls otherwise than Delta's log.
_IN_SQL = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}


def table_at(location: str) -> str:
    """Returns the SQL name of the Delta table at a path."""
    return f"delta.`{location.replace('`', '``')}`"


def parquet_at(location: str) -> str:
    """Returns the SQL name of the Parquet files at a path."""
    return f"parquet.`{location.replace('`', '``')}`"


def quote_column(name: str) -> str:
    """Returns a column's name quoted for SQL."""
    return quote(name) if name.islower() and name not in _WORDS else "`" + name.replace("`", "``") + "`"


def quote_columns(names: Iterable[str]) -> str:
    """Returns columns' names quoted for SQL, as a list."""
    return ", ".join(map(quote_column, names))


def type_of(kind: Any) -> str:
    """Returns a type as SQL.

    Args:
        kind: as in a Delta log, and as ``DataType.jsonValue()`` returns it.
    """
    if isinstance(kind, str):
        return _IN_SQL.get(kind, kind.upper())
    match kind["type"]:
        case "array":
            return f"ARRAY<{type_of(kind['elementType'])}>"
        case "map":
            return f"MAP<{type_of(kind['keyType'])}, {type_of(kind['valueType'])}>"
    fields = (f"{quote_column(field['name'])}: {type_of(field['type'])}" for field in kind["fields"])
    return f"STRUCT<{', '.join(fields)}>"


#: A line break may begin a guard (``spark.frames``), and a session that substitutes variables expands
#: ``${x}``.
_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, ord("$"))}
_ESCAPES |= {ord(character): f"\\{character}" for character in "\\'"}


def literal(text: str) -> str:
    """Returns a SQL string literal on one line, without control characters and ``$``.

    Raises:
        InvalidValueError: the text has a lone surrogate, for which Spark would take a question mark.
    """
    if not is_utf8(text):
        raise InvalidValueError(f"{text!r:.60} cannot be written in SQL.", "It contains a lone surrogate, which UTF-8 lacks.")
    return f"'{text.translate(_ESCAPES)}'"


def pairs(properties: Mapping[str, str]) -> str:
    """Returns the properties of a table as its definition lists them, without parentheses."""
    return ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())


def one_of(column: str, texts: Iterable[str]) -> str:
    """Returns a condition that spares a join other rows: the column is in a list or, beyond
    :data:`MAX_NAMED`, in its range.

    Never a chain of ORs: the depth of an expression must not depend on the number of values.
    """
    named = list(texts)
    if len(named) <= MAX_NAMED:
        return f"{column} IN ({', '.join(map(literal, named))})"
    return between(column, min(named, key=str.encode), max(named, key=str.encode))


def between(column: str, first: str, last: str) -> str:
    """Returns a condition that a column's text is in a range, both ends included, compared bytewise as Spark
    does."""
    return f"{column} BETWEEN {literal(first)} AND {literal(last)}"


def tree_of(text: str) -> Any:
    """Parses a Spark statement into sqlglot's syntax tree.

    Raises:
        sqlglot.errors.ParseError, TokenError: it cannot be parsed, or is nested too deeply for Python's
            stack.
    """
    import sqlglot  # late: few commands read SQL
    from sqlglot.errors import ParseError

    # sqlglot warns about statements that it does not know and treats as commands; judging these is up to
    # Spark.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        return sqlglot.parse_one(_with_backslashes(text), dialect="databricks")
    except RecursionError:
        raise ParseError("it is nested too deeply") from None
    except (
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        AssertionError,
    ):  # of sqlglot's own code, which expects more of what is invalid
        raise ParseError("it is not valid") from None


def slices(
    text: str, tokens: Sequence[Token], breaks: Sequence[int], trees: Sequence[Any], parse: Callable[[str], Any]
) -> list[str] | None:
    """Splits a text into the slices from which trees were parsed, or returns None if no split yields them.

    What is executed is the user's text: sqlglot writes trees in words that may mean something else.

    Args:
        tokens: of the text.
        breaks: positions of the tokens that separate slices, or are inside of one.
        parse: returns the tree of a slice, or None.
    """
    found, begin = list[str](), 0
    for end in (*breaks, len(tokens)):
        piece = text[tokens[begin].start : tokens[end - 1].end + 1] if begin < end else ""
        if len(found) < len(trees) and parse(piece) == trees[len(found)]:
            found.append(piece)
            begin = end + 1
    return found if len(found) == len(trees) and begin == len(tokens) + 1 else None


def _with_backslashes(text: str) -> str:
    """Returns a statement of the same length with backslashes before doubled quotes in texts: sqlglot takes
    one for two texts."""
    from sqlglot.tokenizer_core import TokenType

    from volstream.sql.tokens import tokenize

    if "''" not in text and '""' not in text:
        return text
    try:
        tokens = tokenize(text)
    except SqlError:
        return text  # sqlglot reports the same error
    for before, after in pairwise(tokens):
        are_texts = before.token_type is after.token_type is TokenType.STRING
        if are_texts and after.start == before.end + 1 and text[before.end] == text[after.start]:
            text = f"{text[: before.end]}\\{text[after.start :]}"
    return text
