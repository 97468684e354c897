"""Streams on tables: what they return (docs/streams.md, R-4 to R-16) and when they can no longer be read (R-23 to R-25)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from tests.integration.conftest import Home
from volstream.base.processes import new_owner
from volstream.catalog.leases import of_creation
from volstream.errors import (
    AlreadyExistsError,
    InvalidStateError,
    InvalidValueError,
    NotFoundError,
    ObjectInUseError,
    StreamSchemaChangedError,
    StreamStaleError,
    VolstreamError,
)

FIVE = "INSERT INTO t$ VALUES (1, 'Alice', 20), (2, 'Bob', 25), (3, 'Charlie', 30), (4, 'David', 35), (5, 'Eve', 40)"

KINDS = "SELECT __change_type, id, name, age FROM s$"


def versions(home: Home, stream: str = "s$") -> dict[tuple[str, int], int]:
    """Version of each row that the stream returns, by change type and id, relative to the stream's offset."""
    start = home.offset(stream) or 0
    rows = home.sql(f"SELECT __change_type, id, __commit_version FROM {stream}")
    return {(row["__change_type"], row["id"]): row["__commit_version"] - start for row in rows}


@pytest.mark.long
def test_the_append_only_example_of_the_source_document_works(home: Home) -> None:
    home.sql("CREATE TABLE t$ (id INT, name VARCHAR, age INT); ALTER table t$ set PROPERTIES ('change_tracking' = 'true')")
    home.sql("CREATE table stream s$ ON TABLE t$ WITH PROPERTIES ('TABLE_STREAM_MODE' = 'APPEND_ONLY')")
    home.sql(FIVE)
    first = [
        ("INSERT", 1, "Alice", 20),
        ("INSERT", 2, "Bob", 25),
        ("INSERT", 3, "Charlie", 30),
        ("INSERT", 4, "David", 35),
        ("INSERT", 5, "Eve", 40),
    ]
    assert home.rows(KINDS) == first
    for change in (
        "UPDATE t$ SET age = age + 5 WHERE id = 1 OR id = 3",
        "DELETE FROM t$ WHERE id = 2 OR id = 4",
        "DELETE FROM t$",
    ):
        home.sql(change)
        assert home.rows(KINDS) == first
    assert set(versions(home).values()) == {1}


@pytest.mark.long
def test_the_standard_example_of_the_source_document_works(home: Home) -> None:
    home.sql("CREATE TABLE t$ (id INT, name VARCHAR, age INT); ALTER TABLE t$ set PROPERTIES ('change_tracking' = 'true')")
    home.sql("CREATE table stream s$ ON TABLE t$ WITH PROPERTIES ('TABLE_STREAM_MODE' = 'STANDARD')")
    home.sql(FIVE)
    home.sql("CREATE TABLE u$ (id INT, name VARCHAR, age INT)")
    home.sql("INSERT INTO u$ SELECT id,name,age FROM s$")
    assert home.rows("SELECT * FROM s$") == []
    home.sql("UPDATE t$ SET age = age + 5 WHERE id = 1 OR id = 3")
    assert home.rows(KINDS) == [
        ("UPDATE_AFTER", 1, "Alice", 25),
        ("UPDATE_AFTER", 3, "Charlie", 35),
        ("UPDATE_BEFORE", 1, "Alice", 20),
        ("UPDATE_BEFORE", 3, "Charlie", 30),
    ]
    assert versions(home) == {("UPDATE_AFTER", 1): 1, ("UPDATE_AFTER", 3): 1, ("UPDATE_BEFORE", 1): 0, ("UPDATE_BEFORE", 3): 0}
    merge = (
        "MERGE INTO u$ target USING s$ source_stream ON target.id = source_stream.id "
        "WHEN MATCHED AND source_stream.__change_type = 'UPDATE_AFTER' THEN update set target.age = source_stream.age "
        "WHEN MATCHED AND source_stream.__change_type = 'DELETE' THEN DELETE "
        "WHEN NOT MATCHED AND source_stream.__change_type = 'INSERT' THEN INSERT VALUES "
        "(source_stream.id, source_stream.name, source_stream.age)"
    )
    assert home.sql(merge.replace("USING s$", "USING (SELECT * FROM s$)"))[0]["num_affected_rows"] == "2"
    assert home.rows("SELECT * FROM u$") == [
        (1, "Alice", 25),
        (2, "Bob", 25),
        (3, "Charlie", 35),
        (4, "David", 35),
        (5, "Eve", 40),
    ]
    assert home.rows("SELECT * FROM s$") == []
    home.sql("DELETE FROM t$ WHERE id = 2 OR id = 4")
    assert home.rows(KINDS) == [("DELETE", 2, "Bob", 25), ("DELETE", 4, "David", 35)]
    written = {row["id"]: row["__commit_version"] for row in home.sql("SELECT id, __commit_version FROM s$")}
    # The version that wrote the old rows: the INSERT, two commits before the stream's offset plus one.
    assert {(home.offset() or 0) - version for version in written.values()} == {1}
    home.sql(merge)
    assert home.rows("SELECT * FROM u$") == [(1, "Alice", 25), (3, "Charlie", 35), (5, "Eve", 40)]
    assert home.rows("SELECT * FROM s$") == []


