"""Commits to tables that Spark also writes, without a JVM: one commit adds and removes rows.

deltalake cannot do that: it rewrites whole files, and accepts a transaction number that was already used. So
this module implements the commit according to the Delta protocol: it computes the commit against the newest
version and writes it to the log under the next number. If that number is taken, it computes the commit again.
Only for tables that require nothing more of a commit, such as constraints or column mapping (see
``commits``), and only where a file can be created without overwriting another: on a local file system and in
S3.

Not here: tables that only volstream writes (``native``), and commits that need Spark (``writer``).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.schema import Schema

from volstream.errors import DependencyError
from volstream.tables.delta import commits
from volstream.tables.delta.commits import (
    FEATURES,
    FEED,
    ColumnRules,
    NeedsSparkError,
    TrackedCommit,
    can_commit,
    has_columns,
    id_column,
    ids_of,
    new_columns,
)
from volstream.tables.delta.commits import PROPERTIES as TRACKING
from volstream.tables.delta.datafile import (
    GROUP_ROWS,
    AddedFile,
    FinishedFile,
    NewFile,
    NewFiles,
    fitted,
    of_rows,
    statistics_text,
)
from volstream.tables.delta.log import is_on
from volstream.tables.delta.lookup import FoundRows, find
from volstream.tables.delta.opened import OpenTable
from volstream.tables.delta.ownership import Marker
from volstream.tables.delta.places import (
    can_create,
    crowded,
    files_of,
    filesystem_of,
    make_durable,
    make_folder,
    mapped,
    remove_file,
)
from volstream.tables.delta.schema import PRIMARY_KEY, has_type
from volstream.tables.delta.vectors import write_vectors

# Rows that replace rows with the same primary key, in a table with tracked changes: they keep the ids of the
# replaced rows and are updates in the change feed. For other commits, Delta derives the changes from the
# files and rows that they add and remove.

#: The column with the kind of change in a change feed's files.
_KIND = pa.field("_change_type", pa.string())


@dataclass(frozen=True)
class ReplacedRows:
    """The keys and ids of the rows that a commit removes.

    Attributes:
        key: the key's column.
        id_column: the column in which rewritten rows keep their ids, or None if the table has no row ids.
        keys, ids: of each row.
    """

    key: str
    id_column: str | None
    keys: pa.Array
    ids: pa.Array

    @classmethod
    def of(
        cls, removed: Sequence[FoundRows], adds: Mapping[str, Mapping[str, Any]], key: str, id_column: str | None
    ) -> ReplacedRows:
        """Reads the keys and ids of removed rows.

        Args:
            adds: the actions that added their files, by path.
        """
        columns = pa.schema([(key, pa.string()), *([] if id_column is None else [(id_column, pa.int64())])])
        keys, ids = [pa.array([], pa.string())], [pa.array([], pa.int64())]
        for found in removed:
            for rows, at in found.read(columns):
                keys.append(rows[key].combine_chunks())
                ids.append(ids_of(adds[found.path], rows, at, id_column))
        return cls(key, id_column, pa.concat_arrays(keys), pa.concat_arrays(ids))

    def with_ids(self, rows: pa.Table) -> pa.Table:
        """Adds the id of the row that each new row replaces, or NULL for a row that gets a new id."""
        if self.id_column is None:
            return rows
        at = pc.index_in(rows[self.key].combine_chunks(), value_set=self.keys)
        return rows.append_column(pa.field(self.id_column, pa.int64()), self.ids.take(at))

    def write_feed(
        self, location: str, table: DeltaTable, removed: Sequence[FoundRows], added: Callable[[], Iterable[pa.Table]]
    ) -> Sequence[Mapping[str, Any]]:
        """Writes the change feed, and returns its actions. Durable on return.

        Args:
            added: returns the rows to add. Called twice.
        """
        metadata = table.metadata()
        if not is_on(metadata.configuration, "delta.enableChangeDataFeed"):
            return []
        schema, parts = pa.schema(table.schema().to_arrow()), metadata.partition_columns
        stored = pa.schema([*(column for column in schema if column.name not in parts), _KIND])
        make_folder(f"{location}/{FEED}")
        files = NewFiles(lambda: NewFile(f"{location}/{FEED}", stored, tracked=(), group_rows=GROUP_ROWS), parts)
        column = pa.schema([(self.key, pa.string())])
        keys = (chunk for rows in added() for chunk in fitted(rows, column)[self.key].chunks)
        added_keys = pa.concat_arrays([pa.array([], pa.string()), *keys])
        try:
            for found in removed:
                for rows, _ in found.read(schema):
                    files.write(_labelled(rows, pc.is_in(rows[self.key], added_keys), "update_preimage", "delete"))
            for rows_to_add in added():
                rows = fitted(rows_to_add, schema)
                files.write(_labelled(rows, pc.is_in(rows[self.key], self.keys), "update_postimage", "insert"))
            written = files.close()
        except BaseException:
            files.drop()
            raise
        filesystem, root = filesystem_of(location)
        make_durable(filesystem, f"{root}/{FEED}", folders=False)
        return [
            {"cdc": {"path": f"{FEED}/{file.path}", "partitionValues": file.partition, "size": file.size, "dataChange": False}}
            for file in written
        ]


def _labelled(rows: pa.Table, replaced: pa.ChunkedArray, label: str, other_label: str) -> pa.Table:
    return rows.append_column(_KIND, pc.if_else(replaced, label, other_label).cast(pa.string()))


_VECTORS = "delta.enableDeletionVectors"

#: Writer features of tables created here. Every reader that supports deletion vectors can read them.
_CREATED = ("appendOnly", "deletionVectors", "invariants")

#: Bytes buffered in memory per row group.
_GROUP_BYTES = 32 << 20

#: Maximum number of attempts; an attempt fails only if another commit came first.
_ATTEMPTS = 100


@dataclass(frozen=True)
class RowChanges:
    """A commit's changes to a table's rows.

    Attributes:
        rows: tables of rows to add. Their columns are the table's, in any case. If they replace rows by
            primary key, all are in memory, and each attempt reads them again.
        schema: schema of ``rows``.
        key: text column that selects the rows to remove.
        gone: values of ``key`` whose rows are removed. None if the commit only adds rows, or replaces all.
        files: files with more rows to add. The table takes the files themselves, or only their rows if it has
            requirements on rows.
        follow: rows of ``gone`` that stay, with other values: new values by column, by value of ``key``.
        overwrite: remove all existing rows.
    """

    rows: Iterable[pa.Table]
    schema: pa.Schema
    key: str
    gone: Collection[str] | None
    files: Sequence[FinishedFile] = ()
    follow: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    overwrite: bool = False


def create(location: str, schema: pa.Schema, properties: Mapping[str, str], *, tracked: bool = False) -> bool:
    """Creates an empty table with deletion vectors unless it exists. Returns False if only Spark can.

    Args:
        tracked: track changes. Streams on the table require that.

    Raises:
        DependencyError: the folder cannot be written.
    """
    if not can_create(location):
        return False
    text = Schema.from_arrow(schema).to_json()
    if has_type(json.loads(text), "timestamp_ntz"):
        return False  # needs a feature that is not supported
    created = int(time.time() * 1000)
    configuration = {_VECTORS: "true", **({**TRACKING, **new_columns()} if tracked else {}), **properties}
    parameters = {"isManaged": "false", "properties": json.dumps(configuration), "partitionBy": "[]"}
    actions = [
        commits.info("CREATE TABLE", parameters, **({"inCommitTimestamp": created} if tracked else {})),
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": ["deletionVectors"],
                "writerFeatures": sorted({*_CREATED, *(FEATURES if tracked else ())}),
            }
        },
        commits.metadata(str(uuid.uuid4()), text, configuration, created),
    ]
    with mapped(location):
        make_folder(f"{location}/_delta_log")
        commits.put(location, 0, actions)
    return True


def can_write(location: str, key: str) -> bool:
    """True if rows can be added, and removed by a column, without Spark. False for a missing table."""
    if not can_create(location):
        return False
    table = OpenTable.newest(location)
    return table is not None and can_commit(table.handle, key)


def rows_of(location: str, key: str, values: Collection[str], columns: Sequence[str]) -> pa.Table | None:
    """Returns some columns of the rows with given keys, or None if only Spark can read them.

    Raises:
        DependencyError: the table cannot be read.
    """
    if not can_create(location):
        return None
    with mapped(location):
        table = _newest(location)
        if not can_commit(table.handle, key):
            return None
        wanted = pa.schema([table.fields.field(name).with_nullable(True) for name in columns])
        try:
            found = [rows for match in find(location, table.handle, key, values) for rows, _ in match.read(wanted)]
        except NeedsSparkError:
            return None
        return pa.concat_tables([wanted.empty_table(), *found])


def commit(location: str, marker: Marker, change: RowChanges | None = None) -> bool:
    """Makes one commit with ``marker``, empty without changes. Durable on return.

    Makes no commit if an earlier one has the marker's number. The log shows which.

    Returns:
        False if only Spark can make the commit. Nothing was written then.

    Raises:
        DependencyError: the table cannot be read or written.
        StorageError: too many concurrent commits.
    """
    if not can_create(location):
        return False
    with mapped(location):
        writing = _Commit(location, marker, change)
        try:
            return writing.run()
        except NeedsSparkError:
            writing.forget()
            return False
        except BaseException:
            writing.forget()
            raise


def _newest(location: str) -> OpenTable:
    table = OpenTable.newest(location)
    if table is None:
        raise DependencyError(f"The table at {location} no longer exists.")
    return table


def spelled(table: DeltaTable, column: str) -> str:
    """Returns a column's name as a table spells it."""
    return next((field.name for field in table.schema().fields if field.name.lower() == column.lower()), column)


