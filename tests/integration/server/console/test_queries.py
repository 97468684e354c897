"""The console's SQL page: the relations of the home can be read in any way that SQL has, and nothing else can."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path

import pytest

from tests.integration.conftest import COUNT, Place
from tests.waiting import eventually
from volstream.changes.directory import table as directory
from volstream.errors import InvalidStateError, InvalidValueError, SqlError, VolstreamError
from volstream.server.console.queries import Queries
from volstream.spark.frames import computing, relation


class Page:
    """The SQL page of a home with a job's table, a stream and a keyed table whose rows are not committed yet."""

    def __init__(self, place: Place, queries: Queries) -> None:
        self.place = place
        self._queries = queries
        #: The engine of all tests knows one table by each name.
        self.schema = f"q{uuid.uuid4().hex[:8]}"

    def rows(self, query: str) -> list[list[object]]:
        return [[*row] for row in self._queries.run(query.replace("$", self.schema), 100).rows]


@pytest.fixture
def empty(place: Place) -> Iterator[Page]:
    """The page of a home without tables."""
    queries = Queries(place.session)
    yield Page(place, queries)
    queries.stop()


@pytest.fixture
def page(empty: Page) -> Page:
    place = empty.place
    place.put("a.txt", "one")
    place.put("b.txt", "three")
    place.refresh()
    file = place.folder.parent / "job.py"
    file.write_text(COUNT)
    place.session.sql(f"CREATE SCHEMA {empty.schema}").collect()
    place.session.jobs.create("j", f"{file}:f", f"{empty.schema}.t", returns="n INT", volume="v")
    place.run()
    place.session.streams.create("s", volume="v")
    place.put("c.txt", "new")
    place.refresh()
    return empty


@pytest.mark.long
def test_every_relation_of_the_home_is_read_in_every_way(page: Page) -> None:
    page.place.session.source.create_table(f"{page.schema}.e", "k").insert({"k": "x", "v": 1})
    page.place.session.sql(f"CREATE TABLE {page.schema}.c (n INT) TBLPROPERTIES ('change_tracking' = 'true')").collect()
    page.place.session.sql(f"INSERT INTO {page.schema}.c VALUES (1)").collect()
    for query, wanted in {
        "SELECT n FROM $.t ORDER BY n DESC": [[5], [3]],
        "FROM $.t |> WHERE n > 3 |> SELECT n": [[5]],
        "WITH a AS (SELECT n FROM $.t) SELECT sum(n) OVER () FROM a LIMIT 1": [[8]],
        "(SELECT max(n) FROM $.t) UNION ALL (VALUES (1)) ORDER BY 1 -- the end": [[1], [5]],
        "SELECT (SELECT count(*) FROM $.t), EXISTS (SELECT 1 FROM $.t WHERE n IN (SELECT n FROM $.t))": [[2, True]],
        "SELECT count(*) FROM $.c VERSION AS OF 0": [[0]],
        "SELECT relative_path FROM DIRECTORY(VOLUME v) ORDER BY 1": [["a.txt"], ["b.txt"], ["c.txt"]],
        "SELECT d.size FROM DIRECTORY(VOLUME v) d JOIN $.t t ON t._file_path = d.relative_path AND n = 5": [[5]],
        "SELECT count(*) FROM s": [[1]],
        "SELECT k FROM $.e LIMIT 5": [["x"]],
        "SELECT k FROM $.e AS x": [["x"]],
        "SELECT e.k FROM $.e JOIN $.t ON true LIMIT 1": [["x"]],
        "SELECT count(*) FROM volstream.failures": [[0]],
        "SELECT n, _change_type FROM $.c CHANGES FROM VERSION 1": [[1, "insert"]],
        "SELECT _change_type FROM DIRECTORY(VOLUME v) CHANGES FROM VERSION 2": [["insert"]],
        "SELECT 'VOLSTREAM READS\n`a`', update, t.`delete` FROM VALUES ('\nVOLSTREAM READS\n', 1) t(update, `delete`)": [
            ["VOLSTREAM READS\n`a`", "\nVOLSTREAM READS\n", 1]
        ],
        "WITH RECURSIVE r AS (SELECT 1 x UNION ALL SELECT x + 1 FROM r WHERE x < 2) SELECT x FROM r ORDER BY x": [[1], [2]],
        "WITH a AS (WITH a AS (SELECT n FROM $.t) SELECT * FROM a) SELECT max(n) FROM a": [[5]],
        "SHOW COLUMNS IN $.c": [["n"]],
        "SHOW COLUMNS FROM $.c": [["n"]],
        "DESCRIBE QUERY SELECT n FROM $.c": [["n", "int", None]],
        "SELECT x FROM VALUES (array(1, 2)) LATERAL VIEW explode(col1) AS x": [[1], [2]],
        "SELECT n FROM $.t TABLESAMPLE (100 PERCENT) GROUP BY CUBE(n) HAVING n = 3": [[3]],
        "SELECT * FROM range(2)": [[0], [1]],
        "SELECT 'a' AS a, 'b' AS a": [["a", "b"]],
    }.items():
        assert page.rows(query) == wanted, query


