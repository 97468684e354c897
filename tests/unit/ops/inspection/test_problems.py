"""The overview's verdict: what is wrong, the severe first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from volstream.ops.inspection.status import Problem, problems
from volstream.spark.engine.client import EngineStatus

NOTHING: dict[str, Any] = {"volumes": [], "streams": [], "jobs": [], "tables": [], "sources": [], "alerts": []}


def job(**values: Any) -> dict[str, Any]:
    given = {"job": "j", "state": "active", "trigger": "on change", "failures": {}, "interrupted": False, "unit": "file"}
    return {**given, **dict.fromkeys(("reason", "trouble", "code")), **values}


def volume(**values: Any) -> dict[str, Any]:
    return {"volume": "v", "trouble": None, "held_removals": 0, **values}


def test_a_home_where_all_is_well_has_no_problems() -> None:
    assert problems({**NOTHING, "jobs": [job()], "volumes": [volume()]}, {"engine": {"state": "running"}}) == []
    assert problems(NOTHING, {}) == []


def test_what_stands_still_comes_before_what_waits_for_a_decision() -> None:
    status = {
        **NOTHING,
        "jobs": [job(failures={"quarantined": 2})],
        "streams": [{"stream": "s", "note": "its volume v was dropped", "stale": True}],
    }
    assert [(problem.kind, problem.severe) for problem in problems(status, {})] == [("stream", True), ("job", False)]


def test_a_volume_is_named_once_by_what_the_daemon_or_the_catalog_says() -> None:
    status = {**NOTHING, "volumes": [volume(trouble="its folder is gone")]}
    for probed in ({}, {"failing_volumes": {"v": "its folder is gone"}}):
        (found,) = problems(status, probed)
        assert (found.name, found.why) == ("v", "its folder is gone")


def test_held_removals_are_a_decision_with_its_command() -> None:
    (found,) = problems({**NOTHING, "volumes": [volume(held_removals=3)]}, {})
    assert not found.severe
    assert found.do.endswith("volstream refresh v --accept-removals")


def test_everything_that_fails_is_found() -> None:
    status = {
        **NOTHING,
        "jobs": [job(state="paused", reason="all files failed"), job(job="k")],
        "tables": [{"table": "t", "note": "disk full"}],
        "sources": [{"name": "topic", "error": "no broker"}],
        "metastore": {"name": "unity", "trouble": "It does not answer."},
        "disabled": [("b", "no Java")],
    }
    probed = {"engine": {"state": "restarting", "reason": "killed"}, "failing_jobs": {"k": "SqlError"}}
    found = {(problem.kind, problem.name) for problem in problems(status, probed)}
    assert found == {
        ("engine", ""),
        ("engine", "b"),
        ("job", "j"),
        ("job", "k"),
        ("table", "t"),
        ("source", "topic"),
        ("metastore", "unity"),
    }


@pytest.mark.parametrize(
    ("given", "severe", "why", "do"),
    [
        ({"state": "paused"}, False, "It was paused manually.", "volstream resume j"),
        ({"state": "paused", "reason": "no file works"}, True, "It paused itself: no file works", "volstream resume j"),
        ({"trouble": "no Java\nInstall it."}, True, "Its run failed: no Java", "Install it."),
        ({"trouble": "no Java"}, True, "Its run failed: no Java", "volstream describe job j"),
        ({"trouble": "no Java", "trigger": "manual"}, True, "Its run failed: no Java", "volstream run-job j"),
        ({"code": "There is no file f.py.", "trouble": "old"}, True, "Its function is missing: There is no file f.py.", None),
        ({"interrupted": True, "trigger": "manual"}, True, None, "volstream run-job j"),
        ({"failures": {"quarantined": 1, "retrying": 2}}, False, "1 file quarantined. 2 more will be retried.", None),
        (
            {"failures": {"retrying": 1}, "trigger": "manual"},
            False,
            "1 file failed and will be retried by the next run.",
            "volstream list failures --job j",
        ),
    ],
)
def test_what_is_wrong_with_a_job_is_said_with_what_helps(
    given: dict[str, Any], severe: bool, why: str | None, do: str | None
) -> None:
    (found,) = problems({"jobs": [job(**given)]}, {})
    assert found.severe is severe
    assert why in (None, found.why)
    assert do in (None, found.do)


def test_files_that_a_person_skipped_or_that_wait_for_the_directory_are_no_problem() -> None:
    assert problems({"jobs": [job(failures={"skipped": 3, "waiting": 1})]}, {}) == []


def test_a_line_about_a_problem_has_the_first_line_of_its_cause() -> None:
    assert (
        Problem(True, "job", "j", "It failed: one\ntwo", "volstream resume j").line
        == "■ job j: It failed: one. Run: volstream resume j"
    )


def test_a_daemon_that_runs_without_its_leases_is_not_said_to_be_missing() -> None:
    def found(engine: EngineStatus | None) -> list[tuple[bool, str]]:
        status = {**NOTHING, "unattended": ["j"], "engine": engine}
        return [(problem.severe, problem.why.split(",")[0]) for problem in problems(status, {})]

    assert found(None) == [(False, "No daemon is running")]
    assert found(EngineStatus("running", "background", 7, 8, 9, 0, 600.0)) == [(False, "No daemon is running")]
    assert found(EngineStatus("running", "daemon", 7, 8, 9, 0, 600.0)) == [(True, "The daemon")]
    assert found(EngineStatus("running", "daemon", 7, 8, 9, 0, 5.0)) == [], "it has just begun"


def test_a_batch_of_calls_without_a_limit_that_takes_long_may_hang() -> None:
    long_ago = datetime.now(UTC) - timedelta(minutes=25)
    (problem,) = problems({"jobs": [job(endless=long_ago)]}, {})
    assert (problem.severe, problem.do) == (False, "volstream alter-job j --timeout 10m")
    assert problem.why == "Its batch has been running for 25 min, and its calls have no time limit."
    assert problems({"jobs": [job(endless=datetime.now(UTC) - timedelta(minutes=5))]}, {}) == []


def test_jobs_that_cannot_begin_are_a_problem_with_those_in_the_way() -> None:
    crowd = {"running": ["a", "b"], "since": datetime.now(UTC) - timedelta(minutes=9), "waiting": 3}
    (problem,) = problems({**NOTHING, "crowd": crowd}, {})
    assert problem.severe
    assert problem.why == "3 jobs or more cannot begin: a, b took all places more than 9 min ago."
