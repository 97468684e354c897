"""The columns of tables as SQL text: parsed, compared, and written from a table's log. Without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from volstream.errors import InvalidValueError
from volstream.sql.text import slices, tree_of
from volstream.sql.tokens import tokenize
from volstream.tables.delta.schema import Schema, definition_of


@dataclass(frozen=True)
class ColumnDefinition:
    """A column of a table.

    Attributes:
        type: its SQL type in one spelling, for comparisons.
        text: its definition as it is written.
    """

    name: str
    type: str
    text: str


def parse_columns(text: str) -> Mapping[str, ColumnDefinition]:
    """Returns columns by their names in lower case, in order.

    Raises:
        InvalidValueError: not a list of columns, or a constraint that has a key of its own.
    """
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    try:
        parsed = tree_of(f"CREATE TABLE t ({text})")
    except SqlglotError:
        raise _not_columns(text) from None
    listed = parsed.this.expressions if isinstance(parsed.this, exp.Schema) else []
    if not listed:
        raise _not_columns(text)
    tokens = tokenize(text)
    commas = [at for at, token in enumerate(tokens) if token.word == ","]
    texts = slices(text, tokens, commas, listed, _only_column)
    if texts is None:
        raise _not_columns(text)
    columns: dict[str, ColumnDefinition] = {}
    for node, definition in zip(listed, texts, strict=True):
        if isinstance(node, exp.Identifier) or (isinstance(node, exp.ColumnDef) and node.args.get("kind") is None):
            raise _not_columns(text)
        if not isinstance(node, exp.ColumnDef) or node.find(exp.PrimaryKeyColumnConstraint):
            raise InvalidValueError(
                f"The columns {text!r} have a constraint.", 'Write a primary key as primary_key = ["COLUMN"].'
            )
        if node.name.lower() in columns:
            raise InvalidValueError(f"The column {node.name!r} is declared twice.")
        columns[node.name.lower()] = ColumnDefinition(node.name, _spelled(node.args["kind"]), definition)
    return columns


def _only_column(text: str) -> Any:
    """Returns the tree of a column's definition, or None if the text is not exactly one definition."""
    from sqlglot.errors import SqlglotError

    try:
        listed = tree_of(f"CREATE TABLE t ({text})").this.expressions
    except (SqlglotError, AttributeError):
        return None
    return listed[0] if len(listed) == 1 else None


def columns_text(schema: Schema) -> str:
    """Returns the columns of a table as SQL."""
    return ", ".join(definition_of(field, schema.sql_type(field["name"])) for field in schema.fields)


def missing_columns(wanted: str, existing: str) -> Sequence[ColumnDefinition]:
    """Returns the columns that a table lacks."""
    present = parse_columns(existing)
    return [column for name, column in parse_columns(wanted).items() if name not in present]


def conflict(wanted: str, existing: str, added: Sequence[str]) -> str:
    """Returns why a table's columns cannot become those that are wanted; empty: they can.

    Args:
        added: columns, in lower case, that jobs may have added to the table.
    """
    asked, present = parse_columns(wanted), parse_columns(existing)
    for name, column in asked.items():
        if name in present and present[name].type != column.type:
            return f"the column {column.name} is {present[name].type}, not {column.type}"
        if name not in present and "NOT NULL" in column.text.upper():
            return f"the new column {column.name} cannot be NOT NULL, because existing rows have no value for it"
    for name, column in present.items():
        if name not in asked and name not in added:
            return f"the table has a column {column.name}, which the file lacks"
    return ""


def _spelled(kind: object) -> str:
    """Returns a type as Spark's log has it: text is STRING, however long it may be."""
    from sqlglot import expressions as exp

    assert isinstance(kind, exp.DataType), "a column's kind is a type"
    text = kind.sql(dialect="databricks").upper()
    return "STRING" if text.startswith(("VARCHAR", "CHAR")) else text


def _not_columns(text: str) -> InvalidValueError:
    return InvalidValueError(f"The columns {text!r} cannot be parsed.", "Write for example: id BIGINT, name STRING.")
