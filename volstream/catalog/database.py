"""The database under the catalog: connecting, migrating, transactions, and mapping of its errors."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    CursorResult,
    Executable,
    Select,
    Table,
    bindparam,
    create_engine,
    event,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, NoSuchModuleError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import PoolProxiedConnection, QueuePool

from volstream.base import faults
from volstream.base.model.work import groups
from volstream.base.privacy import make_directory
from volstream.base.processes import disk_error, is_read_only, read_only_error
from volstream.catalog.tables import from_row, identity, metadata
from volstream.errors import CatalogDiskError, CatalogError, InvalidValueError

T = TypeVar("T")

#: See :meth:`Database.version`.
Version: TypeAlias = int | str

#: The migration that this code requires. A test compares it with the newest file in ``migrations/versions``.
SCHEMA_REVISION = "0110"

#: The first release's revision. Earlier ones belong to unreleased versions.
_FIRST_REVISION = "0100"

#: Bound values per statement, below every database's limit.
MAX_BOUND = 500

#: Maximum wait for another process's transaction. volstream's transactions take milliseconds.
_BUSY_SECONDS = 30

#: PostgreSQL's timeouts, in seconds (the last one in milliseconds): a vanished host sends no error.
_TIMEOUTS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}

#: The transactions visible to this one in PostgreSQL. Includes those of the server's other databases.
_SNAPSHOT = text("SELECT CAST(pg_current_snapshot() AS text)")

#: How long PostgreSQL's version is cached. Other processes' commits are seen this much later.
_VERSION_SECONDS = 0.25

#: PostgreSQL's code for numbers that are too large.
_OUT_OF_RANGE = "22003"


@dataclass(frozen=True)
class ReadSnapshot:
    """The catalog at one moment: a transaction, and the data read in it.

    Attributes:
        objects: by table and id.
        rows: of queries for many values, by value.
    """

    connection: Connection
    objects: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: dict[Select[Any], Mapping[object, Sequence[Any]]] = field(default_factory=dict)


class Database:
    """One SQLite file or PostgreSQL database. Connects on first use. Thread-safe.

    Args:
        url: SQLAlchemy URL, or the absolute path of a SQLite file. The file and its folder are created on
            first use.

    Raises:
        InvalidValueError: the URL is not for SQLite or PostgreSQL.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = URL.create("sqlite", database=url) if os.path.isabs(url) else make_url(url)
        except (ArgumentError, ValueError):  # ValueError: the port is not a number
            raise InvalidValueError("catalog_url is not a database URL.", "Write postgresql://user@host/database.") from None
        backend = parsed.get_backend_name()
        if backend == "postgresql":
            if importlib.util.find_spec("psycopg") is None:
                raise InvalidValueError("A PostgreSQL catalog needs a driver.", "Run: pip install 'volstream[postgres]'.")
            parsed = parsed.set(drivername="postgresql+psycopg")
        elif backend != "sqlite":
            raise InvalidValueError(f"A catalog cannot be kept in {backend!r}.", "Use SQLite or PostgreSQL.")
        self._url = parsed
        #: Only processes on this host can use the database.
        self.is_embedded = backend == "sqlite"
        try:
            self._engine = create_engine(
                parsed,
                poolclass=QueuePool,
                pool_pre_ping=not self.is_embedded,
                connect_args={"timeout": _BUSY_SECONDS}
                if self.is_embedded
                else {name: value for name, value in _TIMEOUTS.items() if name not in parsed.query},
            )
        except NoSuchModuleError as error:
            raise InvalidValueError(f"catalog_url cannot be used: {error}.") from None
        if self.is_embedded:
            event.listen(self._engine, "connect", _configure_sqlite)
        alone = {} if self.is_embedded else {"isolation_level": "AUTOCOMMIT"}
        self._querying = self._engine.execution_options(**alone)
        self._migrated = False
        self._local = threading.local()
        # statements: building one takes as long as executing it
        self._inserts: dict[tuple[str, ...], Any] = {}
        self._of_value: dict[Select[Any], Select[Any]] = {}  # of :meth:`rows_of`, by the constant query
        # SQLite lets one connection write at a time. Others poll for their turn, up to 100 ms apart. Threads
        # of this process queue here.
        self._writing = threading.RLock() if self.is_embedded else nullcontext()
        self._version_lock = threading.Lock()
        self._version_connection: PoolProxiedConnection | None = None
        self._commit = object()  # identifies this process's latest commit
        # PostgreSQL's version: after which commit, until when, which
        self._known_version: tuple[object, float, str] = (None, 0.0, "")

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Runs one transaction: committed at the end of the block, rolled back on an exception.

        Raises:
            CatalogError: the database failed. Nothing from the block was stored.
        """
        with self._mapped():
            self._migrate_once()
            with self._writing:
                with self._engine.begin() as connection:
                    self._begin(connection)
                    yield connection
                self._commit = object()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Runs one read-only transaction. It never waits for a writer. Raises CatalogError.

        Inside of :meth:`one_snapshot`, uses that transaction.
        """
        if self.moment is not None:
            yield self.moment.connection
            return
        with self._mapped():
            self._migrate_once()
            with self._engine.connect() as connection:
                self._begin(connection, "begin")
                yield connection

    def _begin(self, connection: Connection, how: str = "begin immediate") -> None:
        """Begins SQLite's transaction.

        A writer's transaction begins immediately: of two writers that read before they write, one would fail
        instead of waiting. This is not in a listener: with one on the engine, SQLAlchemy looks for listeners
        at every statement.
        """
        if self.is_embedded:
            connection.exec_driver_sql(how)

    def _execute(self, query: Executable, values: Mapping[str, object], fetch: Callable[[CursorResult[Any]], T]) -> T:
        """Runs one query outside of a transaction, which would add half of the query's time."""
        if self.moment is not None:
            return fetch(self.moment.connection.execute(query, values))
        with self._mapped():
            self._migrate_once()
            with self._querying.connect() as connection:
                return fetch(connection.execute(query, values))

    def rows(self, query: Executable, **values: object) -> Sequence[Any]:
        """Returns the rows of one query: tuples with an attribute for each column. Raises CatalogError.

        Args:
            values: the query's parameters.
        """
        return self._execute(query, values, lambda result: result.all())

    def rows_of(self, query: Select[Any], column: ColumnElement[Any], value: object) -> Sequence[Any]:
        """Returns the rows of a constant query whose column has a value.

        Inside of :meth:`one_snapshot`, the query runs once for all values.

        Raises:
            CatalogError: the database failed.
        """
        moment = self.moment
        if moment is None:
            if query not in self._of_value:
                self._of_value[query] = query.where(column == bindparam("of_value"))
            return self.rows(self._of_value[query], of_value=value)
        if query not in moment.rows:
            by_value: dict[object, list[Any]] = {}
            for row in self.rows(query.add_columns(column.label("of_value"))):
                by_value.setdefault(row.of_value, []).append(row)
            moment.rows[query] = by_value
        return moment.rows[query].get(value, ())

    def rows_in(self, query: Select[Any], column: ColumnElement[Any], values: Iterable[Any]) -> Sequence[Any]:
        """Returns the rows of a query whose column has one of many values. Raises CatalogError."""
        return [row for chunk in groups(sorted({*values}), MAX_BOUND) for row in self.rows(query.where(column.in_(chunk)))]

    def all(self, query: Select[Any], cls: type[T], **values: object) -> list[T]:
        """Returns the rows of one query as objects (:func:`from_row`). Raises CatalogError."""
        return [from_row(cls, row._mapping) for row in self.rows(query, **values)]

    def one(self, query: Select[Any], cls: type[T], **values: object) -> T | None:
        """Returns the first row of one query as an object, or None. Raises CatalogError."""
        return next(iter(self.all(query, cls, **values)), None)

    def value(self, query: Executable, **values: object) -> Any:
        """Returns the first column of the first row of one query, or None without rows. Raises
        CatalogError."""
        return self._execute(query, values, lambda result: result.scalar())

    def write(self, statement: Executable, **values: object) -> int:
        """Runs one statement in a transaction. Returns the number of changed rows. Raises CatalogError."""
        with self.transaction() as transaction:
            return transaction.execute(statement, values).rowcount

    @property
    def _file(self) -> Path | None:
        """The database's file, or None."""
        name = self._url.database if self.is_embedded else None
        return Path(name) if name and not name.startswith("file:") else None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Makes all writers wait during the block. Readers continue. Raises CatalogError."""
        if self.is_embedded:
            with self.transaction():  # takes the single writer lock
                yield
            return
        with self.transaction() as connection:
            names = ", ".join(table.name for table in metadata.sorted_tables)
            connection.execute(text(f"LOCK TABLE {names} IN SHARE MODE"))
            yield

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Runs one read-only transaction that sees all tables as of the start of the block. Raises
        CatalogError."""
        with self._mapped():
            self._migrate_once()
            with self._engine.connect() as connection:
                level = {} if self.is_embedded else {"isolation_level": "REPEATABLE READ"}
                reading = connection.execution_options(**level)
                self._begin(reading, "begin")
                reading.execute(text("SELECT version_num FROM alembic_version"))  # fixes the snapshot
                yield reading

    @property
    def moment(self) -> ReadSnapshot | None:
        """The snapshot that this thread reads inside of :meth:`one_snapshot`, else None."""
        found: ReadSnapshot | None = getattr(self._local, "moment", None)
        return found

    @contextmanager
    def one_snapshot(self) -> Iterator[None]:
        """Makes all queries of this thread in the block see the catalog as of its start. Raises CatalogError.

        Together, the queries cost less.
        """
        if self.moment is not None:
            yield
            return
        with self.snapshot() as connection:
            self._local.moment = ReadSnapshot(connection)
            try:
                yield
            finally:
                self._local.moment = None

    def version(self) -> Version:
        """Returns a value that changes with any process's commit.

        Costs microseconds with SQLite, a query with PostgreSQL, which runs at most four times a second unless
        this process commits.

        Raises:
            CatalogError: the database failed.
        """
        if not self.is_embedded:
            with self._version_lock:
                commit, until, version = self._known_version
                if commit is not self._commit or time.monotonic() >= until:
                    commit, version = self._commit, str(self.value(_SNAPSHOT))
                    self._known_version = commit, time.monotonic() + _VERSION_SECONDS, version
                return version
        with self._version_lock, self._mapped():
            self._migrate_once()
            if self._version_connection is None:  # SQLite counts for each connection the commits of others
                self._version_connection = self._engine.raw_connection()
            with closing(self._version_connection.cursor()) as cursor:
                return int(cursor.execute("PRAGMA data_version").fetchone()[0])

    def now(self, connection: Connection) -> float:
        """Returns the database's clock in epoch seconds. Hosts that share a catalog compare leases by this
        clock."""
        clock = "(julianday('now') - 2440587.5) * 86400.0" if self.is_embedded else "extract(epoch from clock_timestamp())"
        return float(connection.execute(select(text(clock))).scalar_one())

    def add_missing(self, connection: Connection, table: Table, key: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> int:
        """Inserts rows whose ``key`` is free. Returns the number of inserted rows. Safe with concurrent
        inserts."""
        known = (table.name, *key)
        if known not in self._inserts:
            self._inserts[known] = self._insert(table).on_conflict_do_nothing(index_elements=key)
        counted = {"preserve_rowcount": True}  # without it psycopg reports -1 for an INSERT
        return sum(connection.execute(self._inserts[known], row, execution_options=counted).rowcount for row in rows)

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
        """Inserts rows. If the ``key`` exists, adds to the columns in ``sums`` and replaces the columns in
        ``latest``."""
        if not rows:
            return
        known = (table.name, *key, *sums, *latest)
        if known not in self._inserts:
            statement = self._insert(table)
            excluded = statement.excluded
            changed = {name: table.c[name] + excluded[name] for name in sums} | {name: excluded[name] for name in latest}
            self._inserts[known] = statement.on_conflict_do_update(index_elements=key, set_=changed)
        connection.execute(self._inserts[known], rows)

    def _insert(self, table: Table) -> Any:
        """Returns an INSERT with conflict clauses. Its methods are the same for both databases."""
        # Imported late: the unused dialect would cost every command 40 ms.
        if self.is_embedded:
            from sqlalchemy.dialects import sqlite

            return sqlite.insert(table)
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)

    def close(self) -> None:
        """Closes the pooled connections."""
        if self._version_connection is not None:
            self._version_connection.close()
            self._version_connection = None
        self._engine.dispose()

    def describe(self) -> str:
        """Returns the URL without its password, and without its query, which may also contain one."""
        return self._url.set(query={}).render_as_string(hide_password=True)

    def _migrate_once(self) -> None:
        if self._migrated:
            return
        # Users must create a database given by a SQLite URI.
        path = self._file
        if path is not None:
            try:
                make_directory(path.parent)
            except InvalidValueError as error:
                raise CatalogError(f"The catalog cannot be opened: {error.message}", error.remedy) from None
            if not path.exists():
                _make_file(path)
        with self._engine.connect() as connection:
            versioned = inspect(connection).has_table("alembic_version")
            version = connection.execute(text("select version_num from alembic_version")).scalar() if versioned else None
        if version is not None and version > SCHEMA_REVISION:
            raise InvalidValueError(
                f"The catalog was created by a newer volstream (schema {version}; this one supports up to {SCHEMA_REVISION}).",
                "Upgrade volstream.",
            )
        if version is not None and version < _FIRST_REVISION:
            raise InvalidValueError(
                f"The catalog was created by a version before the first release (schema {version}).", "Create a new home."
            )
        if version != SCHEMA_REVISION:
            with self._engine.connect() as connection:
                # If two processes open a new database concurrently, the second waits and then has nothing to
                # do.
                self._begin(connection)
                if not self.is_embedded:
                    connection.execute(text("select pg_advisory_xact_lock(761253)"))
                _make_tables(connection) if version is None else _migrate(connection)
                faults.point("catalog.migrate")
                connection.commit()
        self._migrated = True

    def _is_sealed(self) -> bool:
        """True if the database is a file on a read-only disk, which SQLite does not report."""
        folder = self._file.parent if self._file is not None else None
        return folder is not None and folder.is_dir() and is_read_only(folder)

    @contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except OperationalError as error:
            reason, where = str(error.orig).strip(), self.describe()
            what = f"the catalog {where}"
            disk = read_only_error(what) if self._is_sealed() else disk_error(error, what)
            if disk is not None or "disk I/O error" in reason:  # SQLite's message for many problems
                message = disk.message if disk else f"The disk of the catalog {where} failed: {reason}."
                raise CatalogDiskError(message, "Free space or mount it writable, then try again.") from error
            raise CatalogError(
                f"The catalog {where} is not available: {reason}.", "Check that the database is running and writable."
            ) from error
        except (OverflowError, DataError) as error:  # SQLite's driver raises OverflowError
            if isinstance(error, DataError) and getattr(error.orig, "sqlstate", None) != _OUT_OF_RANGE:
                raise InvalidValueError(f"The catalog cannot store a value: {error.orig}.") from None
            raise InvalidValueError("A number is larger than the catalog can hold.", "Give a smaller one.") from None
        except UnicodeEncodeError:
            raise InvalidValueError("A text contains a lone surrogate, which the catalog cannot store.") from None
        # the latter comes from the connection that bypasses SQLAlchemy
        except (SQLAlchemyError, sqlite3.Error) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            raise CatalogError(f"The catalog {self.describe()} failed: {cause}.") from error
        except OSError as error:
            raise CatalogError(f"The catalog {self.describe()} cannot be opened: {error}.", "Choose another --home.") from error


