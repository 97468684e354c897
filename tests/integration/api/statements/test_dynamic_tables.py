"""Dynamic tables: the result of a query, maintained by a job; unchanged rows keep their identity."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.conftest import COUNT, Home, Place
from volstream.base.definitions import QueueType, Trigger, TriggerKind
from volstream.base.model.names import Name
from volstream.catalog.alerts import ConditionKind
from volstream.errors import (
    AlreadyExistsError,
    InvalidStateError,
    InvalidValueError,
    NotFoundError,
    ObjectInUseError,
    SqlError,
    StreamBusyError,
    VolstreamError,
)
from volstream.tables.delta import direct


def ids(home: Home, table: str = "d$") -> dict[tuple[Any, ...], int]:
    """The row id of each row, by its values."""
    rows = home.sql(f"SELECT _metadata.row_id AS row_id, * FROM {table}")
    return {tuple(value for name, value in row.items() if name != "row_id"): row["row_id"] for row in rows}


def versions(home: Home, table: str = "d$") -> int:
    return len(home.sql(f"DESCRIBE HISTORY {table}"))


@pytest.mark.long
def test_it_is_filled_on_creation_and_updated_by_each_refresh(home: Home) -> None:
    home.tracked(stream=None)
    home.sql("INSERT INTO t$ VALUES (1, 'a', 10), (2, 'b', 20), (3, 'c', 30)")

    home.sql("CREATE DYNAMIC TABLE d$ COMMENT 'adults' AS SELECT id, upper(name) AS name FROM t$ WHERE age >= 20")

    assert home.rows("SELECT * FROM d$") == [(2, "B"), (3, "C")]
    before = ids(home)
    home.sql("UPDATE t$ SET age = 40 WHERE id = 1; DELETE FROM t$ WHERE id = 2; INSERT INTO t$ VALUES (4, 'd', 50)")
    assert home.rows("SELECT * FROM d$") == [(2, "B"), (3, "C")]

    assert home.sql("REFRESH DYNAMIC TABLE d$") != []

    assert home.rows("SELECT * FROM d$") == [(1, "A"), (3, "C"), (4, "D")]
    assert ids(home)[3, "C"] == before[3, "C"]


@pytest.mark.long
def test_while_it_is_built_no_daemon_runs_it(home: Home) -> None:
    home.tracked(stream=None)
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1)")
    name, built = home.name("d"), threading.Event()
    tried: list[str | None] = []

    def run_it() -> None:
        while not built.is_set():
            job = home.session.home.catalog.jobs.find(Name.parse(name))
            try:
                if job is not None:
                    tried.append(home.session.home.catalog.conditions.cause(ConditionKind.JOB, job.id))
                    home.session.jobs.runner(job).run()
            except StreamBusyError:
                pass
            except VolstreamError as error:
                tried.append(error.message)

    daemon = threading.Thread(target=run_it)
    daemon.start()
    try:
        home.sql("CREATE DYNAMIC TABLE d$ AS SELECT id FROM t$")
    finally:
        built.set()
        daemon.join()
    assert {*tried} == {None}
    assert str(home.session.jobs.get(name).last_outcome).removeprefix("nothing to do; before: ") == "1 row"


@pytest.mark.long
def test_without_changes_nothing_runs_and_nothing_is_written(home: Home) -> None:
    home.tracked(stream=None)
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1); CREATE DYNAMIC TABLE d$ AS SELECT id FROM t$")
    job = home.session.jobs.get(home.name("d"))
    before = versions(home)

    assert not home.session.jobs.runner(job).has_work()
    home.sql("REFRESH DYNAMIC TABLE d$; OPTIMIZE t$; REFRESH DYNAMIC TABLE d$")

    assert versions(home) == before
    assert job.last_outcome == "1 row"
    assert home.session.jobs.get(home.name("d")).last_outcome == "nothing to do; before: 1 row"


@pytest.mark.long
def test_groups_are_updated_in_place(home: Home) -> None:
    home.tracked(stream=None)
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1), (2, 'a', 2), (3, 'b', 3), (4, NULL, 4)")
    home.sql("CREATE DYNAMIC TABLE d$ AS SELECT name, count(*) AS n, sum(age) AS total FROM t$ GROUP BY name")
    home.sql("CREATE STREAM s$ ON DYNAMIC TABLE d$")
    home.sql("INSERT INTO t$ VALUES (5, 'a', 5), (6, 'c', 6), (7, NULL, 7); DELETE FROM t$ WHERE name = 'b'")

    home.sql("REFRESH DYNAMIC TABLE d$")

    changes = home.rows("SELECT __change_type, name, n, total FROM s$")
    assert changes == [
        ("DELETE", "b", 1, 3),
        ("INSERT", "c", 1, 6),
        ("UPDATE_AFTER", "a", 3, 8),
        ("UPDATE_AFTER", None, 2, 11),
        ("UPDATE_BEFORE", "a", 2, 3),
        ("UPDATE_BEFORE", None, 1, 4),
    ]


@pytest.mark.long
def test_a_global_aggregate_is_one_row_that_is_updated(home: Home) -> None:
    home.tracked(stream=None)
    home.sql("CREATE MATERIALIZED VIEW d$ AS SELECT count(*) AS n, max(age) AS oldest FROM t$")
    assert home.rows("SELECT * FROM d$") == [(0, None)]
    before = ids(home)
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1), (2, 'b', 2); REFRESH MATERIALIZED VIEW d$")
    assert home.rows("SELECT * FROM d$") == [(2, 2)]
    assert [*ids(home).values()] == [*before.values()]


@pytest.mark.long
def test_a_join_of_tables_and_a_directory_follows_each_side(home: Home, tmp_path: Path) -> None:
    files = tmp_path / "pictures"
    files.mkdir()
    (files / "a.txt").write_text("x")
    home.session.volumes.create(home.name("v"), str(files), queue_type=QueueType.NONE)
    home.tracked(stream=None)
    home.sql("INSERT INTO t$ VALUES (1, 'a.txt', 1), (2, 'b.txt', 2)")
    home.sql(
        "CREATE DYNAMIC TABLE d$ AS SELECT t.id, f.size FROM t$ t LEFT JOIN DIRECTORY(VOLUME v$) f ON t.name = f.relative_path"
    )
    assert home.rows("SELECT * FROM d$") == [(1, 1), (2, None)]
    before = ids(home)

    (files / "b.txt").write_text("four")
    home.session.volumes.refresh(home.name("v"))
    home.sql("REFRESH DYNAMIC TABLE d$")
    assert home.rows("SELECT * FROM d$") == [(1, 1), (2, 4)]
    assert ids(home)[1, 1] == before[1, 1]

    home.sql("INSERT INTO t$ VALUES (3, 'a.txt', 3); REFRESH DYNAMIC TABLE d$")
    assert home.rows("SELECT * FROM d$") == [(1, 1), (2, 4), (3, 1)]


#: One of each kind: kept by the changed rows, by its groups, and by the difference of all rows.
QUERIES = {
    "d1$": "SELECT name, age FROM t$ WHERE age < 4",
    "d2$": "SELECT name, count(*) AS n, sum(age) AS total FROM t$ GROUP BY name",
    "d3$": "SELECT name, age FROM t$ WHERE age <= (SELECT max(age) - 2 FROM t$)",
}


@pytest.mark.long
@pytest.mark.timeout(400)  # alone on two cores it takes two minutes
def test_it_equals_its_query_after_any_history_and_unchanged_rows_stay(home: Home) -> None:
    dice = random.Random(5)
    home.tracked(stream=None)
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1), (2, 'a', 1), (3, 'b', 2), (4, NULL, NULL), (5, 'c', 5)")
    for table, query in QUERIES.items():
        home.sql(f"CREATE DYNAMIC TABLE {table} AS {query}")
    for number in range(3):
        before = {table: (home.rows(f"SELECT * FROM {table}"), ids(home, table)) for table in QUERIES}
        name, age, chosen = dice.choice("abc"), dice.randint(0, 5), dice.randint(1, 8)
        statements = [
            f"INSERT INTO t$ VALUES ({number + 6}, '{name}', {age}), ({number + 6}, '{name}', {age})",
            f"UPDATE t$ SET age = {age} WHERE id % 4 = {chosen % 4}",
            f"DELETE FROM t$ WHERE id = {chosen}",
        ]
        home.sql(";".join(dice.sample(statements, k=2)))
        for table, query in QUERIES.items():
            home.sql(f"REFRESH DYNAMIC TABLE {table}")
            after, now, (rows, known) = home.rows(f"SELECT * FROM {table}"), ids(home, table), before[table]
            assert after == home.rows(query)
            same = [row for row in {*rows} & {*after} if rows.count(row) == after.count(row) == 1]
            assert {row: now[row] for row in same} == {row: known[row] for row in same}


#: Queries whose groups are not their rows' keys, or whose rows do not follow from one row each, though they look so; and what of
#: the result does not vary.
DECEPTIVE = {
    "alias$": ("SELECT abs(age) AS age, count(*) AS n FROM t$ GROUP BY age", "*"),
    "case$": ("SELECT name = 'x' AS p, name = 'X' AS q, count(*) AS n FROM t$ GROUP BY name = 'x', name = 'X'", "*"),
    "scalar$": ("SELECT (SELECT sum(x.age) FROM t$ x WHERE x.id <= t.id) AS running FROM t$", "*"),
    "nested$": ("SELECT inline_outer(collect_list(struct(id, age))) FROM t$", "*"),
    "clock$": ("SELECT id, name, localtimestamp() AS at FROM t$ -- now", "id, name"),
    "dice$": ("SELECT id, name, uniform(1, 1000000) AS net FROM t$", "id, name"),
}


@pytest.mark.long
def test_a_query_is_computed_again_unless_its_rows_are_known_to_follow_from_changed_ones(home: Home) -> None:
    home.tracked(stream=None)
    home.sql("INSERT INTO t$ VALUES (1, 'x', 1), (2, 'X', -1), (3, 'y', -1)")
    for table, (query, _) in DECEPTIVE.items():
        home.sql(f"CREATE DYNAMIC TABLE {table} AS {query}")
    home.sql("DELETE FROM t$ WHERE id = 1; UPDATE t$ SET age = 5, name = 'z' WHERE id = 2; INSERT INTO t$ VALUES (4, 'x', 1)")
    for table, (query, stable) in DECEPTIVE.items():
        home.sql(f"REFRESH DYNAMIC TABLE {table}")
        assert home.rows(f"SELECT {stable} FROM {table}") == home.rows(f"SELECT {stable} FROM ({query}\n)"), table


@pytest.mark.parametrize(
    ("table", "query"),
    [
        pytest.param("d$", "SELECT * FROM t$ WHERE id < 9", marks=pytest.mark.long),
        pytest.param("j$", "SELECT * FROM t$ LEFT JOIN u$ ON id = k", marks=pytest.mark.long),
    ],
    ids=["rows", "join"],
)
def test_a_star_brings_the_columns_that_its_table_gets(home: Home, table: str, query: str) -> None:
    home.tracked(stream=None, columns="id INT, one INT")
    home.sql("CREATE TABLE u$ (k INT, net INT) TBLPROPERTIES ('change_tracking' = 'true')")
    home.sql("INSERT INTO t$ VALUES (1, 1), (1, 1), (2, 2); INSERT INTO u$ VALUES (1, 7)")
    home.sql(f"CREATE DYNAMIC TABLE {table} AS {query}")
    for change in (
        "ALTER TABLE t$ ADD COLUMNS (z INT FIRST, s STRUCT<`a-b`: INT, `É`: ARRAY<STRUCT<`end`: STRING>>>)",
        "INSERT INTO t$ (id, one, z, s) SELECT 3, 3, 3, named_struct('a-b', 3, 'É', array(named_struct('end', 'x'))) UNION ALL SELECT 9, 9, 9, NULL",
    ):
        home.sql(change)
        if table == "j$" and "INSERT" not in change:
            continue  # the next refresh adds the column together with its values
        home.sql(f"REFRESH DYNAMIC TABLE {table}")
        columns = home.session.sql(home.own(query)).columns
        assert sorted(home.session.sql(home.own(f"SELECT * FROM {table}")).columns) == sorted(columns)
        assert home.rows(f"SELECT {', '.join(columns)} FROM {table}") == home.rows(query), (change, table)

    if table != "j$":
        return
    home.sql("ALTER TABLE u$ ADD COLUMNS (z INT)")
    with pytest.raises(SqlError, match="has the column z twice") as caught:
        home.sql("REFRESH DYNAMIC TABLE j$")
    assert "CREATE OR REPLACE DYNAMIC TABLE" in str(caught.value.remedy)


@pytest.mark.long
def test_it_follows_a_table_whose_declared_key_several_rows_have(home: Home) -> None:
    home.tracked(columns="id INT NOT NULL PRIMARY KEY, v STRING", stream=None)
    home.sql("INSERT INTO t$ VALUES (1, 'a'), (1, 'b'), (2, 'c'); CREATE DYNAMIC TABLE d$ AS SELECT id, v FROM t$")
    for change in ("UPDATE t$ SET v = concat(v, '1')", "UPDATE t$ SET v = 'z' WHERE v = 'a1'; DELETE FROM t$ WHERE v = 'b1'"):
        home.sql(f"{change}; REFRESH DYNAMIC TABLE d$")
        assert home.rows("SELECT * FROM d$") == home.rows("SELECT * FROM t$")


@pytest.mark.long
def test_it_follows_a_table_that_was_restored_across_an_added_column(home: Home) -> None:
    home.tracked(stream=None)
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1), (2, 'b', 2); CREATE DYNAMIC TABLE d$ AS SELECT id, name FROM t$ WHERE age > 0")
    home.sql("CREATE DYNAMIC TABLE star$ AS SELECT * FROM t$")
    home.sql("ALTER TABLE t$ ADD COLUMNS (z INT); INSERT INTO t$ VALUES (3, 'c', 3, 3)")
    home.sql("RESTORE TABLE t$ TO VERSION AS OF 1; INSERT INTO t$ VALUES (4, 'd', 4)")
    for change in ("DELETE FROM t$ WHERE id = 1", "INSERT INTO t$ VALUES (5, 'e', 5)"):
        home.sql("REFRESH DYNAMIC TABLE d$; REFRESH DYNAMIC TABLE star$")
        assert home.rows("SELECT * FROM d$") == home.rows("SELECT id, name FROM t$")
        assert home.rows("SELECT * FROM star$") == home.rows("SELECT * FROM t$")
        home.sql(change)

    home.sql("ALTER TABLE t$ ADD COLUMNS (z INT); REFRESH DYNAMIC TABLE star$; RESTORE TABLE t$ TO VERSION AS OF 1")
    home.sql("REFRESH DYNAMIC TABLE d$")
    assert home.rows("SELECT * FROM d$") == [(1, "a"), (2, "b")]
    with pytest.raises(SqlError, match=f"{home.name('star')} no longer has the column z") as caught:
        home.sql("REFRESH DYNAMIC TABLE star$")
    assert "CREATE OR REPLACE DYNAMIC TABLE" in str(caught.value.remedy)


@pytest.mark.long
def test_it_is_a_scheduled_job_that_can_be_paused(home: Home) -> None:
    home.tracked(stream=None)
    home.sql("CREATE DYNAMIC TABLE d$ REFRESH EVERY '1m' AS SELECT id FROM t$")
    assert home.session.jobs.get(home.name("d")).trigger == Trigger(TriggerKind.EVERY, every=60.0)
    [shown] = [row for row in home.sql("SHOW DYNAMIC TABLES") if row["name"] == home.name("d")]
    assert (shown["statement"], shown["trigger"]) == (home.own("SELECT id FROM t$"), "every 60s")
    home.sql("ALTER DYNAMIC TABLE d$ SUSPEND")
    with pytest.raises(InvalidStateError):
        home.sql("REFRESH DYNAMIC TABLE d$")
    home.sql("ALTER DYNAMIC TABLE d$ RESUME; REFRESH DYNAMIC TABLE d$")


@pytest.mark.long
def test_it_is_dropped_with_its_rows_and_streams_and_only_as_a_dynamic_table(home: Home) -> None:
    home.tracked(stream=None)
    home.sql("CREATE DYNAMIC TABLE d$ AS SELECT id FROM t$")
    with pytest.raises(InvalidStateError, match="belongs to job"):
        home.sql("DROP TABLE d$")
    with pytest.raises(InvalidStateError, match="Run: DROP DYNAMIC TABLE"):
        home.sql("DROP JOB d$")
    with pytest.raises(InvalidStateError, match="Run: DROP DYNAMIC TABLE"):
        home.session.jobs.drop(home.own("d$"), force=True)
    with pytest.raises(ObjectInUseError):
        home.sql("DROP STREAM d_stream$")
    with pytest.raises(AlreadyExistsError):
        home.sql("CREATE DYNAMIC TABLE d$ AS SELECT id FROM t$")
    home.sql("CREATE DYNAMIC TABLE IF NOT EXISTS d$ AS SELECT name FROM t$")
    home.sql("CREATE OR REPLACE DYNAMIC TABLE d$ AS SELECT name FROM t$")
    assert list(home.session.sql(home.own("SELECT * FROM d$")).columns) == ["name"]

    home.sql("DROP DYNAMIC TABLE d$")

    assert [stream for stream in home.session.streams.list() if stream.name.schema == home.schema] == []
    assert [job for job in home.session.jobs.list() if job.name.schema == home.schema] == []
    with pytest.raises(SqlError):
        home.sql("SELECT * FROM d$")
    with pytest.raises(NotFoundError):
        home.sql("DROP DYNAMIC TABLE d$")
    home.sql("DROP DYNAMIC TABLE IF EXISTS d$")


def test_unsupported_queries_are_rejected_and_leave_nothing_behind(home: Home) -> None:
    home.tracked()
    home.sql("CREATE TABLE plain$ (id INT)")
    for statement, error in (
        ("CREATE DYNAMIC TABLE d$ AS SELECT * FROM s$", SqlError),
        ("CREATE DYNAMIC TABLE d$ AS SELECT 1 AS one", SqlError),
        ("CREATE DYNAMIC TABLE d$ AS INSERT INTO t$ SELECT 1, 'a', 1", SqlError),
        ("CREATE DYNAMIC TABLE d$ AS SELECT nope FROM t$", SqlError),
        ("CREATE DYNAMIC TABLE d$ AS SELECT * FROM nowhere$", NotFoundError),
        ("CREATE DYNAMIC TABLE d$ AS SELECT * FROM plain$", InvalidStateError),
        ("CREATE DYNAMIC TABLE d$ AS SELECT * FROM d$", SqlError),
        ("CREATE DYNAMIC TABLE d$ AS SELECT id, array(map(id, name)) AS m FROM t$", SqlError),
        ("CREATE DYNAMIC TABLE d$ AS SELECT struct(parse_json(name)) AS v FROM t$", SqlError),
        ("CREATE DYNAMIC TABLE t$ AS SELECT * FROM t$", SqlError),
        ("CREATE DYNAMIC TABLE s$ AS SELECT * FROM t$", AlreadyExistsError),
        ("CREATE OR REPLACE DYNAMIC TABLE IF NOT EXISTS d$ AS SELECT * FROM t$", InvalidValueError),
    ):
        with pytest.raises(error):
            home.sql(statement)
        assert home.session.dynamic_tables.list() == [], statement
        assert [str(stream.name) for stream in home.session.streams.list()] == [home.name("s")], statement
        with pytest.raises(SqlError):
            home.sql("SELECT * FROM d$")


def test_what_a_table_has_survives_statements_that_are_wrong_or_spelt_oddly(home: Home) -> None:
    home.tracked()
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1); CREATE TABLE a$ (id INT); CREATE DYNAMIC TABLE d$ AS SELECT id FROM t$")
    for statement in (
        "CREATE OR REPLACE DYNAMIC TABLE d$ AS SELECT idd FROM t$",
        "ALTER TABLE d$ ADD COLUMN z INT",
        "DROP TABLE d$ PURGE",
        "WITH p AS (SELECT ')' AS x) INSERT INTO d$ SELECT 2",
        f"INSERT INTO {home.schema} . d SELECT 2",
        f"INSERT INTO delta.`{home.session.home.warehouse}//tables/{home.schema}/d` SELECT 2",
        f"CREATE TABLE b$ USING delta LOCATION '{home.location('d')}'",
        f"DROP SCHEMA {home.schema} CASCADE",
        "ALTER TABLE t$ SET TBLPROPERTIES (delta.enableRowTracking = false)",
        f"USE {home.schema}",
    ):
        with pytest.raises((SqlError, InvalidStateError)):
            home.sql(statement)
    home.sql(f"CREATE SCHEMA {home.schema}_x")
    unseen = Path(home.location("d")).parents[1] / f"{home.schema}_x" / "unseen"  # by Spark, as after a restart
    assert direct.create(str(unseen), pa.schema([("id", pa.int32())]), {})
    with pytest.raises(SqlError):
        home.sql(f"DROP SCHEMA {home.schema}_x")
    assert unseen.exists()
    assert home.rows("SELECT * FROM d$") == home.rows("SELECT id FROM t$") == [(1,)]
    home.sql("WITH p AS (SELECT ')' AS x) INSERT INTO a$ SELECT id FROM s$")
    home.sql(f"WITH p AS (SELECT ')' AS x) INSERT INTO {home.schema} . a SELECT id FROM s$")
    assert home.rows("SELECT * FROM a$") == [(1,)]


@pytest.mark.long
def test_the_query_may_read_a_directory(home: Home, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.txt").write_text("xx")
    (files / "c.txt").write_text("xxx")
    home.session.volumes.create(home.name("v"), str(files), queue_type=QueueType.NONE)
    home.sql("CREATE DYNAMIC TABLE d$ AS SELECT relative_path, size FROM DIRECTORY(VOLUME v$) WHERE size < 10")
    assert home.rows("SELECT * FROM d$") == [("a.txt", 2), ("c.txt", 3)]
    (files / "a.txt").unlink()
    (files / "d.txt").write_text("x")
    home.session.volumes.refresh(home.name("v"))
    home.session.dynamic_tables.refresh(home.name("d"))
    assert home.rows("SELECT * FROM d$") == [("c.txt", 3), ("d.txt", 1)]


@pytest.mark.long
def test_a_jobs_table_tracks_its_changes_once_a_dynamic_table_reads_it(place: Place) -> None:
    place.put("a.txt", "abc")
    place.job(COUNT)
    place.run()
    place.forget_other_tables()
    place.session.sql("CREATE DYNAMIC TABLE d AS SELECT _file_path, n FROM t").collect()
    place.put("b.txt", "x")
    place.refresh()
    place.run()
    place.session.dynamic_tables.refresh("d")
    assert sorted(place.rows("SELECT n FROM d"), key=str) == [{"n": 1}, {"n": 3}]
