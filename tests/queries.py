"""Random queries for dynamic tables: plain ones, and those that look plain but are not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date

#: The tables that they read. Values repeat, in other cases, too, and any may be NULL; sums of the fractions are exact.
TABLES = {
    "t": "id INT, k INT, v INT, x DOUBLE, s STRING, day DATE, at TIMESTAMP, ch CHAR(3), vc VARCHAR(3)",
    "u": "k2 INT, w INT, s2 STRING",
}

#: Names that results may have: of columns, of SQL, and of what a refresh uses itself.
_NAMES = (
    *(
        "id",
        "k",
        "v",
        "x",
        "s",
        "day",
        "at",
        "ch",
        "vc",
        "one",
        "net",
        "act",
        "present",
        "c0",
        "c1",
        "q0",
        "t",
        "a",
        "copy",
        "copies",
    ),
    *("`order`", "`from`", "`group`", "`date`", "`user`", "total", "K2", "value"),
)

_NUMBERS = ("k", "v", "x", "t.k", "`v`", "ID")
_VARYING = (
    *("rand()", "uniform(0, 9)", "localtimestamp()", "now()", "current_date", "uuid()", "current_timezone()"),
    *("monotonically_increasing_id()", "session_user()", "current_database()", "shuffle(array(1, 2, 3))", "user"),
)
_ZONED = ("cast(at AS STRING)", "date(at)", "hour(at)", "at > '2026-01-01 12:00:00'", "day > 'today'", "at < current_date")


@dataclass(frozen=True)
class Query:
    """A query on tables called ``{t}`` and ``{u}``, whose columns are qualified by ``t`` and ``u``.

    Attributes:
        outputs: names of the result's columns; None: of a star, with those of its tables.
        varying: outputs whose values differ from one run to the next.
    """

    text: str
    outputs: Sequence[str] | None
    varying: frozenset[str] = frozenset()

    def on(self, t: str, u: str) -> str:
        """Returns the statement with relations in place of the tables."""
        return self.text.replace("{t}", t).replace("{u}", u).replace("{y}", f"{t.removesuffix(' AS t')} AS y")


class Queries:
    """Makes queries from a seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def any(self) -> Query:
        """Returns a query of any kind."""
        kinds = (*[self.projection] * 2, *[self.groups] * 3, self.total, self.star, self.join, self.nested, self.combined)
        make: Callable[[], Query] = self.dice.choice(kinds)
        return make()

    def near(self) -> Query:
        """Returns a query of a kind that may be kept from changed rows, or by its groups."""
        make: Callable[[], Query] = self.dice.choice((*[self.projection] * 2, *[self.groups] * 2, self.total))
        return make()

    def values(self, table: str, number: int) -> str:
        """Returns the literals of a row."""
        small, dice = str(self.dice.randint(-2, 3)), self.dice
        if table == "u":
            row = [small, str(dice.randint(0, 5)), dice.choice(("'x'", "'X'", "'y'"))]
        else:
            row = [
                str(number),
                small,
                str(dice.randint(-3, 3)),
                dice.choice(("0.5D", "-1.25D", "2.0D", "-0.0D")),
                dice.choice(("'x'", "'X'", "'y'", "''", "'today'")),
                dice.choice(("DATE '2026-01-01'", "DATE '2030-05-05'", f"DATE '{date.today()}'")),
                dice.choice(("TIMESTAMP '2026-01-01 12:00:00'", "TIMESTAMP '2025-07-01 23:30:00Z'")),
                *(dice.choice(("'x'", "'x '", "'y'", "''")) for _ in ("ch", "vc")),
            ]
        return f"({', '.join('NULL' if dice.random() < 0.15 else value for value in row)})"

    def projection(self) -> Query:
        """Rows of one table."""
        outputs = [(self._value(), name) for name in self._named(self.dice.randint(1, 4))]
        return self._select(outputs, f"FROM {{t}}{self._where()}")

    def star(self) -> Query:
        """All columns of a table, and of those that it gets."""
        more = self.dice.choice(("", ", v + 1 AS more", ", k AS one", ", (SELECT count(*) FROM {u}) AS net"))
        joined = self.dice.choice(("", "", " LEFT JOIN {u} ON t.k = u.k2", " CROSS JOIN {u}"))
        return Query(f"SELECT *{more} FROM {{t}}{joined}{self._where()}", None)

    def groups(self) -> Query:
        """Groups by columns, or by what looks like columns."""
        dice = self.dice
        keys = dice.sample(
            ("k", "v", "s", "t.k", "abs(k)", "s = 'x'", "s = 'X'", "day", "x", "id % 2", "ch", "vc", "ch = 'x'"),
            dice.randint(1, 2),
        )
        named = self._named(len(keys) + 2)
        pairs = [
            (dice.choice((key, key, f"abs({key})" if key in "kvx" else key)), name)
            for key, name in zip(keys, named, strict=False)
        ]
        if dice.random() < 0.2:
            pairs = [(keys[-1 - at], name) for at, (_, name) in enumerate(pairs)]
        if dice.random() < 0.15:
            pairs.pop()
        shown = [*pairs, *((self._aggregate(), name) for name in named[len(keys) :])]
        dice.shuffle(shown)
        by = ", ".join(keys)
        if dice.random() < 0.15:
            by = dice.choice((f"ROLLUP ({by})", f"CUBE ({by})", f"{by} WITH ROLLUP", "ALL", "1"))
        having = f" HAVING {self._aggregate()} IS NOT NULL" if dice.random() < 0.15 else ""
        source = "{t} JOIN {u} ON t.k = u.k2" if dice.random() < 0.15 else "{t}"
        return self._select(shown, f"FROM {source}{self._where()} GROUP BY {by}{having}")

    def total(self) -> Query:
        """One row of aggregates, or what looks like it."""
        deceptive = (
            "(SELECT count(*) FROM {u} WHERE u.k2 = t.k)",
            "(SELECT sum(y.v) FROM {y} WHERE y.id <= t.id)",
            "explode(collect_list(v))",
            "sum(v) OVER (PARTITION BY k)",
        )
        values = [self._aggregate() for _ in range(self.dice.randint(1, 3))]
        if self.dice.random() < 0.3:
            values = [self.dice.choice(deceptive)]
        return self._select(list(zip(values, self._named(len(values)), strict=True)), f"FROM {{t}}{self._where()}")

    def join(self) -> Query:
        """Rows of both tables."""
        how = self.dice.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"))
        on = self.dice.choice(("t.k = u.k2", "t.k <=> u.k2", "t.s = u.s2 AND t.v < u.w", "t.ch = u.s2", "t.vc = u.s2"))
        values = ["t.id", "t.s", "t.ch"] if "SEMI" in how or "ANTI" in how else ["t.id", "u.w", "coalesce(t.s, u.s2)", "t.x"]
        return self._select(list(zip(values, self._named(len(values)), strict=True)), f"FROM {{t}} {how} {{u}} ON {on}")

    def nested(self) -> Query:
        """Queries within a query."""
        inner = self.projection()
        assert inner.outputs is not None, "a projection names them"
        forms = (
            ("SELECT id, v AS one FROM {t} WHERE k IN (SELECT k2 FROM {u})", ("id", "one")),
            ("SELECT id FROM {t} WHERE NOT EXISTS (SELECT 1 FROM {u} WHERE u.k2 = t.k)", ("id",)),
            ("SELECT id, (SELECT max(w) FROM {u} WHERE u.k2 = t.k) AS net FROM {t}", ("id", "net")),
            ("SELECT id FROM {t} WHERE v = (SELECT max(w) - 2 FROM {u})", ("id",)),
            ("WITH t AS (SELECT k, v FROM {t}) SELECT k, count(*) AS c0 FROM t GROUP BY k", ("k", "c0")),
            ("SELECT k, rank() OVER (PARTITION BY k ORDER BY v) AS r FROM {t}", ("k", "r")),
            ("SELECT id, e FROM {t} LATERAL VIEW explode(array(v, k)) l AS e", ("id", "e")),
            ("SELECT id, explode(array(v, k)) AS copy FROM {t}", ("id", "copy")),
            ("SELECT inline(collect_list(struct(k, v))) FROM {t}", ("k", "v")),
            ("SELECT k, inline_outer(collect_list(struct(v AS a, x AS b))) FROM {t} GROUP BY k", ("k", "a", "b")),
        )
        if self.dice.random() < 0.3:
            return Query(f"SELECT * FROM ({inner.text}) AS `from`", inner.outputs, inner.varying)
        return Query(*self.dice.choice(forms))

    def combined(self) -> Query:
        """Sets of rows."""
        forms = (
            ("SELECT DISTINCT k, s FROM {t}", ("k", "s")),
            ("SELECT DISTINCT ch, vc FROM {t}", ("ch", "vc")),
            ("SELECT ch FROM {t} UNION SELECT s2 FROM {u}", ("ch",)),
            ("SELECT k, v FROM {t} UNION ALL SELECT k2, w FROM {u}", ("k", "v")),
            ("SELECT k FROM {t} UNION SELECT k2 FROM {u}", ("k",)),
            ("SELECT k FROM {t} EXCEPT ALL SELECT k2 FROM {u}", ("k",)),
            ("SELECT s, k FROM {t} INTERSECT SELECT s2, k2 FROM {u}", ("s", "k")),
            ("SELECT k, v FROM {t} ORDER BY k, v LIMIT 3", ("k", "v")),
            ("SELECT count(*) AS n, k FROM {t} GROUP BY k UNION ALL SELECT count(*), 0 FROM {u}", ("n", "k")),
            ("FROM {t} SELECT k, trim(BOTH 'x' FROM s) AS s WHERE k IS DISTINCT FROM v", ("k", "s")),
        )
        return Query(*self.dice.choice(forms))

    def _select(self, outputs: Sequence[tuple[str, str]], rest: str) -> Query:
        shown = ", ".join(f"{value} AS {name}" for value, name in outputs)
        varying = frozenset(name for value, name in outputs if any(one in value for one in _VARYING))
        return Query(f"SELECT {shown} {rest}", [name for _, name in outputs], varying)

    def _named(self, count: int) -> Sequence[str]:
        return self.dice.sample(_NAMES, count)

    def _value(self, depth: int = 0) -> str:
        dice = self.dice
        if depth == 0 and dice.random() < 0.12:
            return dice.choice((*_VARYING, *_ZONED))
        if depth > 1 or dice.random() < 0.4:
            return dice.choice(("id", "k", "v", "x", "s", "t.s", "day", "at", "ch", "vc", "1", "CAST(NULL AS INT)", "'X'"))
        number = dice.choice(_NUMBERS)
        return dice.choice(
            (
                f"{number} + 1",
                f"-{number}",
                f"abs({number})",
                f"round({number} / 2, 1)",
                f"coalesce({number}, 0)",
                f"CASE WHEN {self._condition()} THEN {number} END",
                f"if({self._condition()}, 'a', s)",
                "upper(s)",
                "s || 'z'",
                "ch || vc",
                "upper(ch)",
                "concat(s, cast(k AS STRING))",
                "length(s)",
                "try_cast(s AS INT)",
                "struct(k, v)",
                "array(v, k)",
            )
        )

    def _condition(self) -> str:
        return self.dice.choice(
            (
                *("k = 1", "k <=> NULL", "v > 0", "x IN (0.5, 0)", "s = 'x'", "s = 'X'", "s LIKE 'x%'", "NOT (v = 2)"),
                *("id % 2 = 0", "s IS NOT NULL", "v BETWEEN k AND 2", "day > '2026-02-01'", "k IS DISTINCT FROM v"),
                *("ch = 'x'", "ch = 'x  '", "ch IN ('x', 'y')", "vc = 'x'", "ch = vc", "ch = s"),
                *("rand() >= 0", "at <= now()", "upper(s) = 'X' OR k < 0", "t.v = t.k"),
            )
        )

    def _where(self) -> str:
        return f" WHERE {self._condition()}" if self.dice.random() < 0.4 else ""

    def _aggregate(self) -> str:
        dice, value = self.dice, self.dice.choice(("v", "k", "x", "t.v"))
        return dice.choice(
            (
                *(
                    "count(*)",
                    f"count({value})",
                    f"sum({value})",
                    f"min({value})",
                    f"max({value})",
                    f"avg({value})",
                    "max(s)",
                    "max(ch)",
                    "min(vc)",
                ),
                *(f"count(DISTINCT {value})", f"sum({value} + 1)", f"sum({value}) FILTER (WHERE k > 0)", "min(day)", "max(at)"),
            )
        )