class _OvertakenError(Exception):
    """Another commit came first."""


@dataclass(frozen=True)
class _Removal:
    """The removals of a commit from a version of a table.

    Attributes:
        rows: the rows to remove, unless all are removed.
        adds: the actions that added the affected files, by path.
        whole: paths of files in which no row remains.
        partly: for the other files, the positions of all deleted rows and the number of rows.
    """

    rows: Sequence[FoundRows] = ()
    adds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    whole: Collection[str] = ()
    partly: Mapping[str, tuple[np.ndarray, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, change: RowChanges, table: DeltaTable, location: str) -> _Removal:
        """Finds the files and rows to remove.

        Raises:
            NeedsSparkError: a file would keep some of its rows, but the table has no deletion vectors; or the
                table is a clone.
            _OvertakenError: another commit removed a file.
        """
        if change.overwrite:
            paths = files_of(table)["path"].to_pylist()
            return cls(adds=_added(location, table, paths), whole=paths)
        if not change.gone:
            return cls()
        rows = find(location, table, spelled(table, change.key), change.gone)
        adds = _added(location, table, [found.path for found in rows])
        whole = [found.path for found in rows if found.positions.size + found.deleted.size == found.length]
        partly = {
            found.path: (np.union1d(found.positions, found.deleted), found.length) for found in rows if found.path not in whole
        }
        if partly and not is_on(table.metadata().configuration, _VECTORS):
            raise NeedsSparkError
        return cls(rows, adds, whole, partly)

    def actions(self, location: str, now: int) -> list[Mapping[str, Any]]:
        """Writes deletion vectors, and returns the actions that remove the rows."""
        removed: list[Mapping[str, Any]] = [commits.removal(self.adds[path], now) for path in (*self.whole, *self.partly)]
        positions = {path: at for path, (at, _) in self.partly.items()}
        for path, vector in (write_vectors(location, positions) if positions else {}).items():
            add, length = self.adds[path], self.partly[path][1]
            # A table may have no statistics, or a checkpoint may not store them as text.
            statistics = {**json.loads(add.get("stats") or "{}"), "numRecords": length, "tightBounds": False}
            present = {"dataChange": True, "stats": statistics_text(statistics), "deletionVector": vector}
            removed.append({"add": {**add, **present}})
        return removed


def _added(location: str, table: DeltaTable, paths: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
    """Returns the actions that added files.

    Raises _OvertakenError if a newer checkpoint lacks a file, because another commit removed it.
    """
    adds = commits.adds(location, table.version(), paths)
    if {*paths} - adds.keys():
        raise _OvertakenError
    return adds


@dataclass(frozen=True)
class _Written:
    """The new files of a commit.

    Attributes:
        feed: actions for its change feed files, if Delta cannot derive the changes.
        rows: number of rows in ``files``.
    """

    files: Sequence[AddedFile]
    feed: Sequence[Mapping[str, Any]]
    rows: int


@dataclass
class _Commit:
    """One commit in progress: plans removals, writes new rows, commits both on top of the newest version."""

    location: str
    marker: Marker
    change: RowChanges | None
    _written: _Written | None = None
    _new: list[NewFiles] = field(default_factory=list)
    _others: list[str] = field(default_factory=list)  #: paths of other new files
    _may_be_committed: bool = False

    def run(self) -> bool:
        for _ in range(_ATTEMPTS):
            opened = _newest(self.location)
            table = opened.handle
            if not can_commit(table, None if self.change is None or self.change.gone is None else self.change.key):
                raise NeedsSparkError
            used = opened.transaction(self.marker.app_id)
            if used is not None and used >= self.marker.version:
                self.forget()
                return True
            try:
                actions = self._actions(table)
            except _OvertakenError:
                continue
            if self.change is not None:  # sync the names of new files, including deletion vectors
                make_durable(*filesystem_of(self.location), folders=False)
            self._may_be_committed = True  # from here on an interruption leaves the outcome unknown
            self._may_be_committed = commits.on(self.location, opened.id, opened.version, actions)
            if self._may_be_committed:
                return True
        raise crowded(self.location)

    def forget(self) -> None:
        """Removes the new files if the commit was not made. Keeps them if the outcome is unknown."""
        if not self._may_be_committed:
            self._drop()

    def _drop(self) -> None:
        for files in self._new:
            files.drop()
        for path in self._others:
            remove_file(self.location, path)
        self._new, self._others, self._written = [], [], None

    def _actions(self, table: DeltaTable) -> Sequence[Mapping[str, Any]]:
        now = int(time.time() * 1000)
        [transaction] = commits.transactions({self.marker.app_id: self.marker.version})
        user: dict[str, Any] = {"userMetadata": self.marker.user_metadata}
        tracked, change = TrackedCommit(table, self.location), self.change
        if change is None:
            parameters = {"mode": "Append", "partitionBy": "[]"}
            return [commits.info("WRITE", parameters, isBlindAppend=True, **user, **tracked.info(keeps_ids=False)), transaction]
        # the table may have been replaced since the rows were created
        if not has_columns(change.schema, table):
            raise NeedsSparkError
        removal = _Removal.of(change, table, self.location)
        by_key = not FEATURES.isdisjoint(table.protocol().writer_features or ()) and json.loads(
            table.metadata().configuration.get(PRIMARY_KEY) or "[]"
        ) == [change.key]
        # Which rows follow and which ids rows keep depends on the version.
        if self._written is None or by_key or change.follow:
            self._drop()
            self._written = self._write(change, table, removal, by_key=by_key)
        written = self._written
        removed = removal.actions(self.location, now)
        added = [commits.addition(file, **tracked.added(json.loads(file.stats)["numRecords"])) for file in written.files]
        metrics = {
            "numFiles": str(len(added)),
            "numOutputRows": str(written.rows),
            "numOutputBytes": str(sum(file.size for file in written.files)),
        }
        info = commits.info(
            "WRITE",
            {"mode": "Overwrite" if removed else "Append", "partitionBy": "[]"},
            isBlindAppend=change.gone is None and not change.overwrite,
            operationMetrics=metrics,
            **user,
            **tracked.info(keeps_ids=bool(removed)),
        )
        return [info, transaction, *removed, *added, *written.feed, *(tracked.domain() if added else [])]

    def _write(self, change: RowChanges, table: DeltaTable, removal: _Removal, *, by_key: bool) -> _Written:
        """Writes the rows to add. Nothing refers to them yet.

        Args:
            by_key: the added rows replace removed rows with the same key and keep their ids, in a table with
                tracked changes.

        Raises:
            NeedsSparkError: the table does not allow a row. Spark reports the reason.
        """
        ids, rules, parts = id_column(table), ColumnRules.of(table), list(table.metadata().partition_columns)
        names = {column.name.lower(): column.name for column in table.schema().fields}
        schema = pa.schema([pa.field(names[column.name.lower()], column.type) for column in change.schema])
        key, full = spelled(table, change.key), pa.schema(table.schema().to_arrow())
        missing = [full.field(name) for name in parts if name not in schema.names]
        replaced = ReplacedRows.of(removal.rows, removal.adds, key, ids) if by_key else None
        added, count = list[AddedFile](), 0

        def all_rows() -> Iterable[pa.Table]:
            return chain(change.rows, *(finished.rows() for finished in change.files))

        rows = all_rows()
        if not by_key and not parts and rules.allow_all and schema.names == change.schema.names:
            for finished in change.files:
                added.append(finished.put(self.location))
                self._others.append(added[-1].path)
                count += json.loads(finished.stats)["numRecords"]
            rows = change.rows
        files = self._files(schema, parts, key, ids if by_key else None)
        for group in _groups(rows):
            renamed = group.rename_columns(schema.names)
            for column in missing:
                renamed = renamed.append_column(column, pa.nulls(renamed.num_rows, column.type))
            if not rules.allow(renamed):
                raise NeedsSparkError
            files.write(renamed if replaced is None else replaced.with_ids(renamed))
        following = self._files(full, parts, key, ids)
        for found in removal.rows if change.follow else ():
            columns = full if ids is None else full.append(pa.field(ids, pa.int64()))
            for part, at in found.read(columns):
                if ids is not None:
                    index = part.column_names.index(ids)
                    part = part.set_column(index, columns.field(ids), ids_of(removal.adds[found.path], part, at, ids))
                following.write(_following(part, key, change.follow))
        added += [*files.close(), *following.close()]
        feed: Sequence[Mapping[str, Any]] = ()
        if replaced is not None and removal.rows:
            feed = replaced.write_feed(self.location, table, removal.rows, all_rows)
            self._others += [action["cdc"]["path"] for action in feed]
        return _Written(added, feed, count + files.rows + following.rows)

    def _files(self, schema: pa.Schema, parts: Sequence[str], key: str, ids: str | None) -> NewFiles:
        """Begins new data files for rows with the additional column ``ids``."""
        stored = pa.schema([column for column in schema if column.name not in parts])
        written = stored if ids is None else stored.append(pa.field(ids, pa.int64()))
        unlisted = () if ids is None else (ids,)
        files = NewFiles(lambda: of_rows(self.location, written, key, unlisted), parts)
        self._new.append(files)
        return files


def _following(rows: pa.Table, key: str, follow: Mapping[str, Mapping[str, Any]]) -> pa.Table:
    """Returns the rows that follow, with their new values."""
    at = pc.index_in(rows[key].combine_chunks(), value_set=pa.array(list(follow), rows[key].type))
    result, at = rows.filter(pc.is_valid(at)), at.drop_null()
    spelled = {name.lower(): name for name in result.column_names}
    for column in next(iter(follow.values())):
        name = spelled[column.lower()]
        values = pa.array([new[column] for new in follow.values()], result[name].type)
        result = result.set_column(result.column_names.index(name), result.field(name), values.take(at))
    return result


def _groups(rows: Iterable[pa.Table]) -> Iterable[pa.Table]:
    """Concatenates tables into tables of about one row group each."""
    pending: list[pa.Table] = []
    for row in rows:
        if not row.num_rows:
            continue
        pending.append(row)
        if sum(part.num_rows for part in pending) >= GROUP_ROWS or sum(part.nbytes for part in pending) >= _GROUP_BYTES:
            yield pa.concat_tables(pending)
            pending = []
    if pending:
        yield pa.concat_tables(pending)
