from __future__ import annotations

from functools import partial

import pytest

from volstream.base.model.names import Name
from volstream.errors import InvalidValueError, SqlError
from volstream.sql.names import Bound, changes_of, time_of
from volstream.sql.statement import SparkStatement
from volstream.sql.tokens import Token, split
from volstream.tables.delta.places import named_by


def after(statement: str) -> list[Token]:
    """The tokens after the first relation of a statement."""
    parsed = SparkStatement(statement)
    return parsed.tokens_after(parsed.references[0].end)


def found(statement: str) -> list[str]:
    return [str(reference.name) for reference in SparkStatement(statement).references]


@pytest.mark.parametrize(
    ("statement", "relations"),
    [
        ("SELECT * FROM s", ["s"]),
        ("SELECT s FROM t WHERE x = 's' -- FROM s", ["t"]),
        ("SELECT a, s FROM t", ["t"]),
        ("SELECT * FROM t, s", ["t", "s"]),
        ("SELECT a FROM t WHERE f(a, s) > 1", ["t"]),
        ("SELECT * FROM `S` JOIN other.s AS x ON x.a = s.a", ["s", "other.s"]),
        ("WITH s AS (SELECT 1) SELECT * FROM s", []),
        ("WITH c AS (SELECT * FROM s), d AS (SELECT 1) SELECT * FROM c JOIN d", ["s"]),
        ("WITH s AS (SELECT 1) SELECT * FROM s JOIN public.s", ["s"]),
        ("INSERT INTO t (a, s) SELECT a, s FROM s WHERE b IN (SELECT b FROM u)", ["t", "s", "u"]),
        ("INSERT OVERWRITE t SELECT * FROM s", ["t", "s"]),
        ("MERGE INTO t USING (SELECT * FROM s) x ON t.a = x.a WHEN MATCHED THEN DELETE", ["t", "s"]),
        ("SELECT * FROM range(3), s", ["s"]),
        ("OPTIMIZE t", ["t"]),
        ("VACUUM t RETAIN 0 HOURS", ["t"]),
        ("DESCRIBE HISTORY t", ["t"]),
        ("SELECT extract(year FROM s.time) FROM t", ["t"]),
        ("SELECT trim(BOTH 'x' FROM a), overlay(b PLACING c FROM d) FROM t", ["t"]),
        ("SELECT * FROM t WHERE a IS DISTINCT FROM s", ["t"]),
        ("SELECT a, s FROM t GROUP BY a, s ORDER BY a NULLS LAST, s", ["t"]),
        ("INSERT INTO t SELECT a FROM u GROUP BY a, s", ["t", "u"]),
        ("INSERT INTO t SELECT a FROM u DISTRIBUTE BY a, s SORT BY a, s", ["t", "u"]),
        ("SELECT sum(a) OVER (PARTITION BY b, s ORDER BY c, s) FROM t", ["t"]),
        ("SELECT /*+ BROADCAST(s) */ a FROM t s", ["t"]),
        ("WITH s AS (SELECT * FROM s) SELECT * FROM s", ["s"]),
        ("WITH RECURSIVE s AS (SELECT 1 AS a UNION ALL SELECT a FROM s) SELECT * FROM s", []),
        ("SELECT * FROM (WITH s AS (SELECT 1) SELECT * FROM s) JOIN s", ["s"]),
        ("WITH t AS (SELECT 1) INSERT INTO t SELECT * FROM t", ["t"]),
        ("FROM s INSERT INTO t SELECT a INSERT INTO u SELECT b", ["s", "t", "u"]),
        ("SELECT 'a' AS \U00020bb7 FROM `\U00020bb7` x, s", ["`\U00020bb7`", "s"]),
    ],
)
def test_the_relations_of_a_statement_are_found_by_position(statement: str, relations: list[str]) -> None:
    assert found(statement) == relations


