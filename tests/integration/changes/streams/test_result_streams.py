"""Streams on the result table of a job, including tables created before these could have any."""

from __future__ import annotations

import pytest

from tests.integration.conftest import COUNT, Home, Place
from volstream.base.model.names import Name
from volstream.functions.schema import PROVENANCE
from volstream.tables.delta.opened import columns_at
from volstream.tables.delta.places import table_location

COLUMNS = ["n", *PROVENANCE.names]


@pytest.fixture
def home(place: Place) -> Home:
    """The home of the place, with its own schema for tables."""
    made = Home(place.session)
    made.sql(f"CREATE SCHEMA {made.schema}")
    return made


@pytest.mark.long
@pytest.mark.timeout(240)
def test_files_flow_through_a_job_and_two_more_streams_from_table_to_table(place: Place, home: Home) -> None:
    code = place.folder.parent / "job.py"
    code.write_text(COUNT)
    place.session.jobs.create("j", f"{code}:f", home.name("t"), volume="v", returns="n INT")
    for name in "abc":
        place.put(name, "1")
    place.run()
    home.sql(
        """ALTER TABLE t$ SET PROPERTIES ('change_tracking' = 'true');
        CREATE TABLE u$ (path STRING, n INT, kind STRING);
        ALTER TABLE u$ SET PROPERTIES ('change_tracking' = 'true');
        CREATE TABLE w$ (path STRING, n INT, kind STRING);
        CREATE STREAM of_rows$ ON TABLE t$;
        CREATE TABLE STREAM of_files$ ON TABLE t$ WITH PROPERTIES ('IDENTITY' = '_file_path');
        CREATE STREAM again$ ON TABLE u$"""
    )
    onward = "INSERT INTO u$ SELECT _file_path, n, __change_type FROM of_files$;INSERT INTO w$ SELECT path, n, kind FROM again$"
    place.put("a", "22")
    place.delete("b")
    place.put("d", "1")
    place.refresh()
    place.run()
    assert home.rows("SELECT __change_type, _file_path, n FROM of_rows$") == [
        ("DELETE", "a", 1),
        ("DELETE", "b", 1),
        ("INSERT", "a", 2),
        ("INSERT", "d", 1),
    ]
    home.sql(onward)
    first = [("a", 1, "UPDATE_BEFORE"), ("a", 2, "UPDATE_AFTER"), ("b", 1, "DELETE"), ("d", 1, "INSERT")]
    assert home.rows("SELECT * FROM w$") == first
    place.delete("a")
    place.put("c", "333")
    place.refresh()
    place.run()
    home.sql(onward)
    second = [("a", 2, "DELETE"), ("c", 1, "UPDATE_BEFORE"), ("c", 3, "UPDATE_AFTER")]
    assert home.rows("SELECT * FROM w$") == sorted([*first, *second], key=repr)
    assert home.rows("SELECT * FROM of_files$") == home.rows("SELECT * FROM again$") == []


def location(place: Place) -> str:
    return table_location(place.session.home.warehouse, Name.parse("t"))


def columns(place: Place) -> list[str]:
    return list(columns_at(location(place)))


@pytest.mark.long
@pytest.mark.parametrize("key", [None, "_file_path, n"])
def test_rows_that_a_job_writes_again_as_they_were_are_no_change(place: Place, home: Home, key: str | None) -> None:
    """Rule R-26 of docs/streams.md."""
    code = place.folder.parent / "job.py"
    code.write_text("def f(file):\n    for word in file.read_text().split():\n        yield {'n': float(word)}\n")
    place.session.jobs.create("j", f"{code}:f", home.name("t"), volume="v", returns="n DOUBLE")
    identity = f" WITH PROPERTIES ('IDENTITY' = '{key}')" if key else ""
    for name, content in {"a": "1", "b": "1 2" if key else "1 1 2", "c": "nan"}.items():
        place.put(name, content)
    place.refresh()
    place.run()
    home.sql(f"ALTER TABLE t$ SET PROPERTIES ('change_tracking' = 'true'); CREATE STREAM s$ ON TABLE t${identity}")
    home.sql("CREATE DYNAMIC TABLE d$ AS SELECT n, _file_version, _batch_id FROM t$")
    shown = "SELECT _file_path, n, __change_type FROM s$"

    place.session.jobs.replay("j")
    place.run()
    place.put("a", " 1 ")
    place.refresh()
    place.run()
    assert home.rows(shown) == []
    place.put("b", "2 1" if key else "1 2 2")
    place.put("d", "1")
    place.put("c", "nan 3")
    place.refresh()
    place.run()
    changed = [] if key else [("b", 1.0, "DELETE"), ("b", 2.0, "INSERT")]
    assert home.rows(shown) == [*changed, ("c", 3.0, "INSERT"), ("d", 1.0, "INSERT")]
    home.sql("REFRESH DYNAMIC TABLE d$")
    of_rows = "SELECT string(n), _file_version, _batch_id FROM"
    assert home.rows(f"{of_rows} d$") == home.rows(f"{of_rows} t$")
