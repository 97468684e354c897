"""For tests of functions: a store in memory, and what runs a function over its objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.running import Frozen, Runner
from volstream.storage.memory import MemoryStore


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[MemoryStore]:
    made = MemoryStore(f"memory://{request.node.name}")
    made.create()
    yield made
    made.drop()


@pytest.fixture
def run(store: MemoryStore, tmp_path: Path) -> Runner:
    return Runner(store, tmp_path)


@pytest.fixture
def isolated(run: Runner, store: MemoryStore) -> Callable[..., pa.Table]:
    # Objects in memory are this process's alone; the child sees a store that travels.
    def call(code: str, names: Sequence[str], returns: str = "n BIGINT", **options: Any) -> pa.Table:
        files = [store.put(name, b"") for name in names]
        return run(code, files, returns, isolate=True, store=Frozen(files), **options)

    return call
