"""The Python API: a :class:`Session` opens a home, and gives access to its objects and its SQL."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, Unpack

from volstream.api.objects.all import Objects
from volstream.api.objects.collections import Tables
from volstream.base import config
from volstream.base.config import Settings
from volstream.base.definitions import NO_SCHEDULE, FileJobSpec
from volstream.base.definitions.job import JOB_ARGUMENTS, LOAD_OPTIONS, name_of_load
from volstream.base.definitions.options import to_create
from volstream.base.model.arguments import brief, checked, takes
from volstream.base.model.names import Name, quote
from volstream.base.model.units import in_utc
from volstream.base.threads import Closeable
from volstream.errors import InvalidValueError, NotFoundError
from volstream.functions.source import check_not_imported
from volstream.home import Home
from volstream.ops.openlineage import emitter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.readwriter import DataFrameReader
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.connect.udf import UDFRegistration

    from volstream.api.pipelines.definitions import PipelinePlan
    from volstream.base.definitions.keywords import JobKeywords, LoadKeywords
    from volstream.spark.session import SparkGateway


def _bound(home: Home, which: str, version: int | None, moment: datetime | str | None) -> int | datetime | None:
    """Returns an end of a range. Raises InvalidValueError if it is given twice, or is not a valid time."""
    if moment is None:
        return version
    if version is not None:
        raise InvalidValueError(f"{which}Version and {which}Timestamp are mutually exclusive.", "Give one of them.")
    return home.moment(moment) if isinstance(moment, str) else in_utc(moment)


def no_home(settings: Settings) -> NotFoundError:
    """Returns the error for a folder without a home."""
    return NotFoundError(f"There is no volstream home at {settings.home}.", "Create one: volstream init, or create=True.")


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@checked
class SettingsCollector:
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


class Builder(SettingsCollector):
    """Makes a :class:`Session` from the settings that it collects."""

    def create(self) -> Session:
        """Returns a new session. Raises InvalidValueError for invalid settings."""
        return Session(config.load(**self._values))

    def getOrCreate(self) -> Session:  # noqa: N802  # PySpark's name
        """Returns the open session with these settings, or a new one."""
        check_not_imported()
        settings = config.load(**self._values)
        with Session._lock:
            for session in Session._opened:
                if session.home.settings == settings:
                    return session
        return Session(settings)


class _BuilderAttribute:
    """Returns a new builder at each access of ``Session.builder``, as in PySpark."""

    def __get__(self, instance: object, owner: type) -> Builder:
        return Builder()


@checked
class Session(Objects, Closeable):
    """A home, opened for Python. Spark starts on first use. The catalog and the logs work without it.

    Thread-safe. A context manager: it closes its connections, and the engine keeps running.

    Attributes:
        home: settings, catalog and connection to Spark.
        connections, volumes, streams, jobs, functions, dynamic_tables, batches: the home's objects.
        environments: separate packages of functions, built for jobs.
        tables: the home's tables, for reading.
        source: tables of events and keyed tables, which are filled through the session.
        connector: tables of external data.

    Args:
        settings: of the home, or its folder. By default, as :func:`volstream.base.config.load` finds it.
        connect: connects to Spark, and again when the connection is lost. By default, to the home's engine.
        create: create the home if the folder has none.

    Raises:
        NotFoundError: the folder has no home.
        FunctionLoadError: the file that opens it is being imported for a job's function.
    """

    builder = _BuilderAttribute()
    _lock = threading.Lock()
    _opened: list[Session] = []  # noqa: RUF012  # the open sessions of this process, for getOrCreate

    @brief
    def __init__(
        self,
        settings: Settings | str | os.PathLike[str] | None = None,
        connect: Callable[[], SparkGateway] | None = None,
        *,
        create: bool = False,
    ) -> None:
        check_not_imported()
        loaded = settings if isinstance(settings, Settings) else config.load(settings)
        if not (create or settings is None or isinstance(settings, Settings) or loaded.is_made):
            raise no_home(loaded)
        super().__init__(Home(loaded, connect))
        self.tables = Tables(self.home, self.sql)
        for collection in self.by_kind.values():
            collection.query = self.sql
        self._lineage = emitter.start(self.home)
        with Session._lock:
            Session._opened.append(self)

    def __repr__(self) -> str:
        return f"<session of {self.home.settings.home}>"

    def transaction(self) -> AbstractContextManager[None]:
        """Makes this thread's statements inside the ``with`` block one consumption.

        Every read of a stream sees the same range, and the offsets of the streams that DML reads move once,
        at the end. If one statement was committed and a later one fails, the offsets still move.

        Raises:
            InvalidStateError: this thread is already in a transaction.
        """
        return self.home.transaction()

    def sql(self, statement: str, args: Sequence[Any] | Mapping[str, Any] | None = None) -> DataFrame:
        """Runs one SQL statement. Streams, ``DIRECTORY(VOLUME v)`` and the home's tables are relations.

        DML that reads streams consumes them: their offsets move with its commit, exactly once.

        Args:
            args: values for placeholders: a sequence for ``?`` or ``%s``, a dict for ``:name`` or
                ``%(name)s``.

        Raises:
            SqlError: the statement is invalid.
            InvalidValueError: a value cannot be a parameter.
            StreamBusyError, StreamStaleError, StreamSchemaChangedError: a stream cannot be consumed or read.
        """
        from volstream.api.objects.sql import run_statement
        from volstream.sql.adapt import with_parameters

        return run_statement(self, statement if args is None else with_parameters(statement, args))

    @property
    def spark(self) -> SparkSession:
        """This thread's Spark session. It knows only tables that SQL has mentioned, and no streams."""
        return self.home.spark

    @property
    def read(self) -> DataFrameReader:
        """Reads files and other sources, as in PySpark."""
        return self.spark.read

    @property
    def udf(self) -> UDFRegistration:
        """Registers Python functions for this thread's SQL, as in PySpark."""
        return self.spark.udf

    def createDataFrame(self, data: Any, schema: Any = None, **options: Any) -> DataFrame:  # noqa: N802  # PySpark's name
        """Returns a DataFrame of local data, as in PySpark."""
        return self.spark.createDataFrame(data, schema, **options)

    def changes(
        self,
        name: str,
        *,
        startingVersion: int | None = None,  # noqa: N803  # Spark's names, here and below
        endingVersion: int | None = None,  # noqa: N803
        startingTimestamp: datetime | str | None = None,  # noqa: N803
        endingTimestamp: datetime | str | None = None,  # noqa: N803
        deduplicationMode: str = "dropCarryovers",  # noqa: N803
        computeUpdates: bool = False,  # noqa: N803
        identity: Sequence[str] = (),
    ) -> DataFrame:
        """Returns the changes of a table, or of a volume's directory, in a range of versions or times, like
        Spark's ``read.changes``.

        Both ends are included.

        Args:
            name: the table's, whose changes must have been tracked in the range, or the volume's.
            startingVersion, startingTimestamp: one of them. A time without a zone is local.
            endingVersion, endingTimestamp: the newest version by default.
            deduplicationMode: ``none``, ``dropCarryovers`` or ``netChanges``.
            computeUpdates: deletes and inserts of one row are shown as ``update_preimage`` and
                ``update_postimage``.
            identity: columns that identify a row, so that a delete and an insert of the same values are an
                update. By default, Delta's row ids identify rows.

        Returns:
            The table's columns, ``_change_type``, ``_commit_version``, ``_commit_timestamp``.

        Raises:
            NotFoundError, InvalidValueError, InvalidStateError: no such table, versions or mode; or not
                tracked.
            StreamSchemaChangedError: columns were dropped, or got another type, in the range.
        """
        from volstream.api.statements import metastore
        from volstream.changes.streams.read import query
        from volstream.spark.errors import as_sql_errors
        from volstream.tables.delta.places import is_table
        from volstream.tables.delta.writer import compile_if_large

        first, last = (
            _bound(self.home, "starting", startingVersion, startingTimestamp),
            _bound(self.home, "ending", endingVersion, endingTimestamp),
        )
        if first is None:
            raise InvalidValueError(f"The changes of {name} need a start.", "Give startingVersion or startingTimestamp.")
        parsed = Name.parse(name)
        location = metastore.locate(self.home, parsed)
        of_volume = not is_table(location) and self.home.catalog.volumes.find(parsed) is not None
        if not of_volume:
            compile_if_large(self.spark, location)
        text = query(
            self.home.catalog,
            self.home.warehouse,
            parsed,
            first,
            last,
            deduplicationMode,
            compute_updates=computeUpdates,
            identity=identity,
            directory=of_volume,
        )
        with as_sql_errors():
            return self.spark.sql(text)

    @takes(to_create(FileJobSpec, *JOB_ARGUMENTS))
    def run(
        self,
        function: str | Callable[..., Any],
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        into: str,
        *,
        pattern: str | None = None,
        schema: str | None = None,
        replace: bool = False,
        **options: Unpack[JobKeywords],
    ) -> DataFrame:
        """Runs a function on each file of a directory or bucket, and returns its results.

        Another call processes only changes: new, changed and removed files. Creates a volume of the files,
        and a job with the table's name, and keeps them: ``volstream run-job`` and a daemon continue from
        there. If the code changed, new files are processed with it and rows of other files stay, as with
        ``run-job``. Failed files are retried. Progress is reported on standard error.

        Args:
            function: ``file.py:func``, ``pkg.mod:func`` or the function itself, also one of a notebook.
            files: a directory, or a URI such as ``s3://bucket/prefix``; or a file, a glob such as
                ``photos/*.jpg``, or a list of files, whose folder is the volume.
            into: the table.
            pattern: a glob that selects files, as for volumes: ``*.jpg`` in any folder, ``2026/**/*.jpg``.
            schema: columns that the function returns; the option ``returns``.
            replace: let the call change a job that it did not create, or fill a table that no job created.
            options: those of :class:`~volstream.base.definitions.FileJobSpec`. An omitted option gets its
                default again.

        Returns:
            ``_file_path``, or ``_group_key`` of sets, and the function's columns, of all files. A notebook
            shows the rows. For the other columns of the table: :meth:`table`.

        Raises:
            InvalidStateError: another job has the name, or the call would change objects that no call
                created, without ``replace``. As :meth:`~volstream.api.objects.jobs.Jobs.create` and
                :meth:`~volstream.api.objects.jobs.Jobs.run`.
        """
        from volstream.api.objects.run import run
        from volstream.functions.schema import key_column, of_job
        from volstream.spark.frames import show_in_notebooks

        job_options = options if schema is None else {**options, "returns": schema}
        job = run(self, function, files, into, job_options, _tell, pattern, replace)
        show_in_notebooks(self.spark)
        return self.table(into).select(key_column(job), *map(quote, of_job(job).names))

    @takes(LOAD_OPTIONS)
    def create_table_from_volume(self, name: str, volume: str, **options: Unpack[LoadKeywords]) -> DataFrame:
        """Loads a volume's files as rows of a table, and returns the table.

        Creates the job ``load_<name>``, which runs once now and, under the daemon, whenever files change.
        Files that cannot be loaded are failures of the job.

        Args:
            name: the table's.
            options: see :meth:`~volstream.api.objects.jobs.Jobs.load`.

        Raises:
            As :meth:`~volstream.api.objects.jobs.Jobs.load` and :meth:`~volstream.api.objects.jobs.Jobs.run`.
        """
        job = name_of_load(name)
        self.jobs.load(job, volume, name, **({"on_change": True} | options if not {*NO_SCHEDULE} & options.keys() else options))
        self.jobs.run(job)
        return self.table(name)

    def table(self, name: str) -> DataFrame:
        """Returns a table or stream of the home as a DataFrame. Reading it does not move offsets.

        Writing the rows of a stream does not move them either, and warns.
        """
        from volstream.spark.frames import warning

        parsed = Name.parse(name)
        frame = self.sql(f"SELECT * FROM {parsed.qualified}")
        if self.home.catalog.streams.find(parsed) is None:
            return frame
        return warning(
            frame,
            f"Writing this DataFrame does not consume the stream {parsed}: its rows will be delivered again. "
            f"Write SQL (INSERT INTO t SELECT ... FROM {parsed}), or consume the stream: "
            f"with session.streams.get({str(parsed)!r}).consume() as batch.",
        )

    def apply(self, path: str | os.PathLike[str], profile: str | None = None, *, prune: bool = False) -> PipelinePlan:
        """Makes the home match a pipeline's file, or the files of a folder. Applying them again changes
        nothing.

        Args:
            profile: the profile whose variables apply.
            prune: drop objects that the files lack. Tables and sources stay.

        Returns:
            The changes, in order.

        Raises:
            InvalidValueError, NotFoundError, FunctionLoadError, SqlError: the files are invalid. Nothing was
                changed.
            InvalidStateError: an object has an option that cannot be altered. Nothing was changed.
            VolstreamError: an operation failed. The message lists the operations carried out before.
        """
        from pathlib import Path

        from volstream.api.pipelines.apply import apply

        return apply(self, Path(path), profile, prune=prune)

    def close(self) -> None:
        """Closes the connections. The engine keeps running, and ends after being idle for a while."""
        with Session._lock:
            if self in Session._opened:
                Session._opened.remove(self)
        self.source.close()
        if self._lineage is not None:
            self._lineage.close()
        self.home.close()


@checked
@takes(to_create(FileJobSpec, *JOB_ARGUMENTS))
def run(
    function: str | Callable[..., Any],
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    into: str,
    *,
    pattern: str | None = None,
    schema: str | None = None,
    replace: bool = False,
    **options: Unpack[JobKeywords],
) -> DataFrame:
    """Runs a function on each file of a directory or bucket, and returns its results; see
    :meth:`Session.run`.

    The home is that of the commands: ``VOLSTREAM_HOME`` or, by default, the user's own.
    """
    session = Session.builder.getOrCreate()
    return session.run(function, files, into, pattern=pattern, schema=schema, replace=replace, **options)
