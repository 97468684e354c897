"""The advice in the list of failures."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from tests import objects
from volstream.base.model.units import about
from volstream.base.model.work import FailureKind, FailureState
from volstream.functions.printing import PRINTED_LAST
from volstream.ops.inspection.details import automatic_action, remedy, where_printed

JOB = objects.job(objects.stream(), retries=3, on_change=True)


def failure(state: FailureState, **changes: Any) -> Any:
    return objects.failure(JOB, "a b.txt", "attempt", state=state, **changes)


@pytest.mark.parametrize(("left", "said"), [(-5, "at the next run"), (45, "in 45 s"), (600, "in 10 min"), (8000, "in 2 h")])
def test_a_retry_says_when_it_happens_and_how_many_are_left(left: int, said: str) -> None:
    one = failure(FailureState.RETRYING, attempts=2, next_try=objects.NOW + timedelta(seconds=left))
    assert automatic_action(one, JOB, objects.NOW) == f"retry {said} (2 of 4 attempts done)"


def test_files_of_a_manual_job_are_not_retried_by_themselves() -> None:
    one = failure(FailureState.RETRYING, attempts=2, next_try=objects.NOW - timedelta(minutes=4))
    manual = dataclasses.replace(JOB, on_change=False)
    assert automatic_action(one, manual, objects.NOW) == "retried by the next run (2 of 4 attempts done)"


@pytest.mark.parametrize("state", [FailureState.WAITING, FailureState.SKIPPED, FailureState.QUARANTINED])
def test_a_failure_that_is_not_retried_says_what_it_waits_for(state: FailureState) -> None:
    assert "change" in automatic_action(failure(state, next_try=None), JOB, objects.NOW)


@pytest.mark.parametrize("kind", FailureKind)
def test_every_kind_of_failure_has_a_remedy(kind: FailureKind) -> None:
    said = remedy(failure(FailureState.QUARANTINED, kind=kind), JOB, "images")
    assert "volstream retry classify 'a b.txt'" in said
    waiting = remedy(failure(FailureState.WAITING, kind=kind), JOB, "images")
    other = {
        FailureKind.RETRY_LATER: "Sooner: volstream retry classify 'a b.txt'",
        FailureKind.HELD: "Nothing to do: it is processed once it has not changed for a while.",
        FailureKind.STORE: "See why the volume images cannot be read: volstream doctor",
    }
    assert waiting == other.get(kind, "volstream refresh images")


def test_a_set_that_is_not_complete_waits_for_files() -> None:
    held = failure(FailureState.WAITING, kind=FailureKind.HELD, next_try=None)
    assert automatic_action(held, JOB, objects.NOW) == "waits for more files"
    assert remedy(held, JOB, "images").startswith("Add its missing files")


def test_a_failure_of_no_particular_kind_is_the_files() -> None:
    said = remedy(failure(FailureState.QUARANTINED, kind=FailureKind.VANISHED), JOB, "images")
    assert said == "Look at the file, then volstream retry classify 'a b.txt'; or: volstream skip classify 'a b.txt'"


def test_a_file_whose_function_asked_to_be_called_later_says_when() -> None:
    asked = {"kind": FailureKind.RETRY_LATER, "next_try": objects.NOW + timedelta(seconds=45)}
    said = automatic_action(failure(FailureState.WAITING, **asked), JOB, objects.NOW)
    assert said == "called again in 45 s, as it requested"


def test_a_failure_with_output_says_where_to_find_it() -> None:
    command = "volstream logs classify --file 'a b.txt'"
    for changes, printed in (
        ({"traceback": "Traceback ..."}, False),
        ({"traceback": None}, False),
        ({"traceback": f"Traceback ...\n{PRINTED_LAST}\n[stdout] x"}, True),
        ({"kind": FailureKind.WORKER_DIED, "traceback": "Fatal Python error"}, True),
    ):
        one = failure(FailureState.QUARANTINED, **changes)
        assert (command in remedy(one, JOB, "images")) == printed
        assert where_printed(one, JOB) == (command if printed else None)


def test_durations_are_readable() -> None:
    assert [about(seconds) for seconds in (0.2, 89, 91, 5400, 129_600)] == ["1 s", "89 s", "2 min", "2 h", "2 days"]
