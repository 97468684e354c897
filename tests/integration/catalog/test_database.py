"""The database below the catalog: schema, transactions, errors."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from tests.integration.catalog.conftest import NewDatabase
from tests.processes import race
from tests.waiting import eventually
from volstream.catalog import Catalog, database
from volstream.catalog.tables import metadata
from volstream.errors import CatalogError, InvalidValueError


def test_a_catalog_of_the_first_release_gets_the_tables_that_the_code_uses(new_database: NewDatabase) -> None:
    urls = [new_database(False) for _ in range(2)]
    _begin(urls[0])
    made = []
    for url in urls:  # one by the migrations from the first release on, one in one step
        catalog = Catalog(url)
        with catalog.database.transaction() as transaction:
            context = MigrationContext.configure(transaction, opts={"compare_type": True})
            assert compare_metadata(context, metadata) == []
            made.append(_described(transaction))
        catalog.close()
    assert made[0] == made[1]


def test_a_catalog_of_before_the_first_release_is_rejected(catalog: Catalog, url: str) -> None:
    with catalog.database.transaction() as transaction:
        transaction.execute(sqlalchemy.text("update alembic_version set version_num = '0033'"))
    later = Catalog(url)
    with pytest.raises(InvalidValueError, match=r"before the first release.*0033.*Create a new home"):
        later.volumes.list()
    later.close()


def test_migrations_go_on_from_the_first_release(new_database: NewDatabase) -> None:
    url = new_database(False)
    _begin(url)
    catalog = Catalog(url)
    with catalog.database.transaction() as transaction:
        database._migrate(transaction)
        found = transaction.execute(sqlalchemy.text("select version_num from alembic_version")).scalar_one()
    catalog.close()
    assert found == database.SCHEMA_REVISION


def _begin(url: str) -> None:
    """Creates the tables of the first release."""
    location = sqlalchemy.make_url(url)
    kind = location.get_backend_name()
    script = (Path(__file__).parent / "first" / f"catalog.{kind}.sql").read_text()
    if kind == "sqlite":
        with closing(sqlite3.connect(str(location.database))) as connection:
            connection.executescript(script)
        return
    engine = sqlalchemy.create_engine(location.set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        connection.exec_driver_sql(script)
    engine.dispose()


def _described(connection: sqlalchemy.Connection) -> object:
    """All that the database knows about its tables, except the order of columns."""
    found = sqlalchemy.inspect(connection)
    return {
        table: (
            {column["name"]: (str(column["type"]), column["nullable"], column["default"]) for column in found.get_columns(table)},
            found.get_pk_constraint(table)["constrained_columns"],
            sorted((index["name"], index["column_names"], index["unique"]) for index in found.get_indexes(table)),
            sorted((constraint["name"] or "", constraint["column_names"]) for constraint in found.get_unique_constraints(table)),
            sorted((key["referred_table"], key["constrained_columns"]) for key in found.get_foreign_keys(table)),
        )
        for table in found.get_table_names()
    }


def test_the_newest_migration_is_the_one_the_code_expects(catalog: Catalog) -> None:
    versions = Path(database.__file__).parent / "migrations" / "versions"
    newest = max(path.name for path in versions.glob("[0-9]*.py"))
    assert newest.startswith(f"{database.SCHEMA_REVISION}_")
    with catalog.database.reading() as transaction:
        found = transaction.execute(sqlalchemy.text("select version_num from alembic_version")).scalar_one()
    assert found == database.SCHEMA_REVISION


@pytest.mark.long
def test_processes_that_start_together_on_a_new_database_migrate_it_once(new_database: NewDatabase) -> None:
    urls = [new_database(False) for _ in range(4)]
    code = """
import sys, time
from volstream.catalog import Catalog
input()
for url in sys.argv[1:]:
    time.sleep(0.5 - time.time() % 0.5)  # each database is met by all of them at one moment
    catalog = Catalog(url)
    print(catalog.leases.acquire("name", "owner", "test", 60.0))
    catalog.close()
