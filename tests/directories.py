"""Directories written as the keeper writes them, but without a store: each test says what a refresh finds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from tests import objects
from tests.objects import NOW
from volstream.base.definitions import Volume
from volstream.base.model.paths import FileInfo
from volstream.base.model.work import Refresh
from volstream.catalog import Catalog
from volstream.changes.directory import table
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.directory.table import compare_files
from volstream.changes.directory.writer import SIZES, DirectoryWriter, FileSizes

#: Path and content of each file; None: it is gone.
Files = Mapping[str, int | None]


def file(path: str, content: int) -> FileInfo:
    """A file whose version follows from a number."""
    return FileInfo(path, content, NOW + timedelta(seconds=content), f"etag-{content}", None, "text/plain")


def rows(files: Files) -> pa.Table:
    """The existing files, in order, as a listing returns them."""
    there = [file(path, content) for path, content in sorted(files.items()) if content is not None]
    return table.rows_of_files(there, lambda path: f"memory://{path}")


class Directory:
    """A catalog with a volume, and the volume's directory."""

    def __init__(self, folder: Path, *, kept: int = 1_000_000, volume: Volume | None = None, sizes: FileSizes = SIZES) -> None:
        self.warehouse = str(folder / "warehouse")
        self.catalog = Catalog(f"sqlite:///{folder}/catalog.db")
        self.volume = volume or objects.volume("v")
        if volume is None:
            with self.catalog.database.transaction() as transaction:
                self.catalog.volumes.add(transaction, self.volume)
        self.kept = kept
        self.sizes = sizes
        self.writer = self.new_writer()

    @property
    def root(self) -> str:
        return table.directory_location(self.warehouse, self.volume.id)

    def new_writer(self) -> DirectoryWriter:
        return DirectoryWriter(self.volume, self.catalog, self.warehouse, self.kept, self.sizes)

    def snapshot(self) -> Snapshot:
        found = Snapshot.open(self.root, self.volume.id)
        assert found is not None
        return found

    def list_first(self, files: Files) -> Refresh | None:
        """The first listing finds these files."""
        listed = rows(files)
        snapshot = self.writer.open()
        return self.writer.commit_first(snapshot, [listed], sum(listed["size"].to_pylist()))

    def refresh(self, files: Files, writer: DirectoryWriter | None = None) -> Refresh | None:
        """A refresh that checks these paths."""
        mine = writer or self.writer
        snapshot = mine.open()
        changes = mine.begin(snapshot)
        changes.add(compare_files(rows(files), snapshot.find(list(files))))
        return mine.commit(snapshot, changes, "events")

    def close(self) -> None:
        self.catalog.close()
