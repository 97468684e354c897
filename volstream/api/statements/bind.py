"""Makes the names in a statement visible to Spark: attaches tables by path, creates views of streams and
directories, and registers functions.

Spark's embedded catalog is in memory and dies with the engine, so tables are attached on first mention.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volstream.api.statements.guards import check_not_hidden, is_temporary_view
from volstream.api.statements.metastore import check_schema, is_taken, shares_schemas
from volstream.base.definitions import LoadKeys, NewColumns, Volume
from volstream.base.definitions.job import load_keys
from volstream.base.model.names import DEFAULT_SCHEMA, Name, quote
from volstream.base.model.paths import FileInfo, printable, scheme_of
from volstream.base.processes import new_owner
from volstream.catalog.leases import lease, of_columns
from volstream.catalog.reports import FACTS, fact_rows, fact_types
from volstream.changes.changelog import Deduplication
from volstream.changes.directory import table as directory
from volstream.changes.streams.read import query
from volstream.changes.streams.sources import TableSource, VolumeSource
from volstream.errors import DependencyError, InvalidStateError, InvalidValueError, NotFoundError, ObjectInUseError, SqlError
from volstream.files.volumes.access import store_of
from volstream.functions.loading.columns import inferred_of, with_rescued
from volstream.functions.loading.loader import PATH, FilesAsRows
from volstream.functions.loading.options import INFERRED, LoadOptions
from volstream.functions.schema import from_ddl, to_ddl
from volstream.functions.sql import call_of, volume_function
from volstream.functions.types.kinds import BY_PYTHON
from volstream.jobs.rules.columns import SAMPLE, read_columns, sample
from volstream.jobs.rules.conditions import matching
from volstream.jobs.runs.services import JobServices
from volstream.ops.inspection.tables import table_names
from volstream.spark.errors import condition_of
from volstream.spark.frames import Views, relation, without_collations
from volstream.spark.jvm.command import compile_in
from volstream.sql import adapt
from volstream.sql.names import SESSION_CATALOG, Bound, ChangesClause, Reference, changes_of, time_of, travel_of
from volstream.sql.statement import SparkStatement
from volstream.sql.text import literal, parquet_at, quote_column
from volstream.sql.tokens import Edit
from volstream.tables.delta import places
from volstream.tables.delta.opened import schema_at
from volstream.tables.delta.places import is_folder, is_table
from volstream.tables.delta.writer import compile_if_large
from volstream.tables.tails.tail import TailedTable, tail_exists
from volstream.tables.tails.writer import TailWriter, commit_tail

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.base.definitions import Stream
    from volstream.changes.streams.consume import Consumption
    from volstream.changes.streams.read import Range
    from volstream.home import Home
    from volstream.sql.names import FilesClause

# Facts as SQL relations: the catalog's, ``SELECT * FROM volstream.failures``, and what tables there are, as
# standard SQL has them: ``information_schema.tables`` and ``information_schema.columns``.
#
# Each statement reads them anew and writes them to files for Spark: there may be many rows, and Spark may be
# on another host.

#: The schemas of these relations; an existing table of the same name takes precedence.
SCHEMA, STANDARD = "volstream", "information_schema"

_TABLE = {"table_catalog": str, "table_schema": str, "table_name": str}

#: The relations of standard SQL, by name, with their columns.
_STANDARD: Mapping[str, Mapping[str, type]] = {
    "tables": {**_TABLE, "table_type": str},
    "columns": {**_TABLE, "column_name": str, "ordinal_position": int, "is_nullable": str, "data_type": str, "comment": str},
}


def is_fact(name: Name) -> bool:
    """True if a relation with this name is provided here."""
    return name.name in {SCHEMA: FACTS, STANDARD: _STANDARD}.get(name.schema, ())


def write(home: Home, name: Name) -> str:
    """Writes a relation's rows to a folder of Parquet files; returns its location."""
    location = f"{home.warehouse}/{places.STAGING}/facts-{uuid.uuid4().hex}"
    standard = name.schema == STANDARD
    types = _STANDARD[name.name] if standard else fact_types(name.name)
    rows: Iterable[Iterable[Mapping[str, Any]]]
    rows = _of_tables(home, name.name) if standard else fact_rows(home.catalog.database, name.name)
    schema = pa.schema([(column, BY_PYTHON[kind]) for column, kind in types.items()])
    with places.written(location, schema) as file:
        for some in rows:
            file.write_table(pa.Table.from_pylist(list(some), schema=schema))
    return location


