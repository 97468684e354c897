"""Words of other platforms: each is answered with what volstream has in its place."""

from __future__ import annotations

import pytest

from volstream.errors import SqlError
from volstream.sql import grammar
from volstream.sql.grammar import FOREIGN, ForeignConstruct, check, found_in
from volstream.sql.statement import SparkStatement

#: Statements with each construct, by the word that the answer must show; and an equivalent statement of volstream.
CONSTRUCTS: list[tuple[dict[str, str], str | None]] = [
    (
        {"COPY INTO": "COPY INTO t FROM @stage FILE_FORMAT = (TYPE = CSV)"},
        "CREATE JOB j ON VOLUME v LOAD (FORMAT 'csv') INTO TABLE t",
    ),
    ({"VOLUME": "SELECT * FROM VOLUME v WHERE a > 1"}, None),
    (
        {
            "READ_FILES": "SELECT * FROM read_files('/data', format => 'csv')",
            "CLOUD_FILES": "SELECT * FROM cloud_files('/data', 'csv')",
            "CLOUDFILES": "SELECT * FROM cloudFiles.`/data`",
            "cloudFiles": "SELECT * FROM t, cloudFiles.`/data`",
            "read_csv": "SELECT * FROM read_csv('/data/*.csv')",
            "read_json_auto": "SELECT * FROM t JOIN read_json_auto('/data/*.json')",
        },
        "CREATE JOB j ON VOLUME v LOAD INTO TABLE t",
    ),
    (
        {"FILE FORMAT": "CREATE FILE FORMAT f TYPE = CSV", "FILE_FORMAT": "CREATE TABLE t (a INT) FILE_FORMAT = (TYPE = CSV)"},
        "CREATE JOB j ON VOLUME v LOAD (FORMAT 'csv', DELIMITER ';') INTO TABLE t",
    ),
    (
        {"PIPE": "CREATE PIPE p AUTO_INGEST = TRUE AS COPY INTO t FROM @s", "PIPES": "SHOW PIPES"},
        "CREATE JOB j ON VOLUME v LOAD INTO TABLE t ON CHANGE",
    ),
    ({"EXECUTE TASK": "EXECUTE TASK t", "EXECUTE PIPELINE": "EXECUTE PIPELINE p"}, "RUN JOB j"),
    ({"''": "SELECT a, b AS c FROM '/data/x.csv' WHERE a > 1"}, None),
    ({"@": "SELECT * FROM t JOIN @stage/x.csv"}, None),
    (
        {"TASK": "CREATE TASK x SCHEDULE = '5 MINUTE' AS INSERT INTO t SELECT * FROM s", "TASKS": "SHOW TASKS"},
        "CREATE JOB j EVERY '5m' AS INSERT INTO t SELECT * FROM s",
    ),
    (
        {
            "TASK_HISTORY": "SELECT * FROM TABLE(information_schema.task_history())",
            "COPY_HISTORY": "SELECT * FROM TABLE(copy_history(table_name => 't'))",
        },
        None,
    ),
    (
        {
            "APPLY CHANGES INTO": "APPLY CHANGES INTO t FROM STREAM(s) KEYS (id) SEQUENCE BY n",
            "AUTO CDC INTO": "AUTO CDC INTO t FROM STREAM(s) KEYS (id) SEQUENCE BY n",
            "FLOW": "CREATE FLOW f AS INSERT INTO t BY NAME SELECT * FROM STREAM(s)",
        },
        "CREATE JOB j ON CHANGE AS MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN DELETE",
    ),
    (
        {
            "LIVE TABLE": "CREATE LIVE TABLE d AS SELECT * FROM t",
            "STREAMING LIVE TABLE": "CREATE OR REFRESH STREAMING LIVE TABLE d AS SELECT * FROM t",
            "STREAMING TABLE": "CREATE OR REFRESH STREAMING TABLE d AS SELECT * FROM t",
        },
        "CREATE DYNAMIC TABLE d REFRESH ON CHANGE AS SELECT * FROM t",
    ),
    (
        {"OR REFRESH": "CREATE OR REFRESH MATERIALIZED VIEW d AS SELECT * FROM t"},
        "CREATE OR REPLACE DYNAMIC TABLE d REFRESH ON CHANGE AS SELECT * FROM t",
    ),
    ({"STREAM": "SELECT * FROM STREAM(t)", "stream": "SELECT * FROM STREAM t WHERE id > 1"}, "CREATE STREAM s ON TABLE t"),
    ({"JOB": "SHOW CREATE JOB j"}, None),
    (
        {"STAGE": "CREATE STAGE s URL = 's3://bucket/prefix'", "STAGES": "SHOW STAGES"},
        "CREATE VOLUME v LOCATION 's3://bucket/prefix'",
    ),
    ({"SYSTEM$STREAM_HAS_DATA": "SELECT SYSTEM$STREAM_HAS_DATA('s')"}, "SHOW STREAMS"),
    (
        {
            "METADATA$ACTION": "SELECT * FROM s WHERE METADATA$ACTION = 'INSERT'",
            "METADATA$ISUPDATE": "SELECT METADATA$ISUPDATE FROM s",
        },
        None,
    ),
    (
        {
            "APPEND_ONLY": "CREATE STREAM s ON TABLE t APPEND_ONLY = TRUE",
            "INSERT_ONLY": "CREATE STREAM s ON TABLE t INSERT_ONLY = TRUE",
        },
        "CREATE STREAM s ON TABLE t WITH PROPERTIES ('TABLE_STREAM_MODE' = 'APPEND_ONLY')",
    ),
    (
        {"SHOW_INITIAL_ROWS": "CREATE STREAM s ON TABLE t SHOW_INITIAL_ROWS = TRUE"},
        "CREATE STREAM s ON TABLE t WITH PROPERTIES ('SHOW_INITIAL_ROWS' = 'TRUE')",
    ),
    (
        {
            "AT": "CREATE STREAM s ON TABLE t AT (TIMESTAMP => '2026-01-01')",
            "BEFORE": "SELECT * FROM t BEFORE (STATEMENT => 'x')",
        },
        "CREATE STREAM s ON TABLE t TIMESTAMP AS OF '2026-01-01'",
    ),
    ({"TABLE_CHANGES": "SELECT * FROM table_changes('t', 0)"}, None),
    ({"CLONE": "CREATE TABLE a CLONE b"}, None),
    ({"UNDROP": "UNDROP TABLE t"}, None),
    ({"WAREHOUSE": "USE WAREHOUSE w", "ROLE": "USE ROLE r"}, None),
    ({"PUT": "PUT file:///tmp/a.csv @stage"}, "ALTER VOLUME v REFRESH"),
    ({"GET": "GET @stage/a.csv file:///tmp"}, None),
    ({"REMOVE": "REMOVE @stage/a.csv", "RM": "RM @stage"}, "ALTER VOLUME v REFRESH"),
    ({"LIST": "LIST @stage", "LS": "LS @stage"}, "SHOW VOLUME DIRECTORY v"),
    (
        {"v": "SELECT * FROM DIRECTORY(@v)", "notes": "SELECT * FROM DIRECTORY(notes)", "a.v": "SELECT * FROM DIRECTORY(a.v)"},
        "SHOW VOLUME DIRECTORY v",
    ),
    ({"GET_PRESIGNED_URL": "SELECT GET_PRESIGNED_URL(@s, relative_path) FROM DIRECTORY(VOLUME v)"}, None),
    (
        {"AUTO_REFRESH": "CREATE VOLUME v LOCATION 's3://b/p' DIRECTORY = (ENABLE = TRUE AUTO_REFRESH = TRUE)"},
        "CREATE VOLUME v LOCATION 's3://b/p' NOTIFICATION = (QUEUE_TYPE = 'AWS_SQS', QUEUE_NAME = 'q')",
    ),
    ({"ON STAGE": "CREATE STREAM s ON STAGE g"}, "CREATE STREAM s ON VOLUME v"),
    ({"ON VIEW": "CREATE STREAM s ON VIEW w"}, "CREATE STREAM s ON DYNAMIC TABLE d"),
    (
        {
            "DATA_RETENTION_DAYS": "CREATE TABLE t (a DECIMAL(3, 1)) DATA_RETENTION_DAYS 3",
            "CHANGE_TRACKING": "ALTER TABLE s.t SET CHANGE_TRACKING = TRUE",
        },
        "ALTER TABLE t SET PROPERTIES ('data_retention_days' = '3')",
    ),
    (
        {"TARGET_LAG": "CREATE DYNAMIC TABLE d TARGET_LAG = '1 minute' AS SELECT * FROM t"},
        "CREATE DYNAMIC TABLE d REFRESH EVERY '1m' AS SELECT * FROM t",
    ),
    ({"SAMPLE": "SELECT * FROM t SAMPLE (10)"}, None),
    ({"FLATTEN": "SELECT * FROM t, LATERAL FLATTEN(input => t.items) f"}, None),
    ({"SET": "ALTER VOLUME v SET COMMENT = 'x'", "RENAME": "ALTER VOLUME v RENAME TO w"}, None),
    (
        {"TBLPROPERTIES": "CREATE EXTERNAL VOLUME v LOCATION '/d' TBLPROPERTIES ('check' = 'false')"},
        "CREATE VOLUME v LOCATION '/data' CHECK = FALSE COMMENT = 'x'",
    ),
    ({"hdfs://": "SELECT * FROM delta.`hdfs://nn/x`", "gs://": "SELECT * FROM csv.`gs://b/x`"}, None),
    ({"SCHEMA": "SHOW STREAMS IN SCHEMA public"}, "SHOW STREAMS IN public"),
    ({"WHERE": "SHOW STREAMS WHERE has_data = 'true'"}, "SHOW STREAMS LIKE 'a%'"),
    ({"BEGIN TRANSACTION": "BEGIN TRANSACTION", "BEGIN": "BEGIN", "COMMIT": "COMMIT", "ROLLBACK": "ROLLBACK WORK"}, None),
    ({"FROM": "UPDATE t SET a = s.a FROM s WHERE t.id = s.id"}, None),
    ({"USING": "DELETE FROM public.t USING s WHERE t.id = s.id"}, None),
    ({"TOP": "SELECT TOP 10 * FROM t"}, None),
    ({"EXCLUDE": "SELECT t.* EXCLUDE (a) FROM t"}, None),
]


