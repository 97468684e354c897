"""The overview's verdict: what is wrong, the severe first."""

from __future__ import annotations

from typing import Any

from volstream.inspection.problems import problems

NOTHING: dict[str, Any] = {"volumes": [], "streams": [], "jobs": [], "tables": [], "sources": [], "alerts": []}


def job(**values: Any) -> dict[str, Any]:
    return {"job": "j", "reason": None, "failures": {}, **values}


def volume(**values: Any) -> dict[str, Any]:
    return {"volume": "v", "trouble": None, "held_removals": 0, **values}


def test_a_home_where_all_is_well_has_no_problems() -> None:
    assert problems({**NOTHING, "jobs": [job()], "volumes": [volume()]}, {"engine": {"state": "running"}}) == []
    assert problems(NOTHING, {}) == []


def test_what_stands_still_comes_before_what_waits_for_a_decision() -> None:
    status = {
        **NOTHING,
        "jobs": [job(failures={"quarantined": 2})],
        "streams": [{"stream": "s", "note": "its volume v was dropped"}],
    }
    assert [(one.kind, one.severe) for one in problems(status, {})] == [("stream", True), ("job", False)]


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
        "jobs": [job(reason="all files failed"), job(job="k")],
        "tables": [{"table": "t", "note": "disk full"}],
        "sources": [{"name": "topic", "error": "no broker"}],
    }
    probed = {"engine": {"state": "restarting", "reason": "killed"}, "failing_jobs": {"k": "SqlError"}}
    found = {(one.kind, one.name) for one in problems(status, probed)}
    assert found == {("engine", ""), ("job", "j"), ("job", "k"), ("table", "t"), ("source", "topic")}
