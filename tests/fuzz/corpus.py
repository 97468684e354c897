"""Real inputs, by what reads them."""

from __future__ import annotations

import json

STATEMENTS = (
    "CREATE STORAGE CONNECTION c TYPE OSS REGION = 'cn-hangzhou' ROLE_ARN = 'acs:ram::1:role/v' ENDPOINT = 'oss.example.com'",
    "CREATE OR REPLACE CONNECTION IF NOT EXISTS c TYPE S3 REGION = \"eu-west-1\" CREDENTIALS = 'profile:x' COMMENT 'it''s'",
    "CREATE EXTERNAL VOLUME dishes LOCATION 'oss://my-bucket/dishes/' USING CONNECTION photos NOTIFICATION = (QUEUE_TYPE = "
    "'ALICLOUD_MNS', QUEUE_NAME = 'my-queue', VIRTUAL_CLUSTER = 'DEFAULT') DIRECTORY = (ENABLE = TRUE) RECURSIVE = TRUE",
    "CREATE VOLUME w LOCATION 'nowhere' PATTERNS ('*.txt', 'a/**/[!b]?') MAX_REMOVALS '20%,100' COMMENT 'c'",
    "CREATE TABLE STREAM moves ON TABLE people WITH PROPERTIES ('TABLE_STREAM_MODE' = 'STANDARD', 'IDENTITY' = 'id,`a b`')",
    "CREATE STREAM s2 ON VOLUME v WITH PROPERTIES ('SHOW_INITIAL_ROWS' = 'TRUE')",
    "CREATE STREAM IF NOT EXISTS s3 ON TABLE t TIMESTAMP AS OF now() - INTERVAL 1 HOUR COMMENT 'x'",
    "CREATE JOB j2 ON STREAM s FUNCTION 'f.py:f' INTO TABLE t2 RETURNS (a STRING, b DECIMAL(3,1)) WHERE (size < (10)) EVERY '30s'",
    "CREATE JOB j3 ON VOLUME v FUNCTION 'f.py:f' INTO TABLE t3 RETURNS (n INT) SCHEDULE '*/5 * * * *'",
    "CREATE JOB j4 ON CHANGE AS INSERT INTO copy SELECT id, name FROM moves WHERE __change_type = 'INSERT'",
    "CREATE FUNCTION IF NOT EXISTS public.f AS 'f.py:g' RETURNS MAP<STRING, DECIMAL(3, 1)> COMMENT 'c'",
    "CREATE DYNAMIC TABLE sizes REFRESH EVERY '1m' AS SELECT f.relative_path FROM DIRECTORY(VOLUME v) f LEFT JOIN o ON o.p = f.size",
    "REFRESH DYNAMIC TABLE sizes",
    "ALTER DYNAMIC TABLE sizes SUSPEND",
    "DROP MATERIALIZED VIEW IF EXISTS sizes",
    "ALTER VOLUME v REFRESH SUBDIRECTORY 'a/b'",
    "ALTER VOLUME v REFRESH ACCEPT REMOVALS",
    "ALTER STREAM s RESET TO VERSION 3",
    "ALTER STREAM `a b`.s RESET TO TIMESTAMP '2026-01-01'",
    "ALTER JOB j PAUSE",
    "ALTER JOB j RESUME",
    "ALTER TABLE t SET PROPERTIES ('change_tracking' = 'true', 'a.b' = '1')",
    "SHOW TABLE STREAMS IN x LIKE 'a%'",
    "SHOW JOBS",
    "SHOW VOLUME DIRECTORY v LIKE '%.txt'",
    "SHOW VOLUMES",
    "DESCRIBE JOB j",
    "DESC STREAM s",
    "DROP STREAM IF EXISTS s",
    "DROP JOB j",
    "DROP EXTERNAL VOLUME v",
    "SHOW STORAGE CONNECTIONS",
)