@pytest.mark.parametrize("end", ["", " GROUP BY k", " AS x"])
@pytest.mark.parametrize("start", ["SELECT k FROM t", "TABLE u UNION SELECT k FROM t", "SELECT k FROM DIRECTORY(VOLUME t)"])
def test_no_alias_is_inserted_before_a_sample(start: str, end: str) -> None:
    (*_, sampled) = SparkStatement(f"{start} TABLESAMPLE (10 PERCENT){end}").references
    assert (str(sampled.name), sampled.takes_alias) == ("t", False)


@pytest.mark.parametrize(
    ("statement", "source"),
    [
        ("CREATE OR REPLACE TABLE a SHALLOW CLONE b.c VERSION AS OF 3", "b.c"),
        ("create table a shallow clone b", "b"),
        ("CREATE TABLE shallow (clone INT)", None),
        ("SELECT shallow clone FROM t", None),
    ],
)
def test_the_table_that_a_clone_is_of_is_found(statement: str, source: str | None) -> None:
    cloned = SparkStatement(statement).cloned
    assert (None if cloned is None else str(cloned.name)) == source


@pytest.mark.parametrize(
    ("statement", "relations"),
    [
        ("SELECT a, count(*) FROM (TABLE t) GROUP BY a, s", ["t"]),
        ("TABLE t UNION SELECT trim(a FROM s) FROM u WHERE a IS DISTINCT FROM s ORDER BY a, s", ["t", "u"]),
        ("TABLE t UNION SELECT a FROM u WHERE b IN (SELECT c FROM v) SORT BY a, s", ["t", "u", "v"]),
        ("EXPLAIN SELECT extract(YEAR FROM s) FROM t GROUP BY a, s", ["t"]),
        ("SELECT * FROM t CHANGES FROM TIMESTAMP '2026-01-01' GROUP BY a, s", ["t"]),
        ("SELECT * FROM spark_catalog.a.t JOIN a /* x */ . u", ["a.t", "a.u"]),
        ("SHOW COLUMNS IN t FROM a", ["a.t"]),
        ("SHOW TBLPROPERTIES t('x')", ["t"]),
        ("OPTIMIZE t ZORDER BY (a, s)", ["t"]),
    ],
)
def test_they_are_found_in_statements_that_only_spark_can_parse(statement: str, relations: list[str]) -> None:
    assert found(statement) == relations


def test_directories_and_changes_are_found_among_other_relations() -> None:
    statement = "SELECT * FROM DIRECTORY(VOLUME a.v) GROUP BY a, s UNION SELECT * FROM t CHANGES FROM VERSION 1 AS c, u"
    references = SparkStatement(statement).references
    assert [
        (str(reference.name), reference.directory, reference.qualified, reference.takes_alias) for reference in references
    ] == [("a.v", True, True, True), ("t", False, False, False), ("u", False, False, True)]
    assert [statement[reference.start : reference.end] for reference in references] == ["DIRECTORY(VOLUME a.v)", "t", "u"]


@pytest.mark.parametrize(
    "statement", ["SELECT update FROM t", "FROM t SELECT 'insert' AS a", "WITH c AS (SELECT 1) SELECT `merge` FROM t"]
)
def test_a_query_writes_nothing_whatever_words_it_has(statement: str) -> None:
    assert not SparkStatement(statement).writes
    assert not SparkStatement(statement).targets


