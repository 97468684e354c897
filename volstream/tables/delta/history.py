"""How much of its past a table that a job writes keeps: by number of versions, because readers list the whole log.

Delta keeps the log for 30 days, and a checkpoint names each file removed within 7. With a commit a second these are millions of
files in the log, and seconds for each reader. So the last five hundred versions can be read again, and what streams have not
consumed; older ones go. A table whose retention was set keeps all versions for that time.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from volstream.base import faults
from volstream.tables.delta.log import (
    actions,
    checkpoint_files,
    complete_checkpoints,
    files_kept,
    keeps_log_short,
    last_checkpoint,
    log_files,
)
from volstream.tables.delta.places import create_file, filesystem_of, open_table, remove_file, replace_file

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

#: Log entries read at once: in a bucket each takes a request.
_READERS = 16

_COMMIT = re.compile(r"\d{20}\.json")

#: Files of a version, some of them hidden.
_ENTRY = re.compile(r"\.?(\d{20})\..+")

#: Tells of a version and its actions whether it may be forgotten.
MayGo = Callable[[int, Sequence[Mapping[str, Any]]], bool]


def is_by_number(properties: Mapping[str, str]) -> bool:
    """True if a table with these properties has no retention of its own, so that it forgets versions by number."""
    return keeps_log_short(properties) and not any(name in properties for name in RETENTION)


def horizon(properties: Mapping[str, str]) -> datetime | None:
    """Returns the time before which files that no kept version needs may have been removed, to be deleted; None: none may."""
    kept = files_kept(properties)
    if not kept:  # or it was not understood
        return None
    return datetime.now(UTC) - (READING if is_by_number(properties) else kept)


def trim(
    location: str, table: DeltaTable, until: int, may_go: MayGo, note: Callable[[int, int], object], descriptor: int | None = None
) -> None:
    """Deletes the log's entries of old versions.

    Args:
        table: at its newest version.
        until: the oldest version that a stream or an open attempt still needs.
        may_go: if it says no of a version, that version and later ones are kept.
        note: called before anything is deleted, with the first version that the log had, and the first that it will have.
        descriptor: the table's folder, of :func:`~.places.held_table`.
    """
    entries = sorted((int(found[1]), name) for name in log_files(location) if (found := _ENTRY.fullmatch(name)))
    commits = [version for version, name in entries if _COMMIT.fullmatch(name)]
    # Readers begin at the checkpoint that the hint names, although there may be newer ones.
    hint = last_checkpoint(location)[0]
    begin = min(until, table.version() - VERSIONS, hint)
    for version in commits:
        if version >= begin:
            break
        if not may_go(version, actions(location, version, "")):
            begin = version
            break
    checkpoints = [*complete_checkpoints(name for _, name in entries)]
    begin = next((at for at in reversed(checkpoints) if at <= begin and _opens(location, at)), 0)
    if commits and commits[0] < begin:
        note(commits[0], begin)
    sparse = {version // _SPARSE: version for version in reversed(checkpoints)}
    kept = {begin, hint, *checkpoints[-2:], *sparse.values()}
    superseded = {version for version in checkpoints if version not in kept}
    for version, name in entries:  # oldest first: what is left of an interrupted run can be read
        if version < begin or (version in superseded and ".checkpoint." in name):
            remove_file(location, f"_delta_log/{name}", descriptor)
            faults.point("history.trimmed")


def needed(location: str, until: int) -> Iterator[Mapping[str, Any]]:
    """Yields the ``remove`` and ``cdc`` actions of the versions after ``until`` that the log has."""
    versions = [int(name[:20]) for name in log_files(location) if _COMMIT.fullmatch(name)]
    read = partial(_named, location)
    with ThreadPoolExecutor(_READERS, thread_name_prefix="log") as pool:
        for found in pool.map(read, (version for version in sorted(versions) if version > until)):
            yield from found


def _named(location: str, version: int) -> Sequence[Mapping[str, Any]]:
    with suppress(FileNotFoundError):  # deleted by another process
        entries = actions(location, version, '"path"')
        return [entry[kind] for entry in entries for kind in ("remove", "cdc") if kind in entry]
    return []


def _opens(location: str, version: int) -> bool:
    """True if a version can be read from its checkpoint, which a power cut may have emptied."""
    filesystem, root = filesystem_of(location)
    names = [name for name in log_files(location) if name.startswith(f"{version:020d}.checkpoint.")]
    try:
        for name in names:
            pq.read_metadata(f"{root}/_delta_log/{name}", filesystem=filesystem)
        open_table(location, version)
    except (DeltaError, OSError, pa.ArrowInvalid):
        return False
    return True


def forget(location: str, table: DeltaTable, before: datetime) -> None:
    """Makes a checkpoint of a table's version without the files that were removed before a time, if these are many.

    deltalake makes it, of a copy of the log.
    """
    newest, version = last_checkpoint(location), table.version()
    files = checkpoint_files(location, newest)
    if len(files) != 1 or newest[0] == version or not is_by_number(table.metadata().configuration):
        return
    filesystem, root = filesystem_of(location)
    removed = pq.read_table(files[0], columns=["remove"], filesystem=filesystem)
    if removed.num_rows - removed.filter(_is_kept(removed, before)).num_rows < _FORGOTTEN:
        return
    with TemporaryDirectory() as scratch:
        log = Path(scratch) / "_delta_log"
        log.mkdir()
        names = [f"{number:020d}.json" for number in range(newest[0], version + 1)]
        for name in [*names, Path(files[0]).name]:
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
