"""Dynamic tables: Delta tables that a job keeps equal to a query. A run consumes the job's own streams on the query's sources.

Thus Spark does nothing if nothing changed, and each change is applied once. If every row of the result comes from one row of
a single source, only the changed rows are read. Otherwise the query runs in full, over exactly the versions being consumed,
and only differing rows are written, so that the others keep their identity. The statements are built by
``sql.incremental``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from volstream.delta import folders
from volstream.delta.log import DeltaLog
from volstream.delta.marker import OWNER
from volstream.delta.tracking import PROPERTIES as TRACKING
from volstream.delta.writer import with_retries
from volstream.errors import InvalidStateError, SqlError
from volstream.jvm.codegen import compile_in
from volstream.model.names import Name, quote
from volstream.model.objects import DynamicJob, SourceKind, Stream, StreamSpec
from volstream.spark.errors import as_sql_errors, map_spark_errors
from volstream.spark.views import Views
from volstream.sql import incremental, names
from volstream.sqltext import literal, pairs, parquet_at
from volstream.statements import metastore
from volstream.statements.bind import Binding

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from volstream.home import Home
    from volstream.streams.block import Block
    from volstream.streams.read import Range


def make_table(home: Home, job: DynamicJob) -> None:
    """Creates the job's table with the columns of its query, without rows. Raises SqlError."""
    properties = {**TRACKING, "delta.enableDeletionVectors": "true", OWNER: job.id}
    location = folders.table_location(home.warehouse, job.into)
    with as_sql_errors(), home.gateway.fresh() as spark:
        text = Binding(home, spark, None).bind(job.query)
        spark.sql(
            f"CREATE TABLE {job.into.qualified} USING DELTA LOCATION {literal(location)} TBLPROPERTIES ({pairs(properties)}) "
            f"AS SELECT * FROM ({text}) LIMIT 0"
        ).collect()


def drop_table(home: Home, name: Name) -> None:
    """Drops the table with its rows. Does nothing if it does not exist."""
    with map_spark_errors(), home.gateway.fresh() as spark:
        spark.sql(f"DROP TABLE IF EXISTS {name.qualified}").collect()
    folders.remove(folders.table_location(home.warehouse, name))


def refresh(home: Home, job: DynamicJob) -> int:
    """Brings the table in line with its query's current result; returns the number of rows written, as far as known.

    Raises:
        SqlError: Spark rejects the query.
        StreamStaleError: a source was re-created, or its history is gone.
        InvalidStateError: the table is gone, or has expressions.
    """
    location = folders.table_location(home.warehouse, job.into)
    log = DeltaLog(location)
    if log.properties().get(OWNER) != job.id:
        raise InvalidStateError(
            f"The dynamic table {job.name} is missing or was replaced.",
            "Create it again: CREATE OR REPLACE DYNAMIC TABLE.",
        )
    log.check_plain(job.into)
    streams = [one for one in map(home.catalog.streams.by_id, job.stream_ids) if one is not None]
    with as_sql_errors(), home.block(job_id=job.id) as block:
        block.take(*streams)
        refreshing = _Refresh(home, job, block, {(one.source_kind, one.source_name): one for one in streams})
        return block.write(location, lambda spark: refreshing.run(spark, location, list(log.columns()))) or 0


class _Refresh:
    """One refresh: the query's sources at the versions of a consumption."""

    def __init__(
        self, home: Home, job: DynamicJob, block: Block, streams: Mapping[tuple[SourceKind, Name], Stream]
    ) -> None:
        self._home = home
        self._query = job.query
        self._block = block
        self._streams = streams

    def run(self, spark: SparkSession, location: str, columns: Sequence[str]) -> None:
        """Writes the table at ``location``."""

        def present(covered: Range) -> str:
            if covered.source.is_large:
                compile_in(spark)
            return covered.source.rows(covered.to_version)

        whole = self._over(spark, present)
        key = incremental.group_key(whole)
        if key is not None:
            difference = incremental.difference_by_key(location, whole, columns, key)
        else:
            difference = self._difference(spark, location, whole, columns)
        # Staged, because a MERGE reads its source more than once, and without differences there is nothing to merge.
        spilled = f"{self._home.warehouse}/_staging/dynamic-{uuid.uuid4().hex}"
        try:
            spark.sql(difference).write.parquet(spilled)
            if folders.dataset(spilled).count_rows():
                changed = parquet_at(spilled)
                merge = (
                    incremental.merge_by_content(location, changed, columns)
                    if key is None
                    else incremental.merge_by_key(location, changed, columns, key)
                )
                with_retries(lambda: spark.sql(merge).collect())
        finally:
            folders.remove(spilled)

    def _difference(self, spark: SparkSession, location: str, whole: str, columns: Sequence[str]) -> str:
        """Returns SQL for the table's missing and superfluous rows, from the changed rows alone if these are sufficient."""
        if not incremental.is_row_by_row(whole):
            return incremental.difference(location, whole, columns)

        views = Views(spark)

        def images(*kinds: str) -> str:
            wanted = ", ".join(map(literal, kinds))
            return self._over(
                spark,
                lambda covered: f"({self._home.reader.query(views, covered)}) WHERE __change_type IN ({wanted})",
            )

        return incremental.changes(images("INSERT", "UPDATE_AFTER"), images("DELETE", "UPDATE_BEFORE"), columns)

    def _over(self, spark: SparkSession, rows: Callable[[Range], str]) -> str:
        """Returns the query with each relation replaced by the result of ``rows``."""
        text, views = self._query, Views(spark)
        for reference in reversed(names.references(self._query)):
            covered = self._block.pin(self._streams[_key(reference)])
            if covered is None:  # a volume that was never listed
                view = views.show(self._home.reader.unlisted(spark))
            else:
                columns = ", ".join(f"`{name}`" for name in covered.source.columns(covered.to_version))
                view = views.of(f"SELECT {columns} FROM {rows(covered)}")
            alias = f" AS {quote(reference.name.name)}" if reference.takes_alias else ""
            text = f"{text[: reference.start]}{view}{alias}{text[reference.end :]}"
        return Binding(self._home, spark, None).bind(text)


def streams_of(home: Home, name: Name, query: str) -> Sequence[StreamSpec]:
    """Returns a stream for each table and volume that the query reads. Raises SqlError."""
    if names.words(query)[:1] not in (["SELECT"], ["WITH"], ["FROM"], ["("]) or names.writes(query):
        raise SqlError(f"The dynamic table {name} needs a query.", "CREATE DYNAMIC TABLE t AS SELECT ... FROM ...")
    sources = dict.fromkeys(_key(reference) for reference in names.references(query))
    if not sources:
        raise SqlError(f"The query of the dynamic table {name} reads no table or volume.")
    found = []
    for number, (kind, source) in enumerate(sources, 1):
        if kind is SourceKind.TABLE and home.catalog.streams.find(source) is not None:
            raise SqlError(f"{source} is a stream, which a dynamic table cannot consume.", "Select from its source.")
        if source == name:
            raise SqlError(f"The dynamic table {name} would read itself.")
        if kind is SourceKind.TABLE:
            metastore.locate(home, source)
        own = Name(name.schema, f"{name.name}_stream" + (f"_{number}" if number > 1 else ""))
        volume, table = (source, None) if kind is SourceKind.VOLUME else (None, source)
        found.append(StreamSpec(own, volume, table, show_initial_rows=True))
    return found


def _key(reference: names.Reference) -> tuple[SourceKind, Name]:
    return SourceKind.VOLUME if reference.directory else SourceKind.TABLE, reference.name
