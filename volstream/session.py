"""The composition root, and the Python surface: a :class:`Session` opens a home and gives access to everything in it.

It builds the parts and hands them out. What a part does is the domain's; how it is shown is the surface's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from volstream import config
from volstream.catalog import Catalog
from volstream.config import Settings
from volstream.delta import options
from volstream.errors import InvalidStateError, InvalidValueError
from volstream.model.names import Name
from volstream.objects import Batches, Connections, DynamicTables, Functions, Jobs, Streams, Volumes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.readwriter import DataFrameReader
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.connect.udf import UDFRegistration

    from volstream.jobs.lead import Runner
    from volstream.jobs.run import JobRunner
    from volstream.model.objects import Job
    from volstream.spark.session import SparkGateway
    from volstream.streams.block import Block
    from volstream.streams.read import StreamReader


class Collected:
    """Collects settings, for the builders of sessions."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def config(self, key: str, value: Any) -> Self:
        """Sets one setting; ``home`` is the folder."""
        self._values[key] = value
        return self

    def configs(self, values: Mapping[str, Any]) -> Self:
        """Sets several settings."""
        self._values |= values
        return self


class Builder(Collected):
    """Makes a :class:`Session` of the settings that it collects."""

    def create(self) -> Session:
        """A new session. Raises InvalidValueError for settings that cannot be used."""
        return Session(config.load(**self._values))

    def getOrCreate(self) -> Session:  # noqa: N802  # PySpark's name
        """The open session with these settings, else a new one."""
        settings = config.load(**self._values)
        with Session._lock:
            for session in Session._opened:
                if session.settings == settings:
                    return session
        return Session(settings)


class _BuilderAttribute:
    """``Session.builder`` is a new builder at each look, as in PySpark."""

    def __get__(self, instance: object, owner: type) -> Builder:
        return Builder()


