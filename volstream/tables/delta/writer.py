"""Spark commands that write Delta tables, each with a transaction id that makes it happen at most once.

A marked statement has its own session, because the settings that carry its ids apply to all statements of a
session. The command's result never decides the outcome: callers look for the marker in the log.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from volstream.base.threads import attempts_at
from volstream.errors import DependencyError
from volstream.spark.errors import condition_of, is_conflict, map_spark_errors
from volstream.spark.frames import relation
from volstream.spark.jvm.command import LARGE_BYTES, LARGE_ROWS, compile_in
from volstream.sql.text import MAX_NAMED, one_of, pairs, quote_column, table_at
from volstream.tables.delta import commits, direct
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.log import DeltaLog, own_file
from volstream.tables.delta.opened import OpenTable
from volstream.tables.delta.ownership import Marker
from volstream.tables.delta.places import (
    STAGING,
    can_create,
    create_file,
    filesystem_of,
    is_remote,
    make_folder,
    mapped,
    open_table,
    replace_file,
)
from volstream.tables.delta.schema import Schema, schema_of
from volstream.tables.delta.vectors import file_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.spark.session import SparkGateway

T = TypeVar("T")

#: Attempts of a statement whose commit loses a race against another writer of the table.
_CONFLICT_ATTEMPTS = 5


def is_large(location: str) -> bool:
    """True if a table is large enough for Spark to compile queries on it."""
    table = OpenTable.newest(location)
    # a table with only file names is small
    return table is not None and table.is_larger(LARGE_BYTES, LARGE_ROWS)


def compile_if_large(session: SparkSession, location: str) -> None:
    """Enables compilation in a session if the table that it will read is large."""
    if is_large(location):
        compile_in(session)


class DeltaWriter:
    """Runs the write commands on the engine of ``gateway``."""

    def __init__(self, gateway: SparkGateway) -> None:
        self._gateway = gateway

    def create(self, location: str, columns: str, properties: Mapping[str, str]) -> None:
        """Creates an empty table unless it exists. ``columns`` is DDL."""
        with_options = f" TBLPROPERTIES ({pairs(properties)})" if properties else ""
        self._run(f"CREATE TABLE IF NOT EXISTS {table_at(location)} ({columns}) USING DELTA{with_options}")

    def replace(self, location: str, columns: str) -> None:
        """Removes all rows of a table and replaces its columns."""
        with map_spark_errors(), self._gateway.pooled() as session:
            empty = session.createDataFrame([], columns)
            empty.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(location)

    def add_columns(self, location: str, columns: str) -> None:
        """Adds nullable columns. ``columns`` is DDL."""
        self._run(f"ALTER TABLE {table_at(location)} ADD COLUMNS ({columns})")

    def set_properties(self, location: str, properties: Mapping[str, str]) -> None:
        """Sets table properties."""
        self._run(f"ALTER TABLE {table_at(location)} SET TBLPROPERTIES ({pairs(properties)})")

    @contextmanager
    def marked(
        self, marker: Marker, location: str, *, rows: int = 0, separate: bool = False, like: Any = None
    ) -> Iterator[SparkSession]:
        """Yields a session in which one DML statement on the table at ``location`` carries ``marker``.

        Args:
            rows: approximate number of rows that the statement writes.
            separate: use a new session for a user's statement, which may find or leave views and functions in
                it.
            like: copy this user session, for a frame created in it. The marker is never set in a user's
                session: after an interruption it could neither stay nor be removed, because the statement may
                still be running.
        """
        settings = marker.settings()
        compiled = rows > LARGE_ROWS or is_large(location)
        if not separate:
            session_context = self._gateway.pooled(compiled=compiled)
        else:
            session_context = self._gateway.fresh() if like is None else self._gateway.copied(like)
        with map_spark_errors(), session_context as session:
            if separate and compiled:
                compile_in(session)
            for key, value in settings.items():
                session.conf.set(key, value)
            yield session
            for key in () if separate else settings:
                session.conf.unset(key)

    def append(self, session: SparkSession, frame: DataFrame, location: str) -> None:
        """Adds the rows of ``frame``, which has the table's columns, in a session from :meth:`marked`."""
        del session  # the frame is bound to it; the parameter prevents an append outside a marked session
        with_retries(lambda: frame.write.format("delta").mode("append").save(location))

    def change(self, session: SparkSession, rows: DataFrame, location: str, change: RowChanges) -> None:
        """Makes the changes that ``direct.commit`` makes, in a session from :meth:`marked`.

        Args:
            rows: all rows to add, instead of those of ``change``.
        """
        if change.gone is None:
            self.append(session, rows, location)
            return
        names = [quote_column(name) for name in change.schema.names]
        gone = list(dict.fromkeys(change.gone))
        key = quote_column(change.key)
        if not change.follow and len(gone) <= MAX_NAMED:  # takes half the time of an equivalent MERGE
            writing = rows.write.format("delta").mode("overwrite").option("replaceWhere", one_of(key, gone))
            with_retries(lambda: writing.save(location))
            return
        new = dict.fromkeys(name for values in change.follow.values() for name in values)
        moved = [change.follow.get(key, {}) for key in gone]
        removed = {
            "__gone": pa.array(gone, pa.string()),
            "__follows": pa.array(map(bool, moved), pa.bool_()),
            **{name: pa.array([row.get(name) for row in moved], change.schema.field(name).type) for name in new},
        }
        relation(session, pa.table(removed)).createOrReplaceTempView("gone_rows")
        rows.createOrReplaceTempView("new_rows")
        empty = [name if name in new else f"NULL AS {quote_column(name)}" for name in change.schema.names]
        source = (
            f"SELECT CAST(NULL AS STRING) AS __gone, false AS __follows, {', '.join(names)} FROM new_rows "
            f"UNION ALL SELECT __gone, __follows, {', '.join(empty)} FROM gone_rows"
        )
        follow = f"WHEN MATCHED AND s.__follows THEN UPDATE SET {', '.join(f'{name} = s.{name}' for name in new)} " if new else ""
        self.merge(
            session,
            f"MERGE INTO {table_at(location)} t USING ({source}) s ON t.{key} = s.__gone AND {one_of(f't.{key}', gone)} {follow}"
            f"WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND s.__gone IS NULL THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{name}' for name in names)})",
        )

    def merge(self, session: SparkSession, statement: str) -> None:
        """Runs a MERGE in a session from :meth:`marked`."""
        with_retries(lambda: session.sql(statement).collect())

    def fence(self, location: str, marker: Marker) -> None:
        """Commits only ``marker``. Afterwards no other commit can carry its (app id, version).

        Succeeds if another commit already carries it; the log shows which. Starts Spark only if the table
        needs it.
        """
        if direct.commit(location, marker):
            return
        with self.marked(marker, location) as session:
            empty = session.sql(f"SELECT * FROM {table_at(location)} LIMIT 0")
            try:
                with_retries(lambda: empty.write.format("delta").mode("append").save(location))
            except Exception as error:  # filtered by condition: Spark Connect offers no more
                if not (condition_of(error) or "").startswith("DELTA_CONCURRENT_TRANSACTION"):
                    raise

    def _run(self, statement: str) -> None:
        with map_spark_errors(), self._gateway.pooled() as session:
            with_retries(lambda: session.sql(statement).collect())


