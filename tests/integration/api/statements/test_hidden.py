"""Statements whose text does not show what they read or write, or that make what an engine forgets, are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.conftest import Home, Place
from volstream.errors import SqlError, VolstreamError
from volstream.spark.session import SparkGateway


@pytest.fixture
def filled(home: Home) -> Home:
    """A tracked table ``t`` with a row that its stream ``s`` returns, and a table ``u`` to write to."""
    home.tracked(columns="id INT")
    home.sql("INSERT INTO t$ VALUES (1); CREATE TABLE u$ (id INT)")
    return home


@pytest.fixture(autouse=True)
def no_views_left(gateway: SparkGateway) -> Iterator[None]:
    """Temporary views are of the session, which other tests use, too."""
    yield
    for view in ("hidden", "deeper", "shown"):
        gateway.statements().catalog.dropTempView(view)


def test_a_stream_is_not_read_without_being_consumed(filled: Home) -> None:
    filled.sql("CREATE TEMPORARY VIEW hidden AS SELECT id FROM s$")
    filled.sql("CREATE OR REPLACE TEMP VIEW deeper AS SELECT id FROM hidden")
    for view in ("hidden", "deeper"):
        with pytest.raises(SqlError, match=f"The temporary view {view} reads a stream"):
            filled.sql(f"INSERT INTO u$ SELECT * FROM {view}")
        assert filled.rows(f"SELECT * FROM {view}") == [(1,)]
    filled.sql("CREATE OR REPLACE TEMPORARY VIEW hidden AS SELECT id FROM t$")
    filled.sql("INSERT INTO u$ SELECT * FROM hidden")
    with pytest.raises(SqlError, match="A function cannot read the stream"):
        filled.sql("CREATE TEMPORARY FUNCTION newest() RETURNS INT RETURN (SELECT max(id) FROM s$)")
    with pytest.raises(SqlError, match="A cached table cannot read the stream"):
        filled.sql("CACHE TABLE kept AS SELECT * FROM s$")
    assert filled.rows("SELECT id FROM s$") == [(1,)]


WRITES = [
    "WITH z AS (SELECT 1) DELETE FROM public.t WHERE n > 0",
    "WITH z AS (SELECT 1) UPDATE public.t SET n = 0",
    "DELETE FROM spark_catalog.public.t",
    "DELETE FROM delta.`/tables/public/t`",
    "TRUNCATE TABLE delta.`/tables/public/t`",
    "RESTORE TABLE delta.`/tables/public/t` TO VERSION AS OF 0",
    "ALTER TABLE delta.`/tables/public/t` DROP COLUMN n",
    "CREATE OR REPLACE TABLE delta.`/tables/public/t` (n INT)",
    "CREATE OR REPLACE TABLE spark_catalog.public.t (n INT)",
    "TRUNCATE TABLE spark_catalog.public.t",
    "ALTER TABLE spark_catalog.public.t DROP COLUMN n",
    "INSERT OVERWRITE spark_catalog.public.t SELECT 1, 'a', '', 1L, '', current_timestamp()",
    "WITH z AS (SELECT 1) MERGE INTO public.t AS p USING z ON true WHEN MATCHED THEN DELETE",
    "DROP TABLE delta.`/tables/public/t`",
    "DROP TABLE spark_catalog.public.t",
    "UPDATE shown SET n = 0",
    "MERGE INTO shown USING (SELECT 1 AS n) AS o ON o.n = shown.n WHEN MATCHED THEN DELETE",
    "EXECUTE IMMEDIATE 'DELETE FROM public.t'",
]


def test_a_table_of_a_job_is_not_changed_by_another_name(place: Place) -> None:
    place.put("a.txt", "x")
    place.job("def f(file):\n    return {'n': file.size}\n")
    place.refresh()
    place.run()
    place.session.sql(f"CREATE OR REPLACE TEMPORARY VIEW shown AS SELECT * FROM {place.at}")
    home = place.session.home
    for statement in WRITES:
        with pytest.raises(VolstreamError, match=r"Only job j may write|belongs to job j|is a temporary view|EXECUTE IMMEDIATE"):
            place.session.sql(statement.replace("/tables", f"{home.warehouse}/tables")).collect()
    assert place.table("n") == [(1,)]


@pytest.mark.parametrize(
    "statement", ["CREATE VIEW v$ AS SELECT * FROM t$", "CREATE OR REPLACE FUNCTION f$() RETURNS INT RETURN 1"]
)
def test_what_only_the_engine_knows_is_not_made(filled: Home, statement: str) -> None:
    with pytest.raises(SqlError, match="kept only by a metastore"):
        filled.sql(statement)
