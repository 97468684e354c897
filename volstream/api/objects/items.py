"""Tables of items and of uploaded files.

Items are JSON objects, and a new item replaces the one with the same key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volstream.api.objects.collections import Functions
from volstream.api.objects.dynamic import DynamicTables
from volstream.base.definitions import Source
from volstream.base.model.arguments import checked
from volstream.base.model.names import Name, quote
from volstream.base.model.work import groups
from volstream.errors import InvalidStateError, InvalidValueError
from volstream.home import Home
from volstream.ingest.sources import tables, versions
from volstream.ingest.sources.events import ITEM, columns_of, key_text, stored
from volstream.ingest.sources.tables import Appender
from volstream.sql.text import literal
from volstream.tables.delta import places
from volstream.tables.tails.lookup import Lookup
from volstream.tables.tails.tail import DELETE, OPERATION, UPSERT
from volstream.tables.tails.writer import TailWriter, commit_tail

if TYPE_CHECKING:
    pass

#: Maximum number of items in one flush.
_MAX_ITEMS = 10_000


@checked
class ItemTable:
    """A keyed table of items. Thread-safe.

    Its columns are the primary key, a STRING, and ``item``, the whole item as JSON. Keys are texts or
    integers. An integer and its text are the same key.

    Attributes:
        name: the table's name, for SQL.
    """

    def __init__(
        self, home: Home, source: Source, appender: Appender, functions: Functions, dynamic_tables: DynamicTables
    ) -> None:
        self.name = str(source.name)
        self._home = home
        self._source_name = source.name
        self._key = str(source.primary_key)
        self._location = places.table_location(home.warehouse, source.name)
        self._appender = appender
        self._functions = functions
        self._dynamic_tables = dynamic_tables
        self._lookup = Lookup(self._location, [self._key])
        self._versions = versions.VersionReader(home, source.name)
        self._schema = pa.schema([(OPERATION, pa.string()), (self._key, pa.string()), (ITEM, pa.string())])

    @property
    def source(self) -> Source:
        """Its current definition. Raises NotFoundError."""
        return self._home.catalog.sources.get(self._source_name)

    @property
    def versions(self) -> Sequence[int]:
        """The versions of an immutable table, ascending."""
        return versions.numbers(self.source)

    def insert(self, item: Mapping[str, Any]) -> None:
        """Adds an item, or replaces the one with its key. When this returns, the item is durable, and
        :meth:`get` returns it.

        Raises:
            InvalidValueError: it lacks the key, or contains a value that JSON lacks.
            InvalidStateError: the table is immutable.
            VolstreamError: it cannot be written.
        """
        self.insert_all([item])

    def insert_all(self, items: Iterable[Mapping[str, Any]]) -> int:
        """Adds items in order, many at a time. Returns their number. See :meth:`insert`.

        They are added in groups of 10,000. If an item is invalid, its whole group is left out.
        """
        return self._send((UPSERT, *stored(item, self._key)) for item in items)

    def delete(self, key: str | int) -> None:
        """Deletes the item with a key, if it exists. Raises as :meth:`insert`."""
        self._send([(DELETE, key_text(key, self._key), None)])

    def get(self, key: str | int, version: int | None = None) -> dict[str, Any] | None:
        """Returns the item with a key, or None. Sees everything that was inserted before.

        Args:
            version: of an immutable table. The newest by default.

        Raises:
            InvalidValueError: the table does not have the version.
        """
        text = key_text(key, self._key)
        if self.source.immutable:
            row = self._versions.get(text, version)
        elif version is None:
            row = self._lookup.get(text)
        else:
            raise InvalidValueError(f"The table {self.name} has no versions.", "Only immutable tables do.")
        item: dict[str, Any] | None = None if row is None else json.loads(row[ITEM])
        return item

    def make_immutable(self, version: int = 1) -> None:
        """Commits the inserted items as a version that stays. Nothing can be inserted any more.

        Raises:
            InvalidStateError: the table is immutable already.
            ObjectInUseError: another process is doing so.
        """

        with versions.alone(self._home, self._source_name):
            source = self.source
            if source.immutable and source.options.get("versions"):
                raise InvalidStateError(f"The table {self.name} is immutable already.")
            number = versions.number_for(source, version)
            self._home.catalog.sources.change(source, immutable=True)
            TailWriter(self._location).seal()  # acknowledged rows are in the version
            commit_tail(self._location, lambda: self._home.gateway)
            self._home.delta.set_properties(self._location, tables.KEPT)
            versions.note(self._home, source, number)

    def project(self, name: str, transformation: str | Callable[[dict[str, Any]], Any], primary_key: str | None = None) -> None:
        """Creates a table ``name`` of this table's items, transformed, which follows all changes. The daemon
        keeps it.

        It is a dynamic table: SQL, streams and further projections can read it, and nothing can be inserted.

        Args:
            transformation: a function of an item, which returns an item, or None to leave it out. It is
                imported from its file wherever it runs, so it must be at the top level of a module. Or the
                text of a query on this table.
            primary_key: of the resulting items. This table's by default. Ignored for a query.

        Raises:
            InvalidValueError: the function cannot be pickled.
            SqlError: the query is invalid.
            AlreadyExistsError: the name is taken.
        """
        if isinstance(transformation, str):
            self._dynamic_tables.create(name, transformation, on_change=True)
            return
        key = primary_key or self._key
        columns_of(key)
        target = Name.parse(name)
        function = Name(target.schema, f"{target.name}_projection")
        self._functions.create(str(function), transformation, "STRING", of_items=True, or_replace=True)
        path = literal(f"$['{key}']")
        query = (
            f"SELECT coalesce(get_json_object({ITEM}, {path}), raise_error({literal(f'An item has no {key}.')})) "
            f"AS {quote(key)}, {ITEM} FROM (SELECT {function.qualified}({ITEM}) AS {ITEM} FROM {self._source_name.qualified}) "
            f"WHERE {ITEM} IS NOT NULL"
        )
        try:
            self._dynamic_tables.create(name, query, on_change=True)
        except BaseException:
            self._functions.drop(str(function), if_exists=True)
            raise

    def __repr__(self) -> str:
        return f"ItemTable({self.name!r})"

    def _send(self, rows: Iterable[tuple[str, str, str | None]]) -> int:
        if self.source.immutable:
            raise InvalidStateError(
                f"The table {self.name} is immutable.",
                "Create its next version: session.source.create_table(..., immutable=True, version=...).",
            )
        return sum(self._append(group) for group in groups(rows, _MAX_ITEMS))

    def _append(self, rows: Sequence[tuple[str, str, str | None]]) -> int:
        columns = zip(*rows, strict=True)
        self._appender.append(pa.table([pa.array(column, pa.string()) for column in columns], schema=self._schema))
        return len(rows)


# Tables of uploaded files.


@checked
class UploadedTable:
    """An immutable table of uploaded files, of which each is a version. Thread-safe.

    Attributes:
        name: the table's name, for SQL, which sees the newest version.
    """

    def __init__(self, home: Home, name: Name) -> None:
        self.name = str(name)
        self._home = home
        self._source_name = name
        self._reader = versions.VersionReader(home, name)

    @property
    def versions(self) -> Sequence[int]:
        """Its versions, ascending."""
        return versions.numbers(self._home.catalog.sources.get(self._source_name))

    def get(self, key: Any, version: int | None = None) -> Mapping[str, Any] | None:
        """Returns the row with a key, by column, or None.

        Args:
            key: a value of the key column's type.
            version: the newest by default.

        Raises:
            InvalidValueError: the table does not have the version.
        """
        return self._reader.get(key, version)

    def __repr__(self) -> str:
        return f"UploadedTable({self.name!r})"
