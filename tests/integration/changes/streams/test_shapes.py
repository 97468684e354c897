"""Columns of a stream's source are altered, renamed and widened: the stream goes on, with older values in the
newest columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.integration.conftest import Home
from volstream.api.dbapi import Connection, _OpenHome
from volstream.errors import InvalidStateError, InvalidValueError, SqlError, StreamSchemaChangedError, VolstreamError
from volstream.ingest import RealtimeOperation, RowOperator, RowsNotSentError

MAPPED = "'delta.columnMapping.mode' = 'name'"
WIDENING = "'delta.enableTypeWidening' = 'true'"


@dataclass(frozen=True)
class Case:
    """A column that is altered between two changes.

    Attributes:
        column: name and type at first.
        older: SQL for its value, and the value in the newest columns.
        newer: another one after ALTER TABLE.
        name: of the column after ALTER TABLE.
    """

    column: str
    alter: str
    older: tuple[str, Any]
    newer: tuple[str, Any]
    properties: str = "'note' = 'x'"
    name: str = "v"


STRUCT = ("named_struct('a', 1)", {"a": 1})
CASES = {
    "comment on a field": Case("v STRUCT<a: INT>", "ALTER COLUMN v.a COMMENT 'x'", STRUCT, ("named_struct('a', 2)", {"a": 2})),
    "a field is added": Case(
        "v STRUCT<a: INT>",
        "ADD COLUMNS (v.b STRING)",
        ("named_struct('a', 1)", {"a": 1, "b": None}),
        ("named_struct('a', 2, 'b', 'x')", {"a": 2, "b": "x"}),
    ),
    "a field is added to elements": Case(
        "v ARRAY<STRUCT<a: INT>>",
        "ADD COLUMNS (v.element.b STRING)",
        ("array(named_struct('a', 1))", [{"a": 1, "b": None}]),
        ("array(named_struct('a', 2, 'b', 'x'))", [{"a": 2, "b": "x"}]),
    ),
    "a column is renamed": Case("v INT", "RENAME COLUMN v TO w", ("1", 1), ("2", 2), MAPPED, "w"),
    "a field is renamed": Case(
        "v STRUCT<a: INT>",
        "RENAME COLUMN v.a TO b",
        ("named_struct('a', 1)", {"b": 1}),
        ("named_struct('b', 2)", {"b": 2}),
        MAPPED,
    ),
    "a field in a map is renamed": Case(
        "v MAP<STRING, STRUCT<a: INT>>",
        "RENAME COLUMN v.value.a TO b",
        ("map('k', named_struct('a', 1))", {"k": {"b": 1}}),
        ("map('k', named_struct('b', 2))", {"k": {"b": 2}}),
        MAPPED,
    ),
    "a column is widened": Case("v INT", "ALTER COLUMN v TYPE BIGINT", ("1", 1), ("5000000000", 5000000000), WIDENING),
    "an element is widened": Case(
        "v ARRAY<FLOAT>", "ALTER COLUMN v.element TYPE DOUBLE", ("array(0.5F)", [0.5]), ("array(0.1D)", [0.1]), WIDENING
    ),
    "a renamed column is widened": Case(
        "v SMALLINT",
        "RENAME COLUMN v TO w; ALTER TABLE t$ ALTER COLUMN w TYPE INT",
        ("1S", 1),
        ("70000", 70000),
        f"{MAPPED}, {WIDENING}",
        "w",
    ),
}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.long) for name in CASES], name="case")
def altered(request: pytest.FixtureRequest, home: Home) -> Case:
    case = CASES[request.param]
    old, new = case.older[0], case.newer[0]
    home.sql(f"CREATE TABLE t$ (id INT, {case.column}) TBLPROPERTIES ('change_tracking' = 'true', {case.properties})")
    home.sql(f"INSERT INTO t$ VALUES (1, {old}), (2, {old})")
    home.sql(
        "CREATE STREAM s$ ON TABLE t$; CREATE STREAM added$ ON TABLE t$ WITH PROPERTIES ('TABLE_STREAM_MODE' = 'APPEND_ONLY')"
    )
    home.session.streams.create(home.name("keyed"), table=home.name("t"), identity=["id"])
    home.sql(f"INSERT INTO t$ VALUES (3, {old}), (5, {old}); DELETE FROM t$ WHERE id = 5; ALTER TABLE t$ {case.alter}")
    home.sql(f"INSERT INTO t$ VALUES (4, {new}), (6, {new}); DELETE FROM t$ WHERE id IN (2, 6)")
    home.sql(f"UPDATE t$ SET {case.name} = {new} WHERE id = 1")
    return case


def test_a_stream_shows_older_values_of_a_column_that_was_renamed(home: Home) -> None:
    """Rule R-15 of docs/streams.md, in short."""
    home.sql(
        f"CREATE TABLE t$ (id INT, v INT) TBLPROPERTIES ('change_tracking' = 'true', {MAPPED}); CREATE STREAM s$ ON TABLE t$"
    )
    home.sql("INSERT INTO t$ VALUES (1, 10); ALTER TABLE t$ RENAME COLUMN v TO w; INSERT INTO t$ VALUES (2, 20)")
    assert home.rows("SELECT __change_type, id, w FROM s$") == [("INSERT", 1, 10), ("INSERT", 2, 20)]


def test_a_stream_shows_older_values_in_the_newest_columns(case: Case, home: Home) -> None:
    """Rule R-15 of docs/streams.md."""
    old, new = case.older[1], case.newer[1]
    net = [("DELETE", 2, old), ("INSERT", 3, old), ("INSERT", 4, new), ("UPDATE_AFTER", 1, new), ("UPDATE_BEFORE", 1, old)]
    for stream in ("s", "keyed"):
        assert home.rows(f"SELECT __change_type, id, {case.name} FROM {stream}$") == net, stream
    if case.properties == WIDENING:  # Delta's feed takes the older files for damaged
        with pytest.raises(StreamSchemaChangedError, match="changed type"):
            home.rows("SELECT id FROM added$")
    else:
        assert home.rows(f"SELECT id, {case.name} FROM added$") == [(3, old), (4, new), (5, old), (6, new)]
    home.sql(f"CREATE TABLE u$ AS SELECT id, {case.name} FROM s$")
    assert home.rows("SELECT __change_type FROM s$") == []
    home.sql("DELETE FROM t$ WHERE id = 3")
    assert home.rows(f"SELECT __change_type, id, {case.name} FROM s$") == [("DELETE", 3, old)]


@pytest.mark.long
def test_changes_of_altered_columns_are_those_of_each_version(case: Case, home: Home) -> None:
    old, new = case.older[1], case.newer[1]
    [first] = [row["version"] for row in home.sql("DESCRIBE HISTORY t$") if row["operation"] == "DELETE"][-1:]
    first -= 1
    each = [
        ("delete", 1, old, 5),
        ("delete", 2, old, 4),
        ("delete", 5, old, 1),
        ("delete", 6, new, 4),
        ("insert", 1, new, 5),
        ("insert", 3, old, 0),
        ("insert", 4, new, 3),
        ("insert", 5, old, 0),
        ("insert", 6, new, 3),
    ]
    more = case.alter.count(";")
    each = [(*row[:3], first + row[3] + (more if row[3] > 2 else 0)) for row in each]
    text = f"SELECT _change_type, id, {case.name}, _commit_version FROM t$ CHANGES FROM VERSION {first}"
    if case.properties == WIDENING:
        with pytest.raises(InvalidValueError, match="are known for these versions: its columns changed in version"):
            home.rows(text)
    else:
        assert home.rows(text) == each
        assert None not in [row[0] for row in home.rows(text.replace("_change_type", "_commit_timestamp"))]
        updated = home.rows(f"{text} WITH (computeUpdates = 'true', identity = 'id')")
        assert [row[:3] for row in updated if row[1] == 1] == [("update_postimage", 1, new), ("update_preimage", 1, old)]
    net = home.rows(f"{text} WITH (deduplicationMode = 'netChanges')")
    assert [row[:3] for row in net] == [
        ("delete", 1, old),
        ("delete", 2, old),
        ("insert", 1, new),
        ("insert", 3, old),
        ("insert", 4, new),
    ]


@pytest.mark.long
def test_a_dropped_column_ends_a_stream_and_a_restore_beside_a_renamed_column_has_no_changes_one_by_one(home: Home) -> None:
    home.sql(f"CREATE TABLE t$ (id INT, v INT, w INT) TBLPROPERTIES ('change_tracking' = 'true', {MAPPED})")
    home.sql("INSERT INTO t$ VALUES (1, 1, 1); CREATE STREAM s$ ON TABLE t$; INSERT INTO t$ VALUES (2, 2, 2)")
    start = home.offset() or 0
    home.sql(f"RESTORE TABLE t$ TO VERSION AS OF {start}")
    text = f"SELECT id FROM t$ CHANGES FROM VERSION {start + 1}"
    assert home.rows(text) == [(2,), (2,)]
    home.sql("ALTER TABLE t$ RENAME COLUMN v TO x")
    with pytest.raises(InvalidValueError, match=f"are known for these versions: .* restored in version {start + 2}"):
        home.sql(text)
    assert home.rows(f"{text} WITH (deduplicationMode = 'netChanges')") == []
    home.sql("ALTER TABLE t$ DROP COLUMN w")
    with pytest.raises(StreamSchemaChangedError, match=f"in version {start + 4}.* up to version {start + 3}"):
        home.sql("SELECT * FROM s$")


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.long) for name in CASES], name="fed")
def altered_while_it_is_read(request: pytest.FixtureRequest, home: Home) -> Case:
    """A table whose column is altered after dynamic tables on it were made, and a real-time stream was
    opened."""
    case = CASES[request.param]
    home.sql(f"CREATE TABLE t$ (id INT, {case.column}) TBLPROPERTIES ('change_tracking' = 'true', {case.properties})")
    home.sql(f"INSERT INTO t$ VALUES (1, {case.older[0]}), (2, {case.older[0]})")
    return case


def test_a_dynamic_table_follows_its_altered_source_or_says_what_to_do(fed: Case, home: Home) -> None:
    queries = {
        "star": "SELECT * FROM t$",
        "named": "SELECT id, v FROM t$ WHERE id > 0",
        "grouped": "SELECT v, count(*) AS n FROM t$ GROUP BY v",
    }
    if "MAP" in fed.column:  # which no dynamic table has
        queries = {"counted": "SELECT count(*) AS n FROM t$"}
    for name, query in queries.items():
        home.sql(f"CREATE DYNAMIC TABLE {name}$ AS {query}")
    home.sql(f"ALTER TABLE t$ {fed.alter}; INSERT INTO t$ VALUES (3, {fed.newer[0]}); DELETE FROM t$ WHERE id = 1")
    for name, query in queries.items():
        refused = _error_of(partial(home.session.dynamic_tables.refresh, home.name(name)))
        now = query
        if refused is not None:
            assert (refused.remedy != "", "\n" in refused.message) == (True, False), (name, refused)
            now = query.replace("v", fed.name) if fed.name != "v" else query
            home.sql(f"CREATE OR REPLACE DYNAMIC TABLE {name}$ AS {now}")
        assert home.rows(f"SELECT * FROM {name}$") == home.rows(now), name


def _error_of(call: Callable[[], object]) -> VolstreamError | None:
    try:
        call()
    except (SqlError, StreamSchemaChangedError, InvalidStateError, InvalidValueError, RowsNotSentError) as error:
        return error
    return None


def test_a_real_time_stream_of_an_altered_table_goes_on_or_says_what_to_do(fed: Case, home: Home) -> None:
    if "MAP" in fed.column:
        pytest.skip("real-time streams have no maps of structs")
    connection = Connection(_OpenHome(home.session))
    old, new = fed.older[1], fed.newer[1]
    with connection.get_realtime_stream(table="t", schema=home.schema, operate=RealtimeOperation.APPEND_ONLY) as stream:
        row = stream.create_row(RowOperator.INSERT)
        row.set_values({"id": 5, "v": old if fed.name == "v" and not isinstance(old, dict | list) else _first(old)})
        stream.apply(row)
        stream.flush()
        home.sql(f"ALTER TABLE t$ {fed.alter}")
        row = stream.create_row(RowOperator.INSERT)
        row.set_values({"id": 6, "v": _first(old)})
        stream.apply(row)
        refused = _error_of(stream.flush)
        assert refused is None or refused.remedy
    home.sql("DELETE FROM t$ WHERE false")  # which commits what has arrived
    with connection.get_realtime_stream(table="t", schema=home.schema, operate=RealtimeOperation.APPEND_ONLY) as again:
        row = again.create_row(RowOperator.INSERT)
        row.set_values({"id": 7, fed.name: new})
        again.apply(row)
        again.flush()
    assert [row[0] for row in home.rows("SELECT id FROM t$")] == [1, 2, 5, *([6] if refused is None else []), 7]
    assert (7, new) in home.rows(f"SELECT id, {fed.name} FROM t$")


@pytest.mark.long
@pytest.mark.parametrize("alter", ["ADD COLUMNS (v.q INT)", "RENAME COLUMN z TO zz"])
def test_a_real_time_stream_that_wrote_nothing_before_its_table_was_altered_is_refused(home: Home, alter: str) -> None:
    home.sql(f"CREATE TABLE t$ (id INT, v STRUCT<a: INT>, z STRING) TBLPROPERTIES ({MAPPED})")
    connection = Connection(_OpenHome(home.session))
    with connection.get_realtime_stream(table="t", schema=home.schema, operate=RealtimeOperation.APPEND_ONLY) as stream:
        home.sql(f"ALTER TABLE t$ {alter}")
        row = stream.create_row(RowOperator.INSERT)
        row.set_values({"id": 1, "v": {"a": 1}})
        stream.apply(row)
        with pytest.raises(RowsNotSentError, match="takes no more rows"):
            stream.flush()
    assert home.rows("SELECT id FROM t$") == []


@pytest.mark.long
def test_a_real_time_stream_refuses_a_table_with_computed_columns(home: Home) -> None:
    home.sql("CREATE TABLE t$ (id STRING, at TIMESTAMP, d DATE GENERATED ALWAYS AS (CAST(at AS DATE)))")
    with pytest.raises(InvalidStateError, match="Delta computes the column d"):
        Connection(_OpenHome(home.session)).get_realtime_stream(
            table="t", schema=home.schema, operate=RealtimeOperation.APPEND_ONLY
        )


def _first(value: Any) -> Any:
    """Returns a value as it was: without the fields that were added later, under the names before a rename."""
    if isinstance(value, dict):
        return {"a": next(iter(value.values()))}
    return [_first(item) for item in value] if isinstance(value, list) else value