class Session:
    """A home, opened. Spark is attached to at the first use of it; the catalog and the logs answer without.

    Safe for threads. A context manager: it closes what it opened; the engine goes on.

    Args:
        connect: makes the connection to Spark, and a new one where that was lost; None: to the home's engine.
    """

    builder = _BuilderAttribute()
    _lock = threading.Lock()
    _opened: list[Session] = []  # noqa: RUF012  # the open sessions of this process, for getOrCreate

    def __init__(self, settings: Settings, connect: Callable[[], SparkGateway] | None = None) -> None:
        self.settings = settings
        options.know(settings.warehouse_path, settings.warehouse_storage)
        self.catalog = Catalog(settings.database_url)
        self.connections = Connections(self)
        self.volumes = Volumes(self)
        self.streams = Streams(self)
        self.jobs = Jobs(self)
        self.functions = Functions(self)
        self.dynamic_tables = DynamicTables(self)
        self.batches = Batches(self)
        self._connect = connect or self._to_engine
        self._gateway: SparkGateway | None = None
        self._connecting = threading.Lock()
        self._local = threading.local()
        with Session._lock:
            Session._opened.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def zone(self) -> ZoneInfo:
        """The zone in which cron lines are read."""
        try:
            return ZoneInfo(self.settings.time_zone)
        except (ZoneInfoNotFoundError, ValueError):
            raise InvalidValueError(
                f"There is no time zone {self.settings.time_zone!r}.", "Write for example Europe/Berlin."
            ) from None

    @property
    def warehouse(self) -> str:
        """Where all Delta tables lie."""
        return self.settings.warehouse_path

    @property
    def gateway(self) -> SparkGateway:
        """The connection to Spark. The home's engine is attached to, and started where none runs, when it is first asked
        for a session; which is when EngineError is raised."""
        with self._connecting:
            if self._gateway is None or self._gateway.lost is not None:
                self._gateway = self._connect()
            return self._gateway

    def _to_engine(self) -> SparkGateway:
        from volstream.engine.attach import attach
        from volstream.spark.session import SparkGateway

        return SparkGateway(lambda: attach(self.settings), stall_seconds=self.settings.engine_stall_seconds)

    @property
    def runner(self) -> JobRunner:
        """Runs jobs of functions."""
        from volstream.jobs.run import JobRunner

        return JobRunner(self.catalog, self.gateway, self.settings)

    def runner_of(self, job: Job) -> Runner:
        """What runs the job: its function, or its statement."""
        from volstream.sql.jobs import StatementRunner

        return self.runner if job.statement is None else StatementRunner(self)

    @property
    def reader(self) -> StreamReader:
        """Reads streams."""
        from volstream.streams.read import StreamReader

        return StreamReader(self.catalog, self.warehouse)

    @property
    def open_block(self) -> Block | None:
        """The transaction that this thread is in, or None."""
        return getattr(self._local, "block", None)

    @contextmanager
    def block(self, *, again: bool = False, timeout: float = 0.0, job_id: str | None = None) -> Iterator[Block]:
        """A consumption of streams: the transaction that this thread is in, or one for the block alone.

        Args:
            again, timeout, job_id: see :class:`~volstream.streams.block.Block`.
        """
        from volstream.delta.writer import DeltaWriter
        from volstream.streams.block import Block
        from volstream.streams.consume import Consumer

        if self.open_block is not None:
            yield self.open_block
            return
        consumer = Consumer(self.catalog, DeltaWriter(self.gateway))
        with Block(
            self.catalog, self.reader, consumer, lease_seconds=self.settings.lease_seconds, again=again, timeout=timeout,
            job_id=job_id,
        ) as block:  # fmt: skip
            yield block

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Statements of this thread that read streams, as one consumption: every read of a stream sees the same range, and
        the offsets of those that DML read move once, at the end.

        Where one of its statements was committed and a later one fails, the offsets move all the same.

        Raises:
            InvalidStateError: the thread is in one.
        """
        if self.open_block is not None:
            raise InvalidStateError("This thread is in a transaction already.", "Transactions do not nest.")
        with self.block() as block:
            self._local.block = block
            try:
                yield
            finally:
                self._local.block = None

    def sql(self, statement: str) -> DataFrame:
        """Runs one SQL statement; streams, ``DIRECTORY(VOLUME v)`` and the home's tables are relations.

        DML that reads streams consumes them: their offsets move with its commit, exactly once.

        Raises:
            SqlError: the statement is wrong.
            StreamBusyError, StreamStaleError, StreamSchemaChangedError: a stream cannot be consumed or read.
        """
        from volstream.sql.run import run_statement

        return run_statement(self, statement)

    @property
    def spark(self) -> SparkSession:
        """This thread's Spark session. It knows the tables that were mentioned in SQL, and no streams."""
        return self.gateway.session()

    @property
    def read(self) -> DataFrameReader:
        """Reads files and other sources, as in PySpark."""
        return self.spark.read

    @property
    def udf(self) -> UDFRegistration:
        """Registers Python functions for this thread's SQL, as in PySpark."""
        return self.spark.udf

    def createDataFrame(self, data: Any, schema: Any = None, **options: Any) -> DataFrame:  # noqa: N802  # PySpark's name
        """A DataFrame of local data, as in PySpark."""
        return self.spark.createDataFrame(data, schema, **options)

    def changes(
        self,
        name: str,
        *,
        startingVersion: int,  # noqa: N803  # Spark's names, here and below
        endingVersion: int | None = None,  # noqa: N803
        deduplicationMode: str = "dropCarryovers",  # noqa: N803
        computeUpdates: bool = False,  # noqa: N803
    ) -> DataFrame:
        """The changes of a table in a range of versions, both ends included, as Spark's ``read.changes`` shows them.

        Args:
            name: of a table; its changes must have been tracked in the range.
            endingVersion: default: the newest.
            deduplicationMode: ``none``, ``dropCarryovers`` or ``netChanges``.
            computeUpdates: deletes and inserts of one row are shown as ``update_preimage`` and ``update_postimage``.

        Returns:
            The table's columns, ``_change_type``, ``_commit_version``, ``_commit_timestamp``.

        Raises:
            NotFoundError, InvalidValueError, InvalidStateError: no such table, versions or mode; not tracked.
            StreamSchemaChangedError: columns were dropped, renamed or retyped in the range.
        """
        from volstream.delta.writer import compile_if_large
        from volstream.spark.errors import as_sql_errors
        from volstream.sql import metastore
        from volstream.streams.changes import query

        compile_if_large(self.spark, metastore.locate(self, Name.parse(name)))
        text = query(
            self.catalog, self.warehouse, Name.parse(name), startingVersion, endingVersion, deduplicationMode,
            compute_updates=computeUpdates,
        )  # fmt: skip
        with as_sql_errors():
            return self.spark.sql(text)

    def table(self, name: str) -> DataFrame:
        """A table or stream of the home as a DataFrame. Reading moves no offset, nor does writing what was read: of a stream
        that warns."""
        from volstream.spark.frames import warning

        parsed = Name.parse(name)
        frame = self.sql(f"SELECT * FROM {parsed.qualified}")
        if self.catalog.streams.find(parsed) is None:
            return frame
        return warning(
            frame,
            f"Writing this frame does not consume the stream {parsed}: its rows come again. Write SQL (INSERT INTO t SELECT ... "
            f"FROM {parsed}), or consume the stream: with session.streams.get({str(parsed)!r}).consume() as batch.",
        )

    def close(self) -> None:
        """Closes the connections. The engine goes on, and ends when nobody used it for a while."""
        with Session._lock:
            if self in Session._opened:
                Session._opened.remove(self)
        if self._gateway is not None:
            self._gateway.close()
        self.catalog.close()
