"""Jobs whose function takes sets of files."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.integration.conftest import Place
from tests.running import EVERYWHERE
from volstream.base.definitions import FileJob
from volstream.base.model.work import FailureKind, FailureState
from volstream.errors import InvalidValueError
from volstream.functions.file import FileSet
from volstream.jobs.plans.sets import SHORTHANDS
from volstream.ops.inspection.file_history import tell
from volstream.ops.inspection.status import problems, status

WHOLE = """
import json, pathlib
def f(files):
    texts = [file.read_text() for file in files]
    if "bad" in texts:
        raise ValueError("a bad page")
    return {"names": [file.relative_path for file in files], "text": "+".join(texts)}
"""

RETURNS = "names ARRAY<STRING>, text STRING"


def job(place: Place, function: str = WHOLE, **options: object) -> None:
    place.job(function, **{"returns": RETURNS, "group_by": "folder", **options})


def rows(place: Place) -> dict[str, Any]:
    """The text of each set. There must be one row per set."""
    found = place.rows(f"SELECT _group_key, text FROM {place.at}")
    by_key = {str(row["_group_key"]): row["text"] for row in found}
    assert len(by_key) == len(found)
    return by_key


def put(place: Place, **texts: str) -> None:
    """Puts files of one folder each: ``a_1="x"`` is ``a/1``."""
    for name, text in texts.items():
        place.put(name.replace("_", "/"), text)


@pytest.mark.parametrize("isolate", EVERYWHERE)
@pytest.mark.parametrize(
    "group_by",
    [
        pytest.param("folder", marks=pytest.mark.long),
        pytest.param("split(relative_path, '/')[0]", marks=pytest.mark.long),
        "lower(split(relative_path, '/')[0])",
    ],
)
def test_a_set_is_processed_whole_whenever_one_of_its_files_changes(place: Place, group_by: str, isolate: bool) -> None:
    put(place, a_1="x", a_2="y", b_1="z")
    place.refresh()
    job(place, group_by=group_by, isolate=isolate)
    assert place.run().progress.processed == 2
    assert rows(place) == {"a": "x+y", "b": "z"}
    put(place, a_3="w", c_1="n")
    place.put("b/1", "changed")
    place.refresh()
    assert place.run().progress.processed == 3
    assert rows(place) == {"a": "x+y+w", "b": "changed", "c": "n"}
    place.delete("a/2")
    place.delete("b/1")
    place.refresh()
    progress = place.run().progress
    assert (progress.processed, progress.removals) == (1, 1)
    assert rows(place) == {"a": "x+w", "c": "n"}
    assert place.run().progress.batches == 0


@pytest.mark.long
def test_each_set_of_random_changes_is_as_a_full_computation_would_have_it(place: Place) -> None:
    chance = random.Random(4)
    job(place, group_by="stem", where="size < 3", max_files=3)
    present: dict[str, str] = {}
    for _ in range(6):
        for _ in range(8):
            name = f"{chance.choice('pq')}/{chance.choice('abc')}.{chance.choice(['jpg', 'json', 'txt'])}"
            if name in present and chance.random() < 0.4:
                place.delete(name)
                del present[name]
            else:
                present[name] = chance.choice("uvw") * chance.choice([1, 2, 3])
                place.put(name, present[name])
        place.refresh()
        place.run()
        expected: dict[str, list[str]] = {}
        for name, text in sorted(present.items()):
            if len(text) < 3:
                expected.setdefault(name.rpartition(".")[0], []).append(text)
        assert rows(place) == {key: "+".join(texts) for key, texts in expected.items()}


def test_a_set_is_held_back_until_it_is_complete(place: Place) -> None:
    put(place, a_1="x", b_1="y", b_2="z")
    place.refresh()
    job(place, group_complete="count(*) >= 2")
    progress = place.run().progress
    assert (progress.processed, progress.failed, progress.held) == (1, 0, 1)
    [waiting] = place.session.jobs.failures("j")
    assert (waiting.path, waiting.state, waiting.kind) == ("a", FailureState.WAITING, FailureKind.HELD)
    put(place, a_2="w")
    place.refresh()
    assert place.run().progress.processed == 1
    assert rows(place) == {"a": "x+w", "b": "y+z"}


@pytest.mark.long
def test_a_set_is_held_back_until_it_is_complete_and_its_rows_go_when_it_no_longer_is(place: Place) -> None:
    put(place, a_1="x", b_1="y", b_2="z")
    place.refresh()
    job(place, group_complete="count(*) >= 2")
    progress = place.run().progress
    assert (progress.processed, progress.failed, progress.held) == (1, 0, 1)
    assert rows(place) == {"b": "y+z"}
    [waiting] = place.session.jobs.failures("j")
    assert (waiting.path, waiting.state, waiting.kind) == ("a", FailureState.WAITING, FailureKind.HELD)
    assert waiting.next_try is None
    assert place.run().progress.batches == 0
    place.session.jobs.alter("j", group_complete="count(*) >= 1")
    assert place.run().progress.processed == 1
    assert rows(place) == {"a": "x", "b": "y+z"}
    place.session.jobs.alter("j", group_complete="count(*) >= 2")
    put(place, a_2="w")
    place.delete("b/2")
    place.refresh()
    progress = place.run().progress
    assert (progress.processed, progress.held) == (1, 1)
    assert rows(place) == {"a": "x+w"}
    place.delete("b/1")
    place.refresh()
    place.run()
    assert place.session.jobs.failures("j") == []


def test_a_set_that_has_just_changed_is_held_back_until_it_is_quiet(place: Place) -> None:
    put(place, a_1="x")
    place.refresh()
    job(place, group_quiet="1h")
    assert place.run().progress.held == 1
    [waiting] = place.session.jobs.failures("j")
    assert waiting.next_try is not None
    assert 3000 < (waiting.next_try - datetime.now(UTC)).total_seconds() <= 3600
    assert place.run().progress.batches == 0
    place.session.jobs.alter("j", group_quiet="1ms")
    assert place.run().progress.processed == 1
    assert rows(place) == {"a": "x"}
    assert place.session.jobs.failures("j") == []


@pytest.mark.long
def test_a_set_fails_is_retried_explained_replayed_and_compared_as_one(place: Place) -> None:
    put(place, a_1="x", a_2="bad", b_1="y")
    place.refresh()
    job(place, retries=0)
    progress = place.run().progress
    assert (progress.processed, progress.failed) == (1, 1)
    [failure] = place.session.jobs.failures("j")
    assert (failure.path, failure.kind) == ("a", FailureKind.RAISED)
    said = status(place.session.home)
    assert [problem.why for problem in problems(said, {})] == ["1 set quarantined."]
    [job_status] = said["jobs"]
    assert (job_status["done"], job_status["outcome"]) == (None, "1 set done, 1 failed, 0 removed")
    details = {event.what: event.details for event in tell(place.session.home, "v", "a/1")}
    assert details["processed in batch"]["set"] == "a"
    assert details["failed"]["message"] == "ValueError: a bad page"
    place.session.jobs.retry("j", ["a"])
    assert place.run().progress.failed == 1
    put(place, a_2="fine")
    place.refresh()
    assert place.run().progress.processed == 1
    assert rows(place) == {"a": "x+fine", "b": "y"}
    assert any(event.what == "has result rows" for event in tell(place.session.home, "v", "a/1"))
    assert place.session.jobs.replay("j").progress.processed == 2
    assert place.session.jobs.replay("j", where="relative_path = 'b'").progress.processed == 1
    (place.folder.parent / "code" / "other.py").write_text(WHOLE.replace('"+"', '"-"'))
    found = place.session.jobs.compare("j", f"{place.folder.parent}/code/other.py:f", returns=RETURNS)
    assert (found.differences.differing, found.differences.same) == (1, 1)


@pytest.mark.long
def test_a_set_whose_file_changes_while_it_is_read_is_processed_again(place: Place) -> None:
    put(place, a_1="x", a_2="y")
    place.refresh()
    changing = WHOLE.replace("    texts", f"    pathlib.Path({str(place.folder)!r}, 'a/2').write_text('late')\n    texts")
    job(place, changing)
    progress = place.run().progress
    assert (progress.processed, progress.failed, progress.overtaken) == (0, 0, 1)
    assert place.rows(f"SELECT 1 FROM {place.at}") == []
    job_file = place.folder.parent / "code" / "job.py"
    job_file.write_text(WHOLE)
    place.refresh()
    place.run()
    assert rows(place) == {"a": "x+late"}


@pytest.mark.long
def test_columns_are_inferred_from_whole_sets(place: Place) -> None:
    put(place, a_1="x", a_2="y", b_1="z")
    place.refresh()
    job(place, returns=None, group_complete="count(*) > 1")
    made = place.session.jobs.get("j")
    assert isinstance(made, FileJob)
    assert "names" in made.returns
    place.run()
    assert rows(place) == {"a": "x+y"}


@pytest.mark.long
def test_rows_of_keys_that_left_the_volume_unseen_are_removed(place: Place) -> None:
    put(place, b_1="y")
    place.refresh()
    job(place)
    place.run()
    put(place, a_1="x")
    place.refresh()
    place.run()
    assert rows(place) == {"a": "x", "b": "y"}
    (stream,) = place.session.streams.list()
    place.session.streams.reset(str(stream.name), to_version=1)
    place.delete("a/1")
    place.refresh()
    assert place.run().progress.removals == 1
    assert rows(place) == {"b": "y"}


def test_the_shorthands_are_the_same_in_sql_and_python(place: Place) -> None:
    paths = ["a/b/c.txt", "c.txt", "a/.hidden", ".hidden", "a/x.tar.gz", "a/x.", "x", "a//b.c", "ä/ö\n.ü", "a.b/c", "..x", "/x.y"]
    for name, shorthand in SHORTHANDS.items():
        values = ", ".join(f"('{path}')".replace("\n", "\\n") for path in paths)
        found = place.rows(f"SELECT relative_path AS p, {shorthand.sql} AS k FROM VALUES {values} AS t(relative_path)")
        assert {str(row["p"]): row["k"] for row in found} == {path: shorthand.key(path) for path in paths}, name
        assert all(path.startswith(shorthand.prefix(shorthand.key(path))) for path in paths), name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group_by": "size"}, "does not depend on relative_path alone"),
        ({"group_by": "relative_path || current_date()"}, "may not be deterministic"),
        ({"group_by": "(SELECT 1)"}, "does not depend|has a query"),
        ({"group_by": "folder", "on_move": "rekey"}, "cannot be combined with group_by"),
        ({"group_by": None, "group_quiet": "3s"}, "group_quiet is about sets"),
        ({"group_complete": "size > 3"}, "aggregate"),
        ({"group_complete": "max(last_modified_time) < now()"}, "while no file of the set changes"),
        ({"group_by": "relative_path) or (1=1"}, "cannot be read"),
        ({"group_complete": "count(nothing) > 3"}, "names a column 'nothing'"),
    ],
)
def test_what_makes_no_set_is_refused(place: Place, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidValueError, match=said):
        job(place, **options)


def test_a_set_is_a_list_with_a_key() -> None:
    assert isinstance(FileSet("k", []), list)
    assert FileSet("k", []).key == "k"
