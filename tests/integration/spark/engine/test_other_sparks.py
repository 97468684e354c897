"""Spark as others run it: with a metastore, and executors in separate JVMs to which functions and changes travel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import QueueType
from volstream.base.threads import Stop
from volstream.errors import NotFoundError, SqlError
from volstream.spark.engine.owner import Engine
from volstream.spark.jvm import install
from volstream.spark.session import SparkGateway

pytestmark = [pytest.mark.timeout(240), pytest.mark.long]

_FUNCTION = """
import psutil
from beside import shout

def f(file):
    above = [one.pid for one in psutil.Process().parents() if "java" in one.name()]
    return {"text": shout(file.read_text()), "jvm": above[0], "jvms": len(above)}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A home whose engine has two executors of one core each, and a Hive metastore."""
    metastore = f"jdbc:derby:;databaseName={tmp_path_factory.mktemp('hive') / 'metastore'};create=true"
    delta = os.pathsep.join(map(str, install.cached_jars(config.cache_directory())))
    profile = {
        "spark_master": "local-cluster[2,1,1024]",
        "driver_memory": "1GiB",
        "spark_conf": {
            "spark.executor.memory": "512m",
            "spark.executor.extraClassPath": delta,
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.javax.jdo.option.ConnectionURL": metastore,
        },
    }
    home = tmp_path_factory.mktemp("cluster")
    settings = config.load(home, virtual_clusters={"two": profile}, settle_seconds=0.05).for_cluster("TWO")
    engine = Engine(settings, kind="background", stop=Stop())
    address = engine.start()
    with Session(settings, lambda: SparkGateway(lambda: address, stall_seconds=60)) as session:
        yield session
    engine.stop()


def test_functions_with_their_modules_run_in_executors(cluster: Session, tmp_path: Path) -> None:
    files, code = tmp_path / "files", tmp_path / "code"
    files.mkdir()
    code.mkdir()
    for number in range(8):
        (files / f"{number}.txt").write_text(f"text {number}")
    (code / "beside.py").write_text("def shout(text):\n    return text.upper()\n")
    (code / "job.py").write_text(_FUNCTION)
    cluster.volumes.create("v", str(files), queue_type=QueueType.NONE)
    cluster.jobs.create("j", f"{code / 'job.py'}:f", "t", volume="v", returns="text STRING, jvm BIGINT, jvms INT")

    cluster.jobs.run("j")

    rows = cluster.table("t").collect()
    assert sorted(row["text"] for row in rows) == [f"TEXT {number}" for number in range(8)]
    assert {row["jvms"] for row in rows} == {2}  # an executor's, and above it the driver's
    assert {row["jvm"] for row in rows} <= {one.pid for one in psutil.process_iter() if "java" in one.name()}
    assert len({row["jvm"] for row in rows}) == 2


def test_table_changes_and_their_consumers_run_in_executors(cluster: Session) -> None:
    for statement in (
        "CREATE TABLE people (id INT, name STRING)",
        "ALTER TABLE people SET PROPERTIES ('change_tracking' = 'true')",
        "CREATE STREAM s ON TABLE people",
        "INSERT INTO people VALUES (1, 'a'), (2, 'b')",
        "UPDATE people SET name = 'c' WHERE id = 2",
        "CREATE TABLE copy AS SELECT id, name, __change_type AS kind FROM s",
    ):
        cluster.sql(statement).collect()
    rows = sorted((row["id"], row["name"], row["kind"]) for row in cluster.table("copy").collect())
    assert rows == [(1, "a", "INSERT"), (2, "c", "INSERT")]
    assert not cluster.streams.has_data("s")


def test_metastore_tables_can_be_written_and_have_streams(cluster: Session, tmp_path: Path) -> None:
    spark = cluster.spark
    spark.sql(f"CREATE DATABASE elsewhere LOCATION '{tmp_path / 'other data'}'").collect()
    tracked = "TBLPROPERTIES (delta.enableRowTracking = true, delta.enableChangeDataFeed = true)"
    spark.sql(f"CREATE TABLE elsewhere.people (id INT, name STRING) USING delta {tracked}").collect()
    spark.sql("CREATE TABLE elsewhere.copy (id INT, name STRING) USING delta").collect()

    cluster.sql("CREATE STREAM of_people ON TABLE elsewhere.people").collect()
    cluster.sql("INSERT INTO elsewhere.people VALUES (1, 'a'), (2, 'b')").collect()
    cluster.sql("INSERT INTO elsewhere.copy SELECT id, name FROM of_people").collect()
    assert not cluster.streams.has_data("of_people")
    cluster.sql("DELETE FROM elsewhere.people WHERE id = 1").collect()
    with cluster.streams.get("of_people").consume() as batch:
        batch.merge_into("elsewhere.copy", on="id")

    assert [(row["id"], row["name"]) for row in cluster.table("elsewhere.copy").collect()] == [(2, "b")]
    cluster.sql("DROP TABLE elsewhere.copy").collect()
    with pytest.raises(SqlError):
        cluster.table("elsewhere.copy")
    with pytest.raises(NotFoundError):
        cluster.sql("CREATE STREAM none ON TABLE elsewhere.nothing")
