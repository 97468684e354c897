"""Commits without a JVM to tables that Spark also writes: adds rows, and removes rows of given keys, in one commit.

deltalake cannot do that: it rewrites whole files, and accepts a transaction number that was already used. So this module
implements the commit according to the Delta protocol: it computes the commit against the newest version, puts it into the log
under the next number if that is free, else recomputes it. Only for tables that require nothing else of a commit (constraints,
partitions, column mapping), where a file can be created without overwriting another: on a local file system, and in S3. If
changes are tracked, it can only add rows, or replace rows of a primary key.

What does not belong here: tables written by a single process (``native``), and commits that need Spark (``writer``).
"""

from __future__ import annotations

import json
import time
import uuid
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.schema import Schema

from volstream.errors import StorageError
from volstream.tables.delta import commits
from volstream.tables.delta.bounds import bounds_of, group_bounds
from volstream.tables.delta.datafile import (
    GROUP_ROWS,
    AddedFile,
    FinishedFile,
    NewFile,
    fitted,
    of_rows,
    open_file,
    statistics_text,
)
from volstream.tables.delta.log import (
    CHARACTERS,
    PRIMARY_KEY,
    has_type,
    is_char,
    is_on,
    length_of,
)
from volstream.tables.delta.marker import Marker
from volstream.tables.delta.places import (
    can_create,
    files_of,
    filesystem_of,
    make_durable,
    make_folder,
    mapped,
    read_table,
    remove_file,
)
from volstream.tables.delta.tracking import (
    FEATURES,
    ReplacedRows,
    TrackedCommit,
    id_column,
    ids_of,
    kept_ids,
    new_columns,
    write_feed,
)
from volstream.tables.delta.tracking import PROPERTIES as TRACKING
from volstream.tables.delta.vectors import deleted_rows, write_vectors

#: Writer features that this module supports. A table with columns of ``variantType`` is not written: see :func:`_is_simple`.
_KNOWN = frozenset({"appendOnly", "invariants", "deletionVectors", "timestampNtz", "variantType"})

_VECTORS = "delta.enableDeletionVectors"

#: Metadata of columns that requires nothing of a commit, or only what :class:`_ColumnRules` checks.
_HARMLESS = frozenset({"comment", CHARACTERS})

#: Writer features of tables created here. Every reader that supports deletion vectors can read them.
_CREATED = ("appendOnly", "deletionVectors", "invariants")

#: Bytes buffered in memory per row group, and per data file.
_GROUP_BYTES, _FILE_BYTES = 32 << 20, 256 << 20

#: Rows that follow are in memory: the files that have them may have this many bytes, not compressed.
_FOLLOWING_BYTES = 256 << 20

#: Maximum number of attempts; an attempt fails only if another commit came first.
_ATTEMPTS = 100


@dataclass(frozen=True)
class RowChanges:
    """A commit's changes to a table's rows.

    Attributes:
        rows: tables of rows to add, with columns of the table, in any case. If they replace rows of a primary key, each attempt
            reads them again.
        schema: schema of ``rows``.
        key: text column that selects the rows to remove.
        gone: values of ``key`` whose rows are removed. None: the commit only adds rows, or replaces all.
        files: more rows to add. The table gets the files themselves, or their rows if it requires more of a row.
        follow: rows of ``gone`` that stay, with other values: new values by column, by the value of ``key``.
        overwrite: remove all other rows.
    """

    rows: Iterable[pa.Table]
    schema: pa.Schema
    key: str
    gone: Collection[str] | None
    files: Sequence[FinishedFile] = ()
    follow: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    overwrite: bool = False


