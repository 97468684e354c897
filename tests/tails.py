"""Tables with tails, without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, Schema

from volstream.spark.session import SparkGateway
from volstream.tables.delta import direct
from volstream.tables.delta.places import open_table
from volstream.tables.delta.schema import PRIMARY_KEY
from volstream.tables.tails.tail import DELETE, TailedTable

#: Where a writer or a committer can be killed.
POINTS = ("tail.written", "tail.appended", "tail.planned", "tail.moved", "tail.trimmed")

COLUMNS = pa.schema([pa.field("id", pa.string(), nullable=False), ("n", pa.int64())])


def create(folder: Path, key: Sequence[str] = (), columns: pa.Schema = COLUMNS) -> str:
    """A table ``t`` in a folder, which can be committed without Spark. Its location."""
    location = str(folder / "t")
    properties = {PRIMARY_KEY: json.dumps(list(key))} if key else {}
    assert direct.create(location, columns, properties)
    return location


def create_partitioned(folder: Path, key: Sequence[str] = (), *, nullable: bool = False) -> str:
    """A table ``t`` of a number and a text by which it is partitioned. Its location."""
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("day", pa.string(), nullable=nullable)])
    properties = {PRIMARY_KEY: json.dumps(list(key))} if key else {}
    schema = Schema.from_arrow(columns)
    DeltaTable.create(folder / "t", schema, partition_by=["day"], configuration=properties, raise_if_key_not_exists=False)
    return str(folder / "t")


def no_spark() -> SparkGateway:
    """For moves that need no Spark."""
    raise AssertionError("Spark is not needed")


def committed(location: str) -> list[dict[str, Any]]:
    """The rows of the table itself."""
    opened = open_table(location)
    order = ", ".join(name for name in ("id", "n") if name in opened.schema().to_arrow().names)
    found = QueryBuilder().register("t", opened).execute(f"SELECT * FROM t ORDER BY {order}")
    rows: list[dict[str, Any]] = pa.table(found.read_all()).to_pylist()
    return rows


def everything(location: str) -> list[dict[str, Any]]:
    """The rows of the table with those of its tail, by the rules of the query for Spark."""
    found = TailedTable.open(location)
    rows = committed(location)
    if found is None:
        return rows
    newest = {tuple(row[name] for name in found.key): row for row in rows} if found.key else {}
    for row in found.tail.rows(found.moved, found.tail.newest).to_pylist():
        operation = row["__operation"]
        plain = {name: row.get(name) for name in found.columns}
        if not found.key:
            rows.append(plain)
        elif operation == DELETE:
            newest.pop(tuple(row[name] for name in found.key), None)
        else:
            newest[tuple(row[name] for name in found.key)] = plain
    return sorted(newest.values() if found.key else rows, key=lambda row: (row["id"], row.get("n") or 0))
