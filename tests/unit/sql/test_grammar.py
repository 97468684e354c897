from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volstream.base.model.names import Name
from volstream.errors import SqlError
from volstream.sql.grammar import Text, owned, parse
from volstream.sql.statement import SparkStatement


def options(text: str) -> dict[str, object]:
    assert owned(SparkStatement(text).words)
    return dict(parse(text).options)


def test_the_statements_of_the_source_document_are_parsed() -> None:
    connection = parse(
        "CREATE STORAGE CONNECTION conn_sh_oss TYPE OSS REGION = 'cn-shanghai' "
        "ROLE_ARN = 'acs:ram::145:role/czvolumestreamrole' -- Replace with your own RoleARN\n"
        "ENDPOINT = 'oss-cn-shanghai.aliyuncs.com'"
    )
    assert (connection.action, connection.kind, connection.name) == ("create", "connection", Name("public", "conn_sh_oss"))
    assert connection.options["region"] == "cn-shanghai"
    volume = parse(
        "CREATE EXTERNAL VOLUME vol_dish_images LOCATION 'oss://sh-oss-derek/dish-images/' USING CONNECTION conn_sh_oss "
        "NOTIFICATION = ( QUEUE_TYPE = 'ALICLOUD_MNS', QUEUE_NAME = 'cz-queue', VIRTUAL_CLUSTER = 'DEFAULT' ) "
        "DIRECTORY = (ENABLE = TRUE) RECURSIVE = TRUE"
    )
    assert volume.options == {
        "location": "oss://sh-oss-derek/dish-images/",
        "using_connection": Name("public", "conn_sh_oss"),
        "notification": {"queue_type": "ALICLOUD_MNS", "queue_name": "cz-queue", "virtual_cluster": "DEFAULT"},
        "directory": True,
        "recursive": True,
    }
    stream = parse("CREATE STREAM IF NOT EXISTS s ON VOLUME v WITH PROPERTIES ('TABLE_STREAM_MODE' = 'STANDARD')")
    assert stream.if_not_exists
    assert stream.options["properties"] == {"TABLE_STREAM_MODE": "STANDARD"}


@pytest.mark.parametrize("text", ["IF NOT EXISTS a.b USING KAFKA", "a.b IF NOT EXISTS using kafka"])
def test_a_topic_is_an_external_table_with_the_options_of_sparks_source(text: str) -> None:
    said = f"CREATE EXTERNAL TABLE {text} OPTIONS ('subscribe' = 't', 'kafka.x' = 1) COMMENT 'c'"
    assert options(said) == {"options": {"subscribe": "t", "kafka.x": "1"}, "comment": "c"}
    found = parse(said)
    assert (found.action, found.kind, found.name, found.if_not_exists) == ("create", "external", Name("a", "b"), True)


