"""Dynamic tables: Delta tables that a job keeps equal to a query. A run consumes the job's own streams on the
query's sources.

So Spark does nothing if nothing changed, and each change is applied once. If every row of the result comes
from one row of a single source, a run reads only the changed rows. Otherwise the query runs in full, over
exactly the versions being consumed, and the run writes only differing rows, so that the others keep their
identity. ``sql.incremental`` builds the statements. New columns of the sources (``SELECT *``) are added
first, by a separate commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from volstream.api.statements import metastore
from volstream.api.statements.bind import Binding
from volstream.api.statements.run import check_exists, consume, streams_of, target_of
from volstream.base.definitions import DynamicJob, SourceKind, StatementJob, StatementJobSpec, Stream, StreamSpec
from volstream.base.model.names import RESERVED_COLUMNS, Name, quote
from volstream.base.model.text import counted
from volstream.base.threads import Stop
from volstream.base.tracing import span
from volstream.changes.streams.sources import tracked
from volstream.errors import (
    FencedError,
    InvalidStateError,
    InvalidValueError,
    JobChangedError,
    SqlError,
    StreamSchemaChangedError,
)
from volstream.jobs.runs.lease import BatchStoppedError, JobWatch, Observer, RunReport, lease, resumable
from volstream.spark.errors import as_sql_errors, map_spark_errors
from volstream.spark.frames import Views
from volstream.spark.jvm.command import compile_in
from volstream.sql import incremental
from volstream.sql.names import Reference
from volstream.sql.statement import SparkStatement
from volstream.sql.text import literal, pairs, parquet_at, quote_column, table_at, type_of
from volstream.sql.tokens import Edit
from volstream.tables.delta import places
from volstream.tables.delta.commits import PROPERTIES as TRACKING
from volstream.tables.delta.opened import OpenTable, columns_at, schema_at
from volstream.tables.delta.ownership import OWNER, owner_of
from volstream.tables.delta.writer import with_retries

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import DataType, StructType

    from volstream.changes.streams.consume import Consumption
    from volstream.changes.streams.read import Range
    from volstream.home import Home


def check_query(home: Home, table: Name, query: str) -> None:
    """Raises SqlError if Spark rejects a query, or no dynamic table can have its columns."""
    with as_sql_errors(), home.gateway.fresh() as spark:
        _check_columns(spark, table, Binding(home, spark, None).bind(SparkStatement(query)).text)


def _check_columns(spark: SparkSession, table: Name, text: str) -> None:
    for column in spark.sql(f"SELECT * FROM ({text}\n)").schema:
        if column.name.lower() in RESERVED_COLUMNS:
            raise SqlError(f"The column name {column.name} is reserved for streams.", "Give it another one: AS name.")
        if _is_incomparable(column.dataType):
            raise SqlError(
                f"The column {column.name} of the dynamic table {table} has a MAP or a VARIANT, which cannot be compared.",
                f"Select to_json({column.name}), or map_entries({column.name}) for a MAP.",
            )


def make_table(home: Home, job: DynamicJob) -> None:
    """Creates the job's table with the columns of its query, without rows. Raises SqlError."""
    properties = {**TRACKING, "delta.enableDeletionVectors": "true", OWNER: job.id}
    location = places.table_location(home.warehouse, job.into)
    with as_sql_errors(), home.gateway.fresh() as spark:
        text = Binding(home, spark, None).bind(SparkStatement(job.query)).text
        _check_columns(spark, job.name, text)
        spark.sql(
            f"CREATE TABLE {job.into.qualified} USING DELTA LOCATION {literal(location)} TBLPROPERTIES ({pairs(properties)}) "
            f"AS SELECT * FROM ({text}\n) LIMIT 0"
        ).collect()