def _of_tables(home: Home, relation: str) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yields the rows of a relation of standard SQL, table by table; those whose log cannot be read are left
    out."""
    for table in table_names(home):
        row: dict[str, Any] = {"table_catalog": SESSION_CATALOG, "table_schema": table.schema, "table_name": table.name}
        if relation == "tables":
            yield [{**row, "table_type": "BASE TABLE"}]
            continue
        found = None
        with suppress(DependencyError):
            found = schema_at(places.table_location(home.warehouse, table))
        if found is not None:
            yield [
                {
                    **row,
                    "column_name": field["name"],
                    "ordinal_position": at,
                    "is_nullable": "YES" if field["nullable"] else "NO",
                    "data_type": found.sql_type(field["name"]).upper(),
                    "comment": (field.get("metadata") or {}).get("comment"),
                }
                for at, field in enumerate(found.fields, 1)
            ]


# Files of a volume as rows, for one statement: read on the executors as a job that loads reads them. Nothing
# is stored.

#: The columns of a directory that tell a file, in the order of :class:`FileInfo`.
_FILES = pa.schema([directory.SCHEMA.field(name) for name in FileInfo._fields])


def frame_of(home: Home, spark: SparkSession, name: Name, clause: FilesClause) -> DataFrame:
    """Returns the rows of files, with ``_rescued_data`` and ``_file_path``.

    Raises:
        NotFoundError: there is no such volume or file.
        InvalidValueError: an option is invalid, or no file has rows to find columns from.
        StorageError: a file cannot be read.
    """
    volume, services = home.catalog.volumes.get(name), JobServices(home)
    store = store_of(volume, home.catalog, home.settings)
    load = _load_of(clause)
    options = LoadOptions(**{**vars(load), "schema": None, "new_columns": NewColumns.RESCUE})
    named = {path: store.head(path) for path in clause.files or ()}
    patterns = [path for path, found in named.items() if found is None and set(path) & set("*?[")]
    if named and not patterns:
        infos: Sequence[FileInfo] = [_info(volume, path, found) for path, found in named.items()]
        files = relation(spark, pa.Table.from_pylist([info._asdict() for info in infos], _FILES))
    else:
        exact = [f"relative_path = {literal(path)}" for path in named if path not in patterns]
        where = " OR ".join([*map(matching, patterns), *exact]) or None
        infos = sample(services, volume, options, where)
        if patterns and not infos:
            raise NotFoundError(f"No file of the volume {volume.name} matches {printable(patterns[0])!r}.")
        files = _listed(home, spark, volume, where)
    inferred = None if load.schema else _inferred(services, volume, options, infos)
    ddl = with_rescued(load.schema or to_ddl(inferred))
    # A copied store has keys for tasks: an error while Spark pickles the store would look like a bug.
    read = FilesAsRows(copy(store), ddl, {**options.arguments(), INFERRED: inferred_of(inferred or ())})
    count = min(services.slots(), len(infos)) or 1
    return files.repartition(count).mapInArrow(read, without_collations(pa.schema([*from_ddl(ddl), PATH])))


def _load_of(clause: FilesClause) -> LoadKeys:
    described = load_keys(clause.options)
    values = {name: described[name].parse(text) for name, text in clause.options.items()}
    return LoadKeys(**values, **({} if clause.format is None else {"format": described["format"].parse(clause.format)}))


def _listed(home: Home, spark: SparkSession, volume: Volume, where: str | None) -> DataFrame:
    source = VolumeSource(home.catalog, home.warehouse, volume.id)
    snapshot = source.find()
    if snapshot is None:
        return relation(spark, _FILES.empty_table())
    return spark.sql(f"SELECT {', '.join(_FILES.names)} FROM ({snapshot.at_query(snapshot.newest)}) WHERE {where or 'true'}")


def _info(volume: Volume, path: str, found: FileInfo | None) -> FileInfo:
    if found is None or not volume.selection.accepts(path):
        raise NotFoundError(f"There is no file {printable(path)!r} in the volume {volume.name}.")
    return found


def _inferred(services: JobServices, volume: Volume, options: LoadOptions, infos: Sequence[FileInfo]) -> pa.Schema:
    columns = read_columns(services, volume, options, infos[:SAMPLE])
    if not columns.names:
        raise InvalidValueError(
            f"The files of {volume.name} have no rows to infer columns from.", "Name the columns: OPTIONS (schema 'id INT')."
        )
    return columns


# Tables with a tail in statements: reads include arrived rows, and writes that depend on arrived rows commit
# them first.

#: Statements that read their relations.
_READING = (
    *("SELECT", "WITH", "FROM", "VALUES", "(", "TABLE", "EXPLAIN", "SET", "CACHE"),
    *("INSERT", "MERGE", "UPDATE", "DELETE", "CREATE", "REPLACE"),
)

#: Statements that change existing rows or columns.
_CHANGING = ("UPDATE", "DELETE", "MERGE", "TRUNCATE", "ALTER", "RESTORE", "REPLACE")


def arrived_query(views: Views, statement: SparkStatement, reference: Reference, location: str) -> str | None:
    """Returns SQL for a table's rows including arrived ones; None: the statement reads the table itself.

    The statement contains arrived rows if they are few: Spark would need half a second to find the tail's
    newest version.

    Args:
        views: of the statement.
        reference: where the statement names the table.
        location: of the table.

    Raises:
        DependencyError: the table or its tail cannot be read.
    """
    if not tail_exists(location) or not _reads(statement, reference):
        return None
    tailed = TailedTable.open(location)
    if tailed is None or not tailed.has_unmoved:
        return None
    few = tailed.few_unmoved()
    return tailed.query(None if few is None else f"SELECT * FROM {views.show(relation(views.spark, few))}")


def commit_before(home: Home, statement: SparkStatement) -> None:
    """Commits the arrived rows of the table that a statement changes or clones, if the statement must see
    them.

    A statement that only adds rows to tables without a key need not see them.

    Raises:
        InvalidStateError: the table is immutable.
        VolstreamError: the commit failed; the statement must not run.
    """
    words = statement.words
    if (cloned := statement.cloned) is not None:
        _commit(home, cloned.name)
    replaces = any(after in ("WHERE", "USING", "ON") for word, after in pairwise(words) if word == "REPLACE")
    for name in _changed(statement):
        source = home.catalog.sources.find(name)
        if source is not None and source.immutable and words[0] != "ALTER":
            raise InvalidStateError(
                f"The table {name} is immutable.", "Create its next version: session.source.create_table(..., immutable=True)."
            )
        _commit(home, name, only_with_key=words[:2] == ["INSERT", "INTO"] and not replaces)


@contextmanager
def settled(home: Home, statement: SparkStatement) -> Iterator[None]:
    """Commits rows as :func:`commit_before`, and then runs the block with the statement. If that may change
    the columns of a table, first ends the table's open real-time streams, whose rows would no longer fit;
    none can begin before the block ends.

    Raises:
        ObjectInUseError: another session is changing the columns.
        InvalidStateError, VolstreamError: as :func:`commit_before`; or the streams cannot be ended.
    """
    name = next(iter(_changed(statement)), None) if _changes_columns(statement) else None
    location = "" if name is None else places.table_location(home.warehouse, name)
    if not location or not tail_exists(location):
        commit_before(home, statement)
        yield
        return
    purpose = f"changing the columns of {name}"
    with lease(home.catalog.leases, of_columns(location), new_owner(), purpose, home.settings.lease_seconds) as other:
        if other is not None:
            raise ObjectInUseError(f"Another session is changing the columns of {name}.", "Try again later.")
        TailWriter(location).end_streams()
        commit_before(home, statement)
        yield


def _changes_columns(statement: SparkStatement) -> bool:
    if statement.begins("ALTER", "TABLE"):
        return bool({"ADD", "RENAME", "DROP", "TYPE", "REPLACE", "NOT"} & {*statement.words})
    return statement.words[:1] in (["RESTORE"], ["REPLACE"]) or statement.begins("CREATE", "OR", "REPLACE", "TABLE")


def _commit(home: Home, name: Name, *, only_with_key: bool = False) -> None:
    location = places.table_location(home.warehouse, name)
    tailed = TailedTable.open(location)
    if tailed is not None and tailed.has_unmoved and (tailed.key or not only_with_key):
        commit_tail(location, lambda: home.gateway)


def _changed(statement: SparkStatement) -> Sequence[Name]:
    words = statement.words
    if statement.targets:
        return [target.name for target in statement.targets]
    adds = words[:1] == ["ALTER"] and {"COLUMN", "COLUMNS"} & {after for word, after in pairwise(words) if word == "ADD"}
    if adds and "." not in words[words.index("ADD") :]:  # else a field of a struct, which rows that arrived before lack
        return []  # restores a column that arrived rows need
    if words[:1] == ["ALTER"] and ("DROP", "CONSTRAINT") in pairwise(words):
        return []  # which arrived rows may violate
    if words[:1] and (words[0] in _CHANGING or words[:3] == ["CREATE", "OR", "REPLACE"]):
        return [reference.name for reference in statement.references if not reference.directory][:1]
    return []


def _reads(statement: SparkStatement, reference: Reference) -> bool:
    """True if the statement reads rows of a table's newest version at this reference."""
    words = statement.words
    if not words or words[0] not in _READING or (words[0] == "CREATE" and "VIEW" in words[:5]):
        return False
    if any(target.start == reference.start for target in statement.targets):
        return False
    after = next((token.word for token in statement.tokens_after(reference.end)), "")
    return after not in ("VERSION", "TIMESTAMP", "FOR", "@")


