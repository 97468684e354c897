"""Random queries: dynamic tables, and streams on them, after random DML, against a full computation (see ``tests.queries``)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from tests.integration.conftest import Home
from tests.queries import TABLES, Queries, Query
from volstream.errors import SqlError, StreamSchemaChangedError
from volstream.sql.incremental import group_key, is_row_by_row

#: How many queries are judged with one statement of Spark.
_TOGETHER = 15

_TYPES = {name: kind.lower() for name, kind in (one.split() for one in TABLES["t"].split(", "))}


@pytest.mark.parametrize(
    ("seed", "count"),
    [pytest.param(1, 45, marks=pytest.mark.long), pytest.param(2, 10_000, marks=[pytest.mark.long, pytest.mark.timeout(7200)])],
    ids=["some", "many"],
)
def test_what_is_kept_from_changed_rows_or_by_groups_may_be(home: Home, seed: int, count: int) -> None:
    """Rows of two halves of a table are those of the whole, in any time zone; groups have one row each."""
    queries, kept = Queries(seed), 0
    with home.session.home.gateway.fresh() as spark:
        for start in range(0, count, _TOGETHER):
            whole, halves = _views(spark, queries)
            found = [queries.near() for _ in range(min(_TOGETHER, count - start))]
            valid = {text: one for one in found if _is_valid(spark, text := one.on(f"{whole} AS t", "u"))}
            rows = {text: one for text, one in valid.items() if is_row_by_row(text, _TYPES)}
            spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")  # where it is always tomorrow
            parts = _contents(spark, [(text, row.on(f"{half} AS t", "u")) for text, row in rows.items() for half in halves])
            spark.conf.set("spark.sql.session.timeZone", "Etc/GMT+12")
            assert _contents(spark, [(text, text) for text in rows]) == parts
            keys = {text: key for text in valid if (key := group_key(text, _TYPES)) is not None}
            for text, number in _duplicates(spark, valid, keys):
                assert number == 0, (text, keys[text])
            kept += len(rows) + len(keys)
    assert kept > count / 5


def _views(spark: SparkSession, queries: Queries) -> tuple[str, tuple[str, str]]:
    """Makes new rows; returns the views of all rows of ``t``, and of those of two parts."""
    for name, table, count in (("before", "t", 9), ("after", "t", 6), ("u", "u", 5)):
        columns = [one.split() for one in TABLES[table].split(", ")]
        cast = ", ".join(f"CAST({column} AS {kind}) AS {column}" for column, kind in columns)
        values = ", ".join(queries.values(table, number) for number in range(count))
        listed = ", ".join(column for column, _ in columns)
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS SELECT {cast} FROM VALUES {values} AS r({listed})").collect()
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW whole AS SELECT * FROM before UNION ALL SELECT * FROM after").collect()
    return "whole", ("before", "after")


def _is_valid(spark: SparkSession, query: str) -> bool:
    try:
        return bool(spark.sql(query).columns)
    except PySparkException:
        return False


def _contents(spark: SparkSession, queries: list[tuple[str, str]]) -> dict[str, Counter[str]]:
    """Returns the rows of queries as texts, by their first names."""
    found: dict[str, Counter[str]] = {name: Counter() for name, _ in queries}
    names = list(found)
    written = "to_json(struct(*), map('timeZone', 'UTC', 'ignoreNullFields', 'false')) AS line"
    text = " UNION ALL ".join(f"SELECT {names.index(name)} AS number, {written} FROM ({one})" for name, one in queries)
    for row in spark.sql(text).collect() if text else ():
        found[names[row["number"]]][row["line"]] += 1
    return found


def _duplicates(spark: SparkSession, queries: dict[str, Query], keys: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yields how many rows of each query have the key of another one."""
    names = list(keys)
    parts = []
    for number, text in enumerate(names):
        outputs = queries[text].outputs
        assert outputs is not None, "a star has no key"
        columns = ", ".join(f"q{at}" for at in range(len(outputs)))
        key = ", ".join(["1", *(f"q{at}" for at in keys[text])])
        parts.append(f"SELECT {number} AS number, count(*) - count(DISTINCT struct({key})) AS more FROM ({text}) AS q({columns})")
    for row in spark.sql(" UNION ALL ".join(parts)).collect() if parts else ():
        yield names[row["number"]], row["more"]


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("seed", "tables", "steps"), [(1, 1, 1), pytest.param(2, 40, 12, marks=pytest.mark.long)], ids=["some", "many"]
)
def test_dynamic_tables_equal_their_queries_after_any_dml(home: Home, seed: int, tables: int, steps: int) -> None:
    play = Play(home, seed)
    play.follow(tables)
    for _ in range(steps):
        play.change()
        play.check()


