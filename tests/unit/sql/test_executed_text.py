"""What is executed is the user's text: sqlglot writes a tree in other words, which may mean something else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import volstream
from volstream.api.pipelines.columns import parse_columns

#: Where sqlglot may write a tree: a type or a constraint, to compare it or to name it in an error.
_LOOKED_AT = {("api/pipelines/columns.py", "_spelled"), ("functions/schema.py", "_not_kept"), ("functions/schema.py", "_type_of")}


def test_sqlglot_writes_only_what_is_looked_at() -> None:
    root, found = Path(volstream.__file__).parent, set[tuple[str, str]]()
    for path in root.rglob("*.py"):
        text = path.read_text()
        for function in ast.walk(ast.parse(text)) if "dialect=" in text or "pretty=" in text or "sqlglot" in text else ():
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                found |= {(str(path.relative_to(root)), function.name) for call in ast.walk(function) if _writes(call)}
    assert found == _LOOKED_AT


def _writes(node: ast.AST) -> bool:
    """True for calls that write SQL: ``tree.sql(dialect=...)``, ``generate``, ``transpile``, and the like."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    named = {keyword.arg for keyword in node.keywords}
    return (name == "sql" and bool(named & {"dialect", "pretty"})) or name in ("transpile", "generate", "Generator")


@pytest.mark.parametrize(
    "definition",
    [
        "a INT",
        "`a b` ARRAY<STRUCT<x: INT, y: MAP<STRING, DECIMAL(10, 2)>>> NOT NULL",
        "at TIMESTAMP DEFAULT date_trunc('DAY', current_timestamp(), 1) COMMENT 'a, b'",
        "days INT GENERATED ALWAYS AS (datediff(b, a)) -- , no INT",
    ],
)
def test_a_columns_definition_is_as_it_was_written(definition: str) -> None:
    columns = parse_columns(f"first INT, {definition}\n, last STRING")
    assert [column.text for column in columns.values()] == ["first INT", definition.partition(" --")[0], "last STRING"]