def with_retries(command: Callable[[], T]) -> T:
    """Returns the result of a command. Retries it if it loses a race against other writers of the table."""
    for attempt in attempts_at(
        lambda error: is_conflict(condition_of(error)), attempts=_CONFLICT_ATTEMPTS, wait_initial=0.1, wait_max=2.0
    ):
        with attempt:
            return command()
    raise AssertionError("the last attempt raises")


# Excerpts: the files that some commits of a table added and removed, as a Delta table that Spark reads like
# any other.
#
# An excerpt consists of a log entry; the files stay where they are. Spark 4.2's ``CHANGES`` is not used:
# Delta 4.4 keeps the columns of the last planned query for all queries of an engine, so that two concurrent
# queries read rows with each other's columns.

#: Name of the folder with the excerpts of one hour, in the staging folder.
HOUR = "changes-%Y%m%d%H"

#: Additional partition columns of an excerpt: "insert" or "delete", and the commit's version and time in
#: milliseconds.
KIND, VERSION, TIME = "__volstream_kind", "__volstream_version", "__volstream_time"

_TYPES = {KIND: "string", VERSION: "long", TIME: "long"}

#: Properties without which the files cannot be read.
_NEEDED = ("delta.columnMapping.", "delta.rowTracking.", "delta.enableRowTracking")

_MAX_ID = "delta.columnMapping.maxColumnId"

_VECTORS = "deletionVectors"

_FIELDS = ("size", "partitionValues", "baseRowId", "defaultRowCommitVersion")

_OF_NULLS = ("nullable", "containsNull", "valueContainsNull")


