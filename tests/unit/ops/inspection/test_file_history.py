"""Detecting moved files from the changes of their paths."""

from __future__ import annotations

from typing import Any

from volstream.ops.inspection.file_history import moved

Changes = dict[str, list[dict[str, Any]]]


def changes(**paths: list[tuple[int, str | None, str | None]]) -> Changes:
    """(refresh, etag before, etag after) of each change of a path."""
    kinds = {(True, False): "insert", (False, True): "delete", (False, False): "update"}
    return {
        path: [
            {
                "refresh_id": number,
                "change": kinds[old is None, new is None],
                "etag": new or old,
                "size": 1,
                "old_etag": old,
                "old_size": 1,
            }
            for number, old, new in made
        ]
        for path, made in paths.items()
    }


def test_a_removed_and_an_added_file_with_the_same_content_are_a_move() -> None:
    history = changes(a=[(1, None, "x"), (3, "x", None)], b=[(4, None, "x")])
    assert moved(history, "a", 1, 4) == {"moved_to": "b"}
    assert moved(history, "b", 1, 4) == {"moved_from": "a"}
    assert moved(history, "b", 3, 4) == {}, "the range begins after a was gone"


def test_a_third_file_with_the_same_content_makes_it_ambiguous() -> None:
    history = changes(a=[(2, "x", None)], b=[(2, None, "x")], c=[(2, None, "x")])
    assert moved(history, "a", 1, 2) == {}


def test_only_the_content_before_and_after_the_range_counts() -> None:
    history = changes(a=[(2, "x", "y"), (3, "y", None)], b=[(3, None, "y"), (4, "y", "x")], c=[(3, None, "y"), (4, "y", None)])
    assert moved(history, "a", 1, 4) == {"moved_to": "b"}
    assert moved(history, "c", 1, 4) == {}
