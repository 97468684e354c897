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
from urllib.parse import quote

from volstream.errors import DependencyError
from volstream.sql.text import table_at
from volstream.tables.delta import commits
from volstream.tables.delta.columns import Schema, schema_of
from volstream.tables.delta.folders import STAGING
from volstream.tables.delta.log import DeltaLog, actions, own_file
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

#: Partition columns that an excerpt has in addition: "insert" or "delete", and the commit's version and time, in milliseconds.
KIND, VERSION, TIME = "__volstream_kind", "__volstream_version", "__volstream_time"

_TYPES = {KIND: "string", VERSION: "long", TIME: "long"}

#: Properties without which the files cannot be read.
_NEEDED = ("delta.columnMapping.", "delta.rowTracking.", "delta.enableRowTracking")

_MAX_ID = "delta.columnMapping.maxColumnId"


def excerpt(location: str, first: int, last: int, warehouse: str) -> str:
    """Returns SQL for a relation of the rows of the files that versions ``first`` to ``last``, both included, added and removed.

    Its columns are the table's at the last version, :data:`KIND`, :data:`VERSION` and :data:`TIME`. Commits that only put files
    together are left out. It can be read for a day; then a daemon deletes it from the staging folder of the warehouse.

    Raises:
        DependencyError: the log no longer has the commits, or they lack what the protocol leaves to the writer.
    """
    with mapped(location):
        table = open_table(location, last)
    schema, said = schema_of(table), table.protocol()
    features = {"readerFeatures": said.reader_features, "writerFeatures": said.writer_features}
    protocol = {
        "minReaderVersion": said.min_reader_version,
        "minWriterVersion": said.min_writer_version,
        **{name: sorted(listed) for name, listed in features.items() if listed is not None},
    }
    metadata, files = _metadata(schema), [*_files(location, schema, first, last)]
    entry = _lines([{"protocol": protocol}, {"metaData": metadata}, *files])
    size = sum(file["add"]["size"] for file in files)
    counts = {"tableSizeBytes": size, "numFiles": len(files), "numMetadata": 1, "numProtocol": 1}
    # Who asks again in the same hour reads the same excerpt, of which Spark knows the files by then.
    place = f"{warehouse}/{STAGING}/changes-{datetime.now(UTC):%Y%m%d%H}/{hashlib.sha256(entry).hexdigest()[:32]}"
    make_folder(f"{place}/_delta_log")
    put = create_file if can_create(place) else replace_file
    # With a checksum, Spark reads the columns without a job of their own.
    put(f"{place}/_delta_log/{0:020d}.crc", _lines([{**counts, "metadata": metadata, "protocol": protocol}]))
    put(f"{place}/_delta_log/{0:020d}.json", entry)
    return table_at(place)


def _lines(actions: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(action, ensure_ascii=False, sort_keys=True) + "\n" for action in actions).encode()


def _metadata(schema: Schema) -> Mapping[str, Any]:
    properties = {key: value for key, value in schema.properties.items() if key.startswith(_NEEDED)}
    fields = [*schema.fields]
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


def _files(location: str, schema: Schema, first: int, last: int) -> Iterator[Mapping[str, Any]]:
    """Yields an ``add`` action for each file that was added or removed."""
    root = location if is_remote(location) else f"file://{quote(filesystem_of(location)[1])}"
    seen: dict[str, int] = {}
    for commit in DeltaLog(location).commits_after(first - 1):
        if commit.version > last:
            return
        milliseconds = round(commit.timestamp.timestamp() * 1000)
        for kind, file in _changes(location, schema, commit.version):
            own = {KIND: kind, VERSION: str(commit.version), TIME: str(milliseconds)}
            fields = {key: value for key, value in file.items() if key in ("size", *commits.OF_ROWS)}
            if file.get("deletionVector"):
                fields["deletionVector"] = _absolute(root, file["deletionVector"])
            yield {
                "add": {
                    "path": _spelled(root, file["path"], seen),
                    "partitionValues": {**(file.get("partitionValues") or {}), **own},
                    "modificationTime": milliseconds,
                    "dataChange": True,
                    **fields,
                }
            }


def _changes(location: str, schema: Schema, version: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the files that a commit removed and added, if that changed data."""
    try:
        found = actions(location, version, '"path"')
    except FileNotFoundError:
        raise DependencyError(f"The log of the table at {location} no longer has version {version}.") from None
    removed, added = ([action[name] for action in found if action.get(name, {}).get("dataChange")] for name in ("remove", "add"))
    needed = ["size", "baseRowId", *(["partitionValues"] if schema.partitions else [])]  # the protocol leaves it to the writer
    vague = {file["path"] for file in removed if any(file.get(key) is None for key in needed)}
    known = commits.adds(location, version - 1, vague) if vague else {}
    if lost := vague - {*known}:
        raise DependencyError(f"Version {version} of the table at {location} does not tell what it removed, such as {min(lost)}.")
    for file in removed:
        yield "delete", {**known.get(file["path"], {}), **{key: value for key, value in file.items() if value is not None}}
    for file in added:
        yield "insert", file


def _spelled(root: str, path: str, seen: dict[str, int]) -> str:
    """Returns a file's URI. A log has each URI once, so a file that changes again is spelled in another way."""
    number = seen[path] = seen.get(path, -1) + 1
    folder, slash, name = path.rpartition("/")
    places = [at.start() for at in re.finditer("[a-z]", name)]
    codes = {at: f"%{ord(name[at]):02X}" for bit, at in enumerate(places) if number >> bit & 1}
    spelled = "".join(codes.get(at, character) for at, character in enumerate(name))
    return f"{folder}{slash}{spelled}" if own_file(path) is None else f"{root}/{folder}{slash}{spelled}"


def _absolute(root: str, vector: Mapping[str, Any]) -> Mapping[str, Any]:
    file = file_of(vector)
    return vector if file is None else {**vector, "storageType": "p", "pathOrInlineDv": f"{root}/{quote(file)}"}
