"""The plug-in keeps volstream's contracts. Run with pytest, where the plug-in is installed."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from volstream.files.queues import open_queue
from volstream.plugins import QueueSpec
from volstream.testing import OpenBench, Place, QueueBench, QueueContract, StoreContract


class TestQueue(QueueContract):
    @pytest.fixture
    def open_bench(self, tmp_path: Path) -> Iterator[OpenBench]:
        folder = tmp_path / "events"
        folder.mkdir()
        queue = open_queue("spool", QueueSpec("/files", name=str(folder)))
        numbers = itertools.count()

        def happen(path: str) -> None:
            name = folder / f"{next(numbers):06}"
            name.write_text(json.dumps({"path": path}))
            os.rename(name, f"{name}.json")

        yield lambda _: QueueBench(queue, happen)
        queue.stop()


class TestStore(StoreContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        root = tmp_path / "files"
        root.mkdir()

        def put(path: str, content: bytes) -> None:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)

        return Place(f"spool://{root}", f"spool://{tmp_path}/missing", put, lambda path: (root / path).unlink())
