"""Commits without a JVM: builds their actions, and writes them to the log under the next number.

Not here: which rows a commit changes (``direct``), and which files it merges (``upkeep``).
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema

from volstream.errors import InvalidValueError
from volstream.tables.delta import durable
from volstream.tables.delta.datafile import AddedFile, can_partition
from volstream.tables.delta.log import actions, checkpoint_files, commit_info, is_on, last_checkpoint
from volstream.tables.delta.places import create_file, filesystem_of, open_table
from volstream.tables.delta.schema import CHARACTERS, EMPTY, NAME_OF_NULL, has_type, is_char, length_of

#: Fields of an action for the ids of a file's rows.
_ROW_ID_FIELDS = ("baseRowId", "defaultRowCommitVersion")

#: One checkpoint per ten commits, as in Delta.
_CHECKPOINT_COMMITS = 10


def on(location: str, table_id: str, version: int, actions: Iterable[Mapping[str, Any]]) -> bool:
    """Commits on top of a table's version. Returns False if another commit came first. Durable on return."""
    durable.sync(location, table_id, version)
    committed = put(location, version + 1, actions)
    if committed:
        durable.record_commit(table_id, version + 1)
        _checkpoint(location, version + 1)
    return committed


def transactions(versions: Mapping[str, int]) -> Sequence[Mapping[str, Any]]:
    """Returns the actions that set the transactions of applications."""
    now = int(time.time() * 1000)
    return [{"txn": {"appId": app_id, "version": version, "lastUpdated": now}} for app_id, version in versions.items()]