"""
    assert race(code, urls, processes=3) == ["\n".join(["None"] * len(urls))] * 3


def test_a_catalog_of_a_newer_volstream_is_rejected(catalog: Catalog, url: str) -> None:
    with catalog.database.transaction() as transaction:
        transaction.execute(sqlalchemy.text("update alembic_version set version_num = '9999'"))
    later = Catalog(url)
    with pytest.raises(InvalidValueError, match=r"newer volstream.*9999.*Upgrade"):
        later.volumes.list()
    later.close()


def test_an_exception_in_a_transaction_rolls_it_back(catalog: Catalog) -> None:
    with pytest.raises(ZeroDivisionError), catalog.database.transaction() as transaction:  # noqa: PT012  # the transaction is the block
        insert = "insert into leases (name, owner, purpose, expires) values ('n', 'o', 'p', :soon)"
        transaction.execute(sqlalchemy.text(insert), {"soon": time.time() + 60})
        raise ZeroDivisionError
    assert catalog.leases.held() == []


def test_a_reader_does_not_wait_for_a_writer(catalog: Catalog) -> None:
    with catalog.database.transaction() as transaction:
        insert = "insert into leases (name, owner, purpose, expires) values ('n', 'o', 'p', :soon)"
        transaction.execute(sqlalchemy.text(insert), {"soon": time.time() + 60})
        assert catalog.leases.held() == []
    assert [lease.name for lease in catalog.leases.held()] == ["n"]


def test_an_unreachable_database_is_a_catalog_error_that_omits_the_password(tmp_path: Path) -> None:
    unreachable = Catalog("postgresql://user:secret@127.0.0.1:1/none")
    with pytest.raises(CatalogError, match="is not available") as caught:
        unreachable.volumes.list()
    assert "secret" not in str(caught.value)
    assert caught.value.transient


def test_a_catalog_below_a_file_is_a_catalog_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = Catalog(f"sqlite:///{tmp_path / 'file' / 'catalog.db'}")
    with pytest.raises(CatalogError, match="cannot be opened"):
        broken.volumes.list()


def test_a_file_that_is_not_a_database_is_a_catalog_error(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_text("this is not a database, and it is long enough to have a header" * 10)
    broken = Catalog(f"sqlite:///{tmp_path / 'catalog.db'}")
    with pytest.raises(CatalogError, match="not a database"):
        broken.volumes.list()
    broken.close()


def test_a_database_tells_commits_of_any_process_by_its_version(catalog: Catalog, url: str) -> None:
    with closing(database.Database(url)) as watched:
        before = watched.version()
        catalog.volumes.list()
        assert watched.version() == before
        catalog.leases.acquire("name", "owner", "test", 1.0)  # by another one
        eventually(lambda: watched.version() != before)


def test_a_database_sees_its_own_commits_at_once(catalog: Catalog) -> None:
    versions = [catalog.database.version()]
    for name in ("one", "other"):
        catalog.leases.acquire(name, "owner", "test", 1.0)
        versions.append(catalog.database.version())
    assert len({*versions}) == len(versions)


def test_a_database_that_fails_between_two_version_checks_is_a_catalog_error(sqlite_template: Path) -> None:
    catalog = Catalog(f"sqlite:///{sqlite_template.parent}/version.db")
    assert catalog.database.version() is not None
    catalog.close()
    (sqlite_template.parent / "version.db").write_bytes(b"not a database" * 100)
    with pytest.raises(CatalogError):
        catalog.database.version()


def test_a_read_only_catalog_can_be_read_and_refuses_writes(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # By the database's own mode, which root cannot pass over as it does a file's.
    reader = Catalog(f"sqlite:///file:{sqlite_template}?mode=ro&uri=true")
    assert reader.volumes.list() == []
    with pytest.raises(CatalogError, match=r"readonly.*Check that the database is running and writable"):
        reader.leases.acquire("name", "owner", "test", 1.0)
    reader.close()
    assert list(tmp_path.iterdir()) == [], "its URI is not taken for a path"


def test_a_writer_waits_for_one_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    catalog = Catalog(f"sqlite:///{path}")
    assert catalog.leases.acquire("a", "owner", "test", 60.0) is None
    code = """
import atexit, sys
from volstream.catalog import Catalog
catalog = Catalog(sys.argv[1])
atexit.register(catalog.close)
catalog.volumes.list()
input()
for number in range(20):
    catalog.leases.acquire(f"lease {number}", "owner", "test", 60.0)
"""
    assert race(code, [f"sqlite:///{path}"], processes=3) == [""] * 3
    assert len(catalog.leases.held()) == 21
    catalog.close()


def test_an_acknowledged_write_is_on_the_disk(tmp_path: Path) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path / 'catalog.db'}")
    with catalog.database.transaction() as transaction:
        assert transaction.exec_driver_sql("pragma synchronous").scalar() == 2
        assert transaction.exec_driver_sql("pragma foreign_keys").scalar() == 1
    catalog.close()
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.parametrize("url", ["mysql://host/db", "nonsense", "duckdb:///x"])
def test_unsupported_databases_are_rejected_before_anything_is_opened(url: str) -> None:
    with pytest.raises(InvalidValueError):
        Catalog(url)