@pytest.mark.long
def test_a_stream_starts_now_or_at_a_version_or_time_of_the_kept_history(home: Home) -> None:
    """Rule R-4 of docs/streams.md."""
    home.sql("CREATE TABLE t$ (id INT, name STRING, age INT)")
    home.sql("ALTER TABLE t$ SET PROPERTIES ('change_tracking' = 'true')")
    home.sql(FIVE)
    moment = home.session.sql(home.own("DESCRIBE HISTORY t$")).first()
    assert moment is not None
    home.sql("UPDATE t$ SET age = 0 WHERE id = 1")
    home.session.streams.create(home.name("now"), table=home.name("t"))
    assert home.rows("SELECT * FROM now$") == []
    home.session.streams.create(home.name("at"), table=home.name("t"), at_version=moment["version"])
    assert home.rows("SELECT __change_type, age FROM at$") == [("UPDATE_AFTER", 0), ("UPDATE_BEFORE", 20)]
    with pytest.raises(InvalidValueError, match="no version 99"):
        home.session.streams.create(home.name("late"), table=home.name("t"), at_version=99)
    with pytest.raises(InvalidValueError, match="not tracked yet"):
        home.session.streams.create(home.name("early"), table=home.name("t"), at_version=0)
    with pytest.raises(InvalidValueError, match="in the future"):
        home.sql("CREATE STREAM x$ ON TABLE t$ TIMESTAMP AS OF current_timestamp() + INTERVAL 1 DAY")
    home.sql("CREATE STREAM timed$ ON TABLE t$ TIMESTAMP AS OF current_timestamp()")
    assert home.rows("SELECT * FROM timed$") == []


@pytest.mark.long
def test_initial_rows_come_first_and_keep_the_version_that_wrote_them(home: Home) -> None:
    """Rule R-5 of docs/streams.md."""
    home.tracked(stream=None)
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1); INSERT INTO t$ VALUES (2, 'b', 2)")
    home.sql("CREATE STREAM s$ ON TABLE t$ WITH PROPERTIES ('SHOW_INITIAL_ROWS' = 'TRUE')")
    home.sql("DELETE FROM t$ WHERE id = 1")
    assert home.rows(KINDS) == [("INSERT", 1, "a", 1), ("INSERT", 2, "b", 2)]
    assert versions(home) == {("INSERT", 1): -1, ("INSERT", 2): 0}
    home.sql("CREATE TABLE u$ (id INT); INSERT INTO u$ SELECT id FROM s$")
    assert home.rows(KINDS) == [("DELETE", 1, "a", 1)]


@pytest.mark.long
def test_rows_that_are_older_than_change_tracking_have_no_version(home: Home) -> None:
    """Rules R-5, R-10 and R-13 of docs/streams.md."""
    home.sql("CREATE TABLE t$ (id INT, name STRING, age INT); INSERT INTO t$ VALUES (1, 'a', 1), (2, 'b', 2)")
    for misspelt in (
        "ALTER TABLE t$ SET PROPERTIES ('data_retention_day' = '3')",
        "CREATE TABLE u$ (a INT) TBLPROPERTIES ('change_trackin'='true')",
    ):
        with pytest.raises(InvalidValueError, match=r"Did you mean '(data_retention_days|change_tracking)'"):
            home.sql(misspelt)
    home.sql("ALTER TABLE t$ SET PROPERTIES ('DATA_RETENTION_DAYS' = '30', 'change_tracking' = 'true')")
    kept = {row["key"]: row["value"] for row in home.sql("SHOW TBLPROPERTIES t$")}
    assert kept["delta.logRetentionDuration"] == kept["delta.deletedFileRetentionDuration"] == "interval 30 days"
    home.sql("CREATE STREAM s$ ON TABLE t$ WITH PROPERTIES ('SHOW_INITIAL_ROWS' = 'TRUE'); CREATE STREAM r$ ON TABLE t$")
    unknown = "SELECT __change_type, id, __commit_version IS NULL, __commit_timestamp IS NULL FROM"
    assert home.rows(f"{unknown} s$") == [("INSERT", 1, True, True), ("INSERT", 2, True, True)]
    home.sql("UPDATE t$ SET age = age")
    assert home.rows("SELECT * FROM r$") == []
    home.sql("UPDATE t$ SET age = 3 WHERE id = 1; INSERT INTO t$ VALUES (3, 'c', 3)")
    assert home.rows(f"{unknown} r$") == [
        ("INSERT", 3, False, False),
        ("UPDATE_AFTER", 1, False, False),
        ("UPDATE_BEFORE", 1, True, True),
    ]


