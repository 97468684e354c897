"""Tables are registered in a metastore under their names, and their entries go with them. Spark's catalog in memory stands in for
one here; ``engine/test_metastore.py`` has Hive's."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import COUNT, Home, home_in, metastore_problems
from tests.waiting import eventually
from volstream.api.statements.metastore import register
from volstream.base.config import Settings
from volstream.base.definitions import QueueType
from volstream.base.threads import Stop
from volstream.catalog.leases import REGISTRATION
from volstream.errors import DependencyError, EngineError, InvalidStateError, SqlError
from volstream.home import Home as OpenHome
from volstream.server.daemon.housekeeping import Registrar
from volstream.spark.session import SparkGateway


def no_spark() -> SparkGateway:
    raise EngineError("This test must not use Spark.")


@pytest.fixture
def registering(settings: Settings) -> Settings:
    values = {"metastore": "spark_catalog", "spark_conf": {"spark.sql.catalogImplementation": "hive"}}
    return settings.model_copy(update=values)


@pytest.fixture
def public(engine_settings: Settings) -> Iterator[None]:
    """Holds the schema ``public`` of the engine, which all processes of the tests share."""
    with engine_settings.home.joinpath("public.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def home(registering: Settings, gateway: SparkGateway, public: None) -> Iterator[Home]:
    del public
    with gateway.fresh() as spark:  # all tests share its catalog, but not a warehouse
        spark.sql("CREATE SCHEMA IF NOT EXISTS public").collect()
        spark.sql(f"ALTER SCHEMA public SET LOCATION '{registering.warehouse_path}/tables/public'").collect()
    with home_in(registering, gateway) as made:
        yield made


def run_job(home: Home, folder: Path, into: str) -> None:
    """Makes a table by a job, whose commit puts nothing into Spark's catalog."""
    files = folder / "files"
    files.mkdir()
    (files / "a.txt").write_text("abc")
    (folder / "count.py").write_text(COUNT)
    home.session.volumes.create("v", str(files), queue_type=QueueType.NONE)
    home.session.jobs.create("j", f"{folder / 'count.py'}:f", home.name(into), volume="v", returns="n INT")
    home.session.jobs.run("j")


def keyed_table(home: Home, name: str) -> None:
    """Makes a table without Spark."""
    home.session.source.create_table(home.name(name), "id")


