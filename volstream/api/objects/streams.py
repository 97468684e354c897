"""Streams: cursors over volumes and tables."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Unpack

from volstream.api.objects.base import Collection
from volstream.base.definitions import Stream, StreamSpec
from volstream.base.definitions.options import read, to_create
from volstream.base.model.arguments import checked, takes
from volstream.base.model.names import Name
from volstream.base.model.work import PlanKind
from volstream.errors import InvalidStateError, InvalidValueError

if TYPE_CHECKING:
    from volstream.api.objects.open_stream import OpenStream
    from volstream.base.definitions.keywords import StreamKeywords
    from volstream.home import Home


@checked
class Streams(Collection[Stream]):
    """Cursors over the changes of volumes and tables."""

    def __init__(self, home: Home) -> None:
        super().__init__(home, home.catalog.streams)

    def get(self, name: str) -> OpenStream:
        """Returns the stream called ``name``, which can be consumed. Raises NotFoundError."""
        from volstream.api.objects.open_stream import (
            OpenStream,  # imports pyarrow and deltalake, which a list of names does not need
        )

        return OpenStream.of(self._home, super().get(name))

    @takes(to_create(StreamSpec, "volume", "table"))
    def create(
        self,
        name: str,
        volume: str | None = None,
        *,
        table: str | None = None,
        or_replace: bool = False,
        if_not_exists: bool = False,
        **options: Unpack[StreamKeywords],
    ) -> Stream:
        """Creates a stream on a volume or a table; options are those of :class:`~volstream.base.definitions.StreamSpec`.

        Reads the log of the table; changes nothing but the catalog.

        Raises:
            NotFoundError: the volume or the table does not exist.
            InvalidStateError: the changes of the table are not tracked.
            InvalidValueError: neither a volume nor a table is given, or both; a start that the source does not have.
            AlreadyExistsError: a stream or a table has this name.
            ObjectInUseError: the stream to replace serves a job.
        """
        from volstream.api.statements import metastore
        from volstream.changes.streams.definitions import create_stream

        if table is not None:
            metastore.locate(self._home, Name.parse(table))
        if or_replace:
            self.free(name)
        on_volume, on_table = (Name.parse(source) if source else None for source in (volume, table))
        values = read(StreamSpec, options)
        spec = StreamSpec(name=Name.parse(name), volume=on_volume, table=on_table, **values)
        return create_stream(self._home.catalog, self._home.warehouse, spec, or_replace=or_replace, if_not_exists=if_not_exists)

    def alter(self, name: str, *, comment: str | None) -> Stream:
        """Changes a stream's comment. Raises NotFoundError."""
        return self._definitions.change(self._definitions.get(Name.parse(name)), comment=comment)

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a stream; returns False if it does not exist and ``if_exists`` is set. Its source stays.

        Raises:
            NotFoundError: no such stream, without ``if_exists``.
            ObjectInUseError: a job consumes it.
            StreamBusyError: a consumption is open.
        """
        from volstream.changes.streams.definitions import drop_stream

        self.free(name)
        return drop_stream(self._home.catalog, Name.parse(name), if_exists=if_exists)

    def has_data(self, name: str) -> bool:
        """Returns whether a read may return rows. Reads the log of the source, without Spark.

        Raises:
            NotFoundError: no such stream.
            StreamStaleError: it can no longer be read.
        """
        return self._home.reader.has_data(self.get(name))

    def reset(self, name: str, *, to_version: int | None = None, to_timestamp: datetime | None = None) -> Stream:
        """Moves the offset to a version or a time, back or forth: later changes are delivered, some of them again.

        Raises:
            NotFoundError: no such stream.
            InvalidValueError: neither is given, or both; the history of the source does not have it.
            StreamBusyError: a consumption is open.
        """
        from volstream.changes.streams.definitions import move_stream

        if (to_version is None) == (to_timestamp is None):
            raise InvalidValueError("Give either a version or a time to reset the stream to.")
        self.free(name)
        return move_stream(self._home.catalog, self._home.warehouse, Name.parse(name), to_version, to_timestamp)

    def advance(self, name: str, *, to_version: int | None = None) -> Stream:
        """Discards unconsumed changes: moves the offset to ``to_version``, by default to the newest.

        Raises:
            NotFoundError: no such stream.
            InvalidValueError: the version is before the offset, or does not exist yet.
            StreamBusyError: a consumption is open.
        """
        from volstream.changes.streams.definitions import advance_stream

        self.free(name)
        return advance_stream(self._home.catalog, self._home.warehouse, Name.parse(name), to_version)

    def free(self, name: str) -> None:
        """Finds out whether a consumption that a statement left open was committed, and closes it. Needs Spark only if there is
        one. Raises StreamBusyError if it is still running."""
        stream = self._home.catalog.streams.find(Name.parse(name))
        plan = None if stream is None else self._home.catalog.consumptions.open_plan(stream.id)
        if stream is None or plan is None or plan.kind is not PlanKind.STATEMENT:
            return
        with self._home.consumption() as consumption:
            consumption.free(stream)

    def resolve(self, name: str, *, committed: bool) -> None:
        """Records what became of an attempt whose outcome volstream cannot determine, because its table was dropped or replaced.

        Args:
            committed: True: its changes are in the table, and the offset moves; False: the next run delivers them again.

        Raises:
            NotFoundError: no such stream.
            InvalidStateError: it has no open attempt.
        """
        from volstream.catalog.consumptions import BatchOutcome

        stream = self.get(name)
        intent = self._home.catalog.consumptions.open_intent(stream.id)
        if intent is None:
            raise InvalidStateError(f"The stream {name} has no open attempt.", "Nothing needs to be resolved.")
        if committed:
            batch = self._home.catalog.reports.batch(intent.batch_id)
            self._home.catalog.consumptions.commit(intent, BatchOutcome(batch.files if batch else 0, 0, 0))
        else:
            self._home.catalog.consumptions.abort(intent, "Resolved by hand.")
