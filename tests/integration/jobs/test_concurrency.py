"""Jobs whose functions wait: several calls in flight, and calls that are to be made later."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
import structlog.testing

from tests.integration.conftest import Place, session_on
from tests.running import IN_FLIGHT
from volstream.definitions import FileJob
from volstream.model.work import FailureKind, FailureState


@pytest.mark.parametrize("isolate", [False, True])
def test_a_job_limits_the_calls_in_flight(place: Place, isolate: bool) -> None:
    for at in range(40):
        place.put(f"{at}.txt", "x" * at)
    place.refresh()
    place.job(IN_FLIGHT.format(""), concurrency=6, isolate=isolate)
    report = place.run()
    assert (report.progress.done_files, report.progress.failed) == (40, 0)
    assert max(row[1] for row in place.table()) == (1 if isolate else 6)
    altered = place.session.jobs.alter("j", concurrency=2)
    assert isinstance(altered, FileJob)
    assert altered.concurrency == 2


LATER = """
import pathlib, volstream
def f(file):
    busy = pathlib.Path({0!r})
    if file.name != "fine.txt" and busy.exists():
        raise volstream.RetryLater("429", after={1})
    return {{"n": file.size}}
"""


def test_a_file_whose_function_asks_to_be_called_later_waits_and_has_not_failed(place: Place) -> None:
    busy = place.folder.parent / "busy"
    busy.touch()
    place.put("fine.txt", "x")
    place.put("a.txt", "xx")
    place.refresh()
    place.job(LATER.format(str(busy), 0.5), retries=0)
    for _ in range(2):
        progress = place.run().progress
        assert (progress.failed, progress.later) == (0, 1)
        [failure] = place.session.jobs.failures("j")
        assert (failure.state, failure.kind, failure.message) == (FailureState.WAITING, FailureKind.RETRY_LATER, "429")
        assert failure.attempts == 0
        assert failure.next_try is not None
        time.sleep(max(0.0, (failure.next_try - datetime.now(UTC)).total_seconds()))
    assert place.table() == [("fine.txt", 1)]
    busy.unlink()
    assert place.run().progress.processed == 1
    assert place.table() == [("a.txt", 2), ("fine.txt", 1)]
    assert place.session.jobs.failures("j") == []


def test_a_run_slows_down_if_most_calls_ask_to_be_made_later(place: Place) -> None:
    busy = place.folder.parent / "busy"
    busy.touch()
    for at in range(6):
        place.put(f"{at}.txt", "x")
    place.refresh()
    settings = place.session.home.settings.model_copy(update={"retry_first_seconds": 0.5})
    with session_on(place.gateway, settings) as session, structlog.testing.capture_logs() as lines:
        patient = Place(session, place.folder, place.gateway)
        patient.job(LATER.format(str(busy), 3600), max_files=2)
        assert patient.run().progress.later == 6
    assert [line["event"] for line in lines].count(
        "slowed_down"
    ) == 2  # after the last batch there is nothing to wait for


def test_a_file_that_has_waited_for_too_long_fails(place: Place) -> None:
    busy = place.folder.parent / "busy"
    busy.touch()
    settings = place.session.home.settings.model_copy(update={"retry_later_max_seconds": 0.3})
    with session_on(place.gateway, settings) as session:
        patient = Place(session, place.folder, place.gateway)
        patient.put("fine.txt", "x")
        patient.put("a.txt", "xx")
        patient.refresh()
        patient.job(LATER.format(str(busy), 0.4), retries=0)
        patient.run()
        time.sleep(0.5)
        assert patient.run().progress.failed == 1
        [failure] = session.jobs.failures("j")
    assert (failure.state, failure.kind) == (FailureState.QUARANTINED, FailureKind.RAISED)
    assert failure.message == "The function asked to be called later for too long (retry_later_max_seconds): 429"
