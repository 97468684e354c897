"""Locations that cannot have tables, and tables that are read again and again."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from volstream.errors import DependencyError, InvalidValueError
from volstream.tables.delta import places
from volstream.tables.delta.copying import copy_files, copy_folder
from volstream.tables.delta.datafile import FinishedFile
from volstream.tables.delta.opened import OpenTable
from volstream.tables.delta.places import files, filesystem_of, held_table, make_folder, remove_file, replace_file


def newest(location: str) -> OpenTable:
    table = OpenTable.newest(location)
    assert table is not None
    return table


@pytest.mark.parametrize("location", ["foo://bucket/prefix", "file://host/folder", "http://host/folder", "no/path"])
def test_what_is_no_place_for_tables_is_refused_in_a_sentence(location: str) -> None:
    with pytest.raises(InvalidValueError, match="is not a valid location for tables"):
        filesystem_of(location)


def test_a_folder_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DependencyError, match=r"cannot be created: .* Correct the setting `warehouse`"):
        make_folder(str(tmp_path / "file" / "warehouse"))


def test_a_file_below_a_file_does_not_exist() -> None:
    assert places.content("/dev/null/warehouse/links.json") == b""


def test_a_small_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("of somebody else")
    (tmp_path / "state.json.new").symlink_to(other)
    replace_file(f"{tmp_path}/state.json", b"{}")
    assert (tmp_path / "state.json").read_bytes() == b"{}"
    assert not (tmp_path / "state.json").is_symlink()
    assert other.read_text() == "of somebody else"


def test_links_and_pipes_are_not_copied(tmp_path: Path) -> None:
    (tmp_path / "from" / "part").mkdir(parents=True)
    (tmp_path / "from" / "part" / "own.txt").touch()
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("secret")
    (tmp_path / "from" / "key").symlink_to(tmp_path / "secrets" / "key")
    (tmp_path / "from" / "keys").symlink_to(tmp_path / "secrets")
    os.mkfifo(tmp_path / "from" / "part" / "pipe")
    copy_folder(f"{tmp_path}/from", f"{tmp_path}/to")
    assert [path.relative_to(tmp_path / "to").as_posix() for path in (tmp_path / "to").rglob("*") if path.is_file()] == [
        "part/own.txt"
    ]


def test_what_became_a_link_since_it_was_listed_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("secret")
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "own").touch()
    (tmp_path / "from" / "key").symlink_to(tmp_path / "secrets" / "key")
    (tmp_path / "from" / "part").symlink_to(tmp_path / "secrets")
    os.mkfifo(tmp_path / "from" / "pipe")
    left = copy_files(f"{tmp_path}/from", ["key", "own", "part/key", "pipe"], f"{tmp_path}/to")
    assert left == ["key", "part/key", "pipe"]
    assert [path.name for path in (tmp_path / "to").rglob("*") if path.is_file()] == ["own"]


def test_a_folder_in_a_location_is_copied_unless_a_link_leads_to_it(tmp_path: Path) -> None:
    for folder in ("disk/_plans/own", "secrets"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").touch()
    (tmp_path / "warehouse").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "_plans" / "link").symlink_to(tmp_path / "secrets")
    for name in ("own", "link"):
        copy_folder(f"{tmp_path}/warehouse", f"{tmp_path}/to", f"_plans/{name}")
    assert [path.relative_to(tmp_path / "to").as_posix() for path in (tmp_path / "to").rglob("file")] == ["_plans/own/file"]


def test_a_staged_file_that_became_a_link_is_not_put_into_a_table(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    os.utime(secret, (0, 0))
    for folder in ("staged", "table"):
        (tmp_path / folder).mkdir()
    (tmp_path / "staged" / "a.parquet").symlink_to(secret)
    with pytest.raises(FileNotFoundError):
        FinishedFile(f"{tmp_path}/staged", "a.parquet", 1, "{}").put(f"{tmp_path}/table")
    assert not list((tmp_path / "table").iterdir())
    assert secret.stat().st_mtime == 0


def test_files_are_listed_and_removed_in_the_folder_that_was_opened(tmp_path: Path) -> None:
    table, location = tmp_path / "t", str(tmp_path / "t")
    write_deltalake(location, pa.table({"n": [1]}))
    (table / "part").mkdir()
    (tmp_path / "documents").mkdir()
    for folder in (table, table / "part", tmp_path / "documents"):
        (folder / "a.parquet").touch()
    with held_table(location, 0) as held:
        table.rename(tmp_path / "old")
        table.symlink_to(tmp_path / "documents")
        (tmp_path / "old" / "part").rename(tmp_path / "part")
        (tmp_path / "old" / "part").symlink_to(tmp_path / "documents")
        listed = [file.path for file in files(location, recursive=True, descriptor=held) if file.path.endswith("a.parquet")]
        for path in ("a.parquet", "part/a.parquet"):
            remove_file(location, path, held)
    assert listed == ["a.parquet"]
    assert not (tmp_path / "old" / "a.parquet").exists()
    assert (tmp_path / "documents" / "a.parquet").exists()
    with pytest.raises(FileNotFoundError), held_table(location, 0):  # no table is there
        pass


def test_new_folders_are_a_groups_only_below_a_folder_that_is(tmp_path: Path) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    for folder, mode in ((own, 0o777), (shared, 0o2770)):
        folder.mkdir()
        folder.chmod(mode)
        make_folder(str(folder / "a" / "b"))
    assert [(own / name).stat().st_mode & 0o2020 for name in ("a", "a/b")] == [0, 0]
    assert [(shared / name).stat().st_mode & 0o2070 for name in ("a", "a/b")] == [0o2070, 0o2070]


def test_readers_share_a_table_until_its_log_changes(tmp_path: Path) -> None:
    location = str(tmp_path / "t")
    rows = pa.table({"n": [1]})
    write_deltalake(location, rows)
    first = newest(location)
    assert newest(location) is first
    for version in range(1, 40):  # many within one tick of the file system's clock
        write_deltalake(location, rows, mode="append")
        assert newest(location).version == version
    shutil.rmtree(location)
    assert OpenTable.newest(location) is None
    write_deltalake(location, rows)
    again = newest(location)
    assert (again.version, again.id) != (first.version, first.id)
    again.handle.create_checkpoint()
    assert newest(location) is not again  # what that one would read later may be deleted now
    assert first.version == 0


def test_a_log_that_was_rewritten_is_read_again(tmp_path: Path) -> None:
    location = str(tmp_path / "t")
    for _ in range(3):
        write_deltalake(location, pa.table({"n": [1]}), mode="append")
    assert newest(location).version == 2
    last = tmp_path / "t" / "_delta_log" / f"{2:020d}.json"
    last.unlink()
    assert newest(location).version == 1
    other = last.with_name(f"{1:020d}.json")
    other.write_text(other.read_text().replace("part-", "prat-"))
    assert all("prat-" in path for path in newest(location).paths[:1])


def test_a_link_that_leads_elsewhere_leads_to_another_table(tmp_path: Path) -> None:
    link, old = tmp_path / "link", tmp_path / "old"
    link.symlink_to(old)
    write_deltalake(str(old / "t"), pa.table({"n": [1]}))
    assert newest(str(link / "t")).version == 0
    old.rename(tmp_path / "new")  # the same log, with the same times
    link.unlink()
    link.symlink_to(tmp_path / "new")
    assert "new" in newest(str(link / "t")).handle.file_uris()[0]


@pytest.mark.parametrize("scheme", ["gs", "oss"])
def test_tables_are_refused_where_no_store_keeps_them(scheme: str) -> None:
    with pytest.raises(InvalidValueError, match=f"Tables cannot be kept in {scheme}://"):
        filesystem_of(f"{scheme}://bucket/warehouse")


def test_an_entry_that_a_listing_of_the_log_missed_is_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = str(tmp_path / "t")
    for number in range(4):
        write_deltalake(location, pa.table({"n": [number]}), mode="append")
    entry, away = (tmp_path / "t" / "_delta_log" / f"{2:020d}.json", tmp_path / "away")
    entry.rename(away)
    later = threading.Timer(0.1, away.rename, [entry])
    later.start()
    assert newest(location).version == 3
    later.join()
    entry.unlink()
    monkeypatch.setattr(places, "_LISTINGS", 2)
    with pytest.raises(DependencyError, match="found gap"):
        OpenTable.at(location, 3)