def create(location: str, schema: pa.Schema, properties: Mapping[str, str], *, tracked: bool = False) -> bool:
    """Creates an empty table with deletion vectors, unless it exists; returns False if only Spark can create it.

    Args:
        tracked: track changes, as streams on the table require.

    Raises:
        DependencyError: the folder cannot be written.
    """
    if not can_create(location):
        return False
    text = Schema.from_arrow(schema).to_json()
    if has_type(json.loads(text), "timestamp_ntz"):
        return False  # another feature
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
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": text,
                "partitionColumns": [],
                "configuration": configuration,
                "createdTime": created,
            }
        },
    ]
    with mapped(location):
        make_folder(f"{location}/_delta_log")
        commits.put(location, 0, actions)
    return True


def can_write(location: str, key: str) -> bool:
    """True if rows can be added, and removed by a column, without Spark; False if the table does not exist."""
    if not can_create(location):
        return False
    with mapped(location):
        try:
            return can_commit(read_table(location), key)
        except TableNotFoundError:
            return False


def rows_of(location: str, key: str, values: Collection[str], columns: Sequence[str]) -> pa.Table | None:
    """Returns some columns of the rows of keys; None: only Spark can commit to the table.

    Raises:
        DependencyError: the table cannot be read.
    """
    if not can_create(location):
        return None
    with mapped(location):
        table = read_table(location)
        if not can_commit(table, key):
            return None
        schema = pa.schema(table.schema().to_arrow())
        wanted = pa.schema([schema.field(name) for name in columns])
        asked = sorted(values)
        paths = _candidates(table, key, asked)
        if not all(map(is_beside_the_log, paths)):
            return None
        before = deleted_rows(table, paths)
        found = [wanted.empty_table()]
        for path in paths:
            at, rows = _matches(open_file(location, path), key, asked, wanted)
            found.append(rows.filter(pa.array(~np.isin(at, before[path]))) if path in before else rows)
        return pa.concat_tables([rows.cast(wanted) for rows in found])


def commit(location: str, marker: Marker, change: RowChanges | None = None) -> bool:
    """Makes one commit with ``marker``, empty without changes. Durable on return.

    Makes none if a commit already has the marker's number; the log shows whose it is.

    Returns:
        False: only Spark can make the commit; nothing was done.

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
        except BaseException:
            writing.forget()
            raise


def is_beside_the_log(path: str) -> bool:
    """True if the log names a data file in the table's own folder, by its plain name."""
    return not any(character in path for character in "/%:")


def spelled(table: DeltaTable, column: str) -> str:
    """Returns a column's name as a table spells it."""
    return next((field.name for field in table.schema().fields if field.name.lower() == column.lower()), column)


class _OvertakenError(Exception):
    """Another commit came first."""