@pytest.mark.parametrize(
    ("statement", "tables"),
    [
        ("INSERT INTO t SELECT * FROM s", "t"),
        ("INSERT INTO TABLE a.t (x) SELECT 1", "a.t"),
        ("INSERT WITH SCHEMA EVOLUTION INTO t SELECT * FROM s", "t"),
        ("MERGE WITH SCHEMA EVOLUTION INTO t USING s ON true WHEN NOT MATCHED THEN INSERT *", "t"),
        ("INSERT INTO t REPLACE ON t.x = s.x (SELECT 1 AS x) AS s", "t"),
        ("FROM s INSERT INTO t SELECT x INSERT OVERWRITE TABLE a.u SELECT insert", "t a.u"),
        ("INSERT OVERWRITE TABLE t SELECT 1", "t"),
        ("WITH c AS (SELECT 1) INSERT INTO t SELECT * FROM c", "t"),
        ("MERGE INTO t USING s ON true WHEN MATCHED THEN UPDATE SET x = 1", "t"),
        ("UPDATE t SET x = 1", "t"),
        ("DELETE FROM t", "t"),
        ("WITH c AS (SELECT 1) DELETE FROM t", "t"),
        ("WITH c AS (SELECT 1) UPDATE t SET x = 1", "t"),
        ("DELETE FROM spark_catalog.a.u", "a.u"),
        ("INSERT INTO `spark_catalog`.a.u SELECT 1", "a.u"),
        ("UPDATE a.b.c.d SET x = 1", ""),
        ("SELECT 1", ""),
        ("WITH p AS (SELECT ')' AS x) INSERT INTO t SELECT * FROM s", "t"),
        ("FROM s INSERT INTO t SELECT '(' INSERT INTO a.u SELECT x", "t a.u"),
        ("INSERT INTO a . u SELECT 1", "a.u"),
        ("DELETE FROM a/* b */.`u`", "a.u"),
        ("WITH update AS (SELECT 1) MERGE INTO t USING update ON true WHEN MATCHED THEN DELETE", "t"),
        ("UPDATE evolution SET x = 1", "evolution"),
        ("INSERT INTO schema VALUES (1)", "schema"),
    ],
)
def test_the_tables_that_a_statement_writes_are_found(statement: str, tables: str) -> None:
    assert " ".join(str(target.name) for target in SparkStatement(statement).targets) == tables


@pytest.mark.parametrize("statement", ["INSERT INTO IDENTIFIER('t') SELECT 1", "TRUNCATE TABLE IDENTIFIER ( :t )"])
def test_statements_that_change_something_name_it(statement: str) -> None:
    with pytest.raises(SqlError, match="only in queries"):
        SparkStatement(statement).check_no_identifier()
    SparkStatement("SELECT * FROM IDENTIFIER('t')").check_no_identifier()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("deduplicationMod = 'netChanges'", "no option deduplicationMod. Did you mean 'deduplicationMode'"),
        ("computeUpdates = 'yes'", "computeUpdates cannot be 'yes'"),
        ("identity 'k'", "WITH must be followed by options"),
        ("identity = 'k' computeUpdates = true", "WITH must be followed by options"),
        ("identity =", "WITH must be followed by options"),
    ],
)
def test_options_of_changes_are_checked(options: str, message: str) -> None:
    statement = f"SELECT * FROM t CHANGES FROM VERSION 0 WITH ({options})"
    with pytest.raises(SqlError, match=message):
        changes_of(SparkStatement(statement).tokens_after(SparkStatement("SELECT * FROM t").references[0].end))


def test_the_schema_of_a_listing_is_a_name() -> None:
    assert [SparkStatement(f"SHOW TABLES {rest}").listed_schema for rest in ("", "IN a", "FROM `b c` LIKE 'x'")] == [
        "public",
        "a",
        "b c",
    ]
    for schema in ("`../../etc`", "`/etc`", "`.`"):
        with pytest.raises(SqlError, match="not a schema"):
            assert SparkStatement(f"SHOW TABLES IN {schema}").listed_schema


def test_statements_are_split_at_semicolons_outside_strings() -> None:
    script = "SELECT ';' AS a; -- b;\nVACUUM t RETAIN 1 HOURS;\n\nSHOW TABLES;"
    assert split(script) == ["SELECT ';' AS a", "-- b;\nVACUUM t RETAIN 1 HOURS", "SHOW TABLES"]


def test_calls_are_found_by_tokens() -> None:
    statement = "INSERT INTO f(a) SELECT f(1), public . `g`(x, h (2)), 'k(1)', t.m, n -- o(\n FROM f WHERE lower(a) = 'f('"
    found = [(str(call.name), call.qualified) for call in SparkStatement(statement).calls]
    assert found == [("f", False), ("g", True), ("h", False), ("lower", False)]
    [call] = SparkStatement("SELECT 1 + a.b(1)").calls
    assert (call.start, call.end) == (11, 14)