def _is_incomparable(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    if isinstance(kind, StructType):
        return any(_is_incomparable(field.dataType) for field in kind)
    return isinstance(kind, MapType | VariantType) or (isinstance(kind, ArrayType) and _is_incomparable(kind.elementType))


def drop_table(home: Home, name: Name) -> None:
    """Drops the table with its rows. Does nothing if it does not exist."""
    location = places.table_location(home.warehouse, name)
    with map_spark_errors(), home.gateway.fresh() as spark:
        if not metastore.is_taken(home, spark, name, location):
            spark.sql(f"DROP TABLE IF EXISTS {name.qualified}").collect()
    places.remove(location)


def refresh(home: Home, job: DynamicJob, watch: JobWatch) -> int:
    """Updates the table to its query's current result; returns the number of rows written, as far as known.

    Raises:
        SqlError: Spark rejects the query, or its result lacks columns of the table.
        StreamStaleError: a source was re-created, or its history was deleted.
        InvalidStateError: the table does not exist, or has expressions.
        JobChangedError: the job was dropped.
        FencedError, BatchStoppedError: as :meth:`JobWatch.check`.
    """
    location = places.table_location(home.warehouse, job.into)
    table = OpenTable.newest(location)
    if table is None or table.properties.get(OWNER) != job.id:
        raise InvalidStateError(
            f"The dynamic table {job.name} is missing or was replaced.", "Create it again: CREATE OR REPLACE DYNAMIC TABLE."
        )
    table.check_plain(job.into)
    streams = [stream for stream in map(home.catalog.streams.by_id, job.stream_ids) if stream is not None]
    with _telling_what_helps(job), as_sql_errors(), home.consumption(job=job) as consumption:
        consumption.take(*streams)
        reshaped = any(covered is not None and covered.reshaped for covered in map(consumption.pin, streams))
        sources = {(stream.source_kind, stream.source_name): stream for stream in streams}
        refreshing = _Refresh(home, job, consumption, sources, reshaped)
        if reshaped:
            with home.gateway.fresh() as spark:
                refreshing.add_columns(spark, location, list(columns_at(location)))

        def write(spark: SparkSession) -> None:
            with watch.over(spark):
                refreshing.run(spark, location, list(columns_at(location)))

        return consumption.write(location, write) or 0


@contextmanager
def _telling_what_helps(job: DynamicJob) -> Iterator[None]:
    """Adds what helps to the error of a query that its sources no longer fit."""
    from pyspark.errors import AnalysisException

    try:
        yield
    except SqlError as error:
        if error.remedy or not isinstance(error.__cause__, AnalysisException):
            raise
        what = f"The query of the dynamic table {job.name} does not fit its sources: {error.brief}"
        raise SqlError(what, _rebuilt(job)) from error


def _rebuilt(job: DynamicJob) -> str:
    return f"Rebuild it: CREATE OR REPLACE DYNAMIC TABLE {job.name} AS SELECT ..."


class _Refresh:
    """One refresh: reads the query's sources at the versions of a consumption.

    Args:
        reshaped: the columns of a source changed in its range, so that the query may yield other rows for
            unchanged ones. The name of a new column may have meant something else to the query, such as an
            expression beside it.
    """

    def __init__(
        self,
        home: Home,
        job: DynamicJob,
        consumption: Consumption,
        streams: Mapping[tuple[SourceKind, Name], Stream],
        reshaped: bool,
    ) -> None:
        self._home = home
        self._job = job
        self._consumption = consumption
        self._streams = streams
        self._reshaped = reshaped

    def add_columns(self, spark: SparkSession, location: str, columns: Sequence[str]) -> None:
        """Adds the columns of the query's result that the table at ``location`` lacks. Raises SqlError."""
        result = spark.sql(self._present(spark)).schema
        self._check(result.names, columns)
        existing = {name.lower() for name in columns}
        added = [field for field in result.fields if field.name.lower() not in existing]
        if added:
            listed = ", ".join(f"{quote_column(field.name)} {type_of(field.dataType.jsonValue())}" for field in added)
            spark.sql(f"ALTER TABLE {table_at(location)} ADD COLUMNS ({listed})").collect()

    def run(self, spark: SparkSession, location: str, columns: Sequence[str]) -> None:
        """Writes the table at ``location``. Raises SqlError if the query's result lacks some of its
        columns."""
        whole = self._present(spark)
        schema = spark.sql(whole).schema
        outputs = schema.names
        self._check(outputs, columns)
        self._check_types(schema, spark.sql(f"SELECT * FROM {table_at(location)}").schema)
        relation = incremental.relation(whole)
        read = {} if relation is None else {field.name: field.dataType.simpleString() for field in spark.table(relation).schema}
        positions = incremental.group_key(whole, read)
        grouped = {outputs[at].lower() for at in positions or ()}
        key = None if positions is None else [name for name in columns if name.lower() in grouped]
        result = incremental.ordered(whole, outputs, columns)
        if key is not None:
            difference = incremental.difference_by_key(location, result, columns, key)
        elif incremental.is_row_by_row(whole, read) and not self._reshaped:
            difference = self._changes(spark, outputs, columns) or incremental.difference(location, result, columns)
        else:
            difference = incremental.difference(location, result, columns)
        # Staged, because a MERGE reads its source more than once; without differences the MERGE is skipped.
        with places.staged(self._home.warehouse, "dynamic") as spilled:
            spark.sql(difference).write.parquet(spilled)
            if places.dataset(spilled).count_rows():
                changed = parquet_at(spilled)
                merge = (
                    incremental.merge_by_content(location, changed, columns)
                    if key is None
                    else incremental.merge_by_key(location, changed, columns, key)
                )
                with_retries(lambda: spark.sql(merge).collect())

    def _changes(self, spark: SparkSession, outputs: Sequence[str], columns: Sequence[str]) -> str | None:
        """Returns SQL for the table's missing and superfluous rows, computed from the changed rows only; None
        if these cannot be read, because the source's columns changed other than by addition."""

        def images(*, new: bool) -> str:
            text = self._over(spark, lambda covered: f"({covered.images(new=new)})")
            return incremental.ordered(text, outputs, columns)

        try:
            return incremental.changes(images(new=True), images(new=False), columns)
        except StreamSchemaChangedError:
            return None

    def _present(self, spark: SparkSession) -> str:
        """Returns the query over its sources' current rows."""
        return self._over(spark, lambda covered: covered.source.rows(covered.to_version))

    def _check(self, outputs: Sequence[str], columns: Sequence[str]) -> None:
        """Raises SqlError unless a result has each column of the table exactly once."""
        lowered = [name.lower() for name in outputs]
        missing = [name for name in columns if name.lower() not in lowered]
        twice = [name for name in outputs if lowered.count(name.lower()) > 1]
        if missing or twice:
            what = f"no longer has the column {missing[0]}" if missing else f"has the column {twice[0]} twice"
            raise SqlError(
                f"The result of the query of the dynamic table {self._job.name} {what}.",
                "Name its columns in the query: CREATE OR REPLACE DYNAMIC TABLE ... AS SELECT ...",
            )

    def _check_types(self, result: StructType, table: StructType) -> None:
        """Raises SqlError if a column of a result has another type than in the table, which could not hold
        its values."""
        types = {field.name.lower(): type_of(field.dataType.jsonValue()) for field in table.fields}
        for field in result.fields:
            returned, present = type_of(field.dataType.jsonValue()), types[field.name.lower()]
            if returned != present:
                raise SqlError(
                    f"The query of the dynamic table {self._job.name} now returns {field.name} {returned}, which was {present}.",
                    _rebuilt(self._job),
                )

    def _over(self, spark: SparkSession, rows: Callable[[Range], str]) -> str:
        """Returns the query with each relation replaced by what ``rows`` returns for it."""
        query, views, edits = SparkStatement(self._job.query), Views(spark), list[Edit]()
        for reference in query.references:
            covered = self._consumption.pin(self._streams[_key(reference)])
            if covered is None:  # a volume that was never listed
                view = views.show(self._home.reader.unlisted(spark))
            else:
                if covered.source.is_large:
                    compile_in(spark)
                columns = ", ".join(map(quote, covered.source.columns(covered.to_version)))
                view = views.of(f"SELECT {columns} FROM {rows(covered)}")
            alias = f" AS {quote(reference.name.name)}" if reference.takes_alias else ""
            edits.append((reference.start, reference.end, f"{view}{alias}"))
        return Binding(self._home, spark, None).bind(query.replaced(edits)).text


def stream_specs(home: Home, name: Name, query: str) -> Sequence[StreamSpec]:
    """Returns a stream for each table and volume that the query reads. Raises SqlError."""
    statement = SparkStatement(query)
    if statement.words[:1] not in (["SELECT"], ["WITH"], ["FROM"], ["("]) or statement.writes:
        raise SqlError(f"The dynamic table {name} needs a query.", "CREATE DYNAMIC TABLE t AS SELECT ... FROM ...")
    sources = dict.fromkeys(_key(reference) for reference in statement.references)
    if not sources:
        raise SqlError(f"The query of the dynamic table {name} reads no table or volume.")
    streams = []
    for number, (kind, source) in enumerate(sources, 1):
        if kind is SourceKind.TABLE and home.catalog.streams.find(source) is not None:
            raise SqlError(f"{source} is a stream, which a dynamic table cannot consume.", "Select from its source.")
        if source == name:
            raise SqlError(f"The dynamic table {name} would read itself.")
        if kind is SourceKind.TABLE:
            _track(home, metastore.locate(home, source))
        own = Name(name.schema, f"{name.name}_stream" + (f"_{number}" if number > 1 else ""))
        volume, table = (source, None) if kind is SourceKind.VOLUME else (None, source)
        streams.append(StreamSpec(name=own, volume=volume, table=table, show_initial_rows=True))
    return streams


def _track(home: Home, location: str) -> None:
    """Makes a table that a job of this home keeps track its changes."""
    schema = schema_at(location)
    if schema is None or tracked(schema) or owner_of(home.catalog, location) is None:
        return
    with map_spark_errors(), home.gateway.pooled() as spark:
        spark.sql(f"ALTER TABLE {table_at(location)} SET TBLPROPERTIES ({pairs(TRACKING)})").collect()


def _key(reference: Reference) -> tuple[SourceKind, Name]:
    if reference.files is not None:
        raise SqlError("A dynamic table cannot read files.", f"Load the volume {reference.name} into a table, and read that.")
    return SourceKind.VOLUME if reference.directory else SourceKind.TABLE, reference.name


# Jobs whose runs consume streams with a SQL statement: validation and runner.

_DML = ("INSERT", "MERGE", "UPDATE", "DELETE", "WITH", "FROM")


def spec_of_statement(home: Home, name: Name, statement: str, stream: Name | None, **options: Any) -> StatementJobSpec:
    """Returns the spec of a job that runs ``statement``. Without Spark: the first run checks the statement
    fully.

    Args:
        stream: the stream under which the job is listed; None: the first that the statement reads.
        options: of any job.

    Raises:
        SqlError: the statement is not DML that reads a stream and writes to an existing Delta table.
        InvalidValueError: the statement does not read ``stream``, or each run would trigger the next.
    """
    dml = SparkStatement(statement)
    if dml.words[:1] not in [[word] for word in _DML] or not dml.writes:
        raise SqlError(f"The statement of job {name} writes nothing.", "It can be INSERT, MERGE, UPDATE or DELETE.")
    target, location = target_of(home, dml)
    check_exists(home, target, location)
    streams = streams_of(home, dml)
    if not streams:
        raise SqlError(f"The statement of job {name} reads no stream.", "A run consumes a stream, so select from one.")
    if stream is not None and stream not in [read.name for read in streams]:
        raise InvalidValueError(f"The statement of job {name} does not read the stream {stream}.", "Leave ON STREAM out.")
    fed = [read for read in streams if read.source_kind is SourceKind.TABLE and read.source_name == target]
    if options.get("on_change") and fed:
        raise InvalidValueError(
            f"The job {name} would run forever: it writes {target}, which is the source of its stream {fed[0].name}.",
            "Let it write another table, or run on a schedule.",
        )
    first, *others = sorted((read.name for read in streams), key=lambda read: read != (stream or streams[0].name))
    return StatementJobSpec(name=name, into=target, statement=statement, streams=[first, *others], **options)


class StatementRunner:
    """Runs a job of a statement or a query; a :class:`~volstream.jobs.runs.lease.Runner`."""

    def __init__(self, home: Home, job: StatementJob | DynamicJob) -> None:
        self._home = home
        self._job = job

    def run(
        self, *, until_empty: bool = False, stop: Stop | None = None, observe: Observer | None = None, owner: str | None = None
    ) -> RunReport:
        """Runs the statement if one of its streams has data. See :class:`~volstream.jobs.runs.lease.Runner`.

        Raises:
            SqlError: Spark rejects the statement; the offsets stay.
        """
        stopped, report, name = Stop() if stop is None else stop, RunReport(), self._job.name
        if self._home.open_consumption is not None:
            raise InvalidStateError(f"The job {name} cannot run inside a transaction.", "Run it before, or after.")
        with lease(self._home.catalog, self._job, self._home.settings.lease_seconds, owner) as lead:
            watch = JobWatch(self._home.catalog, lead.job, stopped, self._home.settings.batch_seconds)
            with resumable(stopped), suppress(BatchStoppedError):
                report.recovered = self._recover()
                while not stopped and self._is_any_to_read():
                    with span("batch", job=str(name)) as current:
                        rows = self._write(lead.job, watch)
                        current.set(rows=rows)
                    report.progress.rows += rows
                    report.progress.batches += 1
                    if observe is not None:
                        observe(report.progress)
                    if not until_empty:
                        break
                    watch.check()
                    if watch.paused:
                        break
            report.paused = watch.paused
            done = counted(report.progress.rows, "row") if report.progress.batches else None
            lead.summary = done if report.paused is None else f"paused: {report.paused}"
        return report

    def has_work(self) -> bool:
        """See :class:`~volstream.jobs.runs.lease.Runner`."""
        consumptions = self._home.catalog.consumptions
        return any(
            self._home.reader.has_data(stream) or consumptions.open_plan(stream.id) is not None for stream in self._streams()
        )

    def _write(self, job: StatementJob | DynamicJob, watch: JobWatch) -> int:
        try:
            if isinstance(job, DynamicJob):
                return refresh(self._home, job, watch)
            return consume(self._home, SparkStatement(job.statement), watch)
        except JobChangedError as error:  # dropped or replaced: nothing else changes what it does
            raise FencedError(error.message) from error

    def _recover(self) -> bool:
        """Settles what an earlier run left open, before checking for work."""
        consumptions = self._home.catalog.consumptions
        unfinished = [stream for stream in self._streams() if consumptions.open_plan(stream.id) is not None]
        if unfinished:
            with self._home.consumption() as consumption:
                for stream in unfinished:
                    consumption.free(stream)
        return bool(unfinished)

    def _is_any_to_read(self) -> bool:
        """True if a stream has more than commits without data; advances past those here, without Spark."""
        unread = [stream for stream in self._streams() if self._is_to_read(stream)]
        return bool(unread)

    def _is_to_read(self, stream: Stream) -> bool:
        reader = self._home.reader
        covered = reader.pin_news(stream)
        if covered is None or covered.empty:
            return False
        follows = isinstance(self._job, DynamicJob) and covered.reshaped  # the table may get these columns
        if reader.only_upkeep(covered) and not follows:
            self._home.catalog.consumptions.advance(stream, covered.to_version, covered.table_id)
            return False
        return True

    def _streams(self) -> list[Stream]:
        streams = map(self._home.catalog.streams.by_id, self._job.stream_ids)
        return [stream for stream in streams if stream is not None]
