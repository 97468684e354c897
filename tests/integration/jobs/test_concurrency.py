"""Jobs whose functions wait: several calls in flight, and calls that are to be made later."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Any

import psutil
import pytest
import structlog.testing

from tests.integration.conftest import Place, session_on
from tests.running import IN_FLIGHT
from tests.waiting import eventually
from volstream.base.definitions import FileJob
from volstream.base.model.work import FailureKind, FailureState
from volstream.errors import InvalidStateError, InvalidValueError
from volstream.ops.inspection.details import backlog


def put(place: Place, count: int) -> None:
    """Puts so many files of one byte, and refreshes their directory."""
    for at in range(count):
        place.put(f"{at}.txt", "x")
    place.refresh()


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.long)])
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
        job = place.session.jobs.get("j")
        owed = backlog(place.session.home.catalog, job)
        assert owed is not None
        assert (owed.files, owed.done) == (2, 1)
        assert (job.last_outcome or "").endswith("done, 0 failed, 0 removed, 1 to be called later")
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
    put(place, 6)
    settings = place.session.home.settings.model_copy(update={"retry_first_seconds": 0.5})
    with session_on(place.gateway, settings) as session, structlog.testing.capture_logs() as lines:
        patient = Place(session, place.folder, place.gateway)
        patient.job(LATER.format(str(busy), 3600), max_files=2)
        assert patient.run().progress.later == 6
    assert [line["event"] for line in lines].count("slowed_down") == 2  # after the last batch there is nothing to wait for


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
        failed = patient.run().progress.failed  # on a slow machine it is due again in the same run
        time.sleep(0.5)
        assert failed + patient.run().progress.failed == 1
        [failure] = session.jobs.failures("j")
    assert (failure.state, failure.kind) == (FailureState.QUARANTINED, FailureKind.RAISED)
    assert failure.message == "Gave up after retrying for longer than retry_later_max_seconds: 429"


PACED = """
import threading
import time
def f(file):
    return {"n": time.time_ns()}
