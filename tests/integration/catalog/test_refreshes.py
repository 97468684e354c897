"""Refreshes of directory tables: their numbers, and what keeps two writers apart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests import objects
from tests.processes import race
from volstream.catalog import Catalog
from volstream.errors import FencedError
from volstream.model.hints import Rejection
from volstream.model.objects import Volume
from volstream.model.work import Completeness, RefreshState


@pytest.fixture
def volume(catalog: Catalog) -> Volume:
    source = objects.volume()
    with catalog.database.transaction() as transaction:
        catalog.volumes.add(transaction, source)
    return source


def test_refreshes_are_numbered_without_a_gap(catalog: Catalog, volume: Volume) -> None:
    for number in (1, 2, 3):
        assert catalog.refreshes.begin(volume, "events", 10 + number, number - 1) == number
        assert catalog.refreshes.open(volume) == (number, 10 + number)
        catalog.refreshes.settle(volume, number, 11 + number, (1, 2, 3, 4), objects.NOW)
        assert catalog.refreshes.open(volume) is None
    current = catalog.volumes.by_id(volume.id)
    assert current is not None
    assert current.refresh_count == 3
    assert [refresh.number for refresh in catalog.refreshes.committed(volume.id)] == [1, 2, 3]
    last = catalog.refreshes.last(volume.id)
    assert last is not None
    assert (last.number, last.version, last.state) == (3, 14, RefreshState.COMMITTED)
    assert (last.inserted, last.updated, last.deleted, last.bytes, last.committed_on) == (1, 2, 3, 4, objects.NOW)


def test_a_writer_whose_view_is_old_is_fenced(catalog: Catalog, volume: Volume) -> None:
    catalog.refreshes.begin(volume, "events", 0, 0)
    with pytest.raises(FencedError, match="Another process refreshed volume images"):
        catalog.refreshes.begin(volume, "events", 0, 0)


def test_a_writer_of_a_dropped_volume_is_fenced(catalog: Catalog, volume: Volume) -> None:
    with catalog.database.transaction() as transaction:
        catalog.volumes.remove(transaction, volume)
    with pytest.raises(FencedError, match="was dropped"):
        catalog.refreshes.begin(volume, "events", 0, 0)


def test_an_aborted_refresh_uses_up_its_number_and_is_not_among_the_committed(catalog: Catalog, volume: Volume) -> None:
    catalog.refreshes.begin(volume, "events", 0, 0)
    catalog.refreshes.settle(volume, 1, None, (0, 0, 0, 0), None)
    assert catalog.refreshes.begin(volume, "events", 0, 1) == 2
    catalog.refreshes.settle(volume, 2, 5, (1, 0, 0, 9), objects.NOW)
    assert [(one.number, one.version) for one in catalog.refreshes.committed(volume.id)] == [(2, 5)]
    assert [one.number for one in catalog.refreshes.committed(volume.id, numbers=[1, 2, *range(3, 1200)])] == [2]
    assert catalog.refreshes.committed(volume.id, numbers=[1]) == []


def test_of_processes_that_race_exactly_one_begins_the_next_refresh(url: str, catalog: Catalog, volume: Volume) -> None:
    code = """
import atexit, sys
from volstream.catalog import Catalog
from volstream.errors import FencedError
catalog = Catalog(sys.argv[1])
atexit.register(catalog.close)
volume = catalog.volumes.by_id(sys.argv[2])
input()
try:
    print(catalog.refreshes.begin(volume, "events", 0, 0))
except FencedError:
    print("fenced")
"""
    assert sorted(race(code, [url, volume.id], processes=3)) == ["1", "fenced", "fenced"]


def test_keys_are_asked_for_once_and_forgotten_when_looked_at(catalog: Catalog, volume: Volume) -> None:
    catalog.refreshes.ask_check(volume.id, ["b", "a"])
    catalog.refreshes.ask_check(volume.id, iter(["a", "c", "c"]))
    assert sorted(catalog.refreshes.asked_checks(volume.id, 10)) == ["a", "b", "c"]
    assert len(catalog.refreshes.asked_checks(volume.id, 2)) == 2
    assert catalog.refreshes.is_asked(volume.id, "a")
    asked = catalog.refreshes.asked_checks(volume.id, 10)
    catalog.refreshes.checked(volume.id, {"a": asked["a"], "c": asked["c"], "never asked": asked["a"]})
    assert [*catalog.refreshes.asked_checks(volume.id, 10)] == ["b"]
    assert not catalog.refreshes.is_asked(volume.id, "a")


def test_a_key_that_is_asked_for_again_while_it_is_looked_at_stays_asked_for(catalog: Catalog, volume: Volume) -> None:
    catalog.refreshes.ask_check(volume.id, ["a"])
    seen = catalog.refreshes.asked_checks(volume.id, 10)
    catalog.refreshes.ask_check(volume.id, ["a"])
    catalog.refreshes.checked(volume.id, seen)
    assert catalog.refreshes.is_asked(volume.id, "a")
    catalog.refreshes.checked(volume.id, catalog.refreshes.asked_checks(volume.id, 10))
    assert not catalog.refreshes.is_asked(volume.id, "a")


def test_the_newest_full_listings_are_kept_on_record(catalog: Catalog, volume: Volume) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(105):
        at = begin + timedelta(minutes=number)
        catalog.refreshes.note_reconcile(Completeness(volume.id, at, 1.5, "reconcile", number, 10, 1, 2, 3, 1, 0))
    newest, second = catalog.refreshes.reconciles(volume.id, limit=2)
    assert (newest.listed, second.listed) == (104, 103)
    assert (newest.missing, newest.changed, newest.phantom, newest.late, newest.seconds) == (1, 2, 3, 1, 1.5)
    assert len(catalog.refreshes.reconciles(volume.id, limit=1000)) == 100


def test_jobs_of_several_processes_may_ask_for_the_same_keys(url: str, catalog: Catalog, volume: Volume) -> None:
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


def test_what_changed_is_summed_from_a_version_or_a_number_on(catalog: Catalog, volume: Volume) -> None:
    for number, counts in enumerate([(5, 0, 0, 50), (1, 2, 3, 30), (0, 0, 1, 0)], start=1):
        catalog.refreshes.begin(volume, "events", number, number - 1)
        catalog.refreshes.settle(volume, number, number * 10, counts, objects.NOW)
    moved = [catalog.refreshes.may_have_moved(volume.id, version) for version in (None, 10, 20)]
    assert moved == [True, True, False], "the last refresh only deleted"
    catalog.refreshes.begin(volume, "events", 3, 3)
    assert catalog.refreshes.may_have_moved(volume.id, 20), "what the open one does is not known"
    assert catalog.refreshes.changed_after(volume.id, None) == (12, 80)
    assert catalog.refreshes.changed_after(volume.id, 10) == (7, 30)
    assert catalog.refreshes.changed_after(volume.id, 30) == (0, 0)
    assert catalog.refreshes.sums_after(volume.id, 1) == (1, 2, 4)
    assert catalog.refreshes.file_count(volume.id) == 2
    assert catalog.refreshes.file_count("another volume") == 0


def test_what_is_rejected_again_is_counted_not_repeated(catalog: Catalog, volume: Volume) -> None:
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