@pytest.mark.long
def test_replacing_a_stream_restarts_it_and_if_not_exists_keeps_it(home: Home) -> None:
    """Rule R-6 of docs/streams.md."""
    home.tracked()
    home.sql(FIVE)
    home.sql("CREATE STREAM IF NOT EXISTS s$ ON TABLE t$")
    assert len(home.sql("SELECT * FROM s$")) == 5
    home.sql("CREATE OR REPLACE STREAM s$ ON TABLE t$")
    assert home.sql("SELECT * FROM s$") == []
    with pytest.raises(AlreadyExistsError):
        home.sql("CREATE STREAM s$ ON TABLE t$")
    with pytest.raises(InvalidValueError, match="mutually exclusive"):
        home.sql("CREATE OR REPLACE STREAM IF NOT EXISTS s$ ON TABLE t$")


def test_a_table_needs_change_tracking_and_the_error_says_how(home: Home) -> None:
    """Rule R-7 of docs/streams.md."""
    home.sql("CREATE TABLE t$ (id INT)")
    with pytest.raises(InvalidStateError, match=r"ALTER TABLE \w+\.t SET PROPERTIES \('change_tracking' = 'true'\)"):
        home.sql("CREATE STREAM s$ ON TABLE t$")
    with pytest.raises(NotFoundError):
        home.sql("CREATE STREAM s$ ON TABLE absent$")
    home.tracked("u", "__Change_Type STRING", stream=None)
    with pytest.raises(InvalidValueError, match="__change_type"):
        home.sql("CREATE STREAM s$ ON TABLE u$")


@pytest.mark.long
def test_dropping_a_table_makes_its_streams_stale(home: Home) -> None:
    """Rule R-8 of docs/streams.md."""
    home.tracked()
    home.sql("DROP TABLE t$")
    with pytest.raises(StreamStaleError, match="no longer exists"):
        home.sql("SELECT * FROM s$")


@pytest.mark.parametrize("log", ["_delta_log", pytest.param("_tail/_delta_log", marks=pytest.mark.long)])
def test_a_table_whose_log_is_damaged_can_be_dropped_and_created_again(home: Home, log: str) -> None:
    home.sql("CREATE TABLE t$ (id INT)")
    damaged = Path(home.session.home.warehouse, "tables", home.schema, "t", log)
    damaged.mkdir(parents=True, exist_ok=True)
    (damaged / f"{0:020}.json").write_text("not a log")
    with pytest.raises(VolstreamError):
        home.sql("SELECT * FROM t$")
    home.sql("DROP TABLE t$")
    home.sql("CREATE TABLE t$ (name STRING)")
    assert home.sql("SELECT * FROM t$") == []


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        ("CREATE TABLE t$ (v INT DEFAULT no_such())", "no_such"),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in [
                ("CREATE TABLE t$ AS SELECT if(id = 9, raise_error('nine'), 1) AS v FROM range(10)", r"^nine$"),
                ("CREATE OR REPLACE TABLE t$ AS SELECT NULL AS v", "VOID"),
            ]
        ),
        pytest.param(
            "CREATE TABLE t$ AS SELECT if(age > 30, raise_error('old'), id) AS v FROM s$", r"^old$", marks=pytest.mark.long
        ),
    ],
)
def test_a_create_table_that_fails_leaves_nothing_and_says_why(home: Home, failing: str, said: str) -> None:
    home.tracked("u")
    home.sql(FIVE.replace("t$", "u$"))
    with pytest.raises(VolstreamError, match=said):
        home.sql(failing)
    assert [row["tableName"] for row in home.sql(f"SHOW TABLES IN {home.schema}")] == ["u"]
    home.sql("DROP TABLE IF EXISTS t$; CREATE TABLE t$ (v INT DEFAULT 7, w INT); INSERT INTO t$ (w) VALUES (1)")
    assert home.rows("SELECT * FROM t$") == [(7, 1)]


@pytest.mark.parametrize("left", ["_delta_log", pytest.param("_delta_log/_staged_commits", marks=pytest.mark.long)])
def test_a_create_table_that_was_killed_leaves_nothing(home: Home, left: str) -> None:
    home.sql(f"CREATE SCHEMA IF NOT EXISTS {home.schema}")
    table = Path(home.session.home.warehouse, "tables", home.schema, "t")
    (table / left).mkdir(parents=True)
    (table / "part-0.parquet").write_text("unfinished")
    assert home.sql(f"SHOW TABLES IN {home.schema}") == []
    home.sql("CREATE TABLE t$ (name STRING)")
    assert home.sql("SELECT * FROM t$") == []
    assert not (table / "part-0.parquet").exists()


