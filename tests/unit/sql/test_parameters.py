from __future__ import annotations

import enum
import uuid
from datetime import date, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from volstream.errors import InvalidValueError, SqlError
from volstream.sql.adapt import in_schema, literal_of, with_parameters


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT a, b FROM t GROUP BY a, b", "SELECT a, b FROM s.t GROUP BY a, b"),
        ("SELECT * FROM t JOIN other.t USING (a)", "SELECT * FROM s.t JOIN other.t USING (a)"),
        ("SELECT * FROM DIRECTORY(VOLUME v) d", "SELECT * FROM DIRECTORY(VOLUME s.v) d"),
        ("SELECT * FROM DIRECTORY(VOLUME other.v)", "SELECT * FROM DIRECTORY(VOLUME other.v)"),
        ("WITH c AS (SELECT * FROM t) SELECT * FROM c", "WITH c AS (SELECT * FROM s.t) SELECT * FROM c"),
        ("CREATE STREAM a ON TABLE other.t", "CREATE STREAM s.a ON TABLE other.t"),
        (
            "CREATE JOB j ON STREAM a EVERY '5m' AS INSERT INTO t SELECT * FROM a",
            "CREATE JOB s.j ON STREAM s.a EVERY '5m' AS INSERT INTO s.t SELECT * FROM s.a",
        ),
        (
            "CREATE VOLUME connection LOCATION '/x' USING CONNECTION c",
            "CREATE VOLUME s.connection LOCATION '/x' USING CONNECTION c",
        ),
        ("CREATE TABLE IF NOT EXISTS t (a INT) USING delta", "CREATE TABLE IF NOT EXISTS s.t (a INT) USING delta"),
        ("CREATE OR REPLACE TABLE t (a INT) USING delta", "CREATE OR REPLACE TABLE s.t (a INT) USING delta"),
        ("CREATE TABLE t LIKE u USING delta", "CREATE TABLE s.t LIKE s.u USING delta"),
        ("CREATE TABLE t SHALLOW CLONE u", "CREATE TABLE s.t SHALLOW CLONE s.u"),
        ("DROP TABLE IF EXISTS t", "DROP TABLE IF EXISTS s.t"),
        ("DROP VIEW v", "DROP VIEW s.v"),
        ("RESTORE t TO VERSION AS OF 1", "RESTORE s.t TO VERSION AS OF 1"),
        ("RESTORE TABLE t TO VERSION AS OF 1", "RESTORE TABLE s.t TO VERSION AS OF 1"),
        ("DESCRIBE TABLE EXTENDED t", "DESCRIBE TABLE EXTENDED s.t"),
        ("DESCRIBE table", "DESCRIBE s.table"),
        ("INSERT OVERWRITE TABLE t TABLE u", "INSERT OVERWRITE TABLE s.t TABLE s.u"),
        ("CREATE SCHEMA IF NOT EXISTS x", "CREATE SCHEMA IF NOT EXISTS x"),
        ("DROP SCHEMA IF EXISTS x CASCADE", "DROP SCHEMA IF EXISTS x CASCADE"),
        ("DROP FUNCTION IF EXISTS f", "DROP FUNCTION IF EXISTS s.f"),
        ("SHOW TABLES LIKE 'a*'", "SHOW TABLES IN s LIKE 'a*'"),
        ("SHOW TABLES IN x", "SHOW TABLES IN x"),
        ("SHOW TABLE EXTENDED LIKE 't'", "SHOW TABLE EXTENDED LIKE 't'"),
        ("EXPLAIN EXTENDED SELECT * FROM t", "EXPLAIN EXTENDED SELECT * FROM s.t"),
        ("CREATE TABLE t (a INT) COMMENT 'table' USING delta", "CREATE TABLE s.t (a INT) COMMENT 'table' USING delta"),
        (
            "SELECT file_content(VOLUME v, relative_path) FROM DIRECTORY(VOLUME v)",
            "SELECT file_content(VOLUME s.v, relative_path) FROM DIRECTORY(VOLUME s.v)",
        ),
        ("DROP STREAM a;", "DROP STREAM s.a"),
        ("SHOW VOLUME DIRECTORY v", "SHOW VOLUME DIRECTORY s.v"),
        ("DESCRIBE CONNECTION c", "DESCRIBE CONNECTION c"),
        ("SHOW STREAMS IN x", "SHOW STREAMS IN x"),
    ],
)
def test_names_without_a_schema_get_that_of_the_connection(statement: str, expected: str) -> None:
    assert in_schema(statement, "s") == expected


