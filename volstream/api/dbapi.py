"""Connections as in Python's DB-API 2.0 (PEP 249), and real-time streams::

    with volstream.connect(home="data") as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT count(*) FROM users WHERE age > ?", [30])
        [(count,)] = cursor.fetchall()

Every statement is committed on its own. Values are as in PySpark's rows, except that a TIMESTAMP has its time
zone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, Self, cast

import pyarrow as pa

from volstream.api.session import Session, no_home
from volstream.base import config
from volstream.base.model.arguments import checked
from volstream.base.model.names import DEFAULT_SCHEMA, Name
from volstream.base.threads import Closeable
from volstream.errors import DependencyError, InvalidValueError, SqlError, UserError, VolstreamError
from volstream.functions.source import check_not_imported
from volstream.ingest.local import LocalTables
from volstream.ingest.options import FlushMode, RealtimeOperation, RealtimeOptions, RealtimeOptionsBuilder
from volstream.ingest.remote import Client, RemoteTable
from volstream.ingest.stream import RealtimeStream
from volstream.sql.adapt import in_schema, with_parameters
from volstream.sql.statement import SparkStatement

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.types import DataType, StructType

    from volstream.ingest.stream import FlushReceiver

apilevel = "2.0"
threadsafety = 2  # threads may share the module and connections, but not cursors
paramstyle = "qmark"

#: PEP 249's constructors of values; a ``time`` is none that a statement takes.
Binary, Date, Time, Timestamp = bytes, date, time, datetime
DateFromTicks, TimestampFromTicks = date.fromtimestamp, datetime.fromtimestamp


def TimeFromTicks(ticks: float) -> time:  # noqa: N802  # PEP 249's name
    """Returns the local time of day at a time in seconds since 1970."""
    return datetime.fromtimestamp(ticks).time()


class TypeObject:
    """What PEP 249 compares the types of columns in a cursor's ``description`` with."""

    def __init__(self, *names: str) -> None:
        self._names = frozenset(names)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, str) and other.partition("(")[0] in self._names)

    def __hash__(self) -> int:
        return hash(self._names)


