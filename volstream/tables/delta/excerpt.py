"""The files that some commits of a table added and removed, as a Delta table of their own, which Spark reads like any other.

It has a log entry alone: the files stay where they are. Spark 4.2's ``CHANGES`` is not used: Delta 4.4 keeps the columns of the
query that was planned last for all queries of an engine, so that two at a time read rows by each other's columns.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from volstream.errors import DependencyError
from volstream.sql.text import table_at
from volstream.tables.delta import commits
from volstream.tables.delta.columns import Schema, schema_of
from volstream.tables.delta.folders import STAGING
from volstream.tables.delta.log import DeltaLog, own_file
from volstream.tables.delta.places import (
    can_create,
    create_file,
    filesystem_of,
    is_remote,
    make_folder,
    mapped,
    open_table,
    replace_file,
)
from volstream.tables.delta.vectors import file_of

#: Name of the folder in the staging folder that holds the excerpts of one hour.
HOUR = "changes-%Y%m%d%H"

#: Partition columns that an excerpt has in addition: "insert" or "delete", and the commit's version and time, in milliseconds.
KIND, VERSION, TIME = "__volstream_kind", "__volstream_version", "__volstream_time"

_TYPES = {KIND: "string", VERSION: "long", TIME: "long"}

#: Properties without which the files cannot be read.
_NEEDED = ("delta.columnMapping.", "delta.rowTracking.", "delta.enableRowTracking")

_MAX_ID = "delta.columnMapping.maxColumnId"

_VECTORS = "deletionVectors"

_FIELDS = ("size", "partitionValues", "baseRowId", "defaultRowCommitVersion")

_OF_NULLS = ("nullable", "containsNull", "valueContainsNull")


def excerpt(location: str, first: int, last: int, warehouse: str) -> str:
    """Returns SQL for a relation of the rows of the files that versions ``first`` to ``last``, both included, added and removed.

    Its columns are the table's at the last version, :data:`KIND`, :data:`VERSION` and :data:`TIME`. Commits that only put files
    together are left out. It can be read for a day; then a daemon deletes it from the staging folder of the warehouse.

    Raises:
        DependencyError: the log no longer has the commits, or they do not say what they removed.
        StorageError, DiskError: the table cannot be read, or the excerpt not be written.
    """
    try:
        with mapped(location):
            table = open_table(location, last)
            schema, files = schema_of(table), [*_files(location, first, last)]
            protocol = _protocol(table, files)
    except TableNotFoundError:
        raise DependencyError(f"There is no table at {location} any more.") from None
    metadata = _metadata(schema)
    entry = commits.lines([{"protocol": protocol}, {"metaData": metadata}, *files], in_order=True)
    size = sum(file["add"]["size"] for file in files)
    counts = {"tableSizeBytes": size, "numFiles": len(files), "numMetadata": 1, "numProtocol": 1}
    checksum = commits.lines([{**counts, "metadata": metadata, "protocol": protocol}], in_order=True)
    # The path depends on the content: a query repeated within the hour reuses the excerpt, whose file list Spark has cached.
    hour = f"{datetime.now(UTC):{HOUR}}"
    place = f"{warehouse}/{STAGING}/{hour}/{hashlib.sha256(entry).hexdigest()[:32]}"
    with mapped(place):
        make_folder(f"{place}/_delta_log")
        put = create_file if can_create(place) else replace_file
        # With a checksum, Spark reads the columns without a job of their own.
        put(f"{place}/_delta_log/{0:020d}.crc", checksum)
        put(f"{place}/_delta_log/{0:020d}.json", entry)
    return table_at(place)


def _protocol(table: DeltaTable, files: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the table's protocol, with deletion vectors if files have some: they may have been given up since."""
    said = table.protocol()
    needed = {_VECTORS for file in files if "deletionVector" in file["add"]}
    of_writers = needed.union(said.writer_features or ())
    of_readers = needed.union(said.reader_features or of_writers & {"columnMapping"})
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted(of_readers),
        "writerFeatures": sorted(of_writers),
    }


def _nullable(part: Any) -> Any:
    """Returns a part of a schema in which everything may be NULL, as it may have been in earlier versions."""
    if isinstance(part, list):
        return [_nullable(item) for item in part]
    if not isinstance(part, Mapping):
        return part
    return {key: True if key in _OF_NULLS else value if key == "metadata" else _nullable(value) for key, value in part.items()}


def _metadata(schema: Schema) -> Mapping[str, Any]:
    properties = {key: value for key, value in schema.properties.items() if key.startswith(_NEEDED)}
    fields = _nullable([*schema.fields])
    for name, kind in _TYPES.items():
        mapping = {}
        if _MAX_ID in properties:
            properties[_MAX_ID] = str(int(properties[_MAX_ID]) + 1)
            mapping = {"delta.columnMapping.id": int(properties[_MAX_ID]), "delta.columnMapping.physicalName": name}
        fields.append({"name": name, "type": kind, "nullable": True, "metadata": mapping})
    return {
        "id": "excerpt",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [*schema.partitions, *_TYPES],
        "configuration": properties,
    }


def _files(location: str, first: int, last: int) -> Iterator[Mapping[str, Any]]:
    """Yields an ``add`` action for each file that was added or removed."""
    root = quote(location, safe="/:@") if is_remote(location) else f"file://{quote(filesystem_of(location)[1])}"
    seen: dict[str, int] = {}
    for commit, changes in DeltaLog(location).changes(first, last):
        milliseconds = round(commit.timestamp.timestamp() * 1000)
        for name, kind in (("remove", "delete"), ("add", "insert")):
            for file in (action[name] for action in changes if action.get(name, {}).get("dataChange")):
                if any(file.get(field) is None for field in _FIELDS):  # the protocol leaves them to the writer of a removal
                    raise DependencyError(
                        f"Version {commit.version} of the table at {location} does not say what is in {file['path']}.",
                        "Write to the table with Delta 4 or volstream alone.",
                    )
                own = {KIND: kind, VERSION: str(commit.version), TIME: str(milliseconds)}
                vector = file.get("deletionVector")
                yield {
                    "add": {
                        **{field: file[field] for field in _FIELDS},
                        "path": _spelled(root, file["path"], seen),
                        "partitionValues": {**file["partitionValues"], **own},
                        "modificationTime": milliseconds,
                        "dataChange": True,
                        **({"deletionVector": _absolute(root, vector)} if vector else {}),
                    }
                }


def _spelled(root: str, path: str, seen: dict[str, int]) -> str:
    """Returns a file's URI. A log has each URI once, so a file that changes again is spelled in another way."""
    number = seen[path] = seen.get(path, -1) + 1
    folder, slash, name = path.rpartition("/")
    places = [at.start() for at in re.finditer("%..|([a-z])", name) if at[1]]
    if number >> len(places):
        raise DependencyError(f"{path} was added and removed too often.", "Read the changes of fewer versions.")
    codes = {at: f"%{ord(name[at]):02X}" for bit, at in enumerate(places) if number >> bit & 1}
    spelled = "".join(codes.get(at, character) for at, character in enumerate(name))
    if own_file(path) is not None:
        return f"{root}/{folder}{slash}{spelled}"
    return f"{'' if urlsplit(path).scheme else 'file://'}{folder}{slash}{spelled}"


def _absolute(root: str, vector: Mapping[str, Any]) -> Mapping[str, Any]:
    file = file_of(vector)
    return vector if file is None else {**vector, "storageType": "p", "pathOrInlineDv": f"{root}/{quote(file)}"}
