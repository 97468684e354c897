"""A look at each key that a listing lacks, before its row is removed. Runs on executors: imports stay light."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from volstream.storage.base import ObjectStore


class Confirm:
    """Drops from rows of changes those that would delete a key which, looked at now, is there."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches with the columns ``relative_path`` and ``action``, and whatever else, filtered."""
        for batch in batches:
            pairs = zip(batch["relative_path"].to_pylist(), batch["action"].to_pylist(), strict=True)
            keep = [action != "delete" or self._store.head(path) is None for path, action in pairs]
            yield batch.filter(pa.array(keep, pa.bool_()))
