"""Writes frames into tables of the home, in one commit that also consumes the streams that they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from volstream.api.statements import arrived, metastore
from volstream.base.model.arguments import checked
from volstream.base.model.names import DEFAULT_SCHEMA, Name
from volstream.changes.streams.consume import is_unused
from volstream.compat.leaf import Leaf, consume
from volstream.errors import AlreadyExistsError, InvalidValueError, NotFoundError
from volstream.home import Home
from volstream.spark.errors import as_sql_errors
from volstream.sql.statement import SparkStatement
from volstream.sql.text import type_of
from volstream.tables.delta import places
from volstream.tables.delta.opened import schema_at
from volstream.tables.delta.ownership import check_writable
from volstream.tables.delta.places import is_table
from volstream.tables.delta.writer import with_retries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as SparkFrame

_MODES = ("append", "overwrite", "errorifexists", "error", "ignore")


@checked
class Writer:
    """Writes a frame into a table of the home."""

    def __init__(self, home: Home, frame: SparkFrame, leaves: frozenset[Leaf], schema: str = DEFAULT_SCHEMA) -> None:
        self._home = home
        self._frame = frame
        self._leaves = leaves
        self._schema = schema
        self._mode = "errorifexists"

    def mode(self, mode: str) -> Writer:
        """Sets the action if the table exists: ``append``, ``overwrite``, ``ignore`` or, the default, ``errorifexists``."""
        if mode.lower() not in _MODES:
            raise InvalidValueError(f"{mode!r} is not a write mode.", f"Choose one of {', '.join(_MODES)}.")
        self._mode = mode.lower()
        return self

    def save_as_table(self, name: str, mode: str | None = None) -> None:
        """Writes the rows, and consumes the streams they come from, in one commit. Creates the table if it does not exist.

        ``overwrite`` gives the table the columns of the frame; ``append`` matches columns by name.

        Raises:
            AlreadyExistsError: the table exists, and the mode is ``errorifexists``; or a stream has that name.
            InvalidStateError: a job maintains the table.
            NotFoundError: the schema does not exist; or the stream was dropped.
            SqlError: Spark rejects it. Nothing was consumed.
            StreamBusyError, StreamStaleError, StreamSchemaChangedError: a stream cannot be consumed.
        """
        if mode is not None:
            self.mode(mode)
        target = Name.parse(name, self._schema)
        location = self._location(target)
        present = is_table(location)
        if present and self._mode == "ignore":
            return  # nothing is written, so nothing is consumed
        if present and self._mode.startswith("error"):
            raise AlreadyExistsError(f"There is already a table {target}.", "Choose mode append or overwrite.")
        with as_sql_errors():
            name, replaces = target.qualified, self._mode == "overwrite"
            stands_for = f"REPLACE TABLE {name} AS SELECT 1" if replaces else f"INSERT INTO {name} SELECT 1"
            with arrived.settled(self._home, SparkStatement(stands_for)):
                if self._leaves:
                    self._consume(location, present=present)
                else:
                    self._save(location, self._frame)

    saveAsTable = save_as_table  # noqa: N815  # as PySpark's

    def _consume(self, location: str, *, present: bool) -> None:
        created = False

        def create() -> None:
            # The marked commit needs a table. Create it only while the streams are held, in case another does so.
            nonlocal created
            if not present:
                self._frame.limit(0).write.format("delta").mode("error").save(location)
                created = True

        try:
            consume(self._home, self._leaves, self._frame, location, lambda frame: self._save(location, frame), create)
        except BaseException:
            if created and is_unused(self._home.catalog, location, {leaf.stream_id for leaf in self._leaves}):
                places.remove(location)
            raise

    def _save(self, location: str, frame: SparkFrame) -> None:
        mode = "overwrite" if self._mode == "overwrite" else "append"
        writer = frame.write.format("delta").mode(mode)
        if mode == "overwrite" and self._differs(location):
            writer = writer.option("overwriteSchema", "true")
        with_retries(lambda: writer.save(location))

    def _differs(self, location: str) -> bool:
        """Returns whether the frame's columns differ from the table's. Only then are they replaced, because that removes its
        partitions and constraints."""
        schema = schema_at(location)
        present = {} if schema is None else {name: schema.sql_type(name) for name in schema.columns}
        return present != {field.name: type_of(field.dataType.jsonValue()) for field in self._frame.schema.fields}

    def _location(self, target: Name) -> str:
        if self._home.catalog.streams.find(target) is not None:
            raise AlreadyExistsError(f"{target} is a stream: it cannot be written.", "Write to its source.")
        location = metastore.locate(self._home, target)
        check_writable(self._home.catalog, target, location, self._home.warehouse)
        schemas = places.inside(f"{self._home.warehouse}/tables")
        if target.schema not in (DEFAULT_SCHEMA, *schemas) and not is_table(location):
            raise NotFoundError(f"There is no schema {target.schema}.", f"First: CREATE SCHEMA {target.schema}.")
        return location
