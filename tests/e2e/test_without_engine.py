"""Commands that need no Spark do not start it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.e2e.homes import Home, write

pytestmark = pytest.mark.timeout(200)


@pytest.mark.long
def test_a_job_with_nothing_to_do_starts_no_engine(home: Home, name: str, files: Path) -> None:
    home.ok("create-volume", name, str(files))
    home.create_job(name, "functions.py:read")
    home.ok("refresh", name)
    table = str(home.path / "warehouse" / "tables" / "public" / name)
    assert "Nothing to do" in home.ok("run-job", name)  # there is no result table yet
    assert home.engine() == {}

    write(files, {"one.txt": "1"})
    home.ok("refresh", name)
    assert home.json("run-job", name)["rows"] == 1
    home.end_engine()
    assert len(DeltaTable(table).file_uris()) == 1
    assert "Nothing to do" in home.ok("run-job", name)
    assert home.engine() == {}

    (files / "one.txt").unlink()
    home.ok("refresh", name)
    assert "1 removed" in home.ok("run-job", name)
    assert home.engine() == {}, "taking rows away needs none"
    assert DeltaTable(table).file_uris() == []
