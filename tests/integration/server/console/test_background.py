"""What is done in the background: queued, one after the other for an object, cancelled, and remembered."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually
from volstream.api.session import Session
from volstream.base import config
from volstream.catalog.audit import Audit
from volstream.errors import InvalidStateError, NotFoundError
from volstream.server.console.background import Background, Doing, Task, Work


class Desk:
    """Tasks that last until they are let go, or stopped."""

    def __init__(self, audit: Audit) -> None:
        self.audit = audit
        self.news: list[Collection[str]] = []
        self.background = Background(audit, self.news.append)
        self.go = threading.Event()

    def begin(self, action: str = "run", object_: str = "job j", doing: Doing | None = None) -> Task:
        entry = self.audit.begin(action, object_, "test")
        return self.background.begin(entry, action, object_, {}, doing or self._wait)

    def result(self, task: Task) -> str | None:
        eventually(lambda: task.ended_on is not None)
        found = self.audit.entry(task.id)
        assert found is not None
        assert found.ended_on is not None
        return found.result

    def _wait(self, work: Work) -> str:
        work.observe(1, 2, "Waiting")
        while not (self.go.wait(0.01) or work.stop):
            pass
        return "1 file processed."


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Session(config.load(tmp_path / "home")) as session:
        made = Desk(session.home.catalog.audit)
        yield made
        made.background.stop()


def test_an_action_is_queued_behind_the_same_on_its_object_and_beside_others(desk: Desk) -> None:
    first, second, other = desk.begin(), desk.begin(), desk.begin("compare")
    eventually(lambda: (first.done, other.done) == (1, 1))
    assert [one.state for one in (first, second, other)] == ["running", "queued", "running"]
    assert (second.step, first.step, first.files) == ("Waiting for earlier actions.", "Waiting", 2)
    desk.go.set()
    assert [desk.result(one) for one in (first, second, other)] == ["1 file processed."] * 3
    assert [one.state for one in (first, second, other)] == ["finished"] * 3
    assert {"tasks", "job:j"} in desk.news


def test_what_is_queued_is_cancelled_at_once_and_what_runs_at_its_next_step(desk: Desk) -> None:
    first, second = desk.begin(), desk.begin()
    eventually(lambda: first.done == 1)
    desk.background.cancel(str(second.id))
    assert desk.result(second) == "cancelled: It was cancelled."
    assert (second.state, second.began_on, first.state) == ("cancelled", None, "running")
    desk.background.cancel(str(first.id))
    assert desk.result(first) == "cancelled: 1 file processed."
    with pytest.raises(InvalidStateError, match="has already ended"):
        desk.background.cancel(str(first.id))
    with pytest.raises(NotFoundError):
        desk.background.cancel("x")


def test_a_few_are_done_at_once_and_too_many_are_refused(desk: Desk) -> None:
    tasks = [desk.begin(object_=f"job j{number}") for number in range(54)]
    eventually(lambda: sum(task.state == "running" for task in tasks) == 4)
    with pytest.raises(InvalidStateError, match="Too many actions are queued"):
        desk.begin()
    desk.go.set()
    eventually(lambda: all(task.state == "finished" for task in tasks))


def test_one_that_fails_says_why_and_what_helps(desk: Desk) -> None:
    def fails(_: Work) -> str:
        raise InvalidStateError("The job is paused.", "Resume it.")

    task = desk.begin(doing=fails)
    assert desk.result(task) == "failed: The job is paused."
    assert (task.state, task.result, task.remedy) == ("failed", "The job is paused.", "Resume it.")


def test_one_in_hand_is_known_however_many_others_have_ended_since(desk: Desk) -> None:
    slow = desk.begin()
    quick = [desk.begin("refresh", "volume v", lambda _: "done") for _ in range(40)]
    eventually(lambda: quick[-1].ended_on is not None)
    quick += [desk.begin("refresh", "volume v", lambda _: "done") for _ in range(40)]
    eventually(lambda: quick[-1].ended_on is not None)
    assert desk.background.get(str(slow.id)) is slow
    assert len(desk.background.newest("volume v")) == 50
    assert desk.background.newest()[-1].id == slow.id


def test_the_end_of_the_daemon_ends_all_and_takes_no_more(desk: Desk) -> None:
    first, second = desk.begin(), desk.begin()
    eventually(lambda: first.done == 1)
    desk.background.stop()
    assert desk.result(second) == "failed: The daemon has stopped."
    assert desk.result(first) == "1 file processed."
    with pytest.raises(InvalidStateError, match="stopping"):
        desk.begin()