def test_show_tables_has_the_users_temporary_views_and_none_of_ours(home: Home) -> None:
    home.tracked()
    home.sql("CREATE OR REPLACE TEMPORARY VIEW mine AS SELECT 1 AS v")
    home.sql("CREATE OR REPLACE TEMPORARY VIEW volstream_files AS SELECT 1 AS v")  # as a verification of a job leaves it
    read = home.session.table(home.name("s"))  # through a view that lives as long as it does
    assert "mine" in [row["tableName"] for row in home.sql(f"SHOW TABLES IN {home.schema}")]
    for shown in ("TABLES", "TABLES IN default", f"VIEWS IN {home.schema}"):
        rows = home.sql(f"SHOW {shown}")
        names = {row.get("tableName") or row["viewName"] for row in rows if row["isTemporary"]}
        assert "mine" in names, shown
        assert not {name for name in names if name.startswith("volstream_")}, shown
    assert read.count() == 0
    home.sql("DROP VIEW mine")


def test_a_table_is_created_by_one_session_at_a_time(home: Home) -> None:
    leases = home.session.home.catalog.leases
    assert leases.acquire(of_creation(f"{home.schema}.t"), new_owner(), "CREATE TABLE", 60) is None
    with pytest.raises(ObjectInUseError, match="is being created by another session"):
        home.sql("CREATE TABLE t$ (id INT)")


@pytest.mark.long
def test_reading_a_stream_does_not_move_its_offset(home: Home) -> None:
    """Rule R-9 of docs/streams.md."""
    home.tracked()
    home.sql(FIVE)
    before = home.offset()
    frame = home.session.table(home.name("s"))
    assert frame.count() == 5
    frame.collect()
    home.sql("EXPLAIN INSERT INTO t$ SELECT id, name, age FROM s$")
    assert home.offset() == before


def test_a_stream_shows_the_net_change_of_each_row(home: Home) -> None:
    """Rule R-10 of docs/streams.md."""
    home.tracked(stream=None)
    home.sql(FIVE)
    home.sql("CREATE STREAM s$ ON TABLE t$")
    home.sql("OPTIMIZE t$; INSERT INTO t$ SELECT 9, 'z', 1 WHERE false")
    assert home.rows(KINDS) == []
    # 9 comes and goes, 10 comes and changes, 1 changes twice, 2 changes and changes back, 3 changes and goes; 4 goes, and
    # another row of the same values comes.
    home.sql("INSERT INTO t$ VALUES (9, 'z', 1), (10, 'y', 1)")
    home.sql("UPDATE t$ SET age = 8 WHERE id <= 3")
    home.sql("UPDATE t$ SET age = CASE id WHEN 1 THEN 9 WHEN 2 THEN 25 ELSE 2 END WHERE id IN (1, 2, 10)")
    home.sql("DELETE FROM t$ WHERE id IN (3, 4, 9); INSERT INTO t$ VALUES (4, 'David', 35)")
    assert home.rows(KINDS) == [
        ("DELETE", 3, "Charlie", 30),
        ("DELETE", 4, "David", 35),
        ("INSERT", 10, "y", 2),
        ("INSERT", 4, "David", 35),
        ("UPDATE_AFTER", 1, "Alice", 9),
        ("UPDATE_BEFORE", 1, "Alice", 20),
    ]


@pytest.mark.long
def test_a_restored_table_shows_only_what_differs(home: Home) -> None:
    """Rule R-10 of docs/streams.md."""
    home.tracked(stream=None)
    home.sql(FIVE)
    home.sql("CREATE STREAM s$ ON TABLE t$")
    start = home.offset()
    home.sql("UPDATE t$ SET age = 0 WHERE id = 1; DELETE FROM t$ WHERE id = 2; INSERT INTO t$ VALUES (6, 'Fay', 45)")
    home.sql(f"RESTORE TABLE t$ TO VERSION AS OF {start}")
    assert home.rows(KINDS) == []
    home.sql("DELETE FROM t$ WHERE id = 3")
    assert home.rows(KINDS) == [("DELETE", 3, "Charlie", 30)]