def excerpt(location: str, first: int, last: int, warehouse: str) -> str:
    """Returns SQL for a relation with the rows of all files added and removed by versions ``first`` to
    ``last``, inclusive.

    Its columns are the table's at the last version, :data:`KIND`, :data:`VERSION` and :data:`TIME`. It leaves
    out commits that only merge files. It can be read for a day. Then a daemon deletes it from the staging
    folder of the warehouse.

    Raises:
        DependencyError: the log no longer has the commits, or they lack details of removed files.
        StorageError, DiskError: the table cannot be read, or the excerpt cannot be written.
    """
    try:
        with mapped(location):
            table = open_table(location, last)
            schema, files = schema_of(table), [*_files(location, first, last)]
            protocol = _protocol(table, files)
    except TableNotFoundError:
        raise DependencyError(f"There is no table at {location} any more.") from None
    metadata = _metadata(schema)
    entry = commits.lines([{"protocol": protocol}, {"metaData": metadata}, *files], in_order=True)
    size = sum(file["add"]["size"] for file in files)
    counts = {"tableSizeBytes": size, "numFiles": len(files), "numMetadata": 1, "numProtocol": 1}
    checksum = commits.lines([{**counts, "metadata": metadata, "protocol": protocol}], in_order=True)
    # The path depends on the content: a query repeated within the hour reuses the excerpt, whose file list
    # Spark has cached.
    hour = f"{datetime.now(UTC):{HOUR}}"
    target = f"{warehouse}/{STAGING}/{hour}/{hashlib.sha256(entry).hexdigest()[:32]}"
    with mapped(target):
        make_folder(f"{target}/_delta_log")
        put = create_file if can_create(target) else replace_file
        # With a checksum, Spark reads the columns without a separate job.
        put(f"{target}/_delta_log/{0:020d}.crc", checksum)
        put(f"{target}/_delta_log/{0:020d}.json", entry)
    return table_at(target)


def _protocol(table: DeltaTable, files: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the table's protocol, plus deletion vectors if any file has one: they may be off by now."""
    protocol = table.protocol()
    needed = {_VECTORS for file in files if "deletionVector" in file["add"]}
    writer_features = needed.union(protocol.writer_features or ())
    reader_features = needed.union(protocol.reader_features or writer_features & {"columnMapping"})
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted(reader_features),
        "writerFeatures": sorted(writer_features),
    }


def _nullable(part: Any) -> Any:
    """Makes everything in a part of a schema nullable, as it may have been in earlier versions."""
    if isinstance(part, list):
        return [_nullable(item) for item in part]
    if not isinstance(part, Mapping):
        return part
    return {key: True if key in _OF_NULLS else value if key == "metadata" else _nullable(value) for key, value in part.items()}


def _metadata(schema: Schema) -> Mapping[str, Any]:
    properties = {key: value for key, value in schema.properties.items() if key.startswith(_NEEDED)}
    fields = _nullable([*schema.fields])
    for name, kind in _TYPES.items():
        mapping = {}
        if _MAX_ID in properties:
            properties[_MAX_ID] = str(int(properties[_MAX_ID]) + 1)
            mapping = {"delta.columnMapping.id": int(properties[_MAX_ID]), "delta.columnMapping.physicalName": name}
        fields.append({"name": name, "type": kind, "nullable": True, "metadata": mapping})
    return {
        "id": "excerpt",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [*schema.partitions, *_TYPES],
        "configuration": properties,
    }


def _files(location: str, first: int, last: int) -> Iterator[Mapping[str, Any]]:
    """Yields an ``add`` action for each file that was added or removed."""
    root = quote(location, safe="/:@") if is_remote(location) else f"file://{quote(filesystem_of(location)[1])}"
    seen: dict[str, int] = {}
    for commit, changes in DeltaLog(location).changes(first, last):
        milliseconds = round(commit.timestamp.timestamp() * 1000)
        for name, kind in (("remove", "delete"), ("add", "insert")):
            for file in (action[name] for action in changes if action.get(name, {}).get("dataChange")):
                if any(file.get(field) is None for field in _FIELDS):  # optional for removals in the protocol
                    raise DependencyError(
                        f"Version {commit.version} of the table at {location} does not say what is in {file['path']}.",
                        "Write to the table with Delta 4 or volstream alone.",
                    )
                partition = {KIND: kind, VERSION: str(commit.version), TIME: str(milliseconds)}
                vector = file.get("deletionVector")
                yield {
                    "add": {
                        **{field: file[field] for field in _FIELDS},
                        "path": _spelled(root, file["path"], seen),
                        "partitionValues": {**file["partitionValues"], **partition},
                        "modificationTime": milliseconds,
                        "dataChange": True,
                        **({"deletionVector": _absolute(root, vector)} if vector else {}),
                    }
                }


def _spelled(root: str, path: str, seen: dict[str, int]) -> str:
    """Returns a file's URI. A log has each URI once, so a file that changes again gets another spelling."""
    number = seen[path] = seen.get(path, -1) + 1
    folder, slash, name = path.rpartition("/")
    places = [at.start() for at in re.finditer("%..|([a-z])", name) if at[1]]
    if number >> len(places):
        raise DependencyError(f"{path} was added and removed too often.", "Read the changes of fewer versions.")
    codes = {at: f"%{ord(name[at]):02X}" for bit, at in enumerate(places) if number >> bit & 1}
    spelled = "".join(codes.get(at, character) for at, character in enumerate(name))
    if own_file(path) is not None:
        return f"{root}/{folder}{slash}{spelled}"
    return f"{'' if urlsplit(path).scheme else 'file://'}{folder}{slash}{spelled}"


def _absolute(root: str, vector: Mapping[str, Any]) -> Mapping[str, Any]:
    file = file_of(vector)
    return vector if file is None else {**vector, "storageType": "p", "pathOrInlineDv": f"{root}/{quote(file)}"}