def test_positions_in_errors_are_those_of_the_query(empty: Page) -> None:
    for query, wanted in {
        "SELECT nope FROM range(1)": r"line 1 pos 7$",
        "SELECT\n nope FROM range(1)": r"line 2 pos 1$",
        "SELECT 1 FRM x y z": r"\(line 1, pos 13\)\n\n== SQL ==\nSELECT 1 FRM x y z\n-{13}\^\^\^$",
        "SELECT CAST('a' AS INT)": r"\(line 1, position 8\) ==\nSELECT CAST\('a' AS INT\)\n {7}\^+$",
        "SHOW TABLES nope nope": r"\(line 1, pos 12\)",
    }.items():
        with pytest.raises(SqlError, match=wanted):
            empty.rows(query)


def test_other_platforms_constructs_are_answered_here_too(empty: Page) -> None:
    with pytest.raises(SqlError, match=r"volstream has no read_files\."):
        empty.rows("SELECT * FROM read_files('/data')")


#: ``#`` is a file that the daemon could read, ``@`` the folder of a table of the home.
HOSTILE = [
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv', 'HOME')",
    "SELECT IDENTIFIER /* x */ ('reflect')('java.lang.System', 'getenv', 'HOME')",
    "SELECT `reflect`('java.lang.System', 'getenv', 'HOME')",
    # Spark takes the second line as comment, and a tokenizer might take the third as text.
    'SELECT 1 -- \\\n\'\n, reflect("java.lang.System", "getenv", "HOME") -- \'',
    "SELECT 1 --\r, reflect('java.lang.System', 'getenv', 'HOME')",
    "SELECT TRANSFORM(1) USING 'cat #' AS (x STRING)",
    "SELECT * FROM (SELECT 1 WHERE 1 IN (SELECT TRANSFORM(1) USING 'cat #' AS (x INT)))",
    "WITH a AS (FROM (SELECT 1 AS x) MAP x USING 'cat #' AS (y STRING)) SELECT * FROM a",
    "SELECT * FROM text.`#`",
    "SELECT (SELECT first(value) FROM text.`#`)",
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM csv.`#`)",
    "WITH a AS (SELECT * FROM text.`#`) SELECT count(*) FROM a",
    "SELECT 1, '\n+- View (`volstream_0`, [a])' FROM text.`#`",
    "SELECT count(*) FROM binaryFile.`#`",
    "SELECT 'a' UNION SELECT value FROM text.`#`",
    "SELECT * FROM VALUES (1), LATERAL (SELECT * FROM text.`#`)",
    "TABLE text.`#`",
    "SELECT * FROM IDENTIFIER('text.`#`')",
    "SELECT * FROM delta.`@`",
    "SELECT * FROM delta.`@` VERSION AS OF 0",
    "SELECT * FROM delta.`@` CHANGES FROM VERSION 0",
    "SELECT * FROM table_changes_by_path('@', 0)",
    "SELECT * FROM parquet.`@`",
    "SELECT 1) UNION ALL (SELECT value FROM text.`#`",
    "DESCRIBE HISTORY '@'",
    "DESCRIBE DETAIL '@'",
    "DESCRIBE DETAIL delta.`@`",
    "DESCRIBE parquet.`@`",
    "DESC QUERY SELECT * FROM parquet.`@`",
    "SHOW COLUMNS IN delta.`@`",
    "SHOW TBLPROPERTIES delta.`@`",
]


