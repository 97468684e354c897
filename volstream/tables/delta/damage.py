"""Finds what can no longer be read of a table (log, data files, deletion vectors), and makes the table readable again.

A commit removes unreadable data files, and records the bounds of their rows' values: a volume's file may have rows in several
data files, and those that remain look complete. If only checkpoints are unreadable, they are deleted, and readers use the rest of
the log.

What does not belong here: whose rows these are, and how they are made again (``jobs.verify``).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from volstream.base.model.text import counted
from volstream.errors import DependencyError, InvalidStateError
from volstream.tables.delta import commits, vectors
from volstream.tables.delta.datafile import is_damage, open_file
from volstream.tables.delta.log import (
    UNREADABLE,
    actions,
    checkpoint_files,
    complete_checkpoints,
    is_on,
    last_checkpoint,
    log_files,
    own_file,
)
from volstream.tables.delta.places import can_create, crowded, files_of, filesystem_of, is_table, mapped, open_table, remove_file
from volstream.tables.delta.tracking import TrackedCommit

#: Tables up to this size are read whole when they are looked at, larger ones when asked.
_WHOLE_BYTES = 1 << 30

#: Files that are looked at at once.
_AT_ONCE = 4

#: Rows of a file in memory at once, and about how many bytes.
_ROWS, _MEMORY = 4096, 32 << 20

#: A commit names bounds of so many files; those of more become one.
_MOST_BOUNDS = 100

#: Attempts to commit; one fails only if another commit came first.
_ATTEMPTS = 100

#: In a commit's metadata: the bounds of the files that it removed.
_BOUNDS = "unreadable"

_ENTRY = re.compile(r"(\d{20})\.json")

#: Of the rows of a file: the least and the greatest value by column; None: not known.
Bounds = Mapping[str, tuple[str | None, str | None]]


@dataclass(frozen=True)
class Damage:
    """What of a table cannot be read.

    Attributes:
        location: of the table.
        what: the table is.
        log: names of files of the log, without which it tells nothing certain.
        files: data files that cannot be read, or whose deletion vectors cannot; not looked for if the log is damaged.
    """

    location: str
    what: str = "table"
    log: Sequence[str] = ()
    files: Sequence[str] = ()

    def __str__(self) -> str:
        """What cannot be read, as a sentence without its end."""
        part, named = ("the log", self.log) if self.log else (counted(len(self.files), "data file"), self.files)
        return f"{part} of the {self.what} cannot be read ({', '.join(named[:3])}{', ...' if len(named) > 3 else ''})"


def damage_of(location: str, what: str, *, whole: bool = False) -> Damage | None:
    """Returns what of a table cannot be read; None: all can, as far as it was looked at, or there is no table.

    Args:
        what: the table is.
        whole: read all rows also of a large table, of which otherwise the ends of the files are read.

    Raises:
        DependencyError: the store cannot be reached, or does not let us read.
    """
    if not is_table(location):
        return None
    with mapped(location):
        checkpoint, names = last_checkpoint(location), log_files(location)
        if broken := _broken(location, checkpoint, names):
            return Damage(location, what, log=broken)
        if not _is_classic(location, checkpoint, names):
            return None
        table = open_table(location)
        listed = files_of(table, flatten=False)
        adds = commits.adds(location, table.version(), listed["path"].to_pylist()).values()
        whole = whole or (pc.sum(listed["size_bytes"]).as_py() or 0) <= _WHOLE_BYTES
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            readable = pool.map(partial(_is_readable, location, whole=whole), adds)
            files = [add["path"] for add, well in zip(adds, readable, strict=True) if not well]
    return Damage(location, what, files=files) if files else None


def remove_files(location: str, files: Sequence[str], columns: Sequence[str]) -> None:
    """Removes data files from a table, which stay where they are until a vacuum.

    Args:
        columns: text columns of whose values the commit names the bounds.

    Raises:
        InvalidStateError: the table does not allow it.
        StorageError: too many concurrent commits.
    """
    with mapped(location):
        for _ in range(_ATTEMPTS):
            table = open_table(location)
            if not can_create(location) or is_on(table.metadata().configuration, "delta.appendOnly"):
                raise InvalidStateError(
                    f"The table at {location} is damaged, and these files cannot be removed from it: {', '.join(files[:3])}.",
                    "Restore these files from a backup, or drop the table.",
                )
            adds = [*commits.adds(location, table.version(), files).values()]
            if not adds:
                return
            actions = _removal(location, table, adds, columns)
            if commits.on(location, str(table.metadata().id), table.version(), actions):
                return
    raise crowded(location)


def bounds_of(metadata: Mapping[str, Any]) -> Sequence[Bounds] | None:
    """Returns the bounds of the files that :func:`remove_files` removed, given a commit's metadata; None: another one's."""
    return metadata.get(_BOUNDS)


def drop_checkpoints(location: str) -> bool:
    """Makes a damaged log readable by deleting checkpoints, if it still has all that an older one lacks, or all entries; returns
    False if that does not help, and deletes nothing then."""
    with mapped(location):
        names = log_files(location)
        older = [*reversed(complete_checkpoints(names).items()), (-1, 0)]
        begin = next((at for at, parts in older if not _broken(location, (at, parts), names)), None)
        if begin is None:
            return False
        for name in names:
            if name == "_last_checkpoint" or (".checkpoint." in name and int(name[:20]) > begin):
                remove_file(location, f"_delta_log/{name}")
    return True


def _broken(location: str, checkpoint: tuple[int, int], names: Collection[str]) -> Sequence[str]:
    """Returns the names of a log's files that cannot be read, or are missing, of those that tell what a table has.

    An empty entry is one: readers take it for a commit of nothing, but no writer makes any.
    """
    broken, filesystem = list[str](), filesystem_of(location)[0]
    if _is_classic(location, checkpoint, names):
        for path in checkpoint_files(location, checkpoint):
            try:
                pq.read_table(path, filesystem=filesystem)
            except (OSError, ValueError) as error:
                if not is_damage(error):
                    raise
                broken.append(path.rpartition("/")[2])
    defined = checkpoint[0] >= 0
    newest = max((int(found[1]) for found in map(_ENTRY.fullmatch, names) if found), default=0)
    for version in range(checkpoint[0] + 1, newest + 1):
        try:
            entries = actions(location, version, "")
        except (FileNotFoundError, DependencyError):
            entries = []
        defined = defined or any("metaData" in entry for entry in entries)
        if not (entries and defined):
            broken.append(f"{version:020d}.json")
    return broken


def _is_classic(location: str, checkpoint: tuple[int, int], names: Collection[str]) -> bool:
    """False if a table's checkpoint is of a kind that only Spark reads here, which has other names."""
    expected = {path.rpartition("/")[2] for path in checkpoint_files(location, checkpoint)}
    return expected <= {*names} or not any(name.startswith(f"{checkpoint[0]:020d}.checkpoint.") for name in names)


