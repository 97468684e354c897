"""Delta tables written without a JVM, through deltalake.

Data files are written first and then committed by name, so a data file is durable before the log entry that names it. Every
commit carries an application transaction of the table: Delta refuses it if a commit with the same transaction came first, which
fences off a writer that lost its lease. deltalake's own ``optimize.compact`` writes no transaction, and its predicates fail on
long IN-lists, so neither is used.

What does not belong here: the meaning of the tables (``directory``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, RemoveAction, Transaction

from volstream.base.model.text import first_line
from volstream.errors import DependencyError, FencedError, NotFoundError
from volstream.sql.text import table_at
from volstream.tables.delta import durable
from volstream.tables.delta.datafile import AddedFile, NewFile, fitted, open_file
from volstream.tables.delta.log import DeltaLog, last_checkpoint
from volstream.tables.delta.places import (
    SeenVersion,
    create_table,
    files_of,
    filesystem_of,
    is_remote,
    make_durable,
    mapped,
    open_table,
    read_table,
    seen_of,
)

#: Rows per row group; looking up a key decodes a whole group.
GROUP_ROWS = 2_000

#: Readers start at the newest checkpoint. In an object store each later log entry is a request.
_CHECKPOINT_COMMITS, _REMOTE_CHECKPOINT_COMMITS = 25, 10

#: Spark lists the whole log several times per read, at 30 microseconds per entry on a local disk, so the log is kept short.
#: Removed data files are kept much longer: running queries still read them, but never the log again.
_PROPERTIES = {
    "delta.logRetentionDuration": "interval 10 minutes",
    "delta.deletedFileRetentionDuration": "interval 12 hours",
    "delta.checkpointInterval": str(_CHECKPOINT_COMMITS),
}

#: deltalake makes no checkpoints and cleans nothing up on its own; :meth:`NativeTable.maintain` does when there is time.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


#: The newest views, by location: deltalake takes milliseconds to read a log, and one more to find a transaction.
_viewed: dict[str, tuple[View, SeenVersion]] = {}
_MOST_VIEWED = 4096


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


@dataclass(frozen=True)
class TableSpec:
    """The definition of a table, shared by reader and writer.

    Attributes:
        location: a local path or a URI.
        tracked: columns with statistics, which are never NULL.
        app_ids: application ids whose transaction versions a view has. Every commit carries at least one of them: of two
            concurrent commits with the same id, one is refused.
        remedy: what helps if the table is damaged.
        evolves: the table has the columns that its log says; ``schema`` is for its creation.
    """

    location: str
    schema: pa.Schema
    tracked: Sequence[str]
    app_ids: Sequence[str]
    remedy: str = ""
    evolves: bool = False

    def of(self, handle: DeltaTable) -> TableSpec:
        """Returns the definition with the columns that the table has in an opened version."""
        if not self.evolves:
            return self
        schema = pa.schema(handle.schema().to_arrow())
        return self if schema == self.schema else replace(self, schema=schema)

    def is_same(self, other: TableSpec) -> bool:
        """Returns whether two define the same table, whose columns may have changed meanwhile."""
        return self == (replace(other, schema=self.schema) if self.evolves else other)

    @contextmanager
    def mapped(self) -> Iterator[None]:
        """Maps errors as :func:`volstream.tables.delta.places.mapped` does, and those of damaged data files; with the remedy."""
        try:
            with mapped(self.location):
                yield
        except pa.ArrowInvalid as error:
            said = f"The table at {self.location} cannot be read: {first_line(str(error))}"
            raise DependencyError(said, self.remedy) from error
        except DependencyError as error:
            if type(error) is not DependencyError or error.remedy:
                raise
            raise DependencyError(error.message, self.remedy) from error

    def view(self) -> View | None:
        """Returns the newest version for a reader; None if there is no table. Raises DependencyError."""
        with self.mapped():
            known = _viewed.get(self.location)
            if known is not None and self.is_same(known[0].spec) and known[1].is_newest():
                return known[0]
            try:
                handle = read_table(self.location)
            except TableNotFoundError:
                return None
            seen = seen_of(self.location, handle)
            transactions = {app_id: handle.transaction_version(app_id) for app_id in self.app_ids}
            view = _view(handle, self.of(handle), transactions)
            _keep_view(view, seen)
            return view


@dataclass(frozen=True)
class View:
    """A version of a table: its files and transactions. Using it does not read the log."""

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
        """Returns the files that may have rows whose ``number`` is in ``(after, until]``, by its statistics."""
        return [file for file in self.files if file.maximum[number] > after and file.minimum[number] <= until > after]

    def between(self, number: str, after: int, until: int) -> Iterator[pa.Table]:
        """Yields the rows whose ``number`` is in ``(after, until]`` file by file, in no particular order."""
        for file in self.files_between(number, after, until):
            rows = self.read(file)
            if file.minimum[number] <= after or file.maximum[number] > until:
                numbers = rows[number]
                rows = rows.filter(pc.and_(pc.greater(numbers, after), pc.less_equal(numbers, until)))
            yield rows

    @property
    def relation(self) -> str:
        """SQL for the version as a relation."""
        return f"{table_at(self.spec.location)} VERSION AS OF {self.version}"

    def query_between(self, number: str, after: int, until: int) -> str:
        """Returns SQL for the rows of :meth:`between`."""
        return f"SELECT * FROM {self.relation} WHERE {number} > {after} AND {number} <= {until}"

    def small_files(self, rows: int, size: int, at_least: int) -> Sequence[DataFile]:
        """Returns the files with fewer rows and bytes, to be merged; none if there are fewer than ``at_least``."""
        small = [file for file in self.files if file.rows < rows and file.bytes < size]
        return small if len(small) >= at_least else []

    def fitted(self, rows: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Converts ``rows`` of one of the files to the table's columns, or some of them."""
        schema = self.spec.schema
        return fitted(rows, schema if columns is None else pa.schema([schema.field(name) for name in columns]))


