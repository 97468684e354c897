"""How much of its past a table that a job writes keeps: by number of versions, because readers list the whole log.

Delta keeps the log for 30 days, and a checkpoint names each file removed within 7. With a commit a second these are millions of
files in the log, and seconds for each reader. So the last five hundred versions can be read again, and what streams have not
consumed; older ones go. A table whose retention was set keeps all versions for that time.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow import fs

from volstream.delta.log import actions, checkpoint_files, files_kept, keeps_log_short, last_checkpoint
from volstream.delta.places import create_file, filesystem_of, remove_file, replace_file
from volstream.lifecycle import faults

#: So many versions can be read again.
VERSIONS = 500

#: Files that only older versions need are kept so long: a query that reads them may be running.
READING = timedelta(hours=1)

#: Delta's properties that say how long old versions can be read; a table that has one keeps them for that time.
RETENTION = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")

#: Of the checkpoints between the first and the newest, one in so many versions is kept.
_SPARSE = 100

#: A checkpoint that names so many removed files that no version needs is replaced by one without them.
_FORGOTTEN = 1000

_CHECKPOINT = re.compile(r"\d{20}\.checkpoint(\.\d{10}\.\d{10})?\.parquet")
_ENTRY = re.compile(r"\d{20}\..+")


def horizon(location: str, properties: Mapping[str, str]) -> datetime | None:
    """Returns the time before which a table's files may have been removed for no kept version to need them; None: no time."""
    kept = files_kept(properties)
    if not kept:  # or it was not understood
        return None
    now = datetime.now(UTC)
    if not _by_number(properties):
        return now - kept
    first = min((entry for entry in _entries(location) if entry.name.endswith(".json")), default=None)
    return now - kept if first is None else max(now - kept, min(first.made, now) - READING)


def trim(
    location: str, table: DeltaTable, until: int, may_go: Callable[[int, Sequence[Mapping[str, Any]]], bool]
) -> tuple[int, int] | None:
    """Deletes the log's entries of old versions, and makes a checkpoint without files that no version needs, if that helps.

    Args:
        table: at its newest version.
        until: the oldest version that somebody needs.
        may_go: tells whether a version with its actions may be forgotten; it and later ones are kept, if not.

    Returns:
        The first of the versions that were forgotten, and the first that can still be read; None if all are kept.
    """
    properties = table.metadata().configuration
    if not _by_number(properties):
        return None
    entries = sorted(_entries(location))
    commits = [entry.version for entry in entries if entry.name.endswith(".json")]
    checkpoints = sorted({entry.version for entry in entries if _CHECKPOINT.fullmatch(entry.name)})
    begin = min(until, table.version() - VERSIONS)
    for version in commits:
        if version >= begin:
            break
        if not may_go(version, actions(location, version, "")):
            begin = version
            break
    begin = max((version for version in checkpoints if version <= begin), default=0)
    filesystem, root = filesystem_of(location)
    kept = {begin, *checkpoints[-2:], *{version // _SPARSE: version for version in reversed(checkpoints)}.values()}
    for entry in entries:  # oldest first: what is left of an interrupted run can be read
        if entry.version < begin or (_CHECKPOINT.fullmatch(entry.name) and entry.version not in kept):
            remove_file(filesystem, f"{root}/_delta_log/{entry.name}")
            faults.point("history.trimmed")
    before = horizon(location, properties)
    if before is not None:
        _forget(location, table, before)
    return (commits[0], begin) if commits and commits[0] < begin else None


def _by_number(properties: Mapping[str, str]) -> bool:
    return keeps_log_short(properties) and not any(name in properties for name in RETENTION)


@dataclass(frozen=True, order=True)
class _Entry:
    """A file of the log."""

    version: int
    name: str
    made: datetime


def _entries(location: str) -> Iterable[_Entry]:
    filesystem, root = filesystem_of(location)
    for file in filesystem.get_file_info(fs.FileSelector(f"{root}/_delta_log", allow_not_found=True)):
        if file.type == fs.FileType.File and _ENTRY.fullmatch(file.base_name):
            yield _Entry(int(file.base_name[:20]), file.base_name, file.mtime)


def _forget(location: str, table: DeltaTable, before: datetime) -> None:
    """Makes a checkpoint of a table's version without the files that were removed before a time, if these are many.

    deltalake makes it, of a copy of the log.
    """
    newest, version = last_checkpoint(location), table.version()
    files = checkpoint_files(location, newest)
    if len(files) != 1 or newest[0] == version:
        return
    filesystem, root = filesystem_of(location)
    removed = pq.read_table(files[0], columns=["remove"], filesystem=filesystem)
    if removed.num_rows - removed.filter(_is_kept(removed, before)).num_rows < _FORGOTTEN:
        return
    with TemporaryDirectory() as scratch:
        log = Path(scratch) / "_delta_log"
        log.mkdir()
        names = [f"{number:020d}.json" for number in range(newest[0], version + 1)]
        for name in [*names, "_last_checkpoint", Path(files[0]).name]:
            with filesystem.open_input_stream(f"{root}/_delta_log/{name}") as source, (log / name).open("wb") as copy:
                shutil.copyfileobj(source, copy)
        DeltaTable(scratch, version).create_checkpoint()
        made = f"{version:020d}.checkpoint.parquet"
        whole = pq.read_table(log / made)
        light = whole.filter(_is_kept(whole, before))
        pq.write_table(light, log / made)
        content = (log / made).read_bytes()
    if create_file(f"{location}/_delta_log/{made}", content):
        faults.point("history.written")
        hint = f'{{"version":{version},"size":{light.num_rows},"sizeInBytes":{len(content)}}}'
        replace_file(f"{location}/_delta_log/_last_checkpoint", hint.encode())


def _is_kept(checkpoint: pa.Table, before: datetime) -> pa.Array:
    """Returns for each action of a checkpoint whether it is anything but a file removed before a time."""
    when = pc.struct_field(checkpoint["remove"], "deletionTimestamp")
    return pc.fill_null(pc.greater_equal(when, int(before.timestamp() * 1000)), fill_value=True)
