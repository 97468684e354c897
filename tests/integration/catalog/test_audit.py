"""What was done from the console, and how open pages learn of changes."""

from __future__ import annotations

from datetime import timedelta

from tests import objects
from volstream.base.model.work import Refresh
from volstream.catalog import Catalog
from volstream.catalog.changes import HOME, Changes
from volstream.catalog.conditions import ConditionKind
from volstream.catalog.definitions import note_begun


def test_entries_are_read_newest_first_page_by_page(catalog: Catalog) -> None:
    ids = [catalog.audit.begin("retry", f"job j{number}", "console") for number in range(5)]
    catalog.audit.end(ids[0], "1 file due again.")
    first = catalog.audit.newest(limit=3)
    rest = catalog.audit.newest(before=first[-1].id, limit=3)
    assert [entry.id for entry in [*first, *rest]] == ids[::-1]
    assert catalog.audit.entry(ids[0]) == rest[-1]
    assert (rest[-1].result, first[0].result, first[0].ended_on) == ("1 file due again.", None, None)
    assert catalog.audit.entry(99) is None


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
    assert changes.since_last() == {f"volume:{volume.name}", f"job:{job.name}", HOME}
    assert changes.since_last() == set()
    catalog.conditions.note(ConditionKind.VOLUME, volume.id, "gone")
    assert changes.since_last() == {f"volume:{volume.name}"}
    note_begun(catalog.database, job)
    assert changes.since_last() == {f"job:{job.name}"}
    catalog.refreshes.record(Refresh(volume.id, 1, "events", 1, 0, 0, 1, objects.NOW))
    objects.store_plan(catalog, job, 2)
    assert changes.since_last() == {f"volume:{volume.name}", f"job:{job.name}"}
    catalog.audit.begin("pause", "job j", "console")
    assert changes.since_last() == {HOME}