def _keep_view(view: View, seen: SeenVersion | None) -> None:
    """Keeps a view for readers, as long as its version is the newest one. None: in an object store, where that is a request."""
    if seen is None:
        return
    _viewed[view.spec.location] = view, seen
    while len(_viewed) > _MOST_VIEWED:
        with suppress(KeyError, RuntimeError):  # another thread removed it
            del _viewed[next(iter(_viewed))]


#: Columns with mostly distinct values, for which a dictionary would be a second copy.
_DISTINCT = ("relative_path", "url", "etag", "old_etag", "last_modified_time", "old_last_modified_time")


class Newest:
    """A table, opened at its newest version. For one thread.

    Attributes:
        handle: deltalake's; None: it is not open.
    """

    def __init__(self, location: str) -> None:
        self.handle: DeltaTable | None = None
        self._location = location
        self._entry: object = None  # of the handle's version in the log

    @property
    def opened(self) -> DeltaTable:
        """The handle after :meth:`look`."""
        assert self.handle is not None, "opened before"
        return self.handle

    def look(self) -> bool:
        """Opens the newest version, and returns whether it is another one than before: a table that was dropped and created again
        may have the same number. Raises deltalake's exceptions."""
        log = DeltaLog(self._location)
        if self.handle is not None:
            version = self.handle.version()
            current, following = log.entries(version, version + 1)
            if current is not None and current == self._entry:
                if following is not None:
                    self.advance()
                return following is not None
            self.forget()  # another table; or the log was cleaned up
        self.handle = open_table(self._location)
        [self._entry] = log.entries(self.handle.version())
        return True

    def advance(self) -> None:
        """Reads what was committed on top of the handle's version."""
        self.opened.update_incremental()
        [self._entry] = DeltaLog(self._location).entries(self.opened.version())

    def forget(self) -> None:
        """Closes the handle."""
        self.handle = None


