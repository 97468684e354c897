"""Limits the history of tables that jobs write: by number of versions, because readers list the whole log.

Delta keeps the log for 30 days, and a checkpoint names each file removed within 7. At one commit per second
this makes millions of log files and costs each reader seconds. So only the last five hundred versions stay
readable, and versions that streams have not consumed yet. A table with an explicit retention keeps all
versions for that time.
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

#: Number of versions that stay readable.
VERSIONS = 500

#: How long files that only older versions need are kept: a running query may still read them.
READING = timedelta(hours=1)

#: Delta's properties for how long old versions stay readable. If a table has any, it keeps versions that
#: long.
RETENTION = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")

#: Between the first and the newest checkpoint, one checkpoint per this many versions is kept.
_SPARSE = 100

#: A checkpoint with this many removed files that no version needs is replaced by one without them.
_FORGOTTEN = 1000

#: Log entries read concurrently: in a bucket each takes a request.
_READERS = 16

_COMMIT = re.compile(r"\d{20}\.json")

#: Files of a version, some of them hidden.
_ENTRY = re.compile(r"\.?(\d{20})\..+")

#: Returns whether a version with these actions may be forgotten.
MayGo = Callable[[int, Sequence[Mapping[str, Any]]], bool]


def is_by_number(properties: Mapping[str, str]) -> bool:
    """True if a table with these properties sets no retention and so forgets versions by number."""
    return keeps_log_short(properties) and not any(name in properties for name in RETENTION)


def horizon(properties: Mapping[str, str]) -> datetime | None:
    """Returns a time, or None if no file may be deleted.

    Files removed before that time may be deleted if no kept version needs them.
    """
    retention = files_kept(properties)
    if not retention:  # zero, or not understood
        return None
    return datetime.now(UTC) - (READING if is_by_number(properties) else retention)


def trim(
    location: str, table: DeltaTable, until: int, may_go: MayGo, note: Callable[[int, int], object], descriptor: int | None = None
) -> None:
    """Deletes the log entries of old versions.

    Args:
        table: opened at its newest version.
        until: the oldest version that a stream or an open attempt still needs.
        may_go: if it returns False for a version, that version and all later ones are kept.
        note: called before anything is deleted, with the log's first version before and after the deletion.
        descriptor: of the table's folder, from :func:`~.places.held_table`.
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
    begin = next((at for at in reversed(checkpoints) if at <= begin and _is_readable(location, at)), 0)
    if commits and commits[0] < begin:
        note(commits[0], begin)
    sparse = {version // _SPARSE: version for version in reversed(checkpoints)}
    retained = {begin, hint, *checkpoints[-2:], *sparse.values()}
    superseded = {version for version in checkpoints if version not in retained}
    for version, name in entries:  # oldest first: an interrupted run leaves a readable log
        if version < begin or (version in superseded and ".checkpoint." in name):
            remove_file(location, f"_delta_log/{name}", descriptor)
            faults.point("history.trimmed")


def needed(location: str, until: int) -> Iterator[Mapping[str, Any]]:
    """Yields the ``remove`` and ``cdc`` actions of all versions after ``until`` in the log."""
    versions = [int(name[:20]) for name in log_files(location) if _COMMIT.fullmatch(name)]
    read = partial(_file_actions, location)
    with ThreadPoolExecutor(_READERS, thread_name_prefix="log") as pool:
        for found in pool.map(read, (version for version in sorted(versions) if version > until)):
            yield from found


def _file_actions(location: str, version: int) -> Sequence[Mapping[str, Any]]:
    with suppress(FileNotFoundError):  # deleted by another process
        entries = actions(location, version, '"path"')
        return [entry[kind] for entry in entries for kind in ("remove", "cdc") if kind in entry]
    return []


def _is_readable(location: str, version: int) -> bool:
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
    """Creates a checkpoint of a table's version without the files removed before a time, if there are many.

    deltalake creates it from a copy of the log.
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
        checkpoint_name = f"{version:020d}.checkpoint.parquet"
        whole = pq.read_table(log / checkpoint_name)
        light = whole.filter(_is_kept(whole, before))
        pq.write_table(light, log / checkpoint_name)
        content = (log / checkpoint_name).read_bytes()
    if create_file(f"{location}/_delta_log/{checkpoint_name}", content):
        faults.point("history.written")
        hint = f'{{"version":{version},"size":{light.num_rows},"sizeInBytes":{len(content)}}}'
        replace_file(f"{location}/_delta_log/_last_checkpoint", hint.encode())


def _is_kept(checkpoint: pa.Table, before: datetime) -> pa.Array:
    """Returns for each action of a checkpoint False if it is a file removed before a time, else True."""
    when = pc.struct_field(checkpoint["remove"], "deletionTimestamp")
    return pc.fill_null(pc.greater_equal(when, int(before.timestamp() * 1000)), fill_value=True)
