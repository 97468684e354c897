"""Streams of volumes on a real engine: the rules of docs/streams.md."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from tests.integration.conftest import Place
from volstream.base.definitions import StreamMode
from volstream.changes.directory.table import directory_location
from volstream.changes.streams import net_files
from volstream.changes.streams.sources import VolumeSource
from volstream.errors import InvalidValueError

Change = tuple[str, str, int, int]


def changes(place: Place, name: str = "s") -> list[Change]:
    """(type, path, size, version) of what a stream shows."""
    columns = ("__change_type", "relative_path", "size", "__commit_version")
    shown = sorted(cast("Change", tuple(row[column] for column in columns)) for row in place.stream(name))
    assert planned_changes(place, name) == [
        change if change[0] != "DELETE" else change[:3] for change in shown if change[0] != "UPDATE_BEFORE"
    ]
    return shown


def planned_changes(place: Place, name: str) -> list[tuple[object, ...]]:
    """The same without Spark, as plans have it, which do not tell when a file went that is gone."""
    covered = place.session.home.reader.pin(place.session.streams.get(name))
    if covered is None or covered.empty:
        return []
    kinds = {(False, True): "INSERT", (True, True): "UPDATE_AFTER", (True, False): "DELETE"}
    found = []
    snapshot = VolumeSource(place.session.home.catalog, place.session.home.warehouse, place.volume.id).snapshot()
    if covered.append_only:
        rows = net_files.appended(snapshot, covered.from_version, covered.to_version).to_pylist()
    elif covered.is_snapshot:
        rows = [row for some in net_files.present(snapshot, covered.to_version) for row in some.to_pylist()]
    else:
        rows = net_files.changed(snapshot, covered.from_version or 0, covered.to_version).to_pylist()
    for row in rows:
        change = (kinds[row["had"], row["has"]], row["relative_path"], row["size"], row["commit_version"])
        found.append(change if row["has"] else change[:3])
    return sorted(found)


def test_a_new_stream_is_empty_and_one_created_before_the_first_listing_gets_everything(place: Place) -> None:
    """Rule R-4 of docs/streams.md."""
    place.put("a")
    early = place.session.streams.create("early", "v")
    assert early.offset is None
    assert place.stream("early") == []
    place.refresh()
    late = place.session.streams.create("late", "v")
    assert late.offset == 1
    assert changes(place, "early") == [("INSERT", "a", 1, 1)]
    assert changes(place, "late") == []


@pytest.mark.long
def test_a_stream_can_only_start_within_the_kept_history(place: Place) -> None:
    """Rule R-4 of docs/streams.md."""
    place.put("a")
    place.refresh()
    between = datetime.now(UTC)
    place.put("b")
    place.refresh()
    place.session.streams.create("s", "v", at_timestamp=between)
    assert changes(place) == [("INSERT", "b", 1, 2)]
    place.session.streams.create("s", "v", at_version=0, or_replace=True)
    assert [change[1] for change in changes(place)] == ["a", "b"]
    wrongs: tuple[dict[str, Any], ...] = (
        {"at_version": 3},
        {"at_timestamp": datetime.now(UTC) + timedelta(days=1)},
        {"at_timestamp": datetime(2001, 1, 1, tzinfo=UTC)},
    )
    for wrong in wrongs:
        with pytest.raises(InvalidValueError):
            place.session.streams.create("t", "v", **wrong)
    assert [str(stream.name) for stream in place.session.streams.list()] == ["s"]


@pytest.mark.long
def test_initial_rows_come_first_with_the_versions_that_wrote_them(place: Place) -> None:
    """Rule R-5 of docs/streams.md."""
    place.put("a")
    place.refresh()
    place.put("b")
    place.refresh()
    place.session.streams.create("s", "v", show_initial_rows=True)
    place.put("c")
    place.refresh()
    assert changes(place) == [("INSERT", "a", 1, 1), ("INSERT", "b", 1, 2)]


@pytest.mark.long
def test_reading_never_moves_the_offset(place: Place) -> None:
    """Rule R-9 of docs/streams.md."""
    place.put("a")
    place.refresh()
    place.session.streams.create("s", "v", at_version=0)
    for _ in range(2):
        assert len(changes(place)) == 1
        assert place.rows("SELECT count(*) AS n FROM s") == [{"n": 1}]
    assert place.session.streams.get("s").offset == 0


@pytest.mark.long
def test_a_read_pins_its_end(place: Place) -> None:
    """Rule R-9 of docs/streams.md."""
    place.put("a")
    place.refresh()
    place.session.streams.create("s", "v", at_version=0)
    frame = place.session.sql("SELECT * FROM s")
    place.put("b")
    place.refresh()
    assert frame.count() == 1
    assert len(changes(place)) == 2


@pytest.mark.long
def test_net_changes_carry_the_version_that_wrote_each_image(place: Place) -> None:
    """Rules R-10 and R-13 of docs/streams.md."""
    for path in ("kept", "changed", "gone", "back"):
        place.put(path, "1")
    place.refresh()
    place.session.streams.create("s", "v")
    place.put("changed", "22")
    place.put("new", "1")
    place.put("brief", "1")
    place.delete("gone")
    place.delete("back")
    place.refresh()
    place.put("changed", "333")
    place.put("back", "4444")
    place.delete("brief")
    place.refresh()
    assert changes(place) == [
        ("DELETE", "gone", 1, 1),
        ("INSERT", "new", 1, 2),
        ("UPDATE_AFTER", "back", 4, 3),
        ("UPDATE_AFTER", "changed", 3, 3),
        ("UPDATE_BEFORE", "back", 1, 1),
        ("UPDATE_BEFORE", "changed", 1, 1),
    ]
    refreshes = place.session.home.catalog.refreshes.committed(place.volume.id)
    times = {refresh.number: refresh.committed_on for refresh in refreshes}
    for row in place.stream():
        assert row["__commit_timestamp"] == times[row["__commit_version"]]  # type: ignore[index]  # an int


@pytest.mark.long
def test_append_only_shows_files_as_they_were_first_written(place: Place) -> None:
    """Rule R-12 of docs/streams.md."""
    place.put("old", "1")
    place.refresh()
    place.session.streams.create("s", "v", mode=StreamMode.APPEND_ONLY)
    place.put("a", "1")
    place.put("b", "22")
    place.put("old", "333")
    place.refresh()
    place.put("a", "55555")
    place.delete("b")
    place.refresh()
    assert changes(place) == [("INSERT", "a", 1, 2), ("INSERT", "b", 2, 2)]


def test_an_empty_range_has_the_right_columns(place: Place) -> None:
    """Rule R-14 of docs/streams.md."""
    place.put("a")
    place.refresh()
    place.session.streams.create("s", "v")
    frame = place.session.sql("SELECT * FROM s")
    assert frame.columns[:6] == ["__change_type", "__commit_version", "__commit_timestamp", "relative_path", "url", "size"]
    assert frame.count() == 0


@pytest.mark.long
def test_folding_is_not_a_change(place: Place) -> None:
    """Rule R-16 of docs/streams.md."""
    place.put("a")
    place.refresh()
    place.session.streams.create("s", "v")
    place.put("b")
    place.put("a", "22")
    keeper = place.keeper()
    keeper.reconcile()
    before = changes(place)
    keeper.maintain()
    assert changes(place) == before == [("INSERT", "b", 1, 2), ("UPDATE_AFTER", "a", 2, 2), ("UPDATE_BEFORE", "a", 1, 1)]
    place.session.streams.create("s", "v", or_replace=True)
    assert not place.session.streams.has_data("s")
    assert changes(place) == []


@pytest.mark.long
def test_random_histories_agree_with_an_independent_model(place: Place) -> None:
    """Rule R-10 of docs/streams.md."""
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    states: list[dict[str, tuple[int, int]]] = [{}]
    paths = [f"d{number % 3}/f{number}" for number in range(8)]
    for version in range(1, 7):
        state = dict(states[-1])
        for path in rng.sample(paths, rng.randint(1, 5)):
            if path in state and rng.random() < 0.4:
                place.delete(path)
                del state[path]
            else:
                size = rng.randint(1, 99)
                place.put(path, "x" * size)
                state[path] = (size, version)
        place.refresh()
        states.append(state)
        assert place.volume.refresh_count == version, f"seed {seed}: every refresh changed something, and is one commit"
    for start in range(6):
        place.session.streams.create("s", "v", at_version=start, or_replace=True)
        assert changes(place) == _model(states[start], states[-1]), f"seed {seed}, from version {start}"


def _model(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> list[Change]:
    """Net changes between two states of (size, version) by path."""
    found: list[Change] = []
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        if old is None and new is not None:
            found.append(("INSERT", path, *new))
        elif new is None and old is not None:
            found.append(("DELETE", path, *old))
        elif old is not None and new is not None:
            found += [("UPDATE_BEFORE", path, *old), ("UPDATE_AFTER", path, *new)]
    return sorted(found)


def _directory(place: Place) -> str:
    return directory_location(place.session.home.warehouse, place.volume.id)