@pytest.mark.long
def test_with_a_primary_key_a_delete_and_an_insert_become_an_update(home: Home) -> None:
    """Rule R-11 of docs/streams.md."""
    home.tracked(columns="id INT NOT NULL PRIMARY KEY, name STRING, age INT", stream=None)
    home.sql(FIVE)
    home.sql("CREATE STREAM s$ ON TABLE t$")
    home.sql("DELETE FROM t$ WHERE id = 1; INSERT INTO t$ VALUES (1, 'Alice', 21)")
    assert home.rows(KINDS) == [("UPDATE_AFTER", 1, "Alice", 21), ("UPDATE_BEFORE", 1, "Alice", 20)]
    assert versions(home) == {("UPDATE_AFTER", 1): 2, ("UPDATE_BEFORE", 1): 0}
    home.sql("UPDATE t$ SET id = 7 WHERE id = 2")
    assert home.rows(KINDS)[:2] == [("DELETE", 2, "Bob", 25), ("INSERT", 7, "Bob", 25)]
    home.sql("INSERT INTO t$ VALUES (1, 'Alice', 22)")
    with pytest.raises(PySparkException, match="have the same key"):
        home.rows(KINDS)


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        pytest.param("VARIANT", "parse_json('1')", "parse_json('2')", marks=pytest.mark.long),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in [
                ("MAP<STRING, INT>", "map('a', 1)", "map('a', 2)"),
                ("STRUCT<m: MAP<STRING, INT>>", "struct(map('a', 1) AS m)", "struct(map('a', 2) AS m)"),
                ("ARRAY<STRUCT<v: VARIANT>>", "array(struct(parse_json('1') AS v))", "array()"),
                ("STRUCT<map: INT>", "struct(1 AS map)", "struct(2 AS map)"),
                ("CHAR(3)", "'a'", "'b'"),
                ("VARCHAR(3)", "'a'", "'a '"),
                ("BINARY", "X'00'", "X'01'"),
                ("DOUBLE", "1", "double('NaN')"),
                ("DECIMAL(38, 10)", "1", "1.0000000001"),
                ("TIMESTAMP", "timestamp_micros(1)", "timestamp_micros(2)"),
                ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ '2026-01-01 00:00:00'", "TIMESTAMP_NTZ '2026-01-01 00:00:00.000001'"),
            ]
        ),
    ],
)
def test_an_update_of_any_type_is_shown_with_a_key_and_without(home: Home, kind: str, value: str, other: str) -> None:
    """Rule R-10 of docs/streams.md."""
    home.tracked(columns=f"id INT, x {kind}", stream=None)
    home.sql(f"INSERT INTO t$ VALUES (1, {value}), (2, {value}), (3, NULL)")
    home.sql("CREATE STREAM s$ ON TABLE t$; CREATE STREAM k$ ON TABLE t$ WITH PROPERTIES ('IDENTITY' = 'id')")
    home.sql(f"UPDATE t$ SET x = {other} WHERE id = 1; UPDATE t$ SET x = {value} WHERE id = 3; OPTIMIZE t$")
    for stream in ("s$", "k$"):
        shown = home.rows(f"SELECT __change_type, id FROM {stream}")
        assert shown == [(change, id_) for change in ("UPDATE_AFTER", "UPDATE_BEFORE") for id_ in (1, 3)]


@pytest.mark.long
def test_a_key_that_two_added_rows_have_is_told_without_an_update(home: Home) -> None:
    """Rule R-11 of docs/streams.md."""
    home.tracked(columns="id INT NOT NULL PRIMARY KEY, name STRING, age INT", stream=None)
    home.sql("CREATE STREAM s$ ON TABLE t$")
    home.sql("INSERT INTO t$ VALUES (1, 'Alice', 20), (2, 'Bob', 25)")
    assert home.rows(KINDS) == [("INSERT", 1, "Alice", 20), ("INSERT", 2, "Bob", 25)]
    home.sql("INSERT INTO t$ VALUES (2, 'Bert', 26)")
    with pytest.raises(PySparkException, match="have the same key"):
        home.rows(KINDS)


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        "UPDATE t$ SET age = age + 1",
        pytest.param(
            "UPDATE t$ SET age = 21 WHERE name = 'Alice'; UPDATE t$ SET age = 22 WHERE name = 'Bob'", marks=pytest.mark.long
        ),
        pytest.param("UPDATE t$ SET name = if(name = 'Alice', 'Bob', 'Alice')", marks=pytest.mark.long),
        pytest.param("DELETE FROM t$", marks=pytest.mark.long),
    ],
    ids=["both", "one after the other", "swapped", "deleted"],
)
def test_a_key_that_two_rows_already_have_is_found_when_both_change(home: Home, changes: str) -> None:
    """Rule R-11 of docs/streams.md."""
    home.tracked(columns="id INT NOT NULL PRIMARY KEY, name STRING, age INT", stream=None)
    home.sql("INSERT INTO t$ VALUES (1, 'Alice', 20), (1, 'Bob', 20), (2, 'Carl', 25)")
    home.sql("CREATE STREAM s$ ON TABLE t$")
    home.sql(changes)
    with pytest.raises(PySparkException, match="have the same key"):
        home.rows(KINDS)


@pytest.mark.long
def test_a_key_of_two_rows_is_found_in_a_table_with_mapped_columns(home: Home) -> None:
    """Rule R-11 of docs/streams.md."""
    home.tracked(columns="id INT NOT NULL PRIMARY KEY, name STRING, age INT", stream=None)
    home.sql("ALTER TABLE t$ SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    home.sql("INSERT INTO t$ VALUES (1, 'Alice', 20), (1, 'Bob', 20), (2, 'Carl', 25)")
    home.sql("CREATE STREAM s$ ON TABLE t$; INSERT INTO t$ VALUES (3, 'Dora', 30)")
    start = (home.offset() or 0) + 1
    home.sql(f"DELETE FROM t$ WHERE name = 'Bob'; RESTORE TABLE t$ TO VERSION AS OF {start}; DELETE FROM t$ WHERE age = 20")
    with pytest.raises(PySparkException, match="have the same key"):
        home.rows(KINDS)


@pytest.mark.long
def test_columns_may_have_the_names_of_any_step_of_a_read(home: Home) -> None:
    home.tracked(columns="change INT NOT NULL PRIMARY KEY, place STRING, image INT, old INT, new INT, sum INT", stream=None)
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1, 1, 1, 1); CREATE STREAM s$ ON TABLE t$; UPDATE t$ SET place = 'b'")
    assert home.rows("SELECT __change_type, change, place, sum FROM s$") == [
        ("UPDATE_AFTER", 1, "b", 1),
        ("UPDATE_BEFORE", 1, "a", 1),
    ]


