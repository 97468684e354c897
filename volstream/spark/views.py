"""Temporary views of a session, which live as long as the frames that read them.

Spark looks a view up only when a frame is asked for rows, so that a view cannot go when its statement was read; and a
session that reads streams for days must not gather them.
"""

from __future__ import annotations

import uuid
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

#: Names of views that nothing reads any more, by session. Frames end in any thread, and no call can be made then.
_unused: weakref.WeakKeyDictionary[Any, deque[str]] = weakref.WeakKeyDictionary()


class Views:
    """The views that one statement makes. What was left behind by others of the session goes first."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._mine: list[str] = []
        left = _unused.setdefault(spark, deque())
        while left:
            spark.catalog.dropTempView(left.popleft())

    def new(self) -> str:
        """A name of its own for each view: a frame keeps the range that it was made with."""
        self._mine.append(f"volstream_{uuid.uuid4().hex}")
        return self._mine[-1]

    def of(self, query: str) -> str:
        """A view of a query, made by SQL: of a frame of changes, Spark's views lose the range. Its name."""
        name = self.new()
        self.spark.sql(f"CREATE TEMPORARY VIEW {name} AS {query}")
        return name

    def show(self, frame: DataFrame) -> str:
        """A view of a frame that reads no changes. Its name."""
        name = self.new()
        frame.createOrReplaceTempView(name)
        return name

    def forget(self) -> None:
        """Lets the views go that were made so far: the next statement of the session drops them."""
        _unused[self.spark].extend(self._mine)
        self._mine.clear()

    def live_with(self, frame: DataFrame) -> DataFrame:
        """Lets the views go when the frame, and all that was made of it, are gone. Returns the frame."""
        if self._mine:  # frames that are made of it hold its plan
            weakref.finalize(frame._plan, _unused[self.spark].extend, list(self._mine)).atexit = False
        return frame
