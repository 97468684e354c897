"""Frames of a session, made from small local tables or from another session's frames."""

from __future__ import annotations

import sys
import uuid
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from volstream.base.model.names import DEFAULT_SCHEMA, Name
from volstream.spark.jvm.install import EXTENSION_CLASS
from volstream.sql.text import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import DataType, StructType


def bound_to(session: SparkSession, frame: DataFrame) -> DataFrame:
    """Returns another session's frame in a copy of that session."""
    from pyspark.sql.connect.dataframe import DataFrame as Connected

    return Connected(cast(Any, frame)._plan, session)


def warning(frame: DataFrame, message: str) -> DataFrame:
    """Makes a frame warn with ``message`` when it is written directly. Derived frames do not warn."""
    from pyspark.sql.connect.dataframe import DataFrame as Connected

    class Unconsumed(Connected):
        @property
        def write(self) -> Any:
            warnings.warn(message, UserWarning, stacklevel=2)
            return super().write

    assert isinstance(frame, Connected), "the gateway has no other frames"
    frame.__class__ = Unconsumed
    return frame


def show_in_notebooks(session: SparkSession) -> None:
    """Makes a notebook show the rows of a session's frames, as a table."""
    session.conf.set("spark.sql.repl.eagerEval.enabled", "true")
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        from pyspark.sql.connect.dataframe import DataFrame as Connected

        # Spark Connect's frames have a column of any name, so IPython does not see their methods.
        shell.display_formatter.formatters["text/html"].for_type(Connected, Connected._repr_html_)


def batches(frame: DataFrame) -> Iterator[pa.Table]:
    """Yields a frame's rows as they come from Spark, thousands at a time."""
    connected = cast(Any, frame)
    client = connected._session.client
    for part in client.to_table_as_iterator(connected._plan.to_proto(client), connected._plan.observations):
        if isinstance(part, pa.Table):  # the first part is the schema
            yield part


def relation(session: SparkSession, table: pa.Table) -> DataFrame:
    """Returns the rows of ``table`` with its column types, even if empty. Timestamps without a zone stay
    so."""
    from pyspark.sql.pandas.types import from_arrow_schema

    types = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    frame = session.createDataFrame(table if table.num_rows else [], types)
    cast(Any, frame)._cached_schema = types  # as Spark would return it, in 10 ms
    return frame


def mapped(frame: DataFrame, function: Any, schema: pa.Schema, profile: Any = None) -> DataFrame:
    """Returns ``frame.mapInArrow`` with a result of Arrow's types. As DDL, the types would take a request to
    Spark."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return frame.mapInArrow(function, from_arrow_schema(schema), profile=profile)


def without_collations(schema: pa.Schema) -> StructType:
    """Returns Spark's types without collations.

    Spark Connect sends a collation for each text in a result's type. Delta would write it into the schema of
    a table of such results, which other readers do not support.
    """
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    def strip(kind: DataType) -> None:
        match kind:
            case StringType():
                kind.collation = ""
            case ArrayType():
                strip(kind.elementType)
            case MapType():
                strip(kind.keyType)
                strip(kind.valueType)
            case StructType():
                for field in kind.fields:
                    strip(field.dataType)

    parsed = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    strip(parsed)
    return parsed


# Temporary views of a session. They live as long as the frames that read them.
#
# Spark resolves a view only when a frame's rows are requested, so a view cannot be dropped once its statement
# was parsed. But a session that reads streams for days must not accumulate views.

#: Calls that clean up unused views, by session. Collected here because frames end in any thread, where no
#: call to Spark is possible.
_unused: weakref.WeakKeyDictionary[Any, deque[Callable[[], object]]] = weakref.WeakKeyDictionary()


def unique_name() -> str:
    """Returns a unique name for a view."""
    return f"volstream_{uuid.uuid4().hex}"


def without_views(frame: DataFrame) -> DataFrame:
    """Returns the rows of ``SHOW TABLES`` or ``SHOW VIEWS`` without volstream's own views, which Spark lists
    in each schema."""
    (name,) = {"tableName", "viewName"} & set(frame.columns)
    return frame.where(f"NOT (isTemporary AND {name} RLIKE {literal('^volstream_')})")


class Views:
    """The views created by one statement. First drops the session's unused views."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._names: list[str] = []
        self._releases: list[Callable[[], object]] = []
        unused = _unused.setdefault(spark, deque())
        while unused:
            unused.popleft()()

    def new(self) -> str:
        """Returns a unique name for a view, because a frame keeps the range that it was created with."""
        self._names.append(unique_name())
        self._releases.append(partial(_drop, weakref.ref(self.spark), self._names[-1]))
        return self._names[-1]

    def on_release(self, call: Callable[[], object]) -> None:
        """Adds a call for the release of the views, for example to remove the files that they read."""
        self._releases.append(call)

    def of(self, query: str) -> str:
        """Creates a view of a query and returns its name. Uses SQL: a view of a frame of changes would lose
        its range."""
        name = self.new()
        self.spark.sql(f"CREATE TEMPORARY VIEW {name} AS {query}")
        return name

    def show(self, frame: DataFrame) -> str:
        """Creates a view of a frame that reads no changes, and returns its name."""
        name = self.new()
        frame.createOrReplaceTempView(name)
        return name

    @property
    def names(self) -> Sequence[str]:
        """The names of the views created so far."""
        return tuple(self._names)

    def forget(self) -> None:
        """Releases the views created so far: the session's next statement drops them."""
        _unused[self.spark].extend(self._releases)
        self._names.clear()
        self._releases.clear()

    def release_with(self, frame: DataFrame) -> DataFrame:
        """Releases the views once the frame, and everything derived from it, is deleted. Returns the
        frame."""
        if self._names:  # derived frames hold the frame's plan
            weakref.finalize(frame._plan, _unused[self.spark].extend, list(self._releases)).atexit = False
        return frame


def _drop(session: weakref.ref[Any], name: str) -> None:
    if (spark := session()) is not None:
        spark.catalog.dropTempView(name)


# Statements and expressions that may only read certain relations.
#
# Spark opens a relation's files to find its columns, so checking the plan would be too late. The guard is
# text that the engine's parser (``jvm/extension/GuardedParser.java``) removes and checks before Spark
# analyses the rest: the last line with its words, if only names follow. On a server without that parser the
# guard is a syntax error, so nothing runs unguarded.

#: Sessions, and whether their servers have the parser.
_guarding: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def guarded(text: str, tables: Iterable[Name] = (), views: Iterable[str] = ()) -> str:
    """Returns a query, SHOW, DESCRIBE or expression that Spark refuses unless it reads only these relations.

    Args:
        tables: in Spark's catalog. The default schema may be omitted in the text.
        views: temporary views. They may read anything.
    """
    names = [table.qualified for table in tables]
    short = [name.removeprefix(f"`{DEFAULT_SCHEMA}`.") for name in names]
    return "\n".join([text, "VOLSTREAM READS", *names, *short, *views, ""])


def computing(session: SparkSession, text: str) -> str:
    """Returns an expression that Spark refuses if it does anything besides computing with columns.

    On a foreign server without volstream's extension, returns the text unchanged.
    """
    return guarded(text) if is_guarding(session) else text


def is_guarding(session: SparkSession) -> bool:
    """True if the session's server has the parser."""
    if session not in _guarding:
        _guarding[session] = EXTENSION_CLASS in (session.conf.get("spark.sql.extensions", None) or "")
    return _guarding[session]
