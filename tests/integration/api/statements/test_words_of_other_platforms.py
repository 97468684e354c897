"""Statements as other platforms write them, which do what they say."""

from __future__ import annotations

import re

import pytest

from tests.integration.conftest import COUNT, Home, Place
from volstream.errors import InvalidStateError, InvalidValueError, NotFoundError, SqlError
from volstream.tables.delta.opened import schema_at


def _shown(home: Home, what: str) -> str:
    [row] = home.sql(f"SHOW CREATE {what}")
    return str(row["createtab_stmt"])


def test_a_dynamic_table_is_created_by_the_words_of_others(home: Home) -> None:
    home.sql("CREATE TABLE t$ (id INT) TBLPROPERTIES ('change_tracking' = 'true')")
    home.sql("CREATE DYNAMIC TABLE d$ REFRESH INTERVAL 10 MINUTE VCLUSTER default COMMENT 'it''s' AS SELECT id * 2 AS n FROM t$")
    made = home.session.dynamic_tables.get(home.name("d"))
    assert (made.every, made.comment) == (600.0, "it's")
    [refresh] = home.sql(f"SHOW DYNAMIC TABLE REFRESH HISTORY IN {home.schema} WHERE name = 'd'")
    assert (refresh["name"], refresh["state"]) == (home.name("d"), "committed")
    assert _shown(home, "TABLE d$") == _shown(home, "DYNAMIC TABLE d$")


@pytest.mark.long
def test_a_dynamic_table_is_refreshed_and_shown_by_the_words_of_others(home: Home) -> None:
    home.tracked(columns="id INT", stream=None)
    home.sql("INSERT INTO t$ VALUES (1), (2)")
    home.sql("CREATE DYNAMIC TABLE d$ REFRESH INTERVAL 10 MINUTE VCLUSTER default COMMENT 'it''s' AS SELECT id * 2 AS n FROM t$")
    home.sql("INSERT INTO t$ VALUES (3)")
    home.sql("REFRESH DYNAMIC TABLE d$")
    assert home.rows("SELECT n FROM d$") == [(2,), (4,), (6,)]
    history = home.sql(f"SHOW DYNAMIC TABLE REFRESH HISTORY IN {home.schema} WHERE name = 'd'")
    assert [(row["name"], row["state"], row["rows"]) for row in history] == [
        (home.name("d"), "committed", "1"),
        (home.name("d"), "committed", "2"),
    ]
    assert home.sql("SHOW DYNAMIC TABLE REFRESH HISTORY LIKE 'e%'") == []
    assert {row["operation"] for row in home.sql("DESC HISTORY d$")} >= {"MERGE"}
    text = _shown(home, "TABLE d$")
    assert text == _shown(home, "DYNAMIC TABLE d$")
    home.sql("DROP DYNAMIC TABLE d$")
    home.sql(text)
    made = home.session.dynamic_tables.get(home.name("d"))
    assert (made.every, made.comment, home.rows("SELECT n FROM d$")) == (600.0, "it's", [(2,), (4,), (6,)])


@pytest.mark.long
def test_what_show_create_table_shows_makes_the_same_table(home: Home) -> None:
    home.sql(
        """
        CREATE TABLE t$ (`Id` BIGINT NOT NULL, name VARCHAR(9) DEFAULT 'it''s' COMMENT 'a''b', `a-b` STRUCT<x: INT>,
          half DOUBLE GENERATED ALWAYS AS (Id / 2), PRIMARY KEY (Id, name))
        COMMENT 'c' PARTITIONED BY (name) TBLPROPERTIES ('change_tracking' = 'true', 'mine' = '1');
        ALTER TABLE t$ ADD CONSTRAINT positive CHECK (Id > 0)
        """
    )
    text = _shown(home, "TABLE t$")
    assert "PRIMARY KEY (`Id`, name)" in text
    home.sql(re.sub(r"`t`", "u$", text).replace(f"`{home.schema}`.", ""))
    one, other = (schema_at(home.location(name)) for name in "tu")
    assert one is not None
    assert other is not None
    stable = [{key: value for key, value in each.properties.items() if "row-" not in value} for each in (one, other)]
    assert stable[0] == stable[1]
    assert (one.fields, one.partitions, one.primary_key) == (other.fields, other.partitions, other.primary_key)
    home.sql("CREATE TABLE c$ (id INT) CLUSTER BY (id)")
    assert "CLUSTER BY (id)" in _shown(home, "TABLE c$")
    with pytest.raises(NotFoundError, match="There is no table"):
        _shown(home, "TABLE none$")


