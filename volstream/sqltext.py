"""Pieces of SQL text: names and values that statements are made of; and what a whole one is made of. Pure.

Nothing else puts a path, a key or a user's text into a statement.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

#: Up to so many rows of a table are named in a condition, by which Spark leaves out the others before it joins; of more, their
#: range is.
MOST_NAMED = 2000


def table_at(location: str) -> str:
    """The SQL name of the Delta table at a path."""
    return f"delta.`{location.replace('`', '``')}`"


def parquet_at(location: str) -> str:
    """The SQL name of Parquet files at a path."""
    return f"parquet.`{location.replace('`', '``')}`"


def literal(text: str) -> str:
    """A SQL string literal, with no ``$`` in it: in a session that substitutes variables ``${x}`` would be one."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"


def one_of(column: str, texts: Iterable[str]) -> str:
    """SQL that spares a join other rows: the column's value is one of some or, of more than :data:`MOST_NAMED`, in their range.

    Never a chain of ORs: how deep an expression is must not depend on how many values there are.
    """
    named = list(texts)
    if len(named) <= MOST_NAMED:
        return f"{column} IN ({', '.join(map(literal, named))})"
    return between(column, min(named, key=str.encode), max(named, key=str.encode))


def between(column: str, first: str, last: str) -> str:
    """SQL: that a column's text is in a range with both ends, which Spark takes in the order of the bytes."""
    return f"{column} BETWEEN {literal(first)} AND {literal(last)}"


def tree_of(text: str) -> Any:
    """sqlglot's syntax tree of a statement of Spark's.

    Raises:
        sqlglot.errors.ParseError, TokenError: it cannot be read, or is nested so deeply that Python's stack ends.
    """
    import sqlglot  # late: few commands read SQL
    from sqlglot.errors import ParseError

    # It warns of what it takes for a command that it does not know: that is Spark's to judge.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        return sqlglot.parse_one(text, dialect="databricks")
    except RecursionError:
        raise ParseError("it is nested too deeply") from None