def _is_readable(location: str, add: Mapping[str, Any], *, whole: bool) -> bool:
    name, vector = own_file(add["path"]), add.get("deletionVector")
    if name is None:
        return True  # of another table, as in shallow clones
    try:
        if vector is not None and vectors.file_of(vector) is not None:
            vectors.positions(location, vector)
        with open_file(location, name) as file:
            about, held = file.metadata, 1
            for number in range(about.num_row_groups):
                held += about.row_group(number).total_byte_size
            for _ in file.iter_batches(max(1, min(_ROWS, about.num_rows * _MEMORY // held))) if whole else ():
                pass
    except pa.ArrowNotImplementedError:  # values that only Spark reads
        return True
    except (OSError, ValueError) as error:
        if not is_damage(error):
            raise
        return False
    return True


def _removal(
    location: str, table: DeltaTable, adds: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> Sequence[Mapping[str, Any]]:
    """Returns the actions of a commit that removes files."""
    bounds = [_bounds(add, columns) for add in adds]
    if len(bounds) > _MOST_BOUNDS:
        bounds = [{name: _around([file[name] for file in bounds]) for name in columns}]
    now, metadata = int(time.time() * 1000), json.dumps({_BOUNDS: bounds})
    info = commits.info(UNREADABLE, {}, userMetadata=metadata, **TrackedCommit(table, location).info(keeps_ids=False))
    return [info, *(commits.removal(add, now) for add in adds)]


def _bounds(add: Mapping[str, Any], columns: Sequence[str]) -> Bounds:
    statistics = json.loads(add.get("stats") or "{}")
    least, greatest = (statistics.get(end) or {} for end in ("minValues", "maxValues"))
    return {name: (least.get(name), greatest.get(name)) for name in columns}


def _around(bounds: Sequence[tuple[str | None, str | None]]) -> tuple[str | None, str | None]:
    lows, highs = zip(*bounds, strict=True)
    return None if None in lows else min(lows), None if None in highs else max(highs)