@dataclass
class _Commit:
    """One commit in progress."""

    location: str
    marker: Marker
    change: RowChanges | None
    _written: list[AddedFile] | None = None
    _files: list[NewFile] = field(default_factory=list)
    _groups: list[pa.Table] = field(default_factory=list)  #: the rows to add, if they replace others
    _others: list[str] = field(default_factory=list)  #: paths of other new files
    _rows: int = 0
    _may_be_there: bool = False

    def run(self) -> bool:
        for _ in range(_ATTEMPTS):
            table = read_table(self.location)
            if not can_commit(table, None if self.change is None or self.change.gone is None else self.change.key):
                self.forget()
                return False
            used = table.transaction_version(self.marker.app_id)
            if used is not None and used >= self.marker.version:
                self.forget()
                return True
            try:
                actions = self._actions(table)
            except _OvertakenError:
                continue
            if actions is None:
                self.forget()
                return False
            if self.change is not None:  # the names of new files, including those of deletion vectors
                make_durable(*filesystem_of(self.location), folders=False)
            self._may_be_there = True  # from here on an interruption leaves the outcome unknown
            self._may_be_there = commits.on(self.location, table, actions)
            if self._may_be_there:
                return True
        raise StorageError(f"Too many concurrent writes to the table at {self.location}.", "Try again later.")

    def forget(self) -> None:
        """Removes the files of a commit that was not made, unless the outcome is unknown."""
        if not self._may_be_there:
            self._drop()

    def _drop(self) -> None:
        for file in self._files:
            file.drop()
        for path in self._others:
            remove_file(filesystem_of(self.location)[0], path)
        self._files, self._others, self._groups, self._rows = [], [], [], 0

    def _actions(self, table: DeltaTable) -> Sequence[Mapping[str, Any]] | None:
        """Returns the commit's actions; None: only Spark can make the commit."""
        now = int(time.time() * 1000)
        transaction = {"txn": {"appId": self.marker.app_id, "version": self.marker.version, "lastUpdated": now}}
        user: dict[str, Any] = {"userMetadata": self.marker.user_metadata}
        if self.change is not None and not _schema_matches(self.change.schema, table):
            return None
        tracked = TrackedCommit(table, self.location)
        with_rows = self.change is not None and self.change.gone is not None and _is_tracked(table)
        follow = {} if self.change is None else self.change.follow
        key = "" if self.change is None else spelled(table, self.change.key)
        if follow and with_rows:  # it would have to give them other ids
            return None
        user |= tracked.info(keeps_ids=with_rows)
        if self.change is None:
            return [
                commits.info("WRITE", {"mode": "Append", "partitionBy": "[]"}, isBlindAppend=True, **user),
                transaction,
            ]
        removed = (
            _whole(table, self.location, now)
            if self.change.overwrite
            else _without(
                table,
                self.location,
                key,
                self.change.gone or (),
                now,
                with_rows=with_rows or bool(follow),
                most_bytes=_FOLLOWING_BYTES if follow else None,
            )
        )
        if removed is None:
            return None
        if (
            self._written is None or with_rows or follow
        ):  # the version determines which ids rows keep, and which rows follow
            self._drop()
            self._written = self._write(self.change, table, removed.rows if with_rows else None)
            if self._written is not None and removed.rows is not None and follow:
                self._written += self._write_following(removed.rows.rows, key, follow)
        if self._written is None:
            return None
        replaced, feed = removed.actions, list[Mapping[str, Any]]()
        if removed.rows is not None and with_rows:
            feed = write_feed(self.location, table, key, removed.rows, self._groups)
            root = filesystem_of(self.location)[1]
            self._others += [f"{root}/{action['cdc']['path']}" for action in feed]
        added = [
            commits.addition(file, **tracked.added(json.loads(file.stats)["numRecords"])) for file in self._written
        ]
        mode = {"mode": "Overwrite" if replaced else "Append", "partitionBy": "[]"}
        metrics = {
            "numFiles": str(len(added)),
            "numOutputRows": str(self._rows),
            "numOutputBytes": str(sum(file.size for file in self._written)),
        }
        info = commits.info(
            "WRITE",
            mode,
            isBlindAppend=self.change.gone is None and not self.change.overwrite,
            operationMetrics=metrics,
            **user,
        )
        return [info, transaction, *replaced, *added, *feed, *(tracked.domain() if added else [])]

    def _write_following(self, rows: pa.Table, key: str, follow: Mapping[str, Mapping[str, Any]]) -> list[AddedFile]:
        kept = _following(rows, key, follow)
        if not kept.num_rows:
            return []
        file = of_rows(self.location, kept.schema, key)
        self._files.append(file)
        file.write(kept)
        self._rows += kept.num_rows
        return [file.close()]

    def _write(self, change: RowChanges, table: DeltaTable, replaced: ReplacedRows | None) -> list[AddedFile] | None:
        """Writes the rows to add, to which nothing refers yet. None: the table does not allow one of them.

        Args:
            replaced: rows whose ids the added rows keep.
        """
        ids = None if replaced is None else id_column(table)
        rules = _ColumnRules.of(table)
        names = {column.name.lower(): column.name for column in table.schema().fields}
        schema = pa.schema([pa.field(names[column.name.lower()], column.type) for column in change.schema])
        key = spelled(table, change.key)
        written = schema if ids is None else schema.append(pa.field(ids, pa.int64()))
        added: list[AddedFile] = []
        rows, root = change.rows, filesystem_of(self.location)[1]
        if replaced is None and rules.allow_all and schema.names == change.schema.names:
            for finished in change.files:
                added.append(finished.put(self.location))
                self._others.append(f"{root}/{added[-1].path}")
                self._rows += json.loads(finished.stats)["numRecords"]
        else:
            rows = chain(rows, *(finished.rows() for finished in change.files))
        file: NewFile | None = None
        for group in _groups(rows):
            if file is None:
                file = of_rows(self.location, written, key, [] if ids is None else [ids])
                self._files.append(file)
            renamed = group.rename_columns(schema.names)
            if not rules.allow(renamed):
                return None
            if replaced is not None:
                self._groups.append(renamed)
                if ids is not None:
                    renamed = renamed.append_column(written.field(ids), kept_ids(renamed, key, replaced))
            file.write(renamed)
            self._rows += group.num_rows
            if file.bytes >= _FILE_BYTES:
                added.append(file.close())
                file = None
        if file is not None:
            added.append(file.close())
        return added


