"""``--expect``: a file whose rows break it fails and keeps its earlier rows; ``--expect-warn`` counts it."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Place
from volstream.base.definitions import FileJob
from volstream.base.model.work import FailureKind
from volstream.errors import InvalidValueError

CODE = """
def f(file):
    return [{"n": int(line), "t": line * 9} for line in file.read_text().split()]
"""


def put(place: Place, **files: str) -> None:
    for path, text in files.items():
        place.put(path, text)
    place.refresh()


def failures(place: Place) -> dict[str, tuple[FailureKind, str]]:
    return {one.path: (one.kind, one.message) for one in place.session.jobs.failures("j")}


@pytest.mark.parametrize("many", [pytest.param(False, id="few rows"), pytest.param(True, id="many rows", marks=pytest.mark.long)])
def test_a_file_whose_rows_break_an_expectation_fails_and_keeps_its_rows(place: Place, many: bool) -> None:
    more = " 1" * 100_000 if many else ""
    put(place, good=f"1 2 3{more}", bad="1 200 -3", empty="", turns="5")
    place.job(CODE, returns="n INT, t STRING", retries=0, expect=["n BETWEEN 0 AND 100", "rows > 0"])
    progress = place.run().progress
    assert (progress.processed, progress.failed) == (2, 2)
    assert failures(place) == {
        "bad": (FailureKind.UNEXPECTED, "2 rows break 'n BETWEEN 0 AND 100'."),
        "empty": (FailureKind.UNEXPECTED, "Its rows break 'rows > 0'."),
    }
    assert {row[0] for row in place.table()} == {"good", "turns"}
    put(place, turns="500", bad="7")
    place.run()
    assert ("turns", 5) in place.table()
    assert ("bad", 7) in place.table()
    assert {*failures(place)} == {"empty", "turns"}
    place.session.jobs.alter("j", expect=["n < 1000"])
    place.run()
    assert failures(place) == {}
    assert ("turns", 500) in place.table()


def test_files_that_break_what_only_warns_are_counted(place: Place) -> None:
    put(place, good="1", bad="200 300", null="")
    place.job(CODE, returns="n INT, t STRING", expect_warn="n < 100")
    assert place.run().progress.counted == {"unexpected: n < 100": 1}
    assert len(place.table()) == 3
    job = place.session.jobs.get("j")
    assert isinstance(job, FileJob)
    assert place.session.home.catalog.reports.counted(job.id) == {"unexpected: n < 100": 1}


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ("n <", "cannot be read"),
        ("m > 0", "names a column 'm'"),
        ("max(n) > 0", "aggregate function"),
        ("n > rows", "about single rows and about their number"),
        ("n IN (SELECT 1)", "has a query"),
        ("reflect('java.lang.System', 'exit') = n", "cannot be used"),
    ],
)
def test_what_cannot_be_expected_is_refused(place: Place, expect: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        place.job(CODE, returns="n INT, t STRING", expect=[expect])
