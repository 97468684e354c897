"""Refuses statements that would take changes of a table away from its streams, hide what they read or write,
or create what the engine forgets; and keeps track of the views and variables that statements leave in their
session.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import TokenType

from volstream.api.statements import metastore
from volstream.base.definitions import DynamicJob, SourceKind, Stream
from volstream.base.model.names import RESERVED_COLUMNS, Name
from volstream.base.model.units import local
from volstream.changes.streams.sources import NEEDED, behind, tracked
from volstream.errors import InvalidStateError, InvalidValueError, SqlError
from volstream.spark.errors import map_spark_errors
from volstream.spark.frames import Views, relation
from volstream.spark.jvm.command import LEXING
from volstream.spark.session import misreading
from volstream.sql.names import parts_at
from volstream.sql.text import quote_column, type_of
from volstream.tables.delta import places
from volstream.tables.delta.log import retention
from volstream.tables.delta.opened import schema_at
from volstream.tables.delta.ownership import check_writable, owner_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.connect.session import SparkSession

    from volstream.home import Home
    from volstream.sql.statement import SparkStatement


def check_settings(home: Home, statement: SparkStatement) -> None:
    """Refuses to change a setting by which Spark would read a statement's names and texts in another way than
    volstream.

    Raises:
        SqlError: the statement would do so, or the session has done so by ``spark.conf``.
    """
    if statement.begins("RESET"):
        return
    if statement.begins("SET"):
        key, _, value = "".join(token.text for token in statement.tokens[1:]).partition("=")
        if key in LEXING and value.lower() not in ("", "false"):
            raise SqlError(f"{key} must stay false: volstream would misread statements.", LEXING[key])
    for key in misreading(home.spark):
        raise SqlError(f"{key} must stay false: volstream would misread statements.", f"Run RESET {key}. {LEXING[key]}")


def check_visible(home: Home, statement: SparkStatement, streams: Sequence[Stream]) -> None:
    """Refuses a statement whose text hides what it reads or writes: it would bypass streams and the guards of
    tables.

    Args:
        streams: those that it names.

    Raises:
        SqlError: the message names the remedy.
    """
    words = statement.words
    if statement.begins("EXECUTE", "IMMEDIATE"):
        raise SqlError(
            "EXECUTE IMMEDIATE is not supported: it hides which tables are read and written.", "Run the statement itself."
        )
    if words[:1] in (["CREATE"], ["ALTER"], ["DROP"]) and "VIEW" in words[1:5]:
        name = statement.named
        if home.catalog.streams.find(name) is not None:
            remedy = "Run DROP STREAM." if words[0] == "DROP" else "Choose another name for the view."
            raise SqlError(f"{name} is a stream, not a view.", remedy)
    if streams and (words[:1] == ["CACHE"] or "FUNCTION" in words[:5]):
        what = "cached table" if words[0] == "CACHE" else "function"
        raise SqlError(f"A {what} cannot read the stream {streams[0].name}: its rows disappear once they are consumed.")
    if statement.writes and statement.temporary_view is None:
        for reference in statement.references:
            temporary = not reference.qualified or reference.name.schema == "global_temp"
            if temporary and reference.name.name in home.stream_views:
                raise SqlError(
                    f"The temporary view {reference.name.name} reads a stream, which the statement would not consume.",
                    "Name the stream itself.",
                )


def note_view(home: Home, statement: SparkStatement, streams: Sequence[Stream]) -> None:
    """Remembers whether a temporary view that a statement has created reads streams, itself or by another
    view."""
    view = statement.temporary_view
    if view is None:
        if statement.begins("DROP", "VIEW"):
            home.stream_views.discard(statement.named.name)
        return
    read = {reference.name.name for reference in statement.references if not reference.qualified} - {view.name}
    if streams or read & home.stream_views:
        home.stream_views.add(view.name)
    else:
        home.stream_views.discard(view.name)


def note_variables(home: Home, statement: SparkStatement) -> None:
    """Remembers the names of variables that a statement declares in its session."""
    if not statement.begins("DECLARE"):
        return
    tokens, words = statement.tokens, statement.words
    at = 1 + 2 * (words[1:3] == ["OR", "REPLACE"])
    at += words[at : at + 1] in (["VARIABLE"], ["VAR"])
    while at < len(tokens):  # DECLARE a, session.b INT
        parts = parts_at(tokens, at)
        home.variables.add(parts[-1].text.lower())
        at += 2 * len(parts)
        if words[at - 1 : at] != [","]:
            break


def copy_variables(home: Home, copy: SparkSession) -> None:
    """Declares the variables of the user's session in a copy of the session: Spark copies settings, views and
    functions only, which may read the variables.
    """
    from pyspark.errors import PySparkException

    for name in sorted(home.variables):
        try:
            value = home.spark.sql(f"SELECT session.{quote_column(name)} AS value")
            kind = type_of(value.schema["value"].dataType.jsonValue())
            rows = value.toArrow()
        except PySparkException:
            continue  # it was dropped, belongs to another thread's session, or has a type that Arrow lacks
        views = Views(copy)
        view = views.show(relation(copy, rows))
        copy.sql(f"DECLARE OR REPLACE VARIABLE {quote_column(name)} {kind}").collect()
        copy.sql(f"SET VARIABLE {quote_column(name)} = (SELECT value FROM {view})").collect()


def check_not_hidden(spark: SparkSession, name: Name) -> None:
    """Raises SqlError if a temporary view has the name by which a statement means a stream."""
    if is_temporary_view(spark, name.name):
        what = f"{name.name} is both a stream and a temporary view of this session."
        raise SqlError(what, f"Write {name.qualified} for the stream.")


def is_temporary_view(spark: SparkSession, name: str) -> bool:
    """True if an unqualified name denotes a temporary view of a session: Spark prefers it to a table."""
    with map_spark_errors():
        return spark.catalog.tableExists(name) and spark.catalog.getTable(name).isTemporary


def check_no_view(home: Home, written: Name) -> None:
    """Raises SqlError if DML names a temporary view instead of the table that it shows."""
    if is_temporary_view(home.spark, written.name):
        raise SqlError(f"{written.name} is a temporary view.", "Name the table that it shows.")


def check_durable(home: Home, statement: SparkStatement) -> None:
    """Refuses views and SQL functions that only the engine knows, which forgets them when it ends.

    Raises:
        SqlError: Spark has no metastore that keeps them.
    """
    words = statement.words
    if words[:1] != ["CREATE"] or statement.is_temporary or metastore.is_configured(home.settings):
        return
    if "VIEW" in words[1:4]:
        raise SqlError(
            "Views are kept only by a metastore: without one, they are lost when the engine ends.",
            "CREATE TEMPORARY VIEW, for this session; or CREATE DYNAMIC TABLE, which keeps the rows up to date.",
        )
    if "FUNCTION" in words[1:4] and "RETURN" in words:
        raise SqlError(
            "SQL functions are kept only by a metastore: without one, they are lost when the engine ends.",
            "CREATE TEMPORARY FUNCTION, for this session; or a function in Python: CREATE FUNCTION f AS 'file.py:f' RETURNS INT.",
        )


def check_vacuum(home: Home, statement: SparkStatement) -> None:
    """Refuses a VACUUM that would remove files that a stream needs for unconsumed changes.

    Raises:
        InvalidStateError: the VACUUM would do so; the message names the stream and the remedy.
    """
    tokens, words = statement.tokens, statement.words
    position = 2 if words[1:2] == ["TABLE"] else 1
    if position >= len(tokens):
        return
    if tokens[position].token_type is TokenType.STRING:
        name = places.named_by(home.warehouse, tokens[position].text)
    else:
        named = statement.reference_at(position)
        name = None if named is None else named.name
    if name is None:
        return
    location = places.table_location(home.warehouse, name)
    schema = schema_at(location)
    if schema is None:
        return
    kept = retention(schema.properties)
    if "RETAIN" in words[:-1]:
        kept = timedelta(hours=float(words[words.index("RETAIN") + 1]))
    horizon = datetime.now(UTC) - kept
    found = behind(home.catalog.streams.list(source_id=str(name)), location, horizon)
    if found is not None:
        stream, begin = found
        raise InvalidStateError(
            f"VACUUM would remove files that the stream {stream.name} has not consumed yet: its changes begin at {local(begin)}.",
            f"Consume it first, discard its changes (volstream advance-stream {stream.name}), or RETAIN more hours.",
        )


def check_untracked(home: Home, statement: SparkStatement) -> None:
    """Refuses ``ALTER TABLE ... SET`` or ``UNSET TBLPROPERTIES`` if it ends the change tracking of a stream's
    source.

    Raises:
        InvalidStateError: a stream reads the table; the message names the stream and the remedy.
    """
    named = statement.reference_at(2)
    if named is None or "TBLPROPERTIES" not in statement.words:
        return
    said = {one.name: one.value or "false" for one in statement.properties}  # those of UNSET have no values
    check_tracking_stays(home, named.name, said)


def check_columns_stay(home: Home, statement: SparkStatement) -> None:
    """Refuses ``ALTER TABLE`` if it moves a table, takes columns away from a job's table, or gives a column
    of a tracked table a name with which its changes could not be read.

    Raises:
        InvalidStateError, InvalidValueError: it would do so.
    """
    named = statement.reference_at(2)
    if named is None:
        return
    after = [token.word for token in statement.tokens_after(named.end)]
    location = metastore.locate(home, named.name)
    if after[:2] in (["RENAME", "TO"], ["SET", "LOCATION"]) and location.startswith(f"{home.warehouse}/"):
        raise InvalidStateError(
            f"The table {named.name} cannot be moved: streams, jobs and other sessions find it by its name.",
            f"CREATE TABLE ... AS SELECT * FROM {named.name}, then drop {named.name}.",
        )
    adds = after[:2] in (["ADD", "COLUMN"], ["ADD", "COLUMNS"]) and isinstance(owner_of(home.catalog, location), DynamicJob)
    if adds or after[:2] in (["RENAME", "COLUMN"], ["DROP", "COLUMN"], ["DROP", "COLUMNS"], ["REPLACE", "COLUMNS"]):
        check_writable(home.catalog, named.name, location, home.warehouse)
    if after[:1] in (["ADD"], ["RENAME"]):
        schema = schema_at(location)
        said = {token.text.lower() for token in statement.tokens_after(named.end)} - {*(schema.columns if schema else ())}
        if schema is not None and tracked(schema) and (reserved := RESERVED_COLUMNS & said):
            raise InvalidValueError(f"The column name {min(reserved)} is reserved for streams.", "Choose another name.")


def check_tracking_stays(home: Home, table: Name, properties: Mapping[str, str]) -> None:
    """Raises InvalidStateError if properties end the change tracking of a table that a stream reads."""
    said = {key.lower(): value.lower() for key, value in properties.items()}
    if all(said.get(name.lower(), "true") == "true" for name in NEEDED):
        return
    for stream in home.catalog.streams.list(source_id=str(table)):
        if stream.source_kind is SourceKind.TABLE:
            raise InvalidStateError(
                f"The stream {stream.name} needs the change tracking of the table {table}.",
                "Drop the stream first, or the dynamic table or job that it serves.",
            )