def _following(rows: pa.Table, key: str, follow: Mapping[str, Mapping[str, Any]]) -> pa.Table:
    """Returns the rows of keys that follow, with their new values."""
    at = pc.index_in(rows[key].combine_chunks(), value_set=pa.array(list(follow), rows[key].type))
    kept, at = rows.filter(pc.is_valid(at)), at.drop_null()
    spelled = {name.lower(): name for name in kept.column_names}
    for column in next(iter(follow.values())):
        name = spelled[column.lower()]
        values = pa.array([new[column] for new in follow.values()], kept[name].type)
        kept = kept.set_column(kept.column_names.index(name), kept.field(name), values.take(at))
    return kept


def _groups(rows: Iterable[pa.Table]) -> Iterable[pa.Table]:
    """Concatenates tables into tables of one row group each."""
    waiting: list[pa.Table] = []
    for row in rows:
        if not row.num_rows:
            continue
        waiting.append(row)
        if sum(part.num_rows for part in waiting) >= GROUP_ROWS or sum(part.nbytes for part in waiting) >= _GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _is_tracked(table: DeltaTable) -> bool:
    return not FEATURES.isdisjoint(table.protocol().writer_features or ())


def can_commit(table: DeltaTable, gone_by: str | None) -> bool:
    """True if a commit can maintain everything that the table requires.

    Args:
        gone_by: the column by which the commit removes rows; None: it only adds rows.
    """
    protocol, metadata = table.protocol(), table.metadata()
    # Only with a key do rows replace each other one by one.
    one_by_one = gone_by is None or json.loads(metadata.configuration.get(PRIMARY_KEY) or "[]") == [gone_by]
    supported = _KNOWN | FEATURES if one_by_one else _KNOWN
    writable = protocol.min_writer_version <= 2 or (
        protocol.min_writer_version == 7 and supported.issuperset(protocol.writer_features or ())
    )
    if not writable or metadata.partition_columns or is_on(metadata.configuration, "delta.appendOnly"):
        return False
    fields = _fields(table.schema())
    # A CHAR may be stored with or without trailing blanks, but rows to remove are looked up by the stored value.
    by_char = any(column["name"] == gone_by and is_char(column["metadata"].get(CHARACTERS)) for column in fields)
    return not by_char and all(map(_is_simple, fields))


def _is_simple(column: Mapping[str, Any]) -> bool:
    """True if a column requires nothing that :class:`_ColumnRules` cannot check, such as lengths or NOT NULL inside values."""
    metadata = column["metadata"]
    unknown_length = CHARACTERS in metadata and length_of(metadata[CHARACTERS]) is None
    type_ = json.dumps(column["type"])
    is_plain = not any(word in type_ for word in ('"nullable": false', '"variant"'))
    return _HARMLESS.issuperset(metadata) and not unknown_length and is_plain


