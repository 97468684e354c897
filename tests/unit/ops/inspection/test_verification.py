"""What ``verify`` found, in words."""

from __future__ import annotations

from volstream.jobs.proof.verify import Problem, Verification
from volstream.ops.inspection.tables import lines


def test_sets_are_counted_as_sets() -> None:
    found = Verification(files=2, rows=3, wrong={Problem.MISSING: 1}, examples=[("a", Problem.MISSING)], unit="set")
    assert lines("j", found)[0] == "2 sets compared with a table of 3 rows: 1 missing."
    assert found.text == "1 set: 1 missing"
