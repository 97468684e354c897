"""What people type first: names as texts, parameters, objects that do things, and a home that is not there."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import sqlalchemy
from sqlalchemy.exc import NoSuchTableError, ProgrammingError

import volstream
from tests.integration.conftest import Place, read_only
from volstream.api.session import Session
from volstream.errors import InvalidStateError, InvalidValueError, NotFoundError, SqlError
from volstream.spark.session import SparkGateway

COUNTING = "def f(file):\n    return {'n': file.size}\n"


def _code(place: Place) -> Path:
    code = place.folder.parent / "job.py"
    code.write_text(COUNTING)
    return code


@pytest.fixture
def filled(place: Place) -> Place:
    place.put("a", "x")
    place.put("b", "xyz")
    place.refresh()
    table = f"t_{uuid.uuid4().hex}"  # the tests share one engine, which knows tables by their names
    place.session.jobs.create("j", f"{_code(place)}:f", table, volume="v", returns="n INT")
    place.run()
    return place


def test_a_name_is_its_text_wherever_one_is_asked_for(place: Place) -> None:
    place.job(COUNTING)
    volume = place.session.volumes.get("v")
    assert volume.name == "v"
    assert place.session.volumes.get(volume.name) == place.session.volumes.get("V")
    assert "v" in {volume.name}
    assert "v" in place.session.volumes
    assert "w" not in place.session.volumes
    assert [*place.session.jobs] == ["j"]
    assert len(place.session.jobs) == 1
    assert repr(place.session.jobs) == "<1 jobs: j>"


@pytest.mark.long
def test_objects_do_things_by_themselves(filled: Place) -> None:
    (name,) = filled.session.tables
    job, volume, table = filled.session.jobs["j"], filled.session.volumes["v"], filled.session.tables[name]
    filled.put("c", "xy")
    assert volume.refresh().inserted == 1
    assert job.run().progress.done_files == 1
    assert sorted(row.n for row in job.df.collect()) == sorted(row.n for row in table.df.collect()) == [1, 2, 3]
    assert sorted(row.relative_path for row in volume.files().collect()) == ["a", "b", "c"]
    assert (job.into, job.failures(), repr(volume), job.state) == (name, [], "<volume v>", "active")
    assert [commit.rows for commit in table.history()[:2]] == [1, 2]
    assert filled.session.streams[f"{job.name}_stream"].df.count() == 0
    assert {"run", "pause", "retry"} <= {*dir(job)}
    with pytest.raises(NotFoundError, match="There is no job k"):
        filled.session.jobs["k"]
    with pytest.raises(AttributeError):
        _ = job.nothing


def test_a_stream_is_not_written_into_the_table_of_a_job(filled: Place) -> None:
    (name,) = filled.session.tables
    filled.session.streams.create("s", volume="v", show_initial_rows=True)
    with filled.session.streams.get("s").consume() as batch:
        with pytest.raises(InvalidStateError, match=f"Only job j may write the table {name}"):
            batch.write(name)
        with pytest.raises(InvalidStateError, match=f"Only job j may write the table {name}"):
            batch.merge_into(name, on="_file_path")
    assert sorted(row.n for row in filled.session.tables[name].df.collect()) == [1, 3]


@pytest.mark.long
def test_dynamic_tables_are_a_collection_like_the_others(filled: Place) -> None:
    session = filled.session
    (source,) = session.tables
    name = f"d_{uuid.uuid4().hex}"
    session.dynamic_tables.create(name, f"SELECT n * 2 AS m FROM {source}")
    assert ([*session.dynamic_tables], len(session.dynamic_tables)) == ([name], 1)
    assert (name in session.dynamic_tables, "j" in session.dynamic_tables, "j" in session.jobs) == (True, False, True)
    assert repr(session.dynamic_tables) == f"<1 dynamic tables: {name}>"
    table = session.dynamic_tables[name]
    assert (repr(table), table.refresh()) == (f"<dynamic table {name}>", 0)
    assert sorted(row.m for row in table.df.collect()) == [2, 6]
    with pytest.raises(NotFoundError, match="There is no dynamic table j"):
        session.dynamic_tables["j"]
    assert repr(session) == f"<session of {session.home.settings.home}>"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("deep/*.csv", ["deep/c.csv"]),
        pytest.param("*.csv", ["b.csv", "deep/c.csv", "deep/er/d.csv"], marks=pytest.mark.long),
        pytest.param("deep/**", ["deep/c.csv", "deep/er/d.csv"], marks=pytest.mark.long),
    ],
)
def test_run_takes_a_pattern_and_a_schema(place: Place, pattern: str, found: list[str]) -> None:
    for path in ("a.txt", "b.csv", "deep/c.csv", "deep/er/d.csv"):
        place.put(path, "x")

    def one(file: volstream.File) -> dict[str, int]:
        return {"n": file.size}

    frame = place.session.run(one, place.folder, f"p_{uuid.uuid4().hex}", pattern=pattern, schema="n SMALLINT", where="size = 1")
    assert sorted(row._file_path for row in frame.collect()) == found
    assert dict(frame.dtypes)["n"] == "smallint"


def test_placeholders_are_those_of_any_library(filled: Place) -> None:
    (name,) = filled.session.tables
    given: list[tuple[str, Any]] = [
        ("SELECT n FROM t WHERE n > ? AND _file_path = ?", [1, "b"]),
        ("SELECT n FROM t WHERE n > %s AND _file_path = %s", (1, "b")),
        ("SELECT n FROM t WHERE n IN (?) AND _file_path IN ?", ([2, 3], ("a", "b"))),
        ("SELECT n FROM t WHERE n NOT IN :other AND n NOT IN (:nothing)", {"other": [1], "nothing": []}),
        ("SELECT n FROM t WHERE n > :least AND _file_path = :path", {"least": 1, "path": "b"}),
        ("SELECT n FROM t WHERE n > %(least)s AND _file_path = %(path)s -- :no", {"least": 1, "path": "b"}),
    ]
    for statement, args in given:
        found = filled.session.sql(statement.replace("FROM t ", f"FROM {name} "), args=args)
        assert [row.n for row in found.collect()] == [3], statement


def test_values_without_a_placeholder_are_refused(place: Place) -> None:
    with pytest.raises(SqlError, match=r"no parameter :other"):
        place.session.sql("SELECT :a", {"a": 1, "other": 2})
    with pytest.raises(SqlError, match="has 1 parameters, but 2"):
        place.session.sql("SELECT ?", [1, 2])
    with pytest.raises(InvalidValueError, match="Give a list of values, a dict or None"):
        place.session.sql("SELECT ?", "a")


def test_a_folder_without_a_home_is_no_home_unless_one_is_asked_for(tmp_path: Path) -> None:
    for opened in (lambda: Session(tmp_path / "typo"), lambda: volstream.connect(str(tmp_path / "typo"))):
        with pytest.raises(NotFoundError, match=r"There is no volstream home at .*typo"):
            opened()
    assert not (tmp_path / "typo").exists()
    with Session(tmp_path / "new", create=True) as session:
        (tmp_path / "files").mkdir()
        session.volumes.create("v", str(tmp_path / "files"))
    with Session(tmp_path / "new") as again:
        assert [*again.volumes] == ["v"]


def test_a_closed_session_says_so(tmp_path: Path) -> None:
    async def use() -> Session:
        async with Session(tmp_path / "home", create=True) as session:
            assert len(session.volumes) == 0
        return session

    closed = asyncio.run(use())
    for used in (closed.volumes.list, lambda: closed.sql("SHOW VOLUMES"), lambda: closed.spark):
        with pytest.raises(InvalidStateError, match=r"The session is closed. Open another one."):
            used()


def test_pandas_and_sqlalchemy_read_a_home_and_change_nothing(filled: Place, gateway: SparkGateway) -> None:
    engine = sqlalchemy.create_engine("volstream://", creator=partial(read_only, filled.session, gateway))
    found = sqlalchemy.inspect(engine)
    (t,) = filled.session.tables
    assert (found.get_schema_names(), found.get_table_names(), found.get_view_names()) == (["public"], [t], [])
    columns = {one["name"]: str(one["type"]) for one in found.get_columns(t)}
    assert (columns["n"], columns["_file_path"], columns["_processed_at"]) == ("INTEGER", "VARCHAR", "TIMESTAMP")
    assert (found.has_table(t), found.has_table("u"), found.get_indexes(t)) == (True, False, [])
    with pytest.raises(NoSuchTableError, match="There is no table u"):
        found.get_columns("u")
    table = sqlalchemy.Table(t, sqlalchemy.MetaData(), autoload_with=engine)
    query = sqlalchemy.select(table.c.n).where(table.c.n > 0, table.c._file_path.in_(["a", "b"])).order_by(table.c.n).limit(1)
    assert pd.read_sql(query, engine)["n"].tolist() == [1]
    assert sorted(pd.read_sql_table(t, engine)["n"]) == [1, 3]
    with engine.connect() as connection:
        assert connection.execute(sqlalchemy.text(f"SELECT n FROM {t} WHERE _file_path = :path"), {"path": "b"}).scalar() == 3
        for statement in (f"DROP TABLE {t}", f"INSERT INTO {t} SELECT * FROM {t}", "SELECT * FROM csv.`/etc/passwd`"):
            with pytest.raises(ProgrammingError):
                connection.exec_driver_sql(statement)
    engine.dispose()


def test_a_decorator_needs_no_parentheses() -> None:
    @volstream.function
    def plain(file: volstream.File) -> dict[str, int]:
        return {"n": file.size}

    assert plain.__name__ == "plain"
