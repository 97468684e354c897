"""``session.changes`` and ``CHANGES FROM``: raw changes, as Spark's own reader shows them where that works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.conftest import Home, Place, home_in
from volstream.base import config
from volstream.errors import InvalidValueError, NotFoundError
from volstream.spark.session import SparkGateway


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory, gateway: SparkGateway) -> Iterator[Home]:
    """A table with five rows at version ``1``, one updated at ``2``, one deleted at ``3``; versions after its making.

    No test changes it.
    """
    with home_in(config.load(tmp_path_factory.mktemp("changes")), gateway) as home:
        # Tracked by a second commit, so that there is a version whose changes are not tracked.
        home.sql("CREATE TABLE t$ (id INT, v STRING); ALTER TABLE t$ SET PROPERTIES ('change_tracking' = 'true')")
        home.sql("INSERT INTO t$ VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e')")
        home.sql("UPDATE t$ SET v = 'A' WHERE id = 1; DELETE FROM t$ WHERE id = 2; UPDATE t$ SET v = 'AA' WHERE id = 1")
        yield home


def start(home: Home) -> int:
    """The version before the first change."""
    newest = home.sql("DESCRIBE HISTORY t$")[0]["version"]
    assert isinstance(newest, int)
    return newest - 4


def ours(home: Home, first: int, last: int | None, mode: str, updates: bool) -> list[tuple[Any, ...]]:
    frame = home.session.changes(
        home.name("t"), startingVersion=first, endingVersion=last, deduplicationMode=mode, computeUpdates=updates
    )
    assert frame.columns == ["id", "v", "_change_type", "_commit_version", "_commit_timestamp"]
    return sorted(tuple(row) for row in frame.collect())


def sparks(home: Home, first: int, last: int, mode: str, updates: bool) -> list[tuple[Any, ...]]:
    home.session.spark.conf.set("spark.databricks.delta.changelogV2.enabled", "true")  # wrong beside another such query
    reader = home.session.read.option("startingVersion", first).option("endingVersion", last)
    options = reader.option("deduplicationMode", mode).option("computeUpdates", str(updates).lower())
    frame = options.changes(f"delta.`{home.location('t')}`")
    return sorted(tuple(row) for row in frame.select("id", "v", "_change_type", "_commit_version", "_commit_timestamp").collect())


@pytest.mark.parametrize(
    ("mode", "updates"),
    [
        ("netChanges", True),
        *(
            pytest.param(mode, updates, marks=pytest.mark.long)
            for mode, updates in (("none", False), ("dropCarryovers", True), ("dropCarryovers", False), ("netChanges", False))
        ),
    ],
)
@pytest.mark.parametrize(
    "ranges", [[(1, 4)], pytest.param([(2, 3), (2, 4), (3, 3)], marks=pytest.mark.long)], ids=["all", "parts"]
)
def test_changes_match_those_of_sparks_own_reader(changed: Home, mode: str, updates: bool, ranges: list[tuple[int, int]]) -> None:
    zero = start(changed)
    for first, last in ranges:
        expected = sparks(changed, zero + first, zero + last, mode, updates)
        assert ours(changed, zero + first, zero + last, mode, updates) == expected, (first, last)


@pytest.mark.long
def test_changes_reach_to_the_newest_version(changed: Home) -> None:
    zero = start(changed)
    assert ours(changed, zero + 3, None, "netChanges", True) == ours(changed, zero + 3, zero + 4, "netChanges", True)


def test_unreadable_ranges_are_rejected_before_spark_is_asked(changed: Home) -> None:
    zero = start(changed)
    for error, match, first, last, mode in (
        (InvalidValueError, "no version 99", 99, None, "none"),
        (InvalidValueError, "range", zero + 3, zero + 2, "none"),
        (InvalidValueError, "'x'", zero + 3, None, "x"),
        (InvalidValueError, f"tracked since version {zero}", 0, None, "none"),
        (InvalidValueError, f"tracked since version {zero}", 0, 0, "none"),
    ):
        with pytest.raises(error, match=match):
            ours(changed, first, last, mode, False)
    with pytest.raises(InvalidValueError, match="a rewritten row would look like an update"):
        ours(changed, zero + 1, None, "none", True)
    assert ours(changed, zero, None, "none", False)
    with pytest.raises(NotFoundError):
        changed.session.changes(changed.name("absent"), startingVersion=0)


def test_changes_are_read_from_one_time_to_another(changed: Home) -> None:
    zero = start(changed)
    times = {row["version"]: row["timestamp"] for row in changed.sql("DESCRIBE HISTORY t$")}
    first, last = times[zero + 2], times[zero + 3]
    wanted = ours(changed, zero + 2, zero + 3, "netChanges", True)
    found = changed.session.changes(
        changed.name("t"),
        startingTimestamp=first,
        endingTimestamp=f"{last.isoformat()}Z",
        deduplicationMode="netChanges",
        computeUpdates=True,
    )
    assert sorted(map(tuple, found.collect())) == wanted
    clause = "WITH (deduplicationMode = 'netChanges', computeUpdates = 'true')"
    query = f"SELECT * FROM t$ CHANGES FROM TIMESTAMP '{first}' TO TIMESTAMP '{last}' {clause}"
    assert changed.rows(query) == sorted(wanted, key=repr)  # no metadata of rows among the columns
    later = f"SELECT id FROM t$ CHANGES FROM TIMESTAMP '{first}' EXCLUSIVE TO VERSION {zero + 3}"
    assert changed.rows(later) == [(2,)]
    with pytest.raises(InvalidValueError, match=r"no column 'idd' to identify rows\. Did you mean 'id'"):
        changed.session.changes(changed.name("t"), startingTimestamp=first, identity=["idd"])
    with pytest.raises(InvalidValueError, match="mutually exclusive"):
        changed.session.changes(changed.name("t"), startingVersion=1, startingTimestamp=first)
    with pytest.raises(InvalidValueError, match="Give startingVersion or startingTimestamp"):
        changed.session.changes(changed.name("t"))


def test_a_range_after_the_newest_version_is_empty(changed: Home) -> None:
    """So that a reader that polls need not know whether there is a version yet."""
    newest = max(row["version"] for row in changed.sql("DESCRIBE HISTORY t$"))
    for clause in (f"FROM VERSION {newest} EXCLUSIVE", f"FROM VERSION {newest + 1} WITH (deduplicationMode = 'NETCHANGES')"):
        assert changed.rows(f"SELECT * FROM t$ CHANGES {clause}") == []
    with pytest.raises(InvalidValueError, match=f"ends at version {newest - 1}, before it begins at version {newest}"):
        changed.sql(f"SELECT * FROM t$ CHANGES FROM VERSION {newest} TO VERSION {newest - 1}")


@pytest.mark.long
def test_columns_can_identify_rows_in_place_of_their_ids(home: Home) -> None:
    home.tracked(columns="id INT, v STRING", stream=None)
    home.sql("INSERT INTO t$ VALUES (1, 'a'); DELETE FROM t$; INSERT INTO t$ VALUES (1, 'b')")
    clause = "CHANGES FROM VERSION 2 WITH (deduplicationMode = 'netChanges', computeUpdates = 'true'"
    kinds = f"SELECT v, _change_type FROM t$ {clause}"
    assert home.rows(f"{kinds})") == [("a", "delete"), ("b", "insert")]
    assert home.rows(f"{kinds}, identity = 'ID')") == [("a", "update_preimage"), ("b", "update_postimage")]


@pytest.mark.long
def test_changes_from_works_on_directories(place: Place) -> None:
    place.put("a", "1")
    place.refresh()
    place.put("a", "22")
    place.put("b", "1")
    place.refresh()
    for clause, old, new in (("", "delete", "insert"), ("WITH (computeUpdates = 'true')", "update_preimage", "update_postimage")):
        found = place.rows(
            "SELECT relative_path, size, _change_type FROM DIRECTORY(VOLUME v) CHANGES FROM VERSION 2 TO VERSION 2 "
            f"{clause} ORDER BY relative_path, size"
        )
        assert [tuple(row.values()) for row in found] == [("a", 1, old), ("a", 2, new), ("b", 1, "insert")]
    net = "SELECT size, _change_type FROM DIRECTORY(VOLUME v) CHANGES FROM VERSION 0 WITH (deduplicationMode = 'netChanges')"
    assert sorted(tuple(row.values()) for row in place.rows(net)) == [(1, "insert"), (2, "insert")]
