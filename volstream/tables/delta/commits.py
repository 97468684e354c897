"""The commits of tables, written without a JVM: their actions, and how they get into the log under the next number.

What does not belong here: which rows a commit changes (``direct``), and which files it puts together (``upkeep``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Schema

from volstream.tables.delta import durable
from volstream.tables.delta.columns import has_type
from volstream.tables.delta.datafile import AddedFile
from volstream.tables.delta.log import actions, checkpoint_files, last_checkpoint
from volstream.tables.delta.places import create_file, filesystem_of, open_table

#: Fields of an action about the ids of a file's rows.
_OF_ROWS = ("baseRowId", "defaultRowCommitVersion")

#: One checkpoint per ten commits, as in Delta.
_CHECKPOINT_COMMITS = 10


def on(location: str, table_id: str, version: int, actions: Iterable[Mapping[str, Any]]) -> bool:
    """Commits on top of a table's version, durable on return; returns False if another commit came first."""
    durable.sync(location, table_id, version)
    committed = put(location, version + 1, actions)
    if committed:
        durable.made(table_id, version + 1)
        _checkpoint(location, version + 1)
    return committed


def transactions(versions: Mapping[str, int]) -> Sequence[Mapping[str, Any]]:
    """Returns the actions that set the transactions of applications."""
    now = int(time.time() * 1000)
    return [{"txn": {"appId": app_id, "version": version, "lastUpdated": now}} for app_id, version in versions.items()]


def definition(table_id: str, schema: pa.Schema, properties: Mapping[str, str], *, first: bool) -> Sequence[Mapping[str, Any]]:
    """Returns the actions that define a table's columns, with only the features that their types require.

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
    """Returns the action that sets a table's columns, which are not partitioned, and properties.

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
    """Returns the action that adds a new file; ``more``: fields about its rows' ids, or in place of others."""
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
    """Returns the action that removes a file, given the one that added it.

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
        **{name: add[name] for name in _OF_ROWS if name in add},
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
        asked = pc.is_in(pc.struct_field(listed, "path"), value_set=pa.array(sorted(missing), pa.string()))
        for add in listed.filter(asked).to_pylist():
            kept = ("path", "size", "modificationTime", "stats", "deletionVector", *_OF_ROWS)
            present = {key: add[key] for key in kept if add.get(key) is not None}
            if "deletionVector" in present:
                vector = {part: value for part, value in add["deletionVector"].items() if value is not None}
                vector.pop("maxRowIndex", None)
                present["deletionVector"] = vector
            by_path[add["path"]] = {**present, "partitionValues": dict(add["partitionValues"] or ())}
    return by_path


def removed(location: str, version: int) -> Iterator[Mapping[str, Any]]:
    """Yields the ``remove`` actions that a table's log still has up to a version."""
    checkpoint = last_checkpoint(location)
    for number in range(version, min(checkpoint[0], version), -1):
        yield from (action["remove"] for action in actions(location, number, '"remove"') if "remove" in action)
    filesystem, _ = filesystem_of(location)
    for name in checkpoint_files(location, checkpoint):
        listed = pq.read_table(name, columns=["remove"], filesystem=filesystem)["remove"]
        yield from listed.filter(pc.is_valid(pc.struct_field(listed, "path"))).to_pylist()


def _checkpoint(location: str, version: int) -> None:
    """Keeps the log short to read, as Delta does after a commit. Failing does not affect the commit."""
    if version % _CHECKPOINT_COMMITS:
        return
    with durable.upkeep(location):
        durable.checkpoint(location, open_table(location))


def put(location: str, version: int, actions: Iterable[Mapping[str, Any]]) -> bool:
    """Writes a commit to a table's log under a number; returns False if the number is taken."""
    return create_file(f"{location}/_delta_log/{version:020d}.json", lines(actions))


def lines(actions: Iterable[Mapping[str, Any]], *, in_order: bool = False) -> bytes:
    """Returns actions as a log entry has them; ``in_order``: with sorted fields, so that equal actions are equal bytes."""
    return "".join(json.dumps(action, ensure_ascii=False, sort_keys=in_order) + "\n" for action in actions).encode()