@pytest.mark.parametrize(
    ("clause", "bounds", "options", "rest"),
    [
        ("CHANGES FROM VERSION 2 TO VERSION 4 x", (Bound(2, 0), Bound(4, 0)), {}, " x"),
        ("CHANGES FROM VERSION 2 EXCLUSIVE TO VERSION 4 EXCLUSIVE WHERE a", (Bound(2, 1), Bound(4, -1)), {}, " WHERE a"),
        ("CHANGES FROM VERSION 2 INCLUSIVE", (Bound(2, 0), None), {}, ""),
        (
            "CHANGES FROM TIMESTAMP '2026-01-01' EXCLUSIVE TO TIMESTAMP '2026-01-02T03:00:00+01:00' x",
            (Bound("2026-01-01", 1), Bound("2026-01-02T03:00:00+01:00", 0)),
            {},
            " x",
        ),
        ("CHANGES FROM VERSION 1 TO TIMESTAMP '2026-01-02'", (Bound(1, 0), Bound("2026-01-02", 0)), {}, ""),
        (
            "CHANGES FROM VERSION 0 WITH (deduplicationMode='none', computeUpdates='true') AS c",
            (Bound(0, 0), None),
            {"deduplicationmode": "none", "computeupdates": "true"},
            " AS c",
        ),
        ("CHANGES FROM TIMESTAMP TIMESTAMP_NTZ'2026-01-01'", (Bound("2026-01-01", 0), None), {}, ""),
        ("CHANGES FROM VERSION 1 TO TIMESTAMP TIMESTAMP '2026-01-01' u", (Bound(1, 0), Bound("2026-01-01", 0)), {}, " u"),
    ],
)
def test_the_versions_of_requested_changes_are_found(
    clause: str, bounds: tuple[Bound, Bound | None], options: dict[str, str], rest: str
) -> None:
    statement = f"SELECT * FROM t {clause}"
    changes = changes_of(after(statement))
    assert changes is not None
    assert ((changes.first, changes.last), dict(changes.options), statement[changes.end :]) == (bounds, options, rest)


def test_other_relations_request_no_changes() -> None:
    for statement in ("SELECT * FROM t", "SELECT * FROM t changes", "SELECT a changes FROM timestamp"):
        assert changes_of(after(statement)) is None


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT * FROM t CHANGES FROM VERSION 1 WITH (", "not closed"),
        ("SELECT * FROM t CHANGES FROM VERSION 1 TO VERSION 2 WITH (a = b", "not closed"),
        ("SELECT * FROM t CHANGES FROM VERSION", "followed by a number"),
        ("SELECT * FROM t CHANGES FROM VERSION x", "followed by a number"),
        ("SELECT * FROM t CHANGES FROM VERSION " + "9" * 5000, "followed by a number"),
        ("SELECT * FROM t CHANGES FROM TIMESTAMP now()", "a time in quotes"),
        ("SELECT * FROM t CHANGES FROM TIMESTAMP DATE now()", "a time in quotes"),
        ("SELECT * FROM t CHANGES FROM TIMESTAMP '2026-01-01' TO TIMESTAMP now()", "a time in quotes"),
    ],
)
def test_incomplete_requests_for_changes_are_rejected(statement: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        changes_of(after(statement))


@pytest.mark.parametrize(
    ("statement", "temporary"),
    [
        ("CREATE TEMPORARY VIEW v AS SELECT 1", True),
        ("CREATE OR REPLACE GLOBAL TEMP VIEW v AS SELECT 1", True),
        ("CREATE TEMPORARY FUNCTION f AS 'x'", True),
        ("CREATE TABLE temp AS SELECT * FROM s", False),
        ("CREATE OR REPLACE VIEW `temporary` AS SELECT 1", False),
        ("CREATE TABLE temp.t AS SELECT * FROM s", False),
    ],
)
def test_what_is_temporary_is_said_before_its_kind(statement: str, temporary: bool) -> None:
    assert SparkStatement(statement).is_temporary is temporary


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("DROP TABLE t PURGE", "t"),
        ("DROP TABLE IF EXISTS `a b`.`t`", "`a b`.`t`"),
        ("CREATE SCHEMA IF NOT EXISTS x COMMENT 'y'", "x"),
        ("CREATE SCHEMA x WITH DBPROPERTIES (a = 'b')", "x"),
        ("DROP VIEW spark_catalog.a.v", "a.v"),
        ("DROP SCHEMA x CASCADE", "x"),
    ],
)
def test_the_object_that_a_statement_creates_or_drops_is_found(statement: str, name: str) -> None:
    assert SparkStatement(statement).named == Name.parse(name)


