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
    """Returns a frame of another session in one that was copied from it."""
    from pyspark.sql.connect.dataframe import DataFrame as Connected

    return Connected(cast(Any, frame)._plan, session)


def warning(frame: DataFrame, message: str) -> DataFrame:
    """Returns the frame, which warns with ``message`` when it is written directly; frames derived from it do not."""
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

        # IPython takes a frame of Spark Connect, which has a column of any name, for one without methods of its own.
        shell.display_formatter.formatters["text/html"].for_type(Connected, Connected._repr_html_)


def batches(frame: DataFrame) -> Iterator[pa.Table]:
    """Yields the rows of a frame as they come from Spark, some thousands at a time."""
    inside = cast(Any, frame)
    client = inside._session.client
    for part in client.to_table_as_iterator(inside._plan.to_proto(client), inside._plan.observations):
        if isinstance(part, pa.Table):  # the first part is the schema
            yield part


def relation(session: SparkSession, table: pa.Table) -> DataFrame:
    """Returns the rows of ``table`` with its column types, even if it is empty; a timestamp without a zone stays one."""
    from pyspark.sql.pandas.types import from_arrow_schema

    types = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
    frame = session.createDataFrame(table if table.num_rows else [], types)
    cast(Any, frame)._cached_schema = types  # what Spark would answer, in 10 ms
    return frame


def mapped(frame: DataFrame, function: Any, schema: pa.Schema, profile: Any = None) -> DataFrame:
    """Returns ``frame.mapInArrow`` with a result of Arrow's types: as DDL, Spark would have to be asked what they mean."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return frame.mapInArrow(function, from_arrow_schema(schema), profile=profile)


def without_collations(schema: pa.Schema) -> StructType:
    """Returns Spark's types without collations. Spark Connect sends a collation for each text in a result's type; Delta writes it
    into the schema of a table of such results, where other readers do not support it."""
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


# Temporary views of a session, which live as long as the frames that read them.
#
# Spark resolves a view only when a frame's rows are requested, so a view cannot be dropped after its
# statement was parsed; but a session that reads streams for days must not accumulate views.

#: What is to be done about unused views, by session. It is collected here because frames end in any thread, where no call can
#: be made.
_unused: weakref.WeakKeyDictionary[Any, deque[Callable[[], object]]] = weakref.WeakKeyDictionary()


def unique_name() -> str:
    """Returns a name for a view that no other one has."""
    return f"volstream_{uuid.uuid4().hex}"


def without_views(frame: DataFrame) -> DataFrame:
    """Returns the rows of ``SHOW TABLES`` or ``SHOW VIEWS`` without volstream's own views: Spark lists them in each schema."""
    (name,) = {"tableName", "viewName"} & set(frame.columns)
    return frame.where(f"NOT (isTemporary AND {name} RLIKE {literal('^volstream_')})")


class Views:
    """The views that one statement creates. Unused views of the session are dropped first."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._mine: list[str] = []
        self._releases: list[Callable[[], object]] = []
        unused = _unused.setdefault(spark, deque())
        while unused:
            unused.popleft()()

    def new(self) -> str:
        """Returns a unique name for a view, because a frame keeps the range that it was created with."""
        self._mine.append(unique_name())
        self._releases.append(partial(_drop, weakref.ref(self.spark), self._mine[-1]))
        return self._mine[-1]

    def on_release(self, call: Callable[[], object]) -> None:
        """Adds a call to be made once the views are released, for example to remove the files that they read."""
        self._releases.append(call)

    def of(self, query: str) -> str:
        """Creates a view of a query and returns its name. Uses SQL, because a view of a frame of changes would lose the range."""
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
        return tuple(self._mine)

    def forget(self) -> None:
        """Releases the views created so far: the session's next statement drops them."""
        _unused[self.spark].extend(self._releases)
        self._mine.clear()
        self._releases.clear()

    def release_with(self, frame: DataFrame) -> DataFrame:
        """Releases the views once the frame, and everything derived from it, is gone. Returns the frame."""
        if self._mine:  # derived frames hold the frame's plan
            weakref.finalize(frame._plan, _unused[self.spark].extend, list(self._releases)).atexit = False
        return frame


def _drop(session: weakref.ref[Any], name: str) -> None:
    if (spark := session()) is not None:
        spark.catalog.dropTempView(name)


# Statements and expressions that may read certain relations only.
#
# To find a relation's columns Spark opens its files, so a look at the plan comes too late. The guard is text
# that the engine's parser (``jvm/extension/GuardedParser.java``) removes and checks before Spark analyses the
# rest: the last line of its words, if only names follow. A server without that parser takes it for a syntax
# error, so nothing runs unguarded.

#: Sessions, and whether their servers have the parser.
_guarding: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def guarded(text: str, tables: Iterable[Name] = (), views: Iterable[str] = ()) -> str:
    """Returns a query, SHOW, DESCRIBE or expression that Spark refuses unless it reads only these relations.

    Args:
        tables: in Spark's catalog; those of the default schema may be named without it.
        views: temporary views. Whatever they read passes.
    """
    names = [table.qualified for table in tables]
    short = [name.removeprefix(f"`{DEFAULT_SCHEMA}`.") for name in names]
    return "\n".join([text, "VOLSTREAM READS", *names, *short, *views, ""])


def computing(session: SparkSession, text: str) -> str:
    """Returns an expression that Spark refuses if it does anything besides computing with columns.

    On a server that others started, without volstream's extension, the text is returned as it is.
    """
    return guarded(text) if is_guarding(session) else text


def is_guarding(session: SparkSession) -> bool:
    """True if the session's server has the parser."""
    if session not in _guarding:
        _guarding[session] = EXTENSION_CLASS in (session.conf.get("spark.sql.extensions", None) or "")
    return _guarding[session]
