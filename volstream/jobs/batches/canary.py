"""Tells one unreadable file from an unavailable store, by reading a byte of a neighbouring file.

An outage, an expired key or a policy must not use up any file's retries. One denied object must not hold up
others.
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

#: Number of files that are tried in a folder.
_TRIED = 3

#: Number of folders that are tried separately. All other files share one result for the whole volume.
_FOLDERS = 20


class Canary:
    """Checks whether a store serves any file.

    Args:
        of_sets: the function is called on sets, whose keys are not paths.
    """

    def __init__(self, services: JobServices, volume: Volume, *, of_sets: bool) -> None:
        self._services = services
        self._volume = volume
        self._of_sets = of_sets
        self._results: dict[str, bool] = {}

    def waiting(self, unread: Mapping[str, str], read: Iterable[str]) -> Mapping[str, str]:
        """Returns the files of a batch that wait for the store, with their messages: no neighbour is
        readable.

        Args:
            unread: the store's messages, by path.
            read: files of the batch that the store served.
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
        if folder not in self._results:
            self._results[folder] = self._try_folder(folder, unread, read)
        return self._results[folder]

    def _try_folder(self, folder: str, unread: Mapping[str, str], read: list[str]) -> bool:
        """Reads a byte of other files in a folder, or else in its parent. Without other files, ``read``
        decides."""
        prefix = f"{folder}/" if folder else ""
        peers = [*islice((path for path in read if path.startswith(prefix)), 1)]
        peers += [*islice((path for path in self._files_in(prefix) if path not in unread and path not in peers), _TRIED)]
        if not peers and folder:
            return self._is_readable(folder.rpartition("/")[0], unread, read)
        store = self._worker_store()
        return any(_serves(store, path) for path in peers)

    def _files_in(self, prefix: str) -> Iterator[str]:
        """Yields files of the volume that have content."""
        snapshot = VolumeSource(self._services.catalog, self._services.warehouse, self._volume.id).find()
        for rows in snapshot.at(prefixes=[prefix]) if snapshot is not None else ():
            for path, size in zip(*(rows[name].to_pylist() for name in ("relative_path", "size")), strict=True):
                if size:
                    yield path

    def _worker_store(self) -> ObjectStore:
        """Returns the store with the workers' credentials."""
        ours = store_of(self._volume, self._services.catalog, self._services.settings)
        workers: ObjectStore = pickle.loads(pickle.dumps(copy(ours)))
        return workers


def _serves(store: ObjectStore, path: str) -> bool:
    assert isinstance(store, HasDetails), "all stores of volumes have details"
    try:
        store.read_range(path, 0, 1)
    except StorageError:
        return False
    except FileNotFoundError:  # the store responds
        return True
    return True
