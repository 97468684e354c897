"""Running a statement: tables of the warehouse are attached, streams and directories bound to views, the rest is Spark's.

Spark's embedded catalog is in memory and dies with the engine, so tables are attached by their path at their first mention.
A statement that would consume a stream is refused here.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from volstream.delta.log import DeltaLog
from volstream.delta.writer import literal, table_at
from volstream.directory import table as directory
from volstream.errors import InvalidStateError, SqlError
from volstream.model.names import DEFAULT_SCHEMA, Name, quote
from volstream.spark.errors import map_spark_errors, sql_error
from volstream.spark.frames import relation
from volstream.sql import names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.model.objects import Stream
    from volstream.session import Session


def run_statement(session: Session, statement: str) -> DataFrame:
    """Runs one statement; a query is run when its frame is asked for rows.

    Raises:
        SqlError: volstream or Spark refuses it.
    """
    with _as_sql_errors():
        return _Statement(session, session.gateway.session()).run(statement)


class _Statement:
    """One statement in one Spark session."""

    def __init__(self, session: Session, spark: SparkSession) -> None:
        self._session = session
        self._spark = spark
        self._tables = f"{session.warehouse}/tables"

    def run(self, statement: str) -> DataFrame:
        words = names.words(statement)
        self._use_schema(DEFAULT_SCHEMA)
        self._spark.sql(f"USE `{DEFAULT_SCHEMA}`")
        text = self._bind(statement)
        match words[:2]:
            case ["SHOW", "TABLES"]:
                self._attach_all(Name.parse(names.last(statement)).name if len(words) > 2 else DEFAULT_SCHEMA)
            case ["CREATE", "SCHEMA" | "DATABASE"] if "LOCATION" not in words:
                schema = names.last(statement)
                text += f" LOCATION {literal(f'{self._tables}/{Name.parse(schema).name}')}"
            case ["DROP", "TABLE"]:
                return self._drop(statement, text)
        return self._spark.sql(text)

    def _bind(self, statement: str) -> str:
        """The statement with streams and directories as views, and every table it names attached."""
        text = statement
        writing = names.writes(statement)
        for reference in reversed(names.references(statement)):
            replacement: str | None = None
            stream = self._session.catalog.streams.find(reference.name)
            if reference.directory:
                replacement = self._directory_view(reference.name)
            elif stream is not None:
                if writing:
                    raise SqlError(
                        f"The statement would consume the stream {stream.name}: this version consumes streams by jobs only.",
                        "Make a job of it (volstream create-job), or read the stream with SELECT.",
                    )
                replacement = self._stream_view(stream)
                if reference.takes_alias:  # so that columns can be qualified by the stream's name
                    replacement += f" AS {quote(stream.name.name)}"
            else:
                self._attach(reference.name)
            if replacement is not None:
                text = text[: reference.start] + replacement + text[reference.end :]
        return text

    def _directory_view(self, name: Name) -> str:
        volume = self._session.catalog.volumes.get(name)
        location = directory.location(self._session.warehouse, volume.id)
        view = _new_view()
        if DeltaLog(location).exists():
            columns = ", ".join(directory.COLUMNS)
            frame = self._spark.sql(f"SELECT {columns} FROM {table_at(location)}")
        else:
            frame = relation(self._spark, directory.SCHEMA.empty_table())
        frame.createOrReplaceTempView(view)
        return view

    def _stream_view(self, stream: Stream) -> str:
        reader = self._session.reader
        view = _new_view()
        reader.frame(self._spark, reader.pin(stream)).createOrReplaceTempView(view)
        return view

    def _attach(self, name: Name) -> None:
        location = f"{self._tables}/{name.schema}/{name.name}"
        if self._exists(f"{self._tables}/{name.schema}"):
            self._use_schema(name.schema)
        if self._exists(f"{location}/_delta_log"):
            self._spark.sql(f"CREATE TABLE IF NOT EXISTS {name.qualified} USING DELTA LOCATION {literal(location)}")

    def _attach_all(self, schema: str) -> None:
        filesystem, path = fs.FileSystem.from_uri(f"{self._tables}/{schema}")
        for info in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)):
            if info.type == fs.FileType.Directory:
                self._attach(Name(schema, info.base_name))

    def _use_schema(self, schema: str) -> None:
        place = literal(f"{self._tables}/{schema}")
        self._spark.sql(f"CREATE SCHEMA IF NOT EXISTS `{schema.replace('`', '``')}` LOCATION {place}")

    def _drop(self, statement: str, text: str) -> DataFrame:
        """Drops a table with its data: Spark takes an attached table for one whose files are somebody else's."""
        name = Name.parse(names.last(statement))
        owner = DeltaLog(f"{self._tables}/{name.schema}/{name.name}").properties().get("volstream.job")
        job = self._session.catalog.jobs.by_id(owner) if owner else None
        if job is not None:
            raise InvalidStateError(
                f"The table {name} belongs to job {job.name}.", f"First: volstream drop job {job.name}."
            )
        result = self._spark.sql(text)
        filesystem, path = fs.FileSystem.from_uri(f"{self._tables}/{name.schema}/{name.name}")
        if filesystem.get_file_info(path).type == fs.FileType.Directory:
            filesystem.delete_dir(path)
        return result

    def _exists(self, location: str) -> bool:
        filesystem, path = fs.FileSystem.from_uri(location)
        return bool(filesystem.get_file_info(path).type == fs.FileType.Directory)


def _new_view() -> str:
    """A name of its own for each reference: a frame finds its view only when it is asked for rows, and keeps its range."""
    return f"volstream_{uuid.uuid4().hex}"


def rows(session: Session, statement: str) -> tuple[list[str], Iterator[dict[str, Any]]]:
    """Runs one statement; its columns, and its rows one after the other, from Spark as they are asked for.

    Raises:
        SqlError: as :func:`run_statement`; also while rows are asked for.
    """
    frame = run_statement(session, statement)
    with _as_sql_errors():
        columns = frame.columns

    def found() -> Iterator[dict[str, Any]]:
        with _as_sql_errors():
            for row in frame.toLocalIterator():
                yield row.asDict(recursive=True)

    return columns, found()


@contextmanager
def _as_sql_errors() -> Iterator[None]:
    from pyspark.errors import PySparkException

    try:
        with map_spark_errors():
            yield
    except PySparkException as error:
        raise sql_error(error) from error