def test_external_tables_of_spark_are_sparks() -> None:
    assert not owned(SparkStatement("CREATE EXTERNAL TABLE t (a INT) USING parquet LOCATION '/x'").words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "CREATE STREAM s ON EXTERNAL TABLE t TIMESTAMP AS OF now() - INTERVAL 1 HOUR COMMENT 'it''s'",
            {
                "source_kind": "EXTERNAL TABLE",
                "source": Name("public", "t"),
                "timestamp_as_of": Text("now() - INTERVAL 1 HOUR"),
                "comment": "it's",
            },
        ),
        ("ALTER STREAM s RESET TO VERSION 3", {"number": "3"}),
        ("ALTER TABLE t SET PROPERTIES ('a' = 'b', 'c' = 1)", {"properties": {"a": "b", "c": "1"}}),
        (
            "CREATE FUNCTION IF NOT EXISTS public.f AS '/my dir/f.py:g' RETURNS MAP<STRING, DECIMAL(3, 1)> COMMENT 'c'",
            {"string": "/my dir/f.py:g", "expression": Text("MAP<STRING, DECIMAL(3, 1)>"), "comment": "c"},
        ),
        ("ALTER STREAM `a b`.s RESET TO TIMESTAMP '2026-01-01'", {"expression": Text("'2026-01-01'")}),
        ("ALTER VOLUME v REFRESH SUBDIRECTORY 'a/b'", {"string": "a/b"}),
        ("ALTER VOLUME v REFRESH ACCEPT REMOVALS", {"accept_removals": True}),
        ("CREATE VOLUME v LOCATION '/d' MAX_REMOVALS '20%'", {"location": "/d", "max_removals": "20%"}),
        ("CREATE VOLUME v LOCATION '/d' CHECK = FALSE", {"location": "/d", "check": False}),
        ("CREATE VOLUME v LOCATION '/d' PROPERTIES ('ignores' = 'a')", {"location": "/d", "properties": {"ignores": "a"}}),
        (
            "CREATE JOB j ON STREAM s FUNCTION 'f.py:f' INTO TABLE t RETURNS (a STRING, b DECIMAL(3,1)) WHERE (size < (10)) "
            "EVERY '30s'",
            {
                "on_stream": Name("public", "s"),
                "function": "f.py:f",
                "into": Name("public", "t"),
                "returns": "a STRING, b DECIMAL(3,1)",
                "where": "size < (10)",
                "every": "30s",
            },
        ),
        (
            "CREATE JOB j ON CHANGE AS INSERT INTO t SELECT ')', a FROM s",
            {"on_change": True, "as_statement": Text("INSERT INTO t SELECT ')', a FROM s")},
        ),
        (
            r"CREATE JOB j ON VOLUME v LOAD (DELIMITER '\t', quote '\u0027', null_values '\\N') INTO t",
            {
                "on_volume": Name("public", "v"),
                "load": {"delimiter": "\t", "quote": "'", "null_values": "\\N"},
                "into": Name("public", "t"),
            },
        ),
        (
            "CREATE JOB j ON VOLUME v LOAD (FORMAT = csv, header FALSE, Schema 'a INT') INTO t",
            {
                "on_volume": Name("public", "v"),
                "load": {"format": "csv", "header": "FALSE", "schema": "a INT"},
                "into": Name("public", "t"),
            },
        ),
        ("CREATE JOB j LOAD", {"load": {}}),
        (
            "CREATE DYNAMIC TABLE d COMMENT 'c' REFRESH INTERVAL '10' MINUTE VCLUSTER default AS SELECT 1",
            {"comment": "c", "every": "10m", "as_statement": Text("SELECT 1")},
        ),
        ("CREATE DYNAMIC TABLE d REFRESH interval 2 hours AS SELECT 1", {"every": "2h", "as_statement": Text("SELECT 1")}),
        ("ALTER TABLE t ADD PRIMARY KEY (a, `b c`)", {"primary_key": ["a", "b c"]}),
        ("ALTER TABLE t ADD CONSTRAINT k PRIMARY KEY (a)", {"primary_key": ["a"]}),
        ("REFRESH VOLUME v SUBDIRECTORY 'a'", {"string": "a"}),
        ("SUSPEND JOB j", {"pause": "SUSPEND"}),
        ("RUN JOB j", {}),
        ("SHOW CREATE DYNAMIC TABLE d", {}),
        ("SHOW DYNAMIC TABLE REFRESH HISTORY IN x WHERE name = 'd'", {"string": "d"}),
        ("SHOW TABLE STREAMS IN x LIKE 'a%'", {"string": "a%"}),
    ],
)
def test_statements_are_parsed(text: str, said: dict[str, object]) -> None:
    assert options(text) == said


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("CREATE STREAM s ON VIEW t", 1, 20, "unexpected 'VIEW'; expected VOLUME or TABLE"),
        ("CREATE STREAM s\n  ON TABLE", 2, 11, "the statement is incomplete; expected a name"),
        ("ALTER TABLE t SET PROPERTIES ('a' 'b')", 1, 35, "expected ="),
        ("CREATE VOLUME v LOCATION /a", 1, 26, "expected a quoted string"),
    ],
)
def test_a_wrong_statement_is_shown_with_a_caret(text: str, line: int, column: int, said: str) -> None:
    with pytest.raises(SqlError) as caught:
        parse(text)
    message = str(caught.value)
    assert f"Line {line}, column {column}: " in message
    assert said in message
    *_, shown, caret = message.splitlines()
    assert shown == "  " + text.splitlines()[line - 1]
    assert caret.index("^") == column + 1


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE stream (a INT)",
        "DESC stream",
        "ALTER TABLE t SET TBLPROPERTIES ('a' = 'b')",
        "SHOW TABLES",
        "CREATE FUNCTION f AS 'org.example.F'",
        "SELECT * FROM volume",
        "DROP TABLE volume",
        "REFRESH TABLE t",
        "ALTER TABLE t ADD COLUMNS (a INT)",
    ],
)
def test_other_statements_are_left_to_spark(text: str) -> None:
    assert not owned(SparkStatement(text).words)


def test_a_word_that_is_neither_true_nor_false_is_refused() -> None:
    with pytest.raises(SqlError, match="RECURSIVE cannot be 'flase'"):
        parse("CREATE VOLUME v LOCATION '/d' RECURSIVE = flase")


@given(st.text(alphabet=st.sampled_from("abct '\"`();=-/*\n,.0"), max_size=60))
def test_any_continuation_is_parsed_or_rejected(rest: str) -> None:
    with suppress(SqlError):
        parse("CREATE STREAM " + rest)


def test_quoted_names_of_a_notification_are_properties_of_the_queue() -> None:
    said = parse("CREATE VOLUME v LOCATION '/d' NOTIFICATION = (Queue_Type = 'KAFKA', 'bootstrap.servers' = 'a:1')")
    assert said.options["notification"] == {"queue_type": "KAFKA"}
    assert said.options["queue_properties"] == {"bootstrap.servers": "a:1"}
