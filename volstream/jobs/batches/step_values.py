"""The kept values of a job's steps, one blob for each file, below the warehouse (:data:`~volstream.jobs.batches.ledger.STEPS`).

Workers read and write the blobs of the files that they process. Before it commits a batch, the leader removes the
blobs of deleted files, and renames the blobs of moved files whose rows follow them. None of this has to succeed: the values
are a cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from volstream.base.config import Settings
from volstream.base.definitions import FileJob
from volstream.base.log import get
from volstream.base.model.work import Batch, Plan
from volstream.base.threads import map_at_once
from volstream.catalog import Catalog
from volstream.changes.streams.sources import VolumeSource
from volstream.errors import FunctionLoadError
from volstream.functions.pickled import code_of, has_steps
from volstream.functions.source import FunctionSource
from volstream.functions.steps import Blob, BlobStore, StepTarget, name_of, unpack
from volstream.jobs.batches.ledger import STEPS
from volstream.jobs.plans import plan
from volstream.tables.delta import places
from volstream.tables.delta.places import make_folder, open_below, remove_file, replace_file
from volstream.tables.delta.warehouse import options_of, register_options

_log = get("jobs")

#: No call takes as long.
_LEFT = timedelta(days=1)

#: Concurrent requests to a store.
_AT_ONCE = 32


@dataclass(frozen=True)
class FolderOfBlobs:
    """The blobs of a job, in a folder; pickled with the query.

    Attributes:
        warehouse: the folder's warehouse.
        folder: below it.
        options: for the warehouse's object store.
    """

    warehouse: str
    folder: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def location(self) -> str:
        """The folder's path or URI."""
        return f"{self.warehouse}/{self.folder}"

    def exists(self) -> bool:
        """Returns whether the job has kept values."""
        return places.is_folder(self.location)

    def read(self, name: str) -> bytes | None:
        """See :meth:`BlobStore.read`."""
        self._register()
        try:
            with open_below(self.warehouse, f"{self.folder}/{name}") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write(self, name: str, blob: bytes) -> None:
        """See :meth:`BlobStore.write`."""
        self._register()
        make_folder(self.location)
        replace_file(f"{self.location}/{name}", blob, durable=False)

    def remove(self, name: str) -> None:
        """See :meth:`BlobStore.remove`."""
        self._register()
        remove_file(self.warehouse, f"{self.folder}/{name}")

    def clear(self) -> None:
        """Deletes all blobs."""
        if self.exists():
            places.discard(self.location, within=self.warehouse)

    def _register(self) -> None:
        if self.options:
            register_options(self.warehouse, dict(self.options))


def values_of(warehouse: str, job: FileJob) -> FolderOfBlobs:
    """Returns the kept values of a job."""
    return FolderOfBlobs(warehouse, f"{STEPS.folder}/{job.id}", tuple(sorted(options_of(warehouse).items())))


def blob_of(warehouse: str, job: FileJob, path: str) -> Blob | None:
    """Returns the kept values of a file, or None. Damaged ones are none."""
    blob = values_of(warehouse, job).read(name_of(path))
    with suppress(ValueError):  # as are Arrow's errors
        return None if blob is None else unpack(blob)
    return None


def target_of_steps(settings: Settings, warehouse: str, job: FileJob, source: FunctionSource) -> StepTarget | None:
    """Returns where a job's workers keep the values of steps, or None for a function without steps."""
    return StepTarget(values_of(warehouse, job), settings.step_bytes) if has_steps(source) else None


def follow(target: StepTarget | None, open_plan: Plan, batch: Batch, followed: Mapping[str, tuple[str, str]]) -> None:
    """Removes the values of deleted files of a batch, and renames the values of moved files whose rows follow them.

    Args:
        followed: the moved files whose rows follow, each with its old path and the batch that made the rows.
    """
    if target is None or target.store is None or not (batch.removals or batch.moves):
        return
    store = target.store

    def rename(moved: tuple[str, str]) -> None:
        old, new = map(name_of, moved)
        with suppress(Exception):  # the next call computes the values again
            if (blob := store.read(old)) is not None:
                store.write(new, blob)

    map_at_once(rename, [(old, new) for new, (old, _) in followed.items()], _AT_ONCE)
    forget(store, plan.removed_paths(open_plan.location, batch))


def forget(store: BlobStore, paths: Iterable[str]) -> None:
    """Removes the values of files."""

    def remove(path: str) -> None:
        with suppress(Exception):  # an orphan, which the daemon removes
            store.remove(name_of(path))

    map_at_once(remove, list(paths), _AT_ONCE)


def forget_replayed(warehouse: str, job: FileJob, open_plan: Plan, *, all_files: bool) -> None:
    """Removes the values of the files of a replay's plan, or all values of the job."""
    values = values_of(warehouse, job)
    if all_files:
        values.clear()
    elif values.exists():
        for paths in plan.each_path(open_plan.location):
            forget(values, paths)


def sweep_step_values(catalog: Catalog, warehouse: str, job: FileJob) -> int:
    """Removes values that no file needs; returns how many. A killed process may have written them late, or the job's new
    function has no steps. Reads the directory only if the job has values."""
    values = values_of(warehouse, job)
    if not values.exists():
        return 0
    try:
        in_use = job.group_by is None and has_steps(code_of(job))
    except FunctionLoadError:  # it may be back tomorrow
        return 0
    old = datetime.now(UTC) - _LEFT  # a worker may be writing younger ones
    found = places.files(warehouse, values.folder)
    names = {file.name: file.path for file in found if file.written_on < old}
    stream = catalog.streams.by_id(job.stream_id)
    if in_use and stream is not None:
        directory = VolumeSource(catalog, warehouse, stream.source_id).find()
        for part in directory.at() if directory is not None else ():
            for path in part["relative_path"].to_pylist():
                names.pop(name_of(path), None)
    for path in names.values():
        remove_file(warehouse, path)
    if names:
        _log.info("step_values_swept", job=str(job.name), files=len(names))
    return len(names)
