"""The calls that Superset's own code makes (``superset/db_engine_specs/base.py``, ``superset/models/core.py``), on a home."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import column, func, literal_column, select, table, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.integration.conftest import Home, home_in, read_only, settings_in
from volstream.api.dbapi import ProgrammingError
from volstream.spark.session import SparkGateway

TEXTS = ("it's", "a\\b", "x\\", "100%", 'q"`', "$x ${HOME}", "é\n", "x\\' OR 1=1 --")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, gateway: SparkGateway) -> Iterator[Home]:
    """A home with two tables, for all tests: they only read these."""
    with home_in(settings_in(tmp_path_factory.mktemp("filled")), gateway) as home:
        _fill(home)
        yield home


def _fill(home: Home) -> None:
    home.sql(
        """
        CREATE TABLE Odd$ (Id INT NOT NULL PRIMARY KEY COMMENT 'the id', `when` TIMESTAMP, `Some-Text` STRING, tags ARRAY<STRING>,
          price DECIMAL(10, 2));
        CREATE TABLE other$ (a INT)
        """
    )
    rows = [(at, datetime(2026, 1, 1 + at // 2, 10, tzinfo=UTC), one, ["x"], None) for at, one in enumerate(TEXTS)]
    frame = home.session.createDataFrame(
        rows, "Id INT, `when` TIMESTAMP, `Some-Text` STRING, tags ARRAY<STRING>, price DECIMAL(10, 2)"
    )
    frame.write.insertInto(home.name("odd"))


@pytest.fixture
def engine(filled: Home) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(f"volstream:///{filled.session.home.settings.home}", poolclass=NullPool)
    yield made
    made.dispose()


@pytest.fixture
def on_our_engine(filled: Home, gateway: SparkGateway) -> Iterator[sqlalchemy.Engine]:
    """Connections as those of a URL, on the engine of all tests: an engine of their own takes ten seconds."""
    made = sqlalchemy.create_engine("volstream://", poolclass=NullPool, creator=partial(read_only, filled.session, gateway))
    yield made
    made.dispose()


def _odd(home: Home) -> Any:
    return table("Odd", column("Id"), column("when"), column("Some-Text"), schema=home.schema)


def _fetched(engine: sqlalchemy.Engine, query: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Compiles a query to text, and runs it as Superset does."""
    sql = str(query.compile(engine, compile_kwargs={"literal_binds": True}))
    if engine.dialect.identifier_preparer._double_percents:
        sql = sql.replace("%%", "%")
    opened = engine.raw_connection()
    try:
        assert engine.dialect.do_ping(opened.dbapi_connection)  # type: ignore[arg-type]
        cursor = opened.cursor()
        cursor.execute(sql)
        return [one[0] for one in cursor.description or ()], [tuple(row) for row in cursor.fetchall()]
    finally:
        opened.close()


def test_what_there_is_is_listed_and_described(filled: Home, engine: sqlalchemy.Engine) -> None:
    found = sqlalchemy.inspect(engine)
    schema = filled.schema
    assert {*found.get_schema_names()} == {"public", schema}
    assert {*found.get_table_names(schema)} == {"odd", "other"}
    assert (found.get_table_names(None), found.get_view_names(schema), found.get_view_names(None)) == ([], [], [])
    with engine.connect() as connection:
        assert engine.dialect.get_view_names(connection=connection, schema=schema) == []
    assert (found.has_table("Odd", schema), found.has_table("odd", schema), found.has_table("odd", None)) == (True, True, False)
    columns = found.get_columns("Odd", schema)
    assert [(one["name"], str(one["type"].compile(engine.dialect)), one["nullable"], one["comment"]) for one in columns] == [
        ("Id", "INTEGER", False, "the id"),
        ("when", "TIMESTAMP", True, None),
        ("Some-Text", "STRING", True, None),
        ("tags", "ARRAY<STRING>", True, None),
        ("price", "NUMERIC(10, 2)", True, None),
    ]
    assert found.get_pk_constraint("Odd", schema)["constrained_columns"] == ["Id"]
    assert (found.get_indexes("Odd", schema), found.get_foreign_keys("Odd", schema)) == ([], [])
    assert found.get_table_comment("Odd", schema) == {"text": None}
    assert (found.get_unique_constraints("Odd", schema), found.get_check_constraints("Odd", schema)) == ([], [])
    assert (found.get_sequence_names(schema), found.get_temp_table_names(), found.get_temp_view_names()) == ([], [], [])
    metadata = sqlalchemy.MetaData()
    metadata.reflect(engine, schema=schema)
    assert {*metadata.tables} == {f"{schema}.odd", f"{schema}.other"}
    preparer = engine.dialect.identifier_preparer
    assert f"{preparer.quote_schema(schema)}.{preparer.quote('Odd')}" == f"{schema}.`Odd`"


