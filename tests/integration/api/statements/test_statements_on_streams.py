"""DML that reads streams does what the same DML does with a table of the stream's rows, in the user's session
(docs/guides/sql.md)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.integration.conftest import Home
from volstream.api.dbapi import Connection, _OpenHome
from volstream.errors import InvalidValueError, SqlError
from volstream.tables.tails.writer import commit_tail

_COLUMNS = "k INT, a INT, x DOUBLE, ts TIMESTAMP, d STRING"


@pytest.fixture
def filled(home: Home) -> Iterator[Home]:
    """A tracked table ``t`` with rows that its stream ``s`` returns, and a table ``u`` to write to; resets the session after."""
    home.tracked(columns=_COLUMNS)
    home.sql("INSERT INTO t$ VALUES (1, 6, 1000, TIMESTAMP '2026-01-01 23:00:00', 'a'), (1, 7, 8, TIMESTAMP '2026-01-02', '7')")
    home.sql(f"CREATE TABLE u$ ({_COLUMNS})")
    yield home
    home.session.sql("RESET").collect()
    for name in ("shown", "s", "t"):
        home.session.home.spark.catalog.dropTempView(name)


def test_a_condition_of_a_merge_is_not_a_condition_on_the_stream_inside_its_query(filled: Home) -> None:
    filled.sql(
        "MERGE INTO u$ AS t USING (SELECT k, sum(a) AS a FROM s$ GROUP BY k) AS s ON t.k = s.k "
        "WHEN NOT MATCHED AND s.a > 10 THEN INSERT (k, a) VALUES (s.k, s.a)"
    )
    assert (filled.rows("SELECT k, a FROM u$"), filled.rows("SELECT * FROM s$")) == ([(1, 13)], [])


@pytest.mark.parametrize("condition", ["datediff(s.ts, TIMESTAMP '2026-01-01 22:00:00') = 0 AND s.k = 1", "log10(s.x) = 3"])
def test_a_function_in_a_merge_keeps_its_meaning(filled: Home, condition: str) -> None:
    filled.sql(f"MERGE INTO u$ t USING s$ s ON t.k = s.k WHEN NOT MATCHED AND {condition} THEN INSERT (k, a) VALUES (s.k, s.a)")
    assert filled.rows("SELECT k, a FROM u$") == [(1, 6)]


def test_dml_that_reads_a_stream_runs_in_the_users_session(filled: Home) -> None:
    """Its time zone, settings, temporary views and functions, and variables."""
    filled.sql(
        "SET TIME ZONE 'Asia/Tokyo'; SET spark.sql.ansi.enabled = false; DECLARE OR REPLACE VARIABLE `tWo`, session.three INT DEFAULT 2;"
        "CREATE OR REPLACE TEMPORARY VIEW shown AS SELECT 5 AS five;"
        "CREATE OR REPLACE TEMPORARY FUNCTION twice(i INT) RETURNS INT RETURN 2 * i; DECLARE OR REPLACE VARIABLE hidden INT DEFAULT 1;"
        "DECLARE OR REPLACE VARIABLE years INTERVAL YEAR TO MONTH DEFAULT INTERVAL '1-2' YEAR TO MONTH;"
        "CREATE OR REPLACE TEMPORARY FUNCTION more(i INT) RETURNS INT RETURN i + hidden"
    )
    query = (
        "SELECT k, CAST('q' AS INT) + 1 AS a, two + THREE AS x, TIMESTAMP '2026-01-01 00:00:00' AS ts, "
        "concat_ws(',', ts, (SELECT five FROM shown), twice(k), more(k)) AS d FROM s$"
    )
    wanted = filled.rows(query)
    filled.sql(f"CREATE TABLE v$ AS {query}")
    assert filled.rows("SELECT * FROM v$") == wanted
    filled.sql("INSERT INTO t$ VALUES (2, 1, 1, now(), 'b'); SET VAR two = 40")
    wanted = filled.rows(query)
    filled.sql(f"INSERT INTO u$ {query}")
    assert filled.rows("SELECT * FROM u$") == wanted


def test_a_batch_in_python_is_merged_in_the_users_session(filled: Home) -> None:
    filled.sql("DELETE FROM t$ WHERE a = 7; CREATE TABLE v$ (k INT, ts DATE); SET TIME ZONE 'Asia/Tokyo'")
    wanted = filled.rows("SELECT k, CAST(ts AS DATE) FROM s$")
    with filled.session.streams.get(filled.own("s$")).consume() as batch:
        batch.merge_into(filled.own("v$"), "k")
    assert filled.rows("SELECT * FROM v$") == wanted


def test_a_temporary_view_hides_a_table_with_arrived_rows_as_it_hides_others(home: Home) -> None:
    session, name = home.session, f"hidden_{home.schema}"
    place = f"{session.home.warehouse}/tables/public/{name}"
    session.sql(f"CREATE TABLE {name} (k INT) USING DELTA LOCATION '{place}'").collect()
    connection = Connection(_OpenHome(session), "public")
    with connection.get_realtime_stream(table=name) as stream:
        row = stream.create_row()
        row.set_values({"k": 1})
        stream.apply(row)
    assert home.rows(f"SELECT k FROM {name}") == [(1,)]
    session.sql(f"CREATE TEMPORARY VIEW {name} AS SELECT 2 AS k").collect()
    assert home.rows(f"SELECT k FROM {name}") == [(2,)]
    assert home.rows(f"SELECT k FROM public.{name}") == [(1,)]
    session.home.spark.catalog.dropTempView(name)
    commit_tail(place, lambda: session.home.gateway)


def test_a_stream_that_a_temporary_view_hides_is_refused(home: Home) -> None:
    home.tracked(columns="k INT", stream=None)
    home.sql("CREATE TABLE STREAM feed ON TABLE t$")
    home.session.sql("SELECT 1 AS k").createOrReplaceTempView("feed")
    try:
        for statement in ("SELECT * FROM feed", "INSERT INTO t$ SELECT k FROM feed"):
            with pytest.raises(SqlError, match=r"both a stream and a temporary view of this session. Write `public`.`feed`"):
                home.sql(statement)
        assert home.sql("SELECT * FROM public.feed") == []
    finally:
        home.session.home.spark.catalog.dropTempView("feed")
    for statement in ("CREATE OR REPLACE TEMPORARY VIEW feed AS SELECT 1", "DROP VIEW feed"):
        with pytest.raises(SqlError, match="feed is a stream, not a view"):
            home.sql(statement)


def test_merge_into_moves_a_row_whose_key_changed(home: Home) -> None:
    """Rows are identified by Delta's ids, so an UPDATE of the key is an update of the row."""
    home.tracked(columns="id INT, v INT")
    home.sql("CREATE TABLE copy$ (id INT, v INT); INSERT INTO t$ VALUES (1, 10), (2, 20), (4, 40)")

    def merge() -> None:
        with home.session.streams.get(home.own("s$")).consume() as batch:
            with pytest.raises(InvalidValueError, match="no column 'nr' to merge on"):
                batch.merge_into(home.own("copy$"), "nr")
            batch.merge_into(home.own("copy$"), "ID")  # names ignore case

    merge()
    home.sql("UPDATE t$ SET id = id + 1 WHERE id < 3; UPDATE t$ SET v = 41 WHERE id = 4")
    merge()
    assert home.rows("SELECT * FROM copy$") == home.rows("SELECT * FROM t$") == [(2, 10), (3, 20), (4, 41)]