class Color(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-(2**63), "(-9223372036854775808L)"),
        (2**63, "CAST('9223372036854775808' AS DECIMAL(19, 0))"),
        (np.float64(1.5), "DOUBLE('1.5')"),
        (np.float32(0.5), "DOUBLE('0.5')"),
        (np.int64(5), "5"),
        (np.bool_(True), "TRUE"),
        (np.datetime64("2026-01-02T03:04", "ns"), "TIMESTAMP_NTZ '2026-01-02 03:04:00'"),
        (np.datetime64("2026-01-02T03:04", "s"), "TIMESTAMP_NTZ '2026-01-02 03:04:00'"),
        (np.datetime64("2026-01-02"), "DATE '2026-01-02'"),
        (Color.RED, "'red'"),
        (uuid.UUID(int=5), "'00000000-0000-0000-0000-000000000005'"),
        (pd.Timestamp("2026-01-01T00:00:00.000001Z"), "TIMESTAMP '2026-01-01 00:00:00.000001+00:00'"),
    ],
    ids=str,
)
def test_a_value_has_a_literal(value: object, text: str) -> None:
    assert literal_of(value) == text


@pytest.mark.parametrize(
    "value",
    [pd.NaT, pd.Timestamp("2026-01-01T00:00:00.000000001Z"), "\ud800", ["\ud800"], timedelta(1), np.timedelta64(1, "ns"), {1}],
    ids=ascii,
)
def test_a_value_that_would_change_has_no_literal(value: object) -> None:
    with pytest.raises(InvalidValueError):
        literal_of(value)


@pytest.mark.parametrize(
    "statement", ["id IN (:a)", "id=:a", "(:a IS NULL)", "VALUES (1,:a)", "upper(:a)", "x[:a]", "1-:a", "id = :a"]
)
def test_a_named_parameter_may_follow_any_sign(statement: str) -> None:
    assert with_parameters(f"SELECT {statement}", {"a": 7}) == f"SELECT {statement.replace(':a', '7')}"


@pytest.mark.parametrize("path", ["doc:a", "t.doc:a.b", "`doc`:a", "parse_json(x):a", "d[0]:a", "x::INT"])
def test_a_path_into_json_is_no_parameter(path: str) -> None:
    with pytest.raises(SqlError, match="has no parameter :a"):
        with_parameters(f"SELECT {path}", {"a": 7})


@pytest.mark.parametrize("mark", ["?", "%s", ":x", "%(x)s"])
@pytest.mark.parametrize(
    ("statement", "values", "expected"),
    [
        ("a IN (@)", [1, 2], "a IN (1, 2)"),
        ("a in ( @ ) AND b", ("x", "it's"), "a in ( 'x', 'it\\'s' ) AND b"),
        ("a IN @", [1], "a IN (1)"),
        ("a NOT IN @", [date(2026, 1, 2)], "a NOT IN (DATE '2026-01-02')"),
        ("a IN (@)", [], "a IN (SELECT NULL WHERE FALSE)"),
        ("a IN @", (), "a IN (SELECT NULL WHERE FALSE)"),
        ("a IN (@)", 5, "a IN (5)"),
        ("a IN (@, 3)", [1, 2], "a IN (array(1, 2), 3)"),
        ("array_contains(@, a)", [1, 2], "array_contains(array(1, 2), a)"),
        ("a = @", [1, 2], "a = array(1, 2)"),
    ],
)
def test_a_list_behind_in_is_its_elements(mark: str, statement: str, values: Any, expected: str) -> None:
    given: Any = {"x": values} if "x" in mark else [values]
    assert with_parameters(f"SELECT {statement.replace('@', mark)}", given) == f"SELECT {expected}"


def test_other_parameters_stay_in_their_places_beside_a_list() -> None:
    statement = "SELECT * FROM t WHERE a = ? AND b IN (?) AND c IN ? AND d = ?"
    assert with_parameters(statement, [1, [2, 3], ["x"], uuid.UUID(int=1)]) == (
        "SELECT * FROM t WHERE a = 1 AND b IN (2, 3) AND c IN ('x') AND d = '00000000-0000-0000-0000-000000000001'"
    )
