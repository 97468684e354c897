"""What identifies a row of a query's result, and which queries can be maintained from the changed rows alone."""

from __future__ import annotations

import pytest

from volstream.sql.incremental import group_key, is_row_by_row


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("SELECT city, count(*) AS n FROM t GROUP BY city", [0]),
        ("SELECT count(*) AS n, City FROM t GROUP BY city", [1]),
        ("SELECT t.city, max(v) AS m FROM t JOIN u ON t.id = u.id GROUP BY t.city HAVING max(v) > 1", [0]),
        ("SELECT upper(city) AS c, year, sum(v) AS s FROM t GROUP BY upper(city), year", [0, 1]),
        ("SELECT upper(city) AS c, sum(v) AS s FROM t GROUP BY c", [0]),
        ("SELECT sum(v) AS s, city FROM t GROUP BY 2", [1]),
        ("SELECT count(*) AS n, max(v) AS m FROM t", []),
    ],
)
def test_grouped_rows_are_identified_by_their_group(query: str, key: list[int]) -> None:
    assert group_key(query) == key


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, v FROM t",
        "SELECT count(*) AS n FROM t GROUP BY city",  # the group is not shown
        "SELECT city, explode(collect_list(v)) AS v FROM t GROUP BY city",
        "SELECT city, year, count(*) AS n FROM t GROUP BY ROLLUP (city, year)",
        "SELECT city, count(*) AS n FROM t GROUP BY city LIMIT 3",
        "SELECT city, count(*) AS n FROM t GROUP BY city UNION ALL SELECT 'all', count(*) FROM t",
        "SELECT id, sum(v) OVER (PARTITION BY city) AS s FROM t",
        "WITH x AS (SELECT 1 AS a) SELECT a, count(*) AS n FROM x GROUP BY a",
        "not a query",
    ],
)
def test_other_rows_are_identified_by_their_content(query: str) -> None:
    assert group_key(query) is None


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM t",
        "SELECT id, upper(name) AS n FROM s.t AS a WHERE a.v > 3 AND name LIKE 'x%'",
        "SELECT CASE WHEN v > 1 THEN 'big' ELSE 'small' END AS size FROM t",
    ],
)
def test_projections_and_filters_are_row_by_row(query: str) -> None:
    assert is_row_by_row(query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT DISTINCT id FROM t",
        "SELECT id FROM t, u",
        "SELECT t.id FROM t JOIN u ON t.id = u.id",
        "SELECT id FROM t WHERE id IN (SELECT id FROM u)",
        "SELECT id FROM t WHERE v = (SELECT max(v) FROM t)",
        "SELECT id, row_number() OVER (ORDER BY v) AS n FROM t",
        "SELECT id FROM t ORDER BY v LIMIT 3",
        "SELECT id, rand() AS r FROM t",
        "SELECT id, now() AS seen FROM t",
        "SELECT id, current_date() AS seen FROM t",
        "SELECT id, monotonically_increasing_id() AS n FROM t",
        "SELECT id, my_function(v) AS v FROM t",
        "SELECT count(*) AS n FROM t",
        "SELECT city FROM t GROUP BY city",
        "SELECT id FROM t UNION ALL SELECT id FROM u",
        "WITH x AS (SELECT * FROM t) SELECT id FROM x",
        "SELECT id, e FROM t LATERAL VIEW explode(list) AS e",
        "SELECT id FROM t TABLESAMPLE (10 PERCENT)",
        "SELECT id FROM (SELECT id FROM t)",
        "SELECT 1 AS one",
    ],
)
def test_all_other_queries_run_in_full(query: str) -> None:
    assert not is_row_by_row(query)
