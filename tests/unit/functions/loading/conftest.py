from __future__ import annotations

import pytest

from tests.loading import Files
from tests.memory import MemoryStore
from tests.running import store

__all__ = ["store"]


@pytest.fixture
def files(store: MemoryStore) -> Files:
    return Files(store)
