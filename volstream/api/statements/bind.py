"""Makes the names in a statement visible to Spark: attaches tables by path, creates views of streams and directories, and
registers functions.

Spark's embedded catalog is in memory and dies with the engine, so tables are attached on first mention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from volstream.api.statements import arrived, facts, files
from volstream.api.statements.guards import check_not_hidden, is_temporary_view
from volstream.api.statements.metastore import check_schema, is_taken, shares_schemas
from volstream.base.model.names import DEFAULT_SCHEMA, Name, quote
from volstream.base.model.paths import scheme_of
from volstream.changes.changelog import Deduplication
from volstream.changes.directory import table as directory
from volstream.changes.streams.read import query
from volstream.changes.streams.sources import TableSource, VolumeSource
from volstream.errors import InvalidValueError, SqlError
from volstream.files.volumes.access import store_of
from volstream.functions.schema import from_ddl
from volstream.functions.sql import call_of, volume_function
from volstream.spark.errors import condition_of
from volstream.spark.frames import Views, relation, without_collations
from volstream.spark.jvm.command import compile_in
from volstream.sql import adapt
from volstream.sql.names import Bound, ChangesClause, Reference, changes_of, time_of, travel_of
from volstream.sql.statement import SparkStatement
from volstream.sql.tokens import Edit, literal, parquet_at, quote_column
from volstream.tables.delta import places
from volstream.tables.delta.places import is_folder, is_table
from volstream.tables.delta.writer import compile_if_large

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.base.definitions import Stream
    from volstream.changes.streams.consume import Consumption
    from volstream.changes.streams.read import Range
    from volstream.home import Home


class Binding:
    """Binds the names of one statement, in one Spark session.

    Args:
        consumption: pins the ranges of streams; None: the binding pins them once for the statement.
        with_arrived: tables include the rows of their tails.
        in_views: read everything except tables through views, so that a guard can name all that the statement reads.

    Attributes:
        tables: names of the attached tables.
    """

    def __init__(
        self,
        home: Home,
        spark: SparkSession,
        consumption: Consumption | None,
        *,
        with_arrived: bool = False,
        in_views: bool = False,
    ) -> None:
        self.spark = spark
        self.tables: set[Name] = set()
        self._with_arrived = with_arrived
        self._in_views = in_views
        self.views = Views(spark)
        self._home = home
        self._consumption = consumption
        self._pinned: dict[str, Range | None] = {}
        self._tables = f"{home.warehouse}/tables"
        self._checked: set[str] = set()  # schemas that are there, in this home's place
        self._run_in(DEFAULT_SCHEMA, f"USE `{DEFAULT_SCHEMA}`", owns=True)

    def bind(self, statement: SparkStatement) -> SparkStatement:
        """Attaches every table that the statement names or lists; returns it with views for streams and directories."""
        listed = statement.listed_schema
        if listed is not None:
            self.attach_all(listed)
        statement = self._with_functions(self._with_volume_functions(adapt.in_sparks_words(statement)))
        return statement.replaced(edit for reference in statement.references for edit in self._bound(statement, reference))

    def _bound(self, statement: SparkStatement, reference: Reference) -> Iterator[Edit]:
        """Makes a relation visible to Spark; yields what replaces its name, and a time at which it is read."""
        replacement: str | None = None
        end = reference.end
        stream = None if reference.directory else self._home.catalog.streams.find(reference.name)
        changes = None if stream or reference.files else changes_of(statement.tokens_after(reference.end))
        if reference.files is not None:
            replacement = self.views.show(files.frame_of(self._home, self.spark, reference.name, reference.files))
        elif changes is not None:
            replacement, end = self._changes_view(reference, changes), changes.end
        elif reference.directory:
            at, end = travel_of(statement.tokens_after(reference.end)) or (None, end)
            replacement = self.views.show(self._directory(reference.name, at))
        elif stream is not None:
            if not reference.qualified:
                check_not_hidden(self.spark, stream.name)
            replacement = self._stream_view(stream)
        elif (location := self.attach(reference.name)) is not None:
            compile_if_large(self.spark, location)
            unmoved = arrived.query(self.views, statement, reference, location) if self._with_arrived else None
            if unmoved is not None and (reference.qualified or not is_temporary_view(self.spark, reference.name.name)):
                # A view costs a call to Spark.
                inline = reference.takes_alias and not self._in_views
                replacement = f"({unmoved})" if inline else self.views.of(unmoved)
            elif (travel := time_of(statement.text, statement.tokens_after(reference.end))) is not None:
                yield travel.start, travel.end, f"VERSION AS OF {self._version_at(reference.name, location, travel.time)}"
        elif facts.is_fact(reference.name):
            written = facts.write(self._home, reference.name)
            self.views.on_release(partial(places.remove, written))
            replacement = self.views.of(f"SELECT * FROM {parquet_at(written)}")
        else:
            self._check_spelling(statement, reference)
        if replacement is not None:
            if reference.takes_alias:  # keeps columns qualified by the relation's name valid
                replacement += f" AS {quote(reference.name.name)}"
            yield reference.start, end, replacement

    def _check_spelling(self, statement: SparkStatement, reference: Reference) -> None:
        """Raises SqlError if a relation does not exist, but one with a similar name does."""
        if not statement.must_exist:
            return
        streams = (stream.name for stream in self._home.catalog.streams.list())
        near = places.like_one(self._home.warehouse, reference.name, streams)
        name = reference.name
        job = self._home.catalog.maker_of(name)
        if job is not None and not is_table(places.table_location(self._home.warehouse, name)):
            creates = f"The job {job.name} creates it with its first batch."
            raise SqlError(f"The table {name} does not exist yet.", creates)
        if near and not self.spark.catalog.tableExists(statement.text[reference.start : reference.end]):
            raise SqlError(f"There is no table, stream or view {reference.name}.", near.rstrip())

    def _changes_view(self, reference: Reference, changes: ChangesClause) -> str:
        """Creates a view of changes. Spark's own would also show the metadata of rows, and does not support directories."""
        options = changes.options
        if not reference.directory:
            compile_if_large(self.spark, places.table_location(self._home.warehouse, reference.name))
        text = query(
            self._home.catalog,
            self._home.warehouse,
            reference.name,
            self._end(changes.first),
            None if changes.last is None else self._end(changes.last),
            options.get("deduplicationmode", Deduplication.DROP_CARRYOVERS),
            compute_updates=options.get("computeupdates", "false").lower() == "true",
            identity=[column.strip() for column in options.get("identity", "").split(",") if column.strip()],
            directory=reference.directory,
        )
        return self.views.of(text)

    def _version_at(self, name: Name, location: str, time: str) -> int:
        """Returns the version of a table at a time: Delta would read the time as text in the session's zone, which may repeat an
        hour."""
        moment = self._home.evaluated_moment(time, self.spark)
        return TableSource(name, location, self._home.warehouse).resolve(f"table {name}", None, moment)

    def _end(self, bound: Bound) -> int | datetime:
        if isinstance(bound.at, int):
            return bound.at + bound.excluded
        return self._home.moment(bound.at) + timedelta(microseconds=bound.excluded)

    def _with_volume_functions(self, statement: SparkStatement) -> SparkStatement:
        """Replaces the beginnings of calls like ``file_content(VOLUME v, path)`` by functions of these volumes' stores."""
        edits = list[Edit]()
        for call in statement.volume_calls:
            volume = self._home.catalog.volumes.get(call.volume)
            if call.function == "get_presigned_url" and scheme_of(volume.location) == "file":
                raise InvalidValueError(
                    f"The files of the volume {volume.name} are local, and have no presigned URLs.", "Read them by file_content."
                )
            name = f"{call.function}.{volume.id}"
            store = store_of(volume, self._home.catalog, self._home.settings)
            self.spark.udf.register(name, volume_function(call.function, store))
            edits.append((call.start, call.end, f"`{name}`("))
        return statement.replaced(edits)

    def _with_functions(self, statement: SparkStatement) -> SparkStatement:
        """Renames calls to the home's functions to one-part names, the only ones that Spark's registry allows."""
        functions = {function.name: function for function in self._home.catalog.functions.list()}
        edits = list[Edit]()
        for call in statement.calls if functions else ():
            function = functions.get(call.name)
            # As in Spark, its own functions and those of this session take precedence.
            if function is None or (not call.qualified and self.spark.catalog.functionExists(call.name.name)):
                continue
            name = f"{call.name.schema}.{call.name.name}"
            self.spark.udf.register(
                name, call_of(function), without_collations(from_ddl(f"value {function.returns}")).fields[0].dataType
            )
            quoted = name.replace("`", "``")
            edits.append((call.start, call.end, f"`{quoted}`"))
        return statement.replaced(edits)

    def _stream_view(self, stream: Stream) -> str:
        """Creates a view of the stream's rows."""
        reader = self._home.reader
        if self._consumption is not None:
            covered = self._consumption.pin(stream)
        else:
            if stream.id not in self._pinned:
                self._pinned[stream.id] = reader.pin(stream)
            covered = self._pinned[stream.id]
        if covered is None:
            return self.views.show(reader.unlisted(self.spark))
        return self.views.of(reader.query(self.views, covered))

    def attach(self, name: Name) -> str | None:
        """Registers a table of the warehouse and its schema in Spark; returns its location, or None if it does not exist.

        Raises:
            SqlError: Spark's catalog is a metastore that has another table of this name.
        """
        location = places.table_location(self._home.warehouse, name)
        if is_table(location):
            if is_taken(self._home, self.spark, name, location):
                raise SqlError(f"The metastore has another table {name}.", "Drop its entry in the metastore first.")
            attaching = f"CREATE TABLE IF NOT EXISTS {name.qualified} USING DELTA LOCATION {literal(location)}"
            self._run_in(name.schema, attaching, owns=location == places.own_location(self._home.warehouse, name))
            self.tables.add(name)
            return location
        if name.schema != DEFAULT_SCHEMA and is_folder(f"{self._tables}/{name.schema}"):
            self._create_schema(name.schema)
        return None

    def attach_all(self, schema: str) -> None:
        """Registers all tables of a schema in Spark, except those whose names it does not take."""
        from pyspark.errors import AnalysisException

        for name in places.inside(f"{self._tables}/{schema}"):
            # With SqlError, another table of the metastore is shown under the name.
            with suppress(SqlError, AnalysisException):
                self.attach(Name(schema, name))

    def _directory(self, name: Name, at: int | str | None) -> DataFrame:
        """Returns the files of a volume, at a version or a time if one is given."""
        volume = self._home.catalog.volumes.get(name)
        source = VolumeSource(self._home.catalog, self._home.warehouse, volume.id)
        if at is not None:
            what = f"directory of volume {volume.name}"
            at = source.resolve(what, *((None, self._home.moment(at)) if isinstance(at, str) else (at, None)))
        snapshot = source.find()
        if snapshot is None:
            return relation(self.spark, directory.SCHEMA.empty_table())
        if source.is_large:
            compile_in(self.spark)
        files = snapshot.at_query(snapshot.newest if at is None else at)
        return self.spark.sql(f"SELECT {', '.join(directory.COLUMNS)} FROM ({files})")

    def _run_in(self, schema: str, statement: str, *, owns: bool) -> None:
        """Runs a statement that needs a schema, which is created if Spark does not know it: to do so before each statement would
        take a fifth of a query's time.

        Args:
            owns: the statement is about a table in the warehouse. In a shared metastore, the schema may then be another home's,
                which is an SqlError.
        """
        from pyspark.errors import AnalysisException

        if owns and shares_schemas(self._home.settings) and schema not in self._checked:
            self._create_schema(schema)
        try:
            self.spark.sql(statement)
        except AnalysisException as error:
            if condition_of(error) != "SCHEMA_NOT_FOUND":
                raise
            self._create_schema(schema)
            self.spark.sql(statement)

    def _create_schema(self, schema: str) -> None:
        place = literal(f"{self._tables}/{schema}")
        self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quote_column(schema)} LOCATION {place}")
        check_schema(self._home, self.spark, schema)
        self._checked.add(schema)
