"""Copying a catalog into another one."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, update

from tests import objects
from volstream.base.model.work import ActionState, Target
from volstream.catalog import Catalog, tables, upkeep
from volstream.catalog.consumptions import BatchOutcome


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Catalog]:
    made = Catalog(f"sqlite:///{tmp_path}/other.db")
    yield made
    made.close()


def _fill(catalog: Catalog) -> None:
    """A job with an open attempt, failures, a lease, and a task that has not ended after an action that has."""
    catalog.audit.end(catalog.audit.begin("pause", "job j", "console"), ActionState.FINISHED, "It is paused.")
    catalog.audit.queue(catalog.audit.begin("run", "job j", "console"), {}, "DEFAULT")
    _, _, job = objects.store_job(catalog)
    _, (batch,) = objects.store_plan(catalog, job)
    intent = catalog.consumptions.begin(batch, owner="me", target=Target("/t", "table", 0))
    catalog.failures.add_pending([objects.failure(job, f"päth-{number}", intent.attempt) for number in range(3)])
    catalog.consumptions.commit(intent, BatchOutcome(0, 3, 0))
    stored = catalog.streams.by_id(job.stream_id)
    assert stored is not None
    _, (second,) = objects.store_plan(catalog, job, from_version=stored.offset)
    catalog.consumptions.begin(second, owner="me", target=Target("/t", "table", 0))
    assert catalog.leases.acquire("something", "me", "to test", 100.0) is None


def _rows(catalog: Catalog) -> dict[str, list[tuple[object, ...]]]:
    with catalog.database.reading() as transaction:
        return {
            table.name: sorted((tuple(row) for row in transaction.execute(select(table))), key=repr)
            for table in tables.metadata.sorted_tables
            if table is not tables.identity
        }


def _copied(source: Catalog, target: Catalog) -> None:
    with source.database.snapshot() as rows, target.database.transaction() as transaction:
        assert upkeep.is_empty(transaction)
        upkeep.copy(rows, transaction)
        assert not upkeep.is_empty(transaction)


def test_all_rows_except_leases_are_copied_from_either_database(catalog: Catalog, other: Catalog) -> None:
    _fill(catalog)

    _copied(catalog, other)

    expected = _rows(catalog)
    assert expected.pop("leases")
    assert len(expected["audit"]) == 2
    del expected["audit"][1]
    assert expected["intents"]
    assert expected["failures"]
    assert _rows(other) == {**expected, "leases": []}


def test_rows_are_copied_into_either_database_and_later_ids_continue_after_them(catalog: Catalog, other: Catalog) -> None:
    _fill(other)

    _copied(other, catalog)

    filled = _rows(other)
    assert _rows(catalog) == {**filled, "leases": [], "audit": filled["audit"][:1]}
    job = catalog.jobs.list()[0]
    intent = catalog.consumptions.open_intent(job.stream_id)
    assert intent is not None
    catalog.failures.add_pending([objects.failure(job, "new", intent.attempt)])
    assert len(_rows(catalog)["failures"]) == 4


def test_a_snapshot_excludes_what_is_written_after_it_begins(catalog: Catalog) -> None:
    _, stream, _ = objects.store_job(catalog)
    with catalog.database.snapshot() as snapshot:
        with catalog.database.transaction() as transaction:
            transaction.execute(update(tables.streams).values(comment="later"))
        comments = select(tables.streams.c.comment)
        assert snapshot.execute(comments).scalars().all() == [stream.comment]


def test_writers_wait_while_a_catalog_is_frozen_and_continue_afterwards(catalog: Catalog) -> None:
    _, stream, _ = objects.store_job(catalog)
    changed = dataclasses.replace(stream, comment="later")
    written = threading.Event()

    def write() -> None:
        with catalog.database.transaction() as transaction:
            transaction.execute(update(tables.streams).values(comment=changed.comment))
        written.set()

    with catalog.database.frozen():
        writer = threading.Thread(target=write)
        writer.start()
        assert not written.wait(0.3)
        found = catalog.streams.by_id(stream.id)
        assert found is not None
        assert found.comment == stream.comment
    writer.join()
    assert catalog.streams.by_id(stream.id) == changed
