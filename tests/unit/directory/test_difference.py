from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from volstream.directory import table
from volstream.directory.confirm import Confirm, Since
from volstream.directory.difference import compare
from volstream.model.files import FileInfo
from volstream.storage.memory import MemoryStore

TIME = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore("memory://difference")
    store.create()
    yield store
    store.drop()


def info(path: str, etag: str = "e", size: int = 1, version_id: str | None = None) -> FileInfo:
    return FileInfo(path, size, TIME, etag, version_id, "text/plain")


def difference(store: MemoryStore, listed: list[FileInfo], known: list[FileInfo]) -> dict[str, str]:
    found: pa.Table = compare(table.rows(listed, store.url), table.rows(known, store.url), Confirm(store))
    return {row["relative_path"]: row["action"] for row in found.to_pylist()}


def test_new_changed_and_missing_files_differ_and_others_do_not(store: MemoryStore) -> None:
    listed = [info("same"), info("new"), info("larger", size=2), info("other", etag="f")]
    known = [info("same"), info("larger"), info("other"), info("gone")]
    assert difference(store, listed, known) == {
        "new": "insert", "larger": "update", "other": "update", "gone": "delete",
    }  # fmt: skip


def test_a_version_that_appears_or_changes_is_an_update(store: MemoryStore) -> None:
    known = [info("a"), info("b", version_id="1"), info("c", version_id="1"), info("d")]
    listed = [info("a", version_id="1"), info("b"), info("c", version_id="2"), info("d")]
    assert difference(store, listed, known) == {"a": "update", "b": "update", "c": "update"}


def test_a_file_that_the_listing_lacks_but_the_store_has_stays(store: MemoryStore) -> None:
    store.put("there", b"x")
    assert difference(store, [], [info("there"), info("gone")]) == {"gone": "delete"}


def test_nothing_differs_from_nothing(store: MemoryStore) -> None:
    assert difference(store, [], []) == {}
    assert difference(store, [info("a")], [info("a")]) == {}


def test_a_new_row_is_the_listing_s_and_a_deleted_one_the_table_s(store: MemoryStore) -> None:
    listed, known = [info("a", etag="new", size=7)], [info("a", etag="old"), info("b", etag="last")]
    found = compare(table.rows(listed, store.url), table.rows(known, store.url), Confirm(store)).sort_by(
        "relative_path"
    )
    assert found["etag"].to_pylist() == ["new", "last"]
    assert found["size"].to_pylist() == [7, 1]
    assert found["url"].to_pylist() == [store.url("a"), store.url("b")]


def test_what_was_seen_since_the_listing_began_is_dropped_from_its_findings(store: MemoryStore) -> None:
    """A file that is deleted during a long listing, and whose event is folded meanwhile, does not come back."""
    listed = [info("deleted meanwhile"), info("b/listed again"), info("new")]
    known = [info("made meanwhile"), info("gone")]
    since = Since(frozenset({"deleted meanwhile", "made meanwhile"}), ("b/",))
    found = compare(table.rows(listed, store.url), table.rows(known, store.url), Confirm(store, since))
    assert {row["relative_path"]: row["action"] for row in found.to_pylist()} == {"new": "insert", "gone": "delete"}


def test_where_it_is_not_known_what_was_seen_every_finding_is_looked_at(store: MemoryStore) -> None:
    there, other = store.put("there", b"x"), store.put("written again", b"x")
    listed = [there, info("written again", etag="older"), info("deleted since")]
    found = compare(
        table.rows(listed, store.url), table.rows([info("gone")], store.url), Confirm(store, Since(unknown=True))
    )
    assert {row["relative_path"]: row["action"] for row in found.to_pylist()} == {"there": "insert", "gone": "delete"}
    assert other.etag != "older"
