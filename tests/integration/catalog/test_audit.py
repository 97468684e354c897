"""What was done from the console, and how open pages learn of changes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests import objects
from volstream.base.model.work import ActionState, Refresh
from volstream.catalog import Catalog
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.changes import HOME, TASKS, Changes
from volstream.catalog.definitions import note_begun
from volstream.errors import NotFoundError


def test_entries_are_read_newest_first_page_by_page(catalog: Catalog) -> None:
    ids = [catalog.audit.begin("retry", f"job j{number}", "console") for number in range(5)]
    catalog.audit.end(ids[0], ActionState.FINISHED, "1 file due again.")
    first = catalog.audit.newest(limit=3)
    rest = catalog.audit.newest(before=first[-1].id, limit=3)
    assert [entry.id for entry in [*first, *rest]] == ids[::-1]
    assert catalog.audit.entry(ids[0]) == rest[-1]
    assert (rest[-1].result, first[0].result, first[0].ended_on) == ("1 file due again.", None, None)
    assert catalog.audit.entry(99) is None


def test_a_task_is_open_for_its_cluster_until_it_ends_and_its_progress_ends_with_it(catalog: Catalog) -> None:
    audit = catalog.audit
    done, run = audit.begin("pause", "job j", "console"), audit.begin("run", "job j", "console")
    task = audit.queue(run, {"where": "size > 1"}, "A")
    assert (task.state, task.parameters, task.cluster) == (ActionState.QUEUED, {"where": "size > 1"}, "A")
    assert (audit.open("A"), audit.open("B"), audit.tasks("job j", "run")) == ([task], [], [task])
    assert (audit.tasks("job k"), audit.tasks("job j", "verify")) == ([], [])
    audit.end(run, ActionState.FAILED, "It is wrong.", outcome={"files": ["a"]})
    audit.note(run, state=ActionState.RUNNING, step="late")
    ended = audit.task(str(run))
    assert (ended.state, ended.result, ended.step, audit.open("A")) == (ActionState.FAILED, "It is wrong.", None, [])
    assert audit.outcome(run) == {"files": ["a"]}
    for none in (str(done), "99", "x", "9" * 20):
        with pytest.raises(NotFoundError):
            audit.task(none)


def test_old_entries_are_forgotten_with_the_rest_of_the_history(catalog: Catalog) -> None:
    entry = catalog.audit.begin("pause", "job j", "console")
    began = catalog.audit.newest()[0].began_on
    catalog.history.forget(began, kept=1)
    assert catalog.audit.entry(entry) is not None
    catalog.history.forget(began + timedelta(seconds=1), kept=1)
    assert catalog.audit.entry(entry) is None


def test_a_look_names_what_changed_since_the_last_one(catalog: Catalog) -> None:
    volume, _, job = objects.store_job(catalog)
    changes = Changes(catalog.database)
    assert changes.since_last() == {f"volume:{volume.name}", f"job:{job.name}", HOME, TASKS}
    assert changes.since_last() == set()
    catalog.conditions.note(ConditionKind.VOLUME, volume.id, "gone")
    assert changes.since_last() == {f"volume:{volume.name}"}
    note_begun(catalog.database, job)
    assert changes.since_last() == {f"job:{job.name}"}
    catalog.refreshes.record(Refresh(volume.id, 1, "events", 1, 0, 0, 1, objects.NOW))
    objects.store_plan(catalog, job, 2)
    assert changes.since_last() == {f"volume:{volume.name}", f"job:{job.name}"}
    entry = catalog.audit.begin("run", "job j", "console")
    assert changes.since_last() == {HOME, TASKS}
    catalog.audit.queue(entry, {}, "DEFAULT")
    assert changes.since_last() == {TASKS}
    catalog.audit.note(entry, done=1)
    assert changes.since_last() == {TASKS}
