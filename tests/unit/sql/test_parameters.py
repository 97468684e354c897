from __future__ import annotations

from datetime import timedelta

import numpy as np
import pandas as pd
import pytest

from volstream.errors import InvalidValueError, SqlError
from volstream.sql.parameters import in_schema, literal_of, with_parameters


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
        ("DROP STREAM a;", "DROP STREAM s.a"),
        ("SHOW VOLUME DIRECTORY v", "SHOW VOLUME DIRECTORY s.v"),
        ("DESCRIBE CONNECTION c", "DESCRIBE CONNECTION c"),
        ("SHOW STREAMS IN x", "SHOW STREAMS IN x"),
    ],
)
def test_names_without_a_schema_get_that_of_the_connection(statement: str, expected: str) -> None:
    assert in_schema(statement, "s") == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-(2**63), "(-9223372036854775808L)"),
        (2**63, "CAST('9223372036854775808' AS DECIMAL(19, 0))"),
        (np.float64(1.5), "DOUBLE('1.5')"),
        (np.float32(0.5), "DOUBLE('0.5')"),
        (np.int64(5), "5"),
        (np.bool_(True), "TRUE"),
        (pd.Timestamp("2026-01-01T00:00:00.000001Z"), "TIMESTAMP '2026-01-01 00:00:00.000001+00:00'"),
    ],
    ids=str,
)
def test_a_value_has_a_literal(value: object, text: str) -> None:
    assert literal_of(value) == text


@pytest.mark.parametrize(
    "value", [pd.NaT, pd.Timestamp("2026-01-01T00:00:00.000000001Z"), "\ud800", ["\ud800"], timedelta(1), {1}], ids=ascii
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
