"""Which files were moved, by the changes of their paths."""

from __future__ import annotations

from typing import Any

from volstream.story import moved

Changes = dict[str, list[dict[str, Any]]]


def changes(**paths: list[tuple[int, str, str]]) -> Changes:
    """(version, kind, etag) of each path."""
    return {
        path: [
            {"_commit_version": version, "_change_type": kind, "etag": etag, "size": 1} for version, kind, etag in made
        ]
        for path, made in paths.items()
    }


def test_one_that_went_and_one_that_came_with_its_content_are_a_move() -> None:
    history = changes(a=[(1, "insert", "x"), (3, "delete", "x")], b=[(4, "insert", "x")])
    assert moved(history, "a", 1, 4) == {"moved_to": "b"}
    assert moved(history, "b", 1, 4) == {"moved_from": "a"}
    assert moved(history, "b", 3, 4) == {}, "the range begins after a was gone"


def test_a_third_of_the_same_content_leaves_it_open() -> None:
    history = changes(a=[(2, "delete", "x")], b=[(2, "insert", "x")], c=[(2, "insert", "x")])
    assert moved(history, "a", 1, 2) == {}


def test_what_counts_is_the_content_before_and_after_the_range() -> None:
    history = changes(
        a=[(2, "update_preimage", "x"), (2, "update_postimage", "y"), (3, "delete", "y")],
        b=[(3, "insert", "y"), (4, "update_preimage", "y"), (4, "update_postimage", "x")],
        c=[(3, "insert", "y"), (4, "delete", "y")],
    )
    assert moved(history, "a", 1, 4) == {"moved_to": "b"}
    assert moved(history, "c", 1, 4) == {}
