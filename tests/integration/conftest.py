"""One engine for the whole test run; each test has its own home, folder of files and volume."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.commands import shell
from tests.folders import FileWriter
from tests.running import isolated, run, store
from volstream.api.dbapi import Connection, _OpenHome
from volstream.api.session import Session
from volstream.base import config
from volstream.base.config import Settings
from volstream.base.definitions import QueueType, Volume
from volstream.changes.directory.keeper import DirectoryKeeper
from volstream.errors import DependencyError
from volstream.jobs.runs.lease import RunReport
from volstream.ops.inspection.status import health, problems
from volstream.spark.engine.client import attach
from volstream.spark.jvm.address import EngineAddress
from volstream.spark.session import SparkGateway
from volstream.sql.tokens import split
from volstream.tables.delta.lookup import queried_rows

__all__ = ["isolated", "run", "shell", "store"]

#: A function for jobs: how many characters a file has.
COUNT = "def f(file):\n    return {'n': len(file.read_text())}\n"


@pytest.fixture(scope="session")
def engine_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of the home of the engine of all tests: one for all processes of the run, so that only one has to warm up."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    return config.load(folder / "engine", cores=2, driver_memory="2GiB", engine_idle_seconds=30.0)


@pytest.fixture(scope="session")
def engine_address(engine_settings: Settings) -> EngineAddress:
    """Where the engine of all tests is, for tests with gateways of their own. It ends by itself when no process needs it."""
    address = attach(engine_settings)
    assert isinstance(address, EngineAddress), "no server elsewhere is set"
    return address


@pytest.fixture(scope="session")
def gateway(engine_address: EngineAddress) -> Iterator[SparkGateway]:
    gateway = SparkGateway(lambda: engine_address, stall_seconds=60)
    yield gateway
    gateway.close()


def settings_in(folder: Path) -> Settings:
    # So that batches do not become smaller, however slow the machine is.
    return config.load(folder / "home", settle_seconds=0.05, retry_first_seconds=3600.0, lease_seconds=5.0, batch_seconds=3600.0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


class Place(FileWriter):
    """A folder of files, the volume ``v`` on it, and the session of its home."""

    def __init__(self, session: Session, folder: Path, gateway: SparkGateway) -> None:
        super().__init__(folder)
        self.session = session
        self.gateway = gateway

    @property
    def location(self) -> str:
        """Where the result table is."""
        return f"{self.session.home.warehouse}/tables/public/t"

    @property
    def at(self) -> str:
        """The result table by its path, because all tests share one engine."""
        return f"delta.`{self.location}`"

    @property
    def volume(self) -> Volume:
        return self.session.volumes.get("v")

    def keeper(self) -> DirectoryKeeper:
        return DirectoryKeeper(self.volume, self.session.home.catalog, self.session.home.settings)

    def refresh(self) -> None:
        self.session.volumes.refresh("v", accept_removals=True)

    def job(self, function: str, **options: object) -> None:
        """Creates the job ``j`` into the table ``t`` from the source text of its function ``f``."""
        file = self.folder.parent / "code" / "job.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(function)
        given = {"returns": "n INT", "volume": "v", **options}
        self.session.jobs.create("j", f"{file}:f", "t", **given)  # type: ignore[arg-type]  # options of one test each

    def run(self) -> RunReport:
        return self.session.jobs.run("j")

    def forget_other_tables(self) -> None:
        """Has Spark forget the table ``public.t`` of another test's home, before this one's is named in a statement."""
        self.gateway.session().sql("DROP TABLE IF EXISTS public.t").collect()

    def rows(self, query: str) -> list[dict[str, object]]:
        found: pa.Table = self.session.sql(query).toArrow()
        rows: list[dict[str, object]] = found.to_pylist()
        return rows

    def table(self, columns: str = "_file_path, n") -> list[Any]:
        """The rows of the result table, sorted. Spark reads only what deltalake cannot: it takes a second for a table."""
        try:
            found = queried_rows(self.location, f"SELECT {columns} FROM rows").to_pylist()
        except DependencyError:
            found = self.rows(f"SELECT {columns} FROM {self.at}")
        return sorted(tuple(row.values()) for row in found)

    def stream(self, name: str = "s") -> list[dict[str, object]]:
        return self.rows(f"SELECT * FROM {name} ORDER BY relative_path, __change_type")


@contextmanager
def place_in(folder: Path, settings: Settings, gateway: SparkGateway) -> Iterator[Place]:
    """A place in a folder, on the engine of all tests."""
    files = folder / "files"
    files.mkdir()
    with session_on(gateway, settings) as session:
        session.volumes.create("v", str(files), queue_type=QueueType.NONE)
        yield Place(session, files, gateway)


@pytest.fixture
def place(tmp_path: Path, settings: Settings, gateway: SparkGateway) -> Iterator[Place]:
    with place_in(tmp_path, settings, gateway) as made:
        yield made


@pytest.fixture
def slower(place: Place) -> Iterator[Place]:
    """The same place with a target of almost no time per batch, so that each takes too long."""
    settings = place.session.home.settings.model_copy(update={"batch_seconds": 0.01})
    with session_on(place.gateway, settings) as session:
        yield Place(session, place.folder, place.gateway)


@dataclass
class Home:
    """A home without volumes. In statements, ``t$`` is the table or stream ``t`` of the test's own schema: the engine of
    all tests knows one table by each name."""

    session: Session
    schema: str = field(default_factory=lambda: f"s{uuid.uuid4().hex[:8]}")

    def sql(self, script: str) -> list[dict[str, Any]]:
        """Runs a script; the rows of its last statement."""
        found: list[dict[str, Any]] = []
        for statement in split(self.own(script)):
            found = [row.asDict(recursive=True) for row in self.session.sql(statement).collect()]
        return found

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query, sorted as text."""
        return sorted((tuple(row.values()) for row in self.sql(query)), key=repr)

    def own(self, text: str) -> str:
        return re.sub(r"(\w+)\$", rf"{self.schema}.\1", text)

    def name(self, name: str) -> str:
        return f"{self.schema}.{name}"

    def offset(self, name: str = "s$") -> int | None:
        return self.session.streams.get(self.own(name)).offset

    def location(self, name: str) -> str:
        return f"{self.session.home.warehouse}/tables/{self.schema}/{name}"

    def tracked(self, name: str = "t", columns: str = "id INT, name STRING, age INT", stream: str | None = "s") -> None:
        """A tracked table, and a stream on it."""
        self.sql(f"CREATE TABLE {name}$ ({columns}) TBLPROPERTIES ('change_tracking' = 'true')")
        if stream:
            self.sql(f"CREATE TABLE STREAM {stream}$ ON TABLE {name}$")


