"""One home per module; the first command that needs its engine starts it, and it ends with the module."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.homes import Home

#: Those that take longest, so that they come first and two processes end together.
_LONGEST = ("test_crashes.py", "test_daemon_life.py", "test_statement_crashes.py", "test_docs.py", "test_mistakes.py")

#: Functions for jobs, beside each other in one file as users have them.
_FUNCTIONS = """
import random
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Text:
    text: str


def read(file) -> Text:
    file.count("files")
    return Text(file.read_text())


def slow(file, started, seconds) -> Text:
    Path(started).touch()
    time.sleep(float(seconds))
    return Text(file.read_text())


def picky(file) -> Text:
    text = file.read_text()
    if "bad" in text:
        raise ValueError("this one is bad")
    return Text(text)


def wrong(file) -> Text:
    return {"text": [1, 2]} if "bad" in file.read_text() else {"text": "fine"}


def big(file) -> Text:
    return Text(random.Random(file.relative_path).randbytes(200_000).hex())
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("e2e"))
    (home.folder / "functions.py").write_text(_FUNCTIONS, encoding="utf-8")
    yield home
    home.end_engine()


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"n{uuid.uuid4().hex[:8]}"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """An empty folder for a volume."""
    folder = tmp_path / "files"
    folder.mkdir()
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files of :data:`_LONGEST` first, among the end-to-end tests."""
    items.sort(key=lambda one: _LONGEST.index(one.path.name) if one.path.name in _LONGEST else len(_LONGEST))
