"""Replays and dry runs on a real engine: what is processed again, and that dry runs change nothing."""

from __future__ import annotations

import pytest

from tests.integration.conftest import COUNT, Place
from volstream.base.model.work import Load, PlanKind
from volstream.base.threads import Stop
from volstream.errors import InvalidValueError, NotFoundError
from volstream.jobs.runs.lease import Progress
from volstream.jobs.runs.run import Preview
from volstream.tables.delta import places

NEGATIVE = "def f(file):\n    return {'n': -len(file.read_text())}\n"


def given(place: Place, **files: str) -> None:
    """Files, and a job that has processed them."""
    for name, content in files.items():
        place.put(name, content)
    place.job(COUNT)
    place.run()


def new_code(place: Place, text: str = NEGATIVE) -> None:
    (place.folder.parent / "code" / "job.py").write_text(text)


@pytest.mark.long
def test_a_replay_replaces_results_and_leaves_newer_changes_to_the_stream(place: Place) -> None:
    given(place, a="1", b="22", c="333", d="4444")
    place.put("b", "55555")
    place.put("e", "1")
    place.delete("c")
    place.refresh()
    before = place.session.streams.get("j_stream").offset
    new_code(place)
    report = place.session.jobs.replay("j")
    assert (report.progress.done_files, report.progress.code_changed) == (2, False)
    assert place.table() == [("a", -1), ("b", 2), ("c", 3), ("d", -4)]
    assert place.session.streams.get("j_stream").offset == before
    batch = place.session.batches.list("j")[0]
    assert place.session.batches.read(batch.id).count() == 2, "its plan's files are gone, and found again"
    assert place.run().progress.code_changed is False, "a replay of everything accepts the code"
    assert place.table() == [("a", -1), ("b", -5), ("d", -4), ("e", -1)]


@pytest.mark.long
def test_a_replay_of_some_files_does_not_accept_the_code(place: Place) -> None:
    given(place, a="1", b="22", c="333")
    new_code(place)
    report = place.session.jobs.replay("j", "size >= 2 AND relative_path < 'c'")
    assert (report.progress.done_files, report.progress.code_changed) == (1, True)
    assert place.table() == [("a", 1), ("b", -2), ("c", 3)]
    with pytest.raises(InvalidValueError, match="nonsense"):
        place.session.jobs.replay("j", "nonsense > 1")


def test_a_replay_of_named_files_does_these(place: Place) -> None:
    given(place, **{"a": "1", "b'": "2", "c": "3"})
    report = place.session.jobs.replay("j", paths=["b'", "c", "none"])
    assert report.progress.done_files == 2
    assert place.session.jobs.replay("j", "relative_path < 'c'", paths=["b'", "c"]).progress.done_files == 1
    with pytest.raises(NotFoundError, match="None of these files was delivered to the job j"):
        place.session.jobs.replay("j", paths=["none", "./a"])
    with pytest.raises(InvalidValueError, match="2001 paths are too many"):
        place.session.jobs.replay("j", paths=["a"] * 2001)


@pytest.mark.long
def test_a_file_that_fails_in_a_replay_keeps_its_rows_and_one_that_heals_is_no_longer_a_failure(place: Place) -> None:
    place.put("a", "1")
    place.put("b", "22")
    place.job("def f(file):\n    return {'n': 1 // (file.name != 'b')}\n", retries=0)
    place.run()
    new_code(place, "def f(file):\n    return {'n': 2 // (file.name != 'a')}\n")
    report = place.session.jobs.replay("j")
    assert report.progress.failed == 1
    assert place.table() == [("a", 1), ("b", 2)]
    assert [failure.path for failure in place.session.jobs.failures("j")] == ["a"]


@pytest.mark.long
def test_a_stopped_replay_resumes_with_the_next_run_and_a_new_one_starts_over(place: Place) -> None:
    given(place, a="1", b="22")
    place.session.jobs.alter("j", max_files=1)

    def stopped() -> None:
        stop = Stop()

        def after_one(progress: Progress) -> None:
            if progress.batches:
                stop.set()

        place.session.jobs.replay("j", stop=stop, observe=after_one)

    new_code(place)
    stopped()
    assert place.table() == [("a", -1), ("b", 2)]
    assert place.run().progress.done_files == 1
    assert place.table() == [("a", -1), ("b", -2)]
    new_code(place, COUNT)
    stopped()
    assert place.session.jobs.replay("j").progress.done_files == 2
    assert place.table() == [("a", 1), ("b", 2)]