def in_metastore(home: Home, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query in a session that knows only the metastore; ``t$`` is the table ``t`` of the test's schema there."""
    with home.session.home.gateway.fresh() as spark:
        return [tuple(row) for row in spark.sql(query.replace("t$", f"spark_catalog.{home.schema}.t")).collect()]


def registered(home: Home) -> list[str]:
    return [row[1] for row in in_metastore(home, f"SHOW TABLES IN spark_catalog.{home.schema}")]


def test_a_run_registers_its_table_and_those_from_before_the_setting(home: Home, tmp_path: Path) -> None:
    keyed_table(home, "old")
    run_job(home, tmp_path, "t")
    assert in_metastore(home, "SELECT _file_path, n FROM t$") == [("a.txt", 3)]
    assert registered(home) == ["old", "t"]
    assert metastore_problems(home.session) == []


def test_entries_go_with_their_tables(home: Home) -> None:
    keyed_table(home, "t")
    register(home.session.home)
    assert registered(home) == ["t"]
    home.session.source.drop(home.name("t"))
    register(home.session.home)
    assert registered(home) == []
    keyed_table(home, "t")
    home.sql("CREATE TABLE other$ (id INT)")  # registers all
    assert registered(home) == ["other", "t"]
    home.sql("DROP TABLE t$")
    assert registered(home) == ["other"]
    keyed_table(home, "t")
    register(home.session.home)
    assert registered(home) == ["other", "t"]


def test_spark_is_not_used_if_there_is_nothing_to_do(home: Home, registering: Settings) -> None:
    keyed_table(home, "t")
    with OpenHome(registering, no_spark) as without:
        with pytest.raises(EngineError):
            register(without)
        register(home.session.home)
        register(without)


def test_an_entry_that_leads_elsewhere_stays_and_is_told(home: Home, tmp_path: Path) -> None:
    in_metastore(home, f"CREATE TABLE t$ USING delta LOCATION '{tmp_path / 'theirs'}' AS SELECT 7 AS theirs")
    keyed_table(home, "t")
    keyed_table(home, "u")
    for _ in range(2):
        with pytest.raises(InvalidStateError, match="another one in"):
            register(home.session.home)
    assert registered(home) == ["t", "u"]
    assert in_metastore(home, "SELECT * FROM t$") == [(7,)]
    assert [str(tmp_path / "theirs") in why for why in metastore_problems(home.session)] == [True]
    assert {row["tableName"] for row in home.sql(f"SHOW TABLES IN {home.schema}")} == {"t", "u"}
    for statement in ("SELECT * FROM t$", "DROP TABLE t$"):
        with pytest.raises(SqlError, match="another table"):
            home.sql(statement)
    home.session.source.drop(home.name("t"))
    register(home.session.home)
    assert in_metastore(home, "SELECT * FROM t$") == [(7,)]
    assert metastore_problems(home.session) == []


@pytest.mark.long
def test_an_entry_that_was_changed_since_is_told(home: Home, tmp_path: Path) -> None:
    keyed_table(home, "t")
    register(home.session.home)
    in_metastore(home, "DROP TABLE t$")
    in_metastore(home, f"CREATE TABLE t$ USING delta LOCATION '{tmp_path / 'theirs'}' AS SELECT 7 AS theirs")
    with pytest.raises(InvalidStateError, match="another one in"):
        register(home.session.home, check=True)
    with pytest.raises(InvalidStateError, match="another one in"):
        register(home.session.home)
    assert in_metastore(home, "SELECT * FROM t$") == [(7,)]


@pytest.mark.long
def test_an_entry_that_was_changed_before_its_table_is_dropped_is_not_removed(home: Home, tmp_path: Path) -> None:
    keyed_table(home, "t")
    register(home.session.home)
    in_metastore(home, "DROP TABLE t$")
    in_metastore(home, f"CREATE TABLE t$ USING delta LOCATION '{tmp_path / 'theirs'}' AS SELECT 7 AS theirs")
    home.session.source.drop(home.name("t"))
    register(home.session.home)
    assert in_metastore(home, "SELECT * FROM t$") == [(7,)]


def test_entries_stay_while_the_warehouse_is_not_there(home: Home, registering: Settings) -> None:
    keyed_table(home, "t")
    register(home.session.home)
    warehouse = Path(registering.warehouse_path)
    warehouse.rename(warehouse.with_name("elsewhere"))
    with pytest.raises(DependencyError, match="does not exist"):
        register(home.session.home)
    warehouse.with_name("elsewhere").rename(warehouse)
    assert registered(home) == ["t"]


def test_a_job_runs_although_its_table_cannot_be_registered(settings: Settings, gateway: SparkGateway, tmp_path: Path) -> None:
    with home_in(settings.model_copy(update={"metastore": "spark_catalog"}), gateway) as home:
        run_job(home, tmp_path, "t")
        assert home.rows("SELECT n FROM t$") == [(3,)]
        assert ["Spark has no metastore" in why for why in metastore_problems(home.session)] == [True]


def test_a_daemon_registers_what_others_make_and_what_others_dropped_from_the_metastore(home: Home) -> None:
    stop = Stop()
    registrar = Registrar(home.session.home, lambda: True, stop)
    keyed_table(home, "t")
    register(home.session.home)
    in_metastore(home, "DROP TABLE t$")
    keyed_table(home, "u")
    thread = threading.Thread(target=registrar.run)
    thread.start()
    try:
        eventually(lambda: registered(home) == ["t", "u"], 30)
    finally:
        stop.set()
        thread.join()


def test_one_process_at_a_time_registers(home: Home) -> None:
    keyed_table(home, "t")
    leases = home.session.home.catalog.leases
    leases.acquire(REGISTRATION, "another", "registering tables", 60.0)
    register(home.session.home)
    assert registered(home) == []
    leases.release(REGISTRATION, "another")
    register(home.session.home)
    assert registered(home) == ["t"]
