"""Tables written without a JVM: what readers of the same process see of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa

from volstream.tables.delta import native
from volstream.tables.delta.native import NativeTable, TableSpec
from volstream.tables.delta.places import SeenVersion


def spec_at(path: Path) -> TableSpec:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    return TableSpec(str(path), schema, ("n",), ("app",))


def append(table: NativeTable, number: int) -> None:
    view, file = table.open(), table.new_file()
    file.write(pa.table({"n": [number]}, schema=table.spec.schema))
    table.commit(view, {"app": number}, added=[file.close()])


def test_readers_share_a_view_until_anybody_commits_or_makes_the_table_again(tmp_path: Path) -> None:
    spec = spec_at(tmp_path / "t")
    assert spec.view() is None
    mine = NativeTable(spec)
    append(mine, 1)
    first = spec.view()
    assert first is not None
    assert spec.view() is first
    assert (first.version, first.rows, first.transactions) == (1, 1, {"app": 1})
    native._viewed.clear()  # as in another process, whose commits this one does not see being made
    other = NativeTable(spec)
    append(other, 2)
    native._viewed[spec.location] = (first, SeenVersion.of(spec.location, 1))
    second = spec.view()
    assert second is not None
    assert (second.version, second.rows, second.transactions) == (2, 2, {"app": 2})
    append(mine, 3)
    third = spec.view()
    assert third is not None
    assert (third.version, third.rows) == (3, 3)
    shutil.rmtree(tmp_path / "t")
    assert spec.view() is None
    append(NativeTable(spec), 1)
    again = spec.view()
    assert again is not None
    assert (again.version, again.rows) == (1, 1)
    assert again.table_id != first.table_id
