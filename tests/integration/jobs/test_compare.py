"""Other code on delivered files: what would change is told, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Place
from volstream.base.definitions import JobState
from volstream.errors import FunctionLoadError, InvalidStateError, InvalidValueError, NotFoundError
from volstream.jobs.proof.compare import Example

#: One row per line: fails on files that begin with "bad".
LINES = """
def f(file):
    text = file.read_text()
    if text.startswith("bad"):
        raise ValueError(f"cannot read {text!r}")
    return [{"n": len(line), "s": line} for line in text.splitlines()]
"""

#: Counts one more, reads what was bad, gives two rows for "two", and fails on "no".
OTHER = """
def f(file):
    text = file.read_text()
    if text == "no":
        raise KeyError(f"cannot read {text!r}")
    return [{"n": len(line) + (line == "more"), "s": line, "k": 1} for line in text.splitlines()] * (1 + (text == "two"))
"""


def code(place: Place, text: str) -> str:
    file = place.folder.parent / "code" / "other.py"
    file.write_text(text)
    return f"{file}:f"


def written(place: Place) -> list[str]:
    """Everything in the warehouse that is not Spark's own, and the catalog's rows."""
    warehouse = Path(place.session.home.warehouse.removeprefix("file://"))
    return sorted(str(file) for file in warehouse.rglob("*") if file.is_file())


@pytest.mark.long
def test_other_code_shows_what_it_would_change_and_writes_nothing(place: Place) -> None:
    for name, content in {"a": "x\ny", "b": "more", "c": "two", "d": "no", "e": "bad", "f": "bad 2", "g": "z"}.items():
        place.put(name, content)
    place.job(LINES, returns="n INT, s STRING", retries=0)
    with pytest.raises(InvalidStateError, match="nothing to compare"):
        place.session.jobs.compare("j", code(place, OTHER))
    place.run()
    place.put("g", "newer")  # the table does not have it yet
    place.put("h", "new")
    place.refresh()
    before = written(place), place.session.jobs.get("j"), place.session.batches.list()

    found = place.session.jobs.compare("j", code(place, OTHER), returns="n INT, s STRING, k INT", both=True)
    differences = found.differences
    assert (found.delivered, differences.files, differences.same) == (6, 6, 1)
    assert {name: (kept.count, kept.examples) for name, kept in differences.columns.items()} == {"n": (1, [Example("b", 4, 5)])}
    assert (differences.more.examples, differences.fewer.count) == ([Example("c", 1, 2)], 0)
    assert [(failure.kind, failure.paths) for failure in differences.new_failures] == [("raised", ["d"])]
    assert [(one.kind, one.files, one.paths) for one in differences.healed] == [("raised", 2, ["e", "f"])]
    assert (found.columns.new, found.columns.dropped, found.columns.retyped) == ({"k": "INT"}, {}, {})
    assert found.cost.seconds is not None
    assert 0 < found.cost.seconds.median <= found.cost.seconds.high < 10
    assert found.own is not None
    assert (found.own.none, found.own.still_failing) == (True, 2), "the job's own code gives what is there"

    assert (written(place), place.session.jobs.get("j"), place.session.batches.list()) == before


def test_a_column_that_the_other_code_adds_is_inferred_as_a_switch_would(place: Place) -> None:
    place.put("a", "xy")
    place.put("b", "z")
    place.job("def f(file):\n    return {'n': file.size}\n", returns=None)
    place.run()
    found = place.session.jobs.compare("j", code(place, "def f(file):\n    return {'n': file.size, 'up': file.name.upper()}\n"))
    assert found.differences.new_failures == []
    assert (found.differences.same, found.columns.new) == (2, {"up": "STRING"})


@pytest.mark.long
def test_files_are_chosen_and_mistakes_are_told(place: Place) -> None:
    for number in range(8):
        place.put(f"f{number}", "x" * number)
    place.job(LINES, returns="n INT, s STRING")
    place.run()
    place.put("f1", "newer")
    place.refresh()
    few = [place.session.jobs.compare("j", code(place, LINES), sample=2, where="size < 6") for _ in "ab"]
    assert few[0].differences == few[1].differences, "the sample is the same"
    assert (few[0].delivered, few[0].differences.files, few[0].differences.none) == (5, 2, True)
    one = place.session.jobs.compare("j", code(place, OTHER), paths=["f2"])
    assert (one.delivered, one.differences.files, one.own) == (1, 1, None)
    with pytest.raises(NotFoundError, match="'f1' was not delivered"):
        place.session.jobs.compare("j", code(place, OTHER), paths=["f2", "f1"])
    with pytest.raises(InvalidValueError, match="nonsense"):
        place.session.jobs.compare("j", code(place, OTHER), where="nonsense > 1")
    broken = "class f:\n    def __init__(self):\n        1 / 0\n    def __call__(self, file): ...\n"
    with pytest.raises(FunctionLoadError, match="cannot be set up: ZeroDivisionError"):
        place.session.jobs.compare("j", code(place, broken))
    assert place.session.jobs.get("j").state is JobState.ACTIVE, "as a broken function of its own would pause it"


@pytest.mark.long
def test_in_a_log_the_last_rows_of_the_job_count(place: Place) -> None:
    place.put("a", "1")
    place.put("b", "22")
    place.job("def f(file):\n    return {'n': len(file.read_text())}\n", write="append")
    place.run()
    place.session.jobs.replay("j")
    place.session.jobs.create(
        "other", code(place, "def f(file):\n    return {'n': 7}\n"), "t", volume="v", returns="n INT", write="append"
    )
    place.session.jobs.run("other")
    assert len(place.table()) == 6
    same = place.session.jobs.compare("j", f"{place.folder.parent / 'code' / 'job.py'}:f").differences
    assert (same.files, same.none) == (2, True)