class NativeTable:
    """The writer of a table. For one process at a time, in one thread."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self._newest = Newest(spec.location)
        self._view: View | None = None  # of that version
        self._known: dict[str, int | None] = {}  # its transactions; deltalake takes milliseconds to find one

    def open(self, *, creates: bool = True) -> View:
        """Returns the newest version, which the next commit builds on; creates the table if it does not exist.

        Makes the commits of other writers durable: a writer may have died before doing so.

        Args:
            creates: False: raise NotFoundError if the table does not exist.
        """
        with self.spec.mapped():
            try:
                changed = self._newest.look()
            except TableNotFoundError:
                if not creates:
                    raise NotFoundError(f"There is no table at {self.spec.location} any more.") from None
                self._create()
                try:
                    changed = self._newest.look()
                except TableNotFoundError:
                    raise FencedError(f"Another process dropped the table at {self.spec.location} meanwhile.") from None
            if changed:
                self._view, self._known = None, {}
            if self._view is None:
                self._view = self._shown()
                durable.sync(self.spec.location, self._view.table_id, self._view.version)
            return self._view

    def _shown(self) -> View:
        """Returns a view of the handle's version, which readers of this process share."""
        handle = self._newest.opened
        self.spec = self.spec.of(handle)
        seen = None if is_remote(self.spec.location) else SeenVersion.of(self.spec.location, handle.version())
        view = _view(handle, self.spec, {app_id: self.transaction(app_id) for app_id in self.spec.app_ids})
        _keep_view(view, seen)
        return view

    def transaction(self, app_id: str) -> int | None:
        """Returns an application's newest transaction version as of the last :meth:`open`; None if it never wrote."""
        if app_id not in self._known:
            with mapped(self.spec.location):
                latest = self._newest.opened.transaction_version(app_id)
            self._known[app_id] = None if latest is None else int(latest)
        return self._known[app_id]

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
        """Commits on top of ``view``, the result of the last :meth:`open`; durable on return.

        Args:
            transactions: versions of application ids to set, including one of the table's own.
            changes_data: False: rows only move between files.

        Raises:
            FencedError: another writer meanwhile committed one of the same transactions or removed one of the same files;
                nothing of this commit is in the table.
        """
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [file.action() for file in added]
        for action in actions:
            action.data_change = changes_data
        actions += [RemoveAction(file.path, changes_data, now, file.bytes, {}) for file in removed]
        filesystem, path = filesystem_of(self.spec.location)
        make_durable(filesystem, path, folders=False)  # the added files' names, before the log refers to them

        def write(handle: DeltaTable, properties: CommitProperties) -> None:
            handle.create_write_transaction(
                actions, "append", self.spec.schema, commit_properties=properties, post_commithook_properties=_NO_HOOKS
            )

        self._commit(view, transactions, write, metadata)

    def add_columns(self, view: View, columns: pa.Schema, transactions: Mapping[str, int]) -> None:
        """Commits new columns on top of ``view``, as :meth:`commit`; rows that are there have NULL in them."""

        def write(handle: DeltaTable, properties: CommitProperties) -> None:
            fields = Schema.from_arrow(columns).fields
            handle.alter.add_columns(fields, commit_properties=properties, post_commithook_properties=_NO_HOOKS)

        self._commit(view, transactions, write)

    def replace(self, view: View, schema: pa.Schema, transactions: Mapping[str, int]) -> None:
        """Commits other columns on top of ``view``, as :meth:`commit`, and removes all rows."""

        def write(handle: DeltaTable, properties: CommitProperties) -> None:
            handle.create_write_transaction(
                [], "overwrite", schema, commit_properties=properties, post_commithook_properties=_NO_HOOKS
            )

        self._commit(view, transactions, write)

    def _commit(
        self,
        view: View,
        transactions: Mapping[str, int],
        write: Callable[[DeltaTable, CommitProperties], None],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        assert {*self.spec.app_ids} & {*transactions}, "without one the commit would not fence off other writers"
        handle = self._newest.opened
        if handle.version() != view.version:
            raise FencedError(f"The table at {self.spec.location} was changed by another process meanwhile.")
        properties = CommitProperties(
            custom_metadata=dict(metadata or {}),
            app_transactions=[Transaction(app_id, version) for app_id, version in transactions.items()],
        )
        known, self._view, self._known = self._known, None, {}  # whatever fails from here on, the next look is a new one
        with mapped(self.spec.location):
            try:
                write(handle, properties)
            except CommitFailedError as error:
                self._newest.forget()
                raise FencedError(f"Another process wrote the table at {self.spec.location} meanwhile: {error}.") from error
            self._newest.advance()
        if handle.version() != view.version + 1:  # another process committed meanwhile
            durable.sync(self.spec.location, view.table_id, handle.version())
            return
        filesystem, path = filesystem_of(self.spec.location)
        make_durable(filesystem, f"{path}/_delta_log/{handle.version():020d}.json")
        durable.made(view.table_id, handle.version())
        self._known = {**known, **transactions}
        self._view = self._shown()

    def maintain(self) -> None:
        """Keeps the log short after a commit: makes periodic checkpoints, and deletes old entries before them. Failing does not
        affect the commit."""
        often = _REMOTE_CHECKPOINT_COMMITS if is_remote(self.spec.location) else _CHECKPOINT_COMMITS
        with durable.upkeep(self.spec.location):
            handle = self._newest.handle
            if handle is not None and handle.version() - last_checkpoint(self.spec.location)[0] >= often:
                durable.checkpoint(self.spec.location, handle)

    def sweep(self) -> None:
        """Deletes data files that no version needs: removed ones, and remains of crashes. Lists the folder."""
        with mapped(self.spec.location):
            if self._newest.handle is not None:
                self._newest.handle.vacuum(full=True, dry_run=False, post_commithook_properties=_NO_HOOKS)

    def _create(self) -> None:
        # A second attempt would give the table that another process has just created another id.
        commit = CommitProperties(app_transactions=[Transaction(self.spec.app_ids[0], 0)], max_commit_retries=0)
        try:
            create_table(self.spec.location, self.spec.schema, _PROPERTIES, commit, _NO_HOOKS)
        except DeltaError as error:
            if not isinstance(error, CommitFailedError) and "already exists" not in str(error):
                raise
            raise FencedError(f"Another process created the table at {self.spec.location} meanwhile: {error}.") from error
        filesystem, path = filesystem_of(self.spec.location)
        make_durable(filesystem, f"{path}/_delta_log/{0:020d}.json", f"{path}/_delta_log", path)


def _view(handle: DeltaTable, of: TableSpec, transactions: Mapping[str, int | None]) -> View:
    added = files_of(handle)
    count = added.num_rows

    def column(name: str) -> list[Any]:
        return added[name].to_pylist() if name in added.column_names else [None] * count

    paths = column("path")
    minimum, maximum = ({name: column(f"{end}.{name}") for name in of.tracked} for end in ("min", "max"))
    files = [
        DataFile(
            path,
            rows,
            size,
            {name: values[at] for name, values in minimum.items()},
            {name: values[at] for name, values in maximum.items()},
        )
        for at, (path, rows, size) in enumerate(zip(paths, column("num_records"), column("size_bytes"), strict=True))
    ]
    return View(
        of,
        int(handle.version()),
        str(handle.metadata().id),
        files,
        {app_id: version for app_id, version in transactions.items() if version is not None},
    )