@pytest.mark.long
def test_a_cancelled_replay_is_not_resumed_and_does_not_accept_the_code(place: Place) -> None:
    given(place, a="1", b="22")
    place.session.jobs.alter("j", max_files=1)
    new_code(place)
    stop = Stop()
    place.session.jobs.replay(
        "j", stop=stop, observe=lambda done: stop.set() if done.batches else None, is_cancelled=lambda: True
    )
    assert not place.session.jobs.runner(place.session.jobs.get("j")).has_work()
    report = place.run()
    assert (report.progress.batches, report.progress.code_changed) == (0, True)
    assert place.table() == [("a", -1), ("b", 2)]
    assert place.session.jobs.replay("j").progress.done_files == 2
    assert place.table() == [("a", -1), ("b", -2)]


@pytest.mark.long
def test_a_batch_of_a_replay_can_be_read_back_after_its_files_changed(place: Place) -> None:
    given(place, a="1", b="22")
    place.session.jobs.replay("j", "size = 2")
    (batch, _) = place.session.batches.list("j")
    plan = place.session.home.catalog.reports.plan(batch.plan_id)
    assert plan is not None
    assert plan.kind is PlanKind.REPLAY
    place.delete("b")
    place.refresh()
    place.run()
    rows = place.session.batches.read(batch.id).toArrow().to_pylist()
    assert [(row["relative_path"], row["action"], row["commit_version"]) for row in rows] == [("b", "replace", 1)]


@pytest.mark.long
def test_undelivered_files_are_not_replayed(place: Place) -> None:
    place.put("a", "1")
    place.refresh()
    place.job(COUNT)
    assert place.session.jobs.replay("j").progress.batches == 0
    assert place.run().progress.done_files == 1


@pytest.mark.long
def test_a_job_of_a_volume_that_was_empty_has_nothing_to_replay(place: Place) -> None:
    place.refresh()
    given(place)
    assert place.session.streams.get("j_stream").offset == 0
    assert place.session.jobs.replay("j").progress == Progress()


def test_a_dry_run_shows_what_a_run_would_do_and_changes_nothing(place: Place) -> None:
    place.put("a", "1")
    place.job(COUNT)
    assert place.session.jobs.preview("j") == Preview(Load(), 0, 0, None, listed=False)
    place.put("b", "22")
    place.put("c", "333")
    place.run()
    place.put("a", "4444")
    place.put("d", "55555")
    place.delete("c")
    place.refresh()
    place.session.jobs.alter("j", max_files=2)
    told = place.session.jobs.preview("j")
    assert (told.load, told.unfinished, told.listed) == (Load(batches=2, files=2, removals=1, bytes=9), 0, True)
    assert told.seconds is not None
    assert 0 < told.seconds < 100
    assert told == place.session.jobs.preview("j")
    job = place.session.jobs.get("j")
    assert place.session.home.catalog.consumptions.open_plan(job.stream_id) is None
    assert not places.inside(f"{place.session.home.warehouse}/_plans")
    assert place.table() == [("a", 1), ("b", 2), ("c", 3)]
    report = place.run()
    assert (report.progress.done_files, report.progress.removals) == (2, 1)


@pytest.mark.long
def test_a_dry_run_counts_what_is_left_of_an_open_plan(place: Place) -> None:
    for name in "abc":
        place.put(name, "1")
    place.job(COUNT, max_files=1)
    stop = Stop()
    place.session.jobs.run("j", stop=stop, observe=lambda progress: stop.set() if progress.batches else None)
    place.put("d", "22")
    place.refresh()
    told = place.session.jobs.preview("j")
    assert (told.load, told.unfinished) == (Load(batches=3, files=3, bytes=4), 2)
