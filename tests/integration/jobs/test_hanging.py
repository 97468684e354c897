"""Calls that never return, of jobs without a time limit: what ends them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.conftest import Place, session_on
from tests.waiting import eventually
from volstream.api.session import Session
from volstream.base.definitions import JobState
from volstream.errors import FencedError, VolstreamError
from volstream.jobs.batches import attempt
from volstream.jobs.runs.lease import RunReport

HANGING = """
import pathlib, time
def f(file):
    while file.read_text() == "hangs" and pathlib.Path({0!r}).exists():
        time.sleep(0.05)
    return {{"n": file.size}}
"""


class Hanging:
    """A job whose run hangs until the latch file is removed."""

    def __init__(self, place: Place, session: Session, latch: Path) -> None:
        self.place, self.session, self.latch = place, session, latch
        self.ended: RunReport | VolstreamError | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.ended = self.session.jobs.run("j")
        except VolstreamError as error:
            self.ended = error

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the function hangs; the run ends with the block, although the function would not."""
        job = self.session.jobs.get("j")
        self._thread.start()
        eventually(lambda: self.session.home.catalog.consumptions.open_intent(job.stream_id) is not None, 60)
        yield
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.latch.exists()


@pytest.fixture
def hanging(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    monkeypatch.setattr(attempt, "LOOK_SECONDS", 0.1)
    latch = tmp_path / "latch"
    latch.touch()
    place.put("a.txt", "fine")
    place.put("b.txt", "hangs")
    place.refresh()
    place.job(HANGING.format(str(latch)))
    settings = place.session.home.settings.model_copy(update={"batch_seconds": 0.5})
    with session_on(place.gateway, settings) as session:
        yield Hanging(place, session, latch)


def test_a_run_of_a_dropped_job_ends(hanging: Hanging) -> None:
    with hanging.running():
        hanging.place.session.jobs.drop("j", force=True)
    assert isinstance(hanging.ended, FencedError)
    assert "was dropped" in hanging.ended.message
    hanging.latch.unlink()
    hanging.place.job(HANGING.format(str(hanging.latch)))
    hanging.place.run()
    assert hanging.place.table() == [("a.txt", 4), ("b.txt", 5)]


def test_a_paused_job_does_not_wait_for_its_batch_for_ever(hanging: Hanging) -> None:
    with hanging.running():
        hanging.place.session.jobs.pause("j")
    assert isinstance(hanging.ended, RunReport)
    assert hanging.ended.paused is not None
    hanging.latch.unlink()
    job = hanging.place.session.jobs.resume("j")
    assert job.state is JobState.ACTIVE
    assert hanging.place.run().progress.failed == 0
    assert hanging.place.table() == [("a.txt", 4), ("b.txt", 5)]


def test_a_time_limit_applies_to_the_batch_that_runs(hanging: Hanging) -> None:
    with hanging.running():
        hanging.place.session.jobs.alter("j", timeout="1s")
    assert isinstance(hanging.ended, RunReport)
    assert (hanging.ended.progress.processed, hanging.ended.progress.failed) == (1, 1)
    assert hanging.place.table() == [("a.txt", 4)]


def test_a_run_that_another_process_took_over_ends(hanging: Hanging) -> None:
    with hanging.running():
        catalog = hanging.place.session.home.catalog
        intent = catalog.consumptions.open_intent(hanging.session.jobs.get("j").stream_id)
        assert intent is not None
        catalog.consumptions.abort(intent, "taken over")
    assert isinstance(hanging.ended, FencedError)