class Binding:
    """Binds the names of one statement, in one Spark session.

    Args:
        consumption: pins the ranges of streams; None: the binding pins them once for the statement.
        with_arrived: tables include the rows of their tails.
        in_views: read everything except tables through views, so that a guard can name all that the statement
            reads.

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
        """Attaches every table that the statement names or lists; returns it with views for streams and
        directories."""
        listed = statement.listed_schema
        if listed is not None:
            self.attach_all(listed)
        statement = self._with_functions(self._with_volume_functions(adapt.in_sparks_words(statement)))
        return statement.replaced(edit for reference in statement.references for edit in self._bound(statement, reference))

    def _bound(self, statement: SparkStatement, reference: Reference) -> Iterator[Edit]:
        """Makes a relation visible to Spark; yields what replaces its name, and a time at which it is
        read."""
        replacement: str | None = None
        end = reference.end
        stream = None if reference.directory else self._home.catalog.streams.find(reference.name)
        changes = None if stream or reference.files else changes_of(statement.tokens_after(reference.end))
        if reference.files is not None:
            replacement = self.views.show(frame_of(self._home, self.spark, reference.name, reference.files))
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
            unmoved = arrived_query(self.views, statement, reference, location) if self._with_arrived else None
            if unmoved is not None and (reference.qualified or not is_temporary_view(self.spark, reference.name.name)):
                # A view costs a call to Spark.
                inline = reference.takes_alias and not self._in_views
                replacement = f"({unmoved})" if inline else self.views.of(unmoved)
            elif (travel := time_of(statement.text, statement.tokens_after(reference.end))) is not None:
                yield travel.start, travel.end, f"VERSION AS OF {self._version_at(reference.name, location, travel.time)}"
        elif is_fact(reference.name):
            written = write(self._home, reference.name)
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
        """Creates a view of changes.

        Spark's own would also show the metadata of rows, and does not support directories.
        """
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
        """Returns the version of a table at a time: Delta would read the time as text in the session's zone,
        which may repeat an hour."""
        moment = self._home.evaluated_moment(time, self.spark)
        return TableSource(name, location, self._home.warehouse).resolve(f"table {name}", None, moment)

    def _end(self, bound: Bound) -> int | datetime:
        if isinstance(bound.at, int):
            return bound.at + bound.excluded
        return self._home.moment(bound.at) + timedelta(microseconds=bound.excluded)

    def _with_volume_functions(self, statement: SparkStatement) -> SparkStatement:
        """Replaces the beginnings of calls like ``file_content(VOLUME v, path)`` by functions of these
        volumes' stores."""
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
        """Renames calls to the home's functions to one-part names, the only ones that Spark's registry
        allows."""
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
        """Registers a table of the warehouse and its schema in Spark; returns its location, or None if it
        does not exist.

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
        """Runs a statement that needs a schema, which is created if Spark does not know it: to do so before
        each statement would take a fifth of a query's time.

        Args:
            owns: the statement is about a table in the warehouse. In a shared metastore, the schema may then
                be another home's, which is an SqlError.
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
