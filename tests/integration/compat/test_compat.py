"""The snake_case surface on Spark: frames that know their streams, and writes that consume them."""

from __future__ import annotations

import inspect
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Home, Place
from tests.interrupts import interrupted
from tests.unit.test_arguments import ODD, methods, refused, required
from volstream.base.model.work import BatchState
from volstream.compat import DataFrame, Session, Table, when_matched, when_not_matched
from volstream.compat import functions as F  # noqa: N812  # everybody's name for it
from volstream.errors import AlreadyExistsError, InvalidStateError, InvalidValueError, NotFoundError, SqlError, StreamBusyError
from volstream.tables.delta.places import is_table


class Compat:
    """A home, and its snake_case session. Names as in :class:`Home`."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.session = Session(home.session)

    def table(self, name: str = "s") -> DataFrame:
        return self.session.table(self.home.name(name))

    def save(self, frame: DataFrame, name: str = "u", mode: str = "append") -> None:
        frame.write.mode(mode).save_as_table(self.home.name(name))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.home.rows(query)

    def unread(self, stream: str = "s") -> int:
        return self.table(stream).count()


@pytest.fixture
def compat(home: Home) -> Compat:
    """A tracked table ``t`` with two rows that its stream ``s`` returns."""
    home.tracked(columns="id INT, name STRING")
    home.sql("INSERT INTO t$ VALUES (1, 'a'), (2, 'b')")
    return Compat(home)


@pytest.mark.long
def test_the_session_of_the_source_document_works(home: Home) -> None:
    session = Session(home.session)

    def sql(statement: str) -> None:
        session.sql(home.own(statement)).collect()

    sql("CREATE TABLE IF NOT EXISTS orders$ (id INT, name STRING, amount DECIMAL(10,2), status STRING)")
    sql("INSERT INTO orders$ VALUES (1, 'Alice', 1000.00, 'active'), (2, 'Bob', 2000.00, 'active'), (3, 'Carol', 10.00, 'new')")
    sql("ALTER TABLE orders$ SET PROPERTIES ('change_tracking' = 'true')")
    sql("CREATE TABLE STREAM orders_stream$ ON TABLE orders$ WITH PROPERTIES ('TABLE_STREAM_MODE' = 'STANDARD')")
    sql("CREATE TABLE orders_target$ (id INT, name STRING, amount DECIMAL(10,2), status STRING)")
    sql("INSERT INTO orders_target$ VALUES (1, 'Alice', 1000.00, 'active')")
    sql("INSERT INTO orders$ VALUES (4, 'Dave', 3000.00, 'active')")
    sql("UPDATE orders$ SET amount = 1500.00 WHERE id = 1")
    sql("DELETE FROM orders$ WHERE id = 3")

    changes = session.table(home.name("orders_stream"))
    kinds = changes.group_by("__change_type").count().order_by("__change_type").collect()
    assert [tuple(row) for row in kinds] == [("DELETE", 1), ("INSERT", 1), ("UPDATE_AFTER", 1), ("UPDATE_BEFORE", 1)]
    before = home.offset("orders_stream$")
    assert changes.to_pandas()["id"].tolist().count(1) == 2
    assert home.offset("orders_stream$") == before

    kept = changes.filter(F.col("__change_type").isin("INSERT", "UPDATE_AFTER"))
    staged = kept.select("id", "name", "amount", "status").with_column("status", F.upper(F.col("status")))
    staged.write.mode("overwrite").save_as_table(home.name("orders_changes_tmp"))
    after = home.offset("orders_stream$")
    assert before is not None
    assert after is not None
    assert after > before
    assert changes.count() == 0

    sql(
        """
        MERGE INTO orders_target$ AS t USING orders_changes_tmp$ AS s ON t.id = s.id
        WHEN MATCHED THEN UPDATE SET t.name = s.name, t.amount = s.amount, t.status = s.status
        WHEN NOT MATCHED THEN INSERT (id, name, amount, status) VALUES (s.id, s.name, s.amount, s.status)
        """
    )
    sql("DROP TABLE IF EXISTS orders_changes_tmp$")
    assert [tuple(row) for row in session.table(home.name("orders_target")).sort("id").collect()] == [
        (1, "Alice", Decimal("1500.00"), "ACTIVE"),
        (4, "Dave", Decimal("3000.00"), "ACTIVE"),
    ]

    sql("INSERT INTO orders$ VALUES (5, 'Eve', 1.00, 'new')")
    assert [row["id"] for row in changes.collect()] == [5]
    staged.write.mode("overwrite").save_as_table(home.name("orders_changes_tmp"))
    assert home.rows("SELECT id, status FROM orders_changes_tmp$") == [(5, "NEW")]


@pytest.mark.long
def test_a_save_consumes_exactly_what_it_saves_whatever_was_read_before(compat: Compat) -> None:
    source = compat.table()
    # Analysed, and read, over another range than the one that is consumed.
    frame = source.with_column("twice", source["id"] * 2).filter(source.id > 0).drop("__commit_timestamp")
    assert frame.columns == ["__change_type", "__commit_version", "id", "name", "twice"]
    assert len(frame.collect()) == 2
    compat.home.sql("INSERT INTO t$ VALUES (3, 'c')")
    compat.save(frame)
    assert compat.rows("SELECT id, twice FROM u$") == [(1, 2), (2, 4), (3, 6)]
    assert compat.unread() == 0
    compat.save(frame)
    assert compat.rows("SELECT count(*) FROM u$") == [(3,)]
    compat.home.sql("INSERT INTO t$ VALUES (4, 'd')")
    compat.save(frame)
    assert compat.rows("SELECT id FROM u$") == [(1,), (2,), (3,), (4,)]
    assert {batch.state for batch in compat.home.session.batches.list()} == {BatchState.COMMITTED}


@pytest.mark.long
def test_reading_consumes_nothing(compat: Compat, capsys: pytest.CaptureFixture[str]) -> None:
    before = compat.home.offset()
    frame = compat.table().select("id").order_by("id")
    frame.show()
    assert (frame.count(), [tuple(row) for row in frame.take(1)], frame.to_pandas()["id"].tolist()) == (2, [(1,)], [1, 2])
    first = frame.first()
    assert first is not None
    assert first["id"] == 1
    assert compat.home.offset() == before
    assert "|  2|" in capsys.readouterr().out


@pytest.mark.long
def test_saving_frames_of_two_streams_consumes_both(compat: Compat) -> None:
    compat.home.tracked("t2", "id INT, city STRING", "s2")
    compat.home.sql("INSERT INTO t2$ VALUES (1, 'Rome')")
    left, right = compat.table(), compat.table("s2")
    joined = left.join(right, left["id"] == right["id"]).select(left["id"], right["city"])
    compat.save(joined)
    assert compat.rows("SELECT * FROM u$") == [(1, "Rome")]
    assert (compat.unread("s"), compat.unread("s2")) == (0, 0)


@pytest.mark.long
def test_one_stream_read_twice_is_consumed_once(compat: Compat) -> None:
    compat.save(compat.table().select("id").union(compat.table().select("id")))
    assert compat.rows("SELECT * FROM u$") == [(1,), (1,), (2,), (2,)]
    assert len(compat.home.session.batches.list()) == 1


@pytest.mark.long
def test_a_failed_save_writes_and_consumes_nothing(compat: Compat) -> None:
    failing = compat.table().select(F.expr("CAST(raise_error('no') AS INT)").alias("id"))
    with pytest.raises(SqlError):
        compat.save(failing)
    assert compat.unread() == 2
    with pytest.raises(SqlError):
        compat.table("u")
    compat.save(compat.table().select("id"))
    with pytest.raises(SqlError):
        compat.save(compat.table().select(F.lit("text").alias("unknown")))
    compat.home.sql("INSERT INTO t$ VALUES (3, 'c')")
    with pytest.raises(SqlError):
        compat.save(failing)
    assert (compat.unread(), compat.rows("SELECT * FROM u$")) == (1, [(1,), (2,)])


@pytest.mark.long
@pytest.mark.parametrize("committed", [True, False])
def test_an_interruption_after_the_commit_leaves_the_table(compat: Compat, committed: bool) -> None:
    frame = compat.table().select("id")
    with interrupted("return" if committed else "call", "volstream.tables.delta.writer.with_retries"):
        compat.save(frame)
    assert compat.unread() == (0 if committed else 2)
    assert is_table(compat.home.location("u")) is committed
    compat.save(frame)
    assert compat.rows("SELECT * FROM u$") == [(1,), (2,)]


@pytest.mark.long
def test_a_stream_that_is_being_consumed_is_busy(compat: Compat) -> None:
    frame = compat.table().select("id")
    with compat.home.session.streams.get(compat.home.name("s")).consume() as batch:
        with pytest.raises(StreamBusyError):
            compat.save(frame)
        assert batch.df.count() == 2
    with pytest.raises(SqlError):
        compat.table("u")


@pytest.mark.long
def test_save_modes_behave_like_sparks(compat: Compat) -> None:
    frame = compat.table().select("id")
    compat.save(frame, mode="errorifexists")
    compat.home.sql("INSERT INTO t$ VALUES (3, 'c')")
    with pytest.raises(AlreadyExistsError):
        frame.write.save_as_table(compat.home.name("u"))
    compat.save(frame, mode="ignore")
    assert (compat.unread(), compat.rows("SELECT * FROM u$")) == (1, [(1,), (2,)])
    compat.save(frame.with_column("more", F.lit("x")), mode="overwrite")
    assert (compat.unread(), compat.rows("SELECT * FROM u$")) == (0, [(3, "x")])


@pytest.mark.long
def test_overwriting_with_the_same_columns_keeps_the_declarations(compat: Compat) -> None:
    compat.home.sql("CREATE TABLE u$ (id INT, name STRING) PARTITIONED BY (name) TBLPROPERTIES ('mine' = '1')")
    compat.save(compat.table().select("name", "id"), mode="overwrite")
    assert compat.rows("SELECT id, name FROM u$") == [(1, "a"), (2, "b")]
    detail = compat.home.sql("DESCRIBE DETAIL u$")[0]
    assert detail["partitionColumns"] == ["name"]
    assert detail["properties"]["mine"] == "1"


@pytest.mark.long
def test_frames_that_cannot_become_a_table_are_rejected(compat: Compat) -> None:
    frame = compat.table()
    with pytest.raises(AlreadyExistsError, match="is a stream"):
        compat.save(frame, "s")
    with pytest.raises(NotFoundError, match="no schema"):
        frame.write.save_as_table("nowhere.u")
    compat.home.sql("DROP TABLE STREAM s$")
    with pytest.raises(NotFoundError, match="was dropped"):
        compat.save(frame)
    with pytest.raises(NotFoundError, match="was dropped"):
        frame.count()


@pytest.mark.long
def test_frames_of_tables_and_local_data_are_saved_without_streams(compat: Compat) -> None:
    local = compat.session.create_dataframe([(7, "g")], ["id", "name"])
    compat.save(local, mode="overwrite")
    compat.save(local.with_column_renamed("name", "label"), mode="overwrite")
    assert compat.rows("SELECT id, label FROM u$") == [(7, "g")]
    queried = compat.session.sql(compat.home.own("SELECT id FROM s$"))
    compat.save(queried, "v")
    assert (compat.unread(), compat.table("v").count()) == (2, 2)
    mixed = compat.table().join(compat.table("v").with_column_renamed("id", "v_id"), F.col("id") == F.col("v_id"))
    compat.save(mixed.select("id"), "w")
    assert (compat.unread(), compat.rows("SELECT * FROM w$")) == (0, [(1,), (2,)])


@pytest.mark.long
def test_in_a_transaction_two_tables_get_the_same_rows(compat: Compat) -> None:
    frame = compat.table().select("id")
    with compat.home.session.transaction():
        compat.save(frame, "u")
        compat.home.session.spark.sql(f"INSERT INTO {compat.home.own('t$')} VALUES (3, 'late')")
        assert frame.count() == 2
        compat.save(frame, "v")
    assert compat.rows("SELECT * FROM u$") == compat.rows("SELECT * FROM v$") == [(1,), (2,)]
    assert [row["id"] for row in frame.collect()] == [3]


@pytest.mark.long
def test_a_stream_on_an_unlisted_volume_gives_an_empty_table(place: Place) -> None:
    place.session.streams.create("files", volume="v")
    Session(place.session).table("files").select("relative_path").write.save_as_table("names")
    assert place.rows(f"SELECT * FROM delta.`{place.session.home.warehouse}/tables/public/names`") == []


@pytest.mark.long
def test_frames_and_sessions_have_the_methods_of_hosted_platforms(compat: Compat, tmp_path: Path) -> None:
    session = compat.session
    frame = compat.table()
    assert not frame.is_empty()
    assert frame.filter("id > 2").is_empty()
    shown = frame.select("id", "name").with_columns(["name", "n"], [F.lit(None).cast("string"), F.col("id") + 1])
    assert sorted(map(tuple, shown.fillna({"name": "-"}).to_df("a", "b", "c").collect())) == [(1, "-", 2), (2, "-", 3)]
    with pytest.raises(InvalidValueError, match="2 names need as many columns"):
        frame.with_columns(["a", "b"], [F.lit(1)])
    (tmp_path / "a.csv").write_text("id,name\n7,x\n")
    assert list(
        map(tuple, session.read.option("header", True).schema("id INT, name STRING").csv(f"{tmp_path}/a.csv").collect())
    ) == [(7, "x")]


@pytest.mark.long
def test_a_session_uses_a_schema_for_names_without_one(compat: Compat) -> None:
    session, schema = compat.session, compat.home.schema
    session.use_schema(schema)
    assert session.sql("SELECT name FROM t WHERE id = ?", params=[2]).collect()[0]["name"] == "b"
    session.sql("CREATE STREAM other ON TABLE t").collect()
    assert str(session.native.streams.get(f"{schema}.other").source_name) == f"{schema}.t"
    session.table("s").select("id", "name").write.mode("append").save_as_table("u")
    assert compat.rows("SELECT id FROM u$") == [(1,), (2,)]
    assert compat.unread() == 0
    with pytest.raises(NotFoundError, match="There is no schema nowhere"):
        session.use_schema("nowhere")


def _of(compat: Compat, name: str) -> Table:
    table = compat.table(name)
    assert isinstance(table, Table)
    return table


@pytest.mark.long
def test_a_frame_has_the_words_of_every_frame(compat: Compat, capsys: pytest.CaptureFixture[str]) -> None:
    frame = compat.table("t")
    frame.printSchema()
    frame.explain()
    said = capsys.readouterr().out
    assert " |-- name: string (nullable = true)" in said
    assert "== Physical Plan ==" in said
    assert "more characters" not in said
    described = {row["summary"]: row["id"] for row in frame.describe("id").collect()}
    assert (described["count"], described["max"]) == ("2", "2")
    empty = compat.session.createDataFrame([(1, None), (None, None), (3, "c")], "id INT, name STRING")
    assert (empty.dropna().count(), empty.dropna("all").count(), empty.dropna(subset=["id"]).count()) == (1, 2, 2)
    assert sorted(frame.to_arrow()["id"].to_pylist()) == [1, 2]
    total = frame.agg(("id", "sum"), ("name", "max")).collect()
    assert list(map(tuple, total)) == [(3, "b")]
    grouped = frame.groupBy("name").agg([("id", "min"), F.max("id").alias("most")]).orderBy("name").collect()
    assert list(map(tuple, grouped)) == [("a", 1, 1), ("b", 2, 2)]


@pytest.mark.long
def test_views_and_cached_rows_are_of_frames_without_streams(compat: Compat) -> None:
    session, view = compat.session, f"v_{compat.home.schema}"
    compat.table("t").filter("id > 1").create_or_replace_temp_view(view)
    assert [row["id"] for row in session.sql(f"SELECT id FROM {view}", hints={"query_tag": "x"}).collect()] == [2]
    assert session.table(view).count() == 1
    cached = compat.table("t").cache_result()
    compat.home.sql("INSERT INTO t$ VALUES (3, 'c')")
    assert (cached.count(), compat.table("t").count(), session.table(view).count()) == (2, 3, 2)
    with pytest.raises(InvalidValueError, match="Name the stream itself in the statement"):
        compat.table().createOrReplaceTempView("x")
    with pytest.raises(InvalidValueError, match="Leave cache_result out"):
        compat.table().cache_result()


@pytest.mark.long
def test_a_table_is_updated_deleted_from_and_merged_into(compat: Compat) -> None:
    table = _of(compat, "t")
    table.update({"name": "z", "id": table["id"] + 10}, table["id"] == 1)
    assert compat.rows("SELECT * FROM t$") == [(11, "z"), (2, "b")]
    table.delete("id = 2")
    assert compat.rows("SELECT * FROM t$") == [(11, "z")]
    source = compat.session.create_dataframe([(11, "new"), (12, "l"), (13, None)], ["id", "name"])
    table.merge(
        source,
        table["id"] == source["id"],
        [
            when_matched(table["name"] != source["name"]).update({"name": F.concat(table["name"], source["name"])}),
            when_not_matched(source["name"].isNull()).insert([source["id"], "none"]),
            when_not_matched().insert({"id": source["id"], "name": source["name"]}),
        ],
    )
    assert compat.rows("SELECT * FROM t$") == [(11, "znew"), (12, "l"), (13, "none")]
    table.delete(table["id"] == source["id"], source)
    assert compat.rows("SELECT * FROM t$") == []
    with pytest.raises(InvalidValueError, match="A merge needs clauses"):
        table.merge(source, table["id"] == source["id"], [])
    with pytest.raises(AttributeError, match=r"Only a frame of a table has delete\(\)"):
        compat.table().delete("id = 1")


def test_merging_changes_into_a_table_consumes_them(compat: Compat) -> None:
    compat.home.sql("CREATE TABLE u$ (id INT, name STRING); INSERT INTO u$ VALUES (1, 'old')")
    changes = compat.table().filter(F.col("__change_type") == "INSERT")
    target = _of(compat, "u")
    clauses = [
        when_matched().update({"name": changes["name"]}),
        when_not_matched().insert({"id": changes["id"], "name": changes["name"]}),
    ]
    with pytest.raises(SqlError, match="nothing"):
        target.merge(changes, target["id"] == F.col("nothing"), clauses)
    assert compat.unread() == 2
    target.merge(changes, target["id"] == changes["id"], clauses)
    assert (compat.rows("SELECT * FROM u$"), compat.unread()) == ([(1, "a"), (2, "b")], 0)


def test_only_its_job_writes_the_table_of_a_job(place: Place) -> None:
    place.put("a", "x")
    place.refresh()
    place.job("def f(file):\n    return {'n': file.size}\n")
    place.run()
    session = Session(place.session)
    with pytest.raises(InvalidStateError, match="Only job j may write the table t"):
        session.create_dataframe([("b", 1)], ["_file_path", "n"]).write.mode("append").save_as_table("t")
    table = Table(place.session.home, place.session.spark.table(place.at), place.session.jobs.get("j").into)
    with pytest.raises(InvalidStateError, match="Only job j may write the table t"):
        table.delete()


@pytest.mark.long
def test_whatever_a_frame_is_given_the_answer_is_a_result_or_volstreams_error(compat: Compat) -> None:
    frame = compat.table()
    surface = {"frame": frame, "groups": frame.group_by("id"), "writer": frame.write, "reader": compat.session.read}
    found = methods(surface)
    assert len(found) > 30
    for _, _, method in found:
        for argument in inspect.signature(method).parameters.values():
            for value in (ODD[0], 5, [], "no such word"):
                if argument.kind is argument.VAR_POSITIONAL:
                    refused(lambda method=method, value=value: method(value), {})
                elif argument.kind is not argument.VAR_KEYWORD:
                    refused(method, {**required(method), argument.name: value})
