"""Messages about mistakes in statements that Spark has a part in."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.integration.conftest import COUNT, Home, Place
from volstream.api import dbapi
from volstream.errors import InvalidStateError, InvalidValueError, SqlError, StorageError


def test_a_misspelt_relation_is_named_with_the_one_that_was_meant(home: Home) -> None:
    home.tracked("orders", stream="changes")
    for statement, near in {
        "SELECT * FROM ordrs$": "orders",
        "SELECT * FROM orders$ JOIN chnges$ USING (id)": "changes",
        "INSERT INTO orderz$ VALUES (1)": "orders",
        "INSERT INTO orderz$ SELECT id FROM changes$": "orders",
        "UPDATE ordrs$ SET id = 1": "orders",
        "CREATE STREAM x$ ON TABLE ordrs$": "orders",
    }.items():
        with pytest.raises(SqlError if "STREAM" not in statement else Exception) as caught:
            home.sql(statement)
        assert f"Did you mean '{home.schema}.{near}'?" in str(caught.value)
    # What is made, made meanwhile, or of Spark alone, is none.
    home.sql("CREATE TABLE ordrs$ AS SELECT 1 AS a; DROP TABLE ordrs$; DROP TABLE IF EXISTS ordrs$")
    home.sql("CREATE TEMPORARY VIEW order AS SELECT 5 AS a")
    assert home.rows("WITH ordrs AS (SELECT a FROM order) SELECT * FROM ordrs") == [(5,)]
    home.sql("DROP VIEW order")


def test_an_explained_plan_is_whole_and_others_stay_short(home: Home) -> None:
    home.tracked()
    home.sql("INSERT INTO t$ VALUES (1, 'a', 2)")
    before = home.session.home.spark.conf.get("spark.sql.maxPlanStringLength")
    for words in ("", "EXTENDED", "FORMATTED"):
        [row] = home.sql(
            f"EXPLAIN {words} SELECT name, count(*) AS n FROM t$ WHERE age > 1 AND name LIKE 'a%' GROUP BY name ORDER BY n"
        )
        assert "more characters" not in row["plan"]
        assert "Scan parquet" in row["plan"]
        assert len(row["plan"]) > 500
    assert home.session.home.spark.conf.get("spark.sql.maxPlanStringLength") == before == "100"


def test_a_statement_may_end_with_a_semicolon(home: Home) -> None:
    cursor = dbapi.Connection(dbapi._OpenHome(home.session)).cursor()
    assert cursor.execute("SELECT ? AS a; -- one", [3]).fetchall() == [(3,)]
    home.tracked()
    assert home.schema in {row[0].partition(".")[0] for row in cursor.execute("SHOW STREAMS;").fetchall()}
    for text, said in (("SELECT 1; SELECT 2", "These are 2 statements."), (" ; ", "The statement is empty.")):
        with pytest.raises(dbapi.ProgrammingError, match=said):
            cursor.execute(text)


def test_types_of_other_platforms_are_stored_as_sparks(home: Home) -> None:
    home.sql("CREATE TABLE t$ (id VARCHAR PRIMARY KEY NOT NULL, a INT8, b INT16, c INT32, d INT64, json JSON)")
    kinds = {row["col_name"]: row["data_type"] for row in home.sql("DESCRIBE t$")}
    assert [kinds[name] for name in ("id", "a", "b", "c", "d", "json")] == [
        *("string", "tinyint", "smallint", "int", "bigint", "string")
    ]


def test_errors_of_java_say_what_is_wrong(home: Home) -> None:
    home.tracked()
    for time, said in (("2001-01-01", "has no history before"), ("2201-01-01", "is in the future")):
        for literal in ("", "timestamp"):
            with pytest.raises(InvalidValueError, match=said):
                home.sql(f"SELECT * FROM t$ CHANGES FROM TIMESTAMP {literal}'{time}'")
    with pytest.raises(StorageError, match="Incomplete HDFS URI, no host") as unreachable:
        home.session.connector.upload_file("hdfs:///data/users.csv", home.name("u"), "id")
    assert "hdfs://HOST:PORT/path" in unreachable.value.remedy


@pytest.mark.long
def test_a_table_that_can_have_no_stream_is_not_made_to_track_its_changes(home: Home, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "theirs"), pa.table({"id": [1]}))
    home.sql(f"CREATE TABLE x$ USING DELTA LOCATION '{tmp_path / 'theirs'}'")
    with pytest.raises(InvalidStateError, match="can have no streams"):
        home.sql("ALTER TABLE x$ SET PROPERTIES ('change_tracking' = 'true')")
    write_deltalake(str(tmp_path / "theirs"), pa.table({"id": [2]}), mode="append")
    assert home.rows("SELECT id FROM x$") == [(1,), (2,)]


def test_a_table_that_a_job_has_not_made_yet_is_told_from_one_elsewhere(place: Place) -> None:
    place.job(COUNT)
    with pytest.raises(InvalidStateError, match="the first run of the job j makes it"):
        place.session.sql("ALTER TABLE t SET PROPERTIES ('change_tracking' = 'true')")
