"""A stream as a source of a frame."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from volstream.base.model.names import Name
from volstream.errors import NotFoundError
from volstream.home import Home
from volstream.spark.frames import Views, bound_to, unique_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as SparkFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.base.definitions import Stream
    from volstream.changes.streams.read import Range


@dataclass(frozen=True)
class Leaf:
    """A stream in a frame: a view of its rows, re-created for the range that each action reads.

    The view, not the frame, is re-created, because columns taken from a frame (``df["id"]``) belong to that frame.
    """

    spark: SparkSession
    stream_id: str
    name: Name
    view: str
    views: Views = field(compare=False)

    @classmethod
    def of(cls, home: Home, stream: Stream) -> Leaf:
        spark = home.spark
        # Spark Connect caches the plans of frames whose columns were requested, with the views of that time.
        spark.conf.set("spark.connect.session.planCache.enabled", "false")
        leaf = cls(spark, stream.id, stream.name, unique_name(), Views(spark))
        leaf.read_now(home)
        return leaf

    def stream(self, home: Home) -> Stream:
        """Returns the stream's current state. Raises NotFoundError."""
        stream = home.catalog.streams.by_id(self.stream_id)
        if stream is None:
            raise NotFoundError(f"The stream {self.name} was dropped.")
        return stream

    def read_now(self, home: Home) -> None:
        """Points the view at the rows that a read of the stream sees now: in a transaction always the same."""
        stream = self.stream(home)
        consumption = home.open_consumption
        self.show(home, home.reader.pin(stream) if consumption is None else consumption.pin(stream))

    def show(self, home: Home, covered: Range | None) -> None:
        """Points the view at a range; None: the volume was never listed."""
        if covered is None:
            home.reader.unlisted(self.spark).createOrReplaceTempView(self.view)
        else:
            self.views.forget()
            query = home.reader.query(self.views, covered)
            self.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {self.view} AS {query}")


def consume(
    home: Home,
    leaves: Collection[Leaf],
    frame: SparkFrame,
    location: str,
    write: Callable[[SparkFrame], None],
    prepare: Callable[[], None] = lambda: None,
) -> None:
    """Writes a frame of streams into a table, by one commit that consumes them.

    Args:
        prepare: called while the streams are held, before the commit.
    """
    streams = {leaf.stream_id: leaf.stream(home) for leaf in leaves}
    with home.consumption() as consumption:
        taken = consumption.take(*streams.values())
        for leaf in leaves:
            leaf.show(home, taken[leaf.stream_id].covered if leaf.stream_id in taken else None)
        prepare()
        if taken:
            own = streams.values()
            consumption.write(location, lambda marked: write(bound_to(marked, frame)), streams=own, like=frame.sparkSession)
        else:  # volumes that were never listed have nothing to consume
            write(frame)
