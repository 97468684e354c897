"""Catalogs on both databases. The schema is migrated once per database."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy

from tests import objects
from tests.postgres import postgres  # noqa: F401  # a fixture
from volstream.base.definitions import Job
from volstream.catalog import Catalog
from volstream.catalog.database import SCHEMA_REVISION
from volstream.catalog.tables import metadata

#: Makes an empty or a migrated database and returns its URL.
NewDatabase = Callable[[bool], str]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "catalog.db"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres_migrated(postgres: str) -> str:  # noqa: F811  # the imported fixture
    """URL of a migrated database that tests reuse: creating one takes longer than most of them."""
    _execute(f"{postgres}/postgres", "create database migrated")
    _migrate(f"{postgres}/migrated")
    return f"{postgres}/migrated"


@pytest.fixture(params=["sqlite", "postgresql"])
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> NewDatabase:
    if request.param == "sqlite":
        template: Path = request.getfixturevalue("sqlite_template")

        def of_sqlite(migrated: bool) -> str:
            path = tmp_path / f"{uuid.uuid4().hex}.db"
            if migrated:
                shutil.copy(template, path)
            return f"sqlite:///{path}"

        return of_sqlite
    shared: str = request.getfixturevalue("postgres_migrated")
    server = shared.rpartition("/")[0]

    def of_postgres(migrated: bool) -> str:
        if migrated:
            tables = ", ".join(table.name for table in metadata.sorted_tables)
            _execute(shared, f"truncate {tables} restart identity")
            _execute(shared, f"update alembic_version set version_num = '{SCHEMA_REVISION}'")
            return shared
        name = f"test_{uuid.uuid4().hex}"
        _execute(f"{server}/postgres", f"create database {name}")
        return f"{server}/{name}"

    return of_postgres


@pytest.fixture
def url(new_database: NewDatabase) -> str:
    """URL of a migrated catalog with nothing in it."""
    return new_database(True)


@pytest.fixture
def catalog(url: str) -> Iterator[Catalog]:
    opened = Catalog(url)
    yield opened
    opened.close()


@pytest.fixture
def job(catalog: Catalog) -> Job:
    """A job in the catalog, on a stream of a volume."""
    return objects.store_job(catalog)[2]


def _migrate(url: str) -> None:
    made = Catalog(url)
    with made.database.transaction():
        pass
    made.close()


def _execute(url: str, statement: str) -> None:
    location = sqlalchemy.make_url(url).set(drivername="postgresql+psycopg")
    engine = sqlalchemy.create_engine(location, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(statement))
    engine.dispose()
