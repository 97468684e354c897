"""What identifies a row of a query's result, and which queries can be maintained from the changed rows alone."""

from __future__ import annotations

import pytest

from volstream.sql.incremental import group_key, is_row_by_row

COLUMNS = {
    "id": "bigint",
    "v": "int",
    "name": "string",
    "city": "string",
    "year": "int",
    "list": "array<int>",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "day": "date",
}


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("SELECT city, count(*) AS n FROM t GROUP BY city", [0]),
        ("SELECT count(1) AS n, City AS place FROM t GROUP BY city", [1]),
        ("SELECT t.city, max(v) AS m, min(t.v) AS l FROM t WHERE v > 1 GROUP BY t.city", [0]),
        ("SELECT year, sum(v) AS s, avg(v) AS a, city FROM x.t AS t GROUP BY `city`, year", [0, 3]),
        ("SELECT id AS v, count(*) AS id FROM t GROUP BY id", [0]),
        ("SELECT count(*) AS n, max(v) AS m FROM t", []),
    ],
)
def test_grouped_rows_are_identified_by_their_group(query: str, key: list[int]) -> None:
    assert group_key(query.replace("x.t", "t"), COLUMNS) == key


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, v FROM t",
        "SELECT count(*) AS n FROM t GROUP BY city",  # the group is not shown
        "SELECT city, count(*) AS n FROM t GROUP BY city, year",
        "SELECT abs(v) AS v, count(*) AS n FROM t GROUP BY v",  # by the column, not by what is shown under its name
        "SELECT date(at) AS at, count(*) AS n FROM t GROUP BY at",
        "SELECT name = 'x' AS p, name = 'X' AS q, count(*) AS n FROM t GROUP BY name = 'x', name = 'X'",
        "SELECT upper(city) AS c, sum(v) AS s FROM t GROUP BY c",
        "SELECT sum(v) AS s, city FROM t GROUP BY 2",
        "SELECT (SELECT count(*) FROM u WHERE u.v = t.v) AS n FROM t",
        "SELECT (SELECT sum(x.v) FROM t x WHERE x.id <= t.id) AS running FROM t",
        "SELECT inline_outer(collect_list(struct(id, v))) FROM t",
        "SELECT explode(collect_list(v)) AS v FROM t",
        "SELECT city, explode(collect_list(v)) AS v FROM t GROUP BY city",
        "SELECT t.city, max(v) AS m FROM t JOIN u ON t.id = u.id GROUP BY t.city",
        "SELECT city, count(*) AS n FROM t, u GROUP BY city",
        "SELECT city, count(*) AS n FROM (SELECT * FROM t) GROUP BY city",
        "SELECT city, year, count(*) AS n FROM t GROUP BY ROLLUP (city, year)",
        "SELECT city, count(*) AS n FROM t GROUP BY city LIMIT 3",
        "SELECT city, count(*) AS n FROM t GROUP BY city UNION ALL SELECT 'all', count(*) FROM t",
        "SELECT id, sum(v) OVER (PARTITION BY city) AS s FROM t",
        "SELECT sum(v) OVER () AS s FROM t",
        "SELECT count(*) AS n, rand() AS r FROM t",
        "SELECT city, count(*) AS n FROM t WHERE id IN (SELECT id FROM u) GROUP BY city",
        "WITH x AS (SELECT 1 AS a) SELECT a, count(*) AS n FROM x GROUP BY a",
        "SELECT count(*) AS n",
        "not a query",
    ],
)
def test_other_rows_are_identified_by_their_content(query: str) -> None:
    assert group_key(query, COLUMNS) is None


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM t",
        "SELECT id, upper(name) AS n FROM t AS a WHERE a.v > 3 AND name LIKE 'x%'",
        "SELECT CASE WHEN v > 1 THEN 'big' ELSE 'small' END AS size FROM t",
        "SELECT day FROM t WHERE day > '2024-01-01' OR name = 'know'",
        "SELECT at, local AS l, cast(v AS STRING) AS v, list FROM t WHERE v IN (1, 2) AND name IS NOT NULL",
        "SELECT coalesce(name, '') || 'x' AS name, round(v / 3, 2) AS r, -v % 2 AS one FROM t WHERE NOT (v <=> 1)",
    ],
)
def test_projections_and_filters_are_row_by_row(query: str) -> None:
    assert is_row_by_row(query, COLUMNS)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT DISTINCT id FROM t",
        "SELECT id FROM t, u",
        "SELECT t.id FROM t JOIN u ON t.id = u.id",
        "SELECT id FROM t WHERE id IN (SELECT id FROM u)",
        "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u)",
        "SELECT id FROM t WHERE v = (SELECT max(v) FROM t)",
        "SELECT id, row_number() OVER (ORDER BY v) AS n FROM t",
        "SELECT id FROM t ORDER BY v LIMIT 3",
        "SELECT id, my_function(v) AS v FROM t",
        "SELECT id, public.upper(name) AS v FROM t",
        "SELECT count(*) AS n FROM t",
        "SELECT city FROM t GROUP BY city",
        "SELECT id FROM t UNION ALL SELECT id FROM u",
        "WITH x AS (SELECT * FROM t) SELECT id FROM x",
        "SELECT id, e FROM t LATERAL VIEW explode(list) AS e",
        "SELECT explode(list) AS e FROM t",
        "SELECT id FROM t TABLESAMPLE (10 PERCENT)",
        "SELECT id FROM (SELECT id FROM t)",
        "SELECT x FROM t AS a(x)",
        "SELECT 1 AS one",
    ],
)
def test_all_other_queries_run_in_full(query: str) -> None:
    assert not is_row_by_row(query, COLUMNS)


@pytest.mark.parametrize(
    "value",
    [
        "rand()",
        "now()",
        "current_date()",
        "current_date",
        "localtimestamp()",
        "localtimestamp",
        "current_timezone()",
        "session_user()",
        "session_user",
        "current_database()",
        "monotonically_increasing_id()",
        "shuffle(list)",
        "uniform(1, 1000)",
        "randstr(3)",
        "sysdate()",
        "systimestamp()",
        "uuid()",
        "_metadata.file_path",
        "cast(at AS STRING)",  # in the session's time zone, as are the next four
        "at || ''",
        "at < '2024-01-01'",
        "date(at)",
        "cast(name AS TIMESTAMP)",
        "DATE 'today'",
        "TIMESTAMP 'now'",
        "day > ' Today'",
        "day > 'to' || 'day'",
        "day > concat('to', 'day')",
    ],
)
def test_what_varies_is_never_kept_row_by_row(value: str) -> None:
    assert not is_row_by_row(f"SELECT id, {value} AS v FROM t", COLUMNS)
    assert not is_row_by_row(f"SELECT id FROM t WHERE {value} <=> name", COLUMNS)