def _make_tables(connection: Connection) -> None:
    """Creates the final tables unless another process did. Ten times faster than the migrations; a test
    compares both."""
    if inspect(connection).has_table("alembic_version"):
        return
    metadata.create_all(connection)
    connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
    connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": SCHEMA_REVISION})
    connection.execute(identity.insert(), {"id": str(uuid.uuid4())})


def _migrate(connection: Connection) -> None:
    # Imported late: only an old catalog needs Alembic.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _configure_sqlite(connection: Any, _record: object) -> None:
    # The driver's own BEGIN is deferred. See Database._begin.
    connection.isolation_level = None
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")  # an acknowledged INTENT survives a power cut
    connection.execute("pragma foreign_keys = on")


def _make_file(path: Path) -> None:
    """Creates an empty database in WAL mode at ``path``, readable only by the user, unless another process
    created it first.

    The mode is stored in the file. Two processes that set it on the same new file would each wait for the
    other's lock, which SQLite refuses immediately, ignoring the busy time-out. The file therefore appears
    only once it is ready.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.touch(mode=0o600)  # SQLite gives its other files the same mode
        with closing(sqlite3.connect(temporary)) as connection:
            connection.execute("pragma journal_mode = wal")
        # the file exists now, or links are not supported and the mode is set on opening
        with suppress(OSError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
