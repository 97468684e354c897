"""Makes other writers' changes to a table survive a power cut before volstream relies on them.

volstream syncs its own commits, unless the process dies first; Spark never syncs. A power cut may lose an
unsynced commit but keep a later one, or a catalog that records its rows as delivered: readers take an empty
log entry for a commit without changes. Not here: tables in object stores, where every write is durable.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from volstream.base.log import get
from volstream.base.model.text import first_line
from volstream.errors import DependencyError
from volstream.tables.delta.log import actions, checkpoint_files, commit_info, keeps_log_short, last_checkpoint, own_file
from volstream.tables.delta.places import filesystem_of, is_remote, make_durable, mapped
from volstream.tables.delta.vectors import file_of

_log = get("warehouse")

#: ``engineInfo`` of commits whose files were durable before the commit.
OURS = "volstream"

#: Prefix of ``engineInfo`` in Spark's commits.
_SPARK = "Apache-Spark/"

#: By table id: the last version that this process knows to be durable, with all earlier ones.
_known: dict[str, int] = {}


def sync(location: str, table_id: str, version: int) -> None:
    """Syncs log entries up to ``version`` to disk, with the files they add, unless known to be durable.

    Free if this process has synced them before, or made the commits itself.

    Raises:
        DependencyError: a file cannot be synced.
    """
    synced = _known.get(table_id)
    if is_remote(location) or (synced is not None and synced >= version):
        return
    filesystem, root = filesystem_of(location)
    newest = last_checkpoint(location)
    log = f"{root}/_delta_log"
    paths = [] if synced is not None else [*_parents(log)]
    if newest[0] > (-1 if synced is None else synced):
        paths += [*checkpoint_files(location, newest), f"{log}/_last_checkpoint"]
    with mapped(location):
        first = _first_in_doubt(location, newest[0]) if synced is None else synced + 1
        for number in range(first, version + 1):
            paths += [*(f"{root}/{name}" for name in _added(location, number)), f"{log}/{number:020d}.json"]
        for path in [*paths, *dict.fromkeys(map(os.path.dirname, paths))]:
            # A newer version may have removed a file, and a vacuum may have deleted it, with its folder if
            # that became empty.
            with suppress(FileNotFoundError):
                make_durable(filesystem, path, folders=False)
    _known[table_id] = version


def _parents(folder: str) -> Iterator[str]:
    """Yields a folder and its parents on the same disk, up to the first unreadable one."""
    while not os.path.ismount(folder) and os.access(os.path.dirname(folder), os.R_OK):
        yield folder
        folder = os.path.dirname(folder)


def _first_in_doubt(location: str, checkpoint: int) -> int:
    """Returns the first version that may not be durable. Unlike volstream, Spark checkpoints commits that are
    not durable."""
    first = checkpoint
    while first > 0 and _writer(location, first).startswith(_SPARK):
        first -= 1
    return max(first, 0)


def _writer(location: str, version: int) -> str:
    """Returns the writer named in a commit, or an empty string if the commit is no longer in the log."""
    try:
        return str(commit_info(actions(location, version, '"commitInfo"')).get("engineInfo", ""))
    except FileNotFoundError:
        return ""


def record_commit(table_id: str, version: int) -> None:
    """Records that this process committed durably on top of durable versions."""
    _known[table_id] = version


@contextmanager
def upkeep(location: str) -> Iterator[None]:
    """Logs errors of a checkpoint after a commit. The commit stands, and a later one tries again.

    Expected when two processes delete the same old log entries: one of them no longer finds them.
    """
    try:
        yield
    except (DeltaError, OSError, DependencyError) as error:
        _log.info("upkeep_failed", table=location, cause=first_line(str(error)))


def checkpoint(location: str, table: DeltaTable) -> None:
    """Creates a checkpoint of an opened table's version, then deletes the log entries it replaces, if the
    table allows that.

    Raises:
        DeltaError, OSError: the checkpoint could not be written.
        DependencyError: a file that it refers to cannot be synced.
    """
    sync(location, str(table.metadata().id), table.version())
    table.create_checkpoint()
    filesystem, root = filesystem_of(location)
    files = checkpoint_files(location, last_checkpoint(location))
    make_durable(filesystem, *files, f"{root}/_delta_log/_last_checkpoint")
    if keeps_log_short(table.metadata().configuration):
        table.cleanup_metadata()


def _added(location: str, version: int) -> Iterator[str]:
    """Yields the files that a commit adds, relative to the table, unless volstream wrote them."""
    try:
        entries = actions(location, version, "")
    except FileNotFoundError:
        return
    for action in entries:
        if action.get("commitInfo", {}).get("engineInfo") == OURS:
            return
        file = action.get("add") or action.get("cdc")
        if file is None:
            continue
        named = own_file(file["path"]), file_of(file.get("deletionVector"))
        yield from (name for name in named if name is not None)
