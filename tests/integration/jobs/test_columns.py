"""A function whose columns change: the change is detected before any file is touched, adopted on request, and heals what failed because of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import objects
from tests.integration.conftest import Place
from volstream.base.definitions import JobState
from volstream.base.model.work import FailureKind, FailureState
from volstream.errors import FunctionLoadError, InvalidValueError


def code(place: Place, fields: str, value: str) -> str:
    """Writes the job's function; its name for ``--function``."""
    file = place.folder.parent / "code" / "job.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        f"from dataclasses import dataclass\n@dataclass\nclass Row:\n    {fields}\n"
        f"def f(file) -> Row:\n    print('called')\n    text = file.read_text()\n    return {value}\n"
    )
    return f"{file}:f"


def edit(place: Place, text: str) -> str:
    file = Path(place.folder.parent / "code" / "job.py")
    file.write_text(text)
    return f"{file}:f"


def test_a_new_column_is_detected_before_any_file_is_processed_and_evolves_the_table(place: Place) -> None:
    place.put("a", "one")
    function = code(place, "n: int", "Row(len(text))")
    place.session.jobs.create("j", function, "t", volume="v")
    place.run()
    code(place, "n: int\n    first: str | None = None", "Row(len(text), text[0])")
    place.put("b", "three")
    place.refresh()
    before = place.session.jobs.logs("j")
    with pytest.raises(FunctionLoadError, match="a column first STRING, which is new") as error:
        place.run()
    assert f"volstream alter-job public.j --function {function}" in error.value.remedy or (
        f"volstream alter-job j --function {function}" in error.value.remedy
    )
    # No file was called, and none failed.
    assert place.session.jobs.logs("j") == before
    assert place.session.jobs.failures("j") == []
    assert place.session.jobs.get("j").state is JobState.PAUSED
    altered = place.session.jobs.alter("j", function=function)
    assert (altered.state, objects.file_job(altered).returns) == (JobState.ACTIVE, "n BIGINT, first STRING")
    place.run()
    assert place.table("_file_path, n, first") == [("a", 3, None), ("b", 5, "t")]
    place.session.jobs.replay("j")
    assert place.table("_file_path, n, first") == [("a", 3, "o"), ("b", 5, "t")]


@pytest.mark.long
def test_a_column_of_another_type_is_rejected_before_any_file_is_processed(place: Place) -> None:
    place.put("a", "one")
    function = code(place, "n: int", "Row(len(text))")
    place.session.jobs.create("j", function, "t", volume="v")
    place.run()
    code(place, "n: str", "Row(text)")
    place.put("b", "two")
    place.refresh()
    with pytest.raises(FunctionLoadError, match="the column n as STRING, which was BIGINT"):
        place.run()
    with pytest.raises(InvalidValueError, match="Column n of table t is BIGINT, but the function returns STRING"):
        place.session.jobs.alter("j", function=function)
    with pytest.raises(InvalidValueError, match="Column n of table t is BIGINT, but the function returns STRING"):
        place.session.jobs.alter("j", function=edit(place, "def f(file): return {'n': file.read_text()}"))
    assert place.session.jobs.failures("j") == []
    code(place, "n: int", "Row(len(text))")
    place.session.jobs.alter("j", function=function)
    place.run()
    assert place.table() == [("a", 3), ("b", 3)]


@pytest.mark.long
def test_a_column_that_is_no_longer_declared_is_null_from_then_on(place: Place) -> None:
    place.put("a", "one")
    place.session.jobs.create("j", code(place, "n: int\n    s: str", "Row(len(text), text)"), "t", volume="v")
    place.run()
    code(place, "n: int", "Row(len(text))")
    place.put("b", "three")
    place.refresh()
    place.run()
    assert place.table("_file_path, n, s") == [("a", 3, "one"), ("b", 5, None)]


@pytest.mark.long
def test_files_that_failed_for_their_columns_heal_once_the_columns_are_adopted(place: Place) -> None:
    place.put("a", "1")
    place.put("b", "22")
    place.job("def f(file): return {'n': 1, 'more': file.read_text()}")
    place.run()
    assert {(failure.kind, failure.state) for failure in place.session.jobs.failures("j")} == {
        (FailureKind.WRONG_RESULT, FailureState.QUARANTINED)
    }
    place.session.jobs.skip("j", ["b"])
    place.session.jobs.alter("j", returns="n INT, more STRING")
    place.run()
    assert place.table("_file_path, more") == [("a", "1")]
    # What was given up knowingly stays so.
    assert [(failure.path, failure.state) for failure in place.session.jobs.failures("j")] == [("b", FailureState.SKIPPED)]


@pytest.mark.long
def test_a_missing_module_is_not_retried_until_the_code_changes(place: Place) -> None:
    place.put("a", "1")
    place.job("def f(file):\n    import no_such_module\n    return {'n': 1}")
    place.run()
    (failure,) = place.session.jobs.failures("j")
    assert (failure.kind, failure.state, failure.next_try) == (FailureKind.CODE, FailureState.QUARANTINED, None)
    place.session.jobs.alter("j", function=edit(place, "def f(file):\n    return {'n': 1}"))
    place.run()
    assert place.table() == [("a", 1)]
    assert place.session.jobs.failures("j") == []
