"""What tables and columns there are, as standard SQL asks."""

from __future__ import annotations

from tests.integration.conftest import Home


def test_tables_and_columns_are_relations(home: Home) -> None:
    home.sql("CREATE TABLE t$ (Id INT NOT NULL COMMENT 'the id', `a-b` ARRAY<STRING>, d DECIMAL(5, 2)); CREATE TABLE u$ (x DATE)")
    mine = f"table_schema = '{home.schema}'"
    assert home.rows(f"SELECT table_name, table_type FROM information_schema.tables WHERE {mine}") == [
        ("t", "BASE TABLE"),
        ("u", "BASE TABLE"),
    ]
    columns = home.sql(
        f"SELECT c.column_name, c.is_nullable, c.data_type, c.comment FROM information_schema.tables t "
        f"JOIN INFORMATION_SCHEMA.COLUMNS c USING (table_schema, table_name) WHERE {mine} AND table_name = 't' "
        "ORDER BY ordinal_position"
    )
    assert [tuple(row.values()) for row in columns] == [
        ("Id", "NO", "INT", "the id"),
        ("a-b", "YES", "ARRAY<STRING>", None),
        ("d", "YES", "DECIMAL(5,2)", None),
    ]