@contextmanager
def home_in(settings: Settings, gateway: SparkGateway) -> Iterator[Home]:
    """A home on the engine of all tests."""
    with session_on(gateway, settings) as session:
        made = Home(session)
        made.sql(f"CREATE SCHEMA {made.schema}")
        yield made


@pytest.fixture
def home(settings: Settings, gateway: SparkGateway) -> Iterator[Home]:
    with home_in(settings, gateway) as made:
        yield made


def session_on(gateway: SparkGateway, settings: Settings) -> Session:
    """A session on the engine of all tests, whose end leaves the gateway open."""
    return Session(settings, lambda: shared(gateway))


def read_only(session: Session, gateway: SparkGateway) -> Connection:
    """What ``volstream.connect(home, read_only=True)`` returns for the home of a session, on the engine of all tests."""
    return Connection(_OpenHome(session_on(gateway, session.home.settings), read_only=True))


def metastore_problems(session: Session) -> list[str]:
    """Why tables cannot be registered in the metastore, as ``status`` says."""
    return [problem.why for problem in problems(health(session.home, streams=False), {}) if problem.kind == "metastore"]


def shared(gateway: SparkGateway) -> SparkGateway:
    """The gateway of all tests, which the end of a session does not close."""
    return _Shared(gateway)


class _Shared(SparkGateway):
    """The gateway of the whole run, which the end of one session must not close."""

    def __init__(self, gateway: SparkGateway) -> None:
        self.__dict__ = gateway.__dict__

    def close(self) -> None:
        """Does nothing: the fixture of the run closes the gateway."""
