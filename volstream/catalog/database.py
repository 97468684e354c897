"""The database under the catalog: connecting, migrating, transactions, and the mapping of its errors."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, create_engine, event, inspect, make_url, select, text
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import PoolProxiedConnection, QueuePool

from volstream.catalog.tables import metadata
from volstream.errors import CatalogError, CatalogFullError, InvalidValueError
from volstream.lifecycle import faults
from volstream.lifecycle.privacy import make_directory

#: The migration that this code is written for; a test compares it with the newest file in ``migrations/versions``.
SCHEMA_REVISION = "0004"

#: A writer waits this long for another process's transaction; ours take milliseconds.
_BUSY_SECONDS = 30

_READ_ONLY = "volstream_read_only"


class Database:
    """One SQLite file or PostgreSQL database. Connects at the first use; safe for threads.

    Args:
        url: SQLAlchemy URL. ``sqlite:///path`` makes the file and its folder when first used.

    Raises:
        InvalidValueError: not a URL of SQLite or PostgreSQL.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):  # a port that is not a number is the second
            raise InvalidValueError(
                "catalog_url is not a database URL.", "Write postgresql://user@host/database."
            ) from None
        backend = parsed.get_backend_name()
        if backend == "postgresql":
            if importlib.util.find_spec("psycopg") is None:
                raise InvalidValueError(
                    "A PostgreSQL catalog needs a driver.", "Run: pip install 'volstream[postgres]'."
                )
            parsed = parsed.set(drivername="postgresql+psycopg")
        elif backend != "sqlite":
            raise InvalidValueError(f"A catalog cannot live in {backend!r}.", "Use SQLite or PostgreSQL.")
        self._url = parsed
        #: Whether only processes of this host can use it.
        self.is_embedded = backend == "sqlite"
        try:
            self._engine = create_engine(
                parsed,
                poolclass=QueuePool,
                pool_pre_ping=not self.is_embedded,
                connect_args={"timeout": _BUSY_SECONDS} if self.is_embedded else {"connect_timeout": 10},
            )
        except NoSuchModuleError as error:
            raise InvalidValueError(f"catalog_url cannot be used: {error}.") from None
        if self.is_embedded:
            event.listen(self._engine, "connect", _configure_sqlite)
            event.listen(self._engine, "begin", _begin_immediately)
        self._migrated = False
        self._looking: PoolProxiedConnection | None = None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction: committed at the end of the block, rolled back by an exception.

        Raises:
            CatalogError: the database failed; nothing of the block was kept.
        """
        with self._mapped():
            self._migrate_once()
            with self._engine.begin() as connection:
                yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One transaction that only reads: it waits for no writer. Raises CatalogError."""
        with self._mapped():
            self._migrate_once()
            with self._engine.connect().execution_options(**{_READ_ONLY: True}) as connection, connection.begin():
                yield connection

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Lets nobody write while the block runs; who wants to waits. Readers go on. Raises CatalogError."""
        if self.is_embedded:
            with self.transaction():  # begins by taking the one writer's lock
                yield
            return
        with self.transaction() as connection:
            names = ", ".join(table.name for table in metadata.sorted_tables)
            connection.execute(text(f"LOCK TABLE {names} IN SHARE MODE"))
            yield

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """One transaction that only reads, and that sees all tables as they are when the block begins. Raises CatalogError."""
        with self._mapped():
            self._migrate_once()
            with self._engine.connect() as connection:
                level = {} if self.is_embedded else {"isolation_level": "REPEATABLE READ"}
                reading = connection.execution_options(**{_READ_ONLY: True}, **level)
                with reading.begin():
                    reading.execute(text("SELECT version_num FROM alembic_version"))  # it is the first look that counts
                    yield reading

    def version(self) -> int | None:
        """Another number after each commit, of any process; asking takes microseconds. None: this database has none.

        To be called by one thread.

        Raises:
            CatalogError: the database failed.
        """
        if not self.is_embedded:
            return None
        with self._mapped():
            self._migrate_once()
            if self._looking is None:  # SQLite tells each connection of the others' commits
                self._looking = self._engine.raw_connection()
            with closing(self._looking.cursor()) as cursor:
                return int(cursor.execute("PRAGMA data_version").fetchone()[0])

    def now(self, connection: Connection) -> float:
        """The database's clock in epoch seconds: hosts that share a catalog compare leases by one clock."""
        clock = (
            "(julianday('now') - 2440587.5) * 86400.0" if self.is_embedded else "extract(epoch from clock_timestamp())"
        )
        return float(connection.execute(select(text(clock))).scalar_one())

    def add_missing(
        self, connection: Connection, table: Table, key: Sequence[str], rows: Sequence[Mapping[str, Any]]
    ) -> int:
        """Inserts the rows whose ``key`` is free, also where another process inserts it right now; how many they were."""
        statement = self._insert(table).on_conflict_do_nothing(index_elements=key)
        counted = {"preserve_rowcount": True}  # psycopg's count of an INSERT is -1 without
        return sum(connection.execute(statement.values(**row), execution_options=counted).rowcount for row in rows)

    def add_up(
        self,
        connection: Connection,
        table: Table,
        key: Sequence[str],
        rows: Sequence[Mapping[str, Any]],
        *,
        sums: Sequence[str],
        latest: Sequence[str] = (),
    ) -> None:
        """Inserts rows; where the ``key`` is there, adds to its columns ``sums``, and replaces its columns ``latest``."""
        if not rows:
            return
        statement = self._insert(table)
        given = statement.excluded
        changed = {name: table.c[name] + given[name] for name in sums} | {name: given[name] for name in latest}
        connection.execute(statement.on_conflict_do_update(index_elements=key, set_=changed), rows)

    def _insert(self, table: Table) -> Any:
        """An INSERT that knows conflicts: on both databases with the same methods."""
        # Late: the dialect that is not used costs every command 40 ms.
        if self.is_embedded:
            from sqlalchemy.dialects import sqlite

            return sqlite.insert(table)
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)

    def close(self) -> None:
        """Closes the pooled connections."""
        if self._looking is not None:
            self._looking.close()
            self._looking = None
        self._engine.dispose()

    def describe(self) -> str:
        """The URL without its password, and without what follows a ``?``, which may be one too."""
        return self._url.set(query={}).render_as_string(hide_password=True)

    def _migrate_once(self) -> None:
        if self._migrated:
            return
        # A database that is named by a URI of SQLite's is its user's to make.
        if self.is_embedded and self._url.database and not self._url.database.startswith("file:"):
            path = Path(self._url.database)
            make_directory(path.parent)
            if not path.exists():
                _make_file(path)
        with self._engine.connect() as connection:
            known = inspect(connection).has_table("alembic_version")
            found = connection.execute(text("select version_num from alembic_version")).scalar() if known else None
        if found is not None and found > SCHEMA_REVISION:
            raise InvalidValueError(
                f"The catalog was made by a newer volstream (its schema is {found}, this one knows {SCHEMA_REVISION}).",
                "Upgrade volstream.",
            )
        if found != SCHEMA_REVISION:
            with self._engine.connect() as connection:
                if not self.is_embedded:
                    # Two hosts that start on one new database: the second waits, and finds nothing left to do.
                    connection.execute(text("select pg_advisory_xact_lock(761253)"))
                _make_tables(connection) if found is None else _migrate(connection)
                faults.point("catalog.migrate")
                connection.commit()
        self._migrated = True

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        where = self.describe()
        try:
            yield
        except OperationalError as error:
            reason = str(error.orig).strip()
            if "disk is full" in reason or "No space left" in reason or "disk I/O error" in reason:
                raise CatalogFullError(
                    f"The catalog {where} cannot take more: {reason}.", "Free some space."
                ) from error
            raise CatalogError(
                f"The catalog {where} is not available: {reason}.", "Check that the database runs and can be written."
            ) from error
        except (OverflowError, DataError):  # SQLite's driver says the first
            raise InvalidValueError("A number is larger than the catalog can hold.", "Give a smaller one.") from None
        except DBAPIError as error:
            raise CatalogError(f"The catalog {where} failed: {error.orig}.") from error
        except sqlite3.Error as error:  # of the connection that is used without SQLAlchemy
            raise CatalogError(f"The catalog {where} failed: {error}.") from error
        except SQLAlchemyError as error:
            raise CatalogError(f"The catalog {where} failed: {error}.") from error
        except OSError as error:
            raise CatalogError(f"The catalog {where} cannot be opened: {error}.", "Choose another --home.") from error


