"""One table that cannot be read does not take others with it, and can be dropped: with a name that Arrow cannot have, or a log
that others wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.integration.conftest import Home
from volstream.errors import VolstreamError
from volstream.ops.inspection.tables import described_table, list_tables
from volstream.tables.delta.log import DeltaLog


def name_with_nul(folder: Path) -> None:
    entry = folder / "_delta_log" / f"{0:020d}.json"
    entry.write_text(entry.read_text().replace('\\"name\\":\\"odd\\"', '\\"name\\":\\"o\\\\u0000d\\"'))


def entry(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "_delta_log" / f"{1:020d}.json").write_text(text + "\n")

    return write


INFO = {"timestamp": 1, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
ENTRIES = {
    "a number": "5",
    "a list": "[]",
    "nested": "[" * 100_000,
    "info of text": json.dumps({"commitInfo": "x"}),
    "info as a list": json.dumps({"commitInfo": []}),
    "a time as text": json.dumps({"commitInfo": {**INFO, "timestamp": "abc"}}),
    "a large time": json.dumps({"commitInfo": {**INFO, "timestamp": 10**30}}),
    "a user's number": json.dumps({"commitInfo": {**INFO, "userMetadata": 5}}),
    "metrics as text": json.dumps({"commitInfo": {**INFO, "operationMetrics": "x"}}),
    "a count of text": json.dumps({"commitInfo": {**INFO, "operationMetrics": {"numOutputRows": "x"}}}),
    "no JSON": "{",
}


@pytest.mark.parametrize("harm", [name_with_nul, *map(entry, ENTRIES.values())], ids=["a name with NUL", *ENTRIES])
def test_a_table_that_cannot_be_read_is_listed_described_and_dropped(home: Home, harm: Callable[[Path], None]) -> None:
    home.sql("CREATE TABLE good$ (n INT)")
    folder = Path(home.location("bad"))
    write_deltalake(str(folder), pa.table({"n": [1], "odd": ["x"]}))
    harm(folder)
    listed = {row.table.rpartition(".")[2]: row for row in list_tables(home.session.home, extents=True)}
    assert listed[home.name("good").rpartition(".")[2]].note is None
    assert home.name("bad").rpartition(".")[2] in listed
    with suppress(VolstreamError):
        described_table(home.session.home, home.name("bad"))
    with suppress(VolstreamError):
        DeltaLog(str(folder)).commits_after(-1)
    home.sql("DROP TABLE bad$")
    assert not folder.exists()
    assert home.rows("SELECT count(*) FROM good$") == [(0,)]
