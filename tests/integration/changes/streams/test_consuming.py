"""Consuming streams by statements and by blocks of Python: once, all or nothing (docs/streams.md, R-17 to
R-21, and docs/exactly-once.md)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import pytest
from pyspark.sql.connect.readwriter import DataFrameWriter

from tests.integration.conftest import Home, Place
from tests.interrupts import interrupted
from volstream.api.objects.open_stream import StreamBatch
from volstream.base.model.work import BatchState, app_id
from volstream.changes.streams.consume import Consumer, Consumption
from volstream.errors import (
    FencedError,
    InvalidStateError,
    InvalidValueError,
    NotFoundError,
    SqlError,
    StreamBusyError,
    TargetLostError,
)
from volstream.tables.delta.ownership import Marker
from volstream.tables.delta.places import is_table
from volstream.tables.delta.writer import DeltaWriter


@pytest.fixture
def filled(home: Home) -> Home:
    """A tracked table ``t`` with two rows that its stream ``s`` returns, and a table ``u`` to write to."""
    home.tracked(columns="id INT, name STRING")
    home.sql("INSERT INTO t$ VALUES (1, 'a'), (2, 'b'); CREATE TABLE u$ (id INT, name STRING)")
    return home


def unread(home: Home) -> int:
    return len(home.sql("SELECT * FROM s$"))


def states(home: Home) -> list[BatchState]:
    return [batch.state for batch in home.session.batches.list()]


def consumer(home: Home) -> Consumer:
    return Consumer(home.session.home.catalog, DeltaWriter(home.session.home.gateway))


def open_attempt(home: Home) -> tuple[Consumption, Any]:
    """A consumption whose process died after its INTENT."""
    session = home.session
    consumption = Consumption(session.home.catalog, session.home.reader, consumer(home), lease_seconds=0.01)
    taken = consumption.take(session.streams.get(home.name("s")))
    batches = [one.batch for one in taken.values()]
    intent = consumption._consumer.begin(*batches, owner="gone", location=home.location("u"))
    consumption._leases.close()
    return consumption, intent


@pytest.mark.long
@pytest.mark.parametrize(
    "dml",
    [
        "MERGE INTO u$ USING s$ ON u.id = s.id WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.name)",
        *(
            pytest.param(dml, marks=pytest.mark.long)
            for dml in (
                "INSERT OVERWRITE u$ SELECT id, name FROM s$",
                "INSERT INTO u$ (name, id) SELECT name, id FROM s$",
                "WITH c AS (SELECT * FROM s$) INSERT INTO u$ SELECT id, name FROM c",
                "INSERT INTO u$ SELECT x.id, y.name FROM s$ x JOIN s$ y ON x.id = y.id",
                "INSERT INTO u$ SELECT id, name FROM (SELECT * FROM s$ WHERE id > 0)",
                "MERGE INTO u$ USING (SELECT id, name FROM s$) x ON u.id = x.id WHEN NOT MATCHED THEN INSERT *",
            )
        ),
    ],
)
def test_dml_that_reads_a_stream_consumes_it(filled: Home, dml: str) -> None:
    """Rule R-17 of docs/streams.md."""
    filled.sql(dml)
    assert filled.rows("SELECT * FROM u$") == [(1, "a"), (2, "b")]
    assert unread(filled) == 0
    assert states(filled) == [BatchState.COMMITTED]


@pytest.mark.long
def test_dml_consumes_a_stream_even_if_it_keeps_no_row(filled: Home) -> None:
    """Rule R-17 of docs/streams.md."""
    filled.sql("INSERT INTO u$ SELECT id, name FROM s$ WHERE id > 99")
    assert (unread(filled), filled.rows("SELECT * FROM u$")) == (0, [])


def test_failed_dml_consumes_nothing(filled: Home) -> None:
    """Rule R-17 of docs/streams.md."""
    with pytest.raises(SqlError):
        filled.sql("INSERT INTO u$ SELECT id, raise_error('no') FROM s$")
    with pytest.raises(SqlError, match="no_such"):
        filled.sql("INSERT INTO u$ SELECT no_such, name FROM s$")
    assert unread(filled) == 2
    filled.sql("INSERT INTO u$ SELECT id, name FROM s$")
    assert filled.rows("SELECT * FROM u$") == [(1, "a"), (2, "b")]
    assert states(filled).count(BatchState.COMMITTED) == 1


@pytest.mark.long
def test_a_table_can_be_created_from_a_stream(filled: Home) -> None:
    """Rule R-17 of docs/streams.md."""
    filled.sql("CREATE TABLE v$ AS SELECT id, __change_type AS kind FROM s$")
    assert filled.rows("SELECT * FROM v$") == [(1, "INSERT"), (2, "INSERT")]
    assert unread(filled) == 0
    filled.sql("INSERT INTO t$ VALUES (3, 'c')")
    with pytest.raises(SqlError):
        filled.sql("CREATE TABLE w$ AS SELECT id, CAST(raise_error('no') AS INT) AS x FROM s$")
    assert unread(filled) == 1
    filled.sql("CREATE TABLE w$ AS SELECT id FROM s$")
    assert filled.rows("SELECT * FROM w$") == [(3,)]
    filled.sql("INSERT INTO t$ VALUES (4, 'd')")
    filled.sql("CREATE TABLE IF NOT EXISTS w$ AS SELECT id FROM s$")
    with pytest.raises(SqlError, match="INSERT OVERWRITE"):
        filled.sql("CREATE OR REPLACE TABLE w$ AS SELECT id FROM s$")
    assert (unread(filled), filled.rows("SELECT * FROM w$")) == (1, [(3,)])


@pytest.mark.long
def test_targets_other_than_delta_tables_of_the_home_are_rejected_before_anything_runs(filled: Home) -> None:
    """Rule R-17 of docs/streams.md."""
    with pytest.raises(SqlError, match="no Delta table"):
        filled.sql("INSERT INTO absent$ SELECT id FROM s$")
    with pytest.raises(SqlError, match="is a stream"):
        filled.sql("INSERT INTO s$ SELECT * FROM s$")
    with pytest.raises(SqlError, match="view of a stream is not possible"):
        filled.sql("CREATE VIEW v$ AS SELECT * FROM s$")
    assert (unread(filled), states(filled)) == (2, [])


@pytest.mark.long
def test_a_temporary_view_keeps_the_range_it_was_created_with(filled: Home) -> None:
    filled.sql("CREATE OR REPLACE TEMPORARY VIEW kept AS SELECT id FROM s$")
    filled.sql("INSERT INTO u$ SELECT id, name FROM s$")
    assert filled.rows("SELECT * FROM kept") == [(1,), (2,)]
    filled.sql("DROP VIEW kept")


@pytest.mark.long
def test_a_statement_that_reads_two_streams_advances_both(filled: Home) -> None:
    """Rule R-18 of docs/streams.md."""
    filled.tracked("t2", "id INT, city STRING", "s2")
    filled.sql("INSERT INTO t2$ VALUES (1, 'Rome')")
    filled.sql("INSERT INTO u$ SELECT s.id, s2.city FROM s$ JOIN s2$ ON s.id = s2.id")
    assert filled.rows("SELECT * FROM u$") == [(1, "Rome")]
    assert filled.sql("SELECT * FROM s$") == filled.sql("SELECT * FROM s2$") == []


@pytest.mark.long
def test_a_transaction_sees_one_range_and_moves_the_offsets_once(filled: Home) -> None:
    """Rule R-18 of docs/streams.md."""
    filled.sql("CREATE TABLE v$ (id INT)")
    before = filled.offset()
    with filled.session.transaction():
        filled.sql("INSERT INTO u$ SELECT id, name FROM s$")
        filled.session.spark.sql(f"INSERT INTO {filled.own('t$')} VALUES (3, 'late')")
        filled.sql("INSERT INTO v$ SELECT id FROM s$")
        assert unread(filled) == 2
        assert filled.offset() == before
    assert filled.rows("SELECT * FROM u$") == [(1, "a"), (2, "b")]
    assert filled.rows("SELECT * FROM v$") == [(1,), (2,)]
    assert filled.rows("SELECT id FROM s$") == [(3,)]
    with pytest.raises(InvalidStateError, match="already"), filled.session.transaction(), filled.session.transaction():
        pass


@pytest.mark.long
def test_a_transaction_that_fails_before_its_first_commit_consumes_nothing(filled: Home) -> None:
    """Rule R-18 of docs/streams.md."""
    with pytest.raises(SqlError), filled.session.transaction():
        filled.sql("INSERT INTO u$ SELECT id, raise_error('no') FROM s$")
    assert (unread(filled), filled.rows("SELECT * FROM u$")) == (2, [])


@pytest.mark.long
def test_a_transaction_whose_second_statement_fails_is_rolled_forward(filled: Home) -> None:
    filled.sql("CREATE TABLE v$ (id INT)")
    with pytest.raises(SqlError), filled.session.transaction():  # noqa: PT012  # the transaction is the block
        filled.sql("INSERT INTO u$ SELECT id, name FROM s$")
        filled.sql("INSERT INTO v$ SELECT raise_error('no') FROM s$")
    assert (unread(filled), len(filled.rows("SELECT * FROM u$"))) == (0, 2)


@pytest.mark.parametrize("crashes", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_stream_that_only_the_failed_statement_of_a_transaction_read_is_not_consumed(filled: Home, crashes: bool) -> None:
    filled.sql("CREATE TABLE v$ (id INT); CREATE TABLE t2$ (id INT) TBLPROPERTIES ('change_tracking' = 'true')")
    filled.sql("CREATE STREAM s2$ ON TABLE t2$; INSERT INTO t2$ VALUES (7)")
    undo = "volstream.changes.streams.consume.Consumption._undo"
    fails: AbstractContextManager[object] = interrupted("call", undo) if crashes else pytest.raises(SqlError)
    with fails, filled.session.transaction():
        filled.sql("INSERT INTO u$ SELECT id, name FROM s$")
        filled.sql("INSERT INTO v$ SELECT raise_error('no') FROM s2$")
    filled.sql("INSERT INTO v$ SELECT id FROM s2$")
    assert filled.rows("SELECT * FROM v$") == [(7,)]
    assert (unread(filled), len(filled.rows("SELECT * FROM u$"))) == (0, 2)


def test_a_stream_has_one_consumption_at_a_time_and_can_be_waited_for(filled: Home) -> None:
    """Rule R-19 of docs/streams.md."""
    stream = filled.session.streams.get(filled.name("s"))
    with stream.consume() as batch:
        for act in (
            lambda: filled.session.streams.advance(filled.name("s")),
            lambda: filled.session.streams.reset(filled.name("s"), to_version=0),
            lambda: filled.sql("CREATE OR REPLACE STREAM s$ ON TABLE t$"),
            lambda: filled.session.streams.drop(filled.name("s")),
        ):
            with pytest.raises(StreamBusyError, match=filled.name("s")):
                act()
        found: list[BaseException] = []

        def consume() -> None:
            try:
                filled.sql("INSERT INTO u$ SELECT id, name FROM s$")
            except StreamBusyError as error:
                found.append(error)

        other = threading.Thread(target=consume)
        other.start()
        other.join()
        assert "being consumed" in str(found[0])
        assert unread(filled) == 2  # reads are never blocked
        batch.write(filled.name("u"))
    assert unread(filled) == 0


@pytest.mark.long
def test_a_waiting_consumer_gets_the_stream_when_it_is_free(filled: Home) -> None:
    stream = filled.session.streams.get(filled.name("s"))
    taken, done = threading.Event(), threading.Event()

    def first() -> None:
        with stream.consume() as batch:
            taken.set()
            assert done.wait(60)
            batch.write(filled.name("u"))

    holder = threading.Thread(target=first)
    holder.start()
    assert taken.wait(60)
    threading.Timer(0.5, done.set).start()
    with stream.consume(timeout=60) as batch:
        assert batch.empty
    holder.join()
    assert filled.rows("SELECT * FROM u$") == [(1, "a"), (2, "b")]


@pytest.mark.long
def test_a_failed_block_gets_the_same_rows_again_under_the_same_id(filled: Home) -> None:
    """Rule R-20 of docs/streams.md."""
    stream = filled.session.streams.get(filled.name("s"))
    seen = []

    def fail() -> None:
        with stream.consume() as batch:
            seen.append((batch.id, batch.df.count()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    filled.sql("INSERT INTO t$ VALUES (3, 'c')")
    with stream.consume() as batch:
        assert (batch.id, batch.df.count()) == seen[0]
    assert filled.rows("SELECT id FROM s$") == [(3,)]
    with stream.consume() as batch:
        assert batch.id != seen[0][0]
    assert unread(filled) == 0


@pytest.mark.long
def test_a_consumption_can_be_discarded(filled: Home) -> None:
    """Rule R-20 of docs/streams.md."""
    filled.session.streams.advance(filled.name("s"))
    assert unread(filled) == 0


@pytest.mark.long
def test_a_block_writes_rows_derived_from_the_stream(filled: Home) -> None:
    filled.sql("CREATE TABLE v$ (id INT, name STRING, twice INT)")
    with filled.session.streams.get(filled.name("s")).consume() as batch:
        made = batch.df.withColumn("twice", batch.df["id"] * 2)
        assert batch.write(filled.name("v"), df=made) == 2
        with pytest.raises(NotFoundError):
            batch.write(filled.name("absent"))
        with pytest.raises(InvalidValueError, match="'x' is not a write mode"):
            batch.write(filled.name("v"), mode="x")
    assert filled.rows("SELECT * FROM v$") == [(1, "a", 2), (2, "b", 4)]
    assert unread(filled) == 0


def test_threads_that_write_in_a_block_take_turns(filled: Home) -> None:
    filled.sql("CREATE TABLE v$ (id INT, name STRING)")
    start = threading.Barrier(2)

    def write(batch: StreamBatch, table: str) -> int | None:
        start.wait()
        return batch.write(filled.name(table))

    with filled.session.streams.get(filled.name("s")).consume() as batch, ThreadPoolExecutor(2) as pool:
        written = [pool.submit(write, batch, table) for table in "uv"]
    assert [done.result() for done in written] == [2, 2]
    assert filled.rows("SELECT * FROM u$") == filled.rows("SELECT * FROM v$") == [(1, "a"), (2, "b")]
    assert unread(filled) == 0


def test_a_block_that_catches_the_error_of_its_only_write_consumes_nothing(filled: Home) -> None:
    stream = filled.session.streams.get(filled.name("s"))
    delta, at = DeltaWriter(filled.session.home.gateway), filled.location("u")
    with delta.marked(Marker(app_id(stream.id), stream.sequence + 9, {}), at) as spark:
        append(spark, filled)
    with stream.consume() as batch, pytest.raises(InvalidStateError, match="has already seen consumption 9"):
        batch.write(filled.name("u"))
    assert unread(filled) == 2


@pytest.mark.long
def test_a_frame_is_written_using_the_views_and_functions_of_its_session(filled: Home) -> None:
    spark = filled.session.spark
    spark.udf.register("twice", lambda n: n * 2, "INT")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW extra AS SELECT 1 AS id, 'x' AS more")
    with filled.session.streams.get(filled.name("s")).consume() as batch:
        made = batch.df.join(spark.table("extra"), "id", "left").selectExpr("twice(id) AS id", "more AS name")
        assert batch.write(filled.name("u"), df=made) == 2
    assert filled.rows("SELECT * FROM u$ ORDER BY id") == [(2, "x"), (4, None)]
    spark.catalog.dropTempView("extra")
    assert unread(filled) == 0


@pytest.mark.long
def test_an_interrupted_write_leaves_no_trace_in_the_users_session(filled: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = filled.session.spark
    mark = list(Marker("", 0, {}).settings())
    seen: list[set[str | None]] = []

    def interrupted(*_: object) -> None:
        seen.append({spark.conf.get(name, None) for name in mark})
        raise KeyboardInterrupt

    def write() -> None:
        with filled.session.streams.get(filled.name("s")).consume() as batch:
            batch.write(filled.name("u"), df=batch.df.where("id > 1"))

    with monkeypatch.context() as during:
        during.setattr(DataFrameWriter, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write()
    assert seen == [{None}]
    assert {spark.conf.get(name, None) for name in mark} == {None}
    write()
    assert filled.rows("SELECT id FROM u$") == [(2,)]


@pytest.mark.long
@pytest.mark.parametrize(
    "own", [pytest.param(False, id="as they are"), pytest.param(True, id="as made by the user", marks=pytest.mark.long)]
)
def test_a_block_merges_changes_by_key(filled: Home, own: bool) -> None:
    stream = filled.session.streams.get(filled.name("s"))

    def merge() -> None:
        with stream.consume() as batch:
            batch.merge_into(filled.name("u"), "id", df=batch.df.where("id < 90") if own else None)

    merge()
    filled.sql("UPDATE t$ SET name = 'A' WHERE id = 1; DELETE FROM t$ WHERE id = 2; INSERT INTO t$ VALUES (3, 'c')")
    # A row that is deleted and put again is another one, of the same key.
    filled.sql("DELETE FROM t$ WHERE id = 3; INSERT INTO t$ VALUES (3, 'C')")
    merge()
    assert filled.rows("SELECT * FROM u$") == [(1, "A"), (3, "C")]
    filled.sql("DELETE FROM t$ WHERE id = 1; INSERT INTO t$ VALUES (1, 'again')")
    merge()
    assert filled.rows("SELECT * FROM u$") == [(1, "again"), (3, "C")]


@pytest.mark.long
def test_a_batch_of_a_statement_is_listed_and_can_be_read_back(filled: Home) -> None:
    filled.sql("INSERT INTO u$ SELECT id, name FROM s$")
    (batch,) = filled.session.batches.list()
    assert (batch.job_id, batch.rows) == (None, 2)
    assert filled.session.batches.read(batch.id).count() == 2
    filled.session.streams.drop(filled.name("s"))
    assert filled.session.batches.list() == []


@pytest.mark.long
def test_an_attempt_without_a_commit_is_fenced_and_redelivered(filled: Home) -> None:
    _, intent = open_attempt(filled)
    filled.sql("INSERT INTO u$ SELECT id, name FROM s$")
    assert filled.rows("SELECT * FROM u$") == [(1, "a"), (2, "b")]
    with pytest.raises(FencedError):  # the dead one wakes up
        consumer(filled).write(intent, {}, lambda spark: append(spark, filled))
    assert len(filled.rows("SELECT * FROM u$")) == 2
    assert unread(filled) == 0


@pytest.mark.long
def test_an_attempt_that_died_after_its_commit_is_rolled_forward(filled: Home) -> None:
    _, intent = open_attempt(filled)
    consumer(filled).write(intent, {}, lambda spark: append(spark, filled))
    filled.sql("INSERT INTO u$ SELECT id, name FROM s$")
    assert filled.rows("SELECT * FROM u$") == [(99, "dead")]
    assert unread(filled) == 0


@pytest.mark.long
def test_an_attempt_of_two_statements_is_rolled_forward_if_the_first_landed(filled: Home) -> None:
    filled.sql("CREATE TABLE v$ (id INT)")
    _, intent = open_attempt(filled)
    one = consumer(filled)
    one.write(intent, {}, lambda spark: append(spark, filled))
    intent = one.add_statement(intent, filled.location("v"), [])
    assert one.settle(intent.stream_id) is True
    assert unread(filled) == 0
    with pytest.raises(FencedError):
        one.write(intent, {}, lambda spark: append(spark, filled), 1)
    assert filled.rows("SELECT * FROM v$") == []


@pytest.mark.long
def test_two_recoverers_reach_the_same_result(filled: Home) -> None:
    _, intent = open_attempt(filled)
    results: list[bool | None] = []
    both = threading.Barrier(2)

    def recover() -> None:
        both.wait()
        results.append(consumer(filled).settle(intent.stream_id))

    threads = [threading.Thread(target=recover) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) <= {False, None}
    assert filled.session.home.catalog.consumptions.open_intent(intent.stream_id) is None
    assert unread(filled) == 2


@pytest.mark.long
def test_an_undecidable_outcome_is_resolved_by_hand(filled: Home) -> None:
    open_attempt(filled)
    filled.sql("DROP TABLE u$; CREATE TABLE u$ (id INT, name STRING)")
    with pytest.raises(TargetLostError, match="resolve"):
        filled.sql("INSERT INTO u$ SELECT id, name FROM s$")
    filled.session.streams.resolve(filled.name("s"), committed=False)
    filled.sql("INSERT INTO u$ SELECT id, name FROM s$")
    assert len(filled.rows("SELECT * FROM u$")) == 2


@pytest.mark.long
def test_two_racing_consumers_deliver_each_row_once(filled: Home) -> None:
    start = threading.Barrier(3)
    errors: list[BaseException] = []

    def consume() -> None:
        start.wait()
        for _ in range(3):
            try:
                filled.sql("INSERT INTO u$ SELECT id, name FROM s$")
            except StreamBusyError as error:
                errors.append(error)

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    filled.sql("INSERT INTO u$ SELECT id, name FROM s$")
    assert filled.rows("SELECT * FROM u$") == [(1, "a"), (2, "b")]


def test_streams_and_columns_with_their_reserved_names_do_not_meet(filled: Home) -> None:
    for added in ("ADD COLUMN `__Row_Id` INT", "ADD COLUMNS (n INT, __row_version INT)"):
        with pytest.raises(InvalidValueError, match="__row_"):
            filled.sql(f"ALTER TABLE t$ {added}")
    filled.sql("ALTER TABLE u$ ADD COLUMN __row_id INT; ALTER TABLE u$ SET PROPERTIES ('change_tracking' = 'true')")
    with pytest.raises(InvalidValueError, match="has a column __row_id"):
        filled.sql("CREATE STREAM of_u$ ON TABLE u$")
    with pytest.raises(SqlError, match="__change_type is reserved"):
        filled.sql("CREATE DYNAMIC TABLE d$ AS SELECT id AS __change_type FROM t$")


@pytest.mark.long
def test_sql_can_consume_the_stream_of_a_volume(place: Place) -> None:
    place.put("a", "1")
    place.session.streams.create("s", "v")
    at = f"{place.session.home.warehouse}/tables/public/seen"
    spark = place.session.spark
    spark.sql(f"CREATE TABLE delta.`{at}` (path STRING, kind STRING) USING DELTA")
    assert place.stream() == []  # never listed: nothing to consume, and nothing lost
    place.session.sql("INSERT INTO seen SELECT relative_path, __change_type FROM s")
    place.refresh()
    place.session.sql("INSERT INTO seen SELECT relative_path, __change_type FROM s")
    assert place.rows(f"SELECT * FROM delta.`{at}`") == [{"path": "a", "kind": "INSERT"}]
    assert place.stream() == []
    job: Callable[..., None] = place.job
    job("def f(file): return {'n': 1}\n")
    place.run()
    assert is_table(at)


def append(spark: Any, home: Home) -> None:
    rows = spark.sql("SELECT CAST(99 AS INT) AS id, 'dead' AS name")
    rows.write.format("delta").mode("append").save(home.location("u"))
