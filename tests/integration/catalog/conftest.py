"""Catalogs on both databases. The schema is migrated once per database and copied for each test."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy

from tests.postgres import postgres  # noqa: F401  # a fixture
from volstream.catalog import Catalog

#: Makes an empty or a migrated database and returns its URL.
NewDatabase = Callable[[bool], str]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "catalog.db"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres: str) -> str:  # noqa: F811  # the imported fixture
    _execute(postgres, "create database template_volstream")
    _migrate(f"{postgres}/template_volstream")
    return postgres


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
    server: str = request.getfixturevalue("postgres_template")

    def of_postgres(migrated: bool) -> str:
        name = f"test_{uuid.uuid4().hex}"
        _execute(server, f"create database {name} template {'template_volstream' if migrated else 'template0'}")
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


def _migrate(url: str) -> None:
    made = Catalog(url)
    with made.database.transaction():
        pass
    made.close()


def _execute(server: str, statement: str) -> None:
    location = sqlalchemy.make_url(f"{server}/postgres").set(drivername="postgresql+psycopg")
    engine = sqlalchemy.create_engine(location, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(statement))
    engine.dispose()
