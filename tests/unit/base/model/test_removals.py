"""When removals need confirmation."""

from __future__ import annotations

import pytest

from volstream.base.model.work import RemovalLimit
from volstream.errors import InvalidValueError


@pytest.mark.parametrize(
    ("text", "removed", "of", "held"),
    [
        (None, 50, 100, False),
        (None, 51, 100, True),
        (None, 9, 10, False),
        (None, 10, 10, True),
        (None, 9, 9, False),
        ("20%", 21, 100, True),
        ("100%", 100, 100, False),
        ("5", 6, 1000, True),
        ("5", 5, 5, False),
        ("50%,5", 6, 1000, True),
        ("50%, 1000", 60, 100, True),
        ("all", 1000, 1000, False),
        ("0", 1, 5, True),
    ],
)
def test_removals_are_held_by_share_by_count_or_when_everything_goes(text: str | None, removed: int, of: int, held: bool) -> None:
    assert RemovalLimit.parse(text).holds(removed, of) is held


@pytest.mark.parametrize(
    ("text", "removed", "held"), [(None, 6, True), (None, 5, False), ("80%", 8, False), ("80%", 9, True), ("all", 10, False)]
)
def test_the_share_holds_at_any_size_in_another_directory(text: str | None, removed: int, held: bool) -> None:
    assert RemovalLimit.parse(text).holds(removed, 10, replaced=True) is held


@pytest.mark.parametrize("text", ["", "101%", "-1", "half", "1 2", "%"])
def test_invalid_limits_are_rejected(text: str) -> None:
    with pytest.raises(InvalidValueError, match="limit for removed files"):
        RemovalLimit.parse(text)