def test_no_file_is_read_and_no_program_runs(page: Page, tmp_path: Path) -> None:
    secret = tmp_path / "ingest.token"
    secret.write_text("s3cret\n")
    table = f"{page.place.session.home.warehouse}/tables/{page.schema}/t"
    answered = []
    for query in HOSTILE:
        with suppress(SqlError):
            answered.append((query, page.rows(query.replace("#", str(secret)).replace("@", table))))
    assert answered == []


def test_a_table_that_only_spark_knows_is_not_the_homes(page: Page, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("s3cret\n")
    with page.place.gateway.fresh() as spark:
        spark.sql(f"CREATE TABLE public.{page.schema} USING csv LOCATION '{tmp_path}/secret.csv'").collect()
        with pytest.raises(SqlError, match="is not a table, stream or directory of this home"):
            page.rows("SELECT * FROM $")
        spark.sql(f"DROP TABLE public.{page.schema}").collect()


CONDITIONS = [
    "size > 0 OR reflect('java.lang.System', 'getenv', 'HOME') = ''",
    "size > 0 OR IDENTIFIER('reflect')('java.lang.System', 'getenv', 'HOME') = ''",
    "size >= (SELECT count(*) FROM text.`/etc/passwd`)",
    "EXISTS (SELECT TRANSFORM(1) USING 'cat' AS (size INT))",
    'size > 0 -- \\\n\' \n OR IDENTIFIER("reflect")("java.lang.System", "getenv", "HOME") = "" -- \'\n',
]


def test_a_condition_computes_with_a_files_columns_only(page: Page) -> None:
    jobs = page.place.session.jobs
    function = f"{page.place.folder.parent / 'job.py'}:f"
    for where in CONDITIONS:
        with pytest.raises((InvalidValueError, SqlError)):
            jobs.replay("j", where)
        with pytest.raises((InvalidValueError, SqlError)):
            jobs.alter("j", where=where)
        with pytest.raises((InvalidValueError, SqlError)):
            jobs.compare("j", function, where=where)
    assert jobs.replay("j", "size > 3 AND relative_path RLIKE '^b[.]' -- the larger one\n").progress.processed == 1


def test_spark_has_the_last_word_on_a_condition(page: Page) -> None:
    empty = directory.SCHEMA.empty_table()
    with page.place.gateway.fresh() as spark:
        for where in CONDITIONS:
            with pytest.raises(
                Exception, match=r"not allowed here|cannot run here|of this home|UNRESOLVED_ROUTINE|PARSE_SYNTAX_ERROR"
            ):
                relation(spark, empty).where(computing(spark, where)).collect()
        fine = computing(spark, "size > 3 AND relative_path LIKE 'a\n+ %' -- the end")
        assert relation(spark, empty).where(fine).collect() == []


def test_no_session_of_the_engine_has_a_function_that_calls_java(place: Place) -> None:
    with place.gateway.fresh() as spark:
        spark.sql("SELECT 1").collect()
        with place.gateway.copied(spark) as copied, place.gateway.pooled() as pooled:
            for session in (spark, copied, pooled):
                for name in ("reflect", "try_reflect", "java_method", "system.builtin.reflect"):
                    with pytest.raises(Exception, match=r"UNRESOLVED_ROUTINE|REQUIRES_SINGLE_PART_NAMESPACE"):
                        session.sql(f"SELECT {name}('java.lang.System', 'getenv', 'HOME')").collect()
                assert session.sql("SHOW FUNCTIONS LIKE '*reflect*'").collect() == []


#: ``#`` is a file, or a URL.
OPENING = [
    "from_xml('<a><b>1</b></a>', 'b INT', map('rowValidationXSDPath', '#'))",
    "from_xml('<a><b>1</b></a>', 'b INT', map(concat('ROWvalidation', 'xsdPATH'), '#'))",
    "from_xml('<a><b>1</b></a>', 'b INT', str_to_map('rowValidationXSDPath=#', ',', '='))",
    "system.builtin.from_xml('<a><b>1</b></a>', 'b INT', map('rowValidationXSDPath' COLLATE UTF8_LCASE, '#'))",
    "(SELECT * FROM VALUES (from_xml('<a><b>1</b></a>', 'b INT', map('rowValidationXSDPath', '#'))))",
    "schema_of_xml('<a><b>1</b></a>', map('rowValidationXSDPath', '#'))",
    "from_json('{}', schema_of_xml('<a><b>1</b></a>', map('rowValidationXSDPath', '#')))",
    "from_avro(X'00', '\"int\"', map('avroSchemaUrl', '#'))",
    "schema_of_avro('\"int\"', map('avroSchemaUrl', '#'))",
    "from_protobuf(X'00', 'M', '#')",
    "from_protobuf(X'00', 'M', concat('#', ''), map('mode', 'FAILFAST'))",
    "to_protobuf(named_struct('a', 1), 'M', '#')",
    "xpath_string('<!DOCTYPE a SYSTEM \"#\"><a>&e;</a>', 'a')",
    "xpath_string(concat('<!DOCTYPE a SYSTEM \"#\"><a>', id, '&e;</a>'), 'a')",
]


def test_no_function_of_the_engine_opens_a_file_or_a_url(place: Place, tmp_path: Path) -> None:
    (tmp_path / "there").write_text('<!ENTITY e "s3cret">')
    with place.gateway.fresh() as spark:
        for expression in OPENING:
            for target in (tmp_path / "there", f"file://{tmp_path}/there", f"file://{tmp_path}/none", "http://127.0.0.1:9/x"):
                with pytest.raises(Exception, match=r"reads no files|Error loading expression"):
                    spark.sql(f"SELECT {expression.replace('#', str(target))} FROM range(1)").collect()
        kept = (
            "SELECT from_xml('<a><b>1</b></a>', 'b INT', map('mode', 'FAILFAST')).b, from_xml('<a><b>1</b></a>', 'b INT').b, "
            "xpath_string('<!DOCTYPE a [<!ENTITY e \"x\">]><a>&e;</a>', 'a')"
        )
        assert [tuple(row) for row in spark.sql(kept).collect()] == [(1, 1, "x")]


LARGE = [
    "repeat('a', #)",
    "space(#)",
    "lpad('a', #)",
    "rpad('a', #, 'b')",
    "lpad(X'00', #)",
    "array_repeat(1, #)",
    "sequence(1, #)",
    "sequence(#, 1, -1)",
    "array_insert(array(1), #, 2)",
    "transform(array(1), x -> repeat('a', #))",
    "(SELECT repeat('a', #) FROM range(1))",
]


STEPS = ("INTERVAL 1 MICROSECOND", "make_interval(0, 0, 0, 0, 0, 0, 0.000001 + id)", "make_dt_interval(0, 0, 0, 0.000001 + id)")


def test_no_function_makes_a_value_for_which_the_engine_has_no_memory(place: Place) -> None:
    with place.gateway.fresh() as spark:
        expressions = [one.replace("#", by) for one in LARGE for by in ("2000000000", "2000000000 + int(id)")]
        expressions += ["randstr(2000000000)", "format_string('%2000000000d', 1)"]
        expressions += ["replace(repeat('a', 60000000), 'a', repeat('b', 60000000))", "format_number(1, 2000000000 + int(id))"]
        expressions += ["format_string('%60000000d%60000000d', 1, 2)", "format_string(concat('%', 60000000 + id, 'd'), 1)"]
        expressions += ["regexp_replace(repeat('a', 1000000), 'a', repeat('b', 5000))", "split(repeat('a', 60000000), '')"]
        expressions += [f"sequence(TIMESTAMP '2020-01-01', TIMESTAMP '2030-01-01', {step})" for step in STEPS]
        expressions += ["count_min_sketch(id, 1e-9D, 0.999D, 1)"]
        for expression in expressions:
            with pytest.raises(Exception, match=r"makes no values of more than|awaitResult"):
                spark.sql(f"SELECT {expression} FROM range(1)").collect()
        small = (
            "repeat('a', id), space(1), lpad('a', int(id), 'x'), rpad('a', 2), array_repeat(id, 1), sequence(1, id), sequence(3, 1, -2), "
            "repeat(NULL, 3), repeat('a', NULL), replace('aba', 'b', 'cc'), format_string('%3d', id), "
            "sequence(DATE '2026-01-01', DATE '2026-01-02')[1], format_number(1.5, 2), format_string(concat('%', id, 'd'), id), "
            "regexp_replace('abc', 'b', 'xy'), size(split('a,b', ',')), size(sequence(TIMESTAMP '2026-01-01', "
            "TIMESTAMP '2026-03-01', INTERVAL 1 MONTH)), size(sequence(DATE '2026-03-01', DATE '2026-01-01', INTERVAL '-1' DAY))"
        )
        found = spark.sql(f"SELECT {small} FROM range(2, 3)")
        assert found.columns[0] == "repeat(a, id)"
        wanted = ("aa", " ", "xa", "a ", [2], [1, 2], [3, 1], None, None, "acca", "  2", date(2026, 1, 2))
        wanted += ("1.50", " 2", "axyc", 2, 3, 60)  # type: ignore[assignment]
        assert [tuple(row) for row in found.collect()] == [wanted]


def test_a_time_does_not_belong_to_more_windows_than_the_analyser_can_take(place: Place) -> None:
    with place.gateway.fresh() as spark:
        windows = "SELECT window(TIMESTAMP '2026-01-01', '{}', '1 second')"
        with pytest.raises(Exception, match="no more than 1000 windows"):
            spark.sql(windows.format("1000000 days"))
        assert spark.sql(windows.format("3 seconds")).count() == 3


def test_values_are_cut_before_they_arrive(place: Place) -> None:
    queries = Queries(place.session, max_bytes=200_000)
    text, inner = "repeat('x', 1000000)", "repeat('é', 1000000)"
    query = f"SELECT {text} AS a, CAST({text} AS BINARY) AS a, array({inner}) AS l, array(1, NULL) AS s, NULL AS n FROM range(20)"
    assert queries.run("SHOW SCHEMAS", 50).columns == ["namespace"]
    assert queries.run("""SELECT parse_json('{"k": 1}') AS v""", 50).rows
    answer = queries.run(query, 50)
    assert answer.columns == ["a", "a", "l", "s", "n"]
    row = ["x" * 1000 + " ... (1000000 characters)", "(1000000 bytes)", "[" + "é" * 999 + " ... (1000002 characters)"]
    assert answer.rows == [[*row, [1, None], None]] * 20
    assert (answer.more, answer.cut) == (False, "Values longer than 1000 characters are truncated.")
    small = queries.run("SELECT '' AS a, CAST(NULL AS BINARY) AS b, X'' AS c, map('k', 1) AS m", 50)
    assert small.rows == [["", None, "(0 bytes)", {"k": 1}]]
    queries.stop()


def test_rows_end_where_they_are_too_large_and_it_is_said(place: Place) -> None:
    queries = Queries(place.session, max_bytes=1 << 20)
    columns = ", ".join(f"repeat('{at % 10}', 1000)" for at in range(30))
    answer = queries.run(f"SELECT {columns} FROM range(500)", 500)
    assert answer.more
    assert len(answer.rows) < 500
    assert answer.cut == "Only the first 1.0 MiB of rows are shown."
    queries.stop()


@pytest.mark.parametrize("ended", [pytest.param("by time", marks=pytest.mark.long), "by stopping"])
def test_a_query_that_runs_is_ended(place: Place, ended: str) -> None:
    queries = Queries(place.session, max_seconds=60.0 if ended == "by stopping" else 2.0)
    queries.run("SELECT 1", 1)
    if ended == "by stopping":
        threading.Timer(2.0, queries.stop).start()
    with pytest.raises(VolstreamError) as error:
        queries.run("SELECT count(*) FROM range(1000000) a JOIN range(1000000) b ON a.id * b.id % 7 = 3", 1)
    assert ("was cancelled" in str(error.value)) == (ended == "by time")
    queries.stop()
    eventually(lambda: not queries.is_busy, 20)
    with pytest.raises(InvalidStateError, match="The console is stopping"):
        queries.run("SELECT 1", 1)
