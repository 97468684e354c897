from __future__ import annotations

import pytest

from volstream.changes.streams.sources import SHORTHANDS
from volstream.errors import InvalidValueError, SqlError
from volstream.sql import adapt
from volstream.sql.statement import SparkStatement

KEY = "volstream.primary_key"
DEFAULTS = "delta.feature.allowColumnDefaults"


def created(statement: str) -> str:
    return adapt.create_table(SparkStatement(statement), KEY, SHORTHANDS).text


@pytest.mark.parametrize(
    ("written", "passed"),
    [
        ("CREATE TABLE t (a VARCHAR, b VARCHAR(3), c CHAR)", "CREATE TABLE t (a STRING, b VARCHAR(3), c STRING)"),
        ("CREATE TABLE t (a INT COMMENT 'VARCHAR PRIMARY KEY')", "CREATE TABLE t (a INT COMMENT 'VARCHAR PRIMARY KEY')"),
        (
            "CREATE TABLE t (id STRING NOT NULL PRIMARY KEY, n INT)",
            f"CREATE TABLE t (id STRING NOT NULL , n INT) TBLPROPERTIES ('{KEY}' = '[\"id\"]')",
        ),
        (
            "create table t (n DECIMAL(10, 2), id INT primary key)",
            f"create table t (n DECIMAL(10, 2), id INT NOT NULL) TBLPROPERTIES ('{KEY}' = '[\"id\"]')",
        ),
        (
            "CREATE TABLE t (a INT, `b c` INT, PRIMARY KEY (a, `b c`)) TBLPROPERTIES ('x' = 'y')",
            f"CREATE TABLE t (a INT, `b c` INT) TBLPROPERTIES ('{KEY}' = '[\"a\", \"b c\"]', 'x' = 'y')",
        ),
        ("CREATE TABLE t (a INT, CONSTRAINT k PRIMARY KEY (a))", f"CREATE TABLE t (a INT) TBLPROPERTIES ('{KEY}' = '[\"a\"]')"),
        (
            "CREATE TABLE t (a INT) COMMENT 'change_tracking' TBLPROPERTIES ('change_tracking' = 'true', 'x' = 'y')",
            "CREATE TABLE t (a INT) COMMENT 'change_tracking' TBLPROPERTIES ('delta.enableRowTracking' = 'true', "
            "'delta.enableChangeDataFeed' = 'true', 'delta.enableInCommitTimestamps' = 'true', 'x' = 'y')",
        ),
        (
            "CREATE TABLE t (id VARCHAR PRIMARY KEY COMMENT 'PRIMARY KEY' NOT NULL, n INT)",
            f"CREATE TABLE t (id STRING  COMMENT 'PRIMARY KEY' NOT NULL, n INT) TBLPROPERTIES ('{KEY}' = '[\"id\"]')",
        ),
        (
            "CREATE TABLE t (id STRING COMMENT ',' PRIMARY KEY, n STRING DEFAULT ')')",
            "CREATE TABLE t (id STRING COMMENT ',' NOT NULL, n STRING DEFAULT ')') "
            f"TBLPROPERTIES ('{DEFAULTS}' = 'supported', '{KEY}' = '[\"id\"]')",
        ),
        (
            "CREATE TABLE t (a INT8, b int16, c INT32 NOT NULL, d INT64, e JSON, json STRUCT<json: JSON, a MAP<INT8, INT64>>) "
            "PARTITIONED BY (json)",
            "CREATE TABLE t (a TINYINT, b SMALLINT, c INT NOT NULL, d BIGINT, e STRING, "
            "json STRUCT<json: STRING, a MAP<TINYINT, BIGINT>>) PARTITIONED BY (json)",
        ),
        ("CREATE TABLE t AS (SELECT a json, json FROM u)", "CREATE TABLE t AS (SELECT a json, json FROM u)"),
        ("ALTER TABLE t ADD COLUMNS (json INT64, b JSON)", "ALTER TABLE t ADD COLUMNS (json BIGINT, b STRING)"),
        ("ALTER TABLE t ALTER COLUMN json TYPE INT64", "ALTER TABLE t ALTER COLUMN json TYPE BIGINT"),
        (
            "ALTER TABLE t SET TBLPROPERTIES ('change_tracking' = false)",
            "ALTER TABLE t SET TBLPROPERTIES ('delta.enableRowTracking' = 'false', 'delta.enableChangeDataFeed' = 'false')",
        ),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, s STRUCT<default: INT>, v STRING DEFAULT 'a)b')",
            "CREATE TABLE t (id INT NOT NULL, s STRUCT<default: INT>, v STRING DEFAULT 'a)b') "
            f"TBLPROPERTIES ('{DEFAULTS}' = 'supported', '{KEY}' = '[\"id\"]')",
        ),
        *(
            (unchanged, unchanged)
            for unchanged in (
                f"CREATE TABLE t (v INT DEFAULT 7) TBLPROPERTIES ('{DEFAULTS}' = 'supported')",
                "CREATE TABLE t (a INT, default STRING, `default b` INT COMMENT 'DEFAULT 1') DEFAULT COLLATION UTF8_BINARY",
                "CREATE TABLE t AS (SELECT a, b default FROM u)",
                "ALTER TABLE t ALTER COLUMN v SET DEFAULT 8",
            )
        ),
    ],
)
def test_a_table_definition_is_adapted_to_spark(written: str, passed: str) -> None:
    """Rule R-21 of docs/streams.md."""
    assert created(written) == passed


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("d INTERVAL DAY TO SECOND", "cannot be an INTERVAL: Delta does not store them. Use BIGINT"),
        ("d ARRAY<INTERVAL YEAR>", "cannot be an INTERVAL"),
        ("d INTEGR", "There is no type INTEGR. Did you mean 'INTEGER'?"),
        ("d MAP<STRNG, INT>", "There is no type STRNG. Did you mean 'STRING'?"),
    ],
)
def test_a_type_that_a_column_cannot_have_is_named_with_another(column: str, said: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        created(f"CREATE TABLE t (a INT, {column})")
    assert said in str(caught.value)


def test_change_tracking_is_true_or_false() -> None:
    for value in ("'maybe'", ""):
        with pytest.raises(InvalidValueError, match="change_tracking"):
            created(f"CREATE TABLE t (a INT) TBLPROPERTIES ('change_tracking' = {value}")


def test_partition_columns_are_part_of_the_key() -> None:
    """Rows of one key would be in several partitions."""
    with pytest.raises(SqlError, match=r"column d is not part of the PRIMARY KEY. Add it to the key: PRIMARY KEY \(a, d\)"):
        created("CREATE TABLE t (a INT PRIMARY KEY, d DATE) PARTITIONED BY (A, d)")
    created("CREATE TABLE t (a INT, d DATE, PRIMARY KEY (d, a)) PARTITIONED BY (D)")
    created("CREATE TABLE t (a INT, d DATE) PARTITIONED BY (d)")


@pytest.mark.parametrize("days", ["'0'", "'a week'", "99999"])
def test_a_retention_is_a_number_of_days(days: str) -> None:
    with pytest.raises(InvalidValueError, match="data_retention_days cannot be"):
        created(f"CREATE TABLE t (a INT) TBLPROPERTIES ('DATA_RETENTION_DAYS' = {days})")


def test_a_table_has_one_primary_key() -> None:
    with pytest.raises(SqlError, match="one PRIMARY KEY"):
        created("CREATE TABLE t (a INT PRIMARY KEY, b INT PRIMARY KEY)")


def test_an_insert_of_all_columns_names_them() -> None:
    """Rule R-21 of docs/streams.md."""
    text = "MERGE INTO t USING s ON t.a = s.a WHEN NOT MATCHED THEN INSERT VALUES (s.a, 'INSERT VALUES')"
    assert adapt.insert_all_columns(SparkStatement(text), ["a", "b c"]).text == text.replace(
        "THEN INSERT VALUES", "THEN INSERT (`a`, `b c`) VALUES"
    )
    named = "MERGE INTO t USING s ON t.a = s.a WHEN NOT MATCHED THEN INSERT (a) VALUES (s.a)"
    assert adapt.insert_all_columns(SparkStatement(named), ["a"]).text == named


COLUMNS = {
    "__change_type": "string",
    "__commit_version": "bigint",
    "__commit_timestamp": "timestamp",
    "id": "bigint",
    "name": "string",
    "day": "date",
    "price": "decimal(10,2)",
    "ok": "boolean",
}


def filtered(merge: str) -> str:
    return adapt.filtered_merge(SparkStatement(merge), lambda _: COLUMNS, ["id", "name"]).text


@pytest.mark.parametrize(
    ("clauses", "condition"),
    [
        ("WHEN MATCHED AND s.__change_type = 'DELETE' THEN DELETE", "((s.__change_type = 'DELETE'))"),
        (
            "WHEN MATCHED AND s.__change_type = 'DELETE' AND t.name = 'x' THEN DELETE "
            "WHEN NOT MATCHED AND __change_type IN ('INSERT', 'UPDATE_AFTER') THEN INSERT (id) VALUES (s.id)",
            "((s.__change_type = 'DELETE')) OR ((__change_type IN ('INSERT', 'UPDATE_AFTER')))",
        ),
        (
            "WHEN MATCHED AND s.id BETWEEN 1 AND 2 AND t.id=1 AND (s.id > 3 AND s.name = 'AND') THEN DELETE",
            "((s.id BETWEEN 1 AND 2) AND ((s.id > 3 AND s.name = 'AND')))",
        ),
        (
            "WHEN MATCHED AND CASE WHEN s.id = 1 AND s.name = 'x' THEN true ELSE false END THEN DELETE",
            "((CASE WHEN s.id = 1 AND s.name = 'x' THEN true ELSE false END))",
        ),
        ("WHEN MATCHED AND s.id > 1 OR s.id < 0 AND s.name = 'x' THEN DELETE", "((s.id > 1 OR s.id < 0 AND s.name = 'x'))"),
        ("WHEN MATCHED AND s.__change_type = 'it''s' THEN DELETE", "((s.__change_type = 'it''s'))"),
        ("WHEN MATCHED AND s.id > 1 OR t.id < 0 AND s.name = 'x' THEN DELETE", None),
        ("WHEN MATCHED AND s.name <> t.name THEN DELETE", None),
        ("WHEN MATCHED AND s.__change_type = 'DELETE' THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)", None),
        ("WHEN MATCHED AND s.id > 3 THEN DELETE WHEN NOT MATCHED BY SOURCE AND t.id > 3 THEN DELETE", None),
        # Of a row for which no clause is tried, Spark evaluates none of its conditions.
        *(
            (f"WHEN MATCHED AND t.id = 1 AND {fails} THEN DELETE", None)
            for fails in (
                *("CAST(s.name AS INT) > 3", "s.id / s.id > 1", "s.id % 2 = 0", "s.id + 1 > 2", "abs(s.id) > 3", "-s.id > 3"),
                *("s.name > 3", "s.name = s.id", "s.name IN ('a', 3)", "s.name BETWEEN 1 AND 'b'", "coalesce(s.name, 3) = 3"),
                *("CASE WHEN s.id = 1 THEN s.name ELSE 3 END = 'x'", "s.day = s.name", "length(s.name) = s.name"),
            )
        ),
        *(
            (f"WHEN MATCHED AND t.id = 1 AND {holds} THEN DELETE", f"(({holds}))")
            for holds in (
                *("s.id > 3", "s.id = -3", "s.name <> 'a'", "s.id IN (1, 2)", "s.name LIKE 'a%'", "s.day >= '2026-01-01'"),
                *("s.price < 3", "s.id = s.price", "s.name IS NULL", "NOT s.ok", "upper(s.name) = 'A'", "length(s.name) > 3"),
                *("coalesce(s.name, '') = 'x'", "s.id = '3'", "s.ok = true", "s.name IN ('a', NULL)", "(s.name) = ('a')"),
            )
        ),
        # Both tables have it: unqualified, it is not known whose it is.
        ("WHEN MATCHED AND name = 'x' THEN DELETE", None),
        # Computed twice, it could have two values.
        ("WHEN MATCHED AND rand() < s.id THEN DELETE", None),
        ("WHEN MATCHED AND (SELECT max(id) FROM u) = s.id THEN DELETE", None),
        ("WHEN MATCHED AND s.id = 1 AND THEN DELETE", None),
    ],
)
def test_a_merge_leaves_out_rows_for_which_no_clause_can_fire(clauses: str, condition: str | None) -> None:
    """Rule R-21 of docs/streams.md. The filter says what the conditions say, word for word."""
    for source in ("changes AS s", "(SELECT * FROM changes) s", "(SELECT 1 AS a, b /* USING */ FROM x) AS s (a, `on`)"):
        merge = f"MERGE INTO t USING {source} ON t.id = s.id {clauses}"
        wanted = f"USING (SELECT * FROM {source} WHERE {condition}) AS s ON"
        assert filtered(merge) == (merge if condition is None else merge.replace(f"USING {source} ON", wanted))


def test_a_source_after_a_common_table_expression_is_filtered_by_its_name() -> None:
    asked: list[str] = []

    def columns_of(query: str) -> dict[str, str]:
        asked.append(query)
        return COLUMNS

    start, end = "WITH w AS (SELECT * FROM changes) MERGE INTO t USING ", " ON t.id = w.id WHEN MATCHED AND w.id = 3 THEN DELETE"
    merge = adapt.filtered_merge(SparkStatement(f"{start}w{end}"), columns_of, ["id"])
    assert merge.text == f"{start}(SELECT * FROM w WHERE ((w.id = 3))) AS w{end}"
    assert asked == ["WITH w AS (SELECT * FROM changes) SELECT * FROM w"]


def test_a_source_without_a_name_is_not_filtered() -> None:
    for merge in (
        "MERGE INTO t USING (SELECT * FROM changes) ON id = 3 WHEN MATCHED AND __change_type = 'DELETE' THEN DELETE",
        "MERGE INTO t USING (SELECT * FROM changes",
        "MERGE INTO t USING",
        "MERGE",
    ):
        assert filtered(merge) == merge


def test_a_table_from_a_query_is_created_empty_and_then_filled() -> None:
    made = adapt.as_insert(SparkStatement("CREATE TABLE IF NOT EXISTS a.t USING DELTA AS SELECT * FROM s -- all"))
    assert made is not None
    assert [one.text for one in made] == [
        "CREATE TABLE IF NOT EXISTS a.t USING DELTA AS SELECT * FROM ( SELECT * FROM s -- all\n) LIMIT 0",
        "INSERT INTO a.t  SELECT * FROM s -- all",
    ]
    assert adapt.as_insert(SparkStatement("CREATE TABLE t (a INT)")) is None
    assert adapt.as_insert(SparkStatement("INSERT INTO t SELECT 1 AS x")) is None


@pytest.mark.parametrize("end", ["TBLPROPERTIES", "TBLPROPERTIES 'a' = 'b'"])
def test_properties_that_are_not_a_list_are_a_user_error(end: str) -> None:
    with pytest.raises(SqlError, match="followed by a list"):
        created(f"CREATE TABLE t (a INT PRIMARY KEY) {end}")


@pytest.mark.parametrize(
    ("written", "passed"),
    [
        ("SELECT CAST(a AS VARCHAR), x AS varchar FROM t", "SELECT CAST(a AS STRING), x AS varchar FROM t"),
        ("SELECT try_cast ( f(a, (b)) AS Text )", "SELECT try_cast ( f(a, (b)) AS STRING )"),
        ("SELECT a::varchar, b::int64, c::varchar(3)", "SELECT a::STRING, b::BIGINT, c::varchar(3)"),
        ("SELECT CAST((SELECT x AS text FROM t) AS CHAR)", "SELECT CAST((SELECT x AS text FROM t) AS STRING)"),
        ("SELECT 'CAST(a AS VARCHAR)', '::text'", "SELECT 'CAST(a AS VARCHAR)', '::text'"),
        ("SHOW TABLES LIKE 't%'", "SHOW TABLES LIKE 't*'"),
        ("show tables in s like '%a_b%'", "show tables in s like '*a_b*'"),
        ("SHOW TABLES IN `like`", "SHOW TABLES IN `like`"),
        ("SELECT * FROM t WHERE a LIKE 't%'", "SELECT * FROM t WHERE a LIKE 't%'"),
    ],
)
def test_words_of_other_platforms_are_sparks_in_any_statement(written: str, passed: str) -> None:
    assert adapt.in_sparks_words(SparkStatement(written)).text == passed
