"""Looking around in a directory: the pages together are the directory, whatever the page size is."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import pytest

from volstream.base.model.hints import KeyHint
from volstream.changes.directory import browse
from volstream.changes.directory.browse import DirectoryPage, Entry
from volstream.changes.directory.snapshot import Snapshot

if TYPE_CHECKING:
    from tests.integration.changes.directory.conftest import Keeping

PATHS = [
    *(f"{folder}/{number:03}.txt" for folder in ("a", "a/b", "a/b/c", "a-", "a.b", "a0", "ü") for number in range(7)),
    "a.txt",
    "aa",
    "z",
    "A",
    "🐘/x",
]


@pytest.fixture
def snapshot(kept: Keeping) -> Snapshot:
    """Half of the files in the base; some of these gone, and the others new, in the tail."""
    chosen = random.Random(1)
    early = [path for path in PATHS if chosen.random() < 0.6]
    for path in [*early, "a/gone/1", "gone"]:
        kept.put(path)
    kept.keeper().reconcile()
    late = [path for path in PATHS if path not in early]
    for path in late:
        kept.put(path)
    for path in ("a/gone/1", "gone"):
        kept.delete(path)
    kept.take(*(KeyHint(path) for path in [*late, "a/gone/1", "gone"]))
    found = kept.snapshot()
    assert found.uncompacted, "the tail has rows that the base lacks"
    return found


def all_of(ask: Callable[[str | None], DirectoryPage]) -> list[Entry]:
    """The entries of all pages."""
    found: list[Entry] = []
    after: str | None = None
    while True:
        part = ask(after)
        found += part.entries
        if part.next is None:
            return found
        assert after is None or part.next > after, "each page goes on"
        after = part.next


def expected(prefix: str) -> list[str]:
    """Files and folders, as the paths alone tell."""
    start = len(prefix.rpartition("/")[0]) + 1 if "/" in prefix else 0
    inside = sorted(path for path in PATHS if path.startswith(prefix))
    return list(dict.fromkeys(path[:start] + "".join(path[start:].partition("/")[:2]) for path in inside))


def test_a_folder_has_its_files_and_folders_once_in_order(snapshot: Snapshot) -> None:
    for prefix, maximum in product(("", "a/", "a/b/", "a/b/c/", "a", "a/0", "ü/", "none", "🐘/"), (1, 2, 5, 100)):
        found = all_of(partial(browse.children, snapshot, prefix, maximum=maximum))
        assert [entry.path for entry in found] == expected(prefix)
        for entry in found:
            assert entry.is_folder == entry.path.endswith("/")
            assert entry.is_folder or entry.size == 1
            assert "/" not in entry.name


def test_a_range_has_its_files(snapshot: Snapshot) -> None:
    ranges = [(None, None), ("a/b/000.txt", "a0/003.txt"), ("a", "b"), ("zz", None), (None, "A")]
    for (after, until), maximum in product(ranges, (1, 3, 100)):

        def page(at: str | None, after: str | None = after, until: str | None = until, maximum: int = maximum) -> DirectoryPage:
            return browse.between(snapshot, at or after, until, maximum)

        assert [entry.path for entry in all_of(page)] == [
            path for path in sorted(PATHS) if (after is None or path > after) and (until is None or path <= until)
        ]


def test_a_range_at_an_earlier_refresh_has_what_was_there(snapshot: Snapshot) -> None:
    found = all_of(lambda at: browse.between(snapshot, at, None, 4, refresh=1))
    assert {entry.path for entry in found} - {*PATHS} == {"a/gone/1", "gone"}


def test_a_search_finds_parts_of_paths(snapshot: Snapshot) -> None:
    for text, maximum, looked in product(("003", "B/C", "ü/", "a", "gone", "%"), (1, 4, 100), (1, 10, 1000)):
        found = all_of(partial(browse.search, snapshot, text, maximum=maximum, rows=looked))
        assert [entry.path for entry in found] == [path for path in sorted(PATHS) if text.lower() in path.lower()]