SPARK_STATEMENTS = (
    "SELECT relative_path, size FROM DIRECTORY(VOLUME v) ORDER BY size DESC LIMIT 1",
    "INSERT INTO copy SELECT id, name, age FROM moves WHERE __change_type IN ('INSERT', 'UPDATE_AFTER') AND x LIKE '%.jpg'",
    "MERGE INTO copy USING moves ON copy.id = moves.id WHEN MATCHED AND moves.__change_type = 'UPDATE_AFTER' THEN UPDATE SET "
    "copy.age = moves.age WHEN MATCHED AND moves.__change_type = 'DELETE' THEN DELETE WHEN NOT MATCHED AND moves.__change_type = "
    "'INSERT' THEN INSERT VALUES (moves.id, moves.name, moves.age)",
    "CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR, tag CHAR(3)) TBLPROPERTIES ('change_tracking' = 'true')",
    "CREATE TABLE p (id INT, b INT, PRIMARY KEY (id, `b`)) USING DELTA PARTITIONED BY (b)",
    "CREATE OR REPLACE TABLE t AS SELECT count(*) AS n FROM DIRECTORY(VOLUME a.v) d, t2 WHERE EXISTS (SELECT 1 FROM u)",
    "SELECT * FROM t CHANGES FROM VERSION 1 TO VERSION 5 WITH (APPEND_ONLY = TRUE) AS c JOIN u USING (id)",
    "WITH a AS (SELECT 1 x), b (y) AS (SELECT x FROM a) SELECT * FROM a, b LATERAL VIEW explode(z) e AS k -- end",
    "INSERT OVERWRITE v SELECT public.f('dish', url) FROM s /* c; */ ; DELETE FROM t WHERE id = 3; UPDATE t SET a = 1",
    "VACUUM t RETAIN 168 HOURS",
    "SHOW TABLES IN public",
    "DROP TABLE IF EXISTS `a b`.`c``d`",
    "DESCRIBE HISTORY t",
    "OPTIMIZE t ZORDER BY (a)",
    "CREATE TEMPORARY VIEW w AS SELECT * FROM s",
    "CREATE SCHEMA x",
    "SELECT a, count(*) FROM t GROUP BY ROLLUP (a) HAVING count(*) > 1",
    "SELECT x.a AS b, sum(c) FROM t x GROUP BY x.a",
    "SELECT max(a), min(b) FROM t",
)

DURATIONS = ("500ms", "30s", "5m", "1h", "2d", "7", " 1.5 H ", "0.25s", "90 m")
SIZES = ("64MiB", "1GiB", "100", "2kb", "1.5 TiB", "7 B")
NAMES = ("v", "public.v", "`a b`.`c``d`", "Sales.Orders_2", "ünï")
PATTERNS = ("*.txt", "**/*.py", "a/**/b", "/root/*", "[!a-z]?.csv", "*_*_*_*.csv", "!keep.txt", "dir/", "\\*literal", "{a,b}.c")
PATHS = ("a.txt", "a/b/c.py", "root/x", "_1_2_3_.csv", "keep.txt", "dir/one", "ä ö", ".hidden/x")
TIMES = (
    "2026-03-01T12:00:00+01:00",
    "2026-03-01",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "2026-03-01 12:00:00.123456",
)
CRONS = ("*/5 * * * *", "0 3 * * 1-5", "30 2 29 2 *", "0 0 1,15 * sun", "59 23 L * *")
DDL = (
    "label STRING, score DOUBLE",
    "a STRUCT<b: INT, c: ARRAY<STRING>>, d MAP<STRING, DECIMAL(3, 1)>",
    "`a b` BINARY NOT NULL",
    "d DATE, t TIMESTAMP COMMENT 'x', n TIMESTAMP_NTZ",
    "v VARCHAR(10), c CHAR(3), i TINYINT",
)
CONDITIONS = (
    "size < 1000000",
    "relative_path LIKE '%.jpg' AND size > (1 + 2)",
    "content_type IN ('a', 'b') OR NOT etag IS NULL",
    "last_modified_time > TIMESTAMP '2026-01-01'",
    "CASE WHEN size = 1 THEN true ELSE false END",
)
LOCATIONS = ("/data/images", "file:///data/a%20b", "~/x", "s3://bucket/prefix/", "oss://b/p q", "file://host/x", "S3://B/", ".")
REMOVALS = ("50%", "1000", "20%,1000", "all", "99.5%")
TOML = (
    'cores = 2\ndriver_memory = "1GiB"\ncatalog_url = "postgresql://u@h/d"\n',
    'warehouse = "s3://b/p"\n[warehouse_options]\nAWS_REGION = "eu-west-1"\n',
    '[virtual_clusters.GPU]\nspark_remote = "sc://h:15002"\nmax_parallel_jobs = 2\n[virtual_clusters.GPU.spark_conf]\n"a.b" = "c"\n',
    '[credentials.photos]\naccess_key_id = "a"\naccess_key_secret = "b"\nsecurity_token = "c"\n',
    'lease_seconds = "30s"\nhttp_port = 8642\ntime_zone = "Europe/Berlin"\nfunction_memory = "none"\nbatch_seconds = 60.0\n',
    '[spark_conf]\n"spark.sql.adaptive.enabled" = "true"\n',
)

_S3 = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "photos"}, "object": {"key": "a+b%2Fc.jpg", "size": 3}}}
_BRIDGE = {
    "detail-type": "Object Created",
    "source": "aws.s3",
    "detail": {"bucket": {"name": "photos"}, "object": {"key": "a b"}},
}
_OSS = {
    "eventName": "ObjectCreated:PutObject",
    "eventSource": "acs:oss",
    "oss": {"bucket": {"name": "p"}, "object": {"key": "a%2Fb"}},
}
BODIES = (
    *(
        json.dumps(one)
        for one in (
            {"Records": [_S3, _S3]},
            {"Type": "Notification", "Message": json.dumps({"Records": [_S3]})},
            _BRIDGE,
            {"Event": "s3:TestEvent"},
            {"Type": "SubscriptionConfirmation"},
            {"events": [_OSS, _OSS]},
            {"data": _OSS, "type": "oss:ObjectCreated:PutObject"},
            {"Message": json.dumps({"events": [_OSS]})},
            {"path": "a/b"},
            {"subtree": "a"},
        )
    ),
    "eyJldmVudHMiOiBbXX0=",
)

