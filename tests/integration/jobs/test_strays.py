"""Rows of files that left a volume while no stream was looking: the stream was reset, or another job had written them."""

from __future__ import annotations

import pytest

from tests.integration.conftest import COUNT, Place
from volstream.base.definitions import QueueType, Write


def given(place: Place, **files: str) -> None:
    for name, content in files.items():
        place.put(name, content)
    place.refresh()


def gone(place: Place, *names: str) -> None:
    for name in names:
        (place.folder / name).unlink()
    place.refresh()


@pytest.mark.long
def test_a_file_that_came_and_went_after_the_point_of_a_reset_leaves_no_rows(place: Place) -> None:
    given(place, old="1")
    place.job(COUNT)
    place.run()
    given(place, a="aa")
    place.run()
    (stream,) = place.session.streams.list()
    place.session.streams.reset(str(stream.name), to_version=1)
    gone(place, "a")
    assert place.run().progress.removals == 1
    assert place.table() == [("old", 1)]
    assert place.run().progress.batches == 0


@pytest.mark.long
def test_after_a_reset_failed_files_keep_their_rows(place: Place) -> None:
    bad = "def f(file):\n    text = file.read_text()\n    assert text != 'bad'\n    return {'n': len(text)}\n"
    given(place, a="aa", b="b")
    place.job(bad)
    place.run()
    given(place, b="bad")
    place.run()
    gone(place, "a")
    place.run()
    (stream,) = place.session.streams.list()
    place.session.streams.reset(str(stream.name), to_version=3)
    place.run()
    assert place.table() == [("b", 1)]


@pytest.mark.long
@pytest.mark.parametrize("again", ["job", pytest.param("volume", marks=pytest.mark.long)])
def test_a_table_that_a_new_job_takes_over_has_rows_of_the_files_that_are_there(place: Place, again: str) -> None:
    given(place, old="1", a="aa", c="cc")
    place.job(COUNT)
    place.run()
    gone(place, "a")
    if again == "volume":
        place.session.volumes.drop("v", cascade=True)
        place.session.volumes.create("v", str(place.folder), queue_type=QueueType.NONE)
        place.refresh()
    place.job(COUNT, or_replace=again == "job", where="relative_path <> 'c'")
    place.run()
    assert place.table() == [("old", 1)]


@pytest.mark.long
def test_a_job_that_appends_keeps_all_rows(place: Place) -> None:
    given(place, old="1", a="aa")
    place.job(COUNT, write=Write.APPEND)
    place.run()
    gone(place, "a")
    (stream,) = place.session.streams.list()
    place.session.streams.reset(str(stream.name), to_version=1)
    place.run()
    assert ("a", 2) in place.table()