def test_a_home_that_is_not_there_is_an_error_of_sqlalchemy(home: Home) -> None:
    engine = sqlalchemy.create_engine(f"volstream:///{home.session.home.settings.home}/nothing")
    with pytest.raises(OperationalError, match="nothing"):
        engine.connect()


def test_operators_compute_what_they_compute_in_python(home: Home, engine: sqlalchemy.Engine) -> None:
    home.sql("CREATE TABLE n$ (a BIGINT, b BIGINT, p DECIMAL(10, 2), s STRING)")
    numbers = [(7, 2), (-7, 2), (7, -2), (9007199254740993, 1), (-(2**63), 3), (2**63 - 2, 2**63 - 1), (-1, 2**63 - 1)]
    values = ", ".join(
        f"({a}L, {b}L, 7.50, 'Ab')" if a > -(2**63) else f"(-{2**63 - 1}L - 1, {b}L, 7.50, 'Ab')" for a, b in numbers
    )
    home.sql(f"INSERT INTO n$ VALUES {values}")
    kinds: dict[str, Any] = {
        "a": sqlalchemy.BigInteger,
        "b": sqlalchemy.BigInteger,
        "p": sqlalchemy.Numeric(10, 2),
        "s": sqlalchemy.String,
    }
    n = table("n", *(column(name, kind) for name, kind in kinds.items()), schema=home.schema)

    def run(*expressions: Any) -> list[tuple[Any, ...]]:
        query = select(n.c.a, n.c.b, *expressions)
        found = home.rows(str(query.compile(engine, compile_kwargs={"literal_binds": True})))
        return sorted(tuple(row) for row in found)

    # A remainder has the sign of the dividend, as in SQL.
    assert run(n.c.a // n.c.b, n.c.a % n.c.b) == sorted(
        (a, b, a // b, abs(a) % abs(b) * (1 if a > 0 else -1)) for a, b in numbers
    )
    of_decimals = run(n.c.p // Decimal("0.7"), n.c.p / 3, n.c.p % 2, n.c.a / n.c.b)[1]
    assert of_decimals == (-7, 2, Decimal(10), Decimal("2.5"), Decimal("1.50"), -3.5)
    texts = run(
        n.c.s.regexp_match("^a"),
        n.c.s.regexp_match("^a", flags="i"),
        ~n.c.s.regexp_match("^a"),
        n.c.s.regexp_replace("[a-z]", "-"),
    )
    assert texts[0][2:] == (False, True, True, "A-")


@pytest.mark.long  # an engine of its own
def test_bytes_and_times_are_parameters(filled: Home, engine: sqlalchemy.Engine) -> None:
    filled.sql("CREATE TABLE v$ (id INT, b BINARY, d DATE, t TIMESTAMP)")
    filled.sql("INSERT INTO v$ VALUES (1, X'00ff', DATE '2026-01-02', TIMESTAMP '2026-01-02 03:04:05Z'), (2, X'00', NULL, NULL)")
    kinds: dict[str, Any] = {
        "id": sqlalchemy.Integer,
        "b": sqlalchemy.LargeBinary,
        "d": sqlalchemy.Date,
        "t": sqlalchemy.TIMESTAMP(timezone=True),
    }
    v = table("v", *(column(name, kind) for name, kind in kinds.items()), schema=filled.schema)
    with engine.connect() as connection:
        for condition in (v.c.b == b"\x00\xff", v.c.d == date(2026, 1, 2), v.c.t == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)):
            assert [tuple(row) for row in connection.execute(select(v.c.id, v.c.b).where(condition))] == [(1, b"\x00\xff")]
            assert _fetched(engine, select(v.c.id).where(condition))[1] == [(1,)]
        assert connection.execute(select(v.c.id).where(v.c.id.in_([1, 3]))).scalars().all() == [1]
    filled.sql("DROP TABLE v$")


@pytest.mark.long  # an engine of its own
def test_the_schema_of_the_url_is_the_one_of_names_without_one(filled: Home) -> None:
    url = f"volstream:///{filled.session.home.settings.home}?schema={filled.schema}"
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    found = sqlalchemy.inspect(engine)
    assert found.default_schema_name == filled.schema
    assert {*found.get_table_names()} == {"odd", "other"}
    assert found.has_table("odd")
    assert _fetched(engine, select(func.count()).select_from(text("odd")))[1] == [(len(TEXTS),)]


@pytest.mark.long  # an engine of its own
def test_a_chart_is_compiled_to_text_with_its_labels_and_limits(filled: Home, engine: sqlalchemy.Engine) -> None:
    odd = _odd(filled)
    day: Any = literal_column("date_trunc('DAY', `when`)")
    chart = select(day.label("__timestamp"), func.sum(odd.c.Id).label("SUM(Id)"), func.count().label("COUNT(*)"))
    chart = chart.select_from(odd).group_by(day).order_by(text("`SUM(Id)` DESC")).limit(2).offset(1)
    names, rows = _fetched(engine, chart)
    assert names == ["__timestamp", "SUM(Id)", "COUNT(*)"]
    assert [row[1:] for row in rows] == [(9, 2), (5, 2)]
    assert [row[0].day for row in rows] == [3, 2]
    since = sqlalchemy.column("when", sqlalchemy.DateTime()) >= datetime(2026, 1, 4)
    assert _fetched(engine, select(odd.c.Id).where(since).order_by(odd.c.Id))[1] == [(6,), (7,)]
    assert _fetched(engine, select(odd.c.Id).where(odd.c.Id.in_([1, 2, 99])).order_by(odd.c.Id))[1] == [(1,), (2,)]


def test_values_are_cast_to_the_types_of_sqlalchemy(filled: Home, on_our_engine: sqlalchemy.Engine) -> None:
    kinds: dict[Any, Any] = {
        sqlalchemy.String(): "1",
        sqlalchemy.String(20): "1",
        sqlalchemy.Text(): "1",
        sqlalchemy.Unicode(): "1",
        sqlalchemy.Integer(): 1,
        sqlalchemy.BigInteger(): 1,
        sqlalchemy.Float(): 1.0,
        sqlalchemy.Double(): 1.0,
        sqlalchemy.Numeric(): Decimal(1),
        sqlalchemy.Numeric(5, 2): Decimal(1),
        sqlalchemy.Boolean(): True,
        sqlalchemy.DateTime(): datetime(1970, 1, 1, 0, 0, 1),
    }
    odd = _odd(filled)
    casts = select(*(sqlalchemy.cast(odd.c.Id, kind) for kind in kinds)).where(odd.c.Id == 1)
    (row,) = _fetched(on_our_engine, casts)[1]
    assert list(row[:-1]) == [*kinds.values()][:-1]
    assert row[-1].replace(tzinfo=None) == kinds[[*kinds][-1]]
    written = f"SELECT CAST(Id AS VARCHAR), Id::text FROM {filled.name('odd')} WHERE Id = 1"
    assert _fetched(on_our_engine, text(written))[1] == [("1", "1")]
    shown = filled.session.sql(f"SHOW TABLES IN {filled.schema} LIKE '%dd%'").collect()
    assert [one.tableName for one in shown] == ["odd"]


@pytest.mark.long  # an engine of its own
def test_a_text_in_a_filter_means_itself(filled: Home, engine: sqlalchemy.Engine) -> None:
    odd = _odd(filled)
    for at, one in enumerate(TEXTS):
        assert _fetched(engine, select(odd.c.Id).where(odd.c["Some-Text"] == one))[1] == [(at,)]
    assert _fetched(engine, select(odd.c.Id).where(odd.c["Some-Text"].like("100\\%")))[1] == [(TEXTS.index("100%"),)]


def test_a_tool_can_only_read(filled: Home, on_our_engine: sqlalchemy.Engine) -> None:
    for statement in (
        "DELETE FROM {odd}",
        "CREATE TABLE {odd}2 (a INT)",
        "WITH x AS (SELECT 1) INSERT INTO {odd} SELECT * FROM {odd}",
        "RUN JOB j",
        "SET spark.sql.ansi.enabled = false",
        "SELECT * FROM csv.`/etc/passwd`",
        "SELECT file_content(VOLUME v, 'a')",
        "SELECT 1; DROP TABLE {odd}",
    ):
        opened = on_our_engine.raw_connection()
        with pytest.raises(ProgrammingError):
            opened.cursor().execute(statement.format(odd=filled.name("odd")))
        opened.close()
    assert filled.rows("SELECT count(*) FROM odd$") == [(len(TEXTS),)]