def _schema_matches(schema: pa.Schema, table: DeltaTable) -> bool:
    """True if a table has the columns of a schema, with their types. It may have been replaced since the rows were created."""
    columns = {column["name"].lower(): _kind(column["type"]) for column in _fields(table.schema())}
    return all(
        columns.get(column["name"].lower()) == _kind(column["type"]) for column in _fields(Schema.from_arrow(schema))
    )


def _fields(schema: Schema) -> Sequence[Mapping[str, Any]]:
    """Returns a schema's columns as in the log."""
    fields: list[Mapping[str, Any]] = json.loads(schema.to_json())["fields"]
    return fields


def _kind(type_: Any) -> Any:
    """Returns Delta's type as JSON without nullability and metadata."""
    if not isinstance(type_, dict):
        return type_
    inside = {name: _kind(type_[name]) for name in ("elementType", "keyType", "valueType") if name in type_}
    return type_["type"], inside, [(child["name"], _kind(child["type"])) for child in type_.get("fields", ())]


@dataclass(frozen=True)
class _ColumnRules:
    """A table's requirements on column values, as far as this module can check them.

    Attributes:
        required: NOT NULL columns.
        lengths: maximum number of characters of text, by column.
    """

    required: Collection[str]
    lengths: Mapping[str, int]

    @classmethod
    def of(cls, table: DeltaTable) -> _ColumnRules:
        fields = table.schema().fields
        limits = {column.name: length_of((column.metadata or {}).get(CHARACTERS)) for column in fields}
        lengths = {name: length for name, length in limits.items() if length is not None}
        return cls([column.name for column in fields if not column.nullable], lengths)

    @property
    def allow_all(self) -> bool:
        """True if any rows can be added."""
        return not self.required and not self.lengths

    def allow(self, rows: pa.Table) -> bool:
        """True if rows, with the table's spelling of its columns, can be added; if not, Spark reports the problem."""
        if any(name not in rows.column_names or rows[name].null_count for name in self.required):
            return False
        for name in self.lengths.keys() & {*rows.column_names}:
            if (pc.max(pc.utf8_length(rows[name])).as_py() or 0) > self.lengths[name]:
                return False
        return True


@dataclass(frozen=True)
class _Removed:
    """The removal of rows.

    Attributes:
        rows: the removed rows; None: not requested, or there are none.
    """

    actions: Sequence[Mapping[str, Any]]
    rows: ReplacedRows | None = None


def _whole(table: DeltaTable, location: str, now: int) -> _Removed:
    """Returns the actions that remove all rows."""
    paths = files_of(table)["path"].to_pylist()
    adds = commits.adds(location, table.version(), paths)
    if adds.keys() != {*paths}:
        raise _OvertakenError
    return _Removed([commits.removal(adds[path], now) for path in paths])