STRING = TypeObject("string", "char", "varchar")
BINARY = TypeObject("binary")
NUMBER = TypeObject("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
DATETIME = TypeObject("date", "timestamp", "timestamp_ntz")
ROWID = TypeObject()


class Warning(VolstreamError):  # noqa: N818  # PEP 249's name
    """PEP 249's warning; volstream raises none."""


class Error(VolstreamError):
    """The root of PEP 249's errors. The cause is an error of ``volstream.errors``."""


class InterfaceError(Error):
    """The connection or the cursor is closed, or cannot do what was asked."""


class DatabaseError(Error):
    """An error of the home."""


class DataError(DatabaseError):
    """A value that cannot be accepted."""


class OperationalError(DatabaseError):
    """Something that volstream needs is not available."""


class IntegrityError(DatabaseError):
    """Not raised: Delta's constraints are reported as ProgrammingError."""


class InternalError(DatabaseError):
    """An error of volstream itself."""


class ProgrammingError(DatabaseError):
    """The statement is wrong."""


class NotSupportedError(DatabaseError):
    """PEP 249 has it, volstream does not."""


@checked
def connect(
    home: str | None = None,
    *,
    token: str | None = None,
    schema: str = DEFAULT_SCHEMA,
    certificate: str | None = None,
    create: bool = False,
    read_only: bool = False,
    **settings: Any,
) -> Connection:
    """Opens a home, or connects to one behind an ingestion server.

    Args:
        home: its folder, or the server's ``grpc://host:port`` or ``grpc+tls://host:port``; default: as for
            the command line.
        token: the server's.
        schema: for names without one.
        certificate: PEM file of the authority that signed the server's certificate; default: the system's
            authorities.
        create: create the home if the folder has none.
        read_only: run only SELECT, SHOW and DESCRIBE of what the home has, as the console does.
        settings: any of the home's, like ``commit_seconds``.

    Raises:
        NotFoundError: the folder has no home.
        InvalidValueError: a setting is unknown or invalid, or does not apply.
    """
    if home is not None and home.startswith(("grpc://", "grpc+tls://")):
        if settings or read_only:
            which = next(iter(settings), "read_only")
            raise InvalidValueError(f"{which} is a setting of the server's home.", "Leave it out.")
        return Connection(_ServedHome(Client(home, token, certificate)), schema)
    check_not_imported()
    loaded = config.load(**(settings if home is None else {"home": home, **settings}))
    if home is not None and not (create or loaded.is_made):
        raise no_home(loaded)
    return Connection(_OpenHome(Session(loaded), read_only=read_only), schema)


@dataclass(frozen=True)
class _Answer:
    """The result of a statement: its columns with their SQL types, and its rows, which are fetched when they
    are asked for."""

    columns: StructType
    batches: Callable[[], Iterator[pa.Table]]


class _OpenHome:
    """A home, opened by this process; what a connection needs of one."""

    def __init__(self, session: Session, *, read_only: bool = False) -> None:
        self.session = session
        self._read_only = read_only
        self.tables = LocalTables(session.home)

    def run(self, statement: str, schema: str) -> _Answer:
        """Runs a statement. ``schema`` is for names of tables without one."""
        from volstream.api.objects.sql import run_statement
        from volstream.spark.frames import batches

        frame = run_statement(self.session, in_schema(statement, schema), read_only=self._read_only)
        return _Answer(frame.schema, lambda: batches(frame))

    def receiver(self, name: Name) -> FlushReceiver:
        """Returns where rows of a table go."""
        if self._read_only:
            raise InterfaceError("The connection is read-only.")
        return self.tables.table(name)

    def close(self) -> None:
        self.tables.close()
        self.session.close()


class _ServedHome:
    """A home behind an ingestion server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def run(self, statement: str, schema: str) -> _Answer:
        from pyspark.sql.pandas.types import from_arrow_schema

        columns, rows = self._client.query(statement, schema)
        return _Answer(from_arrow_schema(columns, prefer_timestamp_ntz=True), lambda: rows)

    def receiver(self, name: Name) -> FlushReceiver:
        return RemoteTable(self._client, name)

    def close(self) -> None:
        self._client.close()


@checked
class Connection(Closeable):
    """A connection to a home. Thread-safe. A context manager, which closes it. Made by :func:`connect`."""

    def __init__(self, home: _OpenHome | _ServedHome, schema: str = DEFAULT_SCHEMA) -> None:
        self._home = home
        self._schema = schema
        self._streams: list[RealtimeStream] = []
        self._closed = False

    def cursor(self) -> Cursor:
        """Returns a new cursor. Raises InterfaceError if the connection is closed."""
        self._check()
        return Cursor(self._run)

    @property
    def session(self) -> Session:
        """The home's session, for all that volstream has. Raises InterfaceError behind a server."""
        if isinstance(self._home, _OpenHome):
            return self._home.session
        raise InterfaceError("A connection to a server has no session.", "Connect to the home itself, by its folder.")

    def get_schema(self) -> str:
        """Returns the schema for names of tables without one."""
        return self._schema

    def get_realtime_stream(
        self,
        *,
        table: str,
        schema: str | None = None,
        operate: RealtimeOperation = RealtimeOperation.APPEND_ONLY,
        options: RealtimeOptions | RealtimeOptionsBuilder | None = None,
    ) -> RealtimeStream:
        """Opens a real-time stream on a table. Close it after use.

        Args:
            schema: default: the connection's.
            operate: APPEND_ONLY for tables without a primary key, CDC for those with one.
            options: default: :class:`~volstream.ingest.RealtimeOptions`, with AUTO_FLUSH_SYNC for CDC.

        Raises:
            NotFoundError: there is no such table.
            InvalidStateError, InvalidValueError: the table does not allow it.
            DependencyError: the table cannot be read or written.
        """
        self._check()
        name = Name.parse(table) if "." in table else Name.of(schema or self._schema, table)
        operation = RealtimeOperation(operate)
        if options is None:
            keyed = operation is RealtimeOperation.CDC
            options = RealtimeOptions(FlushMode.AUTO_FLUSH_SYNC if keyed else FlushMode.AUTO_FLUSH_BACKGROUND)
        chosen = options.build() if isinstance(options, RealtimeOptionsBuilder) else options
        stream = RealtimeStream(self._home.receiver(name), str(name), operation, chosen)
        self._streams.append(stream)
        return stream

    def commit(self) -> None:
        """Does nothing: every statement is committed on its own."""
        self._check()

    def rollback(self) -> None:
        """Raises NotSupportedError: every statement is committed on its own."""
        raise NotSupportedError("There is nothing to roll back: every statement is committed on its own.")

    def close(self) -> None:
        """Closes the connection and its streams; what has arrived is committed if that needs no engine to be
        started.

        Raises:
            RowsNotSentError: rows of a stream could not be sent; everything is closed nevertheless.
        """
        if self._closed:
            return
        self._closed = True
        failed: VolstreamError | None = None
        for stream in self._streams:
            try:
                stream.close()
            except VolstreamError as error:
                failed = failed or error
        self._home.close()
        if failed is not None:
            raise failed

    def _check(self) -> None:
        if self._closed:
            raise InterfaceError("The connection is closed.")

    def _run(self, statement: str, values: Sequence[Any] | Mapping[str, Any]) -> _Answer:
        self._check()
        return self._home.run(with_parameters(statement, values), self._schema)


@checked
class Cursor(Closeable):
    """Runs statements and fetches their rows, one batch at a time. Used by one thread. Iterates over rows.

    Attributes:
        arraysize: default number of rows of :meth:`fetchmany`.
        description: a tuple per column: name, type as SQL, and five times None; None without columns.
        rowcount: rows that a statement changed, if known; else -1.
    """

    def __init__(self, run: Callable[[str, Sequence[Any] | Mapping[str, Any]], _Answer]) -> None:
        self.arraysize = 1
        self.description: list[tuple[str, str, None, None, None, None, None]] | None = None
        self.rowcount = -1
        self._run = run
        self._answer: _Answer | None = None
        self._rows: Iterator[Any] | None = None
        self._closed = False

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while (row := self.fetchone()) is not None:
            yield row

    def execute(self, operation: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Self:
        """Runs a statement. A query runs when its rows are fetched.

        Args:
            parameters: values for the question marks or ``%s``; or a dict for ``:name`` or ``%(name)s``.

        Raises:
            InterfaceError: the cursor or its connection is closed.
            ProgrammingError: the statement is wrong. DataError: a parameter cannot be accepted.
            OperationalError: the engine, a store or the catalog failed. DatabaseError: any other error of the
                home.
        """
        self._check()
        self.description, self.rowcount, self._answer, self._rows = None, -1, None, None
        with _mapped():
            answer = self._run(operation, parameters)
            fields = answer.columns.fields
            if fields and fields[0].name == "num_affected_rows" and not SparkStatement(operation).is_query:
                self.rowcount = sum(int(batch[0][0].as_py() or 0) for batch in answer.batches())
            elif fields:
                kinds = [(field.name, field.dataType.simpleString()) for field in fields]
                self.description = [(name, kind, None, None, None, None, None) for name, kind in kinds]
                self._answer = answer
        return self

    def executemany(self, operation: str, seq_of_parameters: Sequence[Sequence[Any] | Mapping[str, Any]]) -> Self:
        """Runs a statement once for each sequence of values, each committed on its own. For many rows use a
        real-time stream.

        Raises:
            Error: as :meth:`execute`; the earlier ones stay committed.
        """
        count = 0
        for parameters in seq_of_parameters:
            self.execute(operation, parameters)
            count = -1 if self.rowcount < 0 or count < 0 else count + self.rowcount
        self.rowcount = count
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """Returns the next row, or None. Raises InterfaceError if the last statement has none."""
        rows = self._opened()
        with _mapped():
            row = next(rows, None)
        return None if row is None else tuple(row)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Returns up to ``size`` rows; default: ``arraysize``. Raises as :meth:`fetchone`."""
        rows: list[tuple[Any, ...]] = []
        while len(rows) < (self.arraysize if size is None else size):
            row = self.fetchone()
            if row is None:
                break
            rows.append(row)
        return rows

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Returns the rows that are left. Raises as :meth:`fetchone`."""
        rows = self._opened()
        with _mapped():
            return [tuple(row) for row in rows]

    def fetch_arrow_table(self) -> pa.Table:
        """Returns all rows of the last query as a table of Arrow. Raises as :meth:`fetchone`."""
        from pyspark.sql.pandas.types import to_arrow_schema

        answer = self._query()
        with _mapped():
            columns = to_arrow_schema(answer.columns, timezone="UTC")
            return pa.concat_tables([columns.empty_table(), *(batch.cast(columns) for batch in answer.batches())])

    def fetch_df(self) -> pd.DataFrame:
        """Returns all rows of the last query as a DataFrame of pandas. Raises as :meth:`fetchone`.

        A column of whole numbers that has NULLs is of objects, because floats are not exact beyond 2**53.
        """
        frame: pd.DataFrame = self.fetch_arrow_table().to_pandas(integer_object_nulls=True)
        return frame

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Does nothing, as PEP 249 allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Does nothing, as PEP 249 allows."""

    def close(self) -> None:
        """Closes the cursor."""
        self._closed, self._answer, self._rows = True, None, None

    def _check(self) -> None:
        if self._closed:
            raise InterfaceError("The cursor is closed.")

    def _query(self) -> _Answer:
        self._check()
        if self._answer is None:
            raise InterfaceError("The last statement returned no rows.", "Run a query first.")
        return self._answer

    def _opened(self) -> Iterator[Any]:
        answer = self._query()
        if self._rows is None:
            self._rows = _rows(answer)
        return self._rows


def _rows(answer: _Answer) -> Iterator[Any]:
    """Yields rows as PySpark converts them, but times keep their zones."""
    from pyspark.sql.conversion import ArrowTableToRowsConversion

    columns = cast("StructType", _kept_times(answer.columns))
    for batch in answer.batches():
        try:
            yield from ArrowTableToRowsConversion.convert(batch, columns)
        except OverflowError:
            raise InvalidValueError(
                "Some times are outside the years 1 to 9999 that Python supports, in UTC or in the local time zone.",
                "Fetch them with fetch_arrow_table().",
            ) from None


def _kept_times(kind: DataType) -> DataType:
    """Returns a type whose times PySpark passes on as they are, where it would make those with a zone local
    ones without."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType, TimestampNTZType, TimestampType

    match kind:
        case TimestampType():
            return TimestampNTZType()
        case ArrayType():
            return ArrayType(_kept_times(kind.elementType), kind.containsNull)
        case MapType():
            return MapType(_kept_times(kind.keyType), _kept_times(kind.valueType), kind.valueContainsNull)
        case StructType():
            return StructType([StructField(field.name, _kept_times(field.dataType), field.nullable) for field in kind.fields])
    return kind


@contextmanager
def _mapped() -> Iterator[None]:
    """Raises errors of volstream as those of PEP 249, with the same text and the original as cause."""
    from volstream.spark.errors import as_sql_errors

    try:
        with as_sql_errors():
            yield
    except Error:
        raise
    except VolstreamError as error:
        raise _kind(error)(error.message, error.remedy) from error


def _kind(error: VolstreamError) -> type[Error]:
    match error:
        case SqlError():
            return ProgrammingError
        case InvalidValueError():
            return DataError
        case DependencyError():
            return OperationalError
        case UserError():
            return DatabaseError
    return InternalError
