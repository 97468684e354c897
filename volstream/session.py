"""The composition root, and the Python surface: a :class:`Session` opens a home and gives access to everything in it.

It builds the parts and hands them out. What a part does is the domain's; how it is shown is the surface's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from volstream import config
from volstream.catalog import Catalog
from volstream.config import Settings
from volstream.errors import InvalidValueError
from volstream.model.names import Name
from volstream.objects import Batches, Connections, Jobs, Streams, Volumes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from volstream.jobs.run import JobRunner
    from volstream.spark.session import SparkGateway
    from volstream.streams.read import StreamReader


class Builder:
    """Collects settings for a :class:`Session`."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def config(self, key: str, value: Any) -> Builder:
        """Sets one setting; ``home`` is the folder."""
        self._values[key] = value
        return self

    def configs(self, values: Mapping[str, Any]) -> Builder:
        """Sets several settings."""
        self._values |= values
        return self

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
    """A home, opened. Connecting to Spark happens at the first use of it; the catalog answers without.

    Safe for threads. A context manager: it closes what it opened; the engine goes on.
    """

    builder = _BuilderAttribute()
    _lock = threading.Lock()
    _opened: list[Session] = []  # noqa: RUF012  # the open sessions of this process, for getOrCreate

    def __init__(self, settings: Settings, gateway: SparkGateway | None = None) -> None:
        self.settings = settings
        self.catalog = Catalog(settings.database_url)
        self.connections = Connections(self)
        self.volumes = Volumes(self)
        self.streams = Streams(self)
        self.jobs = Jobs(self)
        self.batches = Batches(self)
        self._gateway = gateway
        self._attaching = threading.Lock()
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
        """The connection to the home's engine, which is started where none runs. Raises EngineError."""
        from volstream.engine.attach import attach
        from volstream.spark.session import SparkGateway

        with self._attaching:
            if self._gateway is None or self._gateway.lost is not None:
                self._gateway = SparkGateway(attach(self.settings), stall_seconds=self.settings.engine_stall_seconds)
            return self._gateway

    @property
    def runner(self) -> JobRunner:
        """Runs jobs on the engine."""
        from volstream.jobs.run import JobRunner

        return JobRunner(self.catalog, self.gateway, self.settings)

    @property
    def reader(self) -> StreamReader:
        """Reads streams."""
        from volstream.streams.read import StreamReader

        return StreamReader(self.catalog, self.warehouse)

    def sql(self, statement: str) -> DataFrame:
        """Runs one SQL statement; streams, ``DIRECTORY(VOLUME v)`` and the home's tables are relations.

        Raises:
            SqlError: the statement is wrong, or would consume a stream.
        """
        from volstream.sql.run import run_statement

        return run_statement(self, statement)

    def table(self, name: str) -> DataFrame:
        """A table or stream of the home as a DataFrame. Reading moves no offset."""
        return self.sql(f"SELECT * FROM {Name.parse(name).qualified}")

    def close(self) -> None:
        """Closes the connections. The engine goes on, and ends when nobody used it for a while."""
        with Session._lock:
            if self in Session._opened:
                Session._opened.remove(self)
        if self._gateway is not None:
            self._gateway.close()
        self.catalog.close()
