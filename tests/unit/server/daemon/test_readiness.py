"""A daemon is ready while nothing that it keeps stands still."""

from __future__ import annotations

import dataclasses

import pytest

from volstream.server.daemon.metrics import Readiness

WELL = Readiness(serving=True, kept=2, engine={"state": "running"})


def test_a_daemon_that_serves_and_fails_nowhere_is_ready() -> None:
    assert WELL.ready
    assert WELL.details() == {"status": "ready", "volumes": 2, "engine": {"state": "running"}}
    assert not dataclasses.replace(WELL, serving=False).ready


@pytest.mark.parametrize("part", ["volumes", "sources", "tables"])
def test_what_stands_still_is_named_with_its_reason(part: str) -> None:
    found = dataclasses.replace(WELL, **{part: {"a": "it is gone"}})  # type: ignore[arg-type]  # one of three
    assert not found.ready
    assert found.details()["status"] == "not ready"
    assert found.details()[f"failing_{part}"] == {"a": "it is gone"}


def test_failing_jobs_and_held_removals_are_said_and_do_not_count() -> None:
    found = dataclasses.replace(WELL, jobs={"j": "SqlError"}, held_removals={"v": 3}, engine={"state": "starting"})
    assert found.ready
    assert (found.details()["failing_jobs"], found.details()["held_removals"]) == ({"j": "SqlError"}, {"v": 3})
