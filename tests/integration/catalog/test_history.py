"""Forgetting what ended long ago."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import func, select

from tests import objects
from volstream.base.model.work import Refresh, Target
from volstream.catalog import Catalog, tables
from volstream.catalog.consumptions import BatchOutcome

LATER = objects.NOW + timedelta(days=100)
TARGET = Target("/t", "table", 0)


def counts(catalog: Catalog) -> dict[str, int]:
    of = (tables.refreshes, tables.plans, tables.batches, tables.intents)
    with catalog.database.reading() as transaction:
        return {one.name: transaction.execute(select(func.count()).select_from(one)).scalar_one() for one in of}


def test_finished_work_is_forgotten_while_totals_and_open_work_stay(catalog: Catalog) -> None:
    volume, stream, job = objects.store_job(catalog)
    for number in range(1, 31):
        catalog.refreshes.record(Refresh(volume.id, number, "events", 2, 1, 1, 10, objects.NOW))
    for _ in range(3):
        current = catalog.streams.by_id(stream.id)
        assert current is not None
        _, batches = objects.store_plan(catalog, job, 2, from_version=current.offset, to_version=20)
        for batch in batches:
            intent = catalog.consumptions.begin(batch, owner="me", target=TARGET)
            catalog.consumptions.commit(intent, BatchOutcome(2, 1, 5))
    kept, _ = objects.store_plan(catalog, job, 2, from_version=20)

    assert catalog.history.forget(objects.NOW, kept=5) == 0, "nothing is older"
    catalog.history.forget(LATER, kept=5)

    # A stream has read up to refresh 20, and an open plan reads from there on.
    assert counts(catalog) == {"refreshes": 10, "plans": 1, "batches": 2, "intents": 0}
    assert catalog.consumptions.open_plan(stream.id) == kept
    assert catalog.reports.totals(job.id) == {"batches": 6, "succeeded": 12, "failed": 6, "rows": 30, "bytes": 120}
    assert catalog.refreshes.file_count(volume.id) == 30
    assert catalog.refreshes.changed_after(volume.id, None) == (120, 300)
    assert catalog.refreshes.changed_after(volume.id, 20) == (40, 100)
    catalog.consumptions.drop_plan(kept)
    catalog.history.forget(LATER, kept=5)
    assert counts(catalog)["plans"] == 0
    assert catalog.history.forget(LATER, kept=5) == 0


def test_the_newest_refreshes_are_kept_even_without_a_stream(catalog: Catalog) -> None:
    source = objects.volume()
    with catalog.database.transaction() as transaction:
        catalog.volumes.add(transaction, source)
    for number in range(1, 11):
        catalog.refreshes.record(Refresh(source.id, number, "events", 1, 0, 0, 1, objects.NOW))
    catalog.history.forget(LATER, kept=3)
    assert [one.number for one in catalog.refreshes.committed(source.id)] == [8, 9, 10]
    assert catalog.refreshes.file_count(source.id) == 10
