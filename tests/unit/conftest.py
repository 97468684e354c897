"""For unit tests: a store in memory and what runs a function over its objects, and an empty catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import isolated, run, store
from volstream.catalog import Catalog

__all__ = ["isolated", "run", "store"]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """The empty catalog of the home ``tmp_path``."""
    opened = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    yield opened
    opened.close()
