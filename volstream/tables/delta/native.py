"""Delta tables that only volstream writes: without a JVM, by one or many processes.

Data files are written first and then committed by name, so a data file is durable before the log entry that
names it. Every commit carries an application transaction of the table. If other commits came first, a commit
is put on top of them, unless they include the same transaction or remove the same file. This fences off a
writer that lost its lease. deltalake's ``optimize.compact`` writes no transaction, and its predicates fail on
long IN-lists, so neither is used.

Not here: the meaning of the tables (``directory``).
"""

from __future__ import annotations

import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import PostCommitHookProperties

from volstream.base.model.text import first_line
from volstream.errors import DependencyError, FencedError, NotFoundError
from volstream.sql.text import table_at
from volstream.tables.delta import commits, durable
from volstream.tables.delta.datafile import AddedFile, NewFile, fitted, open_file
from volstream.tables.delta.log import actions
from volstream.tables.delta.lookup import bounds_of
from volstream.tables.delta.opened import OpenTable, Seen, entries
from volstream.tables.delta.places import (
    check_creates,
    crowded,
    filesystem_of,
    held_table,
    make_durable,
    make_folder,
    mapped,
    remove_file,
)

#: Rows per row group; looking up a key decodes a whole group.
GROUP_ROWS = 2_000

#: Maximum number of attempts to commit. An attempt fails only if another commit came first.
_ATTEMPTS = 100

#: Spark lists the whole log several times per read, at 30 microseconds per entry on a local disk, so the log
#: is kept short. Removed data files are kept much longer: running queries still read them, but do not read
#: the log again.
_PROPERTIES = {"delta.logRetentionDuration": "interval 10 minutes", "delta.deletedFileRetentionDuration": "interval 12 hours"}

#: A vacuum makes no checkpoint; commits do (``commits.on``).
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

#: The newest views, by location. All readers and writers of the process share them.
_views: OrderedDict[str, tuple[View, Seen]] = OrderedDict()
_MAX_VIEWS = 4096


@dataclass(frozen=True)
class DataFile:
    """One data file of a table, with its columns' ranges from the statistics.

    Attributes:
        path: relative to the table.
        minimum, maximum: by column name, for columns with statistics.
    """

    path: str
    rows: int
    bytes: int
    minimum: Mapping[str, Any]
    maximum: Mapping[str, Any]

    @classmethod
    def of(cls, add: Mapping[str, Any], tracked: Collection[str]) -> DataFile:
        """Returns the data file that an ``add`` action describes."""
        stats = json.loads(add["stats"])
        ends = ({name: stats[end].get(name) for name in tracked} for end in ("minValues", "maxValues"))
        return cls(add["path"], stats["numRecords"], add["size"], *ends)


@dataclass(frozen=True)
class TableSpec:
    """The definition of a table, shared by reader and writer.

    Attributes:
        location: a local path or a URI.
        tracked: columns with statistics, which are never NULL.
        app_ids: application ids whose transaction versions a view has. Every commit carries at least one of
            them. If two concurrent commits have the same id, one is refused.
        remedy: advice for messages if the table is damaged.
        evolves: the log determines the table's columns, and ``schema`` only applies when the table is
            created.
    """

    location: str
    schema: pa.Schema
    tracked: Sequence[str]
    app_ids: Sequence[str]
    remedy: str = ""
    evolves: bool = False

    def of(self, table: OpenTable) -> TableSpec:
        """Returns the definition with the columns of an opened version of the table."""
        return self if not self.evolves or table.fields == self.schema else replace(self, schema=table.fields)

    def is_same(self, other: TableSpec) -> bool:
        """True if both define the same table. Its columns may have changed meanwhile."""
        return self == (replace(other, schema=self.schema) if self.evolves else other)

    @contextmanager
    def mapped(self) -> Iterator[None]:
        """Maps errors like :func:`volstream.tables.delta.places.mapped`, and errors of damaged data files.
        Adds the remedy."""
        try:
            with mapped(self.location):
                yield
        except pa.ArrowInvalid as error:
            message = f"The table at {self.location} cannot be read: {first_line(str(error))}"
            raise DependencyError(message, self.remedy) from error
        except DependencyError as error:
            if type(error) is not DependencyError or error.remedy:
                raise
            raise DependencyError(error.message, self.remedy) from error

    def view(self) -> View | None:
        """Returns the newest version for reading, or None if there is no table. Raises DependencyError."""
        with self.mapped():
            known = _views.get(self.location)
            if known is not None and self.is_same(known[0].spec) and known[1].is_newest():
                return known[0]
            table = OpenTable.newest(self.location)
            return None if table is None else _view(table, self.of(table))


