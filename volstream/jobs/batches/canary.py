"""Tells a file that its store does not give from a store that gives none: by a byte of a file beside it.

An outage, an expired key or a policy must spend no file's retries; one object that is denied must hold up no other.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from itertools import islice

from volstream.base.definitions import Volume
from volstream.changes.streams.sources import VolumeSource
from volstream.errors import StorageError
from volstream.files.storage.base import HasDetails, ObjectStore
from volstream.files.volumes.access import store_of
from volstream.jobs.runs.services import JobServices

#: Files of one folder that are tried.
_TRIED = 3

#: Folders that are tried one by one. The files of all others share an answer for the whole volume.
_FOLDERS = 20


class Canary:
    """Looks whether a store gives anything.

    Args:
        of_sets: the function is called on sets, whose keys are no paths.
    """

    def __init__(self, services: JobServices, volume: Volume, *, of_sets: bool) -> None:
        self._services = services
        self._volume = volume
        self._of_sets = of_sets
        self._answers: dict[str, bool] = {}

    def waiting(self, unread: Mapping[str, str], read: Iterable[str]) -> Mapping[str, str]:
        """Returns the files of a batch that wait for the store, with their messages: it gives no file beside them.

        Args:
            unread: messages of the store, by path.
            read: files of the batch that it gave.
        """
        by_folder: dict[str, dict[str, str]] = {}
        for path, message in unread.items():
            by_folder.setdefault("" if self._of_sets else path.rpartition("/")[0], {})[path] = message
        others = [*read]
        waiting: dict[str, str] = {}
        for number, folder in enumerate(sorted(by_folder, key=lambda name: -len(by_folder[name]))):
            if not self._is_readable(folder if number < _FOLDERS else "", unread, others):
                waiting |= by_folder[folder]
        return waiting

    def _is_readable(self, folder: str, unread: Mapping[str, str], read: list[str]) -> bool:
        if folder not in self._answers:
            self._answers[folder] = self._tried(folder, unread, read)
        return self._answers[folder]

    def _tried(self, folder: str, unread: Mapping[str, str], read: list[str]) -> bool:
        """Reads a byte of files of a folder or, if it has no others, of those around it. Without any, what was read decides."""
        prefix = f"{folder}/" if folder else ""
        beside = [*islice((path for path in read if path.startswith(prefix)), 1)]
        beside += [*islice((path for path in self._listed(prefix) if path not in unread and path not in beside), _TRIED)]
        if not beside and folder:
            return self._is_readable(folder.rpartition("/")[0], unread, read)
        store = self._of_workers()
        return any(_gives(store, path) for path in beside)

    def _listed(self, prefix: str) -> Iterator[str]:
        """Yields files of the volume that have content."""
        snapshot = VolumeSource(self._services.catalog, self._services.warehouse, self._volume.id).find()
        for rows in snapshot.at(prefixes=[prefix]) if snapshot is not None else ():
            for path, size in zip(*(rows[name].to_pylist() for name in ("relative_path", "size")), strict=True):
                if size:
                    yield path

    def _of_workers(self) -> ObjectStore:
        """Returns the store with the keys that workers have."""
        own = store_of(self._volume, self._services.catalog, self._services.settings)
        theirs: ObjectStore = pickle.loads(pickle.dumps(copy(own)))
        return theirs


def _gives(store: ObjectStore, path: str) -> bool:
    assert isinstance(store, HasDetails), "all stores of volumes have details"
    try:
        store.read_range(path, 0, 1)
    except StorageError:
        return False
    except FileNotFoundError:  # the store answers
        return True
    return True
