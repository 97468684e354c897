"""Columns are renamed, added under old names, widened and mapped in random histories: streams, changes, dynamic tables and copies
against a model that knows columns by numbers of its own (docs/streams.md, R-15)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.integration.conftest import Home

_PROPERTIES = "'change_tracking' = 'true', 'delta.enableTypeWidening' = 'true'"
_MAPPED = "ALTER TABLE t$ SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"

#: Names that columns take turns with.
_NAMES = ("a", "b", "c")


@dataclass
class Model:
    """A table whose rows and columns have numbers.

    Attributes:
        columns: numbers by name, in order.
        rows: values by column's number, by row's number. Those of column 0, the key, are unique.
        widened: numbers of columns that are BIGINT by now.
    """

    columns: dict[str, int]
    rows: dict[int, dict[int, int | None]] = field(default_factory=dict)
    widened: set[int] = field(default_factory=set)

    def copy(self) -> Model:
        return Model(dict(self.columns), {number: dict(row) for number, row in self.rows.items()}, set(self.widened))

    def image(self, row: dict[int, int | None], names: dict[str, int]) -> tuple[int | None, ...]:
        return tuple(row.get(number) for number in names.values())

    def changes(self, before: Model, *, by_key: bool) -> list[tuple[Any, ...]]:
        """The net changes since an earlier state, as a stream has them: in the columns of this one."""

        def images(model: Model) -> dict[Any, tuple[int | None, ...]]:
            return {row[0] if by_key else number: self.image(row, self.columns) for number, row in model.rows.items()}

        old, new = images(before), images(self)
        found: list[tuple[Any, ...]] = []
        for row in {**old, **new}:
            if row not in old:
                found.append(("INSERT", *new[row]))
            elif row not in new:
                found.append(("DELETE", *old[row]))
            elif old[row] != new[row]:
                found += [("UPDATE_BEFORE", *old[row]), ("UPDATE_AFTER", *new[row])]
        return sorted(found, key=repr)


class History:
    """A random history of a table ``t`` and its model."""

    def __init__(self, home: Home, seed: int) -> None:
        self.home = home
        self.pick = random.Random(seed)
        self.key = "k"
        self.mapped = self.pick.random() < 0.5
        self.model = Model({"k": 0, "a": 1, "b": 2})
        self.log: list[str] = []
        self._numbers = iter(range(3, 1000))
        self._rows = iter(range(1, 1000))
        mapping = ", 'delta.columnMapping.mode' = 'name'" if self.mapped else ""
        self.run(f"CREATE TABLE t$ (k INT PRIMARY KEY, a INT, b INT) TBLPROPERTIES ({_PROPERTIES}{mapping})")

    def run(self, statement: str) -> None:
        self.log.append(statement)
        self.home.sql(statement)

    def step(self) -> None:
        names = [name for name in self.model.columns if self.model.columns[name]]
        free = [name for name in _NAMES if name not in self.model.columns]
        ways = [self.insert, self.insert, self.update, self.delete]
        if self.mapped and free:
            ways += [lambda: self.rename(self.pick.choice([*names, self.key]), free[0])]
            ways += [lambda: self.rename_and_add(self.pick.choice([*names, self.key]), free[0])]
        elif free:
            ways += [lambda: self.add(free[0])]
        if not self.mapped:
            ways.append(self.map)
        if set(self.model.columns.values()) - self.model.widened:
            ways.append(self.widen)
        self.pick.choice(ways)()

    def insert(self) -> None:
        number = next(self._rows)
        row = {column: self.pick.choice([None, *range(4)]) if column else number for column in self.model.columns.values()}
        self.model.rows[number] = row
        values = ", ".join("NULL" if row[column] is None else str(row[column]) for column in self.model.columns.values())
        self.run(f"INSERT INTO t$ ({', '.join(self.model.columns)}) VALUES ({values})")

    def update(self) -> None:
        """Of a value or, sometimes, of keys: a key that was taken by another row before is another row for a key, not for an id."""
        name, value = self.pick.choice([*self.model.columns]), self.pick.randrange(9)
        number, least = self.model.columns[name], self.pick.randrange(1, 9)
        changed = [row for row in self.model.rows.values() if (row[0] or 0) >= least]
        if not number:  # keys stay unique
            for row in changed:
                row[0] = (row[0] or 0) + 1000
            self.run(f"UPDATE t$ SET {name} = {name} + 1000 WHERE {self.key} >= {least}")
            return
        for row in changed:
            row[number] = value
        self.run(f"UPDATE t$ SET {name} = {value} WHERE {self.key} >= {least}")

    def delete(self) -> None:
        rest = self.pick.randrange(3)
        self.model.rows = {number: row for number, row in self.model.rows.items() if (row[0] or 0) % 3 != rest}
        self.run(f"DELETE FROM t$ WHERE {self.key} % 3 = {rest}")

    def rename(self, old: str, new: str) -> None:
        self.model.columns = {new if name == old else name: number for name, number in self.model.columns.items()}
        self.key = new if old == self.key else self.key
        self.run(f"ALTER TABLE t$ RENAME COLUMN {old} TO {new}")

    def rename_and_add(self, old: str, new: str) -> None:
        self.rename(old, new)
        self.add(old)

    def add(self, name: str) -> None:
        self.model.columns[name] = next(self._numbers)
        self.run(f"ALTER TABLE t$ ADD COLUMNS ({name} INT)")

    def map(self) -> None:
        self.mapped = True
        self.run(_MAPPED)

    def widen(self) -> None:
        name = self.pick.choice([name for name, number in self.model.columns.items() if number not in self.model.widened])
        self.model.widened.add(self.model.columns[name])
        self.run(f"ALTER TABLE t$ CHANGE COLUMN {name} TYPE BIGINT")


def test_a_column_is_renamed_and_another_one_gets_its_name(home: Home) -> None:
    """The mapping is switched on in the range: until then, the names tell the columns."""
    home.sql(f"CREATE TABLE t$ (k INT PRIMARY KEY, a INT) TBLPROPERTIES ({_PROPERTIES}); INSERT INTO t$ VALUES (1, 10), (2, 20)")
    home.sql("CREATE DYNAMIC TABLE d$ AS SELECT k, a FROM t$; REFRESH DYNAMIC TABLE d$; CREATE STREAM s$ ON TABLE t$")
    home.sql(_MAPPED)
    home.sql("ALTER TABLE t$ RENAME COLUMN a TO b; ALTER TABLE t$ ADD COLUMNS (a INT); ALTER TABLE t$ RENAME COLUMN k TO id")
    home.sql("ALTER TABLE t$ ADD COLUMNS (k INT); INSERT INTO t$ (id, b) VALUES (3, 30); DELETE FROM t$ WHERE id = 1")
    changes = [("DELETE", 1, 10, None, None), ("INSERT", 3, 30, None, None)]
    assert home.rows("SELECT __change_type, id, b, a, k FROM s$") == changes
    home.sql("REFRESH DYNAMIC TABLE d$")
    assert home.rows("SELECT * FROM d$") == home.rows("SELECT k, a FROM t$") == [(None, None), (None, None)]


@pytest.mark.parametrize(
    ("query", "added", "want"),
    [
        ("SELECT k, a * 2 AS w, w + 1 AS x FROM t$", "w INT", [(1, 20, None), (3, 60, 301)]),
        pytest.param("SELECT t.k, t.v AS w, 0 AS x FROM t$ t", "v INT", [(1, None, 0), (3, 300, 0)], marks=pytest.mark.long),
    ],
)
def test_a_new_column_whose_name_meant_something_else_to_the_query_is_read_in_all_rows(
    home: Home, query: str, added: str, want: list[tuple[object, ...]]
) -> None:
    home.sql(f"CREATE TABLE t$ (k INT, a INT, t STRUCT<v: INT>) TBLPROPERTIES ({_PROPERTIES})")
    home.sql("INSERT INTO t$ VALUES (1, 10, named_struct('v', 5))")
    home.sql(f"CREATE DYNAMIC TABLE d$ AS {query}; REFRESH DYNAMIC TABLE d$")
    home.sql(f"ALTER TABLE t$ ADD COLUMNS ({added}); INSERT INTO t$ VALUES (3, 30, named_struct('v', 6), 300)")
    home.sql("REFRESH DYNAMIC TABLE d$")
    assert home.rows("SELECT k, w, x FROM d$") == want


def test_a_widened_column_is_computed_again(home: Home) -> None:
    home.sql(f"CREATE TABLE t$ (k INT, a INT) TBLPROPERTIES ({_PROPERTIES}); INSERT INTO t$ VALUES (1, 10)")
    home.sql("CREATE DYNAMIC TABLE d$ AS SELECT k, CAST(a AS STRING) AS a FROM t$; REFRESH DYNAMIC TABLE d$")
    home.sql("ALTER TABLE t$ CHANGE COLUMN a TYPE DOUBLE; REFRESH DYNAMIC TABLE d$")
    assert home.rows("SELECT * FROM d$") == [(1, "10.0")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "histories"),
    [pytest.param(2, 4, marks=pytest.mark.timeout(3600)), pytest.param(3, 100, marks=pytest.mark.timeout(14400))],
    ids=["some", "many"],
)
def test_columns_are_known_by_their_numbers(home: Home, seed: int, histories: int) -> None:
    for number in range(histories):
        home.schema = f"{home.schema.partition('_')[0]}_{number}"
        home.sql(f"CREATE SCHEMA {home.schema}")
        history = History(home, seed * 1000 + number)
        home.sql("CREATE STREAM s$ ON TABLE t$; CREATE TABLE copy$ (k BIGINT, x BIGINT)")
        home.session.streams.create(home.name("ids"), table=home.name("t"), identity=[])
        queries = {"plain": "SELECT CAST(k AS STRING) AS k, CAST(a AS STRING) AS v FROM t$"}
        queries["groups"] = (
            "SELECT CAST(a AS STRING) AS v, count(*) AS n, CAST(max(k) AS STRING) AS k FROM t$ GROUP BY CAST(a AS STRING)"
        )
        queries["joined"] = "SELECT CAST(x.k AS STRING) AS k, CAST(y.a AS STRING) AS v FROM t$ x JOIN t$ y ON x.k = y.k"
        for name, query in queries.items():
            home.sql(f"CREATE DYNAMIC TABLE {name}$ AS {query}")
        before = history.model.copy()
        for _ in range(4):
            for _ in range(history.pick.randrange(1, 5)):
                history.step()
            case = (seed, number, history.log)
            columns = ", ".join(history.model.columns)
            expected = history.model.changes(before, by_key=True)
            assert home.rows(f"SELECT __change_type, {columns} FROM s$") == expected, case
            with home.session.streams.get(home.name("s")).consume() as batch:
                key = batch.df.selectExpr("__change_type", "__commit_version", f"{history.key} AS k", "1 AS x")
                batch.merge_into(home.name("copy"), "k", df=key)
            assert home.rows("SELECT k FROM copy$") == home.rows(f"SELECT CAST({history.key} AS BIGINT) FROM t$"), case
            for name, query in queries.items():
                if "a" in history.model.columns and "k" in history.model.columns:
                    home.sql(f"REFRESH DYNAMIC TABLE {name}$")
                    assert home.rows(f"SELECT * FROM {name}$") == home.rows(query), (name, *case)
            before = history.model.copy()
