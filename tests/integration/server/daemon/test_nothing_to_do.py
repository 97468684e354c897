"""A scheduler that says that a job has nothing to do, against the long way: in random histories of two processes."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.integration.conftest import Place, session_on
from tests.interrupts import meanwhile
from volstream.base.definitions import JobState
from volstream.base.threads import Stop
from volstream.errors import InterruptedByUserError, VolstreamError
from volstream.server.daemon.jobs import Scheduler

#: A file fails whose text begins with x.
CODE = """
def f(file):
    if file.read_text().startswith("x"):
        raise ValueError("no")
    return {"n": file.size}
"""


class History:
    """A job that another session of the home changes and runs, beside a scheduler that only looks."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place = place
        self.pick = random.Random(seed)
        home = place.session.home
        self.other = session_on(place.gateway, home.settings)
        looks = (home.zone, lambda _: True, Stop(), lambda: True)
        self.scheduler = Scheduler(home.catalog, place.session.jobs.runner, home.settings, *looks)
        self.create()

    def create(self) -> None:
        self.place.job(CODE, on_change=True, retries=self.pick.choice([0, 1]), or_replace=True)

    def write(self) -> None:
        name = str(self.pick.randrange(5))
        if self.pick.random() < 0.2 and (self.place.folder / name).exists():
            (self.place.folder / name).unlink()
        else:
            self.place.put(name, self.pick.choice("ax") * self.pick.randrange(1, 9))

    def refresh(self) -> None:
        self.other.volumes.refresh("v", accept_removals=True)

    def run(self) -> None:
        self.other.jobs.run("j")

    def die(self) -> None:
        """A run leaves its plan, or its attempt, open."""
        at = self.pick.choice(
            ["volstream.jobs.batches.attempt.BatchExecutor._commit", "volstream.catalog.consumptions.Consumptions.begin"]
        )

        def interrupt() -> None:
            raise KeyboardInterrupt

        with suppress(KeyboardInterrupt, InterruptedByUserError), meanwhile("call", at, interrupt, must=False):
            self.run()

    def alter(self) -> None:
        options: dict[str, object] = self.pick.choice(
            [{"where": "size > 3"}, {"where": ""}, {"max_files": 2}, {"retries": 2}, {"comment": str(self.pick.random())}]
        )
        self.other.jobs.alter("j", **options)  # type: ignore[arg-type]  # options of one kind each

    def act(self) -> str:
        acts: list[Callable[[], object]] = [
            *(self.write, self.refresh, self.refresh, self.run, self.run, self.die, self.alter, self.create),
            lambda: self.other.jobs.retry("j"),
            lambda: self.other.jobs.skip("j"),
            lambda: self.other.jobs.replay("j"),
            lambda: self.other.jobs.pause("j"),
            lambda: self.other.jobs.resume("j"),
        ]
        chosen = self.pick.choice(acts)
        with suppress(VolstreamError):  # such as nothing to replay
            chosen()
        return getattr(chosen, "__name__", "act")

    def says_nothing(self) -> bool:
        """The scheduler's answer, each time it looks after a change."""
        self.scheduler._checks_at = 0.0
        listed = [*self.scheduler._check()]
        job = next((job for job in listed if str(job.name).endswith("j")), None)
        return job is None or not self.scheduler._is_due(job)


@pytest.mark.parametrize(
    ("seeds", "steps"),
    [(range(2), 12), pytest.param(range(100, 140), 30, marks=[pytest.mark.long, pytest.mark.timeout(3600)])],
    ids=["some", "many"],
)
def test_a_job_is_left_alone_only_if_it_has_nothing_to_do(place: Place, seeds: range, steps: int) -> None:
    for seed in seeds:
        history = History(place, seed)
        done: list[str] = []
        for _ in range(steps):
            done.append(history.act())
            quiet = history.says_nothing()
            job = place.session.jobs.get("j")
            if quiet and job.state is not JobState.PAUSED:
                again = history.says_nothing()  # it was asked once already, and may look only if something changed
                assert not (again and place.session.jobs.runner(job).has_work()), (seed, done)
