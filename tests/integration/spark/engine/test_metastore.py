"""Tables registered in a Hive metastore: read by their names from an engine of another home, which knows only the metastore."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.conftest import metastore_problems
from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import QueueType
from volstream.base.threads import Stop
from volstream.errors import InvalidStateError, SqlError
from volstream.spark.engine.owner import Engine
from volstream.spark.session import SparkGateway

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


@contextmanager
def hive(folder: Path, name: str) -> Iterator[Session]:
    """A home whose engine uses the Hive metastore in a folder. A metastore in Derby has one engine at a time."""
    conf = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/hive/metastore;create=true",
    }
    values = {"spark_conf": conf, "metastore": "spark_catalog", "driver_memory": "1GiB", "warehouse": "the tables"}
    settings = config.load(folder / name, settle_seconds=0.05, **values)
    engine = Engine(settings, kind="background", stop=Stop())
    address = engine.start()
    try:
        with Session(settings, lambda: SparkGateway(lambda: address, stall_seconds=60)) as session:
            yield session
    finally:
        engine.stop()


def test_tables_are_read_by_name_wherever_the_metastore_is_known(tmp_path: Path) -> None:
    files, blocker = tmp_path / "files", tmp_path / "hive"
    files.mkdir()
    (files / "a.txt").write_text("abc")
    (tmp_path / "count.py").write_text("def f(file):\n    return {'n': len(file.read_text())}\n")
    blocker.touch()  # a file where the metastore's folder would be
    with hive(tmp_path, "home") as session:
        session.volumes.create("v", str(files), queue_type=QueueType.NONE)
        session.jobs.create("j", f"{tmp_path / 'count.py'}:f", "words", volume="v", returns="n INT")
        assert session.jobs.run("j").progress.rows == 1
        assert ["does not answer" in why for why in metastore_problems(session)] == [True]

        blocker.unlink()
        (files / "b.txt").write_text("abcdef")
        session.volumes.refresh("v")
        session.jobs.run("j")
        assert metastore_problems(session) == []
        session.sql("CREATE TABLE made (id INT) TBLPROPERTIES ('change_tracking' = 'true')").collect()
        session.sql("INSERT INTO made VALUES (1)").collect()
        session.sql("CREATE DYNAMIC TABLE doubled AS SELECT id * 2 AS twice FROM made").collect()
        session.sql("CREATE SCHEMA sales").collect()
        session.source.create_table("sales.items", "id")
        session.sql("CREATE TABLE dropped (id INT)").collect()
        session.sql("DROP TABLE dropped").collect()
    with hive(tmp_path, "another") as session:
        with pytest.raises(InvalidStateError, match="a job of another home"):
            session.sql("DELETE FROM words")
        for statement in ("INSERT INTO made VALUES (2)", "CREATE TABLE mine (id INT)", "DROP TABLE made"):
            with pytest.raises(SqlError, match="outside of this home's warehouse"):
                session.sql(statement)
        spark = session.home.spark
        assert sorted(spark.sql("SELECT _file_path, n FROM public.words").collect()) == [("a.txt", 3), ("b.txt", 6)]
        assert [tuple(row) for row in spark.sql("SELECT * FROM public.doubled").collect()] == [(2,)]
        found = {row["tableName"] for row in spark.sql("SHOW TABLES IN public").collect()}
        assert found == {"words", "made", "doubled"}
        assert spark.sql("SELECT count(*) FROM sales.items").collect()[0][0] == 0
