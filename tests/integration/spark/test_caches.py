"""Cached rows, which all sessions of an engine share."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from tests.integration.conftest import Home
from volstream.tables.delta import direct
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.ownership import Marker


@pytest.mark.parametrize("query", ["SELECT * FROM t$", "SELECT count(*) FROM t$ WHERE id IN (SELECT id FROM u$)"])
def test_nobody_reads_cached_rows_of_a_table_that_has_changed(home: Home, query: str) -> None:
    home.sql("CREATE TABLE t$ (id STRING); CREATE TABLE u$ (id STRING); INSERT INTO t$ VALUES ('a'); INSERT INTO u$ VALUES ('a')")
    frame = home.session.sql(home.own(query))
    frame.cache()
    assert len(frame.collect()) == 1
    assert "InMemory" in _plan(home, query)
    for number, table in enumerate(("t", "u")):
        rows = pa.table({"id": [f"b{number}", "c"]})
        assert direct.commit(home.location(table), Marker("app", number, {}), RowChanges([rows], rows.schema, "id", []))
    found: list[object] = []
    other = threading.Thread(target=lambda: found.extend(home.rows(query)))  # with a session of its own
    other.start()
    other.join()
    assert found == home.rows(query) == [tuple(row) for row in frame.collect()]
    assert len(found) == 3 or found == [(2,)]
    assert "InMemory" not in _plan(home, query)


def test_nobody_reads_cached_rows_of_a_table_that_was_created_anew(home: Home) -> None:
    home.sql("CREATE TABLE t$ (id STRING); INSERT INTO t$ VALUES ('a'); INSERT INTO t$ VALUES ('b')")
    view = f"v_{home.schema}"
    home.session.spark.table(home.name("t")).createOrReplaceTempView(view)
    frame = home.session.spark.sql(f"SELECT id FROM {view}")
    frame.cache()
    assert len(frame.collect()) == 2
    try:
        location = Path(home.location("t"))
        rows = pa.table({"id": ["c"]})
        for place in (location, location.with_name("new")):
            if not place.exists():
                assert direct.create(str(place), rows.schema, {})
            assert direct.commit(str(place), Marker("app", 1, {}), RowChanges([rows], rows.schema, "id", []))
            if place != location:
                shutil.rmtree(location)
                place.rename(location)
            assert [row.id for row in frame.collect()][-1] == "c"
        assert len(frame.collect()) == 1
    finally:
        home.session.spark.catalog.dropTempView(view)  # other tests share the session


def _plan(home: Home, query: str) -> str:
    [(text,)] = home.rows(f"EXPLAIN {query}")
    return str(text)