def _make_tables(connection: Connection) -> None:
    """Makes what all migrations together make, in a tenth of their time, unless somebody was faster; a test compares."""
    if inspect(connection).has_table("alembic_version"):
        return
    metadata.create_all(connection)
    connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
    connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": SCHEMA_REVISION})


def _migrate(connection: Connection) -> None:
    # Late: only an old catalog pays for importing Alembic.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _configure_sqlite(connection: Any, _record: object) -> None:
    # The driver's own BEGIN is deferred: two writers would fail instead of wait. See _begin_immediately.
    connection.isolation_level = None
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")  # an acknowledged INTENT survives a power cut
    connection.execute("pragma foreign_keys = on")


def _make_file(path: Path) -> None:
    """Puts an empty database in WAL mode at ``path``, for the user alone, unless somebody was faster.

    The mode is kept in the file. Two processes that set it on one new file would each wait for the other's lock, which
    SQLite refuses at once, without the busy time-out: so the file appears when it is ready.
    """
    made = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        made.touch(mode=0o600)  # SQLite gives its other files the mode of this one
        with closing(sqlite3.connect(made)) as connection:
            connection.execute("pragma journal_mode = wal")
        with suppress(OSError):  # there is one by now; or no links here, and the mode is set when it is opened
            os.link(made, path)
    finally:
        made.unlink(missing_ok=True)


def _begin_immediately(connection: Connection) -> None:
    connection.exec_driver_sql("begin" if connection.get_execution_options().get(_READ_ONLY) else "begin immediate")
