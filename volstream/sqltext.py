"""Pieces of SQL text: names and values that statements are made of. Pure.

Nothing else puts a path, a key or a user's text into a statement.
"""

from __future__ import annotations

from collections.abc import Iterable


def table_at(location: str) -> str:
    """The SQL name of the Delta table at a path."""
    return f"delta.`{location.replace('`', '``')}`"


def parquet_at(location: str) -> str:
    """The SQL name of Parquet files at a path."""
    return f"parquet.`{location.replace('`', '``')}`"


def literal(text: str) -> str:
    """A SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def one_of(column: str, texts: Iterable[str]) -> str:
    """SQL: that a column's value is one of some."""
    return f"{column} IN ({', '.join(map(literal, texts))})"
