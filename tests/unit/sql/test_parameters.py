from __future__ import annotations

import pytest

from volstream.sql.parameters import in_schema


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
