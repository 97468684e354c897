"""``session.source``: tables that are filled event by event, or item by item."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from volstream.api.objects.base import Collection
from volstream.api.objects.dynamic import DynamicTables
from volstream.api.objects.functions import Functions
from volstream.base.definitions import Source, SourceDefinition, SourceType
from volstream.base.definitions.options import keys, read, to_alter
from volstream.base.model.arguments import checked, takes
from volstream.base.model.names import Name
from volstream.errors import InvalidValueError
from volstream.home import Home

if TYPE_CHECKING:  # imported where they are used: commands that only read definitions need none of them
    import pyarrow as pa

    from volstream.api.objects.items import ItemTable
    from volstream.api.objects.uploads import UploadedTable
    from volstream.base.definitions.keywords import SourceChanges
    from volstream.ingest.local import LocalTables
    from volstream.ingest.sources.events import EventStream
    from volstream.ingest.sources.tables import Appender

#: What a retention may be.
Retention = Annotated[str | timedelta | None, "'30 days', a timedelta, or None to keep events for ever"]

RETENTION_POLICY = keys(SourceDefinition)["retention_policy"]


@checked
class Sources(Collection[Source]):
    """The tables that are filled through a session. What is added is committed every ``commit_seconds``."""

    def __init__(self, home: Home, functions: Functions, dynamic_tables: DynamicTables) -> None:
        super().__init__(home, home.catalog.sources)
        self._functions = functions
        self._dynamic_tables = dynamic_tables

    @cached_property
    def _tables(self) -> LocalTables:
        from volstream.ingest.local import LocalTables

        return LocalTables(self._home)

    def create_stream(
        self, name: str, retention_policy: Retention = None, *, comment: str | None = None, if_not_exists: bool = False
    ) -> EventStream:
        """Creates a table of events; :meth:`EventStream.upload` adds to it.

        Args:
            retention_policy: age at which events are deleted, like ``30 days``; None: they are kept for ever.

        Raises:
            AlreadyExistsError: the name is taken.
            InvalidValueError: not a duration.
        """
        from volstream.ingest.sources import tables

        source = tables.new_source(
            Name.parse(name), SourceType.EVENTS, retention=RETENTION_POLICY.read(retention_policy), comment=comment
        )
        self._create(source, tables.EVENT_COLUMNS, if_not_exists=if_not_exists)
        return self.get_stream(name)

    def get_stream(self, name: str) -> EventStream:
        """Returns a stream that :meth:`create_stream` created. Raises NotFoundError."""
        from volstream.ingest.sources.events import EventStream

        source = self._of_kind(name, SourceType.EVENTS, "stream of events")
        return EventStream(source, self._appender(source))

    def create_table(
        self,
        name: str,
        primary_key: str,
        data: Iterable[Mapping[str, Any]] | None = None,
        immutable: bool = False,
        version: int | None = None,
        *,
        comment: str | None = None,
        if_not_exists: bool = False,
    ) -> ItemTable:
        """Creates a keyed table of items, or a version of an immutable one.

        Args:
            primary_key: the name of the items' key.
            data: its items; required if it is immutable.
            immutable: its items never change; another ``version`` replaces them all, and older ones can still be read.
            version: number of the version to create; default: the next one, unless the newest has the same data.

        Raises:
            AlreadyExistsError: the name is taken; or the version exists with other data.
            InvalidValueError: an item lacks its key, or two have the same one; then nothing is created.
        """
        import pyarrow as pa

        from volstream.ingest.sources import tables, versions
        from volstream.ingest.sources.events import columns_of, stored

        parsed = Name.parse(name)
        if not immutable and version is not None:
            raise InvalidValueError("Only immutable tables have versions.", "Pass immutable=True.")
        if immutable and data is None:
            raise InvalidValueError("An immutable table needs its data.", "Pass data=[...].")
        columns = columns_of(primary_key)
        data = list(data or ())
        rows = [stored(item, primary_key) for item in data]
        keys, texts = zip(*rows, strict=True) if rows else ((), ())
        items = pa.table([pa.array(keys, pa.string()), pa.array(texts, pa.string())], schema=columns)
        versions.check_keys(items, primary_key)
        source = tables.new_source(parsed, SourceType.ITEMS, primary_key=primary_key, immutable=immutable, comment=comment)
        existing = self._definitions.find(parsed) if immutable else None
        if existing is None:
            self._create(source, columns, if_not_exists=if_not_exists)
        elif not (existing.immutable and existing.kind is SourceType.ITEMS and existing.primary_key == primary_key):
            raise InvalidValueError(
                f"{existing.name} is not an immutable table with the primary key {primary_key}.", "Choose another name."
            )
        else:
            source = existing
        if immutable:
            versions.add(self._home, source, version, items)
        table = self._items(name)
        if not immutable and rows:
            table.insert_all(data)
        return table

    def get_table(self, name: str) -> ItemTable | UploadedTable:
        """Returns a table that :meth:`create_table` or :meth:`Connectors.upload_file` created. Raises NotFoundError."""
        from volstream.api.objects.uploads import UploadedTable

        source = self.get(name)
        return UploadedTable(self._home, source.name) if source.kind is SourceType.FILES else self._items(name)

    def _items(self, name: str) -> ItemTable:
        from volstream.api.objects.items import ItemTable

        source = self._of_kind(name, SourceType.ITEMS, "table of items")
        return ItemTable(self._home, source, self._appender(source), self._functions, self._dynamic_tables)

    @takes(to_alter(SourceDefinition), changes=True)
    def alter(self, name: str, **changes: Unpack[SourceChanges]) -> Source:
        """Changes a source: its ``retention_policy``, as in :meth:`create_stream`, or its ``comment``.

        Raises:
            NotFoundError: there is no such source.
            InvalidValueError: not a duration.
        """
        values = read(SourceDefinition, changes)
        return self._definitions.change(self.get(name), **values)

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a source with its table; returns False if it does not exist and ``if_exists`` is set.

        Raises:
            NotFoundError: there is no such source.
            ObjectInUseError: a stream or a dynamic table reads it.
        """
        from volstream.ingest.sources import tables

        source = self._definitions.find(Name.parse(name)) if if_exists else self.get(name)
        if source is None:
            return False
        tables.drop(self._home, source)
        return True

    def close(self) -> None:
        """Commits what can be committed without starting an engine."""
        if "_tables" in self.__dict__:
            self._tables.close()

    def _create(self, source: Source, columns: pa.Schema, *, if_not_exists: bool) -> None:
        from volstream.ingest.sources import tables

        existing = self._definitions.find(source.name)
        if existing is None or not if_not_exists:
            tables.create(self._home, source, columns)

    def _of_kind(self, name: str, kind: SourceType, noun: str) -> Source:
        source = self.get(name)
        if source.kind is not kind:
            raise InvalidValueError(f"{source.name} is not a {noun}.", f"Its kind is {source.kind}.")
        return source

    def _appender(self, source: Source) -> Appender:
        from volstream.ingest.sources.tables import Appender

        return Appender(self._home, source.name, self._tables.table(source.name))