"""


@pytest.mark.long
def test_a_job_keeps_its_rate_over_workers_batches_and_runs(place: Place) -> None:
    def add(names: str) -> None:
        for name in names:
            place.put(f"{name}.txt", name)
        place.refresh()

    def run() -> None:
        assert place.run().progress.failed == 0

    place.put("warm.txt", "x")
    place.refresh()
    place.job(PACED, rate="300/min", max_files=3, returns="n BIGINT")
    run()
    add("abcdef")
    run()
    for name in "ghi":
        add(name)
        run()
    times = sorted(row[1] for row in place.table())
    # The first one of six in two batches, by two workers, to the last one; then each in a run of its own.
    assert times[6] - times[1] > 5 * 0.199e9
    assert times[9] - times[6] > 3 * 0.199e9
    with pytest.raises(InvalidValueError, match="would never be called"):
        place.session.jobs.alter("j", rate="0/s")


@pytest.mark.long
def test_a_job_has_as_many_workers_as_it_may(place: Place) -> None:
    put(place, 8)
    place.job("import os, time\ndef f(file):\n    time.sleep(0.05)\n    return {'n': os.getpid()}\n")
    place.run()
    assert len({row[1] for row in place.table()}) == 2
    place.session.jobs.alter("j", parallel=1)
    place.session.jobs.replay("j")
    assert len({row[1] for row in place.table()}) == 1


@pytest.mark.parametrize(
    ("needs", "lacking"),
    [
        ({"cpus": 2}, {"cpus": 1000}),
        pytest.param(
            {"memory": psutil.virtual_memory().total // 2}, {"memory": psutil.virtual_memory().total}, marks=pytest.mark.long
        ),
        pytest.param({"gpus": 2}, {"gpus": 3}, marks=pytest.mark.long),
    ],
    ids=["cpus", "memory", "gpus"],
)
def test_as_many_workers_run_as_this_host_has_room_for(
    place: Place, monkeypatch: pytest.MonkeyPatch, needs: dict[str, Any], lacking: dict[str, Any]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7, 8")
    put(place, 8)
    place.job("import os, time\ndef f(file):\n    time.sleep(0.05)\n    return {'n': os.getpid()}\n", **needs)
    place.run()
    assert len({row[1] for row in place.table()}) == 1
    place.session.jobs.alter("j", **lacking)
    with pytest.raises(InvalidStateError, match=r"Each worker of the job j needs .* for workers"):
        place.session.jobs.replay("j")


@pytest.mark.long
def test_each_worker_sees_its_own_gpus(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,8")
    put(place, 8)
    code = (
        "import os, time\ndef f(file):\n    time.sleep(0.05)\n"
        "    return {'n': os.environ['CUDA_VISIBLE_DEVICES'], 'p': os.getpid()}\n"
    )
    place.job(code, gpus=1, returns="n STRING, p INT")
    place.run()
    assert {row[0] for row in place.table("n")} == {"7", "8"}
    assert len(place.rows(f"SELECT DISTINCT n, p FROM {place.at}")) == 2


def test_what_a_function_counts_is_summed_up_by_batch_run_and_job(place: Place) -> None:
    code = (
        "def f(file):\n    file.count('tokens', 1000 * file.size)\n    file.count('calls')\n"
        "    if file.size == 3: raise ValueError('no')\n    return {'n': file.size}\n"
    )
    for size in range(1, 5):
        place.put(f"{size}.txt", "x" * size)
    place.refresh()
    place.job(code, max_files=2, retries=0)
    progress = place.run().progress
    assert (progress.failed, progress.counted) == (1, {"tokens": 10000, "calls": 4})
    reports = place.session.home.catalog.reports
    job = place.session.jobs.get("j")
    assert isinstance(job, FileJob)
    assert [batch.counted for batch in reports.batches_of(job.id)] == [{"tokens": 7000, "calls": 2}, {"tokens": 3000, "calls": 2}]
    place.session.jobs.retry("j")
    place.run()
    assert reports.counted(job.id) == {"tokens": 13000, "calls": 5}
    assert place.rows(
        "SELECT job, name, sum(number) AS number FROM volstream.counts WHERE day >= current_date() - 1 GROUP BY ALL ORDER BY 2"
    ) == [{"job": "j", "name": "calls", "number": 5.0}, {"job": "j", "name": "tokens", "number": 13000.0}]
    compared = place.session.jobs.compare("j", job.function, both=True)
    assert compared.own_cost is not None
    assert compared.cost.counted == compared.own_cost.counted == {"tokens": 10000, "calls": 4}
    assert reports.counted(job.id) == {"tokens": 13000, "calls": 5}  # as before


@pytest.mark.long
def test_a_slow_rate_holds_no_worker_and_follows_a_change_at_once(place: Place) -> None:
    put(place, 4)
    place.job(PACED, rate="60/h", returns="n BIGINT")
    ended = threading.Event()

    def run() -> None:
        place.run()
        ended.set()

    running = threading.Thread(target=run)
    running.start()
    reports, job = place.session.home.catalog.reports, place.session.jobs.get("j")
    eventually(lambda: reports.totals(job.id)["succeeded"] == 1, 60)
    # One batch for each call, and nothing waits in the engine.
    waiting = reports.waiting(job.id)
    assert (waiting.batches, waiting.files) == (3, 3)
    place.session.jobs.alter("j", rate="6000/min")
    assert ended.wait(60)
    running.join()
    assert len(place.table()) == 4


def test_a_batch_knows_how_many_files_a_call_takes(place: Place) -> None:
    put(place, 40)
    place.job("from volstream import File\ndef f(files: list[File]):\n    return [{'n': len(files)}] * len(files)\n")
    place.run()
    reports, job = place.session.home.catalog.reports, place.session.jobs.get("j")
    [batch] = reports.batches_of(job.id)
    assert batch.files_per_call == 64