@dataclass(frozen=True)
class View:
    """A version of a table: its files and transactions. Its methods do not read the log."""

    spec: TableSpec
    version: int
    table_id: str
    files: Sequence[DataFile]
    transactions: Mapping[str, int]

    @cached_property
    def rows(self) -> int:
        """Number of rows of the version."""
        return sum(file.rows for file in self.files)

    @cached_property
    def bytes(self) -> int:
        """Total size of the version's files."""
        return sum(file.bytes for file in self.files)

    def open(self, file: DataFile) -> pq.ParquetFile:
        """Opens a file as Parquet. Raises DependencyError if it no longer exists."""
        with self.spec.mapped():
            return open_file(self.spec.location, file.path)

    def read(self, file: DataFile, columns: Sequence[str] | None = None) -> pa.Table:
        """Returns all rows of a file, in its order; columns missing from the file are NULL."""
        with self.spec.mapped(), self.open(file) as opened:
            return self.fitted(opened.read(columns=columns if columns is None else list(columns)), columns)

    def files_between(self, number: str, after: int, until: int) -> list[DataFile]:
        """Returns the files that may have rows whose ``number`` is in ``(after, until]``, by its
        statistics."""
        return [file for file in self.files if file.maximum[number] > after and file.minimum[number] <= until > after]

    def between(self, number: str, after: int, until: int) -> Iterator[pa.Table]:
        """Yields the rows whose ``number`` is in ``(after, until]`` file by file, in no particular order."""
        for file in self.files_between(number, after, until):
            rows = self.read(file)
            if file.minimum[number] <= after or file.maximum[number] > until:
                numbers = rows[number]
                rows = rows.filter(pc.and_(pc.greater(numbers, after), pc.less_equal(numbers, until)))
            yield rows

    def after(self, committed: Iterable[Mapping[str, Any]]) -> View | None:
        """Returns the next version, given the actions of its commit, or None if they redefine the table's
        columns or protocol."""
        removed, added, transactions = set[str](), list[DataFile](), dict(self.transactions)
        for action in committed:
            if not action.keys().isdisjoint(("metaData", "protocol")):
                return None
            if "remove" in action:
                removed.add(action["remove"]["path"])
            elif "add" in action:
                added.append(DataFile.of(action["add"], self.spec.tracked))
            elif "txn" in action and action["txn"]["appId"] in self.spec.app_ids:
                transactions[action["txn"]["appId"]] = action["txn"]["version"]
        remaining = [file for file in self.files if file.path not in removed] if removed else self.files
        return replace(self, version=self.version + 1, files=[*remaining, *added], transactions=transactions)

    @property
    def relation(self) -> str:
        """SQL for the version as a relation."""
        return f"{table_at(self.spec.location)} VERSION AS OF {self.version}"

    def query_between(self, number: str, after: int, until: int) -> str:
        """Returns SQL for the rows of :meth:`between`."""
        return f"SELECT * FROM {self.relation} WHERE {number} > {after} AND {number} <= {until}"

    def small_files(self, rows: int, size: int, at_least: int) -> Sequence[DataFile]:
        """Returns the files with fewer than ``rows`` rows and ``size`` bytes. Empty if there are fewer than
        ``at_least``."""
        small = [file for file in self.files if file.rows < rows and file.bytes < size]
        return small if len(small) >= at_least else []

    def fitted(self, rows: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Converts ``rows`` of a data file to the table's columns, or to some of them."""
        schema = self.spec.schema
        return fitted(rows, schema if columns is None else pa.schema([schema.field(name) for name in columns]))


def _cache_view(view: View, seen: Seen) -> None:
    """Caches a view for readers while its version is the newest."""
    _views[view.spec.location] = view, seen
    if len(_views) > _MAX_VIEWS:
        with suppress(KeyError):  # another thread removed it
            _views.popitem(last=False)


#: Columns with mostly distinct values, for which a dictionary would be a second copy.
_DISTINCT = ("relative_path", "url", "etag", "old_etag", "last_modified_time", "old_last_modified_time")


class NativeTable:
    """The writer of a table. Not thread-safe."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        # The newest known version, and its stamp.
        self._view: View | None = None
        self._seen: Seen | None = None
        # The version that was opened. The view is this version plus later commits.
        self._table: OpenTable | None = None
        self._transactions: dict[str, int] = {}  # set by these later commits

    def open(self, *, creates: bool = True) -> View:
        """Returns the newest version, for the next commit to build on. Creates a missing table.

        Syncs other writers' commits to disk: a writer may have died before doing so.

        Args:
            creates: pass False to raise NotFoundError if the table does not exist.
        """
        with self.spec.mapped():
            if self._view is None or self._follow(self._view) is None:
                self._open(creates)
            assert self._view is not None, "it was opened"
            durable.sync(self.spec.location, self._view.table_id, self._view.version)
            return self._view

    def _open(self, creates: bool) -> None:
        self._view, self._transactions = None, {}
        self._table = OpenTable.newest(self.spec.location)
        if self._table is None:
            if not creates:
                raise NotFoundError(f"There is no table at {self.spec.location} any more.")
            self._create()
            self._table = OpenTable.newest(self.spec.location)
            if self._table is None:
                raise FencedError(f"Another process dropped the table at {self.spec.location} meanwhile.")
        assert self._table.seen is not None, "it was the newest"
        self.spec = self.spec.of(self._table)
        self._view, self._seen = _view(self._table, self.spec), self._table.seen

    def _follow(self, view: View) -> list[Mapping[str, Any]] | None:
        """Applies the commits since a view. Returns their actions, or None if the table must be opened
        again."""
        found: list[Mapping[str, Any]] = []
        while self._seen is not None and not self._seen.is_newest():
            current, following = entries(self.spec.location, view.version, view.version + 1)
            if current is None or current != self._seen.entry:
                return None  # another table; or the log was cleaned up
            if following is None:  # an older version was cleaned up
                self._seen = Seen.of(self.spec.location, view.version)
                continue
            committed = actions(self.spec.location, view.version + 1)
            following_view = view.after(committed)
            if following_view is None:
                return None
            view = self._advance(following_view, committed)
            found += committed
        return found

    def _advance(self, view: View, committed: Iterable[Mapping[str, Any]]) -> View:
        """Makes the view of a commit the newest."""
        self._transactions.update({each["txn"]["appId"]: each["txn"]["version"] for each in committed if "txn" in each})
        self._view, self._seen = view, Seen.of(self.spec.location, view.version)
        _cache_view(view, self._seen)
        return view

    def transaction(self, app_id: str) -> int | None:
        """Returns an application's newest transaction version as of the last :meth:`open`, or None if it has
        none."""
        assert self._table is not None, "it was opened"
        return self._transactions[app_id] if app_id in self._transactions else self._table.transaction(app_id)

    def new_file(self) -> NewFile:
        """Creates a data file for a commit to add."""
        return NewFile(self.spec.location, self.spec.schema, tracked=self.spec.tracked, plain=_DISTINCT, group_rows=GROUP_ROWS)

    def merged(self, view: View, files: Iterable[DataFile], order: Sequence[str]) -> AddedFile:
        """Writes the rows of some files into one, sorted by the columns ``order``."""
        rows = pa.concat_tables([view.read(file) for file in files])
        merged = self.new_file()
        merged.write(rows.sort_by([(name, "ascending") for name in order]))
        return merged.close()

    def commit(
        self,
        view: View,
        transactions: Mapping[str, int],
        *,
        added: Iterable[AddedFile] = (),
        removed: Iterable[DataFile] = (),
        changes_data: bool = True,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Commits on top of ``view``, the result of the last :meth:`open`. Durable on return.

        Args:
            transactions: transaction versions to set, by application id. At least one id is in
                ``TableSpec.app_ids``.
            changes_data: False if rows only move between files.

        Raises:
            FencedError: another writer meanwhile committed the same transaction or removed the same file.
                This commit was not made.
        """
        additions = [commits.addition(file, dataChange=changes_data) for file in added]
        filesystem, path = filesystem_of(self.spec.location)
        # sync the added files' names before the log refers to them
        make_durable(filesystem, path, folders=False)
        self._commit(view, transactions, [*additions, *_removals(removed, changes_data)], metadata or {})

    def add_columns(self, view: View, columns: pa.Schema, transactions: Mapping[str, int]) -> None:
        """Commits new columns on top of ``view``, like :meth:`commit`. They are NULL in existing rows."""
        self._redefine(view, pa.schema([*self.spec.schema, *columns]), transactions, ())

    def replace(self, view: View, schema: pa.Schema, transactions: Mapping[str, int]) -> None:
        """Commits other columns on top of ``view``, like :meth:`commit`, and removes all rows."""
        self._redefine(view, schema, transactions, view.files)

    def _redefine(self, view: View, schema: pa.Schema, transactions: Mapping[str, int], removed: Sequence[DataFile]) -> None:
        defined = commits.definition(view.table_id, schema, _PROPERTIES, first=False)
        self._commit(view, transactions, [*defined, *_removals(removed, True)], {})

    def _commit(
        self, view: View, transactions: Mapping[str, int], changed: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]
    ) -> None:
        assert {*self.spec.app_ids} & {*transactions}, "without one the commit would not fence off other writers"
        location, newest = self.spec.location, self._view
        if newest is None or newest.version != view.version:
            raise FencedError(f"The table at {location} was changed by another process meanwhile.")
        info = commits.info("WRITE", {"mode": "Append", "partitionBy": "[]"}, txnId=str(uuid.uuid4()), **metadata)
        entry = [info, *commits.transactions(transactions), *changed]
        self._view = None  # if anything fails from here on, the next open() reads the log again
        removed = {action["remove"]["path"] for action in changed if "remove" in action}
        with mapped(location):
            for _ in range(_ATTEMPTS):
                if commits.on(location, newest.table_id, newest.version, entry):
                    following = newest.after(entry)
                    if following is not None:
                        self._advance(following, entry)
                    return
                others = self._follow(newest)
                if others is None or self._view is None or _conflict(others, transactions, removed):
                    self._view = None
                    raise FencedError(f"Another process wrote the table at {location} meanwhile.")
                newest, self._view = self._view, None
        raise crowded(location)

    def sweep(self) -> None:
        """Deletes data files that no version needs: removed files, and leftovers of crashes. Lists the
        folder."""
        table = OpenTable.newest(self.spec.location)
        if table is not None:
            location = self.spec.location
            with mapped(location), held_table(location, table.version) as descriptor:
                unneeded = table.handle.vacuum(full=True, dry_run=descriptor is not None, post_commithook_properties=_NO_HOOKS)
                for path in () if descriptor is None else unneeded:  # deltalake would follow links
                    remove_file(location, path, descriptor)

    def _create(self) -> None:
        location = self.spec.location
        check_creates(location)
        make_folder(f"{location}/_delta_log")
        parameters = {"isManaged": "false", "partitionBy": "[]"}
        created = [
            commits.info("CREATE TABLE", parameters),
            *commits.definition(str(uuid.uuid4()), self.spec.schema, _PROPERTIES, first=True),
            *commits.transactions({self.spec.app_ids[0]: 0}),
        ]
        if not commits.put(location, 0, created):
            raise FencedError(f"Another process created the table at {location} meanwhile.")


