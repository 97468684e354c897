"""Refreshes of directories, requests to check keys, and rejections."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import pytest

from tests import objects
from tests.processes import race
from volstream.base.definitions import StreamMode, Volume
from volstream.base.model.hints import Rejection
from volstream.base.model.work import Completeness, Refresh
from volstream.catalog import Catalog
from volstream.errors import CatalogError


@pytest.fixture
def volume(catalog: Catalog) -> Volume:
    source = objects.volume()
    with catalog.database.transaction() as transaction:
        catalog.volumes.add(transaction, source)
    return source


def refresh(volume: Volume, number: int, *counts: int) -> Refresh:
    inserted, updated, deleted, size = counts or (1, 2, 3, 4)
    made_on = objects.NOW + timedelta(minutes=number)
    return Refresh(volume.id, number, "events", inserted, updated, deleted, size, made_on)


def test_a_refresh_is_recorded_once_and_counted(catalog: Catalog, volume: Volume) -> None:
    for number in (1, 2, 2, 4, 3):
        catalog.refreshes.record(refresh(volume, number))
    current = catalog.volumes.by_id(volume.id)
    assert current is not None
    assert current.refresh_count == 4
    assert [one.number for one in catalog.refreshes.committed(volume.id)] == [1, 2, 3, 4]
    assert [one.number for one in catalog.refreshes.committed(volume.id, after=2)] == [3, 4]
    assert catalog.refreshes.last(volume.id) == refresh(volume, 4)
    times = [objects.NOW + timedelta(minutes=minutes) for minutes in (0, 1, 2.5, 9)]
    assert [catalog.refreshes.at(volume.id, time) for time in times] == [None, 1, 2, 4]


def test_a_refresh_of_a_dropped_volume_is_not_recorded(catalog: Catalog, volume: Volume) -> None:
    with catalog.database.transaction() as transaction:
        catalog.volumes.remove(transaction, volume)
    with pytest.raises(CatalogError):
        catalog.refreshes.record(refresh(volume, 1))


def test_versions_that_streams_and_open_plans_read_from_are_needed(catalog: Catalog) -> None:
    source, on_it, job = objects.store_job(catalog)
    needed = catalog.refreshes.needed_after
    assert needed(source.id) == 3
    assert needed("another volume") is None
    catalog.streams.change(on_it, offset=9)
    assert needed(source.id) == 9
    objects.store_plan(catalog, job, from_version=5, to_version=8)
    assert needed(source.id) == 5, "a plan that is open may be written again"
    (plan,) = catalog.consumptions.open_plans()
    made = catalog.reports.plan(plan)
    assert made is not None
    catalog.consumptions.drop_plan(made)
    assert needed(source.id) == 9
    objects.store_plan(catalog, job, from_version=None, to_version=8)
    assert needed(source.id) == 8, "what was there at its end"
    catalog.streams.change(on_it, offset=0)
    assert needed(source.id) == 8, "from the beginning on, all that there is now is read"
    catalog.streams.change(on_it, mode=StreamMode.APPEND_ONLY)
    assert needed(source.id) == 0, "each insertion counts"
    catalog.streams.change(on_it, initial=True)
    assert needed(source.id) == 8, "its first rows are what is there"


def test_requested_keys_are_stored_once_and_forgotten_when_checked(catalog: Catalog, volume: Volume) -> None:
    catalog.refreshes.ask_check(volume.id, ["b", "a"])
    catalog.refreshes.ask_check(volume.id, iter(["a", "c", "c"]))
    assert sorted(catalog.refreshes.asked_checks(volume.id, 10)) == ["a", "b", "c"]
    assert len(catalog.refreshes.asked_checks(volume.id, 2)) == 2
    assert len({path for _ in range(50) for path in catalog.refreshes.asked_checks(volume.id, 1)}) == 3, "each has its turn"
    assert catalog.refreshes.is_asked(volume.id, "a")
    asked = catalog.refreshes.asked_checks(volume.id, 10)
    catalog.refreshes.checked(volume.id, {"a": asked["a"], "c": asked["c"], "never asked": asked["a"]})
    assert [*catalog.refreshes.asked_checks(volume.id, 10)] == ["b"]
    assert not catalog.refreshes.is_asked(volume.id, "a")


def test_a_key_requested_again_while_it_is_being_checked_stays_requested(catalog: Catalog, volume: Volume) -> None:
    catalog.refreshes.ask_check(volume.id, ["a"])
    seen = catalog.refreshes.asked_checks(volume.id, 10)
    catalog.refreshes.ask_check(volume.id, ["a"])
    catalog.refreshes.checked(volume.id, seen)
    assert catalog.refreshes.is_asked(volume.id, "a")
    catalog.refreshes.checked(volume.id, catalog.refreshes.asked_checks(volume.id, 10))
    assert not catalog.refreshes.is_asked(volume.id, "a")


def test_the_newest_full_listings_stay_on_record(catalog: Catalog, volume: Volume) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(105):
        at = begin + timedelta(minutes=number)
        catalog.refreshes.note_reconcile(Completeness(volume.id, at, 1.5, "listing", number, 10, 1, 2, 3, 1, 0))
    newest, second = catalog.refreshes.reconciles(volume.id, limit=2)
    assert (newest.listed, second.listed) == (104, 103)
    assert (
        newest.added_by_listing,
        newest.changed_by_listing,
        newest.removed_by_listing,
        newest.late_events,
        newest.seconds,
    ) == (1, 2, 3, 1, 1.5)
    assert len(catalog.refreshes.reconciles(volume.id, limit=1000)) == 100


@pytest.mark.long
def test_jobs_in_several_processes_may_request_the_same_keys(url: str, catalog: Catalog, volume: Volume) -> None:
    code = """
