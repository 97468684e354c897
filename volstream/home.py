"""An open home: its settings, its catalog and its connection to Spark. Everything below the API takes a home, or less."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from volstream.base.config import Settings
from volstream.base.model.units import in_utc
from volstream.base.threads import Closeable
from volstream.catalog import Catalog
from volstream.errors import EngineEndedError, EngineError, InvalidStateError, InvalidValueError
from volstream.sql.text import literal
from volstream.tables.delta.warehouse import register_options, warehouse_belongs_to

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from volstream.base.definitions import Job
    from volstream.changes.streams.consume import Consumer, Consumption
    from volstream.changes.streams.read import StreamReader
    from volstream.spark.session import SparkGateway
    from volstream.tables.delta.writer import DeltaWriter

T = TypeVar("T")


class Home(Closeable):
    """An open home. Thread-safe. A context manager: it closes its connections; the engine keeps running.

    The catalog and the logs work without Spark, which is connected to at its first use.

    Args:
        connect: connects to Spark, and again when the connection is lost; None: to the home's engine.
    """

    def __init__(self, settings: Settings, connect: Callable[[], SparkGateway] | None = None) -> None:
        self.settings = settings
        register_options(settings.warehouse_path, settings.warehouse_storage)
        self._catalog, self._closed = Catalog(settings.database_url), False
        warehouse_belongs_to(self.warehouse, self._catalog.identity, str(settings.home), self._catalog.links.list)
        self._connect = connect or self._to_engine
        self._gateway: SparkGateway | None = None
        self._connecting = threading.Lock()
        self._local = threading.local()
        #: Names of temporary views that read streams.
        self.stream_views: set[str] = set()
        #: Names of variables that statements have declared, in lower case.
        self.variables: set[str] = set()
        #: The daemon's :class:`volstream.jobs.batches.residents.Residents`, if this is its home.
        self.residents: Any = None

    @property
    def catalog(self) -> Catalog:
        """Its catalog. Raises InvalidStateError after :meth:`close`."""
        self.check_open()
        return self._catalog

    def check_open(self) -> None:
        """Raises InvalidStateError after :meth:`close`."""
        if self._closed:
            raise InvalidStateError("The session is closed.", "Open another one.")

    @property
    def warehouse(self) -> str:
        """The folder or URI of all Delta tables."""
        return self.settings.warehouse_path

    @property
    def zone(self) -> ZoneInfo:
        """The time zone of cron expressions. Raises InvalidValueError."""
        try:
            return ZoneInfo(self.settings.time_zone)
        except (ZoneInfoNotFoundError, ValueError):
            raise InvalidValueError(
                f"{self.settings.time_zone!r} is not a time zone.", "Write, for example, Europe/Berlin."
            ) from None

    @property
    def gateway(self) -> SparkGateway:
        """The connection to Spark. Its first session attaches to the home's engine, or starts one; that raises EngineError."""
        self.check_open()
        with self._connecting:
            if self._gateway is None or self._gateway.lost is not None:
                self._gateway = self._connect()
            return self._gateway

    @property
    def connected_gateway(self) -> SparkGateway:
        """The connection to Spark if there is one. Raises EngineError otherwise: it starts no engine."""
        if self._gateway is None:
            raise EngineError("Spark is not connected.")
        return self.gateway

    @property
    def spark(self) -> SparkSession:
        """This thread's Spark session for statements. It knows only tables that SQL has mentioned, and no streams. Raises
        EngineError."""
        return self.gateway.statements()

    def moment(self, text: str) -> datetime:
        """Parses a time as this thread's statements do: without a zone it is local, or in the zone that they have set.

        Raises:
            InvalidValueError: it is no time, or is outside of the years 1 to 9999 in UTC.
        """
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise InvalidValueError(f"{text!r} is not a time.", "Write for example '2026-03-01 12:00:00'.") from None
        zone = self._gateway.zone() if moment.tzinfo is None and self._gateway is not None else None
        return in_utc(moment) if zone is None else self.evaluated_moment(literal(text))

    def evaluated_moment(self, expression: str, session: SparkSession | None = None) -> datetime:
        """Returns the value of a SQL expression as a time, in a session or this thread's. Raises as :meth:`moment`."""
        query = f"SELECT unix_micros(CAST(({expression}) AS TIMESTAMP)) AS moment"
        micros = (session or self.spark).sql(query).collect()[0]["moment"]
        if micros is None:
            raise InvalidValueError(f"{expression} is not a time.", "Write for example '2026-03-01 12:00:00'.")
        try:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
        except OverflowError:
            raise InvalidValueError(f"{expression} is not within the years 1 to 9999 of UTC.") from None

    def take_over_session(self, job: str) -> None:
        """Makes this thread's Spark session the one that the last command which ran this job left, and leaves it to the next.

        Call before the session is used, in a process that runs only this job.
        """
        from volstream.spark.jvm.command import Files

        name = hashlib.sha256(job.lower().encode()).hexdigest()
        self.gateway.take_over(Files.of(self.settings).scratch / "sessions" / name)

    @property
    def reader(self) -> StreamReader:
        """The reader of streams."""
        from volstream.changes.streams.read import StreamReader

        return StreamReader(self.catalog, self.warehouse)

    @property
    def delta(self) -> DeltaWriter:
        """The writer of Delta tables by Spark."""
        from volstream.tables.delta.writer import DeltaWriter

        return DeltaWriter(self.gateway)

    @property
    def consumer(self) -> Consumer:
        """What runs and recovers the commits of consumptions."""
        from volstream.changes.streams.consume import Consumer

        return Consumer(self.catalog, self.delta)

    @property
    def open_consumption(self) -> Consumption | None:
        """This thread's transaction, or None."""
        return getattr(self._local, "consumption", None)

    def unless_yielded(self, work: Callable[[], T]) -> T:
        """Returns the result of ``work``; repeats it once if a starting daemon took over the engine meanwhile.

        Args:
            work: reads only, or continues what an earlier call began.
        """
        try:
            return work()
        except EngineEndedError:
            if self._gateway is None or self.open_consumption is not None:
                raise
            self._gateway.close()
        return work()

    @contextmanager
    def consumption(self, *, again: bool = False, timeout: float = 0.0, job: Job | None = None) -> Iterator[Consumption]:
        """Opens a consumption of streams: this thread's transaction, or a separate one.

        Args:
            again, timeout, job: see :class:`~volstream.changes.streams.consume.Consumption`.
        """
        from volstream.changes.streams.consume import Consumption

        if self.open_consumption is not None:
            yield self.open_consumption
            return
        with Consumption(
            self.catalog,
            self.reader,
            self.consumer,
            lease_seconds=self.settings.lease_seconds,
            again=again,
            timeout=timeout,
            job=job,
        ) as consumption:
            yield consumption

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Makes this thread's statements one consumption. Raises InvalidStateError if one is open: they do not nest."""
        if self.open_consumption is not None:
            raise InvalidStateError("This thread is already in a transaction.", "Transactions do not nest.")
        with self.consumption() as consumption:
            self._local.consumption = consumption
            try:
                yield
            finally:
                self._local.consumption = None

    def close(self) -> None:
        """Closes the connections. The engine keeps running, and ends after being idle for a while."""
        if self._gateway is not None:
            self._gateway.close()
        self._closed = True
        self._catalog.close()

    def _to_engine(self) -> SparkGateway:
        from volstream.spark.engine.client import attach
        from volstream.spark.session import SparkGateway

        return SparkGateway(lambda: attach(self.settings), stall_seconds=self.settings.engine_stall_seconds)