def test_properties_are_read_however_they_are_written() -> None:
    said = "ALTER TABLE t SET TBLPROPERTIES (delta.enableRowTracking = false, 'x' 'y', 'b' = 'c', a.b true, 'd' = ')')"
    found = SparkStatement(said).properties
    assert [(one.name, one.value) for one in found] == [
        ("delta.enableRowTracking", "false"),
        ("x", "y"),
        ("b", "c"),
        ("a.b", "true"),
        ("d", ")"),
    ]
    assert [said[one.start : one.end] for one in found[:2]] == ["delta.enableRowTracking = false", "'x' 'y'"]
    unset = "ALTER TABLE t UNSET TBLPROPERTIES IF EXISTS ('delta.enableRowTracking', a.b)"
    assert [(one.name, one.value) for one in SparkStatement(unset).properties] == [
        ("delta.enableRowTracking", None),
        ("a.b", None),
    ]


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("CREATE TABLE t (tblproperties DECIMAL(10,2)) TBLPROPERTIES (a == true)", [("a", "true")]),
        ("CREATE TABLE tblproperties (a INT) TBLPROPERTIES ('b' = 1)", [("b", "1")]),
        ("CREATE TABLE t USING delta OPTIONS ('a' = 'b') TBLPROPERTIES ('c' 'd')", [("a", "b"), ("c", "d")]),
        ("CREATE TABLE t AS SELECT tblproperties, f(a = true) FROM v", []),
        ("CREATE TABLE t AS SELECT a FROM v TBLPROPERTIES (a = true)", []),
        ("CREATE TABLE t TBLPROPERTIES", []),
        ("CREATE TABLE t TBLPROPERTIES ('a' =", [("a", "")]),
        ("CREATE TABLE t TBLPROPERTIES ()", []),
    ],
)
def test_lists_of_properties_are_told_from_columns_and_queries(statement: str, found: list[tuple[str, str | None]]) -> None:
    assert [(one.name, one.value) for one in SparkStatement(statement).properties] == found


@pytest.mark.parametrize("statement", ["DROP TABLE s.", "DROP TABLE s..t", "DROP TABLE . t", "CREATE SCHEMA x."])
def test_a_name_with_a_missing_part_names_nothing(statement: str) -> None:
    with pytest.raises((SqlError, InvalidValueError)):
        assert SparkStatement(statement).named


def test_common_expressions_are_known_where_only_tokens_tell() -> None:
    for with_ in ("zz(id, name) AS (", "zz AS (", "zz (", "zz(id) MAX RECURSION LEVEL 3 AS ("):
        source = f"(WITH {with_}SELECT 1) SELECT * FROM zz)"
        statement = f"MERGE WITH SCHEMA EVOLUTION INTO a USING {source} x ON true WHEN MATCHED THEN DELETE"
        assert [str(found.name) for found in SparkStatement(statement).references] == ["a"]


def test_a_path_is_the_name_of_its_table_however_it_is_written() -> None:
    paths = (
        "/w/tables/x/t",
        "/w//tables/x/./t/",
        "FILE:///w/tables/y/../x/t",
        "file://localhost/w/tables/x/t",
        "file:/w/tables/x/t",
    )
    for path in paths:
        assert SparkStatement(f"DELETE FROM delta.`{path}`").by_names(partial(named_by, "/w")).text == "DELETE FROM `x`.`t`"


def test_a_delete_without_from_names_its_table() -> None:
    statement = "DELETE ROM s"
    assert [str(reference.name) for reference in SparkStatement(statement).references] == ["rom"]


