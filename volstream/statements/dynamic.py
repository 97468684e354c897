"""Dynamic tables: a Delta table that a job keeps equal to a query. A run consumes the job's own streams on what the query reads.

So nothing is asked of Spark where nothing changed, and each change is taken once. Where every row of the result comes of
one row of the one source, the changed rows are all that is read; elsewhere the query runs in full, over the very versions
that are consumed, and only the rows that differ are written: the others keep their identity. The statements are
``sql.incremental``'s.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from volstream.delta import folders
from volstream.delta.log import DeltaLog
from volstream.delta.marker import OWNER
from volstream.delta.writer import with_retries
from volstream.errors import InvalidStateError, SqlError
from volstream.jvm.codegen import compile_in
from volstream.model.names import Name, quote
from volstream.model.objects import DynamicJob, SourceKind, Stream, StreamSpec
from volstream.spark.errors import as_sql_errors, map_spark_errors
from volstream.spark.views import Views
from volstream.sql import incremental, names
from volstream.sqltext import literal, parquet_at
from volstream.statements import metastore
from volstream.statements.bind import Binding
from volstream.streams.source import TRACKING

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from volstream.home import Home
    from volstream.streams.block import Block
    from volstream.streams.read import Range


def make_table(home: Home, job: DynamicJob) -> None:
    """Makes the job's table: the columns of its query, no rows. Raises SqlError."""
    properties = {**TRACKING, "delta.enableDeletionVectors": "true", OWNER: job.id}
    location = folders.table_location(home.warehouse, job.into)
    listed = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
    with as_sql_errors(), home.gateway.fresh() as spark:
        text = Binding(home, spark, None).bind(job.query)
        spark.sql(
            f"CREATE TABLE {job.into.qualified} USING DELTA LOCATION {literal(location)} TBLPROPERTIES ({listed}) "
            f"AS SELECT * FROM ({text}) LIMIT 0"
        ).collect()


def drop_table(home: Home, name: Name) -> None:
    """Drops the table with its rows. Nothing if it does not exist."""
    with map_spark_errors(), home.gateway.fresh() as spark:
        spark.sql(f"DROP TABLE IF EXISTS {name.qualified}").collect()
    folders.remove(folders.table_location(home.warehouse, name))


def refresh(home: Home, job: DynamicJob) -> int:
    """Makes the table show what its query returns now; how many rows were written, as far as is known.

    Raises:
        SqlError: Spark refuses the query.
        StreamStaleError: a source was made anew, or its history is gone.
        InvalidStateError: the table is gone.
    """
    location = folders.table_location(home.warehouse, job.into)
    log = DeltaLog(location)
    if log.properties().get(OWNER) != job.id:
        raise InvalidStateError(
            f"The dynamic table {job.name} is gone, or another one.", "Make it again: CREATE OR REPLACE DYNAMIC TABLE."
        )
    streams = [one for one in map(home.catalog.streams.by_id, job.stream_ids) if one is not None]
    with as_sql_errors(), home.block(job_id=job.id) as block:
        block.take(*streams)
        refreshing = _Refresh(home, job, block, {(one.source_kind, one.source_name): one for one in streams})
        return block.write(location, lambda spark: refreshing.run(spark, location, list(log.columns()))) or 0


class _Refresh:
    """One refresh: what the query reads, at the versions of a consumption."""

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
        # Spilled, for a MERGE reads its source more than once, and where nothing differs there is nothing to merge.
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
        """SQL of what the table lacks and has too much: found in the changed rows alone, where these tell."""
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
        """The query over what ``rows`` says of each relation that it reads."""
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
    """A stream for each table and volume that the query reads. Raises SqlError."""
    if names.words(query)[:1] not in (["SELECT"], ["WITH"], ["FROM"], ["("]) or names.writes(query):
        raise SqlError(f"The dynamic table {name} needs a query.", "CREATE DYNAMIC TABLE t AS SELECT ... FROM ...")
    sources = dict.fromkeys(_key(reference) for reference in names.references(query))
    if not sources:
        raise SqlError(f"The query of the dynamic table {name} reads no table and no volume.")
    found = []
    for number, (kind, source) in enumerate(sources, 1):
        if kind is SourceKind.TABLE and home.catalog.streams.find(source) is not None:
            raise SqlError(f"{source} is a stream, and a dynamic table consumes none.", "Select from its source.")
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