def _removals(files: Iterable[DataFile], changes_data: bool) -> Iterator[Mapping[str, Any]]:
    now = int(time.time() * 1000)
    for file in files:
        yield commits.removal({"path": file.path, "size": file.bytes, "partitionValues": {}}, now, changes_data=changes_data)


def _conflict(others: Iterable[Mapping[str, Any]], transactions: Collection[str], removed: Collection[str]) -> bool:
    """True if commits set any of the transactions or removed any of the files."""
    return any(
        action.get("txn", {}).get("appId") in transactions or action.get("remove", {}).get("path") in removed for action in others
    )


def _view(table: OpenTable, spec: TableSpec) -> View:
    """Returns a view of an opened table, and caches it for readers."""
    listed = table.files
    ends = {name: bounds_of(listed, name) for name in spec.tracked}
    columns = (listed[name].to_pylist() for name in ("path", "num_records", "size_bytes"))
    files = [
        DataFile(path, rows, size, *({name: both[end][at] for name, both in ends.items()} for end in (0, 1)))
        for at, (path, rows, size) in enumerate(zip(*columns, strict=True))
    ]
    numbers = {app_id: version for app_id in spec.app_ids if (version := table.transaction(app_id)) is not None}
    view = View(spec, table.version, table.id, files, numbers)
    if table.seen is not None:
        _cache_view(view, table.seen)
    return view
