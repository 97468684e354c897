"""A time without a zone is local wherever it is given, as it is where it is printed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
import tzlocal

from tests.integration.conftest import Home, Place
from volstream.api.dbapi import Connection, _OpenHome
from volstream.errors import SqlError

ZONES = [
    "Asia/Kathmandu",
    *(pytest.param(zone, marks=pytest.mark.long) for zone in ("UTC", "America/St_Johns", "Pacific/Kiritimati", "<+0005>-0:05")),
]

#: How a time is given, and what then says which version or rows were meant.
WAYS: dict[str, Callable[[Home, str], object]] = {
    "select": lambda home, when: home.rows(f"SELECT id FROM t$ TIMESTAMP AS OF '{when}'"),
    "select an expression": lambda home, when: home.rows(f"SELECT id FROM t$ TIMESTAMP AS OF TIMESTAMP '{when}'"),
    "select in parts": lambda home, when: home.rows(
        f"WITH c AS (SELECT id FROM t$ TIMESTAMP AS OF '{when}') SELECT id FROM c WHERE id IN "
        f"(SELECT id FROM t$ FOR TIMESTAMP AS OF '{when}')"
    ),
    "select a path": lambda home, when: _ids(
        home.session.spark.sql(f"SELECT id FROM delta.`{home.location('t')}` TIMESTAMP AS OF '{when}'")
    ),
    "load a path": lambda home, when: _ids(
        home.session.read.format("delta").option("timestampAsOf", when).load(home.location("t"))
    ),
    "spark": lambda home, when: _ids(home.session.spark.sql(f"SELECT id FROM {home.name('t')} TIMESTAMP AS OF '{when}'")),
    "reader": lambda home, when: _ids(home.session.read.option("timestampAsOf", when).table(home.name("t"))),
    "changes": lambda home, when: home.rows(f"SELECT id FROM t$ CHANGES FROM VERSION 1 TO TIMESTAMP '{when}'"),
    "session.changes": lambda home, when: _ids(home.session.changes(home.name("t"), startingVersion=1, endingTimestamp=when)),
    "session.changes of a datetime": lambda home, when: _ids(
        home.session.changes(home.name("t"), startingVersion=1, endingTimestamp=datetime.fromisoformat(when))
    ),
    "create stream": lambda home, when: _offset(home, f"CREATE STREAM s$ ON TABLE t$ TIMESTAMP AS OF '{when}'"),
    "create stream at an expression": lambda home, when: _offset(
        home, f"CREATE STREAM s$ ON TABLE t$ TIMESTAMP AS OF TIMESTAMP '{when}'"
    ),
    "streams.create": lambda home, when: (
        home.session.streams.create(home.name("s"), table=home.name("t"), at_timestamp=when, or_replace=True).offset
    ),
    "reset stream": lambda home, when: _offset(
        home, f"CREATE STREAM s$ ON TABLE t$; ALTER STREAM s$ RESET TO TIMESTAMP '{when}'"
    ),
    "clone": lambda home, when: _cloned(home, when),
    "restore": lambda home, when: _restored(home, when),
}
EXPECTED: dict[str, object] = {way: [(1,), (2,)] for way in WAYS} | dict.fromkeys(
    ("create stream", "create stream at an expression", "streams.create", "reset stream"), 2
)


def _ids(frame: Any) -> list[tuple[int]]:
    return sorted((row.id,) for row in frame.collect())


def _offset(home: Home, script: str) -> int | None:
    home.sql("DROP STREAM IF EXISTS s$")
    home.sql(script)
    return home.offset()


def _cloned(home: Home, when: str) -> list[tuple[int]]:
    home.sql(f"CREATE OR REPLACE TABLE r$ SHALLOW CLONE t$ TIMESTAMP AS OF '{when}'")
    return home.rows("SELECT id FROM r$")


def _restored(home: Home, when: str) -> list[tuple[int]]:
    """The last way: the table is another one then."""
    home.sql(f"RESTORE TABLE t$ TO TIMESTAMP AS OF '{when}'")
    return home.rows("SELECT id FROM t$")


@pytest.fixture
def history(home: Home) -> Home:
    """A table whose version 2 is not its newest."""
    home.tracked(columns="id INT", stream=None)
    for number in (1, 2, 3):
        home.sql(f"INSERT INTO t$ VALUES ({number})")
        time.sleep(0.01)
    return home


@pytest.fixture(params=ZONES)
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def elsewhere(zone: str) -> Iterator[ThreadPoolExecutor]:
    """A thread, and so a Spark session, in the zone."""
    if "/" in zone:
        tzlocal.reload_localzone()
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.mark.parametrize(
    "ways",
    [("select", "session.changes", "create stream"), pytest.param(tuple(WAYS), marks=pytest.mark.long)],
    ids=["some", "all"],
)
def test_a_time_that_is_printed_is_the_same_time_when_it_is_given(
    history: Home, elsewhere: ThreadPoolExecutor, ways: tuple[str, ...]
) -> None:
    def tried() -> dict[str, object]:
        printed = str(history.sql("DESCRIBE HISTORY t$")[1]["timestamp"])
        assert printed == str(
            history.sql("SELECT max(_commit_timestamp) AS at FROM t$ CHANGES FROM VERSION 1 TO VERSION 2")[0]["at"]
        )
        return {name: WAYS[name](history, printed) for name in ways}

    assert elsewhere.submit(tried).result() == {name: EXPECTED[name] for name in ways}


@pytest.mark.long
def test_a_zone_that_sql_sets_is_that_of_its_times(history: Home) -> None:
    def tried() -> dict[str, object]:
        history.sql("SET TIME ZONE 'Asia/Tokyo'")
        [found] = (
            history.session.sql(f"DESCRIBE HISTORY {history.name('t')}")
            .where("version = 2")
            .selectExpr("string(timestamp) AS at")
            .collect()
        )
        return {name: WAYS[name](history, found["at"]) for name in ("select", "changes", "session.changes", "create stream")}

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(tried).result()
    assert found == {name: EXPECTED[name] for name in found}


def test_a_session_returns_to_the_local_zone(home: Home, elsewhere: ThreadPoolExecutor) -> None:
    def tried() -> list[object]:
        [zone] = home.sql("SELECT current_timezone() AS zone")
        found: list[object] = []
        for statement in ("SET TIME ZONE LOCAL", "RESET", "RESET spark.sql.session.timeZone"):
            home.sql("SET TIME ZONE 'Asia/Tokyo'")
            home.sql(statement)
            found += [one["zone"] for one in home.sql("SELECT current_timezone() AS zone")]
        return [*{*found, zone["zone"]}]

    assert len(elsewhere.submit(tried).result()) == 1


def test_a_table_that_is_mapped_by_id_can_be_used_after_a_reset(home: Home) -> None:
    home.sql("CREATE TABLE t$ (a INT) TBLPROPERTIES ('delta.columnMapping.mode' = 'id'); RESET; INSERT INTO t$ VALUES (1)")
    assert home.rows("SELECT * FROM t$") == [(1,)]


def test_a_cursor_gives_times_with_their_zone(home: Home, elsewhere: ThreadPoolExecutor) -> None:
    def tried() -> tuple[Any, ...]:
        with Connection(_OpenHome(home.session)) as made:
            cursor = made.cursor()
            cursor.execute("SELECT TIMESTAMP '2026-07-01 12:00:00Z', struct(array(TIMESTAMP '2026-07-01 12:00:00Z') AS a)")
            row = cursor.fetchone()
            assert row is not None
            return row

    moment, nested = elsewhere.submit(tried).result()
    assert moment == nested.a[0] == datetime.fromisoformat("2026-07-01T12:00:00+00:00")


@pytest.mark.long
def test_the_conditions_of_a_job_are_in_utc_wherever_they_are_tried(place: Place, elsewhere: ThreadPoolExecutor) -> None:
    place.put("a.txt", "abc")
    place.job(
        "def f(file):\n    return {'n': 1}\n",
        where="last_modified_time > TIMESTAMP '2000-01-01 00:00:00' AND current_timezone() = 'UTC'",
    )
    elsewhere.submit(place.run).result()
    assert place.table() == [("a.txt", 1)]


def test_a_directory_is_read_as_of_a_version_or_time(place: Place, elsewhere: ThreadPoolExecutor) -> None:
    def tried() -> None:
        place.put("a.txt", "1")
        place.refresh()
        time.sleep(0.01)
        then = datetime.now()
        time.sleep(0.01)
        place.put("b.txt", "2")
        place.refresh()
        for at in ("VERSION AS OF 1", f"FOR TIMESTAMP AS OF '{then}' AS d"):
            assert place.rows(f"SELECT relative_path FROM DIRECTORY(VOLUME v) {at}") == [{"relative_path": "a.txt"}]
        assert len(place.rows("SELECT * FROM DIRECTORY(VOLUME v)")) == 2
        with pytest.raises(SqlError, match="number of a version"):
            place.rows("SELECT * FROM DIRECTORY(VOLUME v) VERSION AS OF x")
        changes = place.session.changes("v", startingVersion=1)
        assert [row.relative_path for row in changes.orderBy("relative_path").collect()] == ["a.txt", "b.txt"]
        assert _paths(place.session.changes("v", startingTimestamp=then)) == ["b.txt"]

    elsewhere.submit(tried).result()


def _paths(frame: Any) -> list[str]:
    return [row.relative_path for row in frame.collect()]
