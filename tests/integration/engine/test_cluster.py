"""A cluster: the driver elsewhere, reached by ``spark_remote``, and executors that are JVMs of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from volstream import config
from volstream.engine.process import Engine
from volstream.lifecycle.stop import Stop
from volstream.session import Session
from volstream.spark import jars
from volstream.spark.address import EngineAddress

pytestmark = pytest.mark.timeout(300)

_HELPER = "def double(n):\n    return 2 * n\n"
_FUNCTIONS = """
import os
from helper import double

def measure(file):
    return {"n": double(len(file.read_bytes())), "worker": os.getppid()}

def twice(n):
    return double(n)
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineAddress]:
    """A driver with two executors, each a process with its own JVM and Python workers."""
    delta = ":".join(map(str, jars.installed(config.cache_directory())))
    conf = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.extraClassPath": delta}
    settings = config.load(tmp_path_factory.mktemp("cluster"), cores=2, driver_memory="1GiB", spark_conf=conf)
    engine = Engine(settings, kind="background", stop=Stop())
    yield engine.start()
    engine.stop()


@pytest.fixture
def session(tmp_path: Path, address: EngineAddress) -> Iterator[Session]:
    remote = f"sc://localhost:{address.port}/;token={address.token}"
    with Session.builder.configs({"home": tmp_path / "home", "spark_remote": remote}).create() as session:
        yield session


def test_functions_and_changes_travel_to_the_executors_of_a_cluster(session: Session, tmp_path: Path) -> None:
    code, files = tmp_path / "code", tmp_path / "files"
    for folder in (code, files):
        folder.mkdir()
    (code / "helper.py").write_text(_HELPER)
    (code / "functions.py").write_text(_FUNCTIONS)
    for number in range(8):
        (files / f"{number}.txt").write_text("x" * number)
    session.volumes.create("files", str(files))
    session.jobs.create(
        "measure", f"{code / 'functions.py'}:measure", "sizes", volume="files", returns="n INT, worker INT"
    )
    session.jobs.run("measure")
    found = session.sql("SELECT n, worker FROM sizes ORDER BY n").collect()
    assert [row["n"] for row in found] == [2 * number for number in range(8)]

    session.sql("CREATE TABLE t (id INT)").collect()
    session.sql("ALTER TABLE t SET PROPERTIES ('change_tracking' = 'true')").collect()
    session.sql("CREATE STREAM s ON TABLE t").collect()
    session.sql("CREATE TABLE u (id INT, twice INT)").collect()
    session.functions.create("twice", f"{code / 'functions.py'}:twice", "INT")
    session.sql("INSERT INTO t SELECT CAST(id AS INT) FROM range(100)").collect()
    session.sql("UPDATE t SET id = 1000 WHERE id = 7").collect()
    session.sql("INSERT INTO u SELECT id, public.twice(id) FROM s").collect()
    (row,) = session.sql("SELECT count(*) AS n, sum(id) AS total, sum(twice) AS twice FROM u").collect()
    assert (row["n"], row["total"], row["twice"]) == (100, 4950 - 7 + 1000, 2 * (4950 - 7 + 1000))
    assert session.sql("SELECT * FROM s").count() == 0
