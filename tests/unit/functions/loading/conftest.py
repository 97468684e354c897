from __future__ import annotations

import pytest

from tests.loading import Files
from tests.running import store
from volstream.files.storage.memory import MemoryStore

__all__ = ["store"]


@pytest.fixture
def files(store: MemoryStore) -> Files:
    return Files(store)