@pytest.mark.parametrize(
    ("construct", "statement", "word", "ours"),
    [
        (construct, statement, word, ours)
        for construct, (examples, ours) in zip(FOREIGN, CONSTRUCTS, strict=True)
        for word, statement in examples.items()
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_words_of_other_platforms_are_answered_with_ours(
    construct: ForeignConstruct, statement: str, word: str, ours: str | None
) -> None:
    with pytest.raises(SqlError) as caught:
        check(statement.lower())
    assert caught.value.message == f"volstream has no {construct.words.format(word=word.lower())}."
    assert caught.value.remedy == construct.remedy.replace("{word}", word.lower())
    if ours is not None:
        assert grammar.owned(SparkStatement(ours).words)
        grammar.parse(ours)
        assert found_in(ours) is None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'COPY INTO t', \"read_files(\" AS `LIST @` FROM s WHERE at > 1",
        "CREATE TABLE clone (pipe INT, task STRING)",
        "CREATE TABLE a SHALLOW CLONE b",
        "SELECT public.read_files(a) FROM t VERSION AS OF 3",
        "SHOW COLUMNS IN t",
        "SHOW STREAMS IN schema",
        "SELECT flatten(a), sample(3) FROM DIRECTORY(VOLUME v) TABLESAMPLE (10 PERCENT)",
        "CREATE TABLE t (data_retention_days INT, change_tracking BOOLEAN)",
        "ALTER TABLE t SET PROPERTIES ('data_retention_days' = '3')",
        "SELECT * FROM csv.`s3://b/x`, delta.`/data/x`",
        "LIST JARS",
        "SELECT a, stream b, cloudfiles.c FROM stream WHERE a > 1",
        "SHOW DYNAMIC TABLE REFRESH HISTORY WHERE name = 'd'",
        "UPDATE t SET a = (SELECT max(b) FROM s), c = extract(DAY FROM d)",
        "UPDATE t SET a = 1 WHERE b IS DISTINCT FROM c",
        "DELETE FROM t WHERE using > 1",
        "SELECT a * exclude, top FROM t",
        "BEGIN SELECT 1; END",
    ],
)
def test_such_words_as_names_and_texts_mean_nothing(text: str) -> None:
    check(text)