@pytest.mark.long
def test_identity_columns_can_be_named(home: Home) -> None:
    """Rule R-11 of docs/streams.md."""
    home.tracked(stream=None)
    home.sql(FIVE)
    home.sql("CREATE STREAM s$ ON TABLE t$ WITH PROPERTIES ('IDENTITY' = 'id')")
    home.sql("INSERT OVERWRITE t$ SELECT id, name, CASE WHEN id = 5 THEN 41 ELSE age END FROM t$ WHERE id > 1")
    assert home.rows(KINDS) == [("DELETE", 1, "Alice", 20), ("UPDATE_AFTER", 5, "Eve", 41), ("UPDATE_BEFORE", 5, "Eve", 40)]
    with pytest.raises(InvalidValueError, match="no column 'x'"):
        home.sql("CREATE STREAM s2$ ON TABLE t$ WITH PROPERTIES ('IDENTITY' = 'x')")


@pytest.mark.long
def test_old_images_carry_the_version_and_time_that_wrote_them(home: Home) -> None:
    """Rule R-13 of docs/streams.md."""
    home.tracked()
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1); INSERT INTO t$ VALUES (2, 'b', 2)")
    start = home.offset() or 0
    home.session.streams.reset(home.name("s"), to_version=start + 2)
    home.sql("UPDATE t$ SET age = age + 10; DELETE FROM t$ WHERE id = 2")
    shown = home.sql("SELECT __change_type, id, __commit_version v, __commit_timestamp time FROM s$")
    assert {(row["__change_type"], row["id"]): row["v"] - start for row in shown} == {
        ("UPDATE_AFTER", 1): 3,
        ("UPDATE_BEFORE", 1): 1,
        ("DELETE", 2): 2,
    }
    history = {row["version"]: row["timestamp"] for row in home.sql("DESCRIBE HISTORY t$")}
    assert all(row["time"] == history[row["v"]] for row in shown)


def test_an_empty_range_is_an_empty_frame_with_the_right_columns(home: Home) -> None:
    """Rule R-14 of docs/streams.md."""
    home.tracked()
    frame = home.session.table(home.name("s"))
    assert frame.columns == ["__change_type", "__commit_version", "__commit_timestamp", "id", "name", "age"]
    assert frame.count() == 0
    assert not home.session.streams.has_data(home.name("s"))
    home.sql("ALTER TABLE t$ SET TBLPROPERTIES ('note' = 'x')")
    assert home.session.table(home.name("s")).count() == 0


def test_writing_a_frame_of_a_stream_warns_that_nothing_is_consumed(home: Home) -> None:
    home.tracked()
    with pytest.warns(UserWarning, match=r"does not consume the stream .*INSERT INTO"):
        _ = home.session.table(home.name("s")).write
    _ = home.session.table(home.name("t")).write  # a warning would be an error


@pytest.mark.long
def test_an_added_column_is_null_in_older_images(home: Home) -> None:
    """Rule R-15 of docs/streams.md."""
    home.tracked(stream=None)
    home.sql(FIVE)
    home.sql("CREATE STREAM s$ ON TABLE t$")
    home.sql("ALTER TABLE t$ ADD COLUMNS (city STRING); UPDATE t$ SET city = 'Rome' WHERE id = 1")
    assert home.rows("SELECT __change_type, id, city FROM s$") == [("UPDATE_AFTER", 1, "Rome"), ("UPDATE_BEFORE", 1, None)]


@pytest.mark.long
def test_columns_that_a_restore_took_back_leave_the_net_changes(home: Home) -> None:
    """Rule R-15 of docs/streams.md."""
    home.tracked(stream=None)
    home.sql(FIVE)
    home.sql(
        "CREATE STREAM s$ ON TABLE t$; CREATE STREAM added$ ON TABLE t$ WITH PROPERTIES ('TABLE_STREAM_MODE' = 'APPEND_ONLY')"
    )
    start = home.offset() or 0
    home.sql("ALTER TABLE t$ ADD COLUMNS (city STRING); UPDATE t$ SET city = 'Rome' WHERE id = 1")
    home.sql(f"RESTORE TABLE t$ TO VERSION AS OF {start}; UPDATE t$ SET age = 26 WHERE id = 2")
    assert home.rows(KINDS) == [("UPDATE_AFTER", 2, "Bob", 26), ("UPDATE_BEFORE", 2, "Bob", 25)]
    with pytest.raises(StreamSchemaChangedError, match=f"in version {start + 3}.* up to version {start + 2}"):
        home.sql("SELECT * FROM added$")