def definition(table_id: str, schema: pa.Schema, properties: Mapping[str, str], *, first: bool) -> Sequence[Mapping[str, Any]]:
    """Returns the actions that define a table's columns, with only the features required by their types.

    Args:
        first: the table has no definition yet.
    """
    text = Schema.from_arrow(schema).to_json()
    defined: list[Mapping[str, Any]] = []
    if has_type(json.loads(text), "timestamp_ntz"):
        features = {"readerFeatures": ["timestampNtz"], "writerFeatures": ["appendOnly", "invariants", "timestampNtz"]}
        defined.append({"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}})
    elif first:
        defined.append({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
    return [*defined, metadata(table_id, text, properties, int(time.time() * 1000))]


def metadata(table_id: str, schema: str, properties: Mapping[str, str], now: int) -> Mapping[str, Any]:
    """Returns the action that sets an unpartitioned table's columns and properties.

    Args:
        schema: as in the log.
        now: in milliseconds.
    """
    fields = {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": dict(properties),
        "createdTime": now,
    }
    return {"metaData": fields}


def addition(file: AddedFile, **more: Any) -> Mapping[str, Any]:
    """Returns the action that adds a new file. ``more`` has fields for row ids, or overrides other fields."""
    fields = {
        "path": file.path,
        "partitionValues": dict(file.partition),
        "size": file.size,
        "modificationTime": file.modification_time,
        "dataChange": True,
        "stats": file.stats,
    }
    return {"add": {**fields, **more}}


def removal(add: Mapping[str, Any], now: int, *, changes_data: bool = True) -> Mapping[str, Any]:
    """Returns the action that removes a file, given its ``add`` action.

    Args:
        now: in milliseconds.
    """
    fields = {
        "path": add["path"],
        "deletionTimestamp": now,
        "dataChange": changes_data,
        "extendedFileMetadata": True,
        "partitionValues": add["partitionValues"],
        "size": add["size"],
        **{name: add[name] for name in _ROW_ID_FIELDS if name in add},
    }
    if add.get("deletionVector"):
        fields["deletionVector"] = add["deletionVector"]
    return {"remove": fields}


def info(operation: str, parameters: Mapping[str, str], **more: Any) -> Mapping[str, Any]:
    """Returns the first action of a commit."""
    fields = {"operation": operation, "operationParameters": dict(parameters), "engineInfo": durable.OURS, **more}
    return {"commitInfo": {"timestamp": int(time.time() * 1000), **fields}}


def adds(location: str, version: int, wanted: Collection[str]) -> Mapping[str, dict[str, Any]]:
    """Returns the log's ``add`` actions for some data files of a table's version."""
    missing, by_path = set(wanted), dict[str, dict[str, Any]]()
    checkpoint = last_checkpoint(location)
    for number in range(version, min(checkpoint[0], version), -1):
        for action in actions(location, number, '"add"'):
            add = action.get("add")
            if add is not None and add["path"] in missing:
                missing.remove(add["path"])
                by_path[add["path"]] = {name: value for name, value in add.items() if value is not None}
        if not missing:
            return by_path
    filesystem, _ = filesystem_of(location)
    for name in checkpoint_files(location, checkpoint):
        listed = pq.read_table(name, columns=["add"], filesystem=filesystem)["add"].combine_chunks()
        is_wanted = pc.is_in(pc.struct_field(listed, "path"), value_set=pa.array(sorted(missing), pa.string()))
        for add in listed.filter(is_wanted).to_pylist():
            keys = ("path", "size", "modificationTime", "stats", "deletionVector", *_ROW_ID_FIELDS)
            present = {key: add[key] for key in keys if add.get(key) is not None}
            if "deletionVector" in present:
                vector = {part: value for part, value in add["deletionVector"].items() if value is not None}
                vector.pop("maxRowIndex", None)
                present["deletionVector"] = vector
            by_path[add["path"]] = {**present, "partitionValues": dict(add["partitionValues"] or ())}
    return by_path


def removed(location: str, version: int) -> Iterator[Mapping[str, Any]]:
    """Yields the ``remove`` actions up to a version that are still in a table's log."""
    checkpoint = last_checkpoint(location)
    for number in range(version, min(checkpoint[0], version), -1):
        yield from (action["remove"] for action in actions(location, number, '"remove"') if "remove" in action)
    filesystem, _ = filesystem_of(location)
    for name in checkpoint_files(location, checkpoint):
        listed = pq.read_table(name, columns=["remove"], filesystem=filesystem)["remove"]
        yield from listed.filter(pc.is_valid(pc.struct_field(listed, "path"))).to_pylist()


def _checkpoint(location: str, version: int) -> None:
    """Writes a checkpoint after every tenth commit, as Delta does. A failure does not affect the commit."""
    if version % _CHECKPOINT_COMMITS:
        return
    with durable.upkeep(location):
        durable.checkpoint(location, open_table(location))


def put(location: str, version: int, actions: Iterable[Mapping[str, Any]]) -> bool:
    """Writes a commit to a table's log under a number. Returns False if the number is taken."""
    return create_file(f"{location}/_delta_log/{version:020d}.json", lines(actions))


def lines(actions: Iterable[Mapping[str, Any]], *, in_order: bool = False) -> bytes:
    """Formats actions as a log entry. ``in_order`` sorts fields, so that equal actions give equal bytes."""
    return "".join(json.dumps(action, ensure_ascii=False, sort_keys=in_order) + "\n" for action in actions).encode()


# Tracked changes. A commit must maintain row ids, the change feed, and the commit's time.
#
# Delta's protocol: each added file has the id of its first row and the version that added it. The table's
# domain metadata has the greatest id so far. The first action of a commit has a later time than the previous
# commit. A row that replaces another keeps that row's id, in a column of the data file that is not in the
# schema. Readers derive the change feed from the added and removed files, unless the commit has change feed
# files, in which old and new rows are updates (``direct.ReplacedRows``).

#: Writer features of tables with tracked changes, which :mod:`volstream.tables.delta.direct` supports.
FEATURES = frozenset({"domainMetadata", "rowTracking", "changeDataFeed", "inCommitTimestamp"})

#: Table properties that make changes readable: stable row ids, the change feed, and commit times in the log.
PROPERTIES = {"delta.enableRowTracking": "true", "delta.enableChangeDataFeed": "true", "delta.enableInCommitTimestamps": "true"}

_DOMAIN = "delta.rowTracking"
_ID_COLUMN = "delta.rowTracking.materializedRowIdColumnName"
_VERSION_COLUMN = "delta.rowTracking.materializedRowCommitVersionColumnName"


def new_columns() -> Mapping[str, str]:
    """Returns the properties that name the columns in which rewritten rows keep their ids."""
    return {_ID_COLUMN: f"_row-id-col-{uuid.uuid4()}", _VERSION_COLUMN: f"_row-commit-version-col-{uuid.uuid4()}"}


#: The folder of a change feed's files.
FEED = "_change_data"


def ids_of(add: Mapping[str, Any], rows: pa.Table, positions: np.ndarray, column: str | None) -> pa.Array:
    """Returns the ids of some rows of a data file.

    Args:
        add: the action that added the file.
        rows: the rows, including ``column`` if it is set.
        positions: of the rows in the file.
        column: from :func:`id_column`.
    """
    default_ids = pa.array(positions + int(add.get("baseRowId") or 0), pa.int64())
    return default_ids if column is None else pc.coalesce(rows[column].combine_chunks(), default_ids)


def id_column(table: DeltaTable) -> str | None:
    """Returns the name of the column in which rewritten rows keep their ids, or None without row ids."""
    column: str | None = table.metadata().configuration.get(_ID_COLUMN)
    return column if "rowTracking" in (table.protocol().writer_features or ()) else None


def version_column(table: DeltaTable) -> str | None:
    """Returns the name of the column for the last change of rewritten rows, or None without row ids."""
    column: str | None = table.metadata().configuration.get(_VERSION_COLUMN)
    return column if id_column(table) is not None else None


class TrackedCommit:
    """The additional content of a commit to a table with tracked changes. Empty for other tables."""

    def __init__(self, table: DeltaTable, location: str) -> None:
        self._version = table.version() + 1
        self._next = 0
        features = {*(table.protocol().writer_features or ())}
        self._has_ids = "rowTracking" in features
        self._time: int | None = None
        if "inCommitTimestamp" in features:
            self._time = max(int(time.time() * 1000), _time_of(location, table.version()) + 1)
        if self._has_ids:
            self._next = _greatest_id(location, table.version()) + 1

    def info(self, *, keeps_ids: bool) -> Mapping[str, Any]:
        """Returns additional fields of the first action.

        Args:
            keeps_ids: True if rows that replace others keep their ids.
        """
        fields: dict[str, Any] = {} if self._time is None else {"inCommitTimestamp": self._time}
        return fields | ({"tags": {"delta.rowTracking.preserved": "true"}} if self._has_ids and keeps_ids else {})

    def added(self, rows: int) -> Mapping[str, int]:
        """Returns additional fields of the action that adds the next file."""
        if not self._has_ids:
            return {}
        first, self._next = self._next, self._next + rows
        return {"baseRowId": first, "defaultRowCommitVersion": self._version}

    def domain(self) -> list[Mapping[str, Any]]:
        """Returns the action that stores the greatest row id, once all files are added."""
        if not self._has_ids:
            return []
        configuration = json.dumps({"rowIdHighWaterMark": self._next - 1, "domainName": _DOMAIN})
        return [{"domainMetadata": {"domain": _DOMAIN, "configuration": configuration, "removed": False}}]


def _time_of(location: str, version: int) -> int:
    """Returns the time of a version's commit."""
    info = commit_info(actions(location, version, '"commitInfo"'))
    return int(info.get("inCommitTimestamp") or info.get("timestamp") or 0)


def _greatest_id(location: str, version: int) -> int:
    """Returns the greatest row id assigned up to a version, or -1 if there are no ids yet."""
    checkpoint = last_checkpoint(location)
    for number in range(version, min(checkpoint[0], version), -1):
        for action in actions(location, number, _DOMAIN):
            domain = action.get("domainMetadata")
            if domain is not None and domain["domain"] == _DOMAIN:
                return _high_water_mark(domain)
    return max((_greatest_in(location, name) for name in checkpoint_files(location, checkpoint)), default=-1)


def _greatest_in(location: str, checkpoint_file: str) -> int:
    filesystem, _ = filesystem_of(location)
    with pq.ParquetFile(filesystem.open_input_file(checkpoint_file)) as file:
        if "domainMetadata" not in file.schema_arrow.names:
            return -1
        domains = file.read(columns=["domainMetadata"])["domainMetadata"].combine_chunks()
    ours = domains.filter(pc.equal(pc.struct_field(domains, "domain"), _DOMAIN))
    return max(map(_high_water_mark, ours.to_pylist()), default=-1)


def _high_water_mark(domain: Mapping[str, Any]) -> int:
    return int(json.loads(domain["configuration"])["rowIdHighWaterMark"])


# A table's requirements on a commit without a JVM, and on each row. Not here: the commits (``direct``).

#: Supported writer features. Tables with VARIANT columns are still refused: see :func:`_is_simple`.
_KNOWN = FEATURES | {"appendOnly", "invariants", "deletionVectors", "timestampNtz", "variantType"}

#: Metadata of columns that needs no action in a commit, except for the checks of :class:`ColumnRules`.
_HARMLESS = frozenset({"comment", CHARACTERS})


class NeedsSparkError(Exception):
    """Only Spark can make a commit or find rows. Never leaves the package."""


def can_commit(table: DeltaTable, key: str | None) -> bool:
    """True if a commit can meet all requirements of a table.

    Args:
        key: the column by which the commit removes rows, or None if it only adds rows.
    """
    protocol, metadata = table.protocol(), table.metadata()
    writable = protocol.min_writer_version <= 2 or (
        protocol.min_writer_version == 7 and _KNOWN.issuperset(protocol.writer_features or ())
    )
    if not writable or is_on(metadata.configuration, "delta.appendOnly"):
        return False
    fields, parts = _fields(table.schema()), metadata.partition_columns
    if key in parts or not all(can_partition(field["type"]) for field in fields if field["name"] in parts):
        return False
    # A CHAR may be stored with or without trailing blanks, but removals look rows up by the stored value.
    by_char = any(column["name"] == key and is_char(column["metadata"].get(CHARACTERS)) for column in fields)
    return not by_char and all(map(_is_simple, fields))


def _is_simple(column: Mapping[str, Any]) -> bool:
    """True if :class:`ColumnRules` can check a column: it has no lengths or NOT NULL inside nested values."""
    metadata = column["metadata"]
    unknown_length = CHARACTERS in metadata and length_of(metadata[CHARACTERS]) is None
    type_ = json.dumps(column["type"])
    is_plain = not any(word in type_ for word in ('"nullable": false', '"variant"'))
    return _HARMLESS.issuperset(metadata) and not unknown_length and is_plain


def has_columns(schema: pa.Schema, table: DeltaTable) -> bool:
    """True if a table has the columns of a schema, with the same types.

    They may differ if the table was replaced since the rows were created.
    """
    columns = {column["name"].lower(): _kind(column["type"]) for column in _fields(table.schema())}
    return all(columns.get(column["name"].lower()) == _kind(column["type"]) for column in _fields(Schema.from_arrow(schema)))


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
class ColumnRules:
    """A table's requirements on column values that this module can check.

    Attributes:
        required: NOT NULL columns.
        lengths: maximum length of text in characters, by column.
        partitions: partition columns with text.
    """

    required: Collection[str]
    lengths: Mapping[str, int]
    partitions: Collection[str] = ()

    @classmethod
    def of(cls, table: DeltaTable) -> ColumnRules:
        fields = table.schema().fields
        limits = {column.name: length_of((column.metadata or {}).get(CHARACTERS)) for column in fields}
        lengths = {name: length for name, length in limits.items() if length is not None}
        texts = {column["name"] for column in _fields(table.schema()) if column["type"] == "string"}
        partitions = [name for name in table.metadata().partition_columns if name in texts]
        return cls([column.name for column in fields if not column.nullable], lengths, partitions)

    @property
    def allow_all(self) -> bool:
        """True if any rows can be added."""
        return not self.required and not self.lengths

    def allow(self, rows: pa.Table) -> bool:
        """True if rows can be added. If not, Spark reports why. Column names must be spelled as in the table.

        Raises:
            InvalidValueError: Spark would store a value of a NOT NULL partition column as NULL. Then
                deltalake could never open the table again.
        """
        if any(name not in rows.column_names or rows[name].null_count for name in self.required):
            return False
        for name in {*self.partitions} & {*self.required}:
            if pc.any(pc.equal(rows[name], NAME_OF_NULL)).as_py():
                raise InvalidValueError(
                    f"Column {name} cannot be {NAME_OF_NULL!r}: it partitions the table and is NOT NULL, and Delta stores this "
                    "text as NULL in a partition column.",
                    "Use another text.",
                )
            if pc.any(pc.equal(rows[name], EMPTY)).as_py():  # NULL, too
                return False
        for name in self.lengths.keys() & {*rows.column_names}:
            if (pc.max(pc.utf8_length(rows[name])).as_py() or 0) > self.lengths[name]:
                return False
        return True
