"""A whole home whose warehouse is in a bucket: files of a folder, a job, SQL that consumes a stream, and the daemon."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.clouds import moto
from tests.e2e.homes import Daemon, Home, patiently, write
from volstream import config
from volstream.errors import JavaError
from volstream.spark import connectors, jars

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

_FUNCTION = """
def read(file):
    return {"text": file.read_text()}
"""


@pytest.fixture
def s3() -> Iterator[str]:
    """Where S3 is; skips where the connector was not fetched, but not in CI."""
    try:
        jars.installed(config.cache_directory(), connectors.S3, connectors.SET_UP)
    except JavaError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    with moto() as url:
        keys = {"aws_access_key_id": "AKIATEST", "aws_secret_access_key": "long-lived-secret"}
        client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", **keys)
        client.create_bucket(Bucket="warehouse")
        yield url


def test_a_job_a_statement_and_the_daemon_work_on_a_warehouse_in_s3(tmp_path: Path, s3: str) -> None:
    home, files = Home(tmp_path), tmp_path / "files"
    files.mkdir()
    (tmp_path / "functions.py").write_text(_FUNCTION)
    options = {
        "AWS_ENDPOINT_URL": s3, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": "long-lived-secret",
    }  # fmt: skip
    settings = {"WAREHOUSE": "s3://warehouse/here", "WAREHOUSE_OPTIONS": json.dumps(options)}

    def ok(*arguments: str) -> str:
        said = home.ok(*arguments, **settings)
        assert "long-lived-secret" not in said
        return said

    def rows(query: str) -> list[tuple[str, ...]]:
        return sorted(tuple(row.values()) for row in json.loads(ok("sql", query, "--format", "json")))

    try:
        write(files, {"a.txt": "a", "b.txt": "b", "below/c.txt": "c"})
        ok("create-volume", "v", str(files), "--queue-type", "local")
        ok("create-job", "j", "--on-volume", "v", "--function", "functions.py:read", "--returns", "text STRING",
           "--into", "t", "--on-change")  # fmt: skip
        ok("create-stream", "s", "--on-volume", "v", "--show-initial-rows")
        ok("refresh", "v")
        ok("run-job", "j")
        assert rows("SELECT _file_path, text FROM t") == [("a.txt", "a"), ("b.txt", "b"), ("below/c.txt", "c")]

        write(files, {"a.txt": "again"})
        (files / "b.txt").unlink()
        ok("refresh", "v")
        ok("run-job", "j")
        assert rows("SELECT _file_path, text FROM t") == [("a.txt", "again"), ("below/c.txt", "c")]

        ok(
            "sql",
            "CREATE TABLE seen (path STRING); INSERT INTO seen SELECT relative_path FROM s WHERE __change_type = 'INSERT'",
        )
        ok("sql", "INSERT INTO seen SELECT relative_path FROM s")
        assert rows("SELECT path FROM seen") == [("a.txt",), ("below/c.txt",)]

        daemon = Daemon(home, **settings)
        try:
            daemon.await_ready()
            write(files, {"d.txt": "d"})
            patiently(lambda: ("d.txt", "d") in rows("SELECT _file_path, text FROM t"))
            assert "long-lived-secret" not in daemon.log
        finally:
            daemon.kill()
    finally:
        home.run("engine", "stop", "--now", **settings)
    assert not list(tmp_path.rglob("*.parquet"))  # all of it is in the bucket
    for log in (tmp_path / "home" / "log").iterdir():
        assert "long-lived-secret" not in log.read_text(errors="replace")