@pytest.mark.long
def test_change_tracking_stays_on_while_a_stream_needs_it(home: Home) -> None:
    """Rules R-7 and R-23 of docs/streams.md."""
    home.tracked()
    for statement in (
        "ALTER TABLE t$ SET PROPERTIES ('change_tracking' = 'false')",
        "ALTER TABLE t$ SET TBLPROPERTIES ('change_tracking' = 'false')",
        "ALTER TABLE t$ SET TBLPROPERTIES ('comment' = 'x', 'delta.enableChangeDataFeed' = 'FALSE')",
        "ALTER TABLE t$ UNSET TBLPROPERTIES IF EXISTS ('delta.enableRowTracking')",
    ):
        with pytest.raises(InvalidStateError, match=f"{home.name('s')} needs .* of the table {home.name('t')}"):
            home.sql(statement)
    home.sql("ALTER TABLE t$ SET TBLPROPERTIES ('comment' = 'false'); INSERT INTO t$ VALUES (1, 'Alice', 20)")
    assert home.rows(KINDS) == [("INSERT", 1, "Alice", 20)]

    off = (home.offset() or 0) + 3
    at = f"delta.`{home.location('t')}`"
    home.session.spark.sql(f"ALTER TABLE {at} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')").collect()
    home.session.spark.sql(f"INSERT INTO {at} VALUES (2, 'Bob', 25)").collect()
    home.session.spark.sql(f"ALTER TABLE {at} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')").collect()
    with pytest.raises(StreamStaleError, match=f"not tracked from version {off} on"):
        home.rows(KINDS)
    home.sql("DROP STREAM s$; ALTER TABLE t$ SET PROPERTIES ('change_tracking' = 'false')")


@pytest.mark.long
def test_a_restored_row_of_a_table_with_mapped_columns_is_an_update(home: Home) -> None:
    """Rule R-10 of docs/streams.md: it is older than the row that it replaces."""
    home.tracked(stream=None)
    home.sql("ALTER TABLE t$ SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    home.sql(FIVE)
    home.sql("UPDATE t$ SET age = 21 WHERE id = 1; CREATE STREAM s$ ON TABLE t$")
    home.sql(f"RESTORE TABLE t$ TO VERSION AS OF {(home.offset() or 0) - 1}")
    assert home.rows(KINDS) == [("UPDATE_AFTER", 1, "Alice", 20), ("UPDATE_BEFORE", 1, "Alice", 21)]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["none", "name"])
def test_a_restored_row_is_no_new_one_of_an_append_only_stream(home: Home, mode: str) -> None:
    """Rule R-12 of docs/streams.md."""
    home.tracked(stream=None)
    home.sql(f"ALTER TABLE t$ SET TBLPROPERTIES ('delta.columnMapping.mode' = '{mode}')")
    home.sql(FIVE)
    home.sql("CREATE STREAM s$ ON TABLE t$ WITH PROPERTIES ('TABLE_STREAM_MODE' = 'APPEND_ONLY')")
    home.sql("INSERT INTO t$ VALUES (6, 'Fay', 30); DELETE FROM t$ WHERE id IN (1, 6)")
    home.sql(f"RESTORE TABLE t$ TO VERSION AS OF {(home.offset() or 0) + 1}")
    assert home.rows(KINDS) == [("INSERT", 6, "Fay", 30)]


@pytest.mark.long
def test_truncating_a_table_returns_one_delete_per_row(home: Home) -> None:
    """Rule R-16 of docs/streams.md."""
    home.tracked(stream=None)
    home.sql(FIVE)
    home.sql("CREATE STREAM s$ ON TABLE t$; TRUNCATE TABLE t$")
    assert [row[0] for row in home.rows(KINDS)] == ["DELETE"] * 5


@pytest.mark.long
def test_changes_are_read_from_a_table_created_and_overwritten_by_others(home: Home) -> None:
    home.tracked()
    spark = home.session.spark
    at = home.location("t")
    spark.sql("SELECT 1 AS id, 'x' AS name, 1 AS age").write.format("delta").mode("append").save(at)
    assert home.rows(KINDS) == [("INSERT", 1, "x", 1)]
    spark.sql("SELECT 2 AS id, 'y' AS name, 2 AS age").write.format("delta").mode("overwrite").save(at)
    assert home.rows(KINDS) == [("INSERT", 2, "y", 2)]


def test_a_table_created_again_with_as_many_versions_is_noticed_by_jobs(home: Home) -> None:
    """A job with nothing to do would succeed, with the rows of the table before."""
    home.tracked(columns="k INT")
    home.sql(
        "CREATE TABLE u$ (k INT); CREATE JOB j$ AS INSERT INTO u$ SELECT k FROM s$; CREATE DYNAMIC TABLE d$ AS SELECT k FROM t$"
    )
    home.sql("RUN JOB j$; REFRESH DYNAMIC TABLE d$; DROP TABLE t$")
    home.tracked(columns="k INT", stream=None)
    for statement in ("RUN JOB j$", "REFRESH DYNAMIC TABLE d$"):
        with pytest.raises(StreamStaleError, match="re-created"):
            home.sql(statement)


