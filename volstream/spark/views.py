"""Temporary views of a session, which live as long as the frames that read them.

Spark resolves a view only when a frame's rows are requested, so a view cannot be dropped after its statement was parsed; but
a session that reads streams for days must not accumulate views.
"""

from __future__ import annotations

import uuid
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from volstream.sql.text import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

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