@pytest.mark.long
def test_a_table_gets_a_primary_key(home: Home) -> None:
    home.tracked(columns="id INT, `Name` STRING")
    home.sql("INSERT INTO t$ VALUES (1, 'a')")
    with pytest.raises(SqlError, match=r"no column nam.* Did you mean 'Name'"):
        home.sql("ALTER TABLE t$ ADD PRIMARY KEY (nam)")
    home.sql("ALTER TABLE t$ ADD CONSTRAINT k PRIMARY KEY (ID)")
    schema = schema_at(home.location("t"))
    assert schema is not None
    assert schema.primary_key == ["id"]
    home.sql("CREATE STREAM keyed$ ON TABLE t$; DELETE FROM t$; INSERT INTO t$ VALUES (1, 'b')")
    assert home.rows("SELECT __change_type, name FROM keyed$") == [("UPDATE_AFTER", "b"), ("UPDATE_BEFORE", "a")]
    assert home.rows("SELECT __change_type, name FROM s$") == [("INSERT", "b")]  # the stream is older than the key
    with pytest.raises(SqlError, match=r"has already the PRIMARY KEY \(id\)"):
        home.sql("ALTER TABLE t$ ADD PRIMARY KEY (name)")
    home.sql("CREATE TABLE p$ (a INT, b INT) PARTITIONED BY (b)")
    with pytest.raises(SqlError, match="The partition column b is not part of the PRIMARY KEY"):
        home.sql("ALTER TABLE p$ ADD PRIMARY KEY (a)")


def test_a_lifecycle_of_data_is_refused_with_what_to_do(home: Home) -> None:
    home.sql("CREATE TABLE t$ (id INT)")
    for statement in (
        "ALTER TABLE t$ SET PROPERTIES ('data_lifecycle' = '7')",
        "CREATE TABLE u$ (id INT) TBLPROPERTIES ('data_lifecycle' = '7')",
    ):
        with pytest.raises(InvalidValueError, match=r"no property 'data_lifecycle'\. Run DELETE FROM t WHERE"):
            home.sql(statement)


def test_properties_of_volstream_are_read_however_they_are_written(home: Home) -> None:
    home.sql("CREATE TABLE t$ (id INT) TBLPROPERTIES (change_tracking = true, data_retention_days 3)")
    home.sql("CREATE STREAM s$ ON TABLE t$")
    with pytest.raises(InvalidStateError, match="needs the change tracking of the table"):
        home.sql("ALTER TABLE t$ SET TBLPROPERTIES (change_tracking false)")
    with pytest.raises(InvalidValueError, match=r"no property 'change_trackin' of tables\. Did you mean 'change_tracking'"):
        home.sql("CREATE TABLE u$ (id INT) TBLPROPERTIES (change_trackin = true)")
    with pytest.raises(InvalidValueError, match=r"change_tracking must have a value\. Set it to another one"):
        home.sql("ALTER TABLE t$ UNSET TBLPROPERTIES IF EXISTS (change_tracking)")
    home.sql("CREATE TABLE u$ TBLPROPERTIES ('a' = 'b') AS SELECT 'change_tracking' = 'x' AS same")
    assert home.rows("SELECT same FROM u$") == [(False,)]


def test_jobs_and_volumes_obey_statements_that_begin_with_the_verb(place: Place) -> None:
    place.put("a", "xy")
    place.job(COUNT)
    [refreshed] = place.rows("REFRESH VOLUME v")
    assert refreshed["inserted"] == "1"
    assert place.rows("RUN JOB j") == [{"processed": "1", "failed": "0", "removals": "0", "rows": "1"}]
    assert place.table() == [("a", 2)]
    assert place.rows("PAUSE JOB j") == [{"status": "Job j is paused."}]
    assert place.session.jobs.get("j").state == "paused"
    assert place.rows("RESUME JOB j") == [{"status": "Job j is active."}]
    with pytest.raises(SqlError, match="Run volstream export"):
        place.rows("SHOW CREATE JOB j")
