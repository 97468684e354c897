"""Details of objects, for people and programs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests import objects
from volstream.api.session import Session
from volstream.base.definitions import DynamicJob, FileJob, Job
from volstream.ops.inspection import details
from volstream.ops.inspection.details import next_run


@pytest.mark.parametrize(("kind", "said"), [(FileJob, "when files change"), (DynamicJob, "when its sources change")])
def test_a_job_says_what_it_waits_for(tmp_path: Path, kind: type[Job], said: str) -> None:
    made = dataclasses.replace(objects.job(objects.stream()), on_change=True)
    values: dict[str, Any] = {field.name: getattr(made, field.name, "SELECT 1") for field in dataclasses.fields(kind)}
    with Session.builder.config("home", tmp_path).create() as session:
        assert next_run(session.home, kind(**values)) == (None, said)


def test_durations_are_shown_in_milliseconds() -> None:
    assert details.values(objects.job(objects.stream(), timeout=0.1 + 0.2))["timeout"] == 0.3
