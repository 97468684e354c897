"""A whole home whose warehouse is in a bucket: files of a folder, a job, SQL that consumes a stream, and the daemon."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.homes import Daemon, Home, patiently, write
from tests.s3 import Overtaking, warehouse_in_s3
from tests.servers import S3, SECRET

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

_FUNCTION = """
def read(file):
    return {"text": file.read_text()}
"""


@pytest.mark.parametrize("server", S3)
def test_a_job_a_statement_and_the_daemon_work_on_a_warehouse_in_s3(tmp_path: Path, server: str) -> None:
    with warehouse_in_s3(server) as settings:
        _use(tmp_path, settings)


@pytest.mark.parametrize("server", S3)
def test_a_commit_of_spark_that_is_overtaken_in_a_bucket_comes_after_the_other_one(tmp_path: Path, server: str) -> None:
    home = Home(tmp_path, seconds=300)
    other = b'{"commitInfo":{"timestamp":1,"operation":"WRITE","operationParameters":{"mode":"Append"}}}\n'
    with warehouse_in_s3(server) as settings:
        options = json.loads(settings["WAREHOUSE_OPTIONS"])
        proxy = Overtaking(options["AWS_ENDPOINT_URL"], "Hadoop")
        settings = {**settings, "WAREHOUSE_OPTIONS": json.dumps({**options, "AWS_ENDPOINT_URL": proxy.url})}
        try:
            home.ok("sql", "CREATE TABLE t (n INT)", **settings)
            proxy.overtake(f"/t/_delta_log/{1:020d}.json", other)
            home.ok("sql", "INSERT INTO t VALUES (1), (2)", **settings)
            assert len(proxy.overtaken) == 1
            history = json.loads(home.ok("sql", "DESCRIBE HISTORY t", "--format", "json", **settings))
            assert [row["version"] for row in history] == [2, 1, 0]
            assert json.loads(home.ok("sql", "SELECT sum(n) AS n FROM t", "--format", "json", **settings)) == [{"n": 3}]
        finally:
            home.run("engine", "stop", "--now", **settings)
            proxy.close()


def _use(tmp_path: Path, settings: Mapping[str, str]) -> None:
    home = Home(tmp_path, seconds=300)  # the stand-in answers thousands of requests, in one process
    files = tmp_path / "files"
    files.mkdir()
    (tmp_path / "functions.py").write_text(_FUNCTION)

    def ok(*arguments: str) -> str:
        said = home.ok(*arguments, **settings)
        assert SECRET not in said
        return said

    def rows(query: str) -> list[tuple[str, ...]]:
        return sorted(tuple(row.values()) for row in json.loads(ok("sql", query, "--format", "json")))

    try:
        write(files, {"a.txt": "a", "b.txt": "b", "below/c.txt": "c"})
        ok("create-volume", "v", str(files), "--queue-type", "local")
        ok(
            "create-job",
            "j",
            "--volume",
            "v",
            "--function",
            "functions.py:read",
            "--returns",
            "text STRING",
            "--into",
            "t",
            "--on-change",
        )
        ok("create-stream", "s", "--volume", "v", "--show-initial-rows")
        ok("refresh", "v")
        ok("run-job", "j")
        assert rows("SELECT _file_path, text FROM t") == [("a.txt", "a"), ("b.txt", "b"), ("below/c.txt", "c")]

        write(files, {"a.txt": "again"})
        (files / "b.txt").unlink()
        ok("refresh", "v")
        ok("run-job", "j")
        assert rows("SELECT _file_path, text FROM t") == [("a.txt", "again"), ("below/c.txt", "c")]
        assert "no differences" in ok("verify", "j")

        ok("sql", "CREATE TABLE seen (path STRING); INSERT INTO seen SELECT relative_path FROM s WHERE __change_type = 'INSERT'")
        ok("sql", "INSERT INTO seen SELECT relative_path FROM s")
        assert rows("SELECT path FROM seen") == [("a.txt",), ("below/c.txt",)]

        properties = "TBLPROPERTIES ('change_tracking' = 'true', 'delta.enableDeletionVectors' = 'true')"
        ok("sql", f"CREATE TABLE n {properties} AS SELECT id, 'a' AS v FROM range(0, 9, 1, 1); CREATE STREAM changed ON TABLE n")
        ok("sql", "UPDATE n SET v = 'b' WHERE id = 1; DELETE FROM n WHERE id = 2")
        shown = rows("SELECT v, __change_type FROM changed")
        assert shown == [("a", "DELETE"), ("a", "UPDATE_BEFORE"), ("b", "UPDATE_AFTER")]

        daemon = Daemon(home, **settings)
        try:
            daemon.await_ready()
            write(files, {"d.txt": "d"})
            patiently(lambda: ("d.txt", "d") in rows("SELECT _file_path, text FROM t"))
            assert SECRET not in daemon.log
        finally:
            daemon.kill()
    finally:
        home.run("engine", "stop", "--now", **settings)
    assert not list(tmp_path.rglob("*.parquet"))  # all of it is in the bucket
    for log in (tmp_path / "home" / "log").iterdir():
        assert SECRET not in log.read_text(errors="replace")
