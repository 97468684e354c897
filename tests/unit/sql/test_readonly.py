"""What begins as a query passes; what it may read is up to the engine's guard (``integration/console/test_guard.py``)."""

from __future__ import annotations

import pytest

from volstream.errors import SqlError
from volstream.sql.statement import one_query


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1",
        "select * from t where __change_type = 'delete';",
        "WITH a AS (SELECT 1) SELECT * FROM a -- insert into t",
        "(SELECT 1) UNION ALL (SELECT 2)",
        "FROM t SELECT n",
        "VALUES (1)",
        "TABLE t",
        "SHOW JOBS",
        "SHOW CREATE TABLE t",
        "SHOW TABLES LIKE 'a/b'",
        "SELECT '-- \\\n' AS identifier -- C:\\files",
        "DESCRIBE HISTORY t",
        "DESCRIBE query",
        "DESC `r'x'`",
        "SELECT replace(a, 'x', 'y'), `update`, t.delete FROM t",
        "SELECT * FROM DIRECTORY(VOLUME v)",
        "SELECT * FROM t CHANGES FROM VERSION 1",
    ],
)
def test_queries_pass(text: str) -> None:
    assert one_query(text) == text.removesuffix(";").strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "SELECT 1; SELECT 2",
        "INSERT INTO t SELECT 1",
        "MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE",
        "CREATE TABLE t AS SELECT 1",
        "DROP JOB j",
        "REFRESH TABLE t",
        "ALTER VOLUME v SET COMMENT 'x'",
        "EXPLAIN SELECT 1",
        "SET spark.x = 1",
        "CALL f()",
        "SELECT reflect('java.lang.System', 'exit', 0)",
        "SELECT /* x */ java_method('a', 'b')",
        "SELECT file_content(VOLUME v, 'a') FROM t",
        "SELECT Get_Presigned_Url ( VOLUME v, relative_path, 60) FROM DIRECTORY(VOLUME v)",
        "SELECT IDENTIFIER /* x */ ('reflect')('java.lang.System', 'getenv', 'HOME')",
        "SELECT * FROM IDENTIFIER('t')",
        'SELECT 1 -- \\\n\' \n, reflect("a", "b") -- \'',
        "SELECT 'open",
    ],
)
def test_other_statements_are_refused_before_spark_sees_them(text: str) -> None:
    with pytest.raises(SqlError):
        one_query(text)