#: Arguments, one a line of the input.
COMMANDS = tuple(
    "\n".join(line.split("|"))
    for line in (
        "create-connection|c|--type|s3|--region|eu-west-1|--role-arn|arn:aws:iam::1:role/x",
        "create-connection|c2|--type|oss|--credentials|profile:x|--endpoint|http://127.0.0.1:1|--comment|hi",
        "create-volume|w|files|--pattern|*.txt|--ignore|tmp/**|--max-removals|20%|--comment|x",
        "alter-volume|v|--pattern|*.csv",
        "create-stream|s2|--volume|v|--mode|standard|--show-initial-rows|--at-version|1|--at-timestamp|2026-01-01",
        "create-job|j2|--volume|v|--function|f.py:f|--returns|n INT, d DECIMAL(3,1)|--into|t2|--every|30s|--where|size < 10",
        "create-job|j3|--stream|s|--function|f.py:f|--returns|n INT|--into|t3|--cron|*/5 * * * *|--retries|3|--timeout|60s|--arg|a=b",
        "alter-job|j|--function|f.py:f|--max-files|100|--max-bytes|1GiB|--on-move|rekey|--pause-after|0",
        "alter-job|j|--where|size > 1|--manual",
        "list|volumes",
        "list|failures|--job|j|--kind|raised|--like|scans/%.pdf|--limit|10|--state|skipped",
        "list|batches|--format|json",
        "list|rejected|--volume|v",
        "describe|volume|v",
        "describe|job|j|--format|json",
        "describe|batch|x",
        "drop|stream|s|--if-exists",
        "drop|volume|v|--cascade",
        "drop|job|j",
        "refresh|v|--subdirectory|a/b|--accept-removals",
        "run-job|j|--plan",
        "retry|j|a.txt|--all",
        "skip|j|--kind|timed-out|--like|%a",
        "pause|j",
        "resume|j",
        "reset-stream|s|--to-version|0",
        "reset-stream|s|--to-timestamp|2026-01-01",
        "advance-stream|s|--to-version|1",
        "resolve|s|committed",
        "read-batch|x",
        "explain-file|v|a.txt",
        "status|--format|json",
        "init",
        "engine|status",
        "engine|stop|--now",
        "replay|j|--where|size < 3",
        "diff|p.toml|--exit-code|--prune",
        "apply|p.toml|--profile|a|--dry-run|--no-check",
        "apply|p.toml|--yes",
        "export|-|--format|json",
        "export|exported|--force",
        "graph|--format|mermaid",
        "completion|zsh",
        "--version",
        "--help",
        "create-job|--help",
        "sql|-f|script.sql",
    )
)

#: Files of pipelines, each beside ``f.py``.
PIPELINES = (
    '[variables]\nroot = "/in"\n[profile.a]\nroot = "x"\n[volumes.v]\nlocation = "${var:root}/b"\npattern = ["*.txt", "a/**"]\n',
    '[connections.c]\ntype = "s3"\nregion = "eu-west-1"\nendpoint = "http://127.0.0.1:1"\ncomment = "$${env:HOME} ${x}"\n',
    '[volumes.v]\nlocation = "s3://bucket/x"\nconnection = "c"\nqueue_type = "sqs"\nqueue_name = "q"\nrecursive = false\n',
    '[streams."a.b"]\non_table = "t"\nmode = "append-only"\nidentity = ["id"]\nat_timestamp = 2026-01-01T00:00:00Z\n',
    '[jobs.j]\non_volume = "v"\nfunction = "f.py:f"\nreturns = "n INT, `a b` STRING"\ninto = "t"\nevery = "30s"\narg.a = "1"\n',
    '[jobs.l]\non_volume = "v"\ninto = "t"\nload = { format = "csv", delimiter = ";", schema = "n INT" }\nmax_bytes = "1GiB"\n',
    "[jobs.s]\nstatement = \"INSERT INTO t SELECT f(a) FROM s WHERE x = 'it''s'\"\ncron = '*/5 * * * *'\n",
    '[tables."s.t"]\ncolumns = "id BIGINT NOT NULL, d DECIMAL(3,1)"\nprimary_key = ["id"]\nproperties.change_tracking = true\n',
    '[functions.f]\nfunction = \'f.py:f\'\nreturns = \'ARRAY<STRING>\'\n[dynamic_tables.d]\nquery = """\nSELECT f(a) FROM s.t\n"""\n',
    '[sources.k]\nkind = "kafka"\nbrokers = ["b:1"]\nproperties."sasl.password" = "${env:HOME}"\nretention_policy = "2 weeks"\n',
    '[sources.i]\nkind = "items"\nprimary_key = "id"\n[streams.s]\non_table = "i"\nshow_initial_rows = true\nat_version = 3\n',
)