@dataclass
class Followed:
    """A dynamic table, or a table of the play, and what a stream on it has delivered so far, if there is one."""

    name: str
    query: Query | None
    delivered: list[dict[str, Any]] | None = None


class Play:
    """Two tables that random statements change, and dynamic tables on them."""

    def __init__(self, home: Home, seed: int) -> None:
        self.home = home
        self.queries = Queries(seed)
        self.dice = random.Random(seed)
        self.added = 0
        self.log: list[str] = []
        for table, columns in TABLES.items():
            self._run(f"CREATE TABLE {table}$ ({columns}) TBLPROPERTIES ('change_tracking' = 'true')")
            self._insert(table, 8)
        self.followed: list[Followed] = []
        for table in TABLES:
            self._stream(Followed(f"{table}$", None))

    def follow(self, count: int) -> None:
        """Makes dynamic tables of random queries; every third has a stream."""
        for number in range(count):
            query = self.queries.any()
            while not _is_valid_at(self.home, self._text(query)):
                query = self.queries.any()
            one = Followed(f"d{number}$", query)
            self._run(f"CREATE DYNAMIC TABLE {one.name} AS {self._text(query)}")
            self.followed.append(one)
            if number % 3 == 0 and not query.varying:
                self.followed.pop()
                self._stream(one)

    def change(self) -> None:
        """Runs one to three statements."""
        for _ in range(self.dice.randint(1, 3)):
            table = self.dice.choice(("t", "t", "u"))
            act = self.dice.choice(
                (self._insert, self._update, self._delete, self._merge, self._overwrite, self._alter, self._restore)
            )
            act(table)

    def check(self) -> None:
        """Refreshes every dynamic table, and compares it with its query, and its stream with a replay."""
        for one in self.followed:
            if one.query is not None:
                self._refresh(one, one.query)
            if one.delivered is not None:
                self._replay(one)

    def _refresh(self, one: Followed, query: Query) -> None:
        text = self._text(query)
        failed = ""
        try:
            self.home.session.dynamic_tables.refresh(self.home.own(one.name))
        except SqlError as error:
            failed = str(error)
        if failed:  # a star whose table was restored to fewer columns
            assert "no longer has the column" in failed, (failed, text, self.log)
            left = {*self.home.session.sql(f"SELECT * FROM {self.home.own(one.name)}").columns}
            assert left - {*self.home.session.sql(text).columns}, (text, self.log)
            if one.delivered is not None:
                self._run(f"DROP STREAM s_{one.name}")
            self._run(f"CREATE OR REPLACE DYNAMIC TABLE {one.name} AS {text}")
            if one.delivered is not None:
                self.followed = [other for other in self.followed if other is not one]
                self._stream(one)
            return
        columns = query.outputs or self.home.session.sql(text).columns
        shown = ", ".join(name for name in columns if name not in query.varying) or "count(*)"
        expected, found = (Counter(map(repr, self._rows(f"SELECT {shown} FROM {one_}"))) for one_ in (f"({text}\n)", one.name))
        assert found == expected, (text, self.log)

    def _replay(self, one: Followed) -> None:
        """Applies what a stream delivers to what it has delivered before: that is its table's content."""
        assert one.delivered is not None, "it has a stream"
        stream, name = f"s_{one.name}", self.home.own(f"s_{one.name}")
        present = self._dicts(f"SELECT * FROM {one.name}")
        try:
            changes = self._dicts(f"SELECT * FROM {stream}")
        except StreamSchemaChangedError:
            assert "RESTORE" in " ".join(self.log), self.log
            changes = None
        if changes is not None:
            columns = list(self.home.session.sql(f"SELECT * FROM {self.home.own(one.name)}").columns)
            rows = Counter(repr([row.get(key) for key in columns]) for row in one.delivered)
            for row in changes:
                came = row["__change_type"] in ("INSERT", "UPDATE_AFTER")
                rows[repr([row[key] for key in columns])] += 1 if came else -1
            expected = Counter(repr([row[key] for key in columns]) for row in present)
            assert {key: number for key, number in rows.items() if number} == expected, (one, changes, self.log)
        self.home.session.streams.advance(name)
        one.delivered = present

    def _stream(self, one: Followed) -> None:
        on = "TABLE" if one.query is None else "DYNAMIC TABLE"
        self._run(f"CREATE STREAM s_{one.name} ON {on} {one.name}")
        one.delivered = self._dicts(f"SELECT * FROM {one.name}")
        self.followed.append(one)

    def _text(self, query: Query) -> str:
        return query.on(*(self.home.own(f"{table}$") for table in ("t", "u")))

    def _run(self, statement: str) -> None:
        self.log.append(statement)
        self.home.sql(statement)

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in self._dicts(query)]

    def _dicts(self, query: str) -> list[dict[str, Any]]:
        return [{key: _plain(value) for key, value in row.items()} for row in self.home.sql(query)]

    def _insert(self, table: str, count: int = 2) -> None:
        listed = ", ".join(one.split()[0] for one in TABLES[table].split(", "))
        values = ", ".join(self.queries.values(table, self.dice.randint(1, 20)) for _ in range(count))
        self._run(f"INSERT INTO {table}$ ({listed}) VALUES {values}")

    def _update(self, table: str) -> None:
        column = self.dice.choice(("k", "v", "ch", "vc")) if table == "t" else "w"
        self._run(f"UPDATE {table}$ SET {column} = {self.dice.randint(-2, 3)} WHERE {self._some(table)}")

    def _delete(self, table: str) -> None:
        self._run(f"DELETE FROM {table}$ WHERE {self._some(table)}")

    def _merge(self, table: str) -> None:
        key, value = ("id", "v") if table == "t" else ("w", "k2")
        source = f"SELECT explode(sequence({self.dice.randint(1, 4)}, 6)) AS n"
        self._run(
            f"MERGE INTO {table}$ USING ({source}) m ON {key} = m.n WHEN MATCHED AND m.n % 2 = 0 THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {value} = m.n - 3 WHEN NOT MATCHED THEN INSERT ({key}, {value}) VALUES (m.n, 1)"
        )

    def _overwrite(self, table: str) -> None:
        self._run(
            f"INSERT OVERWRITE {table}$ SELECT * FROM {table}$ WHERE NOT ({self._some(table)}) OR {self.dice.random() < 0.5}"
        )

    def _alter(self, table: str) -> None:
        self.added += 1
        self._run(f"ALTER TABLE {table}$ ADD COLUMNS (more{self.added} INT)")
        if self.dice.random() < 0.5:
            self._run(f"UPDATE {table}$ SET more{self.added} = 1 WHERE {self._some(table)}")

    def _restore(self, table: str) -> None:
        newest = max(row["version"] for row in self.home.sql(f"DESCRIBE HISTORY {table}$"))
        self._run(f"RESTORE TABLE {table}$ TO VERSION AS OF {self.dice.randint(1, newest)}")

    def _some(self, table: str) -> str:
        if table == "u":
            return f"w % 3 = {self.dice.randint(0, 2)}"
        return self.dice.choice(
            ("id % 3 = 0", "k = 1", "v < 0", "s = 'x'", "ch = 'x'", f"id = {self.dice.randint(1, 9)}", "k IS NULL")
        )


def _is_valid_at(home: Home, query: str) -> bool:
    try:
        return bool(home.session.sql(query).columns)
    except (SqlError, PySparkException):
        return False


def _plain(value: Any) -> Any:
    """Returns a value with which equal ones have one text: 0.0 and -0.0 are."""
    match value:
        case float():
            return value + 0.0
        case dict():
            return {key: _plain(one) for key, one in value.items()}
        case list():
            return [_plain(one) for one in value]
        case _:
            return value
