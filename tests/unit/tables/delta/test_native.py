"""Tables written without a JVM: what readers of the same process see of them, and who is fenced off."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from volstream.errors import DependencyError, FencedError
from volstream.tables.delta import native, opened, places
from volstream.tables.delta.native import NativeTable, TableSpec
from volstream.tables.delta.opened import Seen


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
    native._views.clear()  # as in another process, whose commits this one does not see being made
    other = NativeTable(spec)
    append(other, 2)
    native._views[spec.location] = (first, Seen.of(spec.location, 1))
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


@pytest.mark.parametrize("failing", ["make_durable", "_advance", "another process"])
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
            patched.setattr(places if failing == "make_durable" else NativeTable, failing, fail)
        with pytest.raises((DependencyError, FencedError)):
            table.commit(view, {"app": 2}, added=[added])
    last = 7 if failing == "another process" else 2
    view = table.open()
    assert (view.rows, view.transactions, table.transaction("app")) == (2, {"app": last}, last)
    append(table, 8)
    assert (table.open().rows, table.transaction("app")) == (3, 8)


def test_of_two_writers_of_one_transaction_the_second_is_fenced_off_and_keeps_nothing(tmp_path: Path) -> None:
    one, other = NativeTable(spec_at(tmp_path / "t")), NativeTable(spec_at(tmp_path / "t"))
    append(one, 1)
    view, file = other.open(), other.new_file()
    file.write(pa.table({"n": [2]}, schema=other.spec.schema))
    append(one, 3)
    with pytest.raises(FencedError):
        other.commit(view, {"app": 2}, added=[file.close()])
    assert (one.open().rows, one.open().transactions) == (2, {"app": 3})
    other.commit(other.open(), {"app": 4})
    assert one.open().transactions == {"app": 4}


@pytest.mark.parametrize("seed", range(3))
def test_commits_are_put_on_top_of_others_unless_they_share_a_transaction_or_a_file(seed: int, tmp_path: Path) -> None:
    """Two writers of a table, against a model of who was first; and what each goes on with against the log, opened anew."""
    pick = random.Random(seed)
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    spec = TableSpec(str(tmp_path / "t"), schema, ("n",), ("a", "b", "c"), evolves=True)
    writers = [NativeTable(spec), NativeTable(spec)]
    views = [writer.open() for writer in writers]
    history: list[tuple[set[str], set[str], bool]] = []  # transactions, removed files, new columns; by version
    rows = 0
    for number in range(1, 40):
        at = pick.randrange(2)
        writer = writers[at]
        if pick.random() < 0.5:
            views[at] = writer.open()
        view = views[at]
        ids = pick.sample("abc", pick.randint(1, 2))
        removed = pick.sample(view.files, min(len(view.files), pick.choice([0, 0, 1])))
        widens = pick.random() < 0.05
        since = history[view.version :]
        gone = {file.path for file in removed}
        clash = any(made & {*ids} or lost & gone or new for made, lost, new in since)
        current = writer._view is not None and writer._view.version == view.version  # else its caller looks again first
        try:
            if widens:
                writer.add_columns(view, pa.schema([pa.field(f"c{number}", pa.string())]), dict.fromkeys(ids, number))
            else:
                file = writer.new_file()
                columns = {field.name: [number] if field.name == "n" else [None] for field in writer.spec.schema}
                file.write(pa.table(columns, schema=writer.spec.schema))
                writer.commit(view, dict.fromkeys(ids, number), added=[file.close()], removed=removed)
        except FencedError:
            assert clash or not current, (seed, number)
        else:
            assert not clash, (seed, number)
            history.append(({*ids}, gone, widens))
            rows += (not widens) - len(gone if not widens else ())
        views[at] = writer.open()
        opened._opened.clear()
        native._views.clear()
        fresh = spec.view()
        assert fresh is not None
        assert sorted(file.path for file in views[at].files) == sorted(file.path for file in fresh.files), (seed, number)
        assert (views[at].version, views[at].rows, views[at].transactions) == (len(history), rows, fresh.transactions)
        assert sorted(views[at].files, key=lambda file: file.path) == sorted(fresh.files, key=lambda file: file.path)
        assert views[at].spec.schema == fresh.spec.schema


def test_a_view_stays_while_the_log_is_cleaned_up_before_it(tmp_path: Path) -> None:
    table = NativeTable(spec_at(tmp_path / "t"))
    append(table, 1)
    append(table, 2)
    view = table.open()
    (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").unlink()
    assert table.open() is view
    append(table, 3)
    assert (table.open().rows, table.transaction("app")) == (3, 3)


def test_a_commit_says_what_its_writer_adds_and_whether_rows_only_move(tmp_path: Path) -> None:
    table = NativeTable(spec_at(tmp_path / "t"))
    append(table, 1)
    view = table.open()
    table.commit(
        view, {"app": 2}, added=[table.merged(view, view.files, ["n"])], removed=view.files, changes_data=False, metadata={"a": 1}
    )
    lines = (tmp_path / "t" / "_delta_log" / f"{2:020d}.json").read_text().splitlines()
    actions = [(kind, fields) for line in lines for kind, fields in json.loads(line).items()]
    assert [kind for kind, _ in actions] == ["commitInfo", "txn", "add", "remove"]
    assert actions[0][1]["a"] == 1
    assert [fields["dataChange"] for kind, fields in actions if kind in ("add", "remove")] == [False, False]
    with pytest.raises(FencedError):
        table.commit(view, {"app": 3})  # the caller has not looked since


def test_only_a_table_that_evolves_gets_other_columns(tmp_path: Path) -> None:
    wide = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("more", pa.string())])
    fixed = spec_at(tmp_path / "t")
    NativeTable(TableSpec(str(tmp_path / "t"), wide, ("n",), ("app",))).open()
    evolving = TableSpec(fixed.location, fixed.schema, ("n",), ("app",), evolves=True)
    for spec, names in ((fixed, ["n"]), (evolving, ["n", "more"])):
        view = spec.view()
        assert view is not None
        assert view.spec.schema.names == names


def test_a_link_that_is_led_to_another_table_leads_writers_and_readers_there(tmp_path: Path) -> None:
    """Also where the process knows the first table by its path."""
    one, other, link = tmp_path / "one", tmp_path / "other", tmp_path / "link"
    for number in (1, 2, 3):
        append(NativeTable(spec_at(one)), number)
    append(NativeTable(spec_at(other)), 7)
    link.symlink_to(one)
    assert opened.newest_version(str(one)) == 3
    through = NativeTable(spec_at(link))
    assert through.open().version == 3
    link.unlink()
    link.symlink_to(other)
    view = spec_at(link).view()
    assert view is not None
    assert (through.open().version, view.version, opened.newest_version(str(link))) == (1, 1, 1)
    append(through, 8)
    assert (opened.newest_version(str(other)), opened.newest_version(str(one))) == (2, 3)


def test_a_sweep_deletes_nothing_that_a_link_leads_to(tmp_path: Path) -> None:
    table = NativeTable(spec_at(tmp_path / "t"))
    append(table, 1)
    (tmp_path / "documents" / "letters").mkdir(parents=True)
    letter, left = tmp_path / "documents" / "letters" / "letter.txt", tmp_path / "t" / "part-left.parquet"
    for path in (letter, left):
        path.touch()
        os.utime(path, (0, 0))
    (tmp_path / "t" / "link").symlink_to(tmp_path / "documents")
    table.sweep()
    assert letter.exists()
    assert not left.exists()
