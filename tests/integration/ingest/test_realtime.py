"""Real-time streams as a program uses them, with Spark: the example of the document, and who sees what when."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.integration.conftest import session_on
from volstream.api import dbapi
from volstream.api.dbapi import Connection, _OpenHome
from volstream.base.config import Settings
from volstream.errors import InvalidValueError, SqlError
from volstream.ingest import FlushMode, RealtimeOperation, RealtimeOptionsBuilder, RowOperator, RowsNotSentError
from volstream.spark.session import SparkGateway
from volstream.tables.delta.log import DeltaLog
from volstream.tables.tails.writer import commit_tail

SYNC = RealtimeOptionsBuilder().with_flush_mode(FlushMode.AUTO_FLUSH_SYNC)


@pytest.fixture
def connection(settings: Settings, gateway: SparkGateway) -> Iterator[Connection]:
    """A connection with a schema of its own: the engine of all tests knows one table by each name."""
    schema = f"s{uuid.uuid4().hex[:8]}"
    given = settings.model_copy(update={"commit_seconds": 3600.0})
    with Connection(_OpenHome(session_on(gateway, given)), schema) as connection:
        connection.cursor().execute(f"CREATE SCHEMA {schema}")
        yield connection


def rows(connection: Connection, query: str, *parameters: object) -> list[tuple[object, ...]]:
    return connection.cursor().execute(query, parameters).fetchall()


def commit(connection: Connection, table: str) -> int:
    home = connection.session.home
    return commit_tail(f"{home.warehouse}/tables/{connection.get_schema()}/{table}", lambda: home.gateway)


def upsert(connection: Connection, table: str, *values: dict[str, object], delete: bool = False) -> None:
    operator = RowOperator.DELETE_IGNORE if delete else RowOperator.UPSERT
    with connection.get_realtime_stream(table=table, operate=RealtimeOperation.CDC, options=SYNC) as stream:
        for value in values:
            row = stream.create_row(operator)
            row.set_values(value)
            stream.apply(row)


def append(connection: Connection, table: str, *values: dict[str, object]) -> None:
    with connection.get_realtime_stream(table=table) as stream:
        for value in values:
            row = stream.create_row()
            row.set_values(value)
            stream.apply(row)


@pytest.mark.long
def test_a_dict_is_a_row(connection: Connection) -> None:
    connection.cursor().execute("CREATE TABLE k (id STRING NOT NULL PRIMARY KEY, age INT)")
    with connection.get_realtime_stream(table="k", operate=RealtimeOperation.CDC, options=SYNC) as stream:
        stream.apply({"id": "a", "age": 1}, {"ID": "a", "age": 2}, {"id": "b"})
        for wrong, said in (({"ag": 1}, "no column ag"), ({"age": 1}, "no value for id"), (5, "Give a dict")):
            with pytest.raises(InvalidValueError, match=said):
                stream.apply(wrong)  # type: ignore[arg-type]  # what is tested
    assert rows(connection, "SELECT * FROM k ORDER BY id") == [("a", 2), ("b", None)]


@pytest.mark.long
def test_the_example_of_the_document_ends_with_eight_rows(connection: Connection) -> None:
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE test_pk (id STRING NOT NULL PRIMARY KEY, name STRING, age INT)")
    stream = connection.get_realtime_stream(
        schema=connection.get_schema(), table="test_pk", operate=RealtimeOperation.CDC, options=SYNC
    )
    for number, name, age in [(n, f"user_{n}", 20 + n) for n in range(10)] + [(n, f"updated_user_{n}", 30 + n) for n in range(5)]:
        row = stream.create_row(RowOperator.UPSERT)
        row.set_value("id", f"id_{number}")
        row.set_value("name", name)
        row.set_value("age", age)
        stream.apply(row)
    for number in range(2):
        row = stream.create_row(RowOperator.DELETE_IGNORE)
        row.set_value("id", f"id_{number}")
        stream.apply(row)
    stream.close()
    cursor.execute("SELECT COUNT(*) FROM test_pk")
    assert cursor.fetchone() == (8,)
    wanted = [(f"id_{n}", f"updated_user_{n}", 30 + n) for n in range(2, 5)]
    wanted += [(f"id_{n}", f"user_{n}", 20 + n) for n in range(5, 10)]
    assert rows(connection, "SELECT * FROM test_pk ORDER BY id") == wanted
    assert rows(connection, "SELECT * FROM test_pk VERSION AS OF 0") == []
    commit(connection, "test_pk")
    location = f"{connection.session.home.warehouse}/tables/{connection.get_schema()}/test_pk"
    plain = connection.session.spark.read.format("delta").load(location)
    assert sorted(tuple(row) for row in plain.collect()) == wanted


@pytest.mark.long
def test_a_key_of_several_columns_and_types_is_merged_by_spark(connection: Connection) -> None:
    connection.cursor().execute("CREATE TABLE k (a INT, b DATE, v STRING, PRIMARY KEY (a, b))")
    first, second = date(2026, 1, 1), date(2026, 1, 2)
    upsert(connection, "k", {"a": 1, "b": first, "v": "x"}, {"a": 1, "b": second, "v": "y"}, {"a": 1, "b": first})
    assert rows(connection, "SELECT * FROM k ORDER BY b") == [(1, first, None), (1, second, "y")]
    commit(connection, "k")
    upsert(connection, "k", {"a": 1, "b": first, "v": "z"}, {"a": 2, "b": first, "v": "new"})
    upsert(connection, "k", {"a": 1, "b": second}, delete=True)
    wanted = [(1, first, "z"), (2, first, "new")]
    assert rows(connection, "SELECT * FROM k ORDER BY a") == wanted
    commit(connection, "k")
    assert rows(connection, "SELECT * FROM k ORDER BY a") == wanted
    assert commit(connection, "k") == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("CHAR(5)", "b", "c"),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in [
                *(("STRING", "b", "c "), ("VARCHAR(5)", "b", "b "), ("BINARY", b"b", b"b\0"), ("TINYINT", 1, -128)),
                *(("BIGINT", 1, -(2**63)), ("BOOLEAN", True, False), ("DOUBLE", 1.5, float("inf"))),
                ("DATE", date(2026, 1, 1), date(1, 1, 1)),
                ("DECIMAL(10, 2)", Decimal("1.10"), Decimal("-2.00")),
                ("TIMESTAMP", datetime(2026, 1, 1, tzinfo=UTC), datetime(1500, 1, 1, tzinfo=UTC)),
                ("TIMESTAMP_NTZ", datetime(2026, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)),
            ]
        ),
    ],
)
@pytest.mark.parametrize("more", ["", pytest.param(", w", marks=pytest.mark.long)], ids=["one", "two"])
def test_rows_that_sql_inserted_are_replaced_and_deleted_by_their_key(
    connection: Connection, kind: str, first: object, second: object, more: str
) -> None:
    cursor = connection.cursor()
    cursor.execute(f"CREATE TABLE k (id {kind}, w INT, v INT, PRIMARY KEY (id{more}))")
    cursor.execute("INSERT INTO k VALUES (?, 0, 1), (?, 0, 1)", (first, second))
    if kind.startswith("CHAR"):  # as others may store it
        cursor.execute("UPDATE k SET id = rpad(id, 5, ' ') WHERE id = ?", (second,))
    upsert(connection, "k", *({"id": one, "w": 0, "v": 2} for one in (first, second)))
    for _ in ("in the tail", "in the table"):
        assert rows(connection, "SELECT v FROM k") == [(2,), (2,)]
        assert rows(connection, "SELECT count(*) FROM k WHERE id = ?", first) == [(1,)]
        commit(connection, "k")
    upsert(connection, "k", {"id": first, "w": 0}, {"id": second, "w": 0}, delete=True)
    for _ in ("in the tail", "in the table"):
        assert rows(connection, "SELECT * FROM k") == []
        commit(connection, "k")


def test_streams_see_committed_rows_and_queries_see_all(connection: Connection) -> None:
    cursor = connection.cursor()
    schema = connection.get_schema()
    cursor.execute("CREATE TABLE t (id STRING, n INT) TBLPROPERTIES ('change_tracking' = 'true')")
    cursor.execute(f"CREATE TABLE STREAM {schema}.s ON TABLE {schema}.t")
    append(connection, "t", {"id": "a", "n": 1}, {"id": "b", "n": 2})
    assert rows(connection, "SELECT count(*) FROM t") == [(2,)]
    assert rows(connection, "SELECT count(*) FROM s") == [(0,)]
    assert connection.session.table(f"{schema}.t").count() == 2
    assert commit(connection, "t") == 2
    assert rows(connection, "SELECT id, __change_type FROM s ORDER BY id") == [("a", "INSERT"), ("b", "INSERT")]
    append(connection, "t", {"id": "c", "n": 3})
    cursor.execute("CREATE TABLE copied (id STRING)")
    cursor.execute("INSERT INTO copied SELECT id FROM s")
    assert rows(connection, "SELECT id FROM copied ORDER BY id") == [("a",), ("b",)]
    assert commit(connection, "t") == 1
    assert rows(connection, "SELECT id FROM s") == [("c",)]


@pytest.mark.parametrize(
    ("write", "left"),
    [
        (lambda batch, name: batch.merge_into(name, on="id"), [("a", 2), ("b", 1)]),
        pytest.param(lambda batch, name: batch.write(name), [("a", 1), ("a", 2), ("b", 1)], marks=pytest.mark.long),
        pytest.param(lambda batch, name: batch.write(name, mode="overwrite"), [("a", 2)], marks=pytest.mark.long),
    ],
)
def test_what_a_batch_writes_comes_after_rows_that_have_arrived(
    connection: Connection, write: Callable[[Any, str], object], left: list[tuple[str, int]]
) -> None:
    cursor, schema = connection.cursor(), connection.get_schema()
    cursor.execute("CREATE TABLE source (id STRING, n INT) TBLPROPERTIES ('change_tracking' = 'true')")
    cursor.execute(f"CREATE TABLE STREAM {schema}.s ON TABLE {schema}.source")
    cursor.execute("CREATE TABLE t (id STRING NOT NULL PRIMARY KEY, n INT)")
    with connection.get_realtime_stream(table="t", operate=RealtimeOperation.CDC) as stream:
        for name in ("a", "b"):
            stream.apply({"id": name, "n": 1})
    cursor.execute("INSERT INTO source VALUES ('a', 2)")
    with connection.session.streams.get(f"{schema}.s").consume() as batch:
        write(batch, f"{schema}.t")
    commit(connection, "t")
    assert rows(connection, "SELECT id, n FROM t ORDER BY id, n") == left


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("UPDATE t SET n = n * 10", [("a", 10), ("b", 20)]),
        pytest.param("DELETE FROM t WHERE id = 'a'", [("b", 2)], marks=pytest.mark.long),
        pytest.param(
            "MERGE INTO t USING (SELECT 'a' AS id) u ON t.id = u.id WHEN MATCHED THEN DELETE", [("b", 2)], marks=pytest.mark.long
        ),
        pytest.param("INSERT OVERWRITE t VALUES ('c', 3)", [("c", 3)], marks=pytest.mark.long),
        pytest.param("INSERT INTO t REPLACE WHERE n < 2 VALUES ('c', 0)", [("b", 2), ("c", 0)], marks=pytest.mark.long),
        pytest.param("INSERT INTO t VALUES ('c', 3)", [("a", 1), ("b", 2), ("c", 3)], marks=pytest.mark.long),
        pytest.param("ALTER TABLE t ADD COLUMNS (m INT)", [("a", 1, None), ("b", 2, None)], marks=pytest.mark.long),
    ],
)
def test_a_statement_that_changes_rows_sees_those_that_have_arrived(
    connection: Connection, statement: str, left: list[tuple[object, ...]]
) -> None:
    connection.cursor().execute("CREATE TABLE t (id STRING NOT NULL, n INT)")
    append(connection, "t", {"id": "a", "n": 1}, {"id": "b", "n": 2})
    connection.cursor().execute(statement)
    assert rows(connection, "SELECT * FROM t ORDER BY id") == left
    append(connection, "t", {"id": "z"})
    commit(connection, "t")
    assert len(rows(connection, "SELECT * FROM t")) == len(left) + 1


@pytest.mark.long
def test_a_shallow_clone_has_what_has_arrived(connection: Connection) -> None:
    connection.cursor().execute("CREATE TABLE t (id STRING NOT NULL, n INT)")
    append(connection, "t", {"id": "a", "n": 1})
    schema = connection.get_schema()
    connection.cursor().execute(f"CREATE TABLE c SHALLOW CLONE {schema}.t")
    assert rows(connection, "SELECT * FROM c") == [("a", 1)]


def test_streams_end_when_columns_may_change_and_new_ones_go_on_whether_they_did_or_not(connection: Connection) -> None:
    def execute(statement: str) -> None:
        connection.cursor().execute(statement)

    def ended_by(statement: str, error: str | None = None) -> None:
        with connection.get_realtime_stream(table="t", options=once) as stream:
            with nullcontext() if error is None else pytest.raises(dbapi.Error, match=error):
                execute(statement)
            stream.apply({"id": "late", "n": 1})
            with pytest.raises(RowsNotSentError, match="takes no more rows"):
                stream.flush()

    once = RealtimeOptionsBuilder().with_flush_mode(FlushMode.MANUAL_FLUSH).with_request_failed_retry_enable(False)
    execute("CREATE TABLE t (id STRING NOT NULL, n INT)")
    append(connection, "t", {"id": "a", "n": 1})
    ended_by("ALTER TABLE t DROP COLUMN m", "m")
    ended_by("ALTER TABLE t ADD CONSTRAINT positive CHECK (n > 0)")
    append(connection, "t", {"id": "b", "n": -1})
    with pytest.raises(SqlError, match="positive"):
        commit(connection, "t")
    execute("ALTER TABLE t DROP CONSTRAINT positive")
    commit(connection, "t")
    ended_by("CREATE OR REPLACE TABLE t (id STRING NOT NULL, n STRING)")
    append(connection, "t", {"id": "c", "n": "x"})
    commit(connection, "t")
    assert rows(connection, "SELECT * FROM t") == [("c", "x")]


@pytest.mark.long
def test_rows_whose_column_others_renamed_are_not_shown_without_it(connection: Connection) -> None:
    schema = connection.get_schema()
    connection.cursor().execute("CREATE TABLE t (id INT, n INT) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    append(connection, "t", {"id": 1, "n": 2})
    connection.session.spark.sql(f"ALTER TABLE {schema}.t RENAME COLUMN n TO m").collect()
    with pytest.raises(dbapi.Error, match="a column n, which it no longer has"):
        rows(connection, "SELECT * FROM t")
    connection.cursor().execute("ALTER TABLE t ADD COLUMNS (n INT)")
    assert rows(connection, "SELECT id, n, m FROM t") == [(1, 2, None)]
    assert commit(connection, "t") == 1


@pytest.mark.long
def test_rows_that_have_arrived_are_committed_before_their_table_is_tracked(connection: Connection) -> None:
    connection.cursor().execute("CREATE TABLE t (id STRING NOT NULL, n INT)")
    append(connection, "t", {"id": "a", "n": 1})
    connection.cursor().execute("ALTER TABLE t SET PROPERTIES ('change_tracking' = 'true', 'x' = 'y');")
    connection.cursor().execute("CREATE STREAM s ON TABLE t")
    append(connection, "t", {"id": "b", "n": 2})
    commit(connection, "t")
    assert rows(connection, "SELECT id FROM s") == [("b",)]


@pytest.mark.long
def test_every_type_arrives_as_it_was_set(connection: Connection) -> None:
    kinds = {
        "b BOOLEAN": True,
        "i8 TINYINT": -128,
        "i16 SMALLINT": 2,
        "i INT": 3,
        "l BIGINT": 2**63 - 1,
        "f FLOAT": 1.5,
        "d DOUBLE": 2.5,
        "de DECIMAL(10, 2)": Decimal("1.01"),
        "s STRING": "é\n",
        "c CHAR(4)": "ab",
        "v VARCHAR(3)": "abc",
        "bi BINARY": b"\0x",
        "da DATE": date(1999, 12, 31),
        "ts TIMESTAMP": datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC),
        "tn TIMESTAMP_NTZ": datetime(2026, 1, 1, 12, 30, 15, 123456),
        "a ARRAY<INT>": [1, None],
        "m MAP<STRING, INT>": {"k": 1},
        "st STRUCT<x: INT, y: STRING>": {"x": 1, "y": None},
    }
    connection.cursor().execute(f"CREATE TABLE kinds ({', '.join(kinds)})")
    given = {kind.partition(" ")[0]: value for kind, value in kinds.items()}
    append(connection, "kinds", given, {})
    wanted = [given, dict.fromkeys(given)]
    for _ in ("in the tail", "in the table"):
        frame = connection.session.sql(f"SELECT * FROM {connection.get_schema()}.kinds ORDER BY b NULLS LAST")
        found = [row.asDict(recursive=True) for row in frame.collect()]
        for row in found:
            row["ts"] = row["ts"] and row["ts"].astimezone(UTC)
        assert found == wanted
        commit(connection, "kinds")


def test_each_flush_is_committed_if_the_interval_is_zero(settings: Settings, gateway: SparkGateway) -> None:
    given = settings.model_copy(update={"commit_seconds": 0.0})
    schema = f"s{uuid.uuid4().hex[:8]}"
    with Connection(_OpenHome(session_on(gateway, given)), schema) as connection:
        connection.cursor().execute(f"CREATE SCHEMA {schema}")
        connection.cursor().execute("CREATE TABLE t (id STRING)")
        with connection.get_realtime_stream(table="t") as stream:
            for name in "ab":
                row = stream.create_row()
                row.set_value("id", name)
                stream.apply(row)
                stream.flush()
                location = f"{given.warehouse_path}/tables/{schema}/t"
                assert [commit.operation for commit in DeltaLog(location).commits_after(0)][-1] == "WRITE"
        assert rows(connection, "SELECT id FROM t VERSION AS OF 2 ORDER BY id") == [("a",), ("b",)]


def test_a_cursor_is_one_of_pep_249(connection: Connection) -> None:
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE t (id STRING, n INT, at TIMESTAMP)")
    cursor.executemany("INSERT INTO t VALUES (?, ?, ?)", [["a'b", 1, datetime(2026, 1, 1, tzinfo=UTC)], ["?", None, None]])
    cursor.execute("SELECT id, n FROM t WHERE id IN (?, ?) OR n = ? ORDER BY id", ["a'b", "?", -1])
    assert cursor.description is not None
    assert [(name, kind) for name, kind, *_ in cursor.description] == [("id", "string"), ("n", "int")]
    assert cursor.fetchmany(1) == [("?", None)]
    assert list(cursor) == [("a'b", 1)]
    assert cursor.fetchone() is None
    cursor.execute("SELECT * FROM t WHERE id = 'a''b?'")
    assert cursor.fetchall() == []
    cursor.execute("UPDATE t SET n = ? WHERE n IS NULL", [7])
    assert cursor.rowcount == 1
    with pytest.raises(dbapi.InterfaceError, match="returned no rows"):
        cursor.fetchone()
    frame = cursor.execute("SELECT n FROM t ORDER BY n").fetch_df()
    assert isinstance(frame, pd.DataFrame)
    assert frame["n"].tolist() == [1, 7]
    assert cursor.execute("SELECT n FROM t").fetch_arrow_table().num_rows == 2


@pytest.mark.parametrize(
    ("statement", "parameters", "error"),
    [
        ("SELECT * FROM missing", [], dbapi.ProgrammingError),
        ("SELEC 1", [], dbapi.ProgrammingError),
        ("SELECT ?", [], dbapi.ProgrammingError),
        ("SELECT ?", [1, 2], dbapi.ProgrammingError),
        ("SELECT ?", [object()], dbapi.DataError),
        ("SELECT raise_error('no')", [], dbapi.ProgrammingError),
    ],
)
def test_errors_are_those_of_pep_249(
    connection: Connection, statement: str, parameters: list[object], error: type[dbapi.Error]
) -> None:
    with pytest.raises(error):
        connection.cursor().execute(statement, parameters).fetchall()


def test_a_closed_connection_closes_its_streams_and_refuses_the_rest(settings: Settings, gateway: SparkGateway) -> None:
    schema = f"s{uuid.uuid4().hex[:8]}"
    connection = Connection(_OpenHome(session_on(gateway, settings)), schema)
    connection.cursor().execute(f"CREATE SCHEMA {schema}")
    connection.cursor().execute("CREATE TABLE closing (id STRING)")
    stream = connection.get_realtime_stream(table="closing")
    row = stream.create_row()
    row.set_value("id", "a")
    stream.apply(row)
    connection.close()
    connection.close()
    with pytest.raises(dbapi.InterfaceError, match="The connection is closed"):
        connection.cursor()
    with pytest.raises(dbapi.NotSupportedError):
        connection.rollback()
    log = DeltaLog(f"{settings.warehouse_path}/tables/{schema}/closing")
    assert [commit.rows for commit in log.commits_after(0)] == [1], "committed on closing"


def test_the_import_paths_of_the_document_work(tmp_path: Path) -> None:
    from volstream.compat.connector.v0.connection import connect
    from volstream.compat.connector.v0.enums import RealtimeOperation as Operation
    from volstream.compat.ingestion.realtime.arrow_stream import RowOperator as Operator
    from volstream.compat.ingestion.realtime.realtime_options import RealtimeOptionsBuilder as OptionsBuilder

    assert (Operation, Operator, OptionsBuilder) == (RealtimeOperation, RowOperator, RealtimeOptionsBuilder)
    account = dict.fromkeys(("username", "password", "service", "instance", "workspace", "vcluster"), "x")
    with connect(home=str(tmp_path), schema="mine", create=True, **account) as connection:
        assert connection.get_schema() == "mine"