def test_a_merge_after_a_common_table_expression_is_adapted_as_others_are(filled: Home) -> None:
    filled.sql("INSERT INTO u$ SELECT * FROM t$ WHERE a = 6; INSERT INTO u$ SELECT 2, a, x, ts, d FROM t$ WHERE a = 6")
    filled.session.streams.advance(filled.own("s$"))
    filled.sql(
        "UPDATE t$ SET a = 60 WHERE a = 6; INSERT INTO t$ SELECT 3, a, x, ts, d FROM u$ WHERE k = 2; DELETE FROM t$ WHERE a = 7"
    )
    filled.sql(
        "WITH w AS (SELECT * FROM s$) MERGE INTO u$ u USING w ON u.k = w.k "
        "WHEN MATCHED AND w.__change_type = 'UPDATE_AFTER' THEN UPDATE SET u.a = w.a "
        "WHEN NOT MATCHED AND w.__change_type = 'INSERT' THEN INSERT VALUES (w.k, w.a, w.x, w.ts, w.d)"
    )
    assert filled.rows("SELECT k, a FROM u$") == [(1, 60), (2, 6), (3, 6)]


def test_a_block_that_is_repeated_after_a_rename_reads_the_new_names(home: Home) -> None:
    mapped = "TBLPROPERTIES ('change_tracking' = 'true', 'delta.columnMapping.mode' = 'name')"
    home.sql(f"CREATE TABLE t$ (id INT, a INT, b INT) {mapped}; CREATE TABLE copy$ (id INT, a INT, b INT) {mapped}")
    home.sql("CREATE STREAM s$ ON TABLE t$; INSERT INTO t$ VALUES (1, 10, 20)")
    with pytest.raises(RuntimeError), home.session.streams.get(home.name("s")).consume():
        raise RuntimeError
    for table in ("t$", "copy$"):
        for old, new in (("a", "z"), ("b", "a"), ("z", "b")):
            home.sql(f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}")
    with home.session.streams.get(home.name("s")).consume() as batch:
        batch.merge_into(home.name("copy"), "id")
    assert home.rows("SELECT id, a, b FROM copy$") == home.rows("SELECT id, a, b FROM t$") == [(1, 20, 10)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "count"),
    [pytest.param(1, 20, marks=pytest.mark.timeout(600)), pytest.param(2, 400, marks=pytest.mark.timeout(7200))],
    ids=["some", "many"],
)
def test_random_dml_on_a_stream_does_what_it_does_on_a_table(filled: Home, seed: int, count: int) -> None:
    """The model is Spark itself: the statement runs on a table that has the stream's rows, into a copy of the target."""
    statements, ran = _Statements(seed), 0
    filled.sql(f"CREATE TABLE w$ ({_COLUMNS}); CREATE TABLE STREAM same$ ON TABLE t$")
    filled.session.streams.advance(filled.own("s$"))
    for number in range(count):
        filled.sql(statements.rows())
        for setting in statements.session():
            filled.session.sql(setting).collect()
        dml = statements.dml()
        filled.sql("DROP TABLE IF EXISTS plain$; CREATE TABLE plain$ AS SELECT * FROM same$")
        unread = filled.rows("SELECT * FROM s$")
        expected, found = (
            _error(filled, dml.format(source="plain$", target="w$")),
            _error(filled, dml.format(source="s$", target="u$")),
        )
        case = (seed, number, dml, expected, found)
        if found:
            assert expected, case
            assert filled.rows("SELECT * FROM s$") == unread, case
            filled.session.streams.advance(filled.own("s$"))
            continue
        assert filled.rows("SELECT * FROM s$") == [], case
        if expected:  # the two rows of an update match one row, and the filter leaves out the one that no clause can match
            assert "DELTA_MULTIPLE_SOURCE_ROW" in expected, case
            filled.sql("INSERT OVERWRITE w$ SELECT * FROM u$")
            continue
        assert filled.rows("SELECT * FROM u$") == filled.rows("SELECT * FROM w$"), case
        ran += 1
    assert ran > count / 2


