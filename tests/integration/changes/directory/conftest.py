"""A folder of files, a volume on it and its keeper, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.directories import Directory
from tests.folders import FileWriter
from volstream.base import config
from volstream.base.definitions import QueueType, Volume, VolumeSpec
from volstream.base.model.hints import Hint, HintSet
from volstream.base.model.names import Name
from volstream.catalog import Catalog
from volstream.changes.directory import table
from volstream.changes.directory.keeper import DirectoryKeeper
from volstream.changes.directory.reconcile import ReconcileResult
from volstream.changes.directory.snapshot import Snapshot
from volstream.files.storage.base import ObjectStore
from volstream.files.volumes.definitions import create_volume


class Keeping(FileWriter):
    """A folder of files and the keeper of the volume on it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "files")
        self.folder.mkdir()
        self.settings = config.load(folder / "home", settle_seconds=0.02)
        self.catalog = Catalog(self.settings.database_url)
        spec = VolumeSpec(name=Name.parse("v"), location=str(self.folder), queue_type=QueueType.NONE)
        self._volume = create_volume(self.catalog, self.settings, spec)

    @property
    def volume(self) -> Volume:
        found = self.catalog.volumes.by_id(self._volume.id)
        assert found is not None
        return found

    def keeper(self, wait: Callable[[float], object] = lambda _: None, store: ObjectStore | None = None) -> DirectoryKeeper:
        return DirectoryKeeper(self.volume, self.catalog, self.settings, wait, store=store)

    def take(self, *hints: Hint, keeper: DirectoryKeeper | None = None) -> ReconcileResult:
        fold = HintSet(self.volume.selection)
        fold.add(hints)
        return (keeper or self.keeper()).apply(fold)

    def snapshot(self) -> Snapshot:
        found = Snapshot.open(table.directory_location(self.settings.warehouse_path, self._volume.id), self._volume.id)
        assert found is not None
        return found

    def directory(self) -> dict[str, int]:
        """Path and size of each row; a path that is there twice is an error."""
        rows = pa.concat_tables(self.snapshot().at())
        found = dict(zip(rows["relative_path"].to_pylist(), rows["size"].to_pylist(), strict=True))
        assert len(found) == rows.num_rows
        return found

    def refreshes(self) -> list[tuple[int, str, int, int, int]]:
        """Number, cause and counts of each."""
        return [
            (one.number, one.cause, one.inserted, one.updated, one.deleted)
            for one in self.catalog.refreshes.committed(self._volume.id)
        ]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Keeping]:
    made = Keeping(tmp_path)
    yield made
    made.catalog.close()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    made = Directory(tmp_path)
    yield made
    made.close()
