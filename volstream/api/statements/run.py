"""Runs Spark's statements: DML that reads streams consumes them; other statements are passed on with their
names bound."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sqlglot.tokenizer_core import TokenType

from volstream.api.statements import bind, metastore
from volstream.api.statements.bind import Binding
from volstream.api.statements.guards import (
    check_columns_stay,
    check_durable,
    check_no_view,
    check_settings,
    check_tracking_stays,
    check_untracked,
    check_vacuum,
    check_visible,
    copy_variables,
    note_variables,
    note_view,
)
from volstream.base.definitions import DynamicJob, Job, Stream
from volstream.base.model.names import DEFAULT_SCHEMA, Name, check_table
from volstream.base.model.text import nearest
from volstream.base.model.units import local_zone
from volstream.base.processes import new_owner
from volstream.catalog.leases import lease, of_creation
from volstream.changes.streams.consume import is_unused
from volstream.changes.streams.sources import SHORTHANDS, TableSource, check_property
from volstream.errors import AlreadyExistsError, DependencyError, InvalidStateError, InvalidValueError, ObjectInUseError, SqlError
from volstream.ingest.sources.tables import end_source
from volstream.spark.errors import as_sql_errors, map_spark_errors
from volstream.spark.frames import guarded, without_views
from volstream.spark.session import OF_DELTA, TIME_ZONE, pin, whole_plans
from volstream.sql import adapt, grammar
from volstream.sql.statement import SparkStatement
from volstream.sql.text import literal, pairs, table_at
from volstream.tables.delta import places
from volstream.tables.delta.log import DeltaLog, last_checkpoint
from volstream.tables.delta.opened import OpenTable, columns_at, schema_at
from volstream.tables.delta.ownership import check_writable, owner_of
from volstream.tables.delta.places import is_folder, is_table
from volstream.tables.delta.schema import PRIMARY_KEY, Schema
from volstream.tables.delta.writer import with_retries
from volstream.tables.tails.tail import TailedTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.home import Home
    from volstream.jobs.runs.lease import JobWatch

# The rows of a statement that ran without Spark.


@dataclass(frozen=True)
class Result:
    """The rows of a statement that ran without Spark.

    Attributes:
        query: SQL for the same rows and their types, for a DataFrame; None: all columns are text.
    """

    columns: Sequence[str]
    rows: Iterable[Mapping[str, Any]]
    query: str | None = None


# CREATE TABLE leaves a table or nothing, although Delta writes the rows first and keeps them on failure.


@contextmanager
def creating(home: Home, name: Name) -> Iterator[None]:
    """Removes the remains of an unfinished CREATE TABLE, including the block's if it raises. Does nothing if
    the table exists.

    Raises:
        ObjectInUseError: another process is creating the table.
    """
    location = places.own_location(home.warehouse, name)
    if places.table_location(home.warehouse, name) != location or is_table(location):
        yield
        return
    purpose = f"CREATE TABLE {name}"
    with lease(home.catalog.leases, of_creation(str(name)), new_owner(), purpose, home.settings.lease_seconds) as other:
        if other is not None:
            raise ObjectInUseError(f"The table {name} is being created by another session.", "Try again later.")
        if is_folder(f"{location}/_delta_log") and not is_table(location):
            places.remove(location)
        existed = is_folder(location)
        try:
            yield
        except BaseException:
            if not existed and not is_table(location):
                places.remove(location)
            raise


def consume(home: Home, statement: SparkStatement, watch: JobWatch) -> int:
    """Runs a job's DML, which consumes the streams it reads; returns the number of rows written, as far as
    known.

    Raises:
        SqlError, StreamError: as :meth:`volstream.api.session.Session.sql`.
        FencedError, BatchStoppedError: as :meth:`JobWatch.check`.
    """
    with home.gateway.explaining(), as_sql_errors():
        target, location = target_of(home, statement)
        check_exists(home, target, location)
        bind.commit_before(home, statement)
        streams = streams_of(home, statement)
        return SparkStatements(home).write(statement, streams, location, watch) or 0


def streams_of(home: Home, statement: SparkStatement) -> list[Stream]:
    """Returns the streams that a statement reads, each once. Raises SqlError if it cannot be parsed."""
    streams = {
        stream.id: stream
        for reference in statement.references
        if not reference.directory and (stream := home.catalog.streams.find(reference.name)) is not None
    }
    return list(streams.values())


def target_of(home: Home, dml: SparkStatement) -> tuple[Name, str]:
    """Returns the table that stream-reading DML writes, and its actual or future location.

    Raises:
        SqlError: the statement names no table, several, or a stream.
        InvalidStateError: the table belongs to a job.
    """
    targets = dml.targets
    if not targets:
        raise SqlError("DML that reads a stream must name the table that it writes.")
    if len(targets) > 1:
        raise SqlError(
            "DML that reads a stream can write only one table: an offset moves with one table's commit.",
            "Create a stream for each table.",
        )
    reference = targets[0]
    if home.catalog.streams.find(reference.name) is not None:
        raise SqlError(f"{reference.name} is a stream and cannot be written.", "Write to its source.")
    location = metastore.locate(home, reference.name)
    check_writable(home.catalog, reference.name, location, home.warehouse)
    return reference.name, location


def check_exists(home: Home, name: Name, location: str) -> None:
    """Raises SqlError if there is no Delta table at the location."""
    if not is_table(location):
        near = places.like_one(home.warehouse, name)
        raise SqlError(f"There is no Delta table {name} to write.", f"{near}First: CREATE TABLE {name} (...).")


#: Statements that list relations, volstream's own views among them.
_LISTING = (("SHOW", "TABLES"), ("SHOW", "VIEWS"))


class SparkStatements:
    """Runs Spark's statements, with the home's names bound."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._tables = f"{home.warehouse}/tables"

    def run(self, statement: SparkStatement) -> DataFrame | Result:
        """Runs a statement; DML that reads streams consumes them.

        Raises:
            SqlError, StreamError: as :meth:`volstream.api.session.Session.sql`.
        """
        if not statement.is_query:  # what is known of a table is known by its name
            statement = statement.by_names(partial(places.named_by, self._home.warehouse))
        words = statement.words
        statement.check_no_identifier()
        if words[0] == "USE" and words[-1].strip("'") != DEFAULT_SCHEMA.upper():
            raise SqlError("Each statement begins in the schema public.", "Write the schema before the name: lab.t.")
        streams = streams_of(self._home, statement)
        if not streams:
            check_durable(self._home, statement)
        check_visible(self._home, statement, streams)
        check_settings(self._home, statement)
        created = None
        if statement.creates_table:
            created = self._created(statement)
            statement = _in_deltas_words(statement)
        elif statement.begins("REPLACE", "TABLE"):
            statement = _in_deltas_words(statement)
        elif statement.begins("ALTER", "TABLE"):
            statement = _in_deltas_words(statement)
            check_untracked(self._home, statement)
            check_columns_stay(self._home, statement)
        elif statement.begins("RESTORE"):
            statement = self._at_version(statement)
        elif statement.begins("SET", "TIME", "ZONE", "LOCAL"):  # of the session, not of the engine
            statement = SparkStatement(f"SET TIME ZONE {literal(local_zone())}")
        self._check_written(statement)
        with bind.settled(self._home, statement):
            return self._run(statement, streams, created)

    def _run(self, statement: SparkStatement, streams: list[Stream], created: Name | None) -> DataFrame | Result:
        if streams and statement.writes and not statement.is_temporary:
            return self._consume(statement, streams)
        binding, words = self._binding(self._home.spark), statement.words
        if words[0] == "DROP" and words[1:2] in (["SCHEMA"], ["DATABASE"], ["NAMESPACE"]):
            schema = statement.named.name
            self._check_schema(schema)
            binding.attach_all(schema)  # Spark deletes the folder of one that seems empty
        if statement.begins("VACUUM"):
            check_vacuum(self._home, statement)
        if statement.begins("DROP", "TABLE") and (damaged := self._damaged(statement.named)) is not None:
            return self._drop_damaged(binding.spark, damaged)
        bound = binding.bind(statement)
        text = bound.text
        if statement.merges:
            text = adapt.insert_all_columns(bound, self._columns_of_target(statement)).text
        match words[:2]:
            case ["CREATE", "SCHEMA" | "DATABASE"] if "LOCATION" not in words:
                text += f" LOCATION {literal(f'{self._tables}/{statement.named.name}')}"
            case ["DROP", "TABLE"]:
                return self._drop(binding.spark, statement, text)
        whole = whole_plans(binding.spark) if statement.begins("EXPLAIN") else nullcontext()
        with whole, nullcontext() if created is None else creating(self._home, created):
            run = partial(binding.spark.sql, text)
            frame = with_retries(run) if words[0] in ("INSERT", "UPDATE", "DELETE", "MERGE") else run()
        if created is not None or statement.begins("REPLACE"):
            self._identify_key(binding.spark, created or statement.named)
        note_view(self._home, statement, streams)
        note_variables(self._home, statement)
        if (*words[:2],) in _LISTING:
            frame = without_views(frame)
        if statement.begins("RESET"):
            reset = "".join(token.text for token in statement.tokens[1:])
            pin(binding.spark)
            for key, value in {TIME_ZONE: local_zone(), **OF_DELTA}.items():
                if reset in ("", key):
                    binding.spark.conf.set(key, value)
        # A user's view may read volstream's views for the life of the session.
        return frame if statement.is_temporary else binding.views.release_with(frame)

    def read(self, statement: SparkStatement) -> DataFrame:
        """Returns the rows of a query, SHOW or DESCRIBE that reads only relations of the home.

        Raises:
            SqlError: the statement is invalid, reads something else, or does more than read.
        """
        check_settings(self._home, statement)
        binding = Binding(self._home, self._home.spark, self._home.open_consumption, with_arrived=True, in_views=True)
        text = binding.bind(statement).text
        frame = binding.spark.sql(guarded(text, binding.tables, binding.views.names))
        if (*statement.words[:2],) in _LISTING:
            frame = without_views(frame)
        return binding.views.release_with(frame)

    def set_properties(self, statement: grammar.Statement) -> Result:
        """Runs ``ALTER TABLE t SET PROPERTIES``: translates volstream's properties to several of Delta's,
        passes on others; and ``ALTER TABLE t ADD PRIMARY KEY``, which sets one of volstream's.
        """
        said: dict[str, str] = statement.options.get("properties", {})
        properties: dict[str, str] = {}
        for key, value in said.items():
            check_property(key, value)
            shorthand = SHORTHANDS.get(key.lower())
            properties |= {key: value} if shorthand is None else shorthand(value)
        check_tracking_stays(self._home, statement.target, properties)
        schema = schema_at(places.table_location(self._home.warehouse, statement.target))
        if "primary_key" in statement.options:
            properties[PRIMARY_KEY] = _key_of(statement.target, schema, statement.options["primary_key"])
        if schema is None and any(key.lower() == "change_tracking" for key in said):
            if writer := next((job for job in self._home.catalog.jobs.list() if job.into == statement.target), None):
                raise InvalidStateError(
                    f"There is no table {statement.target} yet: the first run of the job {writer.name} makes it.",
                    f"First run: volstream run-job {writer.name}",
                )
            raise InvalidStateError(
                f"The table {statement.target} is not in the home's warehouse, so it can have no streams.",
                "Copy it: CREATE TABLE ... AS SELECT ...",
            )
        present = {} if schema is None else schema.properties
        changed = {key: value for key, value in properties.items() if present.get(key) != value}
        binding = self._binding(self._home.spark)
        binding.attach(statement.target)
        if changed or schema is None:
            altering = f"ALTER TABLE {statement.target.qualified} SET TBLPROPERTIES ({pairs(changed)})"
            # To add a key also ends real-time streams, which began without it.
            stands_for = altering if said else f"ALTER TABLE {statement.target.qualified} ADD PRIMARY KEY"
            with bind.settled(self._home, SparkStatement(stands_for)):
                binding.spark.sql(altering).collect()
        return Result([], [])

    def _at_version(self, statement: SparkStatement) -> SparkStatement:
        """Returns ``RESTORE`` with a version instead of a time, which Delta would read in the wrong zone."""
        tokens, words, whole = statement.tokens, statement.words, statement.text
        at = next((at for at in range(len(words)) if words[at : at + 4] == ["TO", "TIMESTAMP", "AS", "OF"]), None)
        if at is None or len(tokens) < at + 5:
            return statement
        text, one = whole[tokens[at + 4].start :], tokens[at + 4 :]
        moment = (
            self._home.moment(one[0].text)
            if len(one) == 1 and one[0].token_type is TokenType.STRING
            else self._home.evaluated_moment(text.rstrip().rstrip(";"))
        )
        name = statement.references[0].name
        source = TableSource(name, metastore.locate(self._home, name), self._home.warehouse)
        version = source.resolve(f"table {name}", None, moment)
        return statement.replaced([(tokens[at + 1].start, len(whole), f"VERSION AS OF {version}")])

    def _binding(self, spark: SparkSession) -> Binding:
        return Binding(self._home, spark, self._home.open_consumption, with_arrived=True)

    def _consume(self, statement: SparkStatement, streams: list[Stream]) -> DataFrame | Result:
        """Runs DML that reads streams once, and moves the streams' offsets with it."""
        insert, words = adapt.as_insert(statement), statement.words
        if insert is None and words[0] == "CREATE":
            raise SqlError(
                "A view of a stream is not possible: its rows disappear once they are consumed.",
                "Create a table from it (CREATE TABLE ... AS), or read the stream itself.",
            )
        dml = statement if insert is None else insert[1]
        target, location = target_of(self._home, dml)
        if insert is not None:
            if "REPLACE" in words[:3]:
                raise SqlError(
                    "Replacing a table by the rows of a stream could lose the table's own rows if it failed.",
                    "Use INSERT OVERWRITE, or drop the table first.",
                )
            if "EXISTS" in words[:6] and is_table(location):
                return Result([], [])  # the statement does nothing, so nothing is consumed
            with creating(self._home, target):
                self._create_empty(insert[0], target)
        else:
            check_exists(self._home, target, location)
        try:
            count = self.write(dml, streams, location)
        except BaseException:
            if insert is not None and is_unused(self._home.catalog, location, [stream.id for stream in streams]):
                self._drop_table(self._home.spark, target, f"DROP TABLE {target.qualified}")
            raise
        return Result(["num_affected_rows"], [{"num_affected_rows": count}])

    def _create_empty(self, statement: SparkStatement, target: Name) -> None:
        with self._session() as spark:
            copy_variables(self._home, spark)
            binding = Binding(self._home, spark, None)
            spark.sql(binding.bind(statement).text).collect()
            self._identify_key(spark, target)

    def _identify_key(self, spark: SparkSession, table: Name) -> None:
        """Has the PRIMARY KEY of a new table name its columns by what stays when they are renamed, which
        Delta chose."""
        location = places.table_location(self._home.warehouse, table)
        schema = schema_at(location)
        if schema is None or not schema.primary_key:
            return
        key = json.dumps(schema.ids_of(schema.primary_key))
        if schema.properties.get(PRIMARY_KEY) != key:
            spark.sql(f"ALTER TABLE {table_at(location)} SET TBLPROPERTIES ({pairs({PRIMARY_KEY: key})})").collect()

    def write(self, statement: SparkStatement, streams: list[Stream], location: str, watch: JobWatch | None = None) -> int | None:
        """Runs DML that reads streams and moves their offsets with it; returns the number of rows written, if
        known.

        Args:
            watch: of the job whose statement it is.
        """
        with self._home.consumption(job=None if watch is None else watch.job) as consumption:
            taken = consumption.take(*streams)

            def dml(spark: SparkSession) -> None:
                if watch is None:
                    copy_variables(self._home, spark)
                binding = Binding(self._home, spark, consumption, with_arrived=watch is None)
                bound = binding.bind(statement)
                if statement.merges:
                    columns = list(columns_at(location))
                    bound = adapt.insert_all_columns(bound, columns)
                    bound = adapt.filtered_merge(bound, lambda query: dict(spark.sql(query).dtypes), columns)
                with nullcontext() if watch is None else watch.over(spark):
                    with_retries(lambda: spark.sql(bound.text).collect())

            if not taken:  # only streams on volumes that were never listed
                with map_spark_errors(), self._session(watch) as spark:
                    dml(spark)
                return None
            return consumption.write(location, dml, streams=streams, like=self._home.spark if watch is None else None)

    def _session(self, watch: JobWatch | None = None) -> AbstractContextManager[SparkSession]:
        """Lends a session for one statement: a copy of the user's, or a new one for a job's."""
        gateway = self._home.gateway
        return gateway.fresh() if watch is not None else gateway.copied(self._home.spark)

    def _columns_of_target(self, statement: SparkStatement) -> list[str]:
        locations = (places.table_location(self._home.warehouse, target.name) for target in statement.targets[:1])
        return [column for location in locations for column in columns_at(location)]

    def _created(self, statement: SparkStatement) -> Name | None:
        """Returns the table that a CREATE TABLE names, if volstream manages it.

        Raises:
            AlreadyExistsError: a stream has this name; tables and streams share a namespace.
            InvalidValueError: no table can have it.
        """
        for reference in statement.references[:1]:
            if self._home.catalog.streams.find(reference.name) is not None:
                raise AlreadyExistsError(f"There is already a stream {reference.name}.", "Choose another name.")
            check_table(reference.name)
            for before, after in pairwise(statement.tokens):
                inside = before.word == "LOCATION" and places.named_by(self._home.warehouse, after.text)
                if inside and inside != reference.name:
                    raise InvalidStateError(f"There is the place of the table {inside}.", "Name another LOCATION, or none.")
            return reference.name
        return None

    def _check_written(self, statement: SparkStatement) -> None:
        """Raises InvalidStateError if a statement writes rows to a table that a job maintains, whatever name
        it gives it."""
        words = statement.words
        if words[:1] in (["TRUNCATE"], ["RESTORE"], ["REPLACE"]) or statement.begins("CREATE", "OR", "REPLACE", "TABLE"):
            written = statement.references[:1]
        else:
            written = statement.targets if statement.writes else ()
        for reference in written:
            location = metastore.locate(self._home, reference.name)
            check_writable(self._home.catalog, reference.name, location, self._home.warehouse)
            if words[0] != "CREATE" and not reference.qualified and not is_table(location):
                check_no_view(self._home, reference.name)

    def _drop(self, spark: SparkSession, statement: SparkStatement, text: str) -> DataFrame:
        """Drops a table with its data. Spark treats attached tables as external, and would keep the files."""
        name = statement.named
        location = places.table_location(self._home.warehouse, name)
        self._end_owner(name, owner_of(self._home.catalog, location))
        return self._drop_table(spark, name, text)

    def _damaged(self, name: Name) -> Name | None:
        """Returns the name if it is a table of the warehouse whose log, or whose tail's log, cannot be
        read."""
        location = places.table_location(self._home.warehouse, name)
        try:
            if location == places.own_location(self._home.warehouse, name):
                table = OpenTable.newest(location)
                if table is not None:
                    _ = table.rows
                    DeltaLog(location).changes(last_checkpoint(location)[0] + 1, table.version)  # which Spark reads, too
                TailedTable.open(location)
        except DependencyError as error:
            if error.transient:
                raise
            return name
        return None

    def _drop_damaged(self, spark: SparkSession, name: Name) -> DataFrame:
        """Drops a damaged table: removes its files first, because Spark reads the log of a table that it
        drops."""
        self._end_owner(name, self._home.catalog.jobs.first(into_schema=name.schema, into_name=name.name))
        places.remove(places.own_location(self._home.warehouse, name))
        return spark.sql(f"DROP TABLE IF EXISTS {name.qualified}")

    def _check_schema(self, schema: str) -> None:
        """Raises InvalidStateError if a schema to be dropped has tables that jobs or sources fill, or streams
        read."""
        catalog, warehouse = self._home.catalog, self._home.warehouse
        for table in (Name(schema, one) for one in places.inside(f"{warehouse}/tables/{schema}")):
            job = owner_of(catalog, places.table_location(warehouse, table))
            if job is not None or catalog.sources.find(table) or catalog.streams.list(source_id=str(table)):
                who = f"job {job.name}" if job is not None else "a source or a stream"
                raise InvalidStateError(f"The schema {schema} has the table {table}, which {who} uses.", "Drop it first.")

    def _end_owner(self, name: Name, job: Job | None) -> None:
        """Ends the source that fills a table to be dropped. Raises InvalidStateError if a job fills it."""
        if job is not None:
            first = f"DROP DYNAMIC TABLE {job.name}" if isinstance(job, DynamicJob) else f"first: volstream drop job {job.name}"
            raise InvalidStateError(f"The table {name} belongs to job {job.name}.", f"Run {first}.")
        source = self._home.catalog.sources.find(name)
        if source is not None:
            end_source(self._home.catalog, source)

    def _drop_table(self, spark: SparkSession, name: Name, text: str) -> DataFrame:
        result, warehouse = spark.sql(text), self._home.warehouse
        own = places.own_location(warehouse, name)
        if places.table_location(warehouse, name) != own:  # a linked table: its metastore owns the files
            self._home.catalog.links.remove(name)
        else:
            places.remove(own)
        return result