def _error(home: Home, statement: str) -> str:
    """Runs a statement; returns its error, or an empty text."""
    try:
        home.sql(statement)
    except SqlError as error:
        return str(error)
    return ""


class _Statements:
    """Random changes of ``t``, states of a session, and DML that reads ``{source}`` and writes ``{target}``."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def rows(self) -> str:
        """DML on ``t``, with distinct keys in one range: a stream's rows can then be merged."""
        pick, start = self._random, self._random.randrange(100, 10**6)
        values = ", ".join(
            f"({start + number}, {pick.randrange(-9, 20)}, {pick.choice([1, 1.5, 8, 100, 1000, -1])}, "
            f"TIMESTAMP '2026-{pick.randrange(1, 13):02d}-{pick.randrange(1, 28):02d} {pick.randrange(24):02d}:30:00Z', "
            f"'{pick.choice(['a', 'b,c', '7', ''])}')"
            for number in range(pick.randrange(1, 5))
        )
        changes = [f"INSERT INTO t$ VALUES {values}"]
        if pick.random() < 0.4:
            changes.append(f"DELETE FROM t$ WHERE k % 5 = {pick.randrange(5)}")
        if pick.random() < 0.2:
            changes.append(f"UPDATE t$ SET a = a + 1 WHERE k % 7 = {pick.randrange(7)}")
        return "; ".join(changes)

    def session(self) -> list[str]:
        pick = self._random
        zone = pick.choice(["UTC", "Asia/Tokyo", "America/New_York", "Pacific/Kiritimati", "+05:45"])
        return [
            f"SET TIME ZONE '{zone}'",
            f"SET spark.sql.ansi.enabled = {pick.choice(['true', 'false'])}",
            f"DECLARE OR REPLACE VARIABLE lot INT DEFAULT {pick.randrange(5)}",
            f"CREATE OR REPLACE TEMPORARY VIEW shown AS SELECT {pick.randrange(9)} AS k, '{pick.choice('abc')}' AS w",
        ]

    def dml(self) -> str:
        pick = self._random
        if pick.random() < 0.4:
            return f"INSERT INTO {{target}} SELECT {self._values('q.')} FROM {self._source('q')} WHERE {self._condition('q.')}"
        alias = pick.choice(["s", "q", "`a b`"])
        clauses = []
        if pick.random() < 0.6:
            clauses.append(f"WHEN MATCHED AND {self._clause(alias)} THEN DELETE")
        if pick.random() < 0.5:
            clauses.append(
                f"WHEN MATCHED AND {self._clause(alias)} THEN UPDATE SET a = {alias}.a + t.a, d = concat({alias}.ts, '')"
            )
        if pick.random() < 0.7 or not clauses:
            insert = f"INSERT (k, a, x, ts, d) VALUES ({self._values(f'{alias}.')})"
            clauses.append(f"WHEN NOT MATCHED AND {self._clause(alias)} THEN {insert}")
        return f"MERGE INTO {{target}} t USING {self._source(alias)} ON t.k = {alias}.k {' '.join(clauses)}"

    def _clause(self, alias: str) -> str:
        parts = [self._condition(pick) for pick in self._random.choices([f"{alias}.", "", "t."], [6, 1, 1], k=2)]
        kinds = self._random.choice(["('INSERT', 'UPDATE_AFTER')", "('DELETE')", "('INSERT')"])
        return " AND ".join(
            self._random.sample([*parts[: self._random.randrange(3)], f"{alias}.__change_type IN {kinds}"], k=1) + parts
        )

    def _source(self, alias: str) -> str:
        whole = "max(a) AS a, max(x) AS x, max(ts) AS ts, max(d) AS d, max(__change_type) AS __change_type"
        return self._random.choice(
            [
                f"{{source}} AS {alias}",
                f"{{source}} {alias}",
                f"(SELECT * FROM {{source}}) AS {alias}",
                f"(SELECT k, {whole} FROM {{source}} GROUP BY k) {alias}",
                f"(SELECT k, -a AS a, 10 * x AS x, ts + INTERVAL 3 HOURS AS ts, d, __change_type FROM {{source}}) {alias}",
                f"(SELECT k, a, x, ts, d, __change_type FROM {{source}} s WHERE {self._condition('s.')}) AS {alias}",
                f"(SELECT r.* FROM {{source}} r LEFT ANTI JOIN shown ON shown.k = a) AS {alias}",
            ]
        )

    def _values(self, of: str) -> str:
        pick = self._random
        texts = [f"concat({of}ts, '')", f"date_format({of}ts, 'DDD HH')", f"CAST(CAST({of}d AS INT) AS STRING)", f"{of}d"]
        times = [f"{of}ts", "TIMESTAMP '2026-03-08 02:30:00'", f"CAST(CAST({of}ts AS DATE) AS TIMESTAMP)"]
        numbers = [f"{of}a", f"{of}a + lot", f"hour({of}ts)", f"datediff({of}ts, DATE '2026-01-01')", f"CAST({of}d AS INT)"]
        return f"{of}k, {pick.choice(numbers)}, log10({of}x), {pick.choice(times)}, {pick.choice(texts)}"

    def _condition(self, of: str, depth: int = 0) -> str:
        pick = self._random
        if depth < 2 and pick.random() < 0.4:
            left, right = self._condition(of, depth + 1), self._condition(of, depth + 1)
            return pick.choice([f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"])
        plain = [
            f"{of}a > {pick.randrange(-5, 15)}",
            f"{of}a BETWEEN 1 AND {pick.randrange(2, 20)}",
            f"datediff({of}ts, TIMESTAMP '2026-06-15 23:00:00') >= 1",
            f"date_format({of}ts, 'H') > '1'",
            f"{of}ts > TIMESTAMP '2026-06-15 12:00:00'",
            f"hour({of}ts) < {pick.randrange(24)}",
            f"log10({of}x) >= 2",
            f"log2({of}x) = 3",
            f"ln({of}x) IS NULL",
            f"{of}x / 2 > 3",
            f"{of}a % 3 = {pick.randrange(3)}",
            f"size(split({of}d, ',')) > 1",
            f"array_size(split({of}d, ',')) = 1",
            f"{of}d LIKE '%a%'",
            f"{of}d IN ('a', 'b,c')",
            f"length({of}d) > 1",
            f"coalesce(try_cast({of}d AS INT), 0) = 7",
            f"CASE WHEN {of}a > 3 AND {of}k > 1 THEN {of}d = 'a' ELSE {of}x > 1 END",
            f"{of}a > lot",
            f"{of}d <=> 'AND'",
        ]
        return pick.choice(plain)