def _without(
    table: DeltaTable,
    location: str,
    key: str,
    gone: Collection[str],
    now: int,
    *,
    with_rows: bool,
    most_bytes: int | None = None,
) -> _Removed | None:
    """Returns the actions that remove the rows of some keys; None: the table has no deletion vectors, or is a shallow clone, or
    the files with the rows have more than ``most_bytes``."""
    if not gone:
        return _Removed([])
    values = sorted(gone)
    columns = pa.schema(table.schema().to_arrow())
    ids_in = id_column(table)
    if not with_rows:
        columns = pa.schema([columns.field(key)])
    elif ids_in is not None:
        columns = columns.append(pa.field(ids_in, pa.int64()))
    hit: dict[str, tuple[np.ndarray, pa.Table]] = {}
    lengths: dict[str, int] = {}
    size = 0
    for path in _candidates(table, key, values):
        if not is_beside_the_log(path):
            return None
        file = open_file(location, path)
        at, rows = _matches(file, key, values, columns)
        if at.size:
            hit[path] = at, rows
            lengths[path] = file.metadata.num_rows
            size += file.metadata.serialized_size + sum(
                file.metadata.row_group(number).total_byte_size for number in range(file.num_row_groups)
            )
            if most_bytes is not None and size > most_bytes:
                return None
    if not hit:
        return _Removed([])
    before = deleted_rows(table, hit)
    fresh = {path: ~np.isin(at, before[path]) if path in before else None for path, (at, _) in hit.items()}
    deleted = {path: np.union1d(at, before[path]) if path in before else at for path, (at, _) in hit.items()}
    touched = {path: rows for path, rows in deleted.items() if path not in before or rows.size > before[path].size}
    adds = commits.adds(location, table.version(), touched)
    if touched.keys() - adds.keys():
        raise _OvertakenError  # a newer checkpoint lacks them: another commit removed them
    whole = {path for path, rows in touched.items() if rows.size == lengths[path]}
    if touched.keys() - whole and not is_on(table.metadata().configuration, _VECTORS):
        return None
    partly = {path: rows for path, rows in touched.items() if path not in whole}
    vectors = write_vectors(location, partly) if partly else {}
    actions: list[Mapping[str, Any]] = []
    for path in touched:
        add = adds[path]
        actions.append(commits.removal(add, now))
        if path not in whole:
            # A table may have no statistics, or only ones that are not text in a checkpoint.
            statistics = {**json.loads(add.get("stats") or "{}"), "numRecords": lengths[path], "tightBounds": False}
            present = {"dataChange": True, "stats": statistics_text(statistics), "deletionVector": vectors[path]}
            actions.append({"add": {**add, **present}})
    if not with_rows or not touched:
        return _Removed(actions)
    images, ids = [], []
    for path in touched:
        at, rows = hit[path]
        kept = fresh[path]
        if kept is not None:
            at, rows = at[kept], rows.filter(pa.array(kept))
        images.append(rows)
        ids.append(ids_of(adds[path], rows, at, ids_in))
    return _Removed(actions, ReplacedRows(pa.concat_tables(images), pa.concat_arrays(ids)))


def _candidates(table: DeltaTable, key: str, values: Sequence[str]) -> list[str]:
    """Returns the data files that may have rows of the keys, given sorted, according to the statistics."""
    files = files_of(table)
    ranges = zip(files["path"].to_pylist(), *bounds_of(files, key), strict=True)
    return [path for path, low, high in ranges if _meets(values, low, high)]


def _meets(values: Sequence[str], low: str | None, high: str | None) -> bool:
    """True if any of the sorted values may be in a range; an end that is None is open."""
    at = 0 if low is None else bisect_left(values, low)
    return at < len(values) and (high is None or values[at] <= high)


def _matches(file: pq.ParquetFile, key: str, values: Sequence[str], columns: pa.Schema) -> tuple[np.ndarray, pa.Table]:
    """Returns the positions of a file's rows with any of the keys, given sorted, and some columns of these rows."""
    positions: list[np.ndarray] = []
    rows = [fitted(columns.empty_table(), columns)]
    asked = pa.array(values, columns.field(key).type)
    first = 0
    with file:
        there = [name for name in columns.names if name in file.schema_arrow.names]
        # A file older than the key's column has no row with a key.
        groups = file.num_row_groups if key in there else 0
        for number in range(groups):
            group = file.metadata.row_group(number)
            if _meets(values, *group_bounds(group, key)):
                read = fitted(file.read_row_group(number, columns=there), columns)
                matches = pc.is_in(read[key], value_set=asked)
                positions.append(np.flatnonzero(matches.to_numpy()) + first)
                rows.append(read.filter(matches))
            first += group.num_rows
    return np.concatenate([np.empty(0, np.int64), *positions]), pa.concat_tables(rows)
