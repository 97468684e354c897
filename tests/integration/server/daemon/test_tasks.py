"""Tasks of the console: queued, one after the other for an object, cancelled, remembered, and taken up again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.server.working import working
from tests.waiting import eventually
from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions.objects import DEFAULT_VIRTUAL_CLUSTER
from volstream.base.model.work import ActionState, AuditEntry
from volstream.errors import InvalidStateError
from volstream.server.console.queries import TaskBody, Work


class Desk:
    """Tasks that last until they are let go, or stopped."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.audit = session.home.catalog.audit
        self.go = threading.Event()
        self.begun: list[int] = []

    def queue(self, action: str = "run", object_: str = "job j") -> int:
        entry = self.audit.begin(action, object_, "test")
        return self.audit.queue(entry, {}, DEFAULT_VIRTUAL_CLUSTER).id

    def now(self, task: int) -> AuditEntry:
        return self.audit.task(str(task))

    def states(self, *tasks: int) -> list[str]:
        return [str(self.now(task).state) for task in tasks]

    def result(self, task: int) -> str | None:
        eventually(lambda: self.now(task).ended_on is not None)
        return self.now(task).result

    def doing(self, task: AuditEntry) -> TaskBody:
        def do(work: Work) -> str:
            self.begun.append(task.id)
            if task.action == "fail":
                raise InvalidStateError("The job is paused.", "Resume it.")
            work.observe(1, 2, "Waiting")
            while not (self.go.wait(0.01) or work.stop):
                pass
            work.outcome = {"files": {1}}
            return "1 file processed."

        return do


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Session(config.load(tmp_path / "home")) as session:
        yield Desk(session)


def test_a_task_waits_for_others_on_its_object(desk: Desk) -> None:
    first, second = desk.queue(), desk.queue("verify")
    with working(desk.session, desk.doing):
        eventually(lambda: desk.now(first).done == 1)
        eventually(lambda: desk.now(second).step == "Waiting for earlier actions.")
        assert desk.states(first, second) == ["running", "queued"]
        assert (desk.now(first).step, desk.now(first).files) == ("Waiting", 2)
        desk.go.set()
        assert [desk.result(one) for one in (first, second)] == ["1 file processed."] * 2
    assert desk.states(first, second) == ["finished"] * 2
    assert desk.audit.outcome(first) == {"files": [1]}
    assert desk.begun.index(first) < desk.begun.index(second)


def test_what_is_queued_is_cancelled_at_once_and_what_runs_at_its_next_step(desk: Desk) -> None:
    first, second = desk.queue(), desk.queue()
    with working(desk.session, desk.doing):
        eventually(lambda: desk.now(first).done == 1)
        desk.audit.cancel(str(second))
        assert desk.result(second) == "It was cancelled."
        assert desk.states(first, second) == ["running", "cancelled"]
        desk.audit.cancel(str(first))
        assert desk.result(first) == "1 file processed."
    assert desk.states(first) == ["cancelled"]
    assert desk.begun == [first]
    with pytest.raises(InvalidStateError, match="has already ended"):
        desk.audit.cancel(str(first))


def test_a_few_are_done_at_once_and_too_many_are_refused(desk: Desk) -> None:
    tasks = [desk.queue(object_=f"job j{number}") for number in range(54)]
    with working(desk.session, desk.doing):
        eventually(lambda: desk.states(*tasks).count("running") == 4)
        with pytest.raises(InvalidStateError, match="Too many actions are queued"):
            desk.queue()
        desk.go.set()
        eventually(lambda: desk.states(*tasks) == ["finished"] * 54, 30)


def test_one_that_fails_says_why_and_what_helps(desk: Desk) -> None:
    task = desk.queue("fail")
    with working(desk.session, desk.doing):
        assert desk.result(task) == "The job is paused."
    found = desk.now(task)
    assert (found.state, found.error, found.remedy) == (ActionState.FAILED, "InvalidStateError", "Resume it.")


def test_work_on_jobs_waits_for_the_engine_and_work_on_volumes_does_not(desk: Desk) -> None:
    run, refresh = desk.queue(), desk.queue("refresh", "volume v")
    up = False
    desk.go.set()
    with working(desk.session, desk.doing, lambda: up):
        assert desk.result(refresh) == "1 file processed."
        eventually(lambda: desk.now(run).step == "Waiting for the Spark engine.")
        up = True
        assert desk.result(run) == "1 file processed."


def test_what_a_daemon_had_in_hand_or_in_its_queue_when_it_ended_is_done_by_the_next(desk: Desk) -> None:
    first, second, third = desk.queue(), desk.queue(), desk.queue("refresh", "volume v")
    with working(desk.session, desk.doing):
        eventually(lambda: desk.states(first, second, third) == ["running", "queued", "running"])
        desk.audit.cancel(str(third))
        assert desk.result(third) == "1 file processed."
    assert desk.states(first, second, third) == ["running", "queued", "cancelled"]
    desk.go.set()
    with working(desk.session, desk.doing):
        assert [desk.result(one) for one in (first, second)] == ["1 file processed."] * 2
    assert desk.begun.count(third) == 1


def test_a_task_is_given_up_if_it_may_be_what_kills_daemons_but_not_because_they_end(desk: Desk) -> None:
    deadly, other = desk.queue(), desk.queue("run", "job k")
    desk.audit.note(deadly, attempts=3)  # as daemons leave it that are killed
    for _ in range(4):
        with working(desk.session, desk.doing):
            eventually(lambda: desk.now(other).attempts == 1)
    assert desk.result(deadly) == "The daemon was killed 3 times while it did this."
    assert desk.begun.count(other) == 4
    assert (desk.states(deadly, other), desk.now(other).attempts) == (["failed", "running"], 0)


def test_one_of_two_daemons_does_a_task_and_each_does_those_of_its_cluster(desk: Desk) -> None:
    tasks = [desk.queue(object_=f"job j{number}") for number in range(8)]
    elsewhere = desk.audit.queue(desk.audit.begin("run", "job j", "test"), {}, "OTHER").id
    desk.go.set()
    with working(desk.session, desk.doing), working(desk.session, desk.doing):
        eventually(lambda: desk.states(*tasks) == ["finished"] * 8)
    assert sorted(desk.begun) == tasks
    assert desk.states(elsewhere) == ["queued"]