@pytest.mark.parametrize(
    ("clause", "time"),
    [
        ("TIMESTAMP AS OF '2026-01-01'", "'2026-01-01'"),
        ("FOR SYSTEM_TIME AS OF TIMESTAMP '2026-01-01' AS x", "TIMESTAMP '2026-01-01'"),
        ("TIMESTAMP AS OF '2026-01-01' JOIN u", "'2026-01-01'"),
        ("TIMESTAMP AS OF '2026-01-01' `x y`", "'2026-01-01'"),
        ("TIMESTAMP AS OF '2026-01-01', u", "'2026-01-01'"),
        ("TIMESTAMP AS OF '2026-01-01' || ' 02:00'", None),
        ("TIMESTAMP AS OF '2026-01-01'::DATE", None),
        ("TIMESTAMP AS OF '2026-01-01' - INTERVAL 1 HOUR", None),
        ("TIMESTAMP AS OF date_sub(now(), 1)", None),
        ("VERSION AS OF 3", None),
        ("TIMESTAMP AS OF", None),
    ],
)
def test_a_time_of_a_relation_is_a_literal(clause: str, time: str | None) -> None:
    statement = f"SELECT * FROM t {clause}"
    found = time_of(statement, after(statement))
    assert (found and found.time) == time
    assert found is None or statement[found.start : found.end].endswith(found.time)


@pytest.mark.parametrize(
    ("statement", "written"),
    [
        ("WITH c AS (SELECT update FROM u) INSERT INTO t SELECT * FROM c", ["t"]),
        ("MERGE INTO t USING u ON t.a = u.a WHEN NOT MATCHED THEN INSERT VALUES (1)", ["t"]),
        ("FROM u INSERT INTO t SELECT a INSERT OVERWRITE TABLE s.v SELECT a", ["t", "s.v"]),
    ],
)
def test_the_words_of_dml_in_clauses_and_queries_write_nothing(statement: str, written: list[str]) -> None:
    assert [str(target.name) for target in SparkStatement(statement).targets] == written


@pytest.mark.parametrize(
    ("statement", "view"),
    [
        ("CREATE TEMPORARY VIEW v AS SELECT 1", "v"),
        ("CREATE OR REPLACE GLOBAL TEMP VIEW IF NOT EXISTS `a b` (x) AS SELECT 1", "a b"),
        ("CREATE VIEW v AS SELECT 1", None),
        ("CREATE TEMPORARY FUNCTION view AS 'x'", None),
        ("CREATE TEMPORARY VIEW", None),
        ("SELECT view FROM t", None),
    ],
)
def test_a_temporary_view_is_known_by_its_name(statement: str, view: str | None) -> None:
    found = SparkStatement(statement).temporary_view
    assert (None if found is None else found.name) == view


def test_functions_of_files_name_a_volume_and_a_path() -> None:
    [call] = SparkStatement("SELECT file_content(VOLUME a.v, path)").volume_calls
    assert (call.function, str(call.volume), call.qualified) == ("file_content", "a.v", True)
    for end in ("", "v", "v)", "3, path)"):
        with pytest.raises(SqlError, match="name of a volume, a comma and a path"):
            assert SparkStatement(f"SELECT file_content(VOLUME {end}").volume_calls


@pytest.mark.parametrize(
    ("statement", "merges"),
    [
        ("MERGE INTO t USING u ON true WHEN MATCHED THEN DELETE", True),
        ("MERGE WITH SCHEMA EVOLUTION INTO t USING u ON true WHEN MATCHED THEN DELETE", True),
        ("WITH w AS (SELECT 1 AS a) MERGE INTO t USING w ON true WHEN MATCHED THEN DELETE", True),
        ("INSERT INTO merge SELECT 1", False),
        ("WITH merge AS (SELECT 1) INSERT INTO t SELECT * FROM merge", False),
        ("SELECT merge FROM t", False),
        ("MERGE", False),
    ],
)
def test_a_merge_is_known_in_all_its_forms(statement: str, merges: bool) -> None:
    assert SparkStatement(statement).merges is merges
