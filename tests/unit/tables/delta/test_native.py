"""Tables written without a JVM: what readers of the same process see of them."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from volstream.errors import FencedError
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


@pytest.mark.parametrize("failing", ["make_durable", "_view", "another process"])
def test_a_writer_goes_on_after_a_commit_whose_end_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    table = NativeTable(spec_at(tmp_path / "t"))
    append(table, 1)
    view, file = table.open(), table.new_file()
    file.write(pa.table({"n": [2]}, schema=table.spec.schema))
    added = file.close()

    def fail(*given: object, **_: object) -> None:
        if "folders" not in _:  # once the commit is in the log
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        if failing == "another process":  # another process was first
            append(NativeTable(table.spec), 7)
        else:
            patched.setattr(native, failing, fail)
        with pytest.raises((OSError, FencedError)):
            table.commit(view, {"app": 2}, added=[added])
    last = 7 if failing == "another process" else 2
    view = table.open()
    assert (view.rows, view.transactions, table.transaction("app")) == (2, {"app": last}, last)
    append(table, 8)
    assert (table.open().rows, table.transaction("app")) == (3, 8)