def _key_of(name: Name, schema: Schema | None, said: Sequence[str]) -> str:
    """Returns the property of a new primary key. Raises SqlError if the table cannot have it."""
    if schema is None:
        raise SqlError(f"The table {name} is not in the home's warehouse, so it can have no PRIMARY KEY.")
    if schema.primary_key:
        raise SqlError(f"The table {name} has already the PRIMARY KEY ({', '.join(schema.primary_key)}).")
    columns = {column.lower(): column for column in schema.columns}
    if unknown := [column for column in said if column not in columns]:
        raise SqlError(f"The table {name} has no column {unknown[0]}.", nearest(unknown[0], schema.columns))
    adapt.check_partitions(schema.partitions, said)
    return json.dumps(schema.ids_of([columns[column] for column in said]))


def _in_deltas_words(statement: SparkStatement) -> SparkStatement:
    """Rewrites a statement that creates or alters a table as :func:`adapt.create_table`.

    Raises:
        SqlError, InvalidValueError: as there; or it sets a misspelt property of volstream, or one to no
            value.
    """
    for one in statement.properties:
        if one.value is not None:
            check_property(one.name, one.value)
        elif one.name.lower() in SHORTHANDS:
            raise InvalidValueError(f"The property {one.name} must have a value.", "Set it to another one.")
    return adapt.create_table(statement, PRIMARY_KEY, SHORTHANDS)
