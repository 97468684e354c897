"""Failures with one cause are one group, whatever file, number or address their messages name."""

from __future__ import annotations

from tests import objects
from volstream.catalog.failures import BriefFailure
from volstream.ops.inspection.details import group_id, grouped


def failure(number: int, message: str, kind: str = "raised", state: str = "retrying") -> BriefFailure:
    return BriefFailure(number, f"f{number}", state, kind, message, objects.NOW, "job")


def test_what_varies_between_files_does_not_make_a_group() -> None:
    one = "ValueError: 'a/b.png' has 17 rows at 0x7f00, see /tmp/x1"
    other = "ValueError: 'c.png' has 3.5 rows at 0x1a, see /var/y\nand more"
    assert group_id("raised", one) == group_id("raised", other)
    assert group_id("raised", one) != group_id("timed-out", one)
    assert group_id("raised", one) != group_id("raised", one.replace("rows", "lines"))


def test_the_largest_group_comes_first_with_its_newest_failure() -> None:
    groups = grouped([failure(4, "other"), failure(3, "bad 3"), failure(2, "bad 2", state="skipped"), failure(1, "bad 1")])
    assert [(group.why, list(group.ids), group.states) for group in groups] == [
        ("bad 3 (for example)", [3, 2, 1], {"retrying": 2, "skipped": 1}),
        ("other", [4], {"retrying": 1}),
    ]
