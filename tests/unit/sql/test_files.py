"""``VOLUME v USING csv OPTIONS (...) FILES (...)`` in statements."""

from __future__ import annotations

import pytest

from volstream.base.model.names import Name
from volstream.errors import SqlError
from volstream.sql import grammar, statement
from volstream.sql.adapt import in_schema
from volstream.sql.names import FilesClause
from volstream.sql.statement import SparkStatement

#: Names that a volume may have behind FROM VOLUME.
NAMES = ("v", "z2", "orders", "public.orders", "`orders`", "`public`.`my-orders`")

WHOLE = "VOLUME a.v USING csv OPTIONS ('delimiter' = ';', skip_rows 2, header=false) FILES ('x.csv', 'y z.csv')"


def clauses(statement: str) -> list[tuple[Name, FilesClause]]:
    return [(one.name, one.files) for one in SparkStatement(statement).references if one.files is not None]


@pytest.mark.parametrize(
    "statement",
    [
        f"SELECT * FROM {WHOLE}",
        f"select x.a from {WHOLE} x join t using (a)",
        f"SELECT * FROM t, {WHOLE} AS x WHERE EXISTS (SELECT 1)",
        f"INSERT INTO t SELECT * FROM {WHOLE}",
        f"CREATE TABLE t2 USING delta AS SELECT * FROM {WHOLE}",
        f"WITH w AS (SELECT * FROM {WHOLE} WHERE a = ')') SELECT * FROM w",
    ],
)
def test_files_of_a_volume_are_a_relation_wherever_one_may_be(statement: str) -> None:
    [(name, clause)] = clauses(statement)
    assert (str(name), clause.format, clause.files) == ("a.v", "csv", ["x.csv", "y z.csv"])
    assert clause.options == {"delimiter": ";", "skip_rows": "2", "header": "false"}
    [reference] = [one for one in SparkStatement(statement).references if one.files is not None]
    assert statement[reference.start : reference.end] == WHOLE
    assert all(str(one.name) in ("t", "t2", "a.v") for one in SparkStatement(statement).references)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM volume v",
        "SELECT * FROM volume v JOIN t USING (a)",
        "SELECT volume FROM t",
        "SELECT * FROM t JOIN volume USING (a)",
    ],
)
def test_a_table_called_volume_stays_one(statement: str) -> None:
    assert clauses(statement) == []


def test_the_format_the_options_and_the_files_may_be_left_out() -> None:
    assert [clause.format for _, clause in clauses("SELECT * FROM VOLUME v FILES ('a')")] == [None]
    assert [clause.files for _, clause in clauses("SELECT * FROM VOLUME v USING json")] == [None]


@pytest.mark.parametrize(
    "clause", ["OPTIONS (delimiter)", "OPTIONS (a 'b' c 'd')", "OPTIONS (", "FILES (a)", "FILES ('a' 'b')", "FILES ("]
)
def test_a_clause_that_is_wrong_is_an_error_with_an_example(clause: str) -> None:
    with pytest.raises(SqlError, match="Write for example: FROM VOLUME v USING csv"):
        assert SparkStatement(f"SELECT * FROM VOLUME v USING csv {clause}").references


def test_the_schema_of_a_session_is_that_of_the_volume_too() -> None:
    assert (
        in_schema("SELECT * FROM VOLUME v USING csv FILES ('a') JOIN t", "s")
        == "SELECT * FROM VOLUME s.v USING csv FILES ('a') JOIN s.t"
    )


def test_pages_for_queries_do_not_read_files() -> None:
    with pytest.raises(SqlError, match=r"Files of the volume a\.v cannot be read here"):
        statement.one_query(f"SELECT * FROM {WHOLE}")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before", ["SELECT * FROM", "SELECT * FROM t JOIN", "SELECT * FROM t,"])
def test_a_volume_may_have_any_name(before: str, name: str) -> None:
    grammar.check(f"{before} VOLUME {name} USING csv FILES ('a.csv')")
    with pytest.raises(SqlError, match="Add USING or FILES"):
        grammar.check(f"{before} VOLUME {name} WHERE a > 1")