import atexit, sys
from volstream.catalog import Catalog
catalog = Catalog(sys.argv[1])
atexit.register(catalog.close)
catalog.volumes.list()
input()
for number in range(20):
    catalog.refreshes.ask_check(sys.argv[2], [f"{number}", f"{number + 1}"])
print("asked")
"""
    assert race(code, [url, volume.id], processes=3) == ["asked"] * 3
    assert len(catalog.refreshes.asked_checks(volume.id, 100)) == 21


def test_changes_are_totalled_from_a_given_refresh(catalog: Catalog, volume: Volume) -> None:
    for number, counts in enumerate([(5, 0, 0, 50), (1, 2, 3, 30), (0, 0, 1, 0)], start=1):
        catalog.refreshes.record(refresh(volume, number, *counts))
    assert catalog.refreshes.changed_after(volume.id, None) == (12, 80)
    assert catalog.refreshes.changed_after(volume.id, 1) == (7, 30)
    assert catalog.refreshes.changed_after(volume.id, 3) == (0, 0)
    assert catalog.refreshes.sums_after(volume.id, 1) == (1, 2, 4)
    assert catalog.refreshes.file_count(volume.id) == 2
    assert catalog.refreshes.file_count("another volume") == 0


def test_repeated_rejections_are_counted_not_duplicated(catalog: Catalog, volume: Volume) -> None:
    same = Rejection("{not json", "It cannot be read.")
    catalog.refreshes.reject(volume.id, [same, Rejection("other", "It cannot be read.")])
    catalog.refreshes.reject(volume.id, [same, Rejection("{not json", "Another reason.")])
    found = {(one.subject, one.reason): one for one in catalog.refreshes.rejected(volume.id)}
    assert {key: one.count for key, one in found.items()} == {
        ("{not json", "It cannot be read."): 2,
        ("other", "It cannot be read."): 1,
        ("{not json", "Another reason."): 1,
    }
    again = found["{not json", "It cannot be read."]
    assert again.first_seen < again.last_seen
    assert catalog.refreshes.rejected_count(volume.id) == 3
    assert catalog.refreshes.rejected("another volume") == []
    assert len(catalog.refreshes.rejected(limit=2)) == 2


def incompressible() -> str:
    """A text that is too long for an index row of PostgreSQL, which compresses what it can."""
    return "".join(hashlib.sha256(bytes([number])).hexdigest() for number in range(100))


def test_whatever_is_sent_is_kept_within_bounds(catalog: Catalog, volume: Volume) -> None:
    long = incompressible()
    odd = [Rejection("nul \0", "half \ud800"), Rejection(long, "long")]
    catalog.refreshes.reject(volume.id, odd)
    catalog.refreshes.reject(volume.id, odd)
    kept = catalog.refreshes.rejected(volume.id)
    assert sorted((one.subject, one.reason, one.count) for one in kept) == [(long, "long", 2), ("nul \\x00", "half \\ud800", 2)]
    catalog.refreshes.reject(volume.id, [Rejection(f"new {number}", "r") for number in range(1500)])
    assert catalog.refreshes.rejected_count(volume.id) == 1000
    assert "new 0" in {one.subject for one in catalog.refreshes.rejected(volume.id)}


def test_paths_of_any_length_can_be_requested(catalog: Catalog, volume: Volume) -> None:
    path = incompressible()
    when = catalog.refreshes.ask_check(volume.id, [path])
    assert catalog.refreshes.is_asked(volume.id, path)
    catalog.refreshes.checked(volume.id, {path: when})
    assert not catalog.refreshes.is_asked(volume.id, path)