@pytest.mark.long
def test_a_re_created_table_makes_the_stream_stale(home: Home) -> None:
    """Rule R-23 of docs/streams.md."""
    home.tracked()
    home.sql(FIVE)
    home.sql("DROP TABLE t$")
    home.tracked(stream=None)
    home.sql(FIVE)
    with pytest.raises(StreamStaleError, match="re-created"):
        home.sql("SELECT * FROM s$")
    home.sql("CREATE TABLE u$ (id INT)")
    with pytest.raises(StreamStaleError):
        home.sql("INSERT INTO u$ SELECT id FROM s$")
    home.session.streams.reset(home.name("s"), to_version=home.sql("DESCRIBE HISTORY t$")[0]["version"])
    assert home.rows(KINDS) == []


@pytest.mark.long
def test_a_missing_file_or_log_entry_is_detected_before_anything_is_read(home: Home) -> None:
    """Rule R-23 of docs/streams.md."""
    home.tracked(stream=None)
    home.sql(FIVE)
    home.sql("CREATE STREAM s$ ON TABLE t$; UPDATE t$ SET age = 0")
    table = Path(home.location("t"))
    files = [*table.glob("*.parquet"), *table.glob("_change_data/*.parquet")]
    removed = min(files, key=lambda file: file.stat().st_mtime_ns)
    kept = removed.read_bytes()
    removed.unlink()
    with pytest.raises(StreamStaleError, match=r"VACUUM.*\.parquet"):
        home.sql("SELECT * FROM s$")
    removed.write_bytes(kept)
    assert len(home.rows(KINDS)) == 10


@pytest.mark.long
def test_a_log_cleaned_up_behind_a_checkpoint_makes_a_stream_stale(home: Home) -> None:
    """Rule R-23 of docs/streams.md."""
    home.tracked()
    home.sql("ALTER TABLE t$ SET TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    for _ in range(4):
        home.sql(FIVE)
    log = Path(home.location("t")) / "_delta_log"
    newest = max(int(file.name.split(".")[0]) for file in log.glob("*.checkpoint*.parquet"))
    for file in log.glob("*.json"):
        if file.name[:20].isdigit() and int(file.name[:20]) < newest:
            file.unlink()
    with pytest.raises(StreamStaleError, match="no longer kept"):
        home.sql("SELECT * FROM s$")


@pytest.mark.long
def test_a_stream_reports_until_when_it_can_be_read(home: Home) -> None:
    """Rule R-24 of docs/streams.md."""
    home.tracked()
    reader, stream = home.session.home.reader, home.session.streams.get(home.name("s"))
    assert reader.stale_after(stream) is None
    home.sql(FIVE)
    first = reader.stale_after(stream)
    assert first is not None
    home.sql("DELETE FROM t$")
    assert reader.stale_after(stream) == first
    shown = {row["property"]: row["value"] for row in home.sql("DESCRIBE STREAM s$")}
    assert shown["stale_after"] is not None
    (row,) = home.sql("SHOW TABLE STREAMS LIKE 's%'")
    assert (row["name"], row["source_kind"], row["has_data"]) == (home.name("s"), "table", "true")


def test_a_vacuum_that_would_remove_unconsumed_changes_is_refused(home: Home) -> None:
    """Rule R-25 of docs/streams.md."""
    home.tracked()
    home.sql(FIVE)
    with pytest.raises(InvalidStateError, match=f"{home.name('s')}.*has not consumed"):
        home.sql("VACUUM t$ RETAIN 0 HOURS")
    home.session.streams.advance(home.name("s"))


@pytest.mark.long
def test_changes_past_their_retention_can_be_read_while_their_files_exist(home: Home) -> None:
    """Rule R-25 of docs/streams.md."""
    home.tracked(columns="id INT NOT NULL PRIMARY KEY, name STRING, age INT", stream=None)
    home.sql(FIVE)
    home.sql("CREATE STREAM s$ ON TABLE t$; DELETE FROM t$ WHERE id = 1; UPDATE t$ SET age = 0 WHERE id = 2")
    home.sql("ALTER TABLE t$ SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 0 seconds')")
    stale_after = home.session.home.reader.stale_after(home.session.streams.get(home.name("s")))
    assert stale_after is not None
    assert stale_after < datetime.now(UTC)
    assert [row[:2] for row in home.rows(KINDS)] == [("DELETE", 1), ("UPDATE_AFTER", 2), ("UPDATE_BEFORE", 2)]


def test_tables_and_streams_share_one_namespace(home: Home) -> None:
    home.tracked()
    with pytest.raises(AlreadyExistsError):
        home.sql("CREATE TABLE s$ (id INT)")
    with pytest.raises(AlreadyExistsError):
        home.sql("CREATE STREAM t$ ON TABLE t$")
